// A block's mixture of experts: output = input + dropout(the sum over a token's experts of weight ·
// down(act(up(x))) + those of the shared expert), x = norm(input).
//
// Rows are a token's choices, sorted by expert: the router's counts stay in the device's memory,
// and there are as many rows as choices, whatever they are (of what is dropped, rows are empty).
// The shared expert's gate is a router of one expert with the sigmoid as its score.
//
// Kept from forward to backward: the input (by the engine), logits and routing, and the results of
// `up` before the activation. In backward the gradient by a weight is the product of the gradient
// by the activated row, before it is weighed, and that row: results of `down` are not needed again.
//
// Shares divide the inner width of every expert, as they divide an MLP's: each routes all tokens,
// with the same result, and computes a part of all sums. So gradients of the router and of the gate
// are parts too (both are linear in those by the weights), and the router's own losses are the
// first share's alone.
//
// Parts of sequences route their own tokens. The loss of balance is of the choices of all parts,
// which tell each other how many they have made.
//
// Where experts are divided, mixture.cpp has the unit. Private to the model's units.
#pragma once

#include "model/branch.h"

namespace onefold {

class Mixture : public Branch {
 public:
  // `experts`: the share of them that is here. The rest of the unit is the same in every share, and
  // the gradient of it a part of the whole one.
  Mixture(const ModelSpec& s, int block, int first_place, const Share& share = {},
          const ExpertShare& experts = {})
      : Branch(s, share, block, "mlp", first_place, DropoutSite::mlp_out),
        of_(spec_.experts),
        experts_(experts),
        held_(of_.count / experts.count),
        up_size_(of_.intermediate_size * (s.gated ? 2 : 1)),
        shared_up_size_(of_.shared_intermediate_size * (s.gated ? 2 : 1)) {
    const std::string in = prefix_ + "mlp.";
    const int64_t d = s.hidden_size, of_shared = s.experts.shared_intermediate_size,
                  ways = s.gated ? 2 : 1;
    const bool shared = of_.shared_intermediate_size > 0;
    const Span inner = inner_of(of_shared, share);
    router_ = add(true, in + "router.weight", of_.count, d, Init::normal, true);
    up_ = add_experts(in + "experts.up.weight", d, Init::normal, up_boxes());
    down_ = add_experts(in + "experts.down.weight", of_.intermediate_size, Init::residual,
                        {down_box()});
    shared_up_ = add_divided(shared, in + "shared.up.weight", ways * of_shared, d, Init::normal,
                             true, rows_of_halves(0, of_shared, inner));
    shared_down_ = add_divided(shared, in + "shared.down.weight", d, of_shared, Init::residual,
                               true, {{0, inner.first, d, inner.size}});
    shared_gate_ = add(of_.shared_gate, in + "shared_gate.weight", 1, d, Init::normal, true);
    note_sums();
  }

  int64_t experts() const override { return of_.count; }

  int64_t saved_bytes(int64_t batch, int64_t sequence, DType type) const override {
    Carver carver({});
    carve(carver, batch * sequence, type);
    return carver.bytes();
  }

  int phases(bool, int64_t) const override { return 6; }

  Phase phase(bool backward, int index, int64_t) const override {
    static constexpr Phase kForward[] = {{"route"},
                                         {"dispatch", Role::dispatch},
                                         {"up"},
                                         {"down", Role::dispatch},
                                         {"combine", Role::sum},
                                         {"residual"}};
    static constexpr Phase kBackward[] = {{"dispatch", Role::dispatch},
                                          {"experts", Role::dispatch},
                                          {"down weights", Role::none, true},
                                          {"up weights", Role::none, true},
                                          {"input", Role::sum},
                                          {"norm"}};
    if (backward) return kBackward[index];
    return index == 0 ? route_phase() : kForward[index];
  }

  void run(bool backward, int index, UnitCall& call) const override {
    static constexpr Step kForward[] = {&Mixture::route,      &Mixture::dispatch,
                                        &Mixture::project_up, &Mixture::project_down,
                                        &Mixture::combine,    &Mixture::add_residual};
    static constexpr Step kBackward[] = {&Mixture::dispatch_gradient, &Mixture::expert_gradient,
                                         &Mixture::down_weights,      &Mixture::up_weights,
                                         &Mixture::input_gradient,    &Mixture::norm_gradient};
    (this->*(backward ? kBackward : kForward)[index])(call);
  }

