#include "cuda/cuda_kernels.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/say.h"
#include "cuda/axis_kernels.h"
#include "cuda/check.h"
#include "cuda/cuda_experts.h"
#include "cuda/gemm.h"
#include "cuda/kernel_args.h"
#include "cuda/library_attention.h"
#include "cuda/tensor_view.h"
#include "device/cuda_scratch.h"

namespace onefold::cuda {
namespace {

static_assert(kSumLanes == onefold::kSumLanes);

class CudaKernels final : public Kernels {
 public:
  explicit CudaKernels(cudaStream_t stream) : stream_(stream), scratch_(make_cuda_scratch()) {}

  int64_t gemm_scratch_bytes(const Gemm& g) const override {
    return scratch_->gemm_scratch_bytes(g);
  }
  int64_t norm_backward_scratch_bytes(int64_t rows, int64_t cols, int64_t groups) const override {
    return scratch_->norm_backward_scratch_bytes(rows, cols, groups);
  }
  int64_t attention_forward_scratch_bytes(const AttentionShape& s) const override {
    return scratch_->attention_forward_scratch_bytes(s);
  }
  int64_t attention_backward_scratch_bytes(const AttentionShape& s) const override {
    return scratch_->attention_backward_scratch_bytes(s);
  }
  int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary) const override {
    return scratch_->embedding_backward_scratch_bytes(rows, vocabulary);
  }
  int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols) const override {
    return scratch_->column_sum_scratch_bytes(rows, cols);
  }
  int64_t sum_squares_scratch_bytes(int64_t elems) const override {
    return scratch_->sum_squares_scratch_bytes(elems);
  }
  int64_t grouped_gemm_scratch_bytes(const GroupedGemm& g) const override {
    return scratch_->grouped_gemm_scratch_bytes(g);
  }
  int64_t route_backward_scratch_bytes(int64_t tokens, int64_t experts) const override {
    return scratch_->route_backward_scratch_bytes(tokens, experts);
  }
  int64_t logits_bytes() const override { return scratch_->logits_bytes(); }

  void gemm(const Gemm& g) override {
    const int64_t terms = g.a_transposed ? g.a.rows : g.a.cols;
    require((g.a_transposed ? g.a.cols : g.a.rows) == g.dst.rows &&
                (g.b_transposed ? g.b.rows : g.b.cols) == g.dst.cols &&
                (g.b_transposed ? g.b.cols : g.b.rows) == terms,
            "gemm: a {}x{}{}, b {}x{}{}, dst {}x{}", g.a.rows, g.a.cols, g.a_transposed ? "'" : "",
            g.b.rows, g.b.cols, g.b_transposed ? "'" : "", g.dst.rows, g.dst.cols);
    require_type("gemm", g.a, {g.b});
    require_gradients("gemm", g.a, {g.dst});
    require_type("gemm", g.dst, {g.bias, g.residual});
    if (!g.bias.empty()) require_elems("gemm: the bias", g.bias, g.dst.cols);
    if (!g.residual.empty())
      require_shape("gemm: the residual", g.residual, g.dst.rows, g.dst.cols);
    require_scratch("gemm", g.scratch, gemm_scratch_bytes(g));
    products_.run(padded(g), stream_);
  }

  void norm_forward(Norm norm, Tensor x, int64_t groups, Tensor weight, Tensor bias, float eps,
                    Tensor dst) override {
    require_groups(x, groups);
    require_elems("norm: the weight", weight, x.cols / groups);
    if (!bias.empty()) require_elems("norm: the bias", bias, x.cols / groups);
    require_shape("norm: dst", dst, x.rows, x.cols);
    require_type("norm", x, {weight, bias, dst});
    cuda::norm_forward(norm == Norm::layernorm, norm == Norm::rmsnorm1p, view(x), groups,
                       vector(weight), vector(bias), eps, view(dst), stream_);
  }

