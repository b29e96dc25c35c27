#include "text/tokenizer.h"

#include <algorithm>

#include "core/error.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace sluice {
namespace {

// One text on its way to tokens.
class Encoder {
 public:
  Encoder(const Tokenizer::Parts& parts, EncodeScratch& scratch, bool parse_special, Encoding& out)
      : parts_(parts), scratch_(scratch), parse_special_(parse_special), out_(out) {}

  // Valid UTF-8 that starts at byte `base` of the source.
  void text(std::string_view text, int64_t base) {
    for_each_piece(parts_.raw_tokens, AlignedText(text, base), [&](AlignedText piece) {
      if (parts_.normalizer.empty()) return normalized(std::move(piece));
      normalized(normalize(parts_.normalizer, std::move(piece), scratch_.pre_tokenizer.regex));
    });
  }

  void invalid_byte(uint8_t byte, int64_t at) {
    scratch_.symbols.clear();
    parts_.model->encode_invalid_byte(byte, scratch_.symbols);
    for (const Symbol& symbol : scratch_.symbols) append(symbol.id, {at, at + 1});
  }

 private:
  void append(int32_t id, ByteRange range) {
    out_.ids.push_back(id);
    out_.offsets.push_back(range);
  }

  template <class Handle>
  void for_each_piece(const AddedTokenMatcher& matcher, AlignedText text, Handle handle) {
    if (matcher.empty()) return handle(std::move(text));
    for (const auto& match : matcher.split(text.text(), parse_special_)) {
      if (match.id < 0) {
        handle(text.slice(match.range));
      } else {
        append(match.id, text.source(static_cast<size_t>(match.range.begin), static_cast<size_t>(match.range.end)));
      }
    }
  }

  void normalized(AlignedText text) {
    for_each_piece(parts_.normalized_tokens, std::move(text), [&](AlignedText piece) {
      pre_tokenize(parts_.pre_tokenizer, piece, scratch_.pre_tokenizer, scratch_.words);
      for (const ByteRange& range : scratch_.words) word(piece, range);
    });
  }

  void word(const AlignedText& text, ByteRange range) {
    const std::string_view word =
        text.text().substr(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
    std::span<const Symbol> symbols = scratch_.cache.find(word);
    if (symbols.empty()) {
      scratch_.symbols.clear();
      parts_.model->encode(word, scratch_.model, scratch_.symbols);
      scratch_.cache.insert(word, scratch_.symbols);
      symbols = scratch_.symbols;
    }
    size_t begin = static_cast<size_t>(range.begin);
    for (const Symbol& symbol : symbols) {
      const size_t end = static_cast<size_t>(range.begin) + symbol.end;
      append(symbol.id, text.source(begin, end));
      begin = end;
    }
  }

  const Tokenizer::Parts& parts_;
  EncodeScratch& scratch_;
  bool parse_special_;
  Encoding& out_;
};

bool starts_with(const std::vector<int32_t>& ids, const std::vector<int32_t>& prefix) {
  return ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
}

bool ends_with(const std::vector<int32_t>& ids, const std::vector<int32_t>& suffix) {
  return ids.size() >= suffix.size() && std::equal(suffix.rbegin(), suffix.rend(), ids.rbegin());
}

void add_special(const Tokenizer::Parts& parts, int64_t size, Encoding& encoding) {
  if (!starts_with(encoding.ids, parts.prefix)) {
    encoding.ids.insert(encoding.ids.begin(), parts.prefix.begin(), parts.prefix.end());
    encoding.offsets.insert(encoding.offsets.begin(), parts.prefix.size(), ByteRange{0, 0});
  }
  if (!ends_with(encoding.ids, parts.suffix)) {
    encoding.ids.insert(encoding.ids.end(), parts.suffix.begin(), parts.suffix.end());
    encoding.offsets.insert(encoding.offsets.end(), parts.suffix.size(), ByteRange{size, size});
  }
}

}  // namespace

Encoding Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  check(text.size() < (size_t{1} << 31), ErrorCode::bad_config,
        "the text has " + std::to_string(text.size()) + " bytes, needed less than 2^31; break it into rows");
  Encoding encoding;
  encoding.ids.reserve(text.size() / 3 + 8);
  encoding.offsets.reserve(text.size() / 3 + 8);
  auto scratch = parts_->scratch.take();
  Encoder encoder(*parts_, *scratch, options.parse_special, encoding);
  for (size_t at = 0; at < text.size();) {
    const size_t end = utf8_valid_end(text, at);
    if (end > at) encoder.text(text.substr(at, end - at), static_cast<int64_t>(at));
    if (end < text.size()) encoder.invalid_byte(static_cast<uint8_t>(text[end]), static_cast<int64_t>(end));
    at = end + 1;
  }
  parts_->scratch.give_back(std::move(scratch));
  if (options.add_special) add_special(*parts_, static_cast<int64_t>(text.size()), encoding);
  return encoding;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  bool first = true;
  for (int32_t id : ids) {
    check(id >= 0 && id < parts_->size(), ErrorCode::bad_config,
          "token id is " + std::to_string(id) + ", needed 0 to " + std::to_string(parts_->size() - 1));
    if (skip_special && is_special(id)) continue;
    text += parts_->bytes(id, first);
    first = false;
  }
  text.erase(0, parts_->leading_spaces(text));
  return text;
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token_text) const {
  const int32_t id = parts_->find(token_text);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::string_view Tokenizer::token_text(int32_t id) const { return parts_->text(id); }

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id < 0 || id >= parts_->size() ? std::string_view() : parts_->decoded[static_cast<size_t>(id)];
}

int64_t Tokenizer::vocab_size() const { return parts_->size(); }
std::optional<int32_t> Tokenizer::bos_id() const { return parts_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return parts_->eos; }
std::optional<int32_t> Tokenizer::pad_id() const { return parts_->pad; }
std::optional<int32_t> Tokenizer::unk_id() const { return parts_->unk; }
bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < parts_->size() && parts_->special[static_cast<size_t>(id)];
}
bool Tokenizer::adds_bos() const {
  const auto& prefix = parts_->prefix;
  return parts_->bos && std::find(prefix.begin(), prefix.end(), *parts_->bos) != prefix.end();
}
const std::vector<int32_t>& Tokenizer::stop_ids() const { return parts_->stop_ids; }

}  // namespace sluice
