// What attention and MLP share: both are a branch beside the residual connection,
// output = input + dropout(scale · norm(project(f(norm(input))))), where the second norm, the first
// or the scale may be missing. Private to the model's units.
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
  router_in = 3,
  adapters = 16
};

// Of some of a projection's outputs: y[first, first + rows) += scale · dropout(x) · A' · B'.
struct Adapter {
  int a, b;  // places in call.params
  int64_t first = 0, rows = 0;
  uint32_t site = 0;  // of its dropout
  // Where shares divide its inputs: the first that is here, and how many there are in all.
  int64_t first_input = 0, all_inputs = 0;
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
  // `beside`: the other branch of a parallel block, whose parameters come first. This one's result
  // is added to what that one has left, and if there is one norm it is that one's.
  Branch(const ModelSpec& spec, const Share& share, int block, const std::string& part,
         int first_place, DropoutSite site, const Unit* beside = nullptr)
      : Unit(spec, share, fmt::format("block.{}.{}", block, part), block + 1, first_place),
        prefix_(fmt::format("block.{}.", block)),
        site_(site),
        second_(beside != nullptr) {
    if (beside) params_ = beside->params();
    const auto add_norm = [&](bool present, const std::string& name) {
      const int weight =
          add(present, prefix_ + part + name + ".weight", 1, spec.hidden_size, norm_init(), false);
      const int bias = add(present && spec.has_norm_bias(), prefix_ + part + name + ".bias", 1,
                           spec.hidden_size, Init::zeros, false);
      sum_of_norm(weight, bias);
      return NormPlaces{weight, bias};
    };
    if (beside && spec.parallel == Parallel::one_norm)
      norm_ = {0, spec.has_norm_bias() ? 1 : -1};  // the first of the other's
    else
      norm_ = add_norm(spec.norm_before(), "_norm");
    post_norm_ = add_norm(spec.norm_after(), "_post_norm");
  }

  Dropout dropout_of(const UnitCall& call, DropoutSite site) const {
    return call.dropout_at(layer_, static_cast<uint32_t>(site));
  }

  // What the branch reads: the normalised input, made in dst, or the input itself.
  Tensor norm(const UnitCall& call, Tensor dst) const {
    if (!spec_.norm_before()) return call.input;
    call.kernels.norm_forward(spec_.norm, call.input, 1, at(call.params, norm_.weight),
                              at(call.params, norm_.bias), spec_.norm_eps, dst);
    return dst;
  }

  // dinput = doutput + d(norm)/dinput · dnormed; of a parallel block's second branch, dinput += ...
  // With the gradient of the last projection's bias, where that is summed here.
  void norm_backward(const UnitCall& call, Tensor dnormed, int out_bias) const {
    if (!spec_.norm_before()) return call.kernels.add(call.doutput, dnormed, call.dinput);
    const Arena::Scope scope(call.arena);
    const bool adds = second_ || adds_once();
    if (!second_ && adds && call.dinput.data != call.doutput.data)
      call.kernels.copy(call.doutput, call.dinput);
    const int64_t bytes =
        call.kernels.norm_backward_scratch_bytes(call.input.rows, call.input.cols, 1);
    call.kernels.norm_backward(spec_.norm, call.input, 1, at(call.params, norm_.weight),
                               spec_.norm_eps, dnormed, call.dinput, adds,
                               at(call.grads, norm_.weight), at(call.grads, norm_.bias),
                               norm_sums_doutput(call) ? at(call.grads, out_bias) : Tensor{},
                               call.accumulate, call.arena.take_bytes(bytes));
  }

  // Whether there is something to project: of a forward that is computed again for backward there
  // may be no output, but a norm after the projection needs what it has normalised.
  bool projects(const UnitCall& call) const { return !call.output.empty() || spec_.norm_after(); }

  // Where the projection's result goes: `kept` for backward if it is normalised, a temporary if it
  // is added to the other branch's, else the output.
  Tensor projected_to(UnitCall& call, Tensor kept) const {
    if (spec_.norm_after()) return kept;
    return second_ ? call.temp(kProjected, call.output.rows, call.output.cols) : call.output;
  }
  Tensor projected_at(const UnitCall& call, Tensor kept) const {
    if (spec_.norm_after()) return kept;
    return second_ ? call.temps[kProjected] : call.output;
  }

  // dst = x · weight' + bias (and what adapters add), and, in the same visit of memory where
  // nothing comes between, + input; x and dst are of call.rows. Of shares the first adds what is to
  // be added once to their sum.
  void project_out(const UnitCall& call, Tensor x, int weight, int bias,
                   std::span<const Adapter> adapters, Tensor dst) const {
    Gemm product{.a = x,
                 .b = at(call.params, weight),
                 .dst = dst,
                 .b_transposed = true,
                 .of_rows = call.input.rows};
    if (share_.first()) product.bias = at(call.params, bias);
    if (share_.first() && adds_at_once(call)) product.residual = call.of_rows(call.input);
    call.gemm(product);
    adapt(call, x, dst, adapters);
  }

