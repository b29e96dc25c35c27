// Gemma 3 270M against llama.cpp: greedy tokens of 20 prompts (tests/oracle/make_gemma_greedy.py). Needs the model file, which its terms
// of use keep out of the repository: examples/gemma270m/fetch.sh, or the environment variable SLUICE_MODEL_GEMMA270M.
#include "data/model_text.h"
#include "infer/generate.h"
#include "model/registry.h"
#include "support/oracle.h"
#include "support/source_dir.h"

namespace sluice::test {

namespace {

// llama.cpp rounds activations to 8 bits in products with quantised weights: its logits are off by some 0.1. A step whose two best logits
// are nearer than this, by our own exact products, may go either way.
constexpr float near_tie = 0.5F;

std::filesystem::path gemma_path() {
  if (const char* path = std::getenv("SLUICE_MODEL_GEMMA270M"); path != nullptr && *path != '\0') return path;
  return source_dir() / ".cache" / "models" / "gemma-3-270m-q4_k_m.gguf";
}

}  // namespace

TEST_SUITE("full") {
  TEST_CASE("gemma 3 270M: greedy tokens in fp32 equal llama.cpp's up to the first near-tie") {
    const std::filesystem::path path = gemma_path();
    if (!std::filesystem::exists(path)) {
      MESSAGE("SKIPPED: ", path.string(), " is not there; examples/gemma270m/fetch.sh fetches it");
      return;
    }
    const Json golden = Json::parse(read_whole_file(source_dir() / "tests/golden/gemma270m_greedy.json"));
    const auto model = load_model(path.string());
    const ModelText text = load_model_text(*model->source);
    ThreadPool pool(2);
    Generator generator(pool, *model, {.max_sequences = 1, .max_tokens = 128, .dtype = DType::f32});
    size_t whole = 0, equal = 0, steps = 0;
    for (const Json& c : golden["cases"]) {
      const auto prompt = c["prompt"].get<std::string>();
      CAPTURE(prompt);
      const auto ids = c["ids"].get<std::vector<int32_t>>(), theirs = c["tokens"].get<std::vector<int32_t>>();
      const auto gaps = c["gaps"].get<std::vector<double>>();
      CHECK(text.tokenizer.encode(prompt, {.add_special = true}).ids == ids);
      const GenerateResult ours =
          generator.generate({.prompt = ids, .max_new_tokens = static_cast<int64_t>(theirs.size())}, {});
      REQUIRE(ours.tokens.size() == theirs.size());
      const auto parted =
          static_cast<size_t>(std::mismatch(theirs.begin(), theirs.end(), ours.tokens.begin()).first - theirs.begin());
      equal += parted;
      steps += theirs.size();
      if (parted == theirs.size()) {
        ++whole;
        continue;
      }
      std::vector<int32_t> until(ids);
      until.insert(until.end(), theirs.begin(), theirs.begin() + static_cast<std::ptrdiff_t>(parted));
      const float gap = generator.generate({.prompt = until, .max_new_tokens = 1}, {}).smallest_gap;
      MESSAGE("parts at step ", parted, ", our gap ", gap, ", theirs ", gaps[parted], ": ", prompt);
      CHECK(gap < near_tie);
    }
    MESSAGE(whole, " of ", golden["cases"].size(), " continuations are equal to the end; ", equal, " of ", steps,
            " tokens before any parting");
  }
}

}  // namespace sluice::test
