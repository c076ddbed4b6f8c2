// A block's MLP: output = input + dropout(down(act(up(norm(input))))); branch.h has what may come
// between.
//
// Kept from forward to backward, in elements for each token: the input (by the engine) and the
// result of `up`, before the activation; with a norm after it, also what that has normalised. Norm
// and activation are computed again in backward.
#include "model/branch.h"

namespace onefold {
namespace {

// Attention's are others: both may be parts of one unit.
enum Temp : size_t { kDup = 4, kDy, kActivated, kNormed, kDnormed = 12 };

class Mlp final : public Branch {
 public:
  Mlp(const ModelSpec& s, int block, int first_place, const Share& share,
      const Unit* beside = nullptr)
      : Branch(s, share, block, "mlp", first_place, DropoutSite::mlp_out, beside),
        up_size_(spec_.intermediate_size * (s.gated ? 2 : 1)) {
    const std::string in = prefix_ + "mlp.";
    const int64_t d = s.hidden_size, n = s.intermediate_size, all = n * (s.gated ? 2 : 1);
    const Span mine = inner_of(s.intermediate_size, share);
    std::vector<Box> rows = {{mine.first, 0, mine.size, d}}, bias = {{0, mine.first, 1, mine.size}};
    if (s.gated) {
      rows.push_back({n + mine.first, 0, mine.size, d});
      bias.push_back({0, n + mine.first, 1, mine.size});
    }
    up_ = add_divided(true, in + "up.weight", all, d, Init::normal, true, rows);
    up_bias_ = add_divided(s.mlp_bias, in + "up.bias", 1, all, Init::zeros, false, bias);
    down_ = add_divided(true, in + "down.weight", d, n, Init::residual, true,
                        {{0, mine.first, d, mine.size}});
    down_bias_ = add(s.mlp_bias, in + "down.bias", 1, s.hidden_size, Init::zeros, false);
    up_adapters_ = add_adapters("mlp.up.weight", up_);
    down_adapters_ = add_adapters("mlp.down.weight", down_);
  }

  int64_t saved_bytes(int64_t batch, int64_t sequence, DType type) const override {
    return Saved(*this, {}, batch * sequence, type).bytes;
  }

  int phases(bool backward, int64_t) const override { return backward ? 5 + post() : 3; }

  Phase phase(bool backward, int index, int64_t) const override {
    static constexpr Phase kForward[] = {
        {"up"}, {.name = "down", .role = Role::sum, .by_rows = true}, {"residual"}};
    static constexpr Phase kBackward[] = {{"post norm weights", Role::none, true},
                                          {"activation"},
                                          {"down weights", Role::none, true},
                                          {"up weights", Role::none, true},
                                          {.name = "input", .role = Role::sum, .by_rows = true},
                                          {"norm"}};
    return backward ? kBackward[step_of(index)] : kForward[index];
  }

  void run(bool backward, int index, UnitCall& call) const override {
    static constexpr Step kForward[] = {&Mlp::project_up, &Mlp::project_down, &Mlp::add_residual};
    static constexpr Step kBackward[] = {&Mlp::post_weights,   &Mlp::activation_gradient,
                                         &Mlp::down_weights,   &Mlp::up_weights,
                                         &Mlp::input_gradient, &Mlp::norm_gradient};
    (this->*(backward ? kBackward[step_of(index)] : kForward[index]))(call);
  }

  Tensor boundary(bool backward, int index, const UnitCall& call) const override {
    if (backward && step_of(index) == kInput) return dnormed_of(call);
    if (!backward && index == 1) return projected_at(call, saved_of(call).projected);
    return Unit::boundary(backward, index, call);
  }

 private:
  using Step = void (Mlp::*)(UnitCall&) const;

  struct Saved {
    Tensor up;         // [tokens, up_size]
    Tensor projected;  // [tokens, hidden_size]; only with a norm after it
    int64_t bytes;

    Saved(const Mlp& mlp, Tensor block, int64_t tokens, DType type) {
      Carver carver(block);
      up = carver.next(tokens, mlp.up_size_, type);
      if (mlp.spec_.norm_after()) projected = carver.next(tokens, mlp.spec_.hidden_size, type);
      bytes = carver.bytes();
    }
  };
  Saved saved_of(const UnitCall& call) const {
    return {*this, call.saved, call.input.rows, call.type()};
  }
  Tensor up_of(const UnitCall& call) const { return saved_of(call).up; }

