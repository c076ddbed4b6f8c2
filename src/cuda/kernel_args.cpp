#include "cuda/kernel_args.h"

#include <cmath>

#include "base/block8.h"
#include "base/error.h"
#include "cuda/axis_kernels.h"
#include "cuda/tensor_view.h"
#include "device/cuda_scratch.h"

namespace onefold::cuda {

Positions positions_of(const RowPositions& p, int64_t table_rows) {
  return {p.first, p.length, p.starts.empty() ? nullptr : p.starts.i32(),
          p.places.empty() ? nullptr : p.places.i32(), table_rows};
}

Tensor joined(const Tensor& t, bool contiguous) { return contiguous ? t.flat() : t; }

Mask mask_of(const Dropout& dropout) {
  require(dropout.rate >= 0 && dropout.rate < 1, "dropout: rate {} is not in [0, 1)", dropout.rate);
  if (dropout.rate == 0) return {};
  // The comparison with the rate is exact on integers: rate * 2^24 is exact.
  return {dropout.key, dropout.samples.i64(),
          static_cast<int32_t>(std::ceil(dropout.rate * 0x1p24f)), 1.0f / (1.0f - dropout.rate)};
}

void require_shape(const char* what, const Tensor& t, int64_t rows, int64_t cols) {
  require(t.rows == rows && t.cols == cols, "{} is {}x{}, not {}x{}", what, t.rows, t.cols, rows,
          cols);
}

void require_elems(const char* what, const Tensor& t, int64_t elems) {
  require(t.elems() == elems, "{} has {} elements, not {}", what, t.elems(), elems);
}

void require_scratch(const char* what, const Tensor& scratch, int64_t bytes) {
  const int64_t there = scratch.elems() * dtype_bytes(scratch.dtype);
  require(there >= bytes, "{}: scratch of {} bytes, {} needed", what, there, bytes);
}

void require_type(const char* what, const Tensor& first, std::initializer_list<Tensor> others) {
  (void)type_of(first);
  for (const Tensor& t : others)
    require(t.empty() || t.dtype == first.dtype, "{}: {} beside {}", what, dtype_name(t.dtype),
            dtype_name(first.dtype));
}

void require_gradients(const char* what, const Tensor& x, std::initializer_list<Tensor> gradients) {
  DType dtype = x.dtype;
  bool first = true;
  for (const Tensor& t : gradients) {
    if (t.empty()) continue;
    require(t.dtype == x.dtype || t.dtype == DType::f32, "{}: gradients of {} beside {}", what,
            dtype_name(t.dtype), dtype_name(x.dtype));
    require(first || t.dtype == dtype, "{}: gradients of {} and {}", what, dtype_name(dtype),
            dtype_name(t.dtype));
    dtype = t.dtype;
    first = false;
  }
}

void require_positions(const RowPositions& positions, int64_t rows, int64_t table_rows) {
  require(positions.length > 0 && positions.first >= 0 &&
              positions.first + positions.length <= table_rows,
          "positions {}+{} of {}", positions.first, positions.length, table_rows);
  require(positions.starts.empty() || (positions.starts.elems() == rows && positions.first == 0),
          "the starts of {} rows for {}", positions.starts.elems(), rows);
  require_places(positions.places, rows);
  require(positions.places.empty() || positions.first == 0, "places from {} on", positions.first);
}

void require_groups(const Tensor& x, int64_t groups) {
  require(groups > 0 && x.cols % groups == 0, "norm: {} columns in {} groups", x.cols, groups);
}

Curve curve_of(Activation act) {
  switch (act) {
    case Activation::relu:
      return Curve::relu;
    case Activation::gelu:
      return Curve::gelu;
    case Activation::gelu_tanh:
      return Curve::gelu_tanh;
    case Activation::silu:
      return Curve::silu;
    case Activation::sigmoid:
      return Curve::sigmoid;
    case Activation::identity:
      return Curve::identity;
  }
  internal_error("activation {}", static_cast<int>(act));
}

AttentionArgs attention_args(const AttentionShape& s, const Tensor& q, const Tensor& k,
                             const Tensor& v, const Tensor& out, const Tensor& lse,
                             const Dropout& dropout) {
  require(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0,
          "attention: {} heads over {} key heads", s.heads, s.kv_heads);
  require(s.causal ? s.query_length <= s.key_length
                   : s.starts.empty() && s.window == 0 && dropout.rate == 0,
          "attention: {} queries over {} keys{}", s.query_length, s.key_length,
          s.causal ? "" : ", all of them seen");
  require(dropout.places.empty(), "attention: dropout of parts of sequences");
  if (s.head_dim > kMostHeadDim)
    user_error("attention on the device cuda takes heads of at most {} elements; this model has {}",
               kMostHeadDim, s.head_dim);
  require_shape("attention: q", q, s.batch * s.query_length, s.heads * s.head_dim);
  require_shape("attention: k", k, s.batch * s.key_length, s.kv_heads * s.head_dim);
  require_shape("attention: v", v, s.batch * s.key_length, s.kv_heads * s.head_dim);
  require_shape("attention: out", out, q.rows, q.cols);
  require_shape("attention: lse", lse, s.batch * s.heads, s.query_length);
  require_type("attention", q, {k, v, out});
  require(s.dtype == q.dtype, "attention: {} in a shape of {}", dtype_name(q.dtype),
          dtype_name(s.dtype));
  require(
      s.alibi == 0 || (s.alibi > 0 && s.soft_cap == 0 && s.first_head + s.heads <= s.alibi_heads),
      "attention: a bias of {} for heads {} to {} of {}, with scores up to {}", s.alibi,
      s.first_head, s.first_head + s.heads, s.alibi_heads, s.soft_cap);
  require(s.starts.empty() || (s.starts.elems() == q.rows && s.query_length == s.key_length),
          "attention: the starts of {} rows for {} queries over {} keys", s.starts.elems(), q.rows,
          s.key_length);
  return {s.batch,
          s.query_length,
          s.key_length,
          s.heads,
          s.kv_heads,
          s.head_dim,
          s.starts.empty() ? nullptr : s.starts.i32(),
          mask_of(dropout),
          view(q),
          view(k),
          view(v),
          view(out),
          lse.f32(),
          lse.stride,
          s.window < s.key_length ? s.window : 0,  // one that hides nothing is none
          s.score_scale(),
          s.soft_cap,
          s.alibi,
          s.alibi_heads,
          s.first_head,
          s.causal};
}

SteppedArgs stepped_args(const char* what, const Stepped& s) {
  const auto& [params, grads, master, rounding, factor] = s;
  const int64_t n = params.elems();
  require_elems(what, grads, n);
  require_gradients(what, params, {grads});
  if (!master.empty()) require_elems(what, master, n);
  require(params.dtype != DType::f32 || master.empty(), "{}: parameters of f32 have no master",
          what);
  return {n,
          vector(params),
          vector(grads),
          master.empty() ? nullptr : master.flat().f32(),
          rounding.has_value(),
          rounding ? rounding->key : PhiloxKey{},
          rounding ? rounding->first : 0,
          factor.empty() ? nullptr : factor.f32()};
}

void require_moment(const char* what, const Stepped& s, const Moment& moment) {
  const int64_t n = s.params.elems();
  require_elems(what, moment.values, n);
  if (moment.values.dtype == DType::u8)
    require_elems(what, moment.scales, (n + kBlock8 - 1) / kBlock8);
  require(moment.values.dtype == DType::f32 || s.rounding, "{}: moments of {} without a rounding",
          what, dtype_name(moment.values.dtype));
}

AdamWFactors factors_of(const AdamW& hyper) {
  return {hyper.beta1,
          1.0f - hyper.beta1,
          hyper.beta2,
          1.0f - hyper.beta2,
          hyper.l2 ? 1.0f : 1.0f - hyper.learning_rate * hyper.weight_decay,
          hyper.learning_rate / hyper.bias_correction1,
          1.0f / hyper.bias_correction2,
          hyper.eps,
          hyper.l2 ? hyper.weight_decay : 0.0f};
}

void require_wide_moment(const char* what, const Stepped& s, Tensor moment) {
  require_moment(what, s, moment);
  require(moment.dtype != DType::u8, "{}: a moment of 8 bits", what);
}

DirectionFactors factors_of(const Direction& hyper) {
  static_assert(static_cast<int>(DirectionRule::lars) == static_cast<int>(Direction::Rule::lars));
  static_assert(static_cast<int>(DirectionRule::muon) == static_cast<int>(Direction::Rule::muon));
  static_assert(static_cast<int>(DirectionRule::adafactor) ==
                static_cast<int>(Direction::Rule::adafactor));
  return {static_cast<DirectionRule>(hyper.rule),
          hyper.beta1,
          1.0f - hyper.beta1,
          hyper.beta2,
          1.0f - hyper.beta2,
          hyper.eps,
          hyper.weight_decay,
          hyper.eps_inside,
          hyper.nesterov,
          hyper.learning_rate,
          hyper.trust};
}

Codes8 codes_of(const Moment& moment) {
  return {moment.values.flat().as<uint8_t>(), moment.scales.flat().f32()};
}

Gemm padded(Gemm g) {
  constexpr int64_t kEven = 8;
  const int64_t vocabulary = g.a_transposed ? g.a.cols : g.b.rows;
  if (g.slack == 0 || vocabulary % kEven == 0) return g;
  (g.a_transposed ? g.dst : g.b).rows += g.slack;
  (g.b_transposed ? g.dst : g.a).cols += g.slack;
  return g;
}

}  // namespace onefold::cuda