  // output = input + dropout(scale · norm(projected)), where project_out() has not done it.
  void add_residual_to(UnitCall& call, Tensor projected) const {
    if (call.output.empty() || adds_at_once(call)) return;
    Tensor branch = projected;
    if (spec_.norm_after()) {
      branch = call.output;
      call.kernels.norm_forward(spec_.norm, projected, 1, at(call.params, post_norm_.weight),
                                at(call.params, post_norm_.bias), spec_.norm_eps, branch);
    }
    if (spec_.residual_scale != 1) call.kernels.scale(branch, spec_.residual_scale, branch);
    const Tensor before = second_ ? call.output : adds_once() ? call.input : Tensor{};
    if (call.dropout > 0)
      call.kernels.dropout(branch, dropout_of(call, site_), call.batch.sequence, before,
                           call.output);
    else if (!before.empty())
      call.kernels.add(before, branch, call.output);
    else if (branch.data != call.output.data)
      call.kernels.copy(branch, call.output);
  }

  // The gradient by the projection's result: that by output, or, where something comes between, a
  // copy that temps[index] keeps. `projected`: what the norm after it has normalised.
  Tensor branch_gradient(UnitCall& call, size_t index, Tensor projected) const {
    if (is_bare(call)) return call.doutput;
    if (!call.temps[index].empty()) return call.temps[index];
    return make_branch_gradient(call, index, projected, {}, {});
  }

