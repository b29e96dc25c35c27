// sluice data pairs: what is dropped and why, and a split that no prompt crosses.
#include "data/pair_filter.h"

#include <set>
#include <sstream>

#include "data/preference.h"
#include "support/tiny_run.h"

namespace sluice::test {

namespace {

std::vector<std::string> lines_of(const fs::path& path) {
  std::istringstream text(read_whole_file(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::string row(const std::string& prompt, const std::string& chosen, const std::string& rejected, Json more = {}) {
  Json all = {{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}};
  if (more.is_object()) all.update(more);
  return all.dump();
}

Json message(const std::string& role, const std::string& content) { return {{"role", role}, {"content", content}}; }

// The prompt of a row as text, strings and messages alike.
std::string prompt_of(const std::string& line) {
  const Json prompt = parse_preference(parse_object(line)).value().prompt;
  return prompt.is_string() ? prompt.get<std::string>() : prompt[0]["content"].get<std::string>();
}

std::string refusal(const std::string& path, const std::string& out, const PairFilterOptions& options) {
  try {
    filter_pairs(path, out, options, nullptr);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("data pairs: each row is dropped for its first reason, the rest is copied byte for byte, in order") {
  TemporaryFolder folder;
  const std::vector<std::string> rows = {
      row("a", "good", "bad!", {{"score_chosen", 9}, {"score_rejected", 2}}),
      row("b", "same", "same", {{"score_chosen", 9}, {"score_rejected", 2}}),
      row("c", "good", "bad!"),
      row("d", "good", "bad!", {{"chosen_score", 4.5}, {"rejected_score", 4}}),
      row("e", "x", "bad!", {{"chosen_rating", 5}, {"rejected_rating", 1}}),
      row("f", "good", std::string(40, 'y'), {{"score_chosen", 9}, {"score_rejected", 2}}),
      row(std::string(90, 'p'), "good", "bad!", {{"score_chosen", 9}, {"score_rejected", 2}}),
      "{\"rejected\": \"b\\u00e4d!\",  \"chosen\":\"g\xC3\xB6od\", \"prompt\":\"g\", "
      "\"score_chosen\":3,\"score_rejected\":1}"};
  std::string text = "\xEF\xBB\xBF";
  for (const std::string& r : rows) text += r + "\r\n\n";
  write_text(folder / "in.jsonl", text);
  const PairFilterReport report =
      filter_pairs((folder / "in.jsonl").string(), (folder / "out").string(),
                   {.min_score_gap = 1, .max_length_ratio = 3, .max_length = 60, .min_length = 4}, nullptr);
  CHECK(report.rows_read == 8);
  CHECK(report.same_answers == 1);
  CHECK(report.no_score == 1);
  CHECK(report.small_gap == 1);
  CHECK(report.too_short == 1);
  CHECK(report.too_long == 1);
  CHECK(report.length_ratio == 1);
  CHECK(report.train_rows == 2);
  CHECK(lines_of(folder / "out/train.jsonl") == std::vector<std::string>{rows[0], rows[7]});
  CHECK_FALSE(fs::exists(folder / "out/valid.jsonl"));
  const Json json = Json::parse(read_whole_file(folder / "out/pairs_report.json"));
  CHECK(json["dropped"]["length_ratio"] == 1);
  CHECK(json["train"]["rows"] == 2);
  CHECK(report.summary().find("1 dropped that have no score") != std::string::npos);
}

TEST_CASE("data pairs: no prompt is on both sides, whether a string, a message or the beginning of a conversation") {
  TemporaryFolder folder;
  std::string text;
  int64_t rows = 0;
  for (int p = 0; p < 40; ++p) {
    const std::string prompt = "question " + std::to_string(p);
    text += row(prompt, "yes", "no") + "\n" + row(prompt + " ", "maybe", "never") + "\n";
    text += Json({{"prompt", {message("user", prompt)}},
                  {"chosen", {message("assistant", "a")}},
                  {"rejected", {message("assistant", "b")}}})
                .dump() +
            "\n";
    text += Json({{"chosen", {message("user", prompt), message("assistant", "c")}},
                  {"rejected", {message("user", prompt), message("assistant", "d")}}})
                .dump() +
            "\n";
    rows += 4;
  }
  write_text(folder / "in.jsonl", text);
  const auto split = [&](uint64_t seed, const std::string& out) {
    const PairFilterReport report =
        filter_pairs((folder / "in.jsonl").string(), (folder / out).string(), {.held_out = 0.2, .seed = seed}, nullptr);
    CHECK(report.train_rows + report.valid_rows == rows);
    CHECK(report.valid_prompts == 8);
    CHECK(report.train_prompts == 32);
    std::set<std::string> train, valid;
    const auto trim = [](std::string s) {
      while (s.ends_with(' ')) s.pop_back();
      return s;
    };
    for (const std::string& line : lines_of(folder / out / "train.jsonl")) train.insert(trim(prompt_of(line)));
    for (const std::string& line : lines_of(folder / out / "valid.jsonl")) valid.insert(trim(prompt_of(line)));
    CHECK(valid.size() == 8);
    for (const std::string& prompt : valid) CHECK(train.count(prompt) == 0);
    return valid;
  };
  const std::set<std::string> first = split(0, "one");
  CHECK(split(1, "two") != first);
  // The order of the rows does not matter.
  std::vector<std::string> lines = lines_of(folder / "in.jsonl");
  std::reverse(lines.begin(), lines.end());
  text.clear();
  for (const std::string& line : lines) text += line + "\n";
  write_text(folder / "in.jsonl", text);
  CHECK(split(0, "three") == first);
}

TEST_CASE("data pairs: with a model lengths are its tokens, as training renders them") {
  TinyRun run;
  write_text(run.folder / "in.jsonl", row("abc", "four", "eleven byte") + "\n");
  const auto source = open_model(run.config.model);
  const ModelText text = load_model_text(*source);
  const PairSample pair = make_pair_sample(lines_of(run.folder / "in.jsonl")[0], text);
  const auto whole = static_cast<int64_t>(pair.rejected.ids.size());
  CHECK(whole > 14);  // the template's tokens count
  const auto filter = [&](PairFilterOptions options) {
    return filter_pairs((run.folder / "in.jsonl").string(), (run.folder / "out").string(), options, &text);
  };
  CHECK(filter({.max_length = whole}).train_rows == 1);
  CHECK(filter({.max_length = whole}).unit == "tokens");
  CHECK_THROWS_AS(filter({.max_length = whole - 1}), Error);
  CHECK_THROWS_AS(filter({.min_length = pair.chosen.num_targets() + 1}), Error);
}

TEST_CASE(
    "data pairs: nothing is written when no row is left, the input is not overwritten, and a damaged row is named") {
  TemporaryFolder folder;
  write_text(folder / "train.jsonl", row("a", "b", "b") + "\n");
  const std::string in = (folder / "train.jsonl").string();
  CHECK(refusal(in, (folder / "out").string(), {}).find("no row is left") != std::string::npos);
  CHECK_FALSE(fs::exists(folder / "out"));
  write_text(folder / "train.jsonl", row("a", "b", "c") + "\n");
  CHECK(refusal(in, (folder / ".").string(), {}).find("is the input") != std::string::npos);
  CHECK(refusal(in, (folder / "out").string(), {.held_out = 1}).find("held-out") != std::string::npos);
  CHECK(refusal(in, (folder / "out").string(), {.held_out = 0.5}).find("1 prompt is left") != std::string::npos);
  write_text(folder / "train.jsonl", row("a", "b", "c") + "\n{\"prompt\": 3\n");
  CHECK(refusal(in, (folder / "out").string(), {}).find("row 2") != std::string::npos);
}

}  // namespace sluice::test
