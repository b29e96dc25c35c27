#include "cli/preview_html.h"

#include <fmt/format.h>

namespace sluice {

namespace {

constexpr const char* head = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Sluice: rows as they are trained on</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; color: #1b1b1b; background: #fff }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.5 ui-monospace, monospace; background: #f6f6f4; padding: .8em; color: #666 }
mark { background: #bfe8c4; color: #0b2e12 } mark.part { background: #f3e3a5 }
sup { font-size: 10px; color: #8a6d00 } h2 { font-size: 1em; margin-bottom: .2em } h2 small { font-weight: normal; color: #666 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } pre { background: #222; color: #999 }
mark { background: #1d4d28; color: #d9f5de } mark.part { background: #574a12; color: #f6ecc4 } }
</style></head><body>
)";

// Text for HTML. Bytes that are no UTF-8, of tokens that cut a character, and control characters become U+FFFD.
std::string escaped(const std::string& text) {
  const std::string valid =
      Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
  std::string result;
  for (char c : valid) {
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else if (c == '\r' || (static_cast<uint8_t>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7F) result += "\uFFFD";
    else result += c;
  }
  return result;
}

}  // namespace

PreviewPage::PreviewPage(const std::string& path, const std::string& model, const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), file_(path) {
  file_.write(head);
  file_.write(
      fmt::format("<h1>Rows as they are trained on</h1>\n<p>Model {}. What is <mark>marked</mark> is learned; "
                  "<mark class=\"part\">so</mark><sup>×0.5</sup> with another weight than 1.</p>\n",
                  escaped(model)));
}

void PreviewPage::add(const Sample& sample, const std::string& title) {
  std::string text = fmt::format("<h2>{} <small>{} tokens, {} learned</small></h2>\n<pre>", escaped(title),
                                 sample.ids.size(), sample.num_targets());
  for (const Stretch& part : stretches(sample, tokenizer_)) {
    const std::string content = escaped(part.text);
    if (part.weight == 0) text += content;
    else if (part.weight == 1) text += "<mark>" + content + "</mark>";
    else text += fmt::format("<mark class=\"part\">{}</mark><sup>×{}</sup>", content, part.weight);
  }
  file_.write(text + "</pre>\n");
}

void PreviewPage::finish(const DataReport& report) {
  file_.write(fmt::format("<h2>All rows</h2>\n<pre>{}</pre>\n</body></html>\n", escaped(report.summary())));
  file_.commit();
}

}  // namespace sluice