  // Phases of backward before the first.
  int post() const { return spec_.norm_after() ? 1 : 0; }
  // Which step of backward a phase is: where the input's gradient travels beside computation, that
  // of up's weights comes behind it.
  static constexpr int kUpWeights = 3, kInput = 4;
  int step_of(int index) const {
    const int step = index + 1 - post();
    if (!share_.overlapped || (step != kUpWeights && step != kInput)) return step;
    return kUpWeights + kInput - step;
  }
  Tensor dnormed_of(const UnitCall& call) const {
    return call.temps[gradient_temp({kNormed, kDnormed})];
  }

  void project_up(UnitCall& call) const {
    const Arena::Scope scope(call.arena);
    const Tensor normed = norm(call, call.take(call.input.rows, spec_.hidden_size));
    call.gemm({.a = normed,
               .b = at(call.params, up_),
               .dst = up_of(call),
               .b_transposed = true,
               .bias = at(call.params, up_bias_)});
    adapt(call, normed, up_of(call), up_adapters_);
  }

  void project_down(UnitCall& call) const {
    if (!projects(call)) return;
    const Tensor dst = call.of_rows(projected_to(call, saved_of(call).projected));
    const Arena::Scope scope(call.arena);
    const Tensor activated = call.take(dst.rows, spec_.intermediate_size);
    call.kernels.activation_forward(spec_.activation, spec_.gated, call.of_rows(up_of(call)),
                                    activated);
    project_out(call, activated, down_, down_bias_, down_adapters_, dst);
  }

  void add_residual(UnitCall& call) const {
    add_residual_to(call, projected_at(call, saved_of(call).projected));
  }

  // Backward. dup outlives the rest, and so lies below it in the arena.
  Tensor dup_of(UnitCall& call) const {
    if (call.temps[kDup].empty()) {
      call.temp(kDup, call.input.rows, up_size_);
      call.arena_mark = call.arena.mark();
    }
    return call.temps[kDup];
  }

  void post_weights(UnitCall& call) const {
    dup_of(call);
    post_norm_weights(call, kDy, saved_of(call).projected);
  }

  void activation_gradient(UnitCall& call) const {
    const int64_t tokens = call.input.rows;
    const Tensor dup = dup_of(call);
    const Tensor dy = branch_gradient(call, kDy, saved_of(call).projected);
    const Tensor activated = call.temp(kActivated, tokens, spec_.intermediate_size);
    const Arena::Scope scope(call.arena);
    const Tensor dactivated = call.take(tokens, spec_.intermediate_size);
    call.gemm({.a = dy, .b = at(call.params, down_), .dst = dactivated});
    adapter_input_gradient(call, dy, dactivated, down_adapters_);
    BiasGradient dbias{.dst = at(call.grads, up_bias_), .accumulate = call.accumulate};
    if (!dbias.dst.empty())
      dbias.scratch =
          call.arena.take_bytes(call.kernels.column_sum_scratch_bytes(dup.rows, dup.cols));
    call.kernels.activation_backward(spec_.activation, spec_.gated, up_of(call), dactivated, dup,
                                     activated, dbias);
  }

  void down_weights(UnitCall& call) const {
    const Tensor dy = branch_gradient(call, kDy, saved_of(call).projected);
    out_weight_gradient(call, call.temps[kActivated], dy, down_, down_bias_);
    adapter_gradients(call, call.temps[kActivated], dy, down_adapters_);
    release_to_mark(call, {kDy, kActivated, kNormed, kDnormed});
  }

  void up_weights(UnitCall& call) const {
    const Tensor normed = norm(call, call.temp(kNormed, call.input.rows, spec_.hidden_size));
    weight_gradient(call, normed, call.temps[kDup], up_, -1);
    adapter_gradients(call, normed, call.temps[kDup], up_adapters_);
  }

  void input_gradient(UnitCall& call) const {
    make_input_gradient(call, {kNormed, kDnormed}, call.temps[kDup], up_, up_adapters_);
  }

  void norm_gradient(UnitCall& call) const { norm_backward(call, dnormed_of(call), down_bias_); }

  const int64_t up_size_;
  int up_, up_bias_, down_, down_bias_;
  std::vector<Adapter> up_adapters_, down_adapters_;
};

}  // namespace

std::unique_ptr<Unit> make_mlp(const ModelSpec& spec, int block, const Share& share,
                               const ExpertShare& experts) {
  if (spec.has_experts(block)) return make_mixture(spec, block, share, experts);
  const auto attention = static_cast<int>(make_attention(spec.base(), block)->params().size());
  return std::make_unique<Mlp>(spec, block, attention, share);
}

std::unique_ptr<Unit> make_mlp_beside(const Unit& attention, const ModelSpec& spec, int block,
                                      const Share& share) {
  return std::make_unique<Mlp>(spec, block, 0, share, &attention);
}

}  // namespace onefold
