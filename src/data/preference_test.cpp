#include "data/preference.h"

#include <doctest/doctest.h>

#include <array>

#include "support/letters.h"

namespace sluice::test {

namespace {

std::string row(const Json& prompt, const Json& chosen, const Json& rejected) {
  return Json{{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}}.dump();
}
Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

std::string text_of(const std::vector<int32_t>& ids, const ModelText& text) { return text.tokenizer.decode(ids); }

std::string message_of(const std::string& line) {
  try {
    make_pair_sample(line, chat_model());
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// The targets of one part, as text, in the order of the batch.
std::string targets_of(const PreferenceBatch& batch, Part part, int32_t pair, const ModelText& text) {
  std::vector<int32_t> ids;
  for (size_t m = 0; m < batch.labels.size(); ++m) {
    if (batch.labels[m].part == part && batch.labels[m].pair == pair) ids.push_back(batch.tokens.targets[m]);
  }
  return text_of(ids, text);
}

// Every target is predicted by the token before it on its own path.
void check_rows(const PreferenceBatch& batch, const PairSample& pair) {
  const Spans& spans = batch.tokens.spans;
  for (size_t m = 0; m < batch.labels.size(); ++m) {
    if (m > 0) CHECK(batch.tokens.rows[m] >= batch.tokens.rows[m - 1]);
    const auto position = static_cast<size_t>(spans.position(batch.tokens.rows[m]));
    const Sample& sample = batch.labels[m].part == Part::rejected ? pair.rejected : pair.chosen;
    CHECK(batch.tokens.ids[static_cast<size_t>(batch.tokens.rows[m])] == sample.ids[position]);
    CHECK(batch.tokens.targets[m] == sample.ids[position + 1]);
  }
}

}  // namespace

TEST_CASE("preference: strings, message lists and whole conversations give the same pair") {
  const PairSample plain = make_pair_sample(row("q", "yes", "no"), chat_model());
  const Json prompt = Json::array({message("user", "q")});
  const PairSample lists = make_pair_sample(
      row(prompt, Json::array({message("assistant", "yes")}), Json::array({message("assistant", "no")})), chat_model());
  const Json whole = {{"chosen", {message("user", "q"), message("assistant", "yes")}},
                      {"rejected", {message("user", "q"), message("assistant", "no")}}};
  const PairSample conversations = make_pair_sample(whole.dump(), chat_model());
  for (const PairSample* other : {&lists, &conversations}) {
    CHECK(other->chosen.ids == plain.chosen.ids);
    CHECK(other->chosen.supervised == plain.chosen.supervised);
    CHECK(other->rejected.ids == plain.rejected.ids);
    CHECK(other->shared == plain.shared);
  }
  CHECK(text_of(plain.chosen.ids, chat_model()) ==
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n");
  const std::vector<int32_t> shared(plain.chosen.ids.begin(), plain.chosen.ids.begin() + plain.shared);
  CHECK(text_of(shared, chat_model()) == "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
}

TEST_CASE(
    "preference: the common messages of two conversations are the prompt, earlier answers among them are not trained") {
  const Json history = {message("user", "a"), message("assistant", "b"), message("user", "c")};
  Json chosen = history, rejected = history;
  chosen.push_back(message("assistant", "good"));
  rejected.push_back(message("assistant", "bad"));
  const PairSample pair = make_pair_sample(Json{{"chosen", chosen}, {"rejected", rejected}}.dump(), chat_model());
  const PreferenceBatch batch = pack_pairs({&pair}, {});
  CHECK(targets_of(batch, Part::chosen, 0, chat_model()) == "good<|im_end|>");
  CHECK(targets_of(batch, Part::rejected, 0, chat_model()) == "bad<|im_end|>");
}

TEST_CASE("preference: a pair is a prompt with two children, its targets predicted by the token before them") {
  const PairSample one = make_pair_sample(row("q", "yes", "no"), chat_model()),
                   two = make_pair_sample(row("longer", "x", "yz"), chat_model());
  const PreferenceBatch batch = pack_pairs({&one, &two}, {});
  const Spans& spans = batch.tokens.spans;
  REQUIRE(spans.size() == 6);
  for (int64_t s : {0, 3}) {
    CHECK(spans[s].parent == -1);
    CHECK(spans[s + 1].parent == s);
    CHECK(spans[s + 2].parent == s);
    CHECK(spans[s + 2].start_position == spans[s + 1].start_position);
  }
  CHECK(batch.num_pairs == 2);
  CHECK(spans.num_tokens() == one.num_tokens() + two.num_tokens());
  CHECK(batch.tokens.rows[0] == batch.tokens.rows[1]);  // the prompt's last token predicts the first of both answers
  CHECK(targets_of(batch, Part::chosen, 0, chat_model()) == "yes<|im_end|>");
  CHECK(targets_of(batch, Part::rejected, 1, chat_model()) == "yz<|im_end|>");
  for (bool share : {true, false}) {
    for (bool prompt : {true, false})
      check_rows(pack_pairs({&one}, {.prompt_targets = prompt, .share_prompt = share}), one);
  }
}

TEST_CASE(
    "preference: with prompt targets all tokens of the chosen sequence but the first are targets, in either layout") {
  const PairSample pair = make_pair_sample(row("q", "yes", "no"), chat_model());
  for (bool share : {true, false}) {
    const PreferenceBatch batch = pack_pairs({&pair}, {.prompt_targets = true, .share_prompt = share});
    CHECK(batch.tokens.num_targets() == static_cast<int64_t>(pair.chosen.ids.size()) - 1 + pair.rejected.num_targets());
    CHECK(targets_of(batch, Part::chosen, 0, chat_model()) == "yes<|im_end|>");
    CHECK(targets_of(batch, Part::rejected, 0, chat_model()) == "no<|im_end|>");
    CHECK(batch.tokens.spans.size() == (share ? 3 : 2));
  }
}

TEST_CASE(
    "FieldD8_preference: sequences are tokenised in one pass; where the seam merges, the shared prompt ends before "
    "it") {
  const ModelText& text = base_model();
  // "xa" + "b" holds the merge "ab"; "xa" + "c" does not.
  for (const auto& [prompt, chosen, rejected] :
       {std::array<std::string, 3>{"xa", "bcd", "cd"}, {"xa", "cd", "bcd"}, {"x ", "ay", "by"}, {"x\n", "y", "z"}}) {
    CAPTURE(prompt);
    CAPTURE(chosen);
    const PairSample pair = make_pair_sample(row(prompt, chosen, rejected), text);
    const std::string eos = "<|im_end|>";
    CHECK(pair.chosen.ids == text.tokenizer.encode(prompt + chosen + eos, {.add_special = true}).ids);
    CHECK(pair.rejected.ids == text.tokenizer.encode(prompt + rejected + eos, {.add_special = true}).ids);
    for (int64_t t = 0; t < pair.shared; ++t) {
      CHECK(pair.chosen.ids[static_cast<size_t>(t)] == pair.rejected.ids[static_cast<size_t>(t)]);
      CHECK(pair.chosen.supervised[static_cast<size_t>(t)] == 0);
      CHECK(pair.rejected.supervised[static_cast<size_t>(t)] == 0);
    }
    check_rows(pack_pairs({&pair}, {.prompt_targets = true}), pair);
  }
  const PairSample merged = make_pair_sample(row("xa", "bcd", "cd"), text);
  CHECK(merged.shared == 1);  // "x" alone: the next token is "ab" on one side and "a" on the other
  CHECK(targets_of(pack_pairs({&merged}, {}), Part::chosen, 0, text) == "abcd<|im_end|>");
  CHECK(targets_of(pack_pairs({&merged}, {}), Part::rejected, 0, text) == "cd<|im_end|>");
}

TEST_CASE("preference: branches that share no token become two roots") {
  const PairSample pair = make_pair_sample(row("a", "bcd", "cd"), base_model());
  CHECK(pair.shared == 0);
  const PreferenceBatch batch = pack_pairs({&pair}, {});
  REQUIRE(batch.tokens.spans.size() == 2);
  CHECK(batch.tokens.spans[1].parent == -1);
  check_rows(batch, pair);
}

TEST_CASE("FieldD12_preference: no answer is cut by the length of the other") {
  const std::string prompt = "prompt", chosen(10, 'x'), rejected(900, 'z');
  const File file(row(prompt, chosen, rejected) + "\n");
  const PreferenceData data =
      read_preferences(file.path, base_model(), {.max_seq_length = 100, .truncate = Truncate::end});
  REQUIRE(data.pairs.size() == 1);
  const PairSample& pair = data.pairs[0];
  CHECK(text_of(pair.chosen.ids, base_model()) == prompt + chosen + "<|im_end|>");
  CHECK(pair.rejected.ids.size() == 100);
  CHECK(data.report.rows_cut == 1);
  CHECK(data.report.tokens_cut == 807);
  CHECK_THROWS_WITH_AS(read_preferences(file.path, base_model(), {.max_seq_length = 100}),
                       doctest::Contains("set max_seq_length to 907"), Error);
  CHECK_THROWS_WITH_AS(read_preferences(file.path, base_model(), {.max_seq_length = 6, .truncate = Truncate::end}),
                       doctest::Contains("1 have no supervised token left when cut at max_seq_length 6"), Error);
}

TEST_CASE("preference: pairs that are too long are dropped and counted, the others kept with their line") {
  const File file(row("p", std::string(50, 'x'), "y") + "\n\n" + row("p", "x", "y") + "\r\n");
  const PreferenceData data = read_preferences(file.path, base_model(), {.max_seq_length = 20});
  REQUIRE(data.pairs.size() == 1);
  CHECK(data.pairs[0].row == 3);
  CHECK(data.report.rows_too_long == 1);
  CHECK(data.report.blank_lines == 1);
  CHECK(data.report.rows_read == 2);
  CHECK(data.report.tokens == 5);  // p, x, end; y, end
  CHECK(data.report.supervised == 4);
}

TEST_CASE("preference: what cannot be a pair is refused with what is needed") {
  CHECK(message_of("{").find("column") != std::string::npos);
  CHECK(message_of("[]").find("found [], needed one object") != std::string::npos);
  CHECK(message_of(R"({"prompt": "a", "completion": "b"})").find("there is no \"chosen\"") != std::string::npos);
  CHECK(message_of(R"({"chosen": "a", "rejected": "b"})").find("do not begin alike") != std::string::npos);
  CHECK(message_of(R"({"prompt": "q", "chosen": "", "rejected": "b"})").find("chosen is empty") != std::string::npos);
  CHECK(message_of(R"({"prompt": "q", "chosen": "a", "rejected": [{"role": "assistant", "content": "b"}]})")
            .find("different kinds") != std::string::npos);
  const Json same = {message("user", "q"), message("assistant", "a")};
  const Json more = {message("user", "q"), message("assistant", "a"), message("user", "r")};
  CHECK(message_of(Json{{"chosen", same}, {"rejected", more}}.dump()).find("do not differ") != std::string::npos);
  const Json other = {message("user", "r"), message("assistant", "a")};
  CHECK(message_of(Json{{"chosen", same}, {"rejected", other}}.dump()).find("share no message") != std::string::npos);
}

}  // namespace sluice::test
