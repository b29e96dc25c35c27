// Graphs behind core/device.h's GraphCapture: captured from the device's stream, and launched there by way of a graph of the same nodes that
// was built before, whose parameters are updated.
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

namespace {

// The kinds of a graph's nodes, in the order of their capture.
using Nodes = std::vector<cudaGraphNodeType>;

Nodes nodes_of(cudaGraph_t graph) {
  size_t count = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &count), "looking at a CUDA graph");
  std::vector<cudaGraphNode_t> nodes(count);
  check_cuda(cudaGraphGetNodes(graph, nodes.data(), &count), "looking at a CUDA graph");
  Nodes kinds(count);
  for (size_t i = 0; i < count; ++i) check_cuda(cudaGraphNodeGetType(nodes[i], &kinds[i]), "looking at a CUDA graph");
  return kinds;
}

// Built graphs of the same nodes, taken in turn, so that one is updated while another runs.
struct Built {
  static constexpr size_t turns = 3;
  std::array<cudaGraphExec_t, turns> execs{};
  size_t next = 0;
};

class Graphs {
 public:
  void launch(cudaGraph_t graph, cudaStream_t stream) {
    const Nodes nodes = nodes_of(graph);
    if (nodes.empty()) return;
    cudaGraphExec_t& exec = turn_of(nodes);
    if (exec != nullptr) {
      cudaGraphExecUpdateResultInfo info{};
      if (cudaGraphExecUpdate(exec, graph, &info) != cudaSuccess) {
        cudaGetLastError();  // of other edges or devices: built anew
        check_cuda(cudaGraphExecDestroy(exec), "dropping a CUDA graph");
        exec = nullptr;
      }
    }
    if (exec == nullptr) check_cuda(cudaGraphInstantiate(&exec, graph, 0), "building a CUDA graph");
    check_cuda(cudaGraphLaunch(exec, stream), "launching a CUDA graph");
  }

 private:
  static constexpr size_t most = 16;  // kinds of graphs that are held

  cudaGraphExec_t& turn_of(const Nodes& nodes) {
    const auto [at, is_new] = built_.try_emplace(nodes);
    if (is_new) {
      order_.push_back(nodes);
      if (order_.size() > most) {
        for (cudaGraphExec_t exec : built_[order_.front()].execs) {
          if (exec != nullptr) check_cuda(cudaGraphExecDestroy(exec), "dropping a CUDA graph");
        }
        built_.erase(order_.front());
        order_.pop_front();
      }
    }
    Built& b = at->second;
    b.next = (b.next + 1) % Built::turns;
    return b.execs[b.next];
  }

  std::map<Nodes, Built> built_;
  std::deque<Nodes> order_;  // of building
};

Graphs& graphs(int device) {
  static std::map<int, Graphs> all;
  return all[device];
}

cudaGraph_t end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream, &graph), "capturing a CUDA graph");
  return graph;
}

}  // namespace

}  // namespace sluice::cuda

#define SLUICE_EXPORT extern "C" __attribute__((visibility("default")))

namespace cuda = sluice::cuda;

SLUICE_EXPORT void sluice_cuda_capture_begin(const sluice::Context& ctx) {
  // Relaxed: kernels are loaded at their first launch, which may allocate.
  cuda::check_cuda(cudaStreamBeginCapture(cuda::stream_of(ctx), cudaStreamCaptureModeRelaxed),
                   "capturing a CUDA graph");
}

SLUICE_EXPORT void sluice_cuda_capture_launch(const sluice::Context& ctx) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  cudaGraph_t graph = cuda::end_capture(stream);
  cuda::graphs(ctx.device.index).launch(graph, stream);
  cuda::check_cuda(cudaGraphDestroy(graph), "dropping a CUDA graph");
}

// In the course of another error; its own is of no more use.
SLUICE_EXPORT void sluice_cuda_capture_drop(const sluice::Context& ctx) {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(cuda::stream_of(ctx), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();
}
