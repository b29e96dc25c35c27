// A picture of a run: small line charts, one below the other, as SVG.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

#include "io/atomic_file.h"
#include "train/progress.h"

namespace sluice {

namespace {

struct Series {
  std::string name, colour;
  std::vector<std::pair<double, double>> points;
};

struct Chart {
  std::string title;
  std::vector<Series> series;
};

constexpr double width = 720, chart_height = 170, left = 70, right = 20, top = 28, bottom = 22;

std::string number(double value) {
  const double a = std::abs(value);
  return a != 0 && (a < 1e-3 || a >= 1e5) ? fmt::format("{:.1e}", value) : fmt::format("{:.4g}", value);
}

std::string draw(const Chart& chart, double y0) {
  double x_min = INFINITY, x_max = -INFINITY, y_min = INFINITY, y_max = -INFINITY;
  for (const Series& s : chart.series) {
    for (const auto& [x, y] : s.points) {
      x_min = std::min(x_min, x), x_max = std::max(x_max, x);
      y_min = std::min(y_min, y), y_max = std::max(y_max, y);
    }
  }
  if (!(x_min <= x_max)) return "";
  if (x_min == x_max) x_max = x_min + 1;
  if (y_min == y_max) y_max = y_min + (y_min == 0 ? 1 : std::abs(y_min) * 0.1);
  const auto px = [&](double x) { return left + (x - x_min) / (x_max - x_min) * (width - left - right); };
  const auto py = [&](double y) {
    return y0 + chart_height - bottom - (y - y_min) / (y_max - y_min) * (chart_height - top - bottom);
  };
  std::string svg = fmt::format(R"(<text x="{}" y="{}" font-weight="bold">{}</text>)", left, y0 + 16, chart.title);
  for (int i = 0; i <= 2; ++i) {
    const double y = y_min + (y_max - y_min) * i / 2, x = x_min + (x_max - x_min) * i / 2;
    svg += fmt::format(R"(<line x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}" stroke="#ddd"/>)", left, width - right, py(y),
                       py(y));
    svg += fmt::format(R"(<text x="{}" y="{:.1f}" text-anchor="end">{}</text>)", left - 6, py(y) + 4, number(y));
    svg += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)", px(x), y0 + chart_height - 6,
                       number(x));
  }
  double legend = width - right;
  for (const Series& s : chart.series) {
    std::string path;
    for (const auto& [x, y] : s.points) path += fmt::format("{:.1f},{:.1f} ", px(x), py(y));
    svg += fmt::format(R"(<polyline fill="none" stroke="{}" stroke-width="1.6" points="{}"/>)", s.colour, path);
    if (s.points.size() < 40) {
      for (const auto& [x, y] : s.points)
        svg += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="2.2" fill="{}"/>)", px(x), py(y), s.colour);
    }
    svg +=
        fmt::format(R"(<text x="{}" y="{}" text-anchor="end" fill="{}">{}</text>)", legend, y0 + 16, s.colour, s.name);
    legend -= 14 + 7.0 * static_cast<double>(s.name.size());
  }
  return svg + "\n";
}

}  // namespace

void write_plot(const std::string& metrics_path, const std::string& svg_path) {
  std::vector<Chart> charts = {
      {"loss by optimizer step", {{"train", "#1f6feb", {}}, {"validation", "#d1242f", {}}}},
      {"learning rate", {{"", "#1a7f37", {}}}},
      {"gradient norm", {{"", "#8250df", {}}}},
      {"peak memory of the process, GB", {{"", "#9a6700", {}}}},
      {"margin of rewards", {{"train", "#1f6feb", {}}, {"validation", "#d1242f", {}}}},
      {"accuracy of rewards", {{"train", "#1f6feb", {}}, {"validation", "#d1242f", {}}}},
      {"log-probability of answers, validation", {{"chosen", "#1a7f37", {}}, {"rejected", "#d1242f", {}}}},
      {"lambda of orpo", {{"", "#8250df", {}}}},
  };
  std::ifstream lines(metrics_path);
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step")) continue;
    const double step = json["step"].get<double>();
    const auto add = [&](size_t chart, size_t series, const char* key) {
      if (json.contains(key) && json[key].is_number() && std::isfinite(json[key].get<double>())) {
        charts[chart].series[series].points.emplace_back(step, json[key].get<double>());
      }
    };
    add(0, 0, "loss");
    add(0, 1, "eval_loss");
    add(1, 0, "learning_rate");
    add(2, 0, "grad_norm");
    add(3, 0, "peak_memory");
    add(4, 0, "rewards/margins");
    add(4, 1, "eval_rewards/margins");
    add(5, 0, "rewards/accuracies");
    add(5, 1, "eval_rewards/accuracies");
    add(6, 0, "eval_logps/chosen");
    add(6, 1, "eval_logps/rejected");
    add(7, 0, "orpo_lambda");
  }
  std::string body;
  double y = 0;
  for (const Chart& chart : charts) {
    const std::string drawn = draw(chart, y);
    body += drawn;
    if (!drawn.empty()) y += chart_height;
  }
  atomic_write_file(
      svg_path, fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" )"
                            R"(font-family="sans-serif" font-size="11"><rect width="{0}" height="{1}" fill="white"/>)"
                            "\n{2}</svg>\n",
                            width, std::max(y, 40.0), body));
}

}  // namespace sluice