  void norm_backward(Norm norm, Tensor x, int64_t groups, Tensor weight, float eps, Tensor dy,
                     Tensor dx, bool accumulate_dx, Tensor dweight, Tensor dbias, Tensor dbefore,
                     bool accumulate_weights, Tensor scratch) override {
    require_groups(x, groups);
    require_elems("norm: the weight", weight, x.cols / groups);
    if (!dweight.empty()) require_elems("norm: dweight", dweight, x.cols / groups);
    if (!dbias.empty()) require_elems("norm: dbias", dbias, x.cols / groups);
    if (!dbefore.empty()) require_elems("norm: dbefore", dbefore, x.cols);
    require(dbefore.empty() || (accumulate_dx && groups == 1),
            "norm: sums of a dx of {} groups that is {}", groups,
            accumulate_dx ? "added to" : "overwritten");
    require_shape("norm: dy", dy, x.rows, x.cols);
    require_shape("norm: dx", dx, x.rows, x.cols);
    require_scratch("norm", scratch, norm_backward_scratch_bytes(x.rows, x.cols, groups));
    require_type("norm", x, {weight, dy, dx});
    require_gradients("norm", x, {dweight, dbias, dbefore});
    cuda::norm_backward({norm == Norm::layernorm, norm == Norm::rmsnorm1p, view(x), groups,
                         vector(weight), eps, view(dy), view(dx), accumulate_dx, vector(dweight),
                         vector(dbias), vector(dbefore), accumulate_weights, scratch.as_f32()},
                        stream_);
  }

  void activation_forward(Activation act, bool gated, Tensor x, Tensor dst) override {
    require_shape("activation: x", x, dst.rows, dst.cols * (gated ? 2 : 1));
    require_type("activation", x, {dst});
    const bool flat = !gated && x.contiguous() && dst.contiguous();
    cuda::activation_forward(curve_of(act), gated, view(joined(x, flat)), view(joined(dst, flat)),
                             stream_);
  }

  void activation_backward(Activation act, bool gated, Tensor x, Tensor dy, Tensor dx, Tensor y,
                           const BiasGradient& dbias) override {
    require_shape("activation: x", x, dy.rows, dy.cols * (gated ? 2 : 1));
    require_shape("activation: dx", dx, x.rows, x.cols);
    if (!y.empty()) require_shape("activation: y", y, dy.rows, dy.cols);
    require_type("activation", x, {dy, dx, y});
    if (!dbias.dst.empty()) {
      require_elems("activation: dbias", dbias.dst, dx.cols);
      require_gradients("activation", x, {dbias.dst});
      require_scratch("activation", dbias.scratch, column_sum_scratch_bytes(dx.rows, dx.cols));
      return cuda::activation_backward(
          curve_of(act), gated, view(x), view(dy), view(dx), view_or_null(y),
          {vector(dbias.dst), dbias.accumulate, dbias.scratch.as_f32()}, stream_);
    }
    const bool flat = !gated && x.contiguous() && dy.contiguous() && dx.contiguous() &&
                      (y.empty() || y.contiguous());
    cuda::activation_backward(curve_of(act), gated, view(joined(x, flat)), view(joined(dy, flat)),
                              view(joined(dx, flat)), view_or_null(joined(y, flat && !y.empty())),
                              stream_);
  }

  void rope(Tensor x, int64_t heads, Tensor table, const RowPositions& positions,
            bool inverse) override {
    require(heads > 0 && x.cols % heads == 0 && x.cols / heads >= table.cols && table.cols % 2 == 0,
            "rope: {} columns for {} heads of which {} elements turn", x.cols, heads, table.cols);
    require_positions(positions, x.rows, table.rows);
    require(table.dtype == DType::f32, "rope: a table of {}", dtype_name(table.dtype));
    cuda::rope(view(x), heads, view(table), positions_of(positions, table.rows), inverse, stream_);
  }

