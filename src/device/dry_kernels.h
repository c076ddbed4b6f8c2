// The dry device's kernels: no memory, no arithmetic. They count the operations of matrix products
// and attention and the bytes that every kernel reads and writes; scratch sizes are those of the
// device they stand in for.
#pragma once

#include <initializer_list>
#include <memory>

#include "kernels/kernels.h"

namespace onefold {

struct Work {
  double flops = 0, bytes = 0;
  double half_flops = 0;  // of flops, those of 16-bit operands
};

class DryKernels final : public Kernels {
 public:
  explicit DryKernels(std::shared_ptr<const KernelScratch> like) : like_(std::move(like)) {}

  const Work& work() const { return work_; }

  int64_t gemm_scratch_bytes(const Gemm& g) const override { return like_->gemm_scratch_bytes(g); }
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
  int64_t logits_bytes() const override { return like_->logits_bytes(); }

  void gemm(const Gemm& g) override {
    multiply(2.0 * static_cast<double>(g.dst.elems()) *
                 static_cast<double>(g.a_transposed ? g.a.rows : g.a.cols),
             g.a);
    touch({g.a, g.b, g.dst, g.residual});
    if (g.accumulate) touch({g.dst});
  }
  void norm_forward(Norm, Tensor x, int64_t, Tensor, Tensor, float, Tensor dst) override {
    touch({x, dst});
  }
  void norm_backward(Norm, Tensor x, int64_t, Tensor, float, Tensor dy, Tensor dx,
                     bool accumulate_dx, Tensor, Tensor, bool, Tensor) override {
    touch({x, dy, dx});
    if (accumulate_dx) touch({dx});
  }
  void activation_forward(Activation, bool, Tensor x, Tensor dst) override { touch({x, dst}); }
  void activation_backward(Activation, bool, Tensor x, Tensor dy, Tensor dx, Tensor y) override {
    touch({x, dy, dx, y});
  }
  void rope(Tensor x, int64_t, Tensor, const RowPositions&, bool) override { touch({x, x}); }
  void attention_forward(const AttentionShape& s, Tensor q, Tensor k, Tensor v, Tensor out, Tensor,
                         const Dropout&, Tensor) override {
    multiply(2 * product_flops(s), q);
    touch({q, k, v, out});
  }
  void attention_backward(const AttentionShape& s, Tensor q, Tensor k, Tensor v, Tensor out,
                          Tensor dout, Tensor, Tensor dq, Tensor dk, Tensor dv, const Dropout&,
                          Tensor) override {
    multiply(5 * product_flops(s), q);
    touch({q, k, v, out, dout, dq, dk, dv});
  }
  void dropout(Tensor x, const Dropout&, int64_t, Tensor residual, Tensor dst) override {
    touch({x, residual, dst});
  }
  void embedding_forward(Tensor, Tensor, Tensor, const RowPositions&, Tensor dst) override {
    touch({dst, dst});
  }
  void embedding_backward(Tensor, Tensor dx, const RowPositions&, Tensor dtable, bool, Tensor, bool,
                          Tensor) override {
    touch({dx, dtable});
  }
  void cross_entropy(Tensor logits, Tensor, Tensor, Tensor) override { touch({logits, logits}); }
  void column_sum(Tensor x, Tensor, bool, Tensor) override { touch({x}); }
  void copy(Tensor src, Tensor dst) override { touch({src, dst}); }
  void fill(Tensor dst, float) override { touch({dst}); }
  void add(Tensor a, Tensor b, Tensor dst) override { touch({a, b, dst}); }
  void scale(Tensor x, float, Tensor dst) override { touch({x, dst}); }
  void sum(Tensor x, Tensor) override { touch({x}); }
  void sum_squares(std::span<const Squares> list, Tensor all, Tensor, Tensor) override {
    for (const Squares& one : list) touch({one.x});
    touch({all});
  }
  void clip(const Clip& args) override { touch({args.sums}); }
  void adamw(const StepControl&, std::span<const AdamWStep> list) override {
    for (const auto& [hyper, stepped, moment1, moment2] : list) {
      touch(stepped);
      touch({moment1.values, moment1.values, moment2.values, moment2.values});
    }
  }
  void sgd(const StepControl&, std::span<const SgdStep> list) override {
    for (const auto& [hyper, stepped, momentum] : list) {
      touch(stepped);
      touch({momentum, momentum});
    }
  }

 private:
  void multiply(double flops, const Tensor& operand) {
    work_.flops += flops;
    if (dtype_bytes(operand.dtype) == 2) work_.half_flops += flops;
  }
  void touch(const Stepped& s) {
    touch({s.grads, s.params, s.master, s.master.empty() ? s.params : s.master});
  }
  void touch(std::initializer_list<Tensor> tensors) {
    for (const Tensor& tensor : tensors)
      work_.bytes += static_cast<double>(tensor.elems() * dtype_bytes(tensor.dtype));
  }

  // One of attention's matrix products, over the causal half.
  static double product_flops(const AttentionShape& s) {
    return static_cast<double>(s.batch * s.heads * s.head_dim) *
           static_cast<double>(s.query_length) *
           static_cast<double>(2 * s.key_length - s.query_length);
  }

  std::shared_ptr<const KernelScratch> like_;
  Work work_;
};

}  // namespace onefold
