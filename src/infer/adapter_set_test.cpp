// Adapters come and go while texts are generated.
#include "infer/adapter_set.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "infer/generate.h"
#include "model/registry.h"
#include "support/close.h"
#include "support/contexts.h"
#include "support/golden.h"
#include "support/oracle.h"

namespace sluice::test {

namespace {

// A tiny model and two adapters on disk, one of them DoRA, whose mounting computes.
struct Mountable {
  TemporaryFolder folder;
  std::unique_ptr<Model> model = load_model((oracle_dir() / "llama-gqa").string());

  Mountable() {
    model->device = test_device();
    model->upload();
    write("a", 1, false);
    write("b", 2, true);
  }
  void write(const std::string& name, uint32_t seed, bool dora) const {
    const AdapterLayout layout(model->config, {.rank = 8, .alpha = 32, .dora = dora});
    std::vector<float> flat = random_values(static_cast<size_t>(layout.size()), seed, 0.2F);
    for (int64_t i = layout.magnitude_begin(); i < layout.size(); ++i)
      flat[static_cast<size_t>(i)] = 1 + std::abs(flat[static_cast<size_t>(i)]);
    save_peft_adapter(folder / name, layout, flat.data(), "base");
  }
};

const GenerateRequest request{.prompt = {5, 80, 17, 44, 9}, .max_new_tokens = 24};

}  // namespace

TEST_CASE(
    "adapter set: a stream ends on the adapter that it began with, though it is unmounted and replaced meanwhile") {
  const Mountable m;
  ThreadPool pool(2);
  AdapterSet adapters(pool, *m.model);
  for (const char* name : {"a", "b"}) adapters.mount(name, m.folder / name);
  Generator generator(pool, *m.model, {.max_tokens = 64, .dtype = DType::f32});
  const auto tokens = generator.generate(request, *adapters.get("a")).tokens;
  REQUIRE(generator.generate(request, *adapters.get("b")).tokens != tokens);
  REQUIRE(generator.generate(request, *adapters.get("")).tokens != tokens);
  int64_t heard = 0;
  const auto swap = [&](size_t, int32_t) {
    if (++heard == 2) adapters.mount("a", m.folder / "b");
    if (heard == 3) adapters.unmount("a");
    return true;
  };
  CHECK(generator.generate(request, *adapters.get("a"), swap).tokens == tokens);
  CHECK_THROWS_WITH_AS(adapters.get("a"), "no adapter 'a' is mounted; there are: b", Error);
}

TEST_CASE("adapter set: threads generate while others mount and unmount, and every text is one adapter's") {
  const Mountable m;
  ThreadPool pool(2);
  AdapterSet adapters(pool, *m.model);
  std::vector<std::vector<int32_t>> texts;
  {
    Generator generator(pool, *m.model, {.max_tokens = 64, .dtype = DType::f32});
    for (const char* name : {"a", "b"}) {
      adapters.mount(name, m.folder / name);
      texts.push_back(generator.generate(request, *adapters.get(name)).tokens);
    }
  }
  adapters.mount("x", m.folder / "a");
  std::atomic<int> streams{2}, wrong{0};
  std::vector<std::thread> threads;
  for (int stream = 0; stream < 2; ++stream) {
    threads.emplace_back([&] {
      Generator generator(pool, *m.model, {.max_tokens = 64, .dtype = DType::f32});
      for (int i = 0; i < 10; ++i) {
        const auto tokens = generator.generate(request, *adapters.get("x")).tokens;
        wrong += tokens != texts[0] && tokens != texts[1];
      }
      --streams;
    });
  }
  for (int i = 0; streams > 0; ++i) {
    adapters.mount("x", m.folder / (i % 2 == 0 ? "b" : "a"));
    adapters.mount("y", m.folder / "b");
    adapters.unmount("y");
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(adapters.names() == std::vector<std::string>{"a", "b", "x"});
}

}  // namespace sluice::test
