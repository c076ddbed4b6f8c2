// The dry device's kernels: no memory, no arithmetic. They count the operations of matrix products
// and attention and the bytes that every kernel reads and writes; scratch sizes are those of the
// device they stand in for.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>

#include "device/hardware.h"
#include "kernels/kernels.h"

namespace onefold {

struct Work {
  double flops = 0, bytes = 0;
  double half_flops = 0;    // of flops, those of 16-bit operands
  double packed_bytes = 0;  // of bytes, operands that a processor packs for products
  // By the rates of a hardware description, 0 without one; and of that, in kernels that their
  // products bound.
  double seconds = 0, product_seconds = 0;
};

class DryKernels final : public Kernels {
 public:
  // `hardware`: what kernels take their time by. It stays where it is.
  explicit DryKernels(std::shared_ptr<const KernelScratch> like, const Hardware* hardware = nullptr)
      : like_(std::move(like)), hardware_(hardware) {}

  const Work& work() const { return work_; }

  int64_t gemm_scratch_bytes(const Gemm& g) const override { return like_->gemm_scratch_bytes(g); }
  int64_t row_unit(int64_t rows, int64_t cols) const override {
    return like_->row_unit(rows, cols);
  }
  int64_t norm_backward_scratch_bytes(int64_t rows, int64_t cols, int64_t groups) const override {
    return like_->norm_backward_scratch_bytes(rows, cols, groups);
  }
  int64_t attention_forward_scratch_bytes(const AttentionShape& s) const override {
    return like_->attention_forward_scratch_bytes(s);
  }
  int64_t attention_backward_scratch_bytes(const AttentionShape& s) const override {
    return like_->attention_backward_scratch_bytes(s);
  }
  int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary) const override {
    return like_->embedding_backward_scratch_bytes(rows, vocabulary);
  }
  int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols) const override {
    return like_->column_sum_scratch_bytes(rows, cols);
  }
  int64_t sum_squares_scratch_bytes(int64_t elems) const override {
    return like_->sum_squares_scratch_bytes(elems);
  }
  int64_t grouped_gemm_scratch_bytes(const GroupedGemm& g) const override {
    return like_->grouped_gemm_scratch_bytes(g);
  }
  int64_t route_backward_scratch_bytes(int64_t tokens, int64_t experts) const override {
    return like_->route_backward_scratch_bytes(tokens, experts);
  }
  int64_t logits_bytes() const override { return like_->logits_bytes(); }

  void gemm(const Gemm& g) override {
    const double flops = 2.0 * static_cast<double>(g.dst.elems()) *
                         static_cast<double>(g.a_transposed ? g.a.rows : g.a.cols);
    book({.flops = flops,
          .kind = Kind::product,
          .operand = g.a,
          .packed = packed_bytes(g.a_transposed, g.a, g.b)},
         {g.a, g.b, g.dst, g.residual, g.accumulate ? g.dst : Tensor{}});
  }
  void norm_forward(Norm, Tensor x, int64_t, Tensor, Tensor, float, Tensor dst) override {
    book({}, {x, dst});
  }
  void norm_backward(Norm, Tensor x, int64_t, Tensor, float, Tensor dy, Tensor dx,
                     bool accumulate_dx, Tensor, Tensor, Tensor, bool, Tensor) override {
    book({}, {x, dy, dx, accumulate_dx ? dx : Tensor{}});
  }
  void activation_forward(Activation, bool, Tensor x, Tensor dst) override {
    book({.functions = dst.elems()}, {x, dst});
  }
  void activation_backward(Activation, bool, Tensor x, Tensor dy, Tensor dx, Tensor y,
                           const BiasGradient&) override {
    book({.functions = dy.elems()}, {x, dy, dx, y});
  }
  void rope(Tensor x, int64_t, Tensor, const RowPositions&, bool) override { book({}, {x, x}); }
  void attention_forward(const AttentionShape& s, Tensor q, Tensor k, Tensor v, Tensor out, Tensor,
                         const Dropout&, Tensor) override {
    book({.flops = 2 * product_flops(s), .kind = Kind::attention, .operand = q}, {q, k, v, out});
  }
  void attention_backward(const AttentionShape& s, Tensor q, Tensor k, Tensor v, Tensor out,
                          Tensor dout, Tensor, Tensor dq, Tensor dk, Tensor dv, const Dropout&,
                          Tensor) override {
    book({.flops = 5 * product_flops(s), .kind = Kind::attention, .operand = q},
         {q, k, v, out, dout, dq, dk, dv});
  }
  void merge_attention(Tensor out, Tensor, Tensor more, Tensor) override {
    book({}, {out, out, more});
  }
  void dropout(Tensor x, const Dropout&, int64_t, Tensor residual, Tensor dst) override {
    book({}, {x, residual, dst});
  }
  void embedding_forward(Tensor, Tensor, Tensor, const RowPositions&, Tensor dst) override {
    book({}, {dst, dst});
  }
  void embedding_backward(Tensor, Tensor dx, const RowPositions&, Tensor dtable, bool, Tensor, bool,
                          Tensor) override {
    book({}, {dx, dtable});
  }
  void cross_entropy(Tensor logits, Tensor, Tensor gradient_scale, Tensor) override {
    const bool backward = !gradient_scale.empty();
    book({.functions = logits.elems() * (backward ? 2 : 1)},
         {logits, backward ? logits : Tensor{}, backward ? logits : Tensor{}});
  }
  void soft_cap(Tensor x, float, Tensor dst) override {
    book({.functions = dst.elems()}, {x, dst});
  }
  void soft_cap_backward(Tensor y, float, Tensor dy, Tensor dx) override { book({}, {y, dy, dx}); }
  void share_softmax(Tensor logits, Tensor, Tensor stats) override {
    book({.functions = logits.elems()}, {logits, stats});
  }
  void share_cross_entropy(Tensor logits, Tensor, Tensor stats, Tensor gradient_scale,
                           Tensor) override {
    const bool backward = !gradient_scale.empty();
    book({.functions = backward ? logits.elems() : 0},
         {stats, backward ? logits : Tensor{}, backward ? logits : Tensor{}});
  }
  void route(const Route& r) override {
    book({.functions = r.logits.elems()},
         {r.logits, r.routing.experts, r.routing.weights, r.routing.places, r.routing.sources});
  }
  void route_backward(const RouteBackward& r) override {
    book({.functions = r.dlogits.elems()}, {r.forward.logits, r.dlogits});
  }
  void gather_rows(Tensor, const Routing&, Tensor dst) override { book({}, {dst, dst}); }
  void combine_rows(Tensor rows, const Routing&, bool, Tensor base, Tensor dst) override {
    book({}, {rows, base, dst});
  }
  void weigh_rows(const Routing&, Tensor dy, Tensor x, Tensor) override {
    book({}, {dy, dy, x, x});
  }
  void spread_rows(const SpreadRows& s) override {
    book({}, {s.from.sources, s.places, s.sources, s.numbers});
  }
  void sort_rows(Tensor numbers, const Routing& routing) override {
    book({}, {numbers, routing.experts, routing.places, routing.sources});
  }
  // However rows are divided, and as if none was dropped.
  void grouped_gemm(const GroupedGemm& g) override {
    const double terms = static_cast<double>(g.a_transposed ? g.b.cols : g.dst.cols);
    book({.flops = 2.0 * static_cast<double>(g.a.elems()) * terms,
          .kind = Kind::product,
          .operand = g.a,
          .packed = packed_bytes(g.a_transposed, g.a, g.b)},
         {g.a, g.b, g.dst, g.accumulate ? g.dst : Tensor{}});
  }
  void jitter(Tensor x, const Dropout&, int64_t, Tensor dst) override { book({}, {x, dst}); }
  void column_sum(Tensor x, Tensor, bool, Tensor) override { book({}, {x}); }
  void copy(Tensor src, Tensor dst) override { book({}, {src, dst}); }
  void fill(Tensor dst, float) override { book({}, {dst}); }
  void add(Tensor a, Tensor b, Tensor dst) override { book({}, {a, b, dst}); }
  void scale(Tensor x, float, Tensor dst) override { book({}, {x, dst}); }
  void sum(Tensor x, Tensor) override { book({}, {x}); }
  void sum_squares(std::span<const Squares> list, Tensor all, Tensor, Tensor) override {
    std::vector<Tensor> tensors{all};
    for (const Squares& one : list) tensors.push_back(one.x);
    book({}, tensors);
  }
  void clip(const Clip& args) override { book({}, {args.sums}); }
  void clip_each(const ClipEach& args) override { book({}, {args.squares, args.weights}); }
  void clamp(std::span<const Clamp> list, float) override {
    std::vector<Tensor> tensors;
    for (const Clamp& one : list) tensors.insert(tensors.end(), {one.x, one.x});
    book({}, tensors);
  }
  void normalise(Tensor x, Tensor, float, Tensor dst) override { book({}, {x, dst}); }
  void adamw(const StepControl&, std::span<const AdamWStep> list) override {
    std::vector<Tensor> tensors;
    for (const auto& [hyper, stepped, m, v] : list) {
      add_stepped(stepped, tensors);
      tensors.insert(tensors.end(), {m.values, m.values, v.values, v.values});
    }
    book({}, tensors);
  }
  void sgd(const StepControl&, std::span<const SgdStep> list) override {
    std::vector<Tensor> tensors;
    for (const auto& [hyper, stepped, momentum] : list) {
      add_stepped(stepped, tensors);
      tensors.insert(tensors.end(), {momentum, momentum});
    }
    book({}, tensors);
  }
  void lion(const StepControl&, std::span<const LionStep> list) override {
    std::vector<Tensor> tensors;
    for (const LionStep& one : list) {
      add_stepped(one.stepped, tensors);
      tensors.insert(tensors.end(), {one.momentum, one.momentum});
    }
    book({}, tensors);
  }
  void direction(const StepControl&, std::span<const DirectionStep> list) override {
    std::vector<Tensor> tensors;
    for (const DirectionStep& one : list) {
      const Stepped& s = one.stepped;
      tensors.insert(tensors.end(), {s.grads, s.master.empty() ? s.params : s.master, one.moment1,
                                     one.moment1, one.moment2, one.moment2, one.dst});
    }
    book({}, tensors);
  }
  void frozen_lamb(const StepControl&, std::span<const FrozenLambStep> list) override {
    std::vector<Tensor> tensors;
    for (const FrozenLambStep& one : list) {
      const Stepped& s = one.stepped;
      tensors.insert(tensors.end(),
                     {s.grads, s.master.empty() ? s.params : s.master, one.moment1, one.moment1,
                      one.moment2, one.fresh, one.fresh, one.plain, one.dst});
    }
    book({}, tensors);
  }
  void tensor_trust(const StepControl&, std::span<const TensorTrust> list) override {
    std::vector<Tensor> tensors;
    for (const TensorTrust& one : list)
      tensors.insert(tensors.end(), {one.squares, one.largest, one.ratios, one.ratios, one.dst});
    book({}, tensors);
  }
  void move(const StepControl&, std::span<const MoveStep> list) override {
    std::vector<Tensor> tensors;
    for (const MoveStep& one : list) add_stepped(one.stepped, tensors);
    book({}, tensors);
  }
  void factored(const StepControl&, std::span<const Factored> list) override {
    std::vector<Tensor> tensors;
    for (const Factored& one : list) tensors.insert(tensors.end(), {one.stepped.grads, one.dst});
    book({}, tensors);
  }
  void factor_squares(std::span<const FactorSquares> list) override {
    std::vector<Tensor> tensors;
    for (const FactorSquares& one : list) tensors.insert(tensors.end(), {one.x, one.x});
    book({}, tensors);
  }
  void blend(const StepControl&, std::span<const Blend> list) override {
    std::vector<Tensor> tensors;
    for (const Blend& one : list) tensors.insert(tensors.end(), {one.x, one.dst, one.dst});
    book({}, tensors);
  }

 private:
  enum class Kind : uint8_t { product, attention };
  // What a kernel computes.
  struct Arithmetic {
    double flops = 0;
    Kind kind = Kind::product;
    Tensor operand = {};
    double packed = 0;      // bytes of operands that are packed for a product
    int64_t functions = 0;  // elements that an exponential is taken of
  };

  // One kernel: what it computes, and what it reads and writes. It takes the longest of the three
  // times, and what it takes to begin one.
  void book(const Arithmetic& arithmetic, std::initializer_list<Tensor> tensors) {
    book(arithmetic, std::span<const Tensor>(tensors.begin(), tensors.size()));
  }
  void book(const Arithmetic& arithmetic, std::span<const Tensor> tensors) {
    double bytes = 0;
    for (const Tensor& tensor : tensors)
      bytes += static_cast<double>(tensor.elems() * dtype_bytes(tensor.dtype));
    const bool half = arithmetic.flops > 0 && dtype_bytes(arithmetic.operand.dtype) == 2;
    work_.flops += arithmetic.flops;
    work_.bytes += bytes;
    work_.packed_bytes += arithmetic.packed;
    if (half) work_.half_flops += arithmetic.flops;
    if (!hardware_) return;
    const Hardware& h = *hardware_;
    double seconds = bytes / memory_rate(bytes);
    if (arithmetic.flops > 0) {
      double products = arithmetic.flops / product_rate(arithmetic.kind, half);
      if (half && arithmetic.kind == Kind::product) {
        products += h.half_product_latency_us * 1e-6;
        if (h.half_operand_gb_per_s > 0)
          products += arithmetic.packed / (h.half_operand_gb_per_s * 1e9) +
                      (bytes - arithmetic.packed) / memory_rate(bytes);
      }
      if (products >= seconds) work_.product_seconds += products;
      seconds = std::max(seconds, products);
    }
    if (h.function_gelems_per_s > 0)
      seconds = std::max(
          seconds, static_cast<double>(arithmetic.functions) / (h.function_gelems_per_s * 1e9));
    work_.seconds += h.kernel_latency_us * 1e-6 + seconds;
  }

  static double packed_bytes(bool a_transposed, const Tensor& a, const Tensor& b) {
    const int64_t elems = b.elems() + (a_transposed ? a.elems() : 0);
    return static_cast<double>(elems * dtype_bytes(b.dtype));
  }

  static void add_stepped(const Stepped& s, std::vector<Tensor>& tensors) {
    tensors.insert(tensors.end(),
                   {s.grads, s.params, s.master, s.master.empty() ? s.params : s.master});
  }

  // Bytes a second.
  double memory_rate(double bytes) const {
    const bool cached =
        hardware_->cache_gb_per_s > 0 && bytes <= static_cast<double>(hardware_->cache_bytes);
    return 1e9 * (cached ? hardware_->cache_gb_per_s : hardware_->memory_gb_per_s);
  }
  // Operations a second.
  double product_rate(Kind kind, bool half) const {
    const Hardware& h = *hardware_;
    const double gflops =
        half && h.half_product_gflops > 0 ? h.half_product_gflops : h.product_gflops;
    const double attention =
        half && h.half_attention_share > 0 ? h.half_attention_share : h.attention_share;
    const double products =
        half && h.half_product_share > 0 ? h.half_product_share : h.product_share;
    return 1e9 * gflops * (kind == Kind::attention ? attention : products);
  }

  // One of attention's matrix products, over the causal half and within the window.
  static double product_flops(const AttentionShape& s) {
    const auto queries = static_cast<double>(s.query_length);
    double twice_the_keys =
        queries * static_cast<double>(2 * s.key_length - (s.causal ? s.query_length : 0));
    if (const int64_t beyond = s.key_length - s.window; s.window > 0 && beyond > 0) {
      // What the last queries would see beyond it: the very last `beyond` keys, others one less.
      const auto cut = static_cast<double>(std::min(beyond, s.query_length));
      twice_the_keys -= cut * (2 * static_cast<double>(beyond) - cut);
    }
    return static_cast<double>(s.batch * s.heads * s.head_dim) * twice_the_keys;
  }

  std::shared_ptr<const KernelScratch> like_;
  const Hardware* const hardware_;
  Work work_;
};

}  // namespace onefold