  Tensor boundary(bool backward, int index, const UnitCall& call) const override {
    if (index == 4) return backward ? call.temps[kNormed] : call.output;
    if (index == 0 && !backward) return saved_of(call).own_counts;
    if (index == 1 && backward) return call.temps[kDup];
    return call.temps[kRows];
  }
  Tensor arrival(bool backward, int index, const UnitCall& call) const override {
    return index == 0 && !backward ? saved_of(call).all_counts
                                   : Unit::arrival(backward, index, call);
  }

 protected:
  enum Temp : size_t {
    kDup,
    kDlogits,
    kSharedDup,
    kDgate,
    kDy,
    kRows,
    kActivated,
    kSharedActivated,
    kNormed,
    kWire,     // these of divided experts: what is sent,
    kArrived,  // what has come,
    kKept      // and what an evaluation keeps for its next phases
  };

  // A part of what the unit saves.
  struct Routed {
    Tensor logits;
    Routing routing;
  };
  struct Saved {
    Routed routed, gate;
    Tensor up, shared_up;
    // Of divided experts: rows as they are sent, and those that have come, sorted.
    Routing sent, here;
    Tensor rows;
    // Of parts of sequences, [parts, experts]: how often each expert was chosen here, once for each
    // part; and in each part.
    Tensor own_counts, all_counts;
  };

  Phase route_phase() const { return {"route", tells_counts() ? Role::exchange : Role::none}; }
  bool tells_counts() const { return share_.parts > 1 && of_.balance_loss > 0; }

  static Routing next_routing(Carver& carver, int64_t tokens, int64_t choices, int64_t experts) {
    Routing routing;
    routing.experts = carver.next(tokens, choices, DType::i32);
    routing.weights = carver.next(tokens, choices, DType::f32);
    routing.places = carver.next(tokens, choices, DType::i32);
    routing.sources = carver.next(1, tokens * choices, DType::i32);
    routing.offsets = carver.next(1, experts + 1, DType::i32);
    routing.counts = carver.next(1, experts, DType::i32);
    return routing;
  }
  static Routed next_routed(Carver& carver, int64_t tokens, int64_t choices, int64_t experts) {
    Routed routed;
    routed.logits = carver.next(tokens, experts, DType::f32);
    routed.routing = next_routing(carver, tokens, choices, experts);
    return routed;
  }

  Saved carve(Carver& carver, int64_t tokens, DType type, bool training = true) const {
    Saved saved;
    saved.routed = next_routed(carver, tokens, of_.per_token, of_.count);
    carve_rows(carver, tokens, type, training, saved);
    if (has_shared()) saved.shared_up = carver.next(tokens, shared_up_size_, type);
    if (of_.shared_gate) saved.gate = next_routed(carver, tokens, 1, 1);
    if (tells_counts())
      for (Tensor* counts : {&saved.own_counts, &saved.all_counts})
        *counts = carver.next(share_.parts, of_.count, DType::i32);
    return saved;
  }
  // What is kept of the experts' rows.
  virtual void carve_rows(Carver& carver, int64_t tokens, DType type, bool /*training*/,
                          Saved& saved) const {
    saved.up = carver.next(tokens * of_.per_token, up_size_, type);
  }
  Saved saved_of(const UnitCall& call) const {
    const bool apart = !call.temps[kKept].empty();
    Carver carver(apart ? call.temps[kKept] : call.saved);
    return carve(carver, call.input.rows, call.type(), !apart);
  }
  bool has_shared() const { return of_.shared_intermediate_size > 0; }
  int64_t rows_of(const UnitCall& call) const { return call.input.rows * of_.per_token; }

  Route route_of(const UnitCall& call, const Saved& saved) const {
    return {.logits = saved.routed.logits,
            .scores = of_.scores,
            .normalised = of_.normalised,
            .capacity = call.training ? of_.capacity(call.input.rows) : 0,
            .routing = saved.routed.routing};
  }
  static Route gate_of(const Saved& saved) {
    return {.logits = saved.gate.logits,
            .scores = RouterScores::sigmoid,
            .normalised = false,
            .routing = saved.gate.routing};
  }

  void add_residual(UnitCall& call) const { add_residual_to(call, call.output); }

  void project_shared_up(const UnitCall& call, const Saved& saved) const {
    if (has_shared())
      call.gemm({.a = call.temps[kNormed],
                 .b = at(call.params, shared_up_),
                 .dst = saved.shared_up,
                 .b_transposed = true});
  }

  void grouped(const UnitCall& call, GroupedGemm product) const {
    const Arena::Scope scope(call.arena);
    product.scratch = call.arena.take_bytes(call.kernels.grouped_gemm_scratch_bytes(product));
    call.kernels.grouped_gemm(product);
  }

