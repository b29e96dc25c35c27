#include "train/adapter_update.h"

namespace sluice {

void update_adapter(Context& ctx, const AdapterLayout& layout, const AdamW& step, double b_ratio) {
  const auto part = [&](int64_t begin, int64_t end, double ratio, float weight_decay) {
    AdamW some = step;
    some.weight_decay = weight_decay;
    for (Tensor* t : {&some.p, &some.m, &some.v, &some.g}) *t = t->rows(begin, end - begin);
    some.lr = static_cast<float>(ratio * static_cast<double>(step.lr));
    adamw(ctx, some);
  };
  part(0, layout.b_begin(), 1, step.weight_decay);
  part(layout.b_begin(), layout.magnitude_begin(), b_ratio, step.weight_decay);
  part(layout.magnitude_begin(), layout.size(), 1, 0);
}

}  // namespace sluice
