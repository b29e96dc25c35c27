// Writes the data of the chunk segmentation example: conversations in several topics, and where each topic begins.
//
//   chunk_generate topics.txt data       writes data/train.jsonl, data/valid.jsonl and data/heldout.jsonl
//   chunk_generate topics.txt data long  writes data/long.jsonl: held-out topics, up to 8,000 tokens
//
// A row is {"messages": [system, user, assistant]}. The user's message is the conversation, one message a line,
// "ku Ana: …", a blank line and the instruction; the answer is {"chunks":[{"start":"ku","label":"the rain barrel"},…]}.
// Everything is a pure function of the recipe below and topics.txt. heldout.jsonl is committed and frozen: the tests
// compare its SHA-256.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/rng.h"

namespace {

using sluice::Error;
using sluice::ErrorCode;
using sluice::Json;

// ---- The recipe: every knob of the example ------------------------------------------------------------------------------

constexpr const char* system_prompt = "You split conversations into chunks.";
// Follows the conversation: a small model has forgotten what stands before it.
constexpr const char* instruction =
    "Split the conversation into chunks, one chunk for each topic. Answer with JSON only. For example: "
    "{\"chunks\":[{\"start\":\"xx\",\"label\":\"the old car\"},{\"start\":\"yy\",\"label\":\"the garden fence\"}]}";

struct Lengths {
  int percent;                 // of the rows
  int min_tokens, max_tokens;  // of the conversation; prompt and answer add about 130
};

struct Set {
  const char* name;
  uint64_t seed;
  int rows;              // no multiple of `stride`
  bool held_out;         // which topics
  int tokens_per_topic;  // at least: a short conversation has few topics
  std::vector<Lengths> lengths;
};

// Training rows have more topics than the held-out ones: 1.4 times the boundaries for the same tokens, 5 points more after
// 220,000 tokens (measured).
const std::vector<Set> recipe = {
    {"train", 1, 530, false, 50, {{70, 200, 350}, {22, 350, 600}, {8, 600, 1200}}},
    {"valid", 2, 16, false, 50, {{70, 200, 350}, {22, 350, 600}, {8, 600, 1200}}},
    {"heldout", 3, 25, true, 80, {{60, 250, 450}, {28, 450, 800}, {12, 800, 1500}}},
};
const Set long_set = {"long", 4, 12, true, 80, {{34, 2000, 3000}, {33, 3000, 5000}, {33, 5000, 7900}}};

constexpr int stride = 37;  // spreads the lengths over a file
constexpr int min_topics = 2, max_topics = 6;
constexpr double bytes_per_token = 3.5;    // of SmolLM2's tokenizer on this text
constexpr int two_sentences_percent = 40;  // of the messages
constexpr int opener_with_more_percent = 60;
constexpr int closing_percent = 35;  // chunks that end with one of `closings`

// The ids of messages, in random order in each conversation. Two letters that are one token for SmolLM2, so that copying an id is
// one step, and no words: 530 rows teach that where they do not teach "m17" (94 against 87 points, measured).
constexpr const char* ids =
    "aa ab ac ae af ag ah ai aj ak al ao ap aq ar au av aw ay az ba bb bc bd bf bg bh bi bl bm bn bo bp br bs bt bu ca "
    "cb cc cd ce cf ch ci ck cl cm cn co cp cr cs ct cu cv cx cy cz da db dc dd de df dh di dk dl dm dn dp dq dr ds dt "
    "du dv dw dx dy ea eb ec ed ee ef eg eh ei ek el em en eo ep eq er es et eu ev ew ex ey ez fa fb fc fd fe ff fg fh "
    "fi fl fm fn fo fp fr fs ft fu fw fx fy ga gb gc ge gg gh gi gl gm gn gp gr gs gt gu gy gz ha hb hc hd hh hl hm hn "
    "ho hp hr hs ht hu hw hy hz ia ib ic id ie ig ih ii ij ik il im io ip iq ir iu iv iw ix iy iz ja je ji jj jk jo jp "
    "js ju ka kb ke kg kh ki kk kl km kn ko kp kr ks kt ku kv kw ky la lb lc ld le lf li ll lm ln lo lp lr ls lt lu lv "
    "ly ma mb mc md mf mg mi mk ml mm mn mo mp mq mr ms mt mu mv mx na nb nc nd ne nf ng ni nl nm nn np nr ns nt nu nx "
    "ny nz oa ob oc od oe og oi oj ol om oo op os ot ou ov ow ox oy oz pa pb pc pd pe pf pg ph pi pk pl pm pn po pp pr "
    "ps pt pu pv pw px py qa qi ql qq qs qt qu ra rb rc rd re rf rg rh ri rl rm rn ro rp rr rs rt ru rv rx ry sa sb sc "
    "sd se sf sg sh si sk sl sm sn sp sq sr st su sv sw sy sz ta tb tc td te tf th ti tk tl tm tn tp tr ts tt tu tv tw "
    "tx ty tz ua ub uc ud ue uf ug uh ui uj uk ul um un uo ur ut uu uv uw ux uy uz va vc vd ve vi vl vm vn vo vr vs vt "
    "vv vy wa wb wd wh wi wl wn wo wp wr ws wt wu ww wx wy xa xb xc xd xe xf xi xl xr xs xt xy ya yd ye yg yi yl ym yn "
    "yo yp yr ys yt yu yx za ze zh zi zo zt zu zy zz";

const std::vector<std::string> names = {"Ana",  "Ben",   "Carla", "David", "Elif",  "Frank", "Grace", "Hugo",
                                        "Ines", "Jonas", "Kim",   "Lena",  "Marco", "Nora",  "Omar",  "Paula",
                                        "Rosa", "Sven",  "Tara",  "Uwe",   "Vera",  "Will",  "Yusuf", "Zoe"};
const std::vector<std::string> days = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
const std::vector<std::string> months = {"January", "March",     "April",   "May",     "June",
                                         "July",    "September", "October", "November"};

// ---- Random choices -----------------------------------------------------------------------------------------------------

class Random {
 public:
  Random(uint64_t seed, uint64_t row) : seed_(seed), stream_(sluice::stream_of("chunk", row)) {}
  int below(int count) {
    return static_cast<int>(
        (static_cast<uint64_t>(sluice::random_bits(seed_, stream_, index_++)) * static_cast<uint64_t>(count)) >> 32);
  }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool percent(int p) { return below(100) < p; }
  const std::string& one_of(const std::vector<std::string>& list) {
    return list[static_cast<size_t>(below(static_cast<int>(list.size())))];
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (size_t i = list.size(); i > 1; --i) {
      std::swap(list[i - 1], list[static_cast<size_t>(below(static_cast<int>(i)))]);
    }
  }

