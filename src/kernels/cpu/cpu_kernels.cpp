#include "kernels/cpu/cpu_kernels.h"

#include "kernels/cpu/bf16_unit.h"

namespace onefold {
namespace {

// The scratch of the CPU's kernels, for the kernels themselves and for plans without them.
template <class Base>
class CpuScratch : public Base {
 public:
  CpuScratch(int threads, bool multiplies_bf16)
      : threads_(threads), multiplies_bf16_(multiplies_bf16) {}

  int64_t gemm_scratch_bytes(const Gemm& args) const override {
    return cpu::gemm_scratch_bytes(args, threads_, multiplies_bf16_);
  }
  int64_t row_unit(int64_t rows, int64_t cols) const override {
    return cpu::gemm_row_unit(rows, cols);
  }
  int64_t norm_backward_scratch_bytes(int64_t rows, int64_t cols, int64_t groups) const override {
    return cpu::norm_backward_scratch_bytes(rows, cols, groups);
  }
  int64_t attention_forward_scratch_bytes(const AttentionShape& shape) const override {
    return cpu::attention_forward_scratch_bytes(shape, threads_, multiplies_bf16_);
  }
  int64_t attention_backward_scratch_bytes(const AttentionShape& shape) const override {
    return cpu::attention_backward_scratch_bytes(shape, threads_, multiplies_bf16_);
  }
  int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary) const override {
    return cpu::embedding_backward_scratch_bytes(rows, vocabulary);
  }
  int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols) const override {
    return cpu::column_sum_scratch_bytes(rows, cols);
  }
  int64_t sum_squares_scratch_bytes(int64_t elems) const override {
    return cpu::sum_squares_scratch_bytes(elems);
  }
  int64_t grouped_gemm_scratch_bytes(const GroupedGemm& args) const override {
    return cpu::grouped_gemm_scratch_bytes(args, threads_);
  }
  int64_t route_backward_scratch_bytes(int64_t tokens, int64_t experts) const override {
    return cpu::route_backward_scratch_bytes(tokens, experts);
  }
  int64_t logits_bytes() const override { return kLogitsBytes; }

 private:
  const int threads_;
  const bool multiplies_bf16_;
};

// Binds the free functions to the interface; nothing else.
class CpuKernels final : public CpuScratch<Kernels> {
 public:
  explicit CpuKernels(ThreadPool& pool)
      : CpuScratch(pool.threads(), cpu_multiplies_bf16()), pool_(pool) {}

