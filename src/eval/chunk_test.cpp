#include "eval/chunk.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "core/error.h"
#include "io/hash.h"
#include "support/source_dir.h"

using namespace sluice;

namespace {

const std::string folder = (sluice::test::source_dir() / "examples/chunk/").string();

// Four messages, topics at aa and cc, and one more at ee.
ChunkCase small_case() {
  const Json row = {
      {"messages",
       {{{"role", "system"}, {"content", "You split conversations into chunks."}},
        {{"role", "user"},
         {"content",
          "aa Ana: First, the rain barrel.\nbb Ben: Yes.\ncc Ana: Now the old oak tree.\ndd Ben: Yes.\nee Ana: Next, "
          "the bread.\nff Ben: No.\n\nSplit it. For example: {\"chunks\":[]}"}},
        {{"role", "assistant"},
         {"content", R"({"chunks":[{"start":"aa","label":"the rain barrel"},{"start":"cc","label":"the old oak tree"},)"
                     R"({"start":"ee","label":"the bread"}]})"}}}}};
  return chunk_case(row);
}

double total(std::string_view answer) { return score_chunks(small_case(), answer).total(); }

std::vector<Json> held_out() {
  std::ifstream in(folder + "data/heldout.jsonl");
  std::vector<Json> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(Json::parse(line));
  return rows;
}

}  // namespace

TEST_CASE("chunk score: the truth gets 100, whatever its spelling of the labels") {
  CHECK(
      total(
          R"({"chunks":[{"start":"aa","label":"the rain barrel"},{"start":"cc","label":"the old oak tree"},{"start":"ee","label":"the bread"}]})") ==
      doctest::Approx(100));
  CHECK(total("\n{ \"chunks\": [ {\"label\": \"Rain barrel!\", \"start\": \"aa\"}, {\"start\": \"cc\", \"label\": "
              "\"OLD oak-tree\"}, {\"start\": \"ee\", \"label\": \"a bread\"} ] }\n") == doctest::Approx(100));
}

TEST_CASE("chunk score: prose, nothing and broken JSON get 0") {
  for (const char* answer :
       {"", "The conversation is about a rain barrel.", "aa Ana: First, the rain barrel.",
        "{\"chunks\":[{\"start\":\"aa\"", "[]", "{\"chunks\":[{\"start\":\"aa\",\"label\":\"\xFF\"}]}"}) {
    CAPTURE(answer);
    CHECK(total(answer) == 0);
  }
}

TEST_CASE("chunk score: JSON of another schema gets the 6 points of JSON alone") {
  for (const char* answer :
       {"{}", R"({"chunks":[]})", R"({"chunks":{"aa":"x"}})", R"({"chunks":[{"start":"aa"}]})",
        R"({"chunks":[{"start":1,"label":"x"}]})", R"({"chunks":[{"start":"aa","label":"x","end":"bb"}]})",
        R"({"chunks":[{"start":"aa","label":"x"}],"more":1})"}) {
    CAPTURE(answer);
    CHECK(total(answer) == doctest::Approx(6));
  }
}

TEST_CASE("chunk score: an echo of the example gets 6 + 8 + 5, and with prose around it 13") {
  const std::string echo =
      R"({"chunks":[{"start":"xx","label":"the old car"},{"start":"yy","label":"the garden fence"}]})";
  CHECK(total(echo) == doctest::Approx(19));
  CHECK(total("Here you are:\n```json\n" + echo + "\n```") == doctest::Approx(13));
}

TEST_CASE("chunk score: the first message alone earns no boundary and its share of the labels") {
  // 6 + 8 + 6 + 5, no boundary, one of three labels: 25 + 35 / 3.
  CHECK(total(R"({"chunks":[{"start":"aa","label":"the rain barrel"}]})") == doctest::Approx(25 + 35.0 / 3));
}

TEST_CASE("chunk score: one boundary missed and one invented") {
  // Starts cc and dd for the true cc and ee: precision 1/2, recall 1/2, F1 1/2. Labels: aa 1, cc {old, tree} of {old, oak, tree}: 2*2/5 = 4/5, ee 0.
  const ChunkScore s = score_chunks(
      small_case(),
      R"({"chunks":[{"start":"aa","label":"rain barrel"},{"start":"cc","label":"old tree"},{"start":"dd","label":"bread"}]})");
  CHECK(s.boundaries == doctest::Approx(0.5));
  CHECK(s.labels == doctest::Approx((1 + 0.8) / 3));
  CHECK(s.total() == doctest::Approx(25 + 20 + 35 * 0.6));
}

