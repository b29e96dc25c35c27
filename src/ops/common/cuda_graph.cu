// Graphs behind core/device.h's GraphCapture: captured from the device's stream, and launched there by way of a graph of the same nodes that
// was built before, whose parameters are updated.
#include <array>
#include <deque>
#include <map>
#include <vector>

#include "ops/common/cuda_utils.cuh"

namespace sluice::cuda {

namespace {

// What an update of a graph cannot change, or need not notice: the kinds of its nodes, the clusters of its kernels, and its edges with their kind
// (a kernel that may start early must not take the place of one that may not).
using Structure = std::vector<int64_t>;

Structure structure_of(cudaGraph_t graph) {
  constexpr const char* what = "looking at a CUDA graph";
  size_t num_nodes = 0, num_edges = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &num_nodes), what);
  check_cuda(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &num_edges), what);
  std::vector<cudaGraphNode_t> nodes(num_nodes), from(num_edges), to(num_edges);
  std::vector<cudaGraphEdgeData> data(num_edges);
  check_cuda(cudaGraphGetNodes(graph, nodes.data(), &num_nodes), what);
  check_cuda(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &num_edges), what);
  Structure structure;
  std::map<cudaGraphNode_t, int64_t> place;
  for (const cudaGraphNode_t node : nodes) {
    place[node] = static_cast<int64_t>(place.size());
    cudaGraphNodeType kind{};
    check_cuda(cudaGraphNodeGetType(node, &kind), what);
    structure.push_back(kind);
    if (kind != cudaGraphNodeTypeKernel) continue;
    cudaKernelNodeAttrValue cluster{};
    check_cuda(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributeClusterDimension, &cluster), what);
    structure.push_back(cluster.clusterDim.x);
  }
  for (size_t i = 0; i < num_edges; ++i)
    structure.insert(structure.end(), {place[from[i]], place[to[i]], data[i].type, data[i].from_port});
  return structure;
}

// Built graphs of one structure, taken in turn, so that one is updated while another runs.
struct Built {
  static constexpr size_t turns = 3;
  std::array<cudaGraphExec_t, turns> execs{};
  size_t next = 0;
};

class Graphs {
 public:
  void launch(cudaGraph_t graph, cudaStream_t stream) {
    const Structure structure = structure_of(graph);
    if (structure.empty()) return;
    cudaGraphExec_t& exec = turn_of(structure);
    if (exec != nullptr) {
      cudaGraphExecUpdateResultInfo info{};
      if (cudaGraphExecUpdate(exec, graph, &info) != cudaSuccess) {
        cudaGetLastError();  // built anew
        check_cuda(cudaGraphExecDestroy(exec), "dropping a CUDA graph");
        exec = nullptr;
      }
    }
    if (exec == nullptr) check_cuda(cudaGraphInstantiate(&exec, graph, 0), "building a CUDA graph");
    check_cuda(cudaGraphLaunch(exec, stream), "launching a CUDA graph");
  }

 private:
  static constexpr size_t most = 16;  // structures whose graphs are held

  cudaGraphExec_t& turn_of(const Structure& structure) {
    const auto [at, is_new] = built_.try_emplace(structure);
    if (is_new) {
      order_.push_back(structure);
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

  std::map<Structure, Built> built_;
  std::deque<Structure> order_;  // of building
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
