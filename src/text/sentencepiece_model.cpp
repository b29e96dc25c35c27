#include "text/sentencepiece_model.h"

#include <cstring>
#include <optional>

#include "core/error.h"
#include "text/vocabulary.h"

namespace sluice {
namespace {

[[noreturn]] void damaged(const std::string& found) {
  throw Error(ErrorCode::bad_file,
              "SentencePiece model: found " + found + ", needed a whole message; download it again");
}

// The fields of one protobuf message, in order.
class Message {
 public:
  explicit Message(std::string_view bytes) : bytes_(bytes) {}

  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t key = varint();
    number_ = key >> 3;
    kind_ = static_cast<int>(key & 7);
    if (kind_ == 0) value_ = varint();
    else if (kind_ == 1) text_ = take(8);
    else if (kind_ == 2) text_ = take(varint());
    else if (kind_ == 5) text_ = take(4);
    else damaged("a field of wire type " + std::to_string(kind_));
    if (number_ == 0) damaged("a field with the number 0");
    return true;
  }

  uint64_t number() const { return number_; }
  std::string_view text() const { return need(2), text_; }
  int32_t integer() const { return need(0), static_cast<int32_t>(value_); }
  bool boolean() const { return need(0), value_ != 0; }
  float number32() const {
    need(5);
    float value;
    std::memcpy(&value, text_.data(), 4);
    return value;
  }

 private:
  void need(int kind) const {
    if (kind_ != kind) damaged("field " + std::to_string(number_) + " with wire type " + std::to_string(kind_));
  }
  std::string_view take(uint64_t size) {
    if (size > bytes_.size() - at_) damaged("a field of " + std::to_string(size) + " bytes past the end");
    at_ += static_cast<size_t>(size);
    return bytes_.substr(at_ - static_cast<size_t>(size), static_cast<size_t>(size));
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) damaged("a number past the end");
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    damaged("a number of over 64 bits");
  }

  std::string_view bytes_, text_;
  size_t at_ = 0;
  uint64_t number_ = 0, value_ = 0;
  int kind_ = 0;
};

SentencePieceModel::Piece read_piece(Message fields) {
  SentencePieceModel::Piece piece;
  while (fields.next()) {
    if (fields.number() == 1) piece.text = fields.text();
    if (fields.number() == 2) piece.score = fields.number32();
    if (fields.number() == 3) {
      if (fields.integer() < 1 || fields.integer() > 6) damaged("a piece of type " + std::to_string(fields.integer()));
      piece.type = static_cast<SentencePieceModel::Type>(fields.integer());
    }
  }
  return piece;
}

void read_trainer(Message fields, SentencePieceModel& model) {
  while (fields.next()) {
    switch (fields.number()) {
      case 3:
        if (fields.integer() < 1 || fields.integer() > 4) damaged("model_type " + std::to_string(fields.integer()));
        model.algorithm = static_cast<SentencePieceModel::Algorithm>(fields.integer());
        break;
      case 24: model.space_as_suffix = fields.boolean(); break;
      case 35: model.byte_fallback = fields.boolean(); break;
      case 40: model.unk_id = fields.integer(); break;
      case 41: model.bos_id = fields.integer(); break;
      case 42: model.eos_id = fields.integer(); break;
      case 43: model.pad_id = fields.integer(); break;
      case 44: model.unk_surface = fields.text(); break;
      default: break;
    }
  }
}

void read_normalizer(Message fields, SentencePieceModel& model) {
  while (fields.next()) {
    switch (fields.number()) {
      case 2: model.charsmap = fields.text(); break;
      case 3: model.add_dummy_prefix = fields.boolean(); break;
      case 4: model.remove_extra_spaces = fields.boolean(); break;
      case 5: model.escape_spaces = fields.boolean(); break;
      default: break;
    }
  }
}

}  // namespace

SentencePieceModel SentencePieceModel::parse(std::string_view file) {
  SentencePieceModel model;
  Message fields(file);
  while (fields.next()) {
    switch (fields.number()) {
      case 1:
        model.pieces.push_back(read_piece(Message(fields.text())));
        if (model.pieces.size() > size_t{Vocabulary::max_id}) damaged("more pieces than any vocabulary has");
        break;
      case 2: read_trainer(Message(fields.text()), model); break;
      case 3: read_normalizer(Message(fields.text()), model); break;
      case 5: {
        SentencePieceModel denormalizer;
        read_normalizer(Message(fields.text()), denormalizer);
        model.denormalizer_charsmap = denormalizer.charsmap;
        break;
      }
      default: break;
    }
  }
  if (model.pieces.empty()) damaged("no pieces");
  return model;
}

}  // namespace sluice
