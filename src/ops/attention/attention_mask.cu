#include <algorithm>
#include <vector>

#include "ops/attention/attention_mask.cuh"

namespace sluice::cuda {

namespace {

struct SpanEntry {
  int32_t begin, start_position, enter, exit;
};

// Some consecutive spans, by value.
struct SpanTable {
  static constexpr int capacity = 240;
  int32_t count;
  int32_t end;  // of the last span
  SpanEntry spans[capacity];
};

__global__ void fill_tokens(const __grid_constant__ SpanTable table, int32_t end, TokenMask* tokens) {
  const int32_t i = table.spans[0].begin + static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= end) return;
  if (i >= table.end) {  // behind the last token
    tokens[i] = {INT32_MAX, INT32_MAX, 0, 0};
    return;
  }
  int low = 0, high = table.count;  // spans[low].begin <= i < spans[high].begin
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table.spans[middle].begin <= i) low = middle;
    else high = middle;
  }
  const SpanEntry span = table.spans[low];
  tokens[i] = {span.start_position + i - span.begin, span.enter, span.exit, 0};
}

// One warp for each block.
__global__ void fill_blocks(const TokenMask* tokens, int32_t num_blocks, BlockMask* blocks) {
  const int32_t b = static_cast<int32_t>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  if (b >= num_blocks) return;
  const AttentionMask mask{.tokens = tokens, .single = false};
  const BlockMask range = range_of_tokens(mask, b * mask_block, mask_block);
  if (threadIdx.x % 32 == 0) blocks[b] = range;
}

std::vector<SpanEntry> span_entries(const Spans& spans) {
  const auto count = static_cast<size_t>(spans.size());
  std::vector<int32_t> below(count, 1), next(count);  // spans of the subtree; the number of the next child
  for (int64_t s = spans.size() - 1; s >= 0; --s) {
    if (spans[s].parent >= 0) below[static_cast<size_t>(spans[s].parent)] += below[static_cast<size_t>(s)];
  }
  std::vector<SpanEntry> entries(count);
  int32_t next_root = 0;
  for (size_t s = 0; s < count; ++s) {
    const Span& span = spans[static_cast<int64_t>(s)];
    int32_t& from = span.parent < 0 ? next_root : next[static_cast<size_t>(span.parent)];
    entries[s] = {static_cast<int32_t>(span.begin), static_cast<int32_t>(span.start_position), from, from + below[s]};
    from += below[s];
    next[s] = entries[s].enter + 1;
  }
  return entries;
}

}  // namespace

AttentionMask attention_mask(Context& ctx, ArenaScope& scope, const Spans& spans, int64_t window) {
  const int64_t N = spans.num_tokens(), padded = padded_tokens(N);
  SLUICE_ASSERT(padded < INT32_MAX / 2);
  TokenMask* const tokens = scope.array<TokenMask>(padded);
  BlockMask* const blocks = scope.array<BlockMask>(padded / mask_block);
  const AttentionMask mask{.tokens = tokens,
                           .blocks = blocks,
                           .num_tokens = static_cast<int32_t>(N),
                           .window = window > 0 && window < no_window ? static_cast<int32_t>(window) : no_window,
                           .single = spans.size() == 1};
  if (ctx.counting() || mask.single || N == 0) return mask;

  const std::vector<SpanEntry> entries = span_entries(spans);
  for (size_t first = 0; first < entries.size(); first += SpanTable::capacity) {
    const size_t after = std::min(entries.size(), first + SpanTable::capacity);
    const bool last = after == entries.size();
    SpanTable table{};
    std::copy(entries.begin() + static_cast<std::ptrdiff_t>(first),
              entries.begin() + static_cast<std::ptrdiff_t>(after), table.spans);
    table.count = static_cast<int32_t>(after - first);
    table.end = last ? static_cast<int32_t>(N) : entries[after].begin;
    const int32_t end = last ? static_cast<int32_t>(padded) : table.end;
    fill_tokens<<<static_cast<unsigned>(ceil_div(end - table.spans[0].begin, 256)), 256, 0, stream_of(ctx)>>>(
        table, end, tokens);
    check_launch("attention: the mask of the tokens");
  }
  const int64_t num_blocks = padded / mask_block;
  fill_blocks<<<static_cast<unsigned>(ceil_div(num_blocks, 4)), 128, 0, stream_of(ctx)>>>(
      tokens, static_cast<int32_t>(num_blocks), blocks);
  check_launch("attention: the mask of the blocks");
  return mask;
}

}  // namespace sluice::cuda