  bool jitters(const UnitCall& call) const { return call.training && of_.jitter > 0; }
  // x · noise, or with gradients in the place of x, those by it.
  void jitter(const UnitCall& call, Tensor x, Tensor dst) const {
    Dropout noise = dropout_of(call, DropoutSite::router_in);
    noise.rate = of_.jitter;
    call.kernels.jitter(x, noise, call.batch.sequence, dst);
  }
  // What the router sees; from the arena if it is not `normed`.
  Tensor router_input(const UnitCall& call, Tensor normed) const {
    if (!jitters(call)) return normed;
    const Tensor noisy = call.take(normed.rows, normed.cols);
    jitter(call, normed, noisy);
    return noisy;
  }

  void route(UnitCall& call) const {
    const Tensor normed = call.temp(kNormed, call.input.rows, spec_.hidden_size);
    norm(call, normed);
    const Saved saved = saved_of(call);
    const Arena::Scope scope(call.arena);
    call.gemm({.a = router_input(call, normed),
               .b = at(call.params, router_),
               .dst = saved.routed.logits,
               .b_transposed = true});
    call.kernels.route(route_of(call, saved));
    for (int64_t part = 0; part < saved.own_counts.rows; ++part)
      call.kernels.copy(saved.routed.routing.counts, saved.own_counts.row_range(part, 1));
    if (!of_.shared_gate) return;
    call.gemm({.a = normed,
               .b = at(call.params, shared_gate_),
               .dst = saved.gate.logits,
               .b_transposed = true});
    call.kernels.route(gate_of(saved));
  }

  void dispatch(UnitCall& call) const {
    call.kernels.gather_rows(call.temps[kNormed], saved_of(call).routed.routing,
                             call.temp(kRows, rows_of(call), spec_.hidden_size));
  }

  void project_up(UnitCall& call) const {
    const Saved saved = saved_of(call);
    grouped(call, {.a = call.temps[kRows],
                   .b = at(call.params, up_),
                   .dst = saved.up,
                   .offsets = saved.routed.routing.offsets,
                   .b_transposed = true});
    project_shared_up(call, saved);
  }

  // Computed again for backward, which needs no more than `up`, there is no output. Rows are where
  // those of the input were.
  void project_down(UnitCall& call) const {
    if (call.output.empty()) return;
    const Saved saved = saved_of(call);
    const Arena::Scope scope(call.arena);
    const Tensor activated = call.take(rows_of(call), of_.intermediate_size);
    call.kernels.activation_forward(spec_.activation, spec_.gated, saved.up, activated);
    grouped(call, {.a = activated,
                   .b = at(call.params, down_),
                   .dst = call.temps[kRows],
                   .offsets = saved.routed.routing.offsets,
                   .b_transposed = true});
  }

  void combine(UnitCall& call) const {
    if (call.output.empty()) return;
    call.kernels.combine_rows(call.temps[kRows], saved_of(call).routed.routing, true,
                              input_once(call), call.output);
    project_shared_down(call, {.dst = call.output, .accumulate = true});
  }

  // What results are added to where no dropout comes between; of the shares whose results are
  // summed the first adds it.
  Tensor input_once(const UnitCall& call) const {
    return call.dropout == 0 && share_.first() ? call.input : Tensor{};
  }

  // product.dst = what the shared expert makes of its `up`, weighed by its gate.
  void project_shared_down(const UnitCall& call, Gemm product) const {
    if (!has_shared()) return;
    const Saved saved = saved_of(call);
    const Arena::Scope scope(call.arena);
    const Tensor activated = call.take(call.input.rows, of_.shared_intermediate_size);
    call.kernels.activation_forward(spec_.activation, spec_.gated, saved.shared_up, activated);
    if (of_.shared_gate) call.kernels.weigh_rows(saved.gate.routing, {}, activated, {});
    product.a = activated;
    product.b = at(call.params, shared_down_);
    product.b_transposed = true;
    call.gemm(product);
  }

  // Backward. What outlives the gradients of `down` lies below the rest in the arena.
  void dispatch_gradient(UnitCall& call) const {
    const int64_t tokens = call.input.rows;
    call.temp(kDup, rows_of(call), up_size_);
    call.temp(kDlogits, tokens, of_.count);
    if (has_shared()) call.temp(kSharedDup, tokens, shared_up_size_);
    if (of_.shared_gate) call.temp(kDgate, tokens, 1);
    call.arena_mark = call.arena.mark();
    call.kernels.gather_rows(branch_gradient(call, kDy, {}), saved_of(call).routed.routing,
                             call.temp(kRows, rows_of(call), spec_.hidden_size));
  }

