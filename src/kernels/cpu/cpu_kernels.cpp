#include "kernels/cpu/cpu_kernels.h"

namespace onefold {
namespace {

// Binds the free functions to the interface; nothing else.
class CpuKernels final : public Kernels {
 public:
  explicit CpuKernels(ThreadPool& pool) : pool_(pool) {}

  void gemm(const Gemm& args) override { cpu::gemm(pool_, args); }
  int64_t gemm_scratch(const Gemm&) const override { return 0; }
  void norm_forward(Norm norm, Tensor x, int64_t groups, Tensor weight, Tensor bias, float eps,
                    Tensor dst) override {
    cpu::norm_forward(pool_, norm, x, groups, weight, bias, eps, dst);
  }
  void norm_backward(Norm norm, Tensor x, int64_t groups, Tensor weight, float eps, Tensor dy,
                     Tensor dx, bool accumulate_dx, Tensor dweight, Tensor dbias,
                     bool accumulate_weights, Tensor scratch) override {
    cpu::norm_backward(pool_, norm, x, groups, weight, eps, dy, dx, accumulate_dx, dweight, dbias,
                       accumulate_weights, scratch);
  }
  int64_t norm_backward_scratch(int64_t rows, int64_t cols, int64_t groups) const override {
    return cpu::norm_backward_scratch(rows, cols, groups);
  }
  void activation_forward(Activation act, bool gated, Tensor x, Tensor dst) override {
    cpu::activation_forward(pool_, act, gated, x, dst);
  }
  void activation_backward(Activation act, bool gated, Tensor x, Tensor dy, Tensor dx,
                           Tensor y) override {
    cpu::activation_backward(pool_, act, gated, x, dy, dx, y);
  }
  void rope(Tensor x, int64_t heads, Tensor table, int64_t first, int64_t length,
            bool inverse) override {
    cpu::rope(pool_, x, heads, table, first, length, inverse);
  }
  void attention_forward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v, Tensor out,
                         Tensor lse, const Dropout& dropout, Tensor scratch) override {
    cpu::attention_forward(pool_, shape, q, k, v, out, lse, dropout, scratch);
  }
  int64_t attention_forward_scratch(const AttentionShape& shape) const override {
    return cpu::attention_forward_scratch(shape, pool_.threads());
  }
  void attention_backward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v, Tensor out,
                          Tensor dout, Tensor lse, Tensor dq, Tensor dk, Tensor dv,
                          const Dropout& dropout, Tensor scratch) override {
    cpu::attention_backward(pool_, shape, q, k, v, out, dout, lse, dq, dk, dv, dropout, scratch);
  }
  int64_t attention_backward_scratch(const AttentionShape& shape) const override {
    return cpu::attention_backward_scratch(shape, pool_.threads());
  }
  void dropout(Tensor x, const Dropout& dropout, int64_t length, Tensor residual,
               Tensor dst) override {
    cpu::dropout(pool_, x, dropout, length, residual, dst);
  }
  void embedding_forward(Tensor tokens, Tensor table, Tensor positions, int64_t first,
                         int64_t length, Tensor dst) override {
    cpu::embedding_forward(pool_, tokens, table, positions, first, length, dst);
  }
  void embedding_backward(Tensor tokens, Tensor dx, int64_t length, Tensor dtable,
                          bool accumulate_table, Tensor dpositions, bool accumulate_positions,
                          Tensor scratch) override {
    cpu::embedding_backward(pool_, tokens, dx, length, dtable, accumulate_table, dpositions,
                            accumulate_positions, scratch);
  }
  int64_t embedding_backward_scratch(int64_t rows, int64_t vocabulary) const override {
    return cpu::embedding_backward_scratch(rows, vocabulary);
  }
  void cross_entropy(Tensor logits, Tensor targets, float gradient_scale, Tensor losses) override {
    cpu::cross_entropy(pool_, logits, targets, gradient_scale, losses);
  }
  void column_sum(Tensor x, Tensor dst, bool accumulate, Tensor scratch) override {
    cpu::column_sum(pool_, x, dst, accumulate, scratch);
  }
  int64_t column_sum_scratch(int64_t rows, int64_t cols) const override {
    return cpu::column_sum_scratch(rows, cols);
  }
  void copy(Tensor src, Tensor dst) override { cpu::copy(pool_, src, dst); }
  void fill(Tensor dst, float value) override { cpu::fill(pool_, dst, value); }
  void add(Tensor a, Tensor b, Tensor dst) override { cpu::add(pool_, a, b, dst); }
  double sum_squares(Tensor x, Tensor scratch) override {
    return cpu::sum_squares(pool_, x, scratch);
  }
  int64_t sum_squares_scratch(int64_t elems) const override {
    return cpu::sum_squares_scratch(elems);
  }
  void adamw(const AdamW& hyper, Tensor params, Tensor grads, Tensor moment1,
             Tensor moment2) override {
    cpu::adamw(pool_, hyper, params, grads, moment1, moment2);
  }
  void sgd(const Sgd& hyper, Tensor params, Tensor grads, Tensor momentum) override {
    cpu::sgd(pool_, hyper, params, grads, momentum);
  }

 private:
  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<Kernels> make_cpu_kernels(ThreadPool& pool) {
  return std::make_unique<CpuKernels>(pool);
}

}  // namespace onefold
