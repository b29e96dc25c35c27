#include "ops/attention/attention.h"

namespace sluice {

namespace {

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

void check_shape(const AttentionShape& s) {
  SLUICE_ASSERT(s.num_kv_heads >= 1 && s.num_heads >= 1 && s.num_heads % s.num_kv_heads == 0);
  SLUICE_ASSERT(s.head_dim >= 1 && s.scale > 0 && s.window >= 0 && s.softcap >= 0);
}

}  // namespace

void attention_forward(Context& ctx, const AttentionForward& args) {
  const AttentionShape& s = args.shape;
  check_shape(s);
  const int64_t Nq = args.q.shape[0], width = s.num_heads * s.head_dim, kv_width = s.num_kv_heads * s.head_dim;
  SLUICE_ASSERT(is_float(args.q.dtype) && (args.q.shape == Shape{Nq, width}));
  SLUICE_ASSERT(args.query_begin >= 0 && args.query_begin + Nq <= args.spans.num_tokens());
  for (const Tensor& t : {args.k, args.v}) {
    SLUICE_ASSERT(t.dtype == args.q.dtype && t.shape.rank() == 2 && t.shape[1] == kv_width);
    SLUICE_ASSERT(t.shape[0] >= args.query_begin + Nq);
  }
  SLUICE_ASSERT(args.o.shape == args.q.shape && args.o.dtype == args.q.dtype);
  SLUICE_ASSERT((args.lse.shape == Shape{Nq, s.num_heads} && args.lse.dtype == DType::f32));
  if (Nq == 0) return;
  SLUICE_DISPATCH(ctx, attention_forward, args);
}

void attention_backward(Context& ctx, const AttentionBackward& args) {
  const AttentionShape& s = args.shape;
  check_shape(s);
  const int64_t N = args.spans.num_tokens();
  const Shape wide{N, s.num_heads * s.head_dim}, narrow{N, s.num_kv_heads * s.head_dim};
  SLUICE_ASSERT(is_float(args.q.dtype));
  for (const Tensor& t : {args.q, args.o, args.do_}) SLUICE_ASSERT(t.shape == wide && t.dtype == args.q.dtype);
  for (const Tensor& t : {args.k, args.v}) SLUICE_ASSERT(t.shape == narrow && t.dtype == args.q.dtype);
  for (const Tensor& t : {args.dk, args.dv}) SLUICE_ASSERT(t.shape == narrow && t.dtype == DType::f32);
  SLUICE_ASSERT((args.lse.shape == Shape{N, s.num_heads} && args.lse.dtype == DType::f32));
  SLUICE_ASSERT(args.dq.shape == wide && args.dq.dtype == DType::f32);
  if (N == 0) return;
  SLUICE_DISPATCH(ctx, attention_backward, args);
}

void attention_decode(Context& ctx, const AttentionDecode& args) {
  const AttentionShape& s = args.shape;
  check_shape(s);
  const auto B = static_cast<int64_t>(args.sequences.size());
  const int64_t kv_width = s.num_kv_heads * s.head_dim;
  SLUICE_ASSERT(is_float(args.q.dtype) && (args.q.shape == Shape{B, s.num_heads * s.head_dim}));
  SLUICE_ASSERT(args.o.shape == args.q.shape && args.o.dtype == args.q.dtype);
  for (const auto& sequence : args.sequences) {
    SLUICE_ASSERT(is_float(sequence.k.dtype) && sequence.k.dtype == sequence.v.dtype);
    SLUICE_ASSERT(sequence.k.shape == sequence.v.shape && sequence.k.shape[1] == kv_width);
    SLUICE_ASSERT(sequence.begin >= 0 && sequence.end > sequence.begin && sequence.ring >= 0);
    const int64_t rows = sequence.ring > 0 ? sequence.end - sequence.begin : sequence.end;
    SLUICE_ASSERT(rows <= (sequence.ring > 0 ? sequence.ring : sequence.k.shape[0]) &&
                  sequence.ring <= sequence.k.shape[0]);
  }
  if (B == 0) return;
  SLUICE_DISPATCH(ctx, attention_decode, args);
}

}  // namespace sluice