  void expert_gradient(UnitCall& call) const {
    const Saved saved = saved_of(call);
    const int64_t rows = rows_of(call);
    const Tensor activated = call.temp(kActivated, rows, of_.intermediate_size);
    if (has_shared()) call.temp(kSharedActivated, call.input.rows, of_.shared_intermediate_size);
    call.kernels.activation_forward(spec_.activation, spec_.gated, saved.up, activated);
    {
      const Arena::Scope scope(call.arena);
      const Tensor dactivated = call.take(rows, of_.intermediate_size);
      const Tensor dweights = call.arena.take(call.input.rows, of_.per_token, DType::f32);
      grouped(call, {.a = call.temps[kRows],
                     .b = at(call.params, down_),
                     .dst = dactivated,
                     .offsets = saved.routed.routing.offsets});
      call.kernels.weigh_rows(saved.routed.routing, dactivated, activated, dweights);
      call.kernels.activation_backward(spec_.activation, spec_.gated, saved.up, dactivated,
                                       call.temps[kDup], {}, {});
      router_gradient(call, saved, dweights);
    }
    if (has_shared()) shared_gradient(call, saved);
  }

  void router_gradient(const UnitCall& call, const Saved& saved, Tensor dweights) const {
    const auto layers = static_cast<float>(spec_.expert_blocks());
    RouteBackward args{
        .forward = route_of(call, saved), .dweights = dweights, .dlogits = call.temps[kDlogits]};
    if (share_.first()) {
      args.balance = of_.balance_loss / layers;
      args.z = of_.z_loss / layers;
      args.of_parts = saved.all_counts;
      args.scale = call.router_scale;
      args.load = call.load;
    }
    route_gradient(call, args);
  }

  void shared_gradient(UnitCall& call, const Saved& saved) const {
    const int64_t tokens = call.input.rows;
    const Tensor activated = call.temps[kSharedActivated];
    call.kernels.activation_forward(spec_.activation, spec_.gated, saved.shared_up, activated);
    const Arena::Scope scope(call.arena);
    const Tensor dactivated = call.take(tokens, of_.shared_intermediate_size);
    call.gemm({.a = branch_gradient(call, kDy, {}),
               .b = at(call.params, shared_down_),
               .dst = dactivated});
    if (of_.shared_gate) {
      const Tensor dweights = call.arena.take(tokens, 1, DType::f32);
      call.kernels.weigh_rows(saved.gate.routing, dactivated, activated, dweights);
      route_gradient(
          call, {.forward = gate_of(saved), .dweights = dweights, .dlogits = call.temps[kDgate]});
    }
    call.kernels.activation_backward(spec_.activation, spec_.gated, saved.shared_up, dactivated,
                                     call.temps[kSharedDup], {}, {});
  }

  static void route_gradient(const UnitCall& call, RouteBackward args) {
    const Arena::Scope scope(call.arena);
    args.scratch = call.arena.take_bytes(call.kernels.route_backward_scratch_bytes(
        args.forward.logits.rows, args.forward.logits.cols));
    call.kernels.route_backward(args);
  }

  // Activated rows are weighed by now, and gradients by outputs are not.
  void down_weights(UnitCall& call) const {
    if (const Tensor dst = at(call.grads, down_); !dst.empty())
      grouped(call, {.a = call.temps[kRows],
                     .b = call.temps[kActivated],
                     .dst = dst,
                     .offsets = saved_of(call).routed.routing.offsets,
                     .a_transposed = true,
                     .accumulate = call.accumulate});
    shared_down_weights(call);
    release_to_mark(call, {kDy, kRows, kActivated, kSharedActivated, kNormed});
  }

  void shared_down_weights(UnitCall& call) const {
    if (has_shared())
      weight_gradient(call, call.temps[kSharedActivated], branch_gradient(call, kDy, {}),
                      shared_down_, -1);
  }

  // What the unit reads, made anew by the first that wants it.
  Tensor normed_again(UnitCall& call) const {
    if (!call.temps[kNormed].empty()) return call.temps[kNormed];
    const Tensor normed = call.temp(kNormed, call.input.rows, spec_.hidden_size);
    norm(call, normed);
    return normed;
  }
  void router_weights(const UnitCall& call, Tensor normed) const {
    const Arena::Scope scope(call.arena);
    weight_gradient(call, router_input(call, normed), call.temps[kDlogits], router_, -1);
  }
  void shared_up_weights(const UnitCall& call, Tensor normed) const {
    if (has_shared()) weight_gradient(call, normed, call.temps[kSharedDup], shared_up_, -1);
    if (of_.shared_gate) weight_gradient(call, normed, call.temps[kDgate], shared_gate_, -1);
  }

