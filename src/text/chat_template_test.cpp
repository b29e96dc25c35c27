// Parity with transformers' apply_chat_template: tests/golden/chat/, made by tests/oracle/make_chat_golden.py. Each JSON file there is one
// template with what transformers makes of the conversations of conversations.json; the environment variable SLUICE_CHAT_GOLDEN names
// another folder of that form (tests/oracle/compare_templates.py writes one).
#include "text/chat_template.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "support/golden.h"
#include "support/tokenizer_golden.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

std::string chat_folder() {
  const char* other = std::getenv("SLUICE_CHAT_GOLDEN");
  return other != nullptr ? other : (golden_dir() / "chat").string();
}

struct GoldenTemplate {
  std::string name;
  Json file;
};

std::vector<GoldenTemplate> golden_templates() {
  std::vector<GoldenTemplate> templates;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(chat_folder())) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".json" && name != "conversations" && name != "tokens")
      paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (fs::path path : paths) {
    templates.push_back({path.stem().string(), Json::parse(read_text(path.string()))});
    if (!templates.back().file.contains("source"))
      templates.back().file["source"] = read_text(path.replace_extension(".jinja").string());
  }
  return templates;
}

TemplateTokens tokens_of(const Json& file) {
  TemplateTokens tokens;
  for (const auto& [name, text] : file.at("tokens").items()) tokens.texts.emplace_back(name, text.get<std::string>());
  tokens.stops = file.at("stops").get<std::vector<std::string>>();
  return tokens;
}

ChatInput input_of(const Json& chat) {
  const auto get = [&](const char* key) { return chat.contains(key) ? chat[key] : Json(); };
  return {.messages = chat["messages"],
          .tools = get("tools"),
          .documents = get("documents"),
          .arguments = get("arguments"),
          .add_generation_prompt = chat.value("add_generation_prompt", false)};
}

// The text, or the error's words behind "error: ".
std::string outcome(const Json& file, const Json& chat, std::vector<LearnedTurn>* turns = nullptr) {
  try {
    const RenderedChat rendered =
        ChatTemplate::from_sources({{.text = file["source"].get<std::string>(), .where = "T"}}, tokens_of(file))
            .render(input_of(chat));
    if (turns != nullptr) *turns = rendered.turns;
    return rendered.text;
  } catch (const Error& e) {
    const std::string what = e.what();
    const size_t colon = what.find(": ");
    return "error: " + (what.starts_with("T, line ") ? what.substr(colon + 2) : what);
  }
}

// [[message, begin, end], …]
Json triples(const std::vector<LearnedTurn>& turns) {
  Json list = Json::array();
  for (const LearnedTurn& turn : turns) {
    for (const ByteRange& range : turn.ranges) list.push_back({turn.message, range.begin, range.end});
  }
  return list;
}

// Where the two part, with what stands there.
std::string difference(const std::string& ours, const std::string& theirs) {
  size_t at = 0;
  while (at < ours.size() && at < theirs.size() && ours[at] == theirs[at]) ++at;
  const size_t from = at < 40 ? 0 : at - 40;
  return fmt::format("at byte {}\n  ours:   {}\n  theirs: {}", at,
                     Json(ours.substr(from, 160)).dump(-1, ' ', false, Json::error_handler_t::replace),
                     Json(theirs.substr(from, 160)).dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool same_words(const std::string& type) {
  return type == "TemplateError" || type == "UndefinedError" || type == "SecurityError";
}

}  // namespace

TEST_CASE("chat template: golden files are rendered as transformers renders them, errors included") {
  const Json chats = Json::parse(read_text(chat_folder() + "/conversations.json"));
  int64_t texts = 0, errors = 0;
  for (const GoldenTemplate& golden : golden_templates()) {
    const Json& results = golden.file.at("results");
    REQUIRE(results.size() == chats.size());
    for (size_t i = 0; i < chats.size(); ++i) {
      if (results[i].is_null()) continue;
      const std::string ours = outcome(golden.file, chats[i]);
      const std::string which = fmt::format("{} / {}{}", golden.name, chats[i]["name"].get<std::string>(),
                                            chats[i]["add_generation_prompt"].get<bool>() ? " +" : "");
      if (results[i].contains("text")) {
        ++texts;
        const std::string theirs = results[i]["text"].get<std::string>();
        CHECK_MESSAGE(ours == theirs, which, " ", difference(ours, theirs));
      } else {
        ++errors;
        const std::string theirs = "error: " + results[i]["error"].get<std::string>();
        if (same_words(results[i]["type"].get<std::string>()))
          CHECK_MESSAGE(ours == theirs, which, " ", difference(ours, theirs));
        else CHECK_MESSAGE(ours.starts_with("error: "), which, " ours: ", ours.substr(0, 200), " theirs: ", theirs);
      }
    }
  }
  MESSAGE(texts, " texts and ", errors, " errors compared");
}

TEST_CASE(
    "FieldD6_chat template: what is learned is what an oracle finds by the answers' own texts, or by generation "
    "blocks") {
  const Json chats = Json::parse(read_text(chat_folder() + "/conversations.json"));
  int64_t compared = 0;
  for (const GoldenTemplate& golden : golden_templates()) {
    const Json& results = golden.file.at("results");
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].is_object() || !results[i].contains("learned")) continue;
      ++compared;
      std::vector<LearnedTurn> turns;
      const std::string text = outcome(golden.file, chats[i], &turns);
      CHECK_MESSAGE(triples(turns) == results[i]["learned"], golden.name, " / ", chats[i]["name"].get<std::string>(),
                    " ours ", triples(turns).dump(), " theirs ", results[i]["learned"].dump(), " of ", text);
    }
  }
  MESSAGE(compared, " masks compared");
}

}  // namespace sluice::test