  void gemm(const Gemm& args) override { cpu::gemm(pool_, args); }
  void norm_forward(Norm norm, Tensor x, int64_t groups, Tensor weight, Tensor bias, float eps,
                    Tensor dst) override {
    cpu::norm_forward(pool_, norm, x, groups, weight, bias, eps, dst);
  }
  void norm_backward(Norm norm, Tensor x, int64_t groups, Tensor weight, float eps, Tensor dy,
                     Tensor dx, bool accumulate_dx, Tensor dweight, Tensor dbias, Tensor dbefore,
                     bool accumulate_weights, Tensor scratch) override {
    if (!dbefore.empty()) {
      require(accumulate_dx && groups == 1, "norm: sums of a dx of {} groups that is {}", groups,
              accumulate_dx ? "added to" : "overwritten");
      cpu::column_sum(pool_, dx, dbefore, accumulate_weights, scratch);
    }
    cpu::norm_backward(pool_, norm, x, groups, weight, eps, dy, dx, accumulate_dx, dweight, dbias,
                       accumulate_weights, scratch);
  }
  void activation_forward(Activation act, bool gated, Tensor x, Tensor dst) override {
    cpu::activation_forward(pool_, act, gated, x, dst);
  }
  void activation_backward(Activation act, bool gated, Tensor x, Tensor dy, Tensor dx, Tensor y,
                           const BiasGradient& dbias) override {
    cpu::activation_backward(pool_, act, gated, x, dy, dx, y);
    if (!dbias.dst.empty()) cpu::column_sum(pool_, dx, dbias.dst, dbias.accumulate, dbias.scratch);
  }
  void merge_attention(Tensor out, Tensor lse, Tensor more, Tensor more_lse) override {
    cpu::merge_attention(pool_, out, lse, more, more_lse);
  }
  void rope(Tensor x, int64_t heads, Tensor table, const RowPositions& positions,
            bool inverse) override {
    cpu::rope(pool_, x, heads, table, positions, inverse);
  }
  void attention_forward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v, Tensor out,
                         Tensor lse, const Dropout& dropout, Tensor scratch) override {
    cpu::attention_forward(pool_, shape, q, k, v, out, lse, dropout, scratch);
  }
  void attention_backward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v, Tensor out,
                          Tensor dout, Tensor lse, Tensor dq, Tensor dk, Tensor dv,
                          const Dropout& dropout, Tensor scratch) override {
    cpu::attention_backward(pool_, shape, q, k, v, out, dout, lse, dq, dk, dv, dropout, scratch);
  }
  void dropout(Tensor x, const Dropout& dropout, int64_t length, Tensor residual,
               Tensor dst) override {
    cpu::dropout(pool_, x, dropout, length, residual, dst);
  }
  void embedding_forward(Tensor tokens, Tensor table, Tensor position_table,
                         const RowPositions& positions, Tensor dst) override {
    cpu::embedding_forward(pool_, tokens, table, position_table, positions, dst);
  }
  void embedding_backward(Tensor tokens, Tensor dx, const RowPositions& positions, Tensor dtable,
                          bool accumulate_table, Tensor dpositions, bool accumulate_positions,
                          Tensor scratch) override {
    cpu::embedding_backward(pool_, tokens, dx, positions, dtable, accumulate_table, dpositions,
                            accumulate_positions, scratch);
  }
  void share_softmax(Tensor logits, Tensor targets, Tensor stats) override {
    cpu::share_softmax(pool_, logits, targets, stats);
  }
  void share_cross_entropy(Tensor logits, Tensor targets, Tensor stats, Tensor gradient_scale,
                           Tensor losses) override {
    cpu::share_cross_entropy(pool_, logits, targets, stats, gradient_scale, losses);
  }
  void cross_entropy(Tensor logits, Tensor targets, Tensor gradient_scale, Tensor losses) override {
    cpu::cross_entropy(pool_, logits, targets, gradient_scale, losses);
  }
  void route(const Route& args) override { cpu::route(pool_, args); }
  void route_backward(const RouteBackward& args) override { cpu::route_backward(pool_, args); }
  void gather_rows(Tensor x, const Routing& routing, Tensor dst) override {
    cpu::gather_rows(pool_, x, routing, dst);
  }
  void combine_rows(Tensor rows, const Routing& routing, bool weighted, Tensor base,
                    Tensor dst) override {
    cpu::combine_rows(pool_, rows, routing, weighted, base, dst);
  }
  void weigh_rows(const Routing& routing, Tensor dy, Tensor x, Tensor dweights) override {
    cpu::weigh_rows(pool_, routing, dy, x, dweights);
  }
  void spread_rows(const SpreadRows& args) override { cpu::spread_rows(args); }
  void sort_rows(Tensor numbers, const Routing& routing) override {
    cpu::sort_rows(numbers, routing);
  }
  void grouped_gemm(const GroupedGemm& args) override { cpu::grouped_gemm(pool_, args); }
  void jitter(Tensor x, const Dropout& noise, int64_t length, Tensor dst) override {
    cpu::jitter(pool_, x, noise, length, dst);
  }
  void soft_cap(Tensor x, float cap, Tensor dst) override { cpu::soft_cap(pool_, x, cap, dst); }
  void soft_cap_backward(Tensor y, float cap, Tensor dy, Tensor dx) override {
    cpu::soft_cap_backward(pool_, y, cap, dy, dx);
  }
  void column_sum(Tensor x, Tensor dst, bool accumulate, Tensor scratch) override {
    cpu::column_sum(pool_, x, dst, accumulate, scratch);
  }
  void copy(Tensor src, Tensor dst) override { cpu::copy(pool_, src, dst); }
  void fill(Tensor dst, float value) override { cpu::fill(pool_, dst, value); }
  void add(Tensor a, Tensor b, Tensor dst) override { cpu::add(pool_, a, b, dst); }
  void scale(Tensor x, float factor, Tensor dst) override { cpu::scale(pool_, x, factor, dst); }
  void sum(Tensor x, Tensor dst) override { cpu::sum(x, dst); }
  void sum_squares(std::span<const Squares> list, Tensor all, Tensor total,
                   Tensor scratch) override {
    for (const auto& [x, dst] : list) cpu::sum_squares(pool_, x, dst, scratch);
    cpu::sum(all, total);
  }
  void clip(const Clip& args) override { cpu::clip(args); }
  void clip_each(const ClipEach& args) override { cpu::clip_each(args); }
  void clamp(std::span<const Clamp> list, float limit) override {
    for (const Clamp& one : list) cpu::clamp(pool_, one, limit);
  }
  void normalise(Tensor x, Tensor squares, float eps, Tensor dst) override {
    cpu::normalise(pool_, x, squares, eps, dst);
  }
  void adamw(const StepControl& control, std::span<const AdamWStep> list) override {
    for (const auto& [hyper, stepped, moment1, moment2] : list)
      cpu::adamw(pool_, hyper, control, stepped, moment1, moment2);
  }
  void sgd(const StepControl& control, std::span<const SgdStep> list) override {
    for (const auto& [hyper, stepped, momentum] : list)
      cpu::sgd(pool_, hyper, control, stepped, momentum);
  }
  void lion(const StepControl& control, std::span<const LionStep> list) override {
    for (const LionStep& step : list) cpu::lion(pool_, control, step);
  }
  void direction(const StepControl& control, std::span<const DirectionStep> list) override {
    for (const DirectionStep& step : list) cpu::direction(pool_, control, step);
  }
  void frozen_lamb(const StepControl& control, std::span<const FrozenLambStep> list) override {
    for (const FrozenLambStep& step : list) cpu::frozen_lamb(pool_, control, step);
  }
  void tensor_trust(const StepControl& control, std::span<const TensorTrust> list) override {
    for (const TensorTrust& one : list) cpu::tensor_trust(control, one);
  }
  void move(const StepControl& control, std::span<const MoveStep> list) override {
    for (const MoveStep& step : list) cpu::move(pool_, control, step);
  }
  void factored(const StepControl& control, std::span<const Factored> list) override {
    for (const Factored& one : list) cpu::factored(pool_, control, one);
  }
  void factor_squares(std::span<const FactorSquares> list) override {
    for (const FactorSquares& one : list) cpu::factor_squares(pool_, one);
  }
  void blend(const StepControl& control, std::span<const Blend> list) override {
    for (const Blend& one : list) cpu::blend(control, one);
  }

 private:
  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<Kernels> make_cpu_kernels(ThreadPool& pool) {
  return std::make_unique<CpuKernels>(pool);
}

std::unique_ptr<KernelScratch> make_cpu_scratch(int threads, bool multiplies_bf16) {
  return std::make_unique<CpuScratch<KernelScratch>>(threads, multiplies_bf16);
}

bool cpu_multiplies_bf16() { return cpu::has_bf16_unit(); }

}  // namespace onefold
