// Forward and backward of one microbatch, streaming: only one segment's activations are alive in the backward.
//
//   1 forward, segment after segment, keeping what the schedule says
//   2 head: log-probabilities of the targets and their gradients, without logits; the objective weighs them
//   3 backward, last segment to first: redo what was not kept, walk the layers back, drop everything
//
// Chen et al. 2016 (arXiv:1604.06174) for recomputation. The adapter's gradient is the same bytes for any schedule and any number of
// threads. All memory is taken from ctx.arena; under a counting arena the same calls price a step.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/spans.h"
#include "model/model.h"
#include "train/schedule.h"

namespace sluice {

// One microbatch in host memory. Target m is the token `targets[m]`, predicted by token `rows[m]`; rows ascend.
struct StepBatch {
  std::span<const int32_t> ids;
  const Spans& spans;
  std::span<const int32_t> rows, targets;
};

// From the log-probabilities of the targets to the loss: fills d(loss)/d(logp), returns the loss.
using LossFunction = std::function<double(std::span<const float> logp, std::span<float> dlogp)>;

// What one phase of a step held when it began and at its highest, in bytes of the arena: for the plan's table and its search.
enum class Phase : uint8_t { forward, head, backward };
struct PhaseRecord {
  Phase phase{};
  int64_t segment = -1;  // its first layer; -1 for the head
  int64_t held_bytes = 0, peak_bytes = 0;
};

struct StepSettings {
  const Schedule& schedule;
  DType dtype = DType::bf16;  // of activations and operands
  DropoutKey dropout;
  Arena* pinned = nullptr;                  // host memory of a schedule that offloads
  std::vector<float>* hits = nullptr;       // filled when given: for each target, 1 where no token is likelier, else 0
  std::vector<PhaseRecord>* log = nullptr;  // filled when given; resets the arena's peak at each phase
};

// Adds the gradient into `grads`. Returns the loss. Throws Error(device) when a log-probability is not finite.
double forward_backward(Context& ctx, const Model& model, const Adapter& adapter, const Adapter& grads,
                        const StepBatch& batch, const StepSettings& settings, const LossFunction& loss);

// The log-probabilities alone (validation, reference policies): no dropout, nothing kept. An empty adapter is the base.
std::vector<float> forward_logps(Context& ctx, const Model& model, const Adapter& adapter, const StepBatch& batch,
                                 const StepSettings& settings);

// Hidden states of all layers, for tests: visit(layer, x) with layer 0 the embedding and num_layers the last output.
void forward_hidden(Context& ctx, const Model& model, const Adapter& adapter, const StepBatch& batch,
                    const StepSettings& settings, const std::function<void(int64_t layer, Tensor x)>& visit);

}  // namespace sluice