  // The same, with the gradients of that norm's weights.
  void post_norm_weights(UnitCall& call, size_t index, Tensor projected) const {
    make_branch_gradient(call, index, projected, at(call.grads, post_norm_.weight),
                         at(call.grads, post_norm_.bias));
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
  // Those of the last projection; norm_backward() may have to make the bias's.
  void out_weight_gradient(const UnitCall& call, Tensor x, Tensor dy, int weight, int bias) const {
    weight_gradient(call, x, dy, weight, norm_sums_doutput(call) ? -1 : bias);
  }

  // Adds the parameters of what spec_.lora has beside a projection ("attention.qkv.weight"), the
  // parameter at `place`. After all others of the unit.
  //
  // Shares that divide a projection's outputs divide B as they do, and have all of A, of which each
  // makes a part of the gradient. Those that divide its inputs divide A, and have all of B: what
  // each adds to the projection's result is summed with it, and each makes a part of B's gradient.
  std::vector<Adapter> add_adapters(const std::string& projection, int place) {
    std::vector<Adapter> adapters;
    if (!spec_.lora.enabled()) return adapters;
    for (const LoraModule& module : lora_modules(whole_)) {
      if (module.parameter != projection || !is_adapted(whole_, block(), module)) continue;
      // A copy: parameters are added.
      const ParamSpec beside = params_[static_cast<size_t>(place)];
      const bool outputs = beside.boxes.empty() || beside.cols == module.cols;
      adapters.push_back(outputs ? add_adapter_of_outputs(module, beside)
                                 : add_adapter_of_inputs(module, beside.boxes.front()));
      adapters.back().site = static_cast<uint32_t>(DropoutSite::adapters) + module.place;
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

  // The gradient by the normalised input: dy · weight (and what adapters add), of call.rows.
  // `temps`: of the normalised input, in whose place it goes, for that is done with; and, where it
  // travels while gradients of weights read that, its own.
  struct NormTemps {
    size_t normed, gradient;
  };
  size_t gradient_temp(NormTemps temps) const {
    return share_.overlapped ? temps.gradient : temps.normed;
  }
  void make_input_gradient(UnitCall& call, NormTemps temps, Tensor dy, int weight,
                           std::span<const Adapter> adapters) const {
    const Tensor dst =
        call.of_rows(call.temp(gradient_temp(temps), call.input.rows, spec_.hidden_size));
    const Tensor from = call.of_rows(dy);
    call.gemm({.a = from, .b = at(call.params, weight), .dst = dst, .of_rows = call.input.rows});
    adapter_input_gradient(call, from, dst, adapters);
  }

  // Gives back what was taken from the arena since the mark, and forgets those temporaries.
  static void release_to_mark(UnitCall& call, std::initializer_list<size_t> forgotten) {
    call.arena.release_to(call.arena_mark);
    for (const size_t index : forgotten) call.temps[index] = {};
  }

  // Of temps; attention has 0 to 3, 9 to 11 and 13, the MLP 4 to 7 and 12.
  static constexpr size_t kProjected = 8;

  const std::string prefix_;  // "block.3."

 private:
  struct NormPlaces {
    int weight = -1, bias = -1;
  };

  // Nothing comes between the projection and the residual.
  bool is_bare(const UnitCall& call) const {
    return call.dropout == 0 && spec_.residual_scale == 1 && !spec_.norm_after();
  }
  // norm_backward() reads doutput, which is the gradient by the projection's result too.
  // Where runs of the residual are scattered the first share alone adds it there, and all must have
  // the same bits.
  bool norm_sums_doutput(const UnitCall& call) const {
    return is_bare(call) && !second_ && spec_.norm_before() && !share_.scattered;
  }
  bool adds_at_once(const UnitCall& call) const { return is_bare(call) && !second_; }

  Tensor make_branch_gradient(UnitCall& call, size_t index, Tensor projected, Tensor dweight,
                              Tensor dbias) const {
    Tensor from = call.doutput;
    const Tensor dst = call.temp(index, from.rows, from.cols);
    if (call.dropout > 0) {
      call.kernels.dropout(from, dropout_of(call, site_), call.batch.sequence, {}, dst);
      from = dst;
    }
    if (spec_.residual_scale != 1) {
      call.kernels.scale(from, spec_.residual_scale, dst);
      from = dst;
    }
    if (spec_.norm_after()) {
      const Arena::Scope scope(call.arena);
      const int64_t bytes = call.kernels.norm_backward_scratch_bytes(dst.rows, dst.cols, 1);
      call.kernels.norm_backward(spec_.norm, projected, 1, at(call.params, post_norm_.weight),
                                 spec_.norm_eps, from, dst, false, dweight, dbias, {},
                                 call.accumulate, call.arena.take_bytes(bytes));
    }
    return dst;
  }

  // One of an adapter's two matrices; `second`: B.
  int add_matrix(const LoraModule& module, bool second, const std::vector<Box>& boxes) {
    // Beyond the places of a block's own parameters, whatever is adapted.
    constexpr uint32_t kFirstPlace = 1024;
    const LoraNames names = lora_names(block(), module);
    const std::string& name = second ? names.b : names.a;
    const Init init = second ? Init::zeros : Init::fan_in;
    const int64_t rank = spec_.lora.rank;
    const int index = boxes.empty() ? add(true, name, second ? module.rows : rank,
                                          second ? rank : module.cols, init, true)
                                    : add_boxes(name, boxes.front().cols, init, true, boxes);
    params_.back().adapter = true;
    params_.back().place_key = kFirstPlace + 2 * module.place + (second ? 1 : 0);
    return index;
  }

  // Of the module's outputs that are here, which lie together: those of each box of the projection.
  Adapter add_adapter_of_outputs(const LoraModule& module, const ParamSpec& projection) {
    const int a = add_matrix(module, false, {});
    sum_over_shares(a);
    if (projection.boxes.empty())
      return {a, add_matrix(module, true, {}), module.first_row, module.rows};
    std::vector<Box> boxes;
    int64_t first = -1, rows = 0, row = 0;  // of those that are here
    for (const Box& box : projection.boxes) {
      const int64_t from = std::max(box.row, module.first_row),
                    to = std::min(box.row + box.rows, module.first_row + module.rows);
      if (from < to) {
        if (first < 0) first = row + from - box.row;
        rows += to - from;
        boxes.push_back({from - module.first_row, 0, to - from, spec_.lora.rank});
      }
      row += box.rows;
    }
    const int b = add_matrix(module, true, boxes);
    // Rows of heads that several shares hold, as those of the projection.
    const int64_t copied =
        std::clamp<int64_t>(projection.summed_from / projection.cols - first, 0, rows);
    if (projection.summed_over.replicas && copied < rows) {
      ParamSpec& param = params_.back();
      param.summed_from = copied * spec_.lora.rank;
      param.summed_over.replicas = true;
      if (projection.own >= 0) param.own = param.summed_from;
    }
    return {a, b, first, rows};
  }

  Adapter add_adapter_of_inputs(const LoraModule& module, const Box& here) {
    const int a = add_matrix(module, false, {{0, here.col, spec_.lora.rank, here.cols}});
    const int b = add_matrix(module, true, {});
    sum_over_shares(b);
    return {a, b, module.first_row, module.rows, 0, here.col, module.cols};
  }

  Dropout dropout_of(const UnitCall& call, const Adapter& adapter) const {
    Dropout dropout = call.dropout_at(layer_, adapter.site);
    dropout.rate = call.training ? spec_.lora.dropout : 0;
    dropout.first_col = adapter.first_input;
    dropout.all_cols = adapter.all_inputs;
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
  const bool second_;  // of a parallel block
  NormPlaces norm_, post_norm_;
};

}  // namespace onefold
