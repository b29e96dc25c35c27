// The model file of SentencePiece (tokenizer.model, spiece.model): a protobuf message ModelProto of sentencepiece_model.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct SentencePieceModel {
  enum class Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  enum class Algorithm { unigram = 1, bpe = 2, word = 3, character = 4 };
  struct Piece {
    std::string_view text;
    float score = 0;
    Type type = Type::normal;
  };
  // All views are of the file.
  std::vector<Piece> pieces;
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false, space_as_suffix = false;
  int32_t unk_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;
  std::string unk_surface = " \xE2\x81\x87 ";
  std::string_view charsmap, denormalizer_charsmap;
  bool add_dummy_prefix = true, remove_extra_spaces = true, escape_spaces = true;

  // Throws Error(bad_file) for a message that is cut off or damaged.
  static SentencePieceModel parse(std::string_view file);
};

}  // namespace sluice
