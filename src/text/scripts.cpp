#include "text/scripts.h"

#include <string_view>

namespace sluice {
namespace {

// The scripts of Unicode 14 (Scripts.txt) other than Han and those that count as it; the frequent ones first.
constexpr std::string_view names =
    "Common Latin Cyrillic Arabic Hangul Greek Hebrew Devanagari Bengali Thai Tamil Telugu Inherited Adlam Ahom "
    "Anatolian_Hieroglyphs "
    "Armenian Avestan Balinese Bamum Bassa_Vah Batak Bhaiksuki Bopomofo Brahmi Braille Buginese Buhid "
    "Canadian_Aboriginal Carian "
    "Caucasian_Albanian Chakma Cham Cherokee Chorasmian Coptic Cuneiform Cypriot Cypro_Minoan Deseret Dives_Akuru "
    "Dogra Duployan "
    "Egyptian_Hieroglyphs Elbasan Elymaic Ethiopic Georgian Glagolitic Gothic Grantha Gujarati Gunjala_Gondi Gurmukhi "
    "Hanifi_Rohingya "
    "Hanunoo Hatran Imperial_Aramaic Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Kayah_Li "
    "Kharoshthi "
    "Khitan_Small_Script Khmer Khojki Khudawadi Lao Lepcha Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani Makasar "
    "Malayalam Mandaic "
    "Manichaean Marchen Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs "
    "Miao Modi Mongolian "
    "Mro Multani Myanmar Nabataean Nandinagari New_Tai_Lue Newa Nko Nushu Nyiakeng_Puachue_Hmong Ogham Ol_Chiki "
    "Old_Hungarian Old_Italic "
    "Old_North_Arabian Old_Permic Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage Osmanya "
    "Pahawh_Hmong "
    "Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian "
    "Siddham SignWriting "
    "Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet "
    "Takri Tangsa Tangut "
    "Thaana Tibetan Tifinagh Tirhuta Toto Ugaritic Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square ";

}  // namespace

std::string script_runs_pattern() {
  std::string pattern;
  // A character of `script` outside `but`, then those and neutral ones.
  const auto add = [&](const std::string& script, const std::string& but) {
    const std::string outside = but.empty() ? "" : "(?<![" + but + "])";
    pattern += (pattern.empty() ? "" : "|") + std::string("[") + script + "](?<![" + but + "\\x20])";
    pattern += "(?:[\\x20\\p{sc:Unknown}]|[" + script + "]" + outside + ")*";
  };
  add(R"(\p{sc:Han}\p{sc:Hiragana}\p{sc:Katakana}\x{30FC})", "");
  size_t begin = 0;
  for (size_t end; (end = names.find(' ', begin)) != std::string_view::npos; begin = end + 1) {
    const std::string name(names.substr(begin, end - begin)), script = "\\p{sc:" + name + "}";
    if (name == "Common") add(script + R"(\x{589}\x{61C})", R"(\x{30FC})");
    else if (name == "Armenian") add(script, R"(\x{589})");
    else if (name == "Inherited") add(script, R"(\x{953}\x{954})");
    else if (name == "Devanagari") add(script + R"(\x{953}\x{954})", "");
    else if (name == "Arabic") add(script, R"(\x{61C})");
    else add(script, "");
  }
  return pattern;
}

}  // namespace sluice
