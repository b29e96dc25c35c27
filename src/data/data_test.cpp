// A byte-level tokenizer of plain data: the 256 bytes, two merges, two special tokens. Chat rows use the ChatML template.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "data/batch.h"
#include "data/dataset.h"
#include "data/order.h"
#include "support/letters.h"

using namespace sluice;
using namespace sluice::test;

namespace {

std::string messages(const std::string& user, const std::string& assistant) {
  return Json{{"messages", {{{"role", "user"}, {"content", user}}, {{"role", "assistant"}, {"content", assistant}}}}}
             .dump() +
         "\n";
}

std::string message_of(const std::string& content, const DatasetOptions& options = {}) {
  const File file(content);
  try {
    read_dataset(file.path, chat_model(), options);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("dataset: each assistant turn is supervised, its content and its end-of-turn token, and nothing else") {
  const Json row = {{"messages",
                     {{{"role", "system"}, {"content", "S"}},
                      {{"role", "user"}, {"content", "one"}},
                      {{"role", "assistant"}, {"content", "eins"}},
                      {{"role", "user"}, {"content", "two"}},
                      {{"role", "assistant"}, {"content", "zwei"}}}}};
  const Sample sample = make_sample(row.dump(), chat_model());
  CHECK(learned(sample, chat_model()) == "eins<|im_end|>zwei<|im_end|>");
  CHECK(preview(sample, chat_model().tokenizer) ==
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n⟦eins<|im_end|>⟧\n"
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n⟦zwei<|im_end|>⟧\n");
}

TEST_CASE("dataset: with mask_prompt false every token but the first is supervised") {
  const Sample sample = make_sample(messages("q", "r"), chat_model(), TrainOn::everything);
  CHECK(sample.num_targets() == static_cast<int64_t>(sample.ids.size()) - 1);
  CHECK(sample.supervised[0] == 0);
}

TEST_CASE("dataset: strings of prompt and completion are trained as a chat, the same ids as messages") {
  const Sample pair = make_sample(R"({"prompt":"2+2?","completion":"4"})", chat_model());
  const Sample chat = make_sample(messages("2+2?", "4"), chat_model());
  CHECK(pair.ids == chat.ids);
  CHECK(pair.supervised == chat.supervised);
}

TEST_CASE("dataset: answers inside a prompt given as a list are not trained") {
  const char* row =
      R"({"prompt":[{"role":"user","content":"a?"},{"role":"assistant","content":"old"},{"role":"user","content":"b?"}],
                        "completion":[{"role":"assistant","content":"new"}]})";
  std::string line(row);
  std::replace(line.begin(), line.end(), '\n', ' ');
  CHECK(learned(make_sample(line, chat_model()), chat_model()) == "new<|im_end|>");
}

TEST_CASE(
    "FieldD2_ supervision is by position: the EOS that ends an answer is learned though padding has the same id") {
  REQUIRE(chat_model().tokenizer.pad_id() == chat_model().tokenizer.eos_id());
  const Sample shorter = make_sample(messages("q", "r"), chat_model()),
               longer = make_sample(messages("a longer question", "r and s"), chat_model());
  const Batch batch = pack({&shorter, &longer});
  CHECK(batch.num_tokens() == static_cast<int64_t>(shorter.ids.size() + longer.ids.size()));  // no pads
  CHECK(batch.targets[1] == 259);
  CHECK(batch.targets.back() == 259);
  // The EOS of the user's turn is no target.
  CHECK(std::count(batch.targets.begin(), batch.targets.end(), 259) == 2);
}

TEST_CASE("FieldD8_ prompt and completion are one pass of the tokenizer; a token across the seam is learned") {
  struct Seam {
    const char *prompt, *completion;
    const char* learned;
  };
  for (const Seam& seam : {Seam{"say: ", "abc", "abc<|im_end|>"},   // the space ends the prompt
                           Seam{"line\n", "c", "c<|im_end|>"},      // so does a line end
                           Seam{"say:", " abc", " abc<|im_end|>"},  // " a" would merge, "ab" comes first
                           Seam{"\xE2\x82\xAC", "\xE2\x82\xAC!", "\xE2\x82\xAC!<|im_end|>"},  // three tokens each
                           Seam{"xa", "bc", "abc<|im_end|>"},     // "ab" merges across the seam
                           Seam{"x ", "ac", " ac<|im_end|>"}}) {  // so does " a"
    CAPTURE(seam.prompt);
    const Json row = {{"prompt", seam.prompt}, {"completion", seam.completion}};
    const Sample sample = make_sample(row.dump(), base_model());
    CHECK(sample.ids == base_model().tokenizer.encode(std::string(seam.prompt) + seam.completion + "<|im_end|>").ids);
    CHECK(learned(sample, base_model()) == seam.learned);
  }
}

TEST_CASE(
    "FieldD3_ rows whose prompt fills max_seq_length are counted by name; when none is left the run does not start") {
  const std::string long_prompt(40, 'x');
  std::string rows;
  for (int i = 0; i < 8; ++i) rows += messages(long_prompt, "yes");
  for (const Truncate truncate : {Truncate::no, Truncate::end}) {
    const std::string message = message_of(rows, {.max_seq_length = 32, .truncate = truncate});
    CHECK(contains(message, "none of 8 rows"));
    CHECK(contains(message, "max_seq_length"));
  }
  for (int i = 0; i < 3; ++i) rows += messages("q", "yes");
  const File mixed(rows);
  const Dataset dropped = read_dataset(mixed.path, chat_model(), {.max_seq_length = 32});
  CHECK(dropped.report.rows_kept == 3);
  CHECK(dropped.report.rows_too_long == 8);
  const Dataset cut = read_dataset(mixed.path, chat_model(), {.max_seq_length = 32, .truncate = Truncate::end});
  CHECK(cut.report.rows_kept == 3);
  CHECK(cut.report.rows_cut == 8);
  CHECK(cut.report.rows_without_targets == 8);
  CHECK(contains(cut.report.summary(), "8 rows dropped, no supervised token"));
}

TEST_CASE("FieldD5_ the error says max_seq_length, the median prompt length and a value that works") {
  std::string rows;
  for (int i = 0; i < 5; ++i) rows += messages(std::string(static_cast<size_t>(50 + 10 * i), 'x'), "yes");
  const std::string message = message_of(rows, {.max_seq_length = 40, .truncate = Truncate::end});
  // <|im_start|> "user\n" prompt <|im_end|> "\n" <|im_start|> "assistant\n" comes to 19 tokens around the prompt.
  CHECK(contains(message, "max_seq_length 40"));
  CHECK(contains(message, "the median row has 94 tokens, 89 of them before the first answer"));
  CHECK(contains(message, "set max_seq_length to 114"));
  const File file(rows);
  CHECK(read_dataset(file.path, chat_model(), {.max_seq_length = 114}).report.rows_kept == 5);
}

TEST_CASE("FieldU11_ nothing is cut by default: the report has the quantiles of lengths and how much was left out") {
  std::string rows;
  for (int i = 1; i <= 100; ++i) rows += messages(std::string(static_cast<size_t>(i), 'x'), "yes");  // 24 + i tokens
  const File file(rows);
  const DataReport report = read_dataset(file.path, chat_model(), {.max_seq_length = 114}).report;
  CHECK(report.lengths.smallest == 25);
  CHECK(report.lengths.p10 == 34);
  CHECK(report.lengths.median == 74);
  CHECK(report.lengths.p90 == 114);
  CHECK(report.lengths.p99 == 123);
  CHECK(report.lengths.largest == 124);
  CHECK(report.rows_too_long == 10);
  CHECK(report.rows_cut == 0);
  CHECK(contains(report.summary(), "10 rows dropped, longer than max_seq_length 114; raise it to 124"));
}

TEST_CASE("FieldD10_ cutting at any length leaves whole tokens: what is kept is a prefix of the row's ids") {
  const std::string row = messages("question", "answer");
  const Sample whole = make_sample(row, chat_model());
  const File file(row);
  for (int64_t limit = 28; limit <= static_cast<int64_t>(whole.ids.size()); ++limit) {
    const Dataset data = read_dataset(file.path, chat_model(), {.max_seq_length = limit, .truncate = Truncate::end});
    REQUIRE(data.samples.size() == 1);
    CHECK(std::equal(data.samples[0].ids.begin(), data.samples[0].ids.end(), whole.ids.begin()));
    CHECK(static_cast<int64_t>(data.samples[0].ids.size()) == limit);
    CHECK(data.report.tokens_cut == static_cast<int64_t>(whole.ids.size()) - limit);
  }
}

TEST_CASE("FieldD21_ totals of supervised and ignored tokens agree with the preview of the rows") {
  const File file(messages("q", "rs") + messages("qq", "t"));
  const Dataset data = read_dataset(file.path, chat_model(), {});
  CHECK(data.report.supervised == 3 + 2);
  CHECK(data.report.tokens == 2 * (21 + 3));  // 21 tokens of the template, 3 of prompt and answer
  CHECK(data.report.ignored() == data.report.tokens - 5);
  CHECK(contains(preview(data.samples[1], chat_model().tokenizer), "assistant\n⟦t<|im_end|>⟧\n"));
}

TEST_CASE("FieldD21_ any row of a file can be looked at, also one that is dropped, and by its line") {
  const File file("\n" + messages("q", "r") + messages(std::string(100, 'x'), "long"));
  const Sample sample = read_sample(file.path, 3, chat_model(), {});
  CHECK(sample.row == 3);
  CHECK(contains(preview(sample, chat_model().tokenizer), "⟦long<|im_end|>⟧"));
  CHECK_THROWS_AS(read_sample(file.path, 4, chat_model(), {}), Error);
  CHECK_THROWS_AS(read_sample(file.path, 1, chat_model(), {}), Error);  // the blank line
}

TEST_CASE("FieldD18_ rows of random length are packed without padding, and the reported waste is that") {
  std::string rows;
  for (uint64_t i = 0; i < 100; ++i) rows += messages(std::string(1 + (i * 7919) % 200, 'x'), "yes");
  const File file(rows);
  const Dataset data = read_dataset(file.path, chat_model(), {});
  int64_t by_hand = 0, in_batches = 0;
  for (const Sample& sample : data.samples) by_hand += static_cast<int64_t>(sample.ids.size());
  for (size_t i = 0; i < 100; i += 4)
    in_batches +=
        pack({&data.samples[i], &data.samples[i + 1], &data.samples[i + 2], &data.samples[i + 3]}).num_tokens();
  CHECK(in_batches == by_hand);
  CHECK(data.report.tokens == by_hand);
  CHECK(data.report.json()["padding_tokens"] == 0);
}

TEST_CASE("dataset: what is damaged is named with file, row and key or column, and what is needed") {
  const std::string good = messages("q", "r");
  CHECK(contains(message_of(good + "{\"messages\": nul}\n"), "row 2: column"));
  CHECK(contains(message_of(good + "{\"messages\": \"\xFF\"}\n"), "row 2: column"));
  CHECK(contains(message_of("{\"prompt\": \"half an emoji \\ud83d\", \"completion\": \"x\"}\n"), "row 1: column"));
  CHECK(contains(message_of("[1, 2]\n"), "row 1: found [1,2], needed one object a row"));
  CHECK(contains(message_of("{\"mesages\": []}\n"), "found the keys \"mesages\", needed messages"));
  CHECK(contains(message_of("{\"messages\": []}\n"), "messages is [], needed a list of messages"));
  CHECK(contains(message_of("{\"messages\": [{\"role\":\"bot\",\"content\":\"x\"}]}\n"),
                 "messages[0].role is \"bot\", needed system, developer, user, assistant or tool"));
  CHECK(contains(message_of("{\"messages\": [{\"role\":\"user\"}]}\n"), "messages[0] has no \"content\""));
  CHECK(contains(message_of("{\"messages\": [{\"role\":\"user\",\"content\":[]}]}\n"),
                 "messages[0].content is [], needed a string"));
  CHECK(contains(message_of("{\"prompt\": 3, \"completion\": \"x\"}\n"), "prompt is 3, needed a list of messages"));
  CHECK(contains(message_of(""), "there is no row in it"));
  CHECK(contains(message_of("\n \r\n"), "there is no row in it"));
  CHECK_THROWS_AS(read_dataset("no/such/file.jsonl", chat_model(), {}), Error);
  CHECK_THROWS_AS(read_dataset("/", chat_model(), {}), Error);
}

TEST_CASE("dataset: kinds that another objective reads, or none, are refused by name") {
  const std::pair<const char*, const char*> rows[] = {
      {R"({"prompt":"p","chosen":"a","rejected":"b"})", "this is preference data, which objective dpo"},
      {R"({"chosen_response":"a","rejected_response":"b"})", "this is preference data"},
      {R"({"prompt":"p","completion":"a","label":true})", "this is unpaired preference data, which objective kto"},
      {R"({"messages":[{"role":"user","content":"x"}],"kto_tag":true})", "this is unpaired preference data"},
      {R"({"instruction":"i","completions":[{"response":"a","overall_score":3}]})", "this is UltraFeedback data"},
      {R"({"prompt":"p","completions":["a","b"],"labels":[true,false]})", "this is stepwise data"},
      {R"({"prompt":"p"})", "there is a prompt and no answer to learn"},
  };
  for (const auto& [row, message] : rows) {
    CAPTURE(row);
    const std::string error = message_of(std::string(row) + "\n");
    CHECK(contains(error, message));
    CHECK(contains(error, "row 1"));
  }
}

TEST_CASE("dataset: formats are told apart row by row, and a mixture is refused unless it is allowed") {
  const std::string mixed = messages("q", "r") + "{\"prompt\":\"p\",\"completion\":\"c\"}\n";
  CHECK(contains(message_of(mixed), "row 2: this is a row of kind prompt-completion, the rows before it are messages"));
  const File file(mixed);
  const Dataset data = read_dataset(file.path, chat_model(), {.allow_mixed = true});
  CHECK(data.report.kinds.at("messages") == 1);
  CHECK(data.report.kinds.at("prompt-completion") == 1);
}

TEST_CASE("dataset: a byte-order mark, CRLF, blank lines, a missing last line end and a huge line are read") {
  const std::string a = messages("q", "r"), b = messages(std::string(3'000'000, 'x'), "long");
  const File file("\xEF\xBB\xBF" + a.substr(0, a.size() - 1) + "\r\n\r\n   \n" + b.substr(0, b.size() - 1));
  const Dataset data = read_dataset(file.path, chat_model(), {.max_seq_length = 4'000'000});
  REQUIRE(data.samples.size() == 2);
  CHECK(data.report.blank_lines == 2);
  CHECK(data.samples[0].row == 1);
  CHECK(data.samples[1].row == 4);
  CHECK(learned(data.samples[1], chat_model()) == "long<|im_end|>");
}

TEST_CASE("dataset: rows without an answer are dropped and counted, or trained whole with mask_prompt false") {
  const std::string silent = R"({"messages":[{"role":"user","content":"hello"}]})"
                             "\n";
  const File file(messages("q", "r") + silent);
  const Dataset masked = read_dataset(file.path, chat_model(), {});
  CHECK(masked.report.rows_kept == 1);
  CHECK(masked.report.rows_without_targets == 1);
  CHECK(read_dataset(file.path, chat_model(), {.train_on = TrainOn::everything}).report.rows_kept == 2);
  CHECK(contains(message_of(silent), "give rows that have an assistant's answer"));
}

TEST_CASE("batch: a target is predicted by the token before it in the same row, never across the seam of two rows") {
  const Sample a{.ids = {10, 11, 12}, .supervised = {0, 1, 1}, .row = 1},
      b{.ids = {20, 21, 22, 23}, .supervised = {1, 0, 0, 1}, .row = 2};
  const Batch batch = pack({&a, &b});
  CHECK(batch.ids == std::vector<int32_t>{10, 11, 12, 20, 21, 22, 23});
  REQUIRE(batch.spans.size() == 2);
  CHECK(batch.spans[1].parent == -1);
  CHECK(batch.spans[1].begin == 3);
  CHECK(batch.spans[1].start_position == 0);
  CHECK(batch.rows == std::vector<int32_t>{0, 1, 5});  // b's first token has nothing before it
  CHECK(batch.targets == std::vector<int32_t>{11, 12, 23});
  CHECK(batch.groups == std::vector<int32_t>{0, 0, 1});
}

TEST_CASE("order: every epoch visits each row once, and epochs differ") {
  for (const int64_t count : {1, 2, 3, 7, 16, 17, 64, 100, 560, 4097}) {
    CAPTURE(count);
    const Order order(5, count, true);
    std::vector<int64_t> first, second;
    for (int64_t i = 0; i < count; ++i) first.push_back(order.row_at(i)), second.push_back(order.row_at(count + i));
    CHECK(std::set<int64_t>(first.begin(), first.end()).size() == static_cast<size_t>(count));
    CHECK(std::set<int64_t>(second.begin(), second.end()).size() == static_cast<size_t>(count));
    CHECK(*std::max_element(first.begin(), first.end()) == count - 1);
    if (count > 6) {
      CHECK(first != second);
      CHECK_FALSE(std::is_sorted(first.begin(), first.end()));
    }
  }
}

TEST_CASE("order: seeds give other shuffles; without shuffle the rows come as in the file") {
  const Order a(1, 100, true), b(2, 100, true), plain(1, 100, false);
  int same = 0;
  for (int64_t i = 0; i < 100; ++i) {
    same += a.row_at(i) == b.row_at(i) ? 1 : 0;
    CHECK(plain.row_at(100 + i) == i);
  }
  CHECK(same < 10);
}

TEST_CASE("order: a row is as likely at one place as at another") {
  // 2,000 epochs of 10 rows: each of the 100 pairs (row, place) is expected 200 times with standard deviation 13.4.
  const Order order(3, 10, true);
  int64_t counts[10][10] = {};
  for (int64_t p = 0; p < 20'000; ++p) ++counts[order.row_at(p)][p % 10];
  double chi2 = 0;
  for (const auto& row : counts) {
    for (const int64_t n : row) chi2 += static_cast<double>((n - 200) * (n - 200)) / 200;
  }
  CHECK(chi2 < 81 + 5 * 12.7);  // 81 degrees of freedom, standard deviation sqrt(2 * 81)
}

TEST_CASE("FieldC2_ a run resumed inside epoch 2 goes on with the rows of the uninterrupted one") {
  const int64_t count = 37, length = 3 * count;
  std::vector<int64_t> uninterrupted, resumed;
  const Order whole(11, count, true);
  for (int64_t p = 0; p < length; ++p) uninterrupted.push_back(whole.row_at(p));
  for (const int64_t stop : {count + 5, 2 * count - 1, 2 * count, 2 * count + 20}) {
    resumed.clear();
    for (int64_t p = 0; p < stop; ++p) resumed.push_back(Order(11, count, true).row_at(p));
    const Order after(11, count, true);  // nothing but the position is carried over
    for (int64_t p = stop; p < length; ++p) resumed.push_back(after.row_at(p));
    CHECK(resumed == uninterrupted);
  }
}
