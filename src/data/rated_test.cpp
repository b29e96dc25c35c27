#include "data/rated.h"

#include <doctest/doctest.h>

#include "support/letters.h"

namespace sluice::test {

namespace {

std::string row(const Json& prompt, const Json& completion, const Json& label) {
  return Json{{"prompt", prompt}, {"completion", completion}, {"label", label}}.dump() + "\n";
}

std::string message_of(const std::string& rows, const DatasetOptions& options = {}) {
  const File file(rows);
  try {
    read_rated(file.path, chat_model(), options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("rated: a row is tokenised as the same prompt and completion, and mismatched with the next row's answer") {
  const Json prompt = Json::array({Json{{"role", "user"}, {"content", "q2"}}});
  const Json completion = Json::array({Json{{"role", "assistant"}, {"content", "no"}}});
  const File file(row("q1", "yes", true) + "\n" + row(prompt, completion, false));
  const RatedData data = read_rated(file.path, chat_model(), {});
  REQUIRE(data.rows.size() == 2);
  const Sample plain = make_sample(R"({"prompt": "q1", "completion": "yes"})", chat_model());
  CHECK(data.rows[0].own.ids == plain.ids);
  CHECK(data.rows[0].own.supervised == plain.supervised);
  CHECK(data.rows[0].desirable);
  CHECK_FALSE(data.rows[1].desirable);
  CHECK(data.rows[1].row == 3);
  CHECK(learned(data.rows[0].mismatched, chat_model()) == learned(data.rows[1].own, chat_model()));
  CHECK(learned(data.rows[1].mismatched, chat_model()) == learned(data.rows[0].own, chat_model()));
  CHECK(data.report.blank_lines == 1);
  CHECK(data.report.kinds.at("unpaired preference, label true") == 1);
}

TEST_CASE("rated: packed rows are roots whose targets carry the label") {
  const File file(row("q1", "yes", true) + row("q2", "no", false));
  const RatedData data = read_rated(file.path, chat_model(), {});
  const PreferenceBatch batch = pack_rated({&data.rows[1], &data.rows[0]}, RatedAnswer::own);
  CHECK(batch.num_pairs == 2);
  CHECK(batch.tokens.spans.size() == 2);
  REQUIRE(batch.labels.size() == batch.tokens.targets.size());
  for (const PairTarget& label : batch.labels) CHECK(label.part == (label.pair == 0 ? Part::rejected : Part::chosen));
  CHECK(batch.tokens.num_targets() == data.rows[0].own.num_targets() + data.rows[1].own.num_targets());
}

TEST_CASE("rated: long rows are dropped or cut and counted, and only measured answers are cut silently") {
  const std::string rows = row("q", "yes", true) + row("q", std::string(200, 'x'), false);
  const File file(rows);
  const RatedData dropped = read_rated(file.path, chat_model(), {.max_seq_length = 60});
  CHECK(dropped.rows.size() == 1);
  CHECK(dropped.report.rows_too_long == 1);
  const RatedData cut = read_rated(file.path, chat_model(), {.max_seq_length = 60, .truncate = Truncate::end});
  REQUIRE(cut.rows.size() == 2);
  CHECK(cut.report.rows_cut == 1);
  CHECK(cut.rows[1].own.ids.size() == 60);
  CHECK(cut.rows[0].mismatched.ids.size() == 60);
}

TEST_CASE("rated: what is wrong with a row is said with file and row") {
  CHECK(contains(message_of(row("q", "a", 1)), "row 1: label is 1, needed true or false"));
  CHECK(contains(message_of("{\"prompt\": \"q\", \"completion\": \"a\"}\n"), "there is no \"label\""));
  CHECK(contains(message_of("[1]\n"), "found [1], needed one object"));
  CHECK(contains(message_of("{\n"), "no JSON"));
  CHECK(contains(message_of("{\"prompt\": 1e999}\n"), "no JSON: number overflow"));
  CHECK(contains(message_of(""), "there is no row in it"));
  CHECK(contains(message_of(row("q", "a", true), {.max_seq_length = 4}), "max_seq_length"));
}

}  // namespace sluice::test
