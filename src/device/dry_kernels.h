// The dry device's kernels: no memory, no arithmetic. They count the floating-point operations of
// matrix products and attention; scratch sizes are those of the device they stand in for.
#pragma once

#include <memory>

#include "kernels/kernels.h"

namespace onefold {

class DryKernels final : public Kernels {
 public:
  explicit DryKernels(std::unique_ptr<Kernels> like) : like_(std::move(like)) {}

  double flops() const { return flops_; }

  void gemm(const Gemm& g) override {
    flops_ += 2.0 * static_cast<double>(g.dst.elems()) *
              static_cast<double>(g.a_transposed ? g.a.rows : g.a.cols);
  }
  int64_t gemm_scratch(const Gemm& g) const override { return like_->gemm_scratch(g); }
  void norm_forward(Norm, Tensor, int64_t, Tensor, Tensor, float, Tensor) override {}
  void norm_backward(Norm, Tensor, int64_t, Tensor, float, Tensor, Tensor, bool, Tensor, Tensor,
                     bool, Tensor) override {}
  int64_t norm_backward_scratch(int64_t rows, int64_t cols, int64_t groups) const override {
    return like_->norm_backward_scratch(rows, cols, groups);
  }
  void activation_forward(Activation, bool, Tensor, Tensor) override {}
  void activation_backward(Activation, bool, Tensor, Tensor, Tensor, Tensor) override {}
  void rope(Tensor, int64_t, Tensor, int64_t, int64_t, bool) override {}
  void attention_forward(const AttentionShape& s, Tensor, Tensor, Tensor, Tensor, Tensor,
                         const Dropout&, Tensor) override {
    flops_ += 2 * product_flops(s);
  }
  int64_t attention_forward_scratch(const AttentionShape& s) const override {
    return like_->attention_forward_scratch(s);
  }
  void attention_backward(const AttentionShape& s, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                          Tensor, Tensor, Tensor, const Dropout&, Tensor) override {
    flops_ += 5 * product_flops(s);
  }
  int64_t attention_backward_scratch(const AttentionShape& s) const override {
    return like_->attention_backward_scratch(s);
  }
  void dropout(Tensor, const Dropout&, int64_t, Tensor, Tensor) override {}
  void embedding_forward(Tensor, Tensor, Tensor, int64_t, int64_t, Tensor) override {}
  void embedding_backward(Tensor, Tensor, int64_t, Tensor, bool, Tensor, bool, Tensor) override {}
  int64_t embedding_backward_scratch(int64_t rows, int64_t vocabulary) const override {
    return like_->embedding_backward_scratch(rows, vocabulary);
  }
  void cross_entropy(Tensor, Tensor, float, Tensor) override {}
  void column_sum(Tensor, Tensor, bool, Tensor) override {}
  int64_t column_sum_scratch(int64_t rows, int64_t cols) const override {
    return like_->column_sum_scratch(rows, cols);
  }
  void copy(Tensor, Tensor) override {}
  void fill(Tensor, float) override {}
  void add(Tensor, Tensor, Tensor) override {}
  double sum_squares(Tensor, Tensor) override { return 0; }
  int64_t sum_squares_scratch(int64_t elems) const override {
    return like_->sum_squares_scratch(elems);
  }
  void adamw(const AdamW&, Tensor, Tensor, Tensor, Tensor) override {}
  void sgd(const Sgd&, Tensor, Tensor, Tensor) override {}

 private:
  // One of attention's matrix products, over the causal half.
  static double product_flops(const AttentionShape& s) {
    return static_cast<double>(s.batch * s.heads * s.head_dim) *
           static_cast<double>(s.query_length) *
           static_cast<double>(2 * s.key_length - s.query_length);
  }

  std::unique_ptr<Kernels> like_;
  double flops_ = 0;
};

}  // namespace onefold
