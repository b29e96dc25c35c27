#include "io/hash.h"

#include <doctest/doctest.h>

#include "core/error.h"

#include "support/oracle.h"

namespace sluice {

TEST_CASE("sha256: the examples of FIPS 180-2, appendix B") {
  auto of = [](std::string_view text) { return sha256(std::as_bytes(std::span(text))); };
  CHECK(of("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(of(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256_file: every file of the oracle has the hash of its manifest") {
  int files = 0;
  for (const char* manifest : {"manifest.json", "manifest_more.json"}) {
    const Json entries = Json::parse(test::read_whole_file(test::oracle_dir() / manifest)).at("files");
    for (const auto& [name, entry] : entries.items()) {
      CAPTURE(name);
      CHECK(sha256_file((test::oracle_dir() / name).string()) == entry.at("sha256").get<std::string>());
      ++files;
    }
  }
  CHECK(files > 80);
  CHECK_THROWS_AS(sha256_file((test::oracle_dir() / "no-such-file").string()), Error);
}

}  // namespace sluice