 private:
  uint64_t seed_, stream_, index_ = 0;
};

// ---- Topics and sentences ---------------------------------------------------------------------------------------------------

struct Topic {
  std::string label;
  std::vector<std::string> parts, tasks, facts;
};

struct Stock {
  std::vector<Topic> training, held_out;
  std::vector<std::string> first_openers, next_openers, about_part, about_task, about_label, replies, closings;
};

std::vector<std::string> split(std::string_view text, std::string_view separator) {
  std::vector<std::string> items;
  while (true) {
    const size_t at = text.find(separator);
    items.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return items;
    text.remove_prefix(at + separator.size());
  }
}

// Where the items of a line "key: items" go; nullptr for an unknown key.
std::vector<std::string>* list_of(std::string_view key, Stock& stock, Topic* topic) {
  if (key == "first opener") return &stock.first_openers;
  if (key == "next opener") return &stock.next_openers;
  if (key == "about part") return &stock.about_part;
  if (key == "about task") return &stock.about_task;
  if (key == "about label") return &stock.about_label;
  if (key == "reply") return &stock.replies;
  if (key == "closing") return &stock.closings;
  if (topic != nullptr && key == "parts") return &topic->parts;
  if (topic != nullptr && key == "tasks") return &topic->tasks;
  if (topic != nullptr && key == "facts") return &topic->facts;
  return nullptr;
}

Stock read_stock(const std::string& path) {
  std::ifstream in(path);
  if (!in) throw Error(ErrorCode::bad_file, path + ": cannot be read; give the path of topics.txt");
  Stock stock;
  std::vector<Topic>* topics = &stock.training;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line[0] == '#' || line == "== sentences" || line == "== training") continue;
    if (line == "== held out") {
      topics = &stock.held_out;
    } else if (line.front() == '[' && line.back() == ']') {
      topics->push_back({line.substr(1, line.size() - 2), {}, {}, {}});
    } else {
      const size_t colon = line.find(": ");
      const std::string_view key = std::string_view(line).substr(0, std::min(colon, line.size()));
      std::vector<std::string>* list = list_of(key, stock, topics->empty() ? nullptr : &topics->back());
      if (list == nullptr || colon == std::string::npos) {
        throw Error(ErrorCode::bad_file, path + ": line " + std::to_string(number) + " has no known key: " + line);
      }
      const std::string_view items = std::string_view(line).substr(colon + 2);
      for (std::string& item : split(items, key == "parts" || key == "tasks" ? "; " : " / ")) {
        list->push_back(std::move(item));
      }
    }
  }
  return stock;
}

