#include "ops/common/copy.h"

#include <doctest/doctest.h>

#include <numeric>

#include "support/close.h"
#include "support/contexts.h"

using namespace sluice;
using namespace sluice::test;

TEST_CASE("copy on CUDA: through device memory and back, and the source may change when the call returns") {
  if (!on_cuda()) return;
  Arena arena = Arena::allocate(test_device(), 64 << 20);
  ThreadPool pool(1);
  Context ctx{.arena = arena, .pool = pool, .device = test_device()};
  for (int64_t n : {1, 100, 16384, 16385, 3'000'000}) {
    CAPTURE(n);
    ArenaScope scope(arena);
    const Tensor t = scope.tensor(DType::i32, {n});
    std::vector<int32_t> values(static_cast<size_t>(n)), back(values.size(), -1);
    std::iota(values.begin(), values.end(), 7);
    const std::vector<int32_t> expected = values;
    copy_from_host(ctx, {.host = values.data(), .tensor = t});
    values.assign(values.size(), 0);
    copy_to_host(ctx, {.tensor = t, .host = back.data()});
    CHECK(back == expected);
    zero(ctx, {.tensor = t});
    copy_to_host(ctx, {.tensor = t, .host = back.data()});
    CHECK(back == values);
  }
}
