#include "core/kernel_path.h"

#include <doctest/doctest.h>

#include <string>

#include "core/error.h"

using namespace sluice;

TEST_CASE("FieldP3_kernel_path: only 9.0 gets Hopper's kernels, and each card is taken to have its own shared memory") {
  struct Card {
    int major, minor;
    int64_t shared_kib;
  };
  // The limits that the CUDA programming guide names; 9.1 and 13.0 are not in it, and get the smallest.
  for (const Card& card :
       {Card{8, 0, 163}, Card{8, 6, 99}, Card{8, 7, 163}, Card{8, 9, 99}, Card{9, 0, 227}, Card{9, 1, 99},
        Card{10, 0, 227}, Card{10, 3, 227}, Card{11, 0, 227}, Card{12, 0, 99}, Card{12, 1, 99}, Card{13, 0, 99}}) {
    CAPTURE(card.major);
    CAPTURE(card.minor);
    const Capability c = capability(card.major, card.minor);
    const bool hopper = card.major == 9 && card.minor == 0;
    CHECK(c.path == (hopper ? KernelPath::sm90 : KernelPath::portable));
    CHECK(c.shared_bytes_per_block == card.shared_kib * 1024);
    CHECK(kernel_path(c, nullptr) == c.path);
    CHECK(kernel_path(c, "portable") == KernelPath::portable);
    const bool later = (card.major == 13) || (card.major == 9 && card.minor == 1);
    CHECK(c.listed == !later);
    CHECK((path_in_words(c, nullptr).find("later than") != std::string::npos) == later);
  }
  CHECK(path_in_words(capability(9, 0), "portable") == "portable kernels (SLUICE_CUDA_PATH)");
}

TEST_CASE("FieldP3_kernel_path: what is too old is refused with the reason, and an unknown path by its name") {
  for (int minor : {0, 2, 5}) {
    try {
      (void)capability(7, minor);
      FAIL("7." << minor << " was taken");
    } catch (const Error& e) {
      CHECK(std::string(e.what()).find("7." + std::to_string(minor)) != std::string::npos);
      CHECK(std::string(e.what()).find("bf16") != std::string::npos);
    }
  }
  CHECK_THROWS_WITH_AS(kernel_path(capability(8, 0), "sm90"), doctest::Contains("'sm90'"), Error);
}