// ---- Conversations ----------------------------------------------------------------------------------------------------------

std::string fill(std::string text, const Topic& topic, Random& random) {
  for (size_t open = text.find('{'); open != std::string::npos; open = text.find('{', open)) {
    const size_t close = text.find('}', open);
    const std::string slot = text.substr(open + 1, close - open - 1);
    std::string value;
    if (slot == "label") value = topic.label;
    if (slot == "part") value = random.one_of(topic.parts);
    if (slot == "task") value = random.one_of(topic.tasks);
    if (slot == "name") value = random.one_of(names);
    if (slot == "day") value = random.one_of(days);
    if (slot == "month") value = random.one_of(months);
    if (slot == "n") value = std::to_string(random.between(2, 40));
    if (slot == "money") value = std::to_string(5 * random.between(1, 60)) + " euros";
    if (slot == "time") {
      value = std::to_string(random.between(6, 21));  // two statements: the order of operands of + is the compiler's
      value += random.percent(50) ? ":00" : ":30";
    }
    if (value.empty()) throw Error(ErrorCode::bad_file, "unknown slot {" + slot + "} in \"" + text + "\"");
    text.replace(open, close - open + 1, value);
  }
  return text;
}

// What has been said in a conversation: no message twice, and no sentence twice while others are left.
struct Said {
  std::set<std::string> messages, sentences;

  // Gives up after a few draws: a long conversation uses up the facts of a topic.
  std::string new_sentence(const std::vector<std::string>& list, Random& random) {
    for (int draw = 0; draw < 8; ++draw) {
      const std::string& sentence = random.one_of(list);
      if (sentences.insert(sentence).second) return sentence;
    }
    return random.one_of(list);
  }
};

std::string statement(const Stock& stock, const Topic& topic, Said& said, Random& random) {
  const int kind = random.below(100);
  if (kind < 30) return fill(said.new_sentence(topic.facts, random), topic, random);
  return fill(random.one_of(kind < 62   ? stock.about_task
                            : kind < 95 ? stock.about_part
                                        : stock.about_label),
              topic, random);
}

std::string body(const Stock& stock, const Topic& topic, Said& said, Random& random) {
  const std::string first =
      random.percent(30) ? fill(random.one_of(stock.replies), topic, random) : statement(stock, topic, said, random);
  return random.percent(two_sentences_percent) ? first + " " + statement(stock, topic, said, random) : first;
}

struct Conversation {
  std::string text;
  Json chunks = Json::array();
  Said said;
  std::vector<std::string> speakers;
  std::string last_speaker;
  std::vector<std::string> unused_ids;