  void up_weights(UnitCall& call) const {
    const Tensor normed = normed_again(call);
    router_weights(call, normed);
    shared_up_weights(call, normed);
    const Arena::Scope scope(call.arena);
    const Tensor dst = at(call.grads, up_);
    if (dst.empty()) return;
    const Tensor rows = call.take(rows_of(call), spec_.hidden_size);
    const Routing routing = saved_of(call).routed.routing;
    call.kernels.gather_rows(normed, routing, rows);
    grouped(call, {.a = call.temps[kDup],
                   .b = rows,
                   .dst = dst,
                   .offsets = routing.offsets,
                   .a_transposed = true,
                   .accumulate = call.accumulate});
  }

  // That of the normalised input, but for experts.
  Tensor dense_input_gradient(UnitCall& call) const {
    const Tensor dnormed = call.temp(kNormed, call.input.rows, spec_.hidden_size);
    router_input_gradient(call, dnormed);
    if (has_shared())
      call.gemm({.a = call.temps[kSharedDup],
                 .b = at(call.params, shared_up_),
                 .dst = dnormed,
                 .accumulate = true});
    if (of_.shared_gate)
      call.gemm({.a = call.temps[kDgate],
                 .b = at(call.params, shared_gate_),
                 .dst = dnormed,
                 .accumulate = true});
    return dnormed;
  }

  void input_gradient(UnitCall& call) const {
    const Tensor dnormed = dense_input_gradient(call);
    const Arena::Scope scope(call.arena);
    const Tensor rows = call.take(rows_of(call), spec_.hidden_size);
    const Routing routing = saved_of(call).routed.routing;
    grouped(call, {.a = call.temps[kDup],
                   .b = at(call.params, up_),
                   .dst = rows,
                   .offsets = routing.offsets});
    call.kernels.combine_rows(rows, routing, false, dnormed, dnormed);
  }

  void router_input_gradient(const UnitCall& call, Tensor dnormed) const {
    call.gemm({.a = call.temps[kDlogits], .b = at(call.params, router_), .dst = dnormed});
    if (jitters(call)) jitter(call, dnormed, dnormed);
  }

  void norm_gradient(UnitCall& call) const { norm_backward(call, call.temps[kNormed], -1); }

  const ExpertSpec of_;
  const ExpertShare experts_;
  const int64_t held_;  // experts that are here
  const int64_t up_size_, shared_up_size_;
  int router_, up_, down_, shared_up_, shared_down_, shared_gate_;

 private:
  using Step = void (Mixture::*)(UnitCall&) const;

  // Experts lie below each other, in each the rows of the gate behind the others. Of one from a row
  // of the whole parameter on: those of some of its inner columns.
  std::vector<Box> rows_of_halves(int64_t row, int64_t width, const Span& inner) const {
    std::vector<Box> boxes = {{row + inner.first, 0, inner.size, spec_.hidden_size}};
    if (spec_.gated) boxes.push_back({row + width + inner.first, 0, inner.size, spec_.hidden_size});
    return boxes;
  }
  std::vector<Box> up_boxes() const {
    const int64_t width = whole_.experts.intermediate_size, rows = width * (spec_.gated ? 2 : 1),
                  first = experts_.index * held_;
    if (share_.whole()) return {{first * rows, 0, held_ * rows, spec_.hidden_size}};
    std::vector<Box> boxes;
    for (int64_t e = first; e < first + held_; ++e)
      for (const Box& box : rows_of_halves(e * rows, width, inner_of(width, share_)))
        boxes.push_back(box);
    return boxes;
  }
  Box down_box() const {
    const Span inner = inner_of(whole_.experts.intermediate_size, share_);
    const int64_t rows = held_ * spec_.hidden_size;
    return {experts_.index * rows, inner.first, rows, inner.size};
  }
  // Divided by shares, by holders, or by both.
  int add_experts(const std::string& name, int64_t cols, Init init, std::vector<Box> boxes) {
    if (!share_.whole() || !experts_.whole())
      return add_boxes(name, cols, init, true, std::move(boxes));
    return add(true, name, boxes.front().rows, cols, init, true);
  }

  // Of all but the experts each holder has the gradient of its own tokens, and the first counts and
  // saves; of what weighs rows each share has that of its own columns.
  void note_sums() {
    for (size_t p = 0; p < params_.size(); ++p) {
      const auto place = static_cast<int>(p);
      if (place == up_ || place == down_) continue;
      ParamSpec& param = params_[p];
      if (!experts_.first()) param.own = 0;
      param.summed_over.holders = !experts_.whole();
    }
    sum_over_shares(router_);
    sum_over_shares(shared_gate_);
  }
};

}  // namespace onefold
