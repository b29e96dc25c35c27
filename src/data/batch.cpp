#include "data/batch.h"

#include <numeric>

#include "core/error.h"

namespace sluice {

double Batch::total_weight() const { return std::accumulate(weights.begin(), weights.end(), 0.0); }

Batch pack(const std::vector<const Sample*>& samples) {
  SLUICE_ASSERT(!samples.empty());
  Batch batch;
  std::vector<Spans::Piece> pieces;
  for (size_t group = 0; group < samples.size(); ++group) {
    const Sample& sample = *samples[group];
    SLUICE_ASSERT(sample.supervised.size() == sample.ids.size());
    const auto begin = static_cast<int32_t>(batch.ids.size());
    pieces.push_back({-1, static_cast<int64_t>(sample.ids.size())});
    batch.ids.insert(batch.ids.end(), sample.ids.begin(), sample.ids.end());
    for (size_t t = 1; t < sample.ids.size(); ++t) {
      if (sample.supervised[t] == 0) continue;
      batch.rows.push_back(begin + static_cast<int32_t>(t) - 1);
      batch.targets.push_back(sample.ids[t]);
      batch.groups.push_back(static_cast<int32_t>(group));
      batch.weights.push_back(sample.weight(t));
    }
  }
  batch.spans = Spans(pieces);
  return batch;
}

}  // namespace sluice