  void add(const std::string& message, Random& random) {
    std::string speaker = last_speaker;
    while (speaker == last_speaker) speaker = random.one_of(speakers);
    last_speaker = speaker;
    if (unused_ids.empty()) {
      throw Error(ErrorCode::bad_config, "a conversation has more messages than there are ids; ask for shorter ones");
    }
    if (!text.empty()) text += '\n';
    text += unused_ids.back() + " " + speaker + ": " + message;
    unused_ids.pop_back();
  }
};

void add_chunk(Conversation& talk, const Stock& stock, const Topic& topic, size_t bytes, Random& random) {
  const size_t begin = talk.text.size();
  talk.chunks.push_back({{"start", talk.unused_ids.back()}, {"label", "the " + topic.label}});
  std::string opener =
      fill(talk.said.new_sentence(talk.text.empty() ? stock.first_openers : stock.next_openers, random), topic, random);
  if (random.percent(opener_with_more_percent)) opener += " " + statement(stock, topic, talk.said, random);
  talk.add(opener, random);
  for (int count = 1; count < 2 || talk.text.size() - begin < bytes; ++count) {
    std::string message = body(stock, topic, talk.said, random);
    while (!talk.said.messages.insert(message).second) message = body(stock, topic, talk.said, random);
    talk.add(message, random);
  }
  if (random.percent(closing_percent)) talk.add(fill(random.one_of(stock.closings), topic, random), random);
}

Json make_row(const Set& set, int row, const Stock& stock) {
  const std::vector<Topic>& topics = set.held_out ? stock.held_out : stock.training;
  Random random(set.seed, static_cast<uint64_t>(row));
  size_t which = 0;  // exact shares, and nearly so in every part of the file
  for (int done = 0; which + 1 < set.lengths.size(); ++which) {
    done += set.lengths[which].percent;
    if (100 * (row * stride % set.rows) < done * set.rows) break;
  }
  const int tokens = random.between(set.lengths[which].min_tokens, set.lengths[which].max_tokens);
  const int most = std::clamp(tokens / set.tokens_per_topic, min_topics, max_topics);
  const int count = random.between(min_topics, most);

  std::vector<size_t> order(topics.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  random.shuffle(order);
  std::vector<int> weights;
  int total = 0;
  for (int i = 0; i < count; ++i) total += weights.emplace_back(random.between(50, 150));

  Conversation talk;
  talk.unused_ids = split(ids, " ");
  random.shuffle(talk.unused_ids);
  talk.speakers = names;
  random.shuffle(talk.speakers);
  talk.speakers.resize(static_cast<size_t>(random.between(2, 5)));
  for (int i = 0; i < count; ++i) {
    const double share = static_cast<double>(weights[static_cast<size_t>(i)]) / total;
    add_chunk(talk, stock, topics[order[static_cast<size_t>(i)]], static_cast<size_t>(tokens * bytes_per_token * share),
              random);
  }
  Json answer = {{"chunks", talk.chunks}};
  return {{"messages", Json::array({{{"role", "system"}, {"content", system_prompt}},
                                    {{"role", "user"}, {"content", talk.text + "\n\n" + instruction}},
                                    {{"role", "assistant"}, {"content", answer.dump()}}})}};
}

void write_set(const Set& set, const Stock& stock, const std::string& folder) {
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/" + set.name + ".jsonl";
  std::ofstream out(path, std::ios::binary);
  for (int row = 0; row < set.rows; ++row) out << make_row(set, row, stock).dump() << '\n';
  if (!out.flush()) throw Error(ErrorCode::bad_file, path + ": cannot be written; is the disk full?");
  std::printf("%s: %d rows\n", path.c_str(), set.rows);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4 || (argc == 4 && std::string_view(argv[3]) != "long")) {
    std::fputs("usage: chunk_generate TOPICS.TXT FOLDER [long]\n", stderr);
    return 2;
  }
  try {
    const Stock stock = read_stock(argv[1]);
    if (argc == 4) {
      write_set(long_set, stock, argv[2]);
    } else {
      for (const Set& set : recipe) write_set(set, stock, argv[2]);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "chunk_generate: %s\n", e.what());
    return 1;
  }
}
