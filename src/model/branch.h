// What attention and MLP share: both are a branch beside the residual connection,
// output = input + dropout(project(f(norm(input)))). Private to the model's units.
#pragma once

#include "model/lora.h"
#include "model/unit.h"

namespace onefold {

// Where in a block dropout acts; with the layer, the key of its random numbers. From `adapters` on:
// the input of each module's adapter.
enum class DropoutSite : uint32_t {
  probabilities = 0,
  attention_out = 1,
  mlp_out = 2,
  adapters = 16
};

// Of some of a projection's outputs: y[first, first + rows) += scale · dropout(x) · A' · B'.
struct Adapter {
  int a, b;  // places in call.params
  int64_t first = 0, rows = 0;
  uint32_t site = 0;  // of its dropout
};

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
  Branch(const ModelSpec& spec, const Share& share, int block, const std::string& part,
         int first_place, DropoutSite site)
      : Unit(spec, share, fmt::format("block.{}.{}", block, part), block + 1, first_place),
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

  // output = x · weight' + bias (and what adapters add), and, in the same visit of memory where no
  // dropout comes between, + input. Of shares the first adds what is to be added once to their sum.
  void project_out(const UnitCall& call, Tensor x, int weight, int bias,
                   std::span<const Adapter> adapters) const {
    Gemm product{.a = x, .b = at(call.params, weight), .dst = call.output, .b_transposed = true};
    if (share_.first()) product.bias = at(call.params, bias);
    if (share_.first() && call.dropout == 0) product.residual = call.input;
    call.gemm(product);
    adapt(call, x, call.output, adapters);
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

  // Adds the parameters of what spec_.lora has beside a projection ("attention.qkv.weight"). After
  // all others of the unit.
  std::vector<Adapter> add_adapters(const std::string& projection) {
    // Beyond the places of a block's own parameters, whatever is adapted.
    constexpr uint32_t kFirstPlace = 1024;
    std::vector<Adapter> adapters;
    if (!spec_.lora.enabled()) return adapters;
    const auto add_matrix = [&](const std::string& name, int64_t rows, int64_t cols, Init init,
                                uint32_t place) {
      const int index = add(true, name, rows, cols, init, true);
      params_.back().adapter = true;
      params_.back().place_key = kFirstPlace + place;
      return index;
    };
    for (const LoraModule& module : lora_modules(spec_)) {
      if (module.parameter != projection || !is_adapted(spec_, block(), module)) continue;
      const LoraNames names = lora_names(block(), module);
      const int a =
          add_matrix(names.a, spec_.lora.rank, module.cols, Init::fan_in, 2 * module.place);
      const int b =
          add_matrix(names.b, module.rows, spec_.lora.rank, Init::zeros, 2 * module.place + 1);
      adapters.push_back({a, b, module.first_row, module.rows,
                          static_cast<uint32_t>(DropoutSite::adapters) + module.place});
    }
    return adapters;
  }

  // y += what the adapters make of x.
  void adapt(const UnitCall& call, Tensor x, Tensor y, std::span<const Adapter> adapters) const {
    for (const Adapter& adapter : adapters) {
      const Arena::Scope scope(call.arena);
      call.gemm({.a = inner(call, dropped(call, x, adapter), adapter),
                 .b = at(call.params, adapter.b),
                 .dst = y.col_range(adapter.first, adapter.rows),
                 .b_transposed = true,
                 .accumulate = true});
    }
  }

  // Gradients of A and B.
  void adapter_gradients(const UnitCall& call, Tensor x, Tensor dy,
                         std::span<const Adapter> adapters) const {
    for (const Adapter& adapter : adapters) {
      const Arena::Scope scope(call.arena);
      const Tensor seen = dropped(call, x, adapter);
      call.gemm({.a = dy.col_range(adapter.first, adapter.rows),
                 .b = inner(call, seen, adapter),
                 .dst = at(call.grads, adapter.b),
                 .a_transposed = true,
                 .accumulate = call.accumulate});
      call.gemm({.a = inner_gradient(call, dy, adapter),
                 .b = seen,
                 .dst = at(call.grads, adapter.a),
                 .a_transposed = true,
                 .accumulate = call.accumulate});
    }
  }

  // dx += the adapters' share of the gradient by their input.
  void adapter_input_gradient(const UnitCall& call, Tensor dy, Tensor dx,
                              std::span<const Adapter> adapters) const {
    for (const Adapter& adapter : adapters) {
      const Arena::Scope scope(call.arena);
      Gemm product{.a = inner_gradient(call, dy, adapter),
                   .b = at(call.params, adapter.a),
                   .dst = dx,
                   .accumulate = true};
      const Dropout dropout = dropout_of(call, adapter);
      if (dropout.rate > 0) {
        product.dst = call.take(dx.rows, dx.cols);
        product.accumulate = false;
      }
      call.gemm(product);
      if (dropout.rate > 0) call.kernels.dropout(product.dst, dropout, call.batch.sequence, dx, dx);
    }
  }

  // Gives back what was taken from the arena since the mark, and forgets those temporaries.
  static void release_to_mark(UnitCall& call, std::initializer_list<size_t> forgotten) {
    call.arena.release_to(call.arena_mark);
    for (const size_t index : forgotten) call.temps[index] = {};
  }

  const std::string prefix_;  // "block.3."

 private:
  Dropout dropout_of(const UnitCall& call, const Adapter& adapter) const {
    Dropout dropout = call.dropout_at(layer_, adapter.site);
    dropout.rate = call.training ? spec_.lora.dropout : 0;
    return dropout;
  }

  // An adapter's input; from the arena under dropout.
  Tensor dropped(const UnitCall& call, Tensor x, const Adapter& adapter) const {
    const Dropout dropout = dropout_of(call, adapter);
    if (dropout.rate == 0) return x;
    const Tensor masked = call.take(x.rows, x.cols);
    call.kernels.dropout(x, dropout, call.batch.sequence, {}, masked);
    return masked;
  }

  // scale · x · A', and the gradient by x · A': scale · dy · B. From the arena, [tokens, rank].
  Tensor inner(const UnitCall& call, Tensor x, const Adapter& adapter) const {
    const Tensor dst = call.take(x.rows, spec_.lora.rank);
    call.gemm({.a = x, .b = at(call.params, adapter.a), .dst = dst, .b_transposed = true});
    call.kernels.scale(dst, spec_.lora.scale(), dst);
    return dst;
  }
  Tensor inner_gradient(const UnitCall& call, Tensor dy, const Adapter& adapter) const {
    const Tensor dst = call.take(dy.rows, spec_.lora.rank);
    call.gemm({.a = dy.col_range(adapter.first, adapter.rows),
               .b = at(call.params, adapter.b),
               .dst = dst});
    call.kernels.scale(dst, spec_.lora.scale(), dst);
    return dst;
  }

  const DropoutSite site_;
  int norm_, norm_bias_;
};

}  // namespace onefold
