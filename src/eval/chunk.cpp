#include "eval/chunk.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>

#include "core/error.h"

namespace sluice {

namespace {

std::optional<std::vector<Chunk>> chunks_of(const Json& value) {
  if (!value.is_object() || value.size() != 1 || !value.contains("chunks")) return std::nullopt;
  const Json& list = value["chunks"];
  if (!list.is_array() || list.empty()) return std::nullopt;
  std::vector<Chunk> chunks;
  for (const Json& item : list) {
    if (!item.is_object() || item.size() != 2) return std::nullopt;
    const auto start = item.find("start"), label = item.find("label");
    if (start == item.end() || label == item.end() || !start->is_string() || !label->is_string()) return std::nullopt;
    chunks.push_back({start->get<std::string>(), label->get<std::string>()});
  }
  return chunks;
}

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> list(1);
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z')) {
      list.back().push_back(c);
    } else if (byte >= 'A' && byte <= 'Z') {
      list.back().push_back(static_cast<char>(byte - 'A' + 'a'));
    } else if (!list.back().empty()) {
      list.emplace_back();
    }
  }
  std::erase_if(list,
                [](const std::string& word) { return word.empty() || word == "a" || word == "an" || word == "the"; });
  return list;
}

double f1(int64_t common, size_t predicted, size_t expected) {
  return common == 0 ? 0.0 : 2.0 * static_cast<double>(common) / static_cast<double>(predicted + expected);
}

// F1 of two bags of words.
double label_f1(std::string_view predicted, std::string_view expected) {
  std::vector<std::string> a = words(predicted), b = words(expected), common;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return f1(static_cast<int64_t>(common.size()), a.size(), b.size());
}

double boundary_f1(const ChunkCase& c, const std::vector<Chunk>& predicted) {
  std::set<std::string> found, expected;
  for (const Chunk& chunk : predicted) found.insert(chunk.start);
  for (const Chunk& chunk : c.truth) expected.insert(chunk.start);
  found.erase(c.ids.front());
  expected.erase(c.ids.front());
  if (found.empty() && expected.empty()) return 1;
  const auto common =
      std::count_if(found.begin(), found.end(), [&](const std::string& id) { return expected.contains(id); });
  return f1(common, found.size(), expected.size());
}

double label_score(const ChunkCase& c, const std::vector<Chunk>& predicted) {
  double sum = 0;
  for (const Chunk& chunk : c.truth) {
    const auto same =
        std::find_if(predicted.begin(), predicted.end(), [&](const Chunk& p) { return p.start == chunk.start; });
    if (same != predicted.end()) sum += label_f1(same->label, chunk.label);
  }
  return sum / static_cast<double>(std::max(predicted.size(), c.truth.size()));
}

// The first JSON object in the text, and whether it is the whole text.
std::optional<Json> first_object(std::string_view answer, bool* whole) {
  const auto is_space = [](char ch) { return ch == ' ' || ch == '\n' || ch == '\r' || ch == '\t'; };
  const auto blank = [&](std::string_view part) { return std::all_of(part.begin(), part.end(), is_space); };
  const size_t begin = answer.find('{');
  if (begin == std::string_view::npos) return std::nullopt;
  std::istringstream in{std::string(answer.substr(begin))};
  Json value;
  try {
    in >> value;  // stops behind the first value
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  const auto rest = std::string(std::istreambuf_iterator<char>(in), {});
  *whole = blank(answer.substr(0, begin)) && blank(rest);
  return value;
}

}  // namespace

ChunkCase chunk_case(const Json& row) {
  const char* needed =
      "needed {\"messages\": [system, user, assistant]} with the conversation one \"id name: text\" a line";
  const auto messages = row.is_object() ? row.find("messages") : row.end();
  check(row.is_object() && messages != row.end() && messages->is_array() && messages->size() >= 2, ErrorCode::bad_file,
        std::string("no chunk case: ") + needed);
  ChunkCase c;
  for (const Json& message : *messages) {
    check(message.is_object() && message.contains("role") && message["role"].is_string() &&
              message.contains("content") && message["content"].is_string(),
          ErrorCode::bad_file, std::string("a message has no role or content: ") + needed);
    c.prompt.push_back({message["role"].get<std::string>(), message["content"].get<std::string>()});
  }
  const ChatMessage answer = c.prompt.back();
  c.prompt.pop_back();
  bool whole = false;
  const std::optional<Json> truth = first_object(answer.content, &whole);
  const std::optional<std::vector<Chunk>> chunks = truth && whole ? chunks_of(*truth) : std::nullopt;
  check(answer.role == "assistant" && chunks.has_value() && c.prompt.back().role == "user", ErrorCode::bad_file,
        "the last message is not an assistant's {\"chunks\":[{\"start\",\"label\"},…]} after a user's");
  c.truth = *chunks;

  std::istringstream lines(c.prompt.back().content);
  for (std::string line; std::getline(lines, line) && !line.empty();) c.ids.push_back(line.substr(0, line.find(' ')));
  for (const Chunk& chunk : c.truth) {
    check(std::find(c.ids.begin(), c.ids.end(), chunk.start) != c.ids.end(), ErrorCode::bad_file,
          "the answer starts a chunk at \"" + chunk.start + "\", which is the id of no message");
  }
  return c;
}

ChunkScore score_chunks(const ChunkCase& chunk_case, std::string_view answer) {
  ChunkScore score;
  bool whole = false;
  const std::optional<Json> value = first_object(answer, &whole);
  if (!value) return score;
  score.json = whole ? 1 : 0;
  const std::optional<std::vector<Chunk>> chunks = chunks_of(*value);
  if (!chunks) return score;
  score.schema = 1;
  std::set<std::string> seen;
  for (const Chunk& chunk : *chunks) {
    const bool known = std::find(chunk_case.ids.begin(), chunk_case.ids.end(), chunk.start) != chunk_case.ids.end();
    if (known && seen.insert(chunk.start).second) score.ids += 1;
    if (!words(chunk.label).empty()) score.non_empty += 1;
  }
  score.ids /= static_cast<double>(chunks->size());
  score.non_empty /= static_cast<double>(chunks->size());
  score.boundaries = boundary_f1(chunk_case, *chunks);
  score.labels = label_score(chunk_case, *chunks);
  return score;
}

ChunkScore mean(const std::vector<ChunkScore>& scores) {
  ChunkScore sum;
  const double n = static_cast<double>(std::max<size_t>(scores.size(), 1));
  for (const ChunkScore& s : scores) {
    sum.json += s.json / n;
    sum.schema += s.schema / n;
    sum.ids += s.ids / n;
    sum.non_empty += s.non_empty / n;
    sum.boundaries += s.boundaries / n;
    sum.labels += s.labels / n;
  }
  return sum;
}

}  // namespace sluice