TEST_CASE("chunk score: unknown and repeated ids and empty labels cost their shares") {
  // ids: aa once, then again, and zz: 1 of 3. Labels with a letter: 2 of 3. Boundaries: zz for cc and ee: 0. Labels: aa 1 of 3.
  const ChunkScore s = score_chunks(
      small_case(),
      R"({"chunks":[{"start":"aa","label":"the rain barrel"},{"start":"aa","label":"..."},{"start":"zz","label":"bread"}]})");
  CHECK(s.ids == doctest::Approx(1.0 / 3));
  CHECK(s.non_empty == doctest::Approx(2.0 / 3));
  CHECK(s.total() == doctest::Approx(6 + 8 + 2 + 10.0 / 3 + 35.0 / 3));
}

TEST_CASE("chunk score: a chunk for every message has recall 1 and pays with precision and labels") {
  // Predicted bb..ff, true cc and ee: F1 = 2*2/(5+2) = 4/7. Labels: three right of six.
  const ChunkScore s = score_chunks(
      small_case(),
      R"({"chunks":[{"start":"aa","label":"rain barrel"},{"start":"bb","label":"x"},{"start":"cc","label":"old oak tree"},)"
      R"({"start":"dd","label":"x"},{"start":"ee","label":"bread"},{"start":"ff","label":"x"}]})");
  CHECK(s.boundaries == doctest::Approx(4.0 / 7));
  CHECK(s.labels == doctest::Approx(0.5));
}

TEST_CASE("chunk score: the mean is part by part, and of nothing zero") {
  const ChunkScore m = mean({{.json = 1, .schema = 1}, {.json = 0, .labels = 0.5}});
  CHECK(m.json == doctest::Approx(0.5));
  CHECK(m.labels == doctest::Approx(0.25));
  CHECK(mean({}).total() == 0);
}

TEST_CASE("chunk case: a row that is no case is refused") {
  for (
      const char* row :
      {"[]", "{}", R"({"messages":[]})",
       R"({"messages":[{"role":"user","content":"aa A: x"},{"role":"assistant","content":"none"}]})",
       R"({"messages":[{"role":"user"},{"role":"assistant","content":"{}"}]})",
       R"({"messages":[{"role":"user","content":"aa A: x"},{"role":"assistant","content":"{\"chunks\":[{\"start\":\"zz\",\"label\":\"x\"}]}"}]})"}) {
    CAPTURE(row);
    CHECK_THROWS_AS(chunk_case(Json::parse(row)), Error);
  }
}

TEST_CASE("chunk example: the 25 held-out cases are frozen") {
  CHECK(sha256_file(folder + "data/heldout.jsonl") ==
        "2d635fb61e3de20d8d832ec2e93a4cb9a28e6d98e9f026bfc818746aa4a2e8b5");
}

TEST_CASE(
    "chunk example: each held-out label stands in the message that starts its chunk, and the true answer gets 100") {
  const std::vector<Json> rows = held_out();
  REQUIRE(rows.size() == 25);
  for (const Json& row : rows) {
    const ChunkCase c = chunk_case(row);
    CHECK(c.prompt.size() == 2);
    CHECK(c.truth.front().start == c.ids.front());
    CHECK((c.truth.size() >= 2 && c.truth.size() <= 6));
    CHECK(std::set<std::string>(c.ids.begin(), c.ids.end()).size() == c.ids.size());
    for (const Chunk& chunk : c.truth) {
      const std::string& text = c.prompt[1].content;
      const size_t line = chunk.start == c.ids.front() ? 0 : text.find("\n" + chunk.start + " ") + 1;
      CHECK(text.substr(line, text.find('\n', line) - line).find(chunk.label) != std::string::npos);
    }
    CHECK(score_chunks(c, row["messages"][2]["content"].get<std::string>()).total() == doctest::Approx(100));
  }
}

TEST_CASE("chunk example: at least 60 topics, and none of the held-out cases is among the training topics") {
  std::ifstream in(folder + "topics.txt");
  std::set<std::string> training, held;
  std::set<std::string>* topics = &training;
  for (std::string line; std::getline(in, line);) {
    if (line == "== held out") topics = &held;
    if (line.size() > 2 && line.front() == '[') topics->insert("the " + line.substr(1, line.size() - 2));
  }
  CHECK(training.size() + held.size() >= 60);
  for (const Json& row : held_out()) {
    for (const Chunk& chunk : chunk_case(row).truth) {
      CHECK(held.contains(chunk.label));
      CHECK_FALSE(training.contains(chunk.label));
    }
  }
}
