// What attention and MLP share: both are a branch beside the residual connection,
// output = input + dropout(project(f(norm(input)))). Private to the model's units.
#pragma once

#include "model/unit.h"

namespace onefold {

// Where in a block dropout acts; with the layer, the key of its random numbers.
enum class DropoutSite : uint32_t { probabilities = 0, attention_out = 1, mlp_out = 2 };

// Cuts a flat block into aligned tensors. Over an empty one it only counts.
class Carver {
 public:
  explicit Carver(Tensor block) : base_(static_cast<std::byte*>(block.data)) {}
  Tensor next(int64_t rows, int64_t cols, DType dtype) {
    const Tensor cut = matrix(base_ ? base_ + bytes_ : nullptr, rows, cols, dtype);
    constexpr int64_t kAlign = Ledger::kAlignment;
    bytes_ += (rows * cols * dtype_bytes(dtype) + kAlign - 1) / kAlign * kAlign;
    return cut;
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
};

class Branch : public Unit {
 public:
  int block() const override { return static_cast<int>(layer_) - 1; }
  BlockPart part() const override {
    return site_ == DropoutSite::mlp_out ? BlockPart::mlp : BlockPart::attention;
  }

 protected:
  // `part`: "attention" or "mlp"; `first_place`: parameters of the block that come before.
  Branch(const ModelSpec& spec, int block, const std::string& part, int first_place,
         DropoutSite site)
      : Unit(spec, fmt::format("block.{}.{}", block, part), block + 1, first_place),
        prefix_(fmt::format("block.{}.", block)),
        site_(site) {
    norm_ = add(true, prefix_ + part + "_norm.weight", 1, spec.hidden_size, Init::ones, false);
    norm_bias_ = add(spec.norm == Norm::layernorm, prefix_ + part + "_norm.bias", 1,
                     spec.hidden_size, Init::zeros, false);
  }

  Dropout dropout_of(const UnitCall& call, DropoutSite site) const {
    return call.dropout_at(layer_, static_cast<uint32_t>(site));
  }

  void norm(const UnitCall& call, Tensor dst) const {
    call.kernels.norm_forward(spec_.norm, call.input, 1, at(call.params, norm_),
                              at(call.params, norm_bias_), spec_.norm_eps, dst);
  }

  // dinput = doutput + d(norm)/dinput · dnormed
  void norm_backward(const UnitCall& call, Tensor dnormed) const {
    const Arena::Scope scope(call.arena);
    if (call.dinput.data != call.doutput.data) call.kernels.copy(call.doutput, call.dinput);
    const int64_t bytes =
        call.kernels.norm_backward_scratch_bytes(call.input.rows, call.input.cols, 1);
    call.kernels.norm_backward(spec_.norm, call.input, 1, at(call.params, norm_), spec_.norm_eps,
                               dnormed, call.dinput, true, at(call.grads, norm_),
                               at(call.grads, norm_bias_), call.accumulate,
                               call.arena.take_bytes(bytes));
  }

  // output = x · weight' + bias, and, in the same visit of memory where no dropout comes between,
  // + input.
  void project_out(const UnitCall& call, Tensor x, int weight, int bias) const {
    Gemm product{.a = x,
                 .b = at(call.params, weight),
                 .dst = call.output,
                 .b_transposed = true,
                 .bias = at(call.params, bias)};
    if (call.dropout == 0) product.residual = call.input;
    call.gemm(product);
  }

  // output = input + dropout(output), where project_out() has not done it.
  void drop_and_add_residual(UnitCall& call) const {
    if (call.dropout == 0 || call.output.empty()) return;
    call.kernels.dropout(call.output, dropout_of(call, site_), call.batch.sequence, call.input,
                         call.output);
  }

  // The branch's own share of the gradient by output: itself, or a masked copy under dropout, which
  // temps[index] keeps.
  Tensor branch_gradient(UnitCall& call, size_t index) const {
    if (call.dropout == 0) return call.doutput;
    if (!call.temps[index].empty()) return call.temps[index];
    const Tensor masked = call.temp(index, call.doutput.rows, call.doutput.cols);
    call.kernels.dropout(call.doutput, dropout_of(call, site_), call.batch.sequence, {}, masked);
    return masked;
  }

  // Gradients of weight and bias of y = x · weight' + bias.
  void weight_gradient(const UnitCall& call, Tensor x, Tensor dy, int weight, int bias) const {
    if (at(call.grads, weight).empty()) return;
    call.gemm({.a = dy,
               .b = x,
               .dst = at(call.grads, weight),
               .a_transposed = true,
               .accumulate = call.accumulate});
    if (bias < 0) return;
    const Arena::Scope scope(call.arena);
    const Tensor scratch =
        call.arena.take_bytes(call.kernels.column_sum_scratch_bytes(dy.rows, dy.cols));
    call.kernels.column_sum(dy, at(call.grads, bias), call.accumulate, scratch);
  }

  // Gives back what was taken from the arena since the mark, and forgets those temporaries.
  static void release_to_mark(UnitCall& call, std::initializer_list<size_t> forgotten) {
    call.arena.release_to(call.arena_mark);
    for (const size_t index : forgotten) call.temps[index] = {};
  }

  const std::string prefix_;  // "block.3."

 private:
  const DropoutSite site_;
  int norm_, norm_bias_;
};

}  // namespace onefold