  void attention_forward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v, Tensor out,
                         Tensor lse, const Dropout& dropout, Tensor scratch) override {
    const int64_t bytes = attention_forward_scratch_bytes(shape);
    require_scratch("attention", scratch, bytes);
    const AttentionArgs args = attention_args(shape, q, k, v, out, lse, dropout);
    if (LibraryAttention* library = library_attention(q);
        !library || !library->forward(args, scratch.data, bytes, stream_))
      cuda::attention_forward(args, stream_);
  }

  void attention_backward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v, Tensor out,
                          Tensor dout, Tensor lse, Tensor dq, Tensor dk, Tensor dv,
                          const Dropout& dropout, Tensor scratch) override {
    require(!shape.causal || shape.query_length == shape.key_length,
            "attention backward over a cache");
    require_shape("attention: dout", dout, q.rows, q.cols);
    require_shape("attention: dq", dq, q.rows, q.cols);
    require_shape("attention: dk", dk, k.rows, k.cols);
    require_shape("attention: dv", dv, v.rows, v.cols);
    require_type("attention", q, {dout, dq, dk, dv});
    const int64_t bytes = attention_backward_scratch_bytes(shape);
    require_scratch("attention", scratch, bytes);
    const AttentionArgs args = attention_args(shape, q, k, v, out, lse, dropout);
    const AttentionGradients gradients{view(dout), view(dq), view(dk), view(dv), scratch.as_f32()};
    if (LibraryAttention* library = library_attention(q);
        !library || !library->backward(args, gradients, attention_slice(shape),
                                       attention_parts(shape), stream_))
      cuda::attention_backward(args, gradients, stream_);
  }

  void merge_attention(Tensor out, Tensor lse, Tensor more, Tensor more_lse) override {
    cuda::merge_attention(out, lse, more, more_lse, stream_);
  }

  void dropout(Tensor x, const Dropout& dropout, int64_t length, Tensor residual,
               Tensor dst) override {
    const Mask mask = mask_of(dropout);
    require_shape("dropout: dst", dst, x.rows, x.cols);
    if (!residual.empty()) require_shape("dropout: the residual", residual, x.rows, x.cols);
    require(length > 0, "dropout: sequences of {}", length);
    require_type("dropout", x, {residual, dst});
    if (mask.threshold == 0) return residual.empty() ? copy(x, dst) : add(residual, x, dst);
    require_places(dropout.places, x.rows);
    const Matrix all = view_or_null(residual), *added = residual.empty() ? nullptr : &all;
    if (dropout.places.empty() && dropout.all_cols == 0)
      return cuda::dropout(view(x), mask, length, added, view(dst), stream_);
    const Parts parts{dropout.places.empty() ? nullptr : dropout.places.i32(), dropout.first_col,
                      dropout.all_cols > 0 ? dropout.all_cols : x.cols};
    dropout_at(parts, view(x), mask, length, added, view(dst), stream_);
  }

  void embedding_forward(Tensor tokens, Tensor table, Tensor position_table,
                         const RowPositions& positions, Tensor dst) override {
    require_elems("embedding: tokens", tokens, dst.rows);
    require_shape("embedding: the table", table, table.rows, dst.cols);
    if (!position_table.empty()) {
      require_shape("embedding: positions", position_table, position_table.rows, dst.cols);
      require_positions(positions, dst.rows, position_table.rows);
    }
    require_type("embedding", dst, {table, position_table});
    cuda::embedding_forward(tokens.i32(), view(table), view_or_null(position_table),
                            positions_of(positions, position_table.rows), view(dst), stream_);
  }

  void embedding_backward(Tensor tokens, Tensor dx, const RowPositions& positions, Tensor dtable,
                          bool accumulate_table, Tensor dpositions, bool accumulate_positions,
                          Tensor scratch) override {
    require_elems("embedding: tokens", tokens, dx.rows);
    require_shape("embedding: dtable", dtable, dtable.rows, dx.cols);
    if (!dpositions.empty()) {
      require_shape("embedding: dpositions", dpositions, dpositions.rows, dx.cols);
      require_positions(positions, dx.rows, dpositions.rows);
    }
    const int64_t targets = std::max(dtable.rows, positions.places.empty() ? 0 : dpositions.rows);
    require_scratch("embedding", scratch, embedding_backward_scratch_bytes(dx.rows, targets));
    require_gradients("embedding", dx, {dtable, dpositions});
    cuda::embedding_backward({tokens.i32(), view(dx), positions_of(positions, dpositions.rows),
                              view(dtable), accumulate_table, view_or_null(dpositions),
                              accumulate_positions, static_cast<int32_t*>(scratch.data)},
                             stream_);
  }

  void cross_entropy(Tensor logits, Tensor targets, Tensor gradient_scale, Tensor losses) override {
    require_elems("cross_entropy: targets", targets, logits.rows);
    require_elems("cross_entropy: losses", losses, logits.rows);
    cuda::cross_entropy(view(logits), targets.i32(),
                        gradient_scale.empty() ? nullptr : gradient_scale.f32(),
                        losses.flat().f32(), stream_);
  }

  void share_softmax(Tensor logits, Tensor targets, Tensor stats) override {
    cuda::share_softmax(logits, targets, stats, stream_);
  }

  void share_cross_entropy(Tensor logits, Tensor targets, Tensor stats, Tensor gradient_scale,
                           Tensor losses) override {
    cuda::share_cross_entropy(logits, targets, stats, gradient_scale, losses, stream_);
  }

  void route(const Route& args) override { run_route(args, stream_); }
  void route_backward(const RouteBackward& args) override {
    const Tensor& logits = args.forward.logits;
    run_route_backward(args, route_backward_scratch_bytes(logits.rows, logits.cols), stream_);
  }
  void gather_rows(Tensor x, const Routing& routing, Tensor dst) override {
    run_gather_rows(x, routing, dst, stream_);
  }
  void combine_rows(Tensor rows, const Routing& routing, bool weighted, Tensor base,
                    Tensor dst) override {
    run_combine_rows(rows, routing, weighted, base, dst, stream_);
  }
  void weigh_rows(const Routing& routing, Tensor dy, Tensor x, Tensor dweights) override {
    run_weigh_rows(routing, dy, x, dweights, stream_);
  }
  void spread_rows(const SpreadRows& args) override { run_spread_rows(args, stream_); }
  void sort_rows(Tensor numbers, const Routing& routing) override {
    run_sort_rows(numbers, routing, stream_);
  }
  void grouped_gemm(const GroupedGemm& args) override { run_grouped_gemm(args, stream_); }
  void jitter(Tensor x, const Dropout& noise, int64_t length, Tensor dst) override {
    run_jitter(x, noise, length, dst, stream_);
  }

  void column_sum(Tensor x, Tensor dst, bool accumulate, Tensor scratch) override {
    require_elems("column_sum: dst", dst, x.cols);
    require_scratch("column_sum", scratch, column_sum_scratch_bytes(x.rows, x.cols));
    require_gradients("column_sum", x, {dst});
    cuda::column_sum(view(x), vector(dst), accumulate, scratch.as_f32(), stream_);
  }

  void copy(Tensor src, Tensor dst) override {
    require(src.rows == dst.rows && src.cols == dst.cols && src.dtype == dst.dtype,
            "copy: {} {}x{} to {} {}x{}", dtype_name(src.dtype), src.rows, src.cols,
            dtype_name(dst.dtype), dst.rows, dst.cols);
    if (src.data == dst.data || dst.empty()) return;
    const bool flat = src.contiguous() && dst.contiguous();
    src = joined(src, flat);
    dst = joined(dst, flat);
    const auto bytes = [&](int64_t elems) {
      return static_cast<size_t>(elems * dtype_bytes(dst.dtype));
    };
    if (flat)
      check(cudaMemcpyAsync(dst.data, src.data, bytes(dst.cols), cudaMemcpyDeviceToDevice, stream_),
            "copy");
    else
      check(cudaMemcpy2DAsync(dst.data, bytes(dst.stride), src.data, bytes(src.stride),
                              bytes(dst.cols), static_cast<size_t>(dst.rows),
                              cudaMemcpyDeviceToDevice, stream_),
            "copy");
  }

  void fill(Tensor dst, float value) override {
    cuda::fill(view(joined(dst, dst.contiguous())), value, stream_);
  }

  void add(Tensor a, Tensor b, Tensor dst) override {
    require_shape("add: a", a, dst.rows, dst.cols);
    require_shape("add: b", b, dst.rows, dst.cols);
    require_type("add", dst, {a, b});
    const bool flat = a.contiguous() && b.contiguous() && dst.contiguous();
    cuda::add(view(joined(a, flat)), view(joined(b, flat)), view(joined(dst, flat)), stream_);
  }

  void scale(Tensor x, float factor, Tensor dst) override {
    require_shape("scale: x", x, dst.rows, dst.cols);
    require_type("scale", dst, {x});
    const bool flat = x.contiguous() && dst.contiguous();
    cuda::scale(view(joined(x, flat)), factor, view(joined(dst, flat)), stream_);
  }

  void soft_cap(Tensor x, float cap, Tensor dst) override {
    require_shape("soft_cap: x", x, dst.rows, dst.cols);
    require_type("soft_cap", dst, {x});
    cuda::soft_cap(view(x), cap, view(dst), stream_);
  }

  void soft_cap_backward(Tensor y, float cap, Tensor dy, Tensor dx) override {
    require_shape("soft_cap: y", y, dx.rows, dx.cols);
    require_shape("soft_cap: dy", dy, dx.rows, dx.cols);
    require_type("soft_cap", dx, {y, dy});
    cuda::soft_cap_backward(view(y), cap, view(dy), view(dx), stream_);
  }

  void sum(Tensor x, Tensor dst) override {
    x = x.flat();
    if (x.dtype == DType::f64)
      cuda::sum(x.f64(), x.cols, dst.f64(), stream_);
    else
      cuda::sum(x.f32(), x.cols, dst.f64(), stream_);
  }

  void sum_squares(std::span<const Squares> list, Tensor all, Tensor total,
                   Tensor scratch) override {
    std::vector<SquaresArgs> args;
    int64_t bytes = 0;
    for (const auto& [x, dst] : list) {
      args.push_back({vector(x), x.elems(), dst.f64()});
      bytes += sum_squares_scratch_bytes(x.elems());
    }
    require_scratch("sum_squares", scratch, bytes);
    cuda::sum_squares(args, all.f64(), all.elems(), total.f64(), static_cast<double*>(scratch.data),
                      stream_);
  }

  void clip(const Clip& args) override {
    cuda::clip({args.sums.f64(), args.sums.elems(), args.squares, args.limit, args.eps, args.scale,
                args.norm.f64(), args.control.factor.f32(), args.control.finite.i32()},
               stream_);
  }

  void adamw(const StepControl& control, std::span<const AdamWStep> list) override {
    std::vector<AdamWArgs> args;
    std::vector<AdamW8Args> args8;
    for (const auto& [hyper, stepped, moment1, moment2] : list) {
      const SteppedArgs own = stepped_args("adamw", stepped);
      require_moment("adamw: moment 1", stepped, moment1);
      require_moment("adamw: moment 2", stepped, moment2);
      require(moment1.values.dtype == moment2.values.dtype, "adamw: moments of two types");
      if (own.elems == 0) continue;
      if (moment1.values.dtype == DType::u8)
        args8.push_back({factors_of(hyper), own, codes_of(moment1), codes_of(moment2)});
      else
        args.push_back({factors_of(hyper), own, vector(moment1.values), vector(moment2.values)});
    }
    const ControlFlags flags{control.factor.f32(), control.finite.i32()};
    cuda::adamw(flags, args, stream_);
    cuda::adamw8(flags, args8, stream_);
  }

  void sgd(const StepControl& control, std::span<const SgdStep> list) override {
    std::vector<SgdArgs> args;
    for (const auto& [hyper, stepped, momentum] : list) {
      const SteppedArgs own = stepped_args("sgd", stepped);
      if (hyper.momentum != 0) require_moment("sgd: momentum", stepped, momentum);
      args.push_back(
          {{hyper.learning_rate, hyper.weight_decay, hyper.momentum, hyper.nesterov, hyper.first},
           own,
           hyper.momentum == 0 ? Vector{} : vector(momentum)});
    }
    cuda::sgd({control.factor.f32(), control.finite.i32()}, args, stream_);
  }

  void lion(const StepControl& control, std::span<const LionStep> list) override {
    std::vector<LionArgs> args;
    for (const auto& [hyper, stepped, momentum] : list) {
      const SteppedArgs own = stepped_args("lion", stepped);
      require_wide_moment("lion: momentum", stepped, momentum);
      args.push_back({{hyper.learning_rate, 1.0f - hyper.learning_rate * hyper.weight_decay,
                       hyper.beta1, 1.0f - hyper.beta1, hyper.beta2, 1.0f - hyper.beta2},
                      own,
                      vector(momentum)});
    }
    cuda::lion({control.factor.f32(), control.finite.i32()}, args, stream_);
  }

  void direction(const StepControl& control, std::span<const DirectionStep> list) override {
    std::vector<DirectionArgs> args;
    for (const DirectionStep& step : list) {
      const bool lamb = step.hyper.rule == Direction::Rule::lamb;
      const SteppedArgs own = stepped_args("direction", step.stepped);
      require_elems("direction", step.dst, own.elems);
      require_wide_moment("direction: moment 1", step.stepped, step.moment1);
      if (lamb) {
        require_wide_moment("direction: moment 2", step.stepped, step.moment2);
        require(step.moment1.dtype == step.moment2.dtype, "direction: moments of two types");
      }
      if (step.hyper.rule == Direction::Rule::lars) require_elems("direction", step.squares, 2);
      args.push_back({factors_of(step.hyper), own, step.dst.flat().f32(), vector(step.moment1),
                      lamb ? vector(step.moment2) : Vector{},
                      step.squares.empty() ? nullptr : step.squares.f64()});
    }
    cuda::direction({control.factor.f32(), control.finite.i32()}, args, stream_);
  }

  void frozen_lamb(const StepControl& control, std::span<const FrozenLambStep> list) override {
    std::vector<FrozenLambArgs> args;
    for (const FrozenLambStep& step : list) {
      const FrozenLamb& hyper = step.hyper;
      const SteppedArgs own = stepped_args("frozen_lamb", step.stepped);
      require_elems("frozen_lamb", step.dst, own.elems);
      for (const Tensor& moment : {step.moment1, step.moment2, step.fresh}) {
        require_wide_moment("frozen_lamb", step.stepped, moment);
        require(moment.dtype == step.moment1.dtype, "frozen_lamb: moments of two types");
      }
      args.push_back({{hyper.beta1, 1.0f - hyper.beta1, hyper.beta2, 1.0f - hyper.beta2, hyper.eps,
                       hyper.weight_decay, hyper.eps_inside, hyper.arrives},
                      own,
                      step.dst.flat().f32(),
                      step.plain.empty() ? nullptr : step.plain.flat().f32(),
                      vector(step.moment1),
                      vector(step.moment2),
                      vector(step.fresh),
                      step.ratios.f32(),
                      step.largest.f64()});
    }
    cuda::frozen_lamb({control.factor.f32(), control.finite.i32()}, args, stream_);
  }

  void tensor_trust(const StepControl& control, std::span<const TensorTrust> list) override {
    for (const TensorTrust& one : list) {
      require_elems("tensor_trust", one.squares, 2);
      require_elems("tensor_trust", one.ratios, kTensorRatios);
      cuda::tensor_trust({control.factor.f32(), control.finite.i32()},
                         {one.squares.f64(), one.largest.empty() ? nullptr : one.largest.f64(),
                          one.largest.elems(), one.ratios.f32(), one.dst.f64(), one.least, one.most,
                          one.beta, one.least_factor, one.most_factor, one.threshold},
                         stream_);
    }
  }

  void move(const StepControl& control, std::span<const MoveStep> list) override {
    std::vector<MoveArgs> args;
    for (const auto& [hyper, stepped, squares, ratio] : list) {
      if (!squares.empty()) require_elems("move", squares, 2);
      args.push_back({{hyper.keep, hyper.rate, hyper.least, hyper.most, hyper.elems},
                      stepped_args("move", stepped),
                      squares.empty() ? nullptr : squares.f64(),
                      ratio.empty() ? nullptr : ratio.f64()});
    }
    cuda::move({control.factor.f32(), control.finite.i32()}, args, stream_);
  }

  void factored(const StepControl& control, std::span<const Factored> list) override {
    for (const Factored& one : list) {
      require_elems("factored", one.dst, one.stepped.grads.elems());
      cuda::factored(
          {control.factor.f32(), control.finite.i32()},
          {vector(one.stepped.grads), one.stepped.grads.elems(), one.first, one.columns.elems(),
           one.rows.f32(), one.columns.f32(), one.rows.elems(), one.sum.f64(), one.eps,
           one.stepped.factor.empty() ? nullptr : one.stepped.factor.f32(), one.dst.flat().f32()},
          stream_);
    }
  }

  void factor_squares(std::span<const FactorSquares> list) override {
    for (const FactorSquares& one : list)
      cuda::factor_squares({vector(one.x), one.x.elems(), one.first, one.columns.elems(),
                            one.rows.f64(), one.columns.f64()},
                           stream_);
  }

  void blend(const StepControl& control, std::span<const Blend> list) override {
    for (const Blend& one : list) {
      require_elems("blend", one.dst, one.x.elems());
      cuda::blend({control.factor.f32(), control.finite.i32()},
                  {one.x.f64(), one.x.elems(), one.times, one.share,
                   one.factor.empty() ? nullptr : one.factor.f32(), one.dst.f32()},
                  stream_);
    }
  }

  void clip_each(const ClipEach& args) override {
    require_elems("clip_each", args.factors, args.squares.elems());
    cuda::clip_each(
        {args.squares.f64(), args.weights.empty() ? nullptr : args.weights.f64(),
         args.squares.elems(), args.limit, args.least, args.eps, args.scale, args.factors.f32()},
        stream_);
  }

  void clamp(std::span<const Clamp> list, float limit) override {
    std::vector<ClampArgs> args;
    for (const Clamp& one : list) args.push_back({vector(one.x), one.x.elems(), one.dst.f64()});
    cuda::clamp(args, limit, stream_);
  }

  void normalise(Tensor x, Tensor squares, float eps, Tensor dst) override {
    require_elems("normalise", dst, x.elems());
    cuda::normalise(x.flat().f32(), squares.f64(), eps, x.elems(), dst.flat().f32(), stream_);
  }

 private:
  // Opened when attention in 16 bits is first wanted; null where there is none.
  LibraryAttention* library_attention(const Tensor& q) {
    if (q.dtype == DType::f32) return nullptr;
    if (!std::exchange(library_looked_for_, true)) {
      std::string problem;
      library_ = open_library_attention(problem);
      if (!library_)
        say("onefold: warning: attention in 16 bits runs on slower kernels: {}\n", problem);
    }
    return library_.get();
  }

  const cudaStream_t stream_;
  const std::unique_ptr<KernelScratch> scratch_;
  Products products_;
  std::unique_ptr<LibraryAttention> library_;
  bool library_looked_for_ = false;
};

}  // namespace

std::unique_ptr<Kernels> make_kernels(cudaStream_t stream) {
  return std::make_unique<CudaKernels>(stream);
}

}  // namespace onefold::cuda
