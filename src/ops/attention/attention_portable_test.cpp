// The portable kernels' schedules against each card's shared memory, without the cards.
#include "ops/attention/attention_portable.h"

#include <doctest/doctest.h>

#include <utility>

#include "core/kernel_path.h"

using namespace sluice;

TEST_CASE("FieldP3_attention: every portable kernel's shared memory fits every card, for every head size") {
  const int64_t heads[] = {8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 320, 512};
  for (const auto& [major, minor] :
       {std::pair{8, 0}, {8, 6}, {8, 7}, {8, 9}, {9, 0}, {10, 0}, {10, 3}, {11, 0}, {12, 0}, {12, 1}, {13, 0}}) {
    CAPTURE(major);
    CAPTURE(minor);
    const int64_t limit = capability(major, minor).shared_bytes_per_block;
    CHECK(PortableForwardWide{}.shared_bytes() <= limit);
    CHECK(portable_scores_bytes() <= limit);
    for (int64_t D : heads) {
      CAPTURE(D);
      if (const auto* forward = portable_forward_of(D)) CHECK(forward->shared_bytes() <= limit);
      REQUIRE(portable_backward_takes(D));
      if (const auto* narrow = portable_backward_narrow_of(D)) {
        CHECK(narrow->shared_bytes() <= limit);
        CHECK(portable_products_bytes(narrow->dq_columns) <= limit);
        CHECK(D % narrow->dq_columns == 0);
      }
      CHECK(portable_products_bytes(portable_columns(D)) <= limit);
    }
  }
  for (int64_t D : {64, 80, 96, 128, 256}) CHECK(portable_forward_of(D) != nullptr);
}
