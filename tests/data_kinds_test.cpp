// Every kind of row and of file through a whole run, and through preview.
#include <zlib.h>

#include "support/child.h"

namespace sluice::test {

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }
Json turn(const char* from, const std::string& value) { return {{"from", from}, {"value", value}}; }

struct Kind {
  const char *name, *objective;
  Json (*row)(const std::string& n);  // the n-th
};

const std::vector<Kind>& kinds() {
  using S = const std::string&;
  static const std::vector<Kind> list = {
      {"messages", "sft",
       [](S n) {
         return Json{{"messages", {message("user", "q" + n), message("assistant", n)}}};
       }},
      {"prompt-completion", "sft",
       [](S n) {
         return Json{{"prompt", "q" + n}, {"completion", n}};
       }},
      {"ShareGPT", "sft",
       [](S n) {
         return Json{{"conversations", {turn("human", "q" + n), turn("gpt", n)}}, {"system", "S"}};
       }},
      {"Alpaca", "sft",
       [](S n) {
         return Json{{"instruction", "q"}, {"input", n}, {"output", n}};
       }},
      {"text", "sft",
       [](S n) {
         return Json{{"text", "all of " + n}};
       }},
      {"segments", "sft",
       [](S n) {
         return Json{{"segments", {{{"label", false}, {"text", "q" + n}}, {{"label", true}, {"text", n}}}}};
       }},
      {"preference", "orpo",
       [](S n) {
         return Json{{"chosen", "so it is " + n}, {"rejected", "so it was " + n}};
       }},
      {"ShareGPT preference", "orpo",
       [](S n) {
         return Json{
             {"conversations", {turn("human", "q" + n)}}, {"chosen", turn("gpt", n)}, {"rejected", turn("gpt", "no")}};
       }},
      {"Alpaca preference", "dpo",
       [](S n) {
         return Json{{"instruction", "q" + n}, {"chosen", n}, {"rejected", "no"}, {"system", "S"}};
       }},
      {"UltraFeedback", "simpo",
       [](S n) {
         return Json{
             {"instruction", "q" + n},
             {"completions", {{{"response", n}, {"overall_score", 5}}, {{"response", "no"}, {"overall_score", 1}}}}};
       }},
      {"unpaired preference, label true", "kto", [](S n) {
         return Json{{"conversations", {turn("human", "q" + n), turn("gpt", n)}}, {"kto_tag", true}};
       }}};
  return list;
}

struct RunOfKind : TinyRun {
  explicit RunOfKind(const std::string& objective) {
    fs::remove_all(folder / "data");
    fs::create_directories(folder / "data");
    config.objective = objective;
    config.max_steps = 1;
    config.batch_size = 3;
    config.steps_per_eval = 0;
    config.save_every = 0;
  }
};

Json report_of(const TrainConfig& config) {
  return Json::parse(read_whole_file(fs::path(config.adapter_path) / "data_report.json"));
}

}  // namespace

TEST_CASE("data kinds: a run learns from rows of each kind, in a list as in lines, and counts them by kind") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.name);
    RunOfKind tiny(kind.objective);
    Json list = Json::array();
    std::string lines;
    for (const char* n : {"one", "two", "three", "four", "five"}) {
      list.push_back(kind.row(n));
      lines += list.back().dump() + "\n";
    }
    write_text(tiny.folder / "data/train.json", list.dump(2));
    Heard heard;
    train(tiny.config, heard);
    REQUIRE(heard.reports.size() == 1);
    CHECK(heard.reports[0].loss > 0);
    CHECK(report_of(tiny.config)["train"]["kinds"] == Json{{kind.name, 5}});
    TrainConfig of_lines = tiny.into("lines");
    of_lines.data = (tiny.folder / "rows.txt").string();
    write_text(of_lines.data, lines);
    train(of_lines, heard);
    CHECK(adapter_bytes(of_lines) == adapter_bytes(tiny.config));
  }
}

TEST_CASE("data kinds: a table with other names, packed, gives the adapter of the same rows as lines") {
  RunOfKind tiny("sft");
  std::string lines, table = "id,question,reply\n";
  for (const char* n : {"one", "two", "three", "four", "five"}) {
    lines += Json{{"prompt", std::string("q, ") + n}, {"completion", n}}.dump() + "\n";
    table += fmt::format("7,\"q, {}\",{}\n", n, n);
  }
  write_text(tiny.folder / "data/train.jsonl", lines);
  Heard heard;
  train(tiny.config, heard);
  fs::create_directories(tiny.folder / "tables");
  gzFile packed = gzopen((tiny.folder / "tables/train.csv.gz").c_str(), "wb");
  gzwrite(packed, table.data(), static_cast<unsigned>(table.size()));
  gzclose(packed);
  TrainConfig of_table = tiny.into("of_table");
  of_table.data = (tiny.folder / "tables").string();
  of_table.column_prompt = "question";
  of_table.column_completion = "reply";
  train(of_table, heard);
  CHECK(adapter_bytes(of_table) == adapter_bytes(tiny.config));
  CHECK(report_of(of_table)["train"]["unread_keys"] == Json{{"id", 5}});
  const Ran shown = run({"preview", "--model", of_table.model, "--data", of_table.data + "/train.csv.gz", "--row", "2",
                         "--columns", "prompt=question", "completion=reply"});
  CHECK(shown.code == 0);
  CHECK(has(shown.output, "user\nq, two<|im_end|>\n<|im_start|>assistant\n⟦two<|im_end|>⟧"));
  CHECK(has(run({"preview", "--model", of_table.model, "--data", of_table.data + "/train.csv.gz", "--columns", "ask=q"})
                .output,
            "--columns ask=q: needed NAME=KEY"));
}

TEST_CASE(
    "data kinds: settings that rows cannot follow, mixtures and doubled parts are refused before anything is written") {
  RunOfKind tiny("sft");
  write_text(tiny.folder / "data/train.jsonl", "{\"text\":\"ready\"}\n{\"prompt\":\"q\",\"completion\":\"a\"}\n");
  TrainConfig config = tiny.config;
  CHECK(has(message_of(config), "train.jsonl: row 2: this is a row of kind prompt-completion"));
  config.allow_mixed = true;
  CHECK(message_of(config).empty());
  config = tiny.into("other");
  config.allow_mixed = true;
  config.mask_prompt = "true";
  CHECK(has(message_of(config), "row 1: this is a text row, in which mask_prompt has no prompt to mask"));
  config.mask_prompt = "auto";
  config.column_text = "body";
  CHECK(has(message_of(config), "row 1: there is no \"body\", which columns.text names; the row has \"text\""));
  config.column_text = "";
  write_text(tiny.folder / "data/train.csv", "text\nx\n");
  CHECK(has(message_of(config), "are both there; keep one file of train"));
  CHECK_FALSE(fs::exists(config.adapter_path));
}

TEST_CASE("data kinds: preview shows rated rows with their labels, and both answers of a pair as kto reads it") {
  RunOfKind tiny("kto");
  write_text(tiny.folder / "rows.jsonl", "{\"prompt\":\"q\",\"chosen\":\"yes\",\"rejected\":\"no\"}\n");
  const Ran shown =
      run({"preview", "--model", tiny.config.model, "--data", (tiny.folder / "rows.jsonl").string(), "--rated"});
  CHECK(has(shown.output, "label true, "));
  CHECK(has(shown.output, "⟦yes<|im_end|>⟧"));
  CHECK(has(shown.output, "⟦no<|im_end|>⟧"));
}

}  // namespace sluice::test
