// Encoding a megabyte and loading a vocabulary, both made up. bytes_per_second is of the text.
#include <benchmark/benchmark.h>

#include <set>
#include <string>
#include <vector>

#include "core/rng.h"
#include "text/byte_level.h"
#include "text/tokenizer.h"

namespace sluice {
namespace {

// A byte-level vocabulary of `size` tokens: the bytes, and words of up to 9 letters, each an earlier token and one letter more.
struct MadeUpVocabulary {
  std::vector<std::string> texts, merges;
  std::vector<std::string_view> token_views, merge_views;

  explicit MadeUpVocabulary(size_t size) {
    for (int byte = 0; byte < 256; ++byte) texts.push_back(byte_level_encode(std::string(1, static_cast<char>(byte))));
    std::vector<std::string> known{"Ġ"};
    for (char c = 'a'; c <= 'z'; ++c) known.emplace_back(1, c);
    std::set<std::string> taken(known.begin(), known.end());
    for (uint64_t i = 0; texts.size() < size; i += 2) {
      const std::string left = known[random_bits(1, 0, i) % known.size()],
                        right = known[1 + random_bits(1, 0, i + 1) % 26];
      if (left.size() > 8 || !taken.insert(left + right).second) continue;
      merges.push_back(left + " " + right);
      known.push_back(left + right);
      texts.push_back(left + right);
    }
    token_views.assign(texts.begin(), texts.end());
    merge_views.assign(merges.begin(), merges.end());
  }

  Tokenizer load() const {
    return Tokenizer::from_gguf({.model = "gpt2", .pre = "smollm", .tokens = token_views, .merges = merge_views});
  }

  std::string as_json() const {
    const auto quoted = [](const std::string& text) {
      return "\"" + (text == "\"" || text == "\\" ? "\\" + text : text) + "\"";
    };
    std::string json =
        R"({"pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{)";
    for (size_t i = 0; i < texts.size(); ++i) json += (i > 0 ? "," : "") + quoted(texts[i]) + ":" + std::to_string(i);
    json += "},\"merges\":[";
    for (size_t i = 0; i < merges.size(); ++i) json += (i > 0 ? "," : "") + quoted(merges[i]);
    return json + "]}}";
  }
};

// Words drawn as in a natural text: a few often, most seldom.
std::string words(size_t num_bytes) {
  std::string text;
  for (uint64_t i = 0; text.size() < num_bytes; ++i) {
    const float u = random_uniform(2, 0, i);
    const auto which = static_cast<uint64_t>(60000 * u * u * u * u);
    const uint64_t length = 2 + random_bits(3, which, 0) % 8;
    for (uint64_t k = 0; k < length; ++k) text += static_cast<char>('a' + random_bits(3, which, 1 + k) % 26);
    text += i % 13 == 0 ? ".\n" : i % 7 == 0 ? ", " : i % 29 == 0 ? " 2024 " : " ";
  }
  return text;
}

void encode_byte_level(benchmark::State& state) {
  const MadeUpVocabulary vocabulary(49152);
  const Tokenizer warm = vocabulary.load();
  const std::string text = words(1 << 20);
  for (auto _ : state) {
    // A fresh tokenizer has an empty word cache.
    if (state.range(0) == 0) {
      state.PauseTiming();
      const Tokenizer cold = vocabulary.load();
      state.ResumeTiming();
      benchmark::DoNotOptimize(cold.encode(text));
    } else {
      benchmark::DoNotOptimize(warm.encode(text));
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}
BENCHMARK(encode_byte_level)->ArgName("warm")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

void encode_one_long_word(benchmark::State& state) {
  const Tokenizer tokenizer = MadeUpVocabulary(49152).load();
  const std::string word(static_cast<size_t>(state.range(0)), 'a');
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.encode(word));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(encode_one_long_word)->Arg(1000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

void load_gguf(benchmark::State& state) {
  const MadeUpVocabulary vocabulary(static_cast<size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(vocabulary.load());
}
BENCHMARK(load_gguf)->Arg(49152)->Arg(262144)->Unit(benchmark::kMillisecond);

void load_tokenizer_json(benchmark::State& state) {
  const std::string json = MadeUpVocabulary(static_cast<size_t>(state.range(0))).as_json();
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::from_tokenizer_json(json));
}
BENCHMARK(load_tokenizer_json)->Arg(49152)->Arg(262144)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice
