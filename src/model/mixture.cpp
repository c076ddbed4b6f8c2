// The mixture of a block whose experts are divided among several holders. Each has tokens of its
// own and an equal run of the experts: a token's row travels to the holders of its experts, and
// what they make of it comes back, in forward and in backward.
//
// What travels are blocks of a fixed number of rows, one for each holder: of a capacity, all that
// its experts take; else all that may choose one of them, or fewer, if a bound says so: a step that
// needs more then changes nothing, and ends the run (engine/expert_load.h). So memory and messages
// do not depend on the routing. A row is hidden_size elements, then the weight of the choice and
// the number of its expert among the holder's (-1: the row is empty); on its way back in backward,
// the gradient by the weight. A holder sorts what has come by expert, and computes with it as with
// a routing of its own.
//
// What reads nothing that travels has phases of its own (Phase::beside), between the exchange and
// its reader: in forward the two products of a shared expert, the second of which is what experts'
// results are added to; in backward all of the shared expert, and the gradients of the experts'
// weights.
//
// Kept besides what an undivided mixture keeps: the rows that have come, so that the gradients of
// weights need no further exchange, and both routings.
#include "model/mixture.h"

#include <cmath>

#include "base/error.h"

namespace onefold {
namespace {

class DividedMixture final : public Mixture {
 public:
  DividedMixture(const ModelSpec& spec, int block, int first_place, const Share& share,
                 const ExpertShare& experts)
      : Mixture(spec, block, first_place, share, experts) {
    using M = DividedMixture;
    const bool shared = has_shared();
    forward_ = {{route_phase(), &M::route_apart}, {{"dispatch", Role::dispatch}, &M::send_rows}};
    if (shared) forward_.push_back({{.name = "shared up", .beside = true}, &M::shared_up});
    forward_.push_back({{"up"}, &M::take_rows});
    forward_.push_back({{"down", Role::dispatch}, &M::return_rows});
    if (shared) forward_.push_back({{.name = "shared down", .beside = true}, &M::shared_down});
    forward_.push_back({{"combine", Role::sum}, &M::combine_all});
    forward_.push_back({{"residual"}, &M::residual});

    backward_ = {{{"dispatch", Role::dispatch}, &M::send_gradient}};
    if (shared) backward_.push_back({{.name = "shared", .beside = true}, &M::shared_backward});
    backward_.push_back({{"experts", Role::dispatch}, &M::return_gradient});
    backward_.push_back({{.name = "expert weights", .beside = true}, &M::experts_weights});
    backward_.push_back({{"router"}, &M::router_backward});
    backward_.push_back({{"input", Role::sum}, &M::all_input});
    backward_.push_back({{"norm"}, &M::norm_backward_of});
  }

  int phases(bool backward, int64_t) const override {
    return static_cast<int>((backward ? backward_ : forward_).size());
  }
  Phase phase(bool backward, int index, int64_t) const override {
    return entry(backward, index).phase;
  }
  void run(bool backward, int index, UnitCall& call) const override {
    (this->*entry(backward, index).step)(call);
  }

  // Of a forward that is computed again for backward no result comes back.
  Tensor boundary(bool backward, int index, const UnitCall& call) const override {
    const Entry& after = entry(backward, index);
    if (after.phase.role == Role::exchange) return saved_of(call).own_counts;
    if (after.phase.role == Role::sum) return backward ? call.temps[kNormed] : call.output;
    const bool returns = after.step == &DividedMixture::return_rows;
    return returns && call.output.empty() ? Tensor{} : call.temps[kWire];
  }
  Tensor arrival(bool backward, int index, const UnitCall& call) const override {
    const bool counts = entry(backward, index).phase.role == Role::exchange;
    return counts ? saved_of(call).all_counts : call.temps[kArrived];
  }

 protected:
  void carve_rows(Carver& carver, int64_t tokens, DType type, bool training,
                  Saved& saved) const override {
    const int64_t rows = rows_that_travel(tokens, training);
    saved.sent = saved.routed.routing;
    saved.sent.places = carver.next(tokens, of_.per_token, DType::i32);
    saved.sent.sources = carver.next(1, rows, DType::i32);
    saved.here = next_routing(carver, rows, 1, held_);
    saved.rows = carver.next(rows, spec_.hidden_size, type);
    saved.up = carver.next(rows, up_size_, type);
  }

 private:
  using Step = void (DividedMixture::*)(UnitCall&) const;
  struct Entry {
    Phase phase;
    Step step;
  };
  const Entry& entry(bool backward, int index) const {
    return (backward ? backward_ : forward_)[static_cast<size_t>(index)];
  }
  enum Label : uint8_t { kWeight, kNumber };

  // To all holders, this one among them; as many come.
  int64_t rows_that_travel(int64_t tokens, bool training) const {
    // A token's choices are distinct experts.
    int64_t most = tokens * std::min(of_.per_token, held_);
    if (const int64_t capacity = training ? of_.capacity(tokens) : 0; capacity > 0)
      most = std::min(most, capacity * held_);
    if (experts_.bound > 0) {
      const double even = static_cast<double>(tokens * of_.per_token) / experts_.count;
      most = static_cast<int64_t>(
          std::min(static_cast<double>(most), std::ceil(experts_.bound * even)));
    }
    return experts_.count * most;
  }

  // Labels are of 4 bytes, and so lie at multiples of them.
  int64_t wire_cols(DType type) const {
    const int64_t in_label = 4 / dtype_bytes(type);
    return (spec_.hidden_size + in_label - 1) / in_label * in_label + 2 * in_label;
  }
  Tensor elements(Tensor wire) const { return wire.col_range(0, spec_.hidden_size); }
  static Tensor label(Tensor wire, Label which) {
    const int64_t in_label = 4 / dtype_bytes(wire.dtype);
    const Tensor at = wire.col_range(wire.cols - (which == kWeight ? 2 : 1) * in_label, in_label);
    return {at.data, which == kWeight ? DType::f32 : DType::i32, at.rows, 1, at.stride / in_label};
  }
  void take_wires(UnitCall& call) const {
    const int64_t rows = saved_of(call).rows.rows;
    call.temp(kWire, rows, wire_cols(call.type()));
    call.temp(kArrived, rows, wire_cols(call.type()));
  }
  // What has come, once it was read: room for as many rows that lie together.
  Tensor over_arrived(const UnitCall& call) const {
    return matrix(call.temps[kArrived].data, call.temps[kArrived].rows, spec_.hidden_size,
                  call.type());
  }
  // Choices, or rows, by their numbers: what gather_rows() takes one by one.
  static Routing one_by_one(int64_t count, Tensor numbers) {
    Routing routing;
    routing.experts = matrix(nullptr, count, 1, DType::i32);
    routing.sources = numbers.flat();
    return routing;
  }

  // An evaluation drops nothing, so that more rows may come than what training keeps has room for.
  void route_apart(UnitCall& call) const {
    if (!call.training && of_.capacity_factor > 0) {
      Carver carver({});
      carve(carver, call.input.rows, call.type(), false);
      call.temps[kKept] = call.arena.take_bytes(carver.bytes());
    }
    route(call);
  }

  void send_rows(UnitCall& call) const {
    take_wires(call);
    const Saved saved = saved_of(call);
    const Tensor wire = call.temps[kWire], weights = saved.routed.routing.weights;
    call.kernels.spread_rows({.from = saved.routed.routing,
                              .blocks = experts_.count,
                              .places = saved.sent.places,
                              .sources = saved.sent.sources,
                              .numbers = label(wire, kNumber),
                              .needed = call.rows_needed});
    call.kernels.gather_rows(call.temps[kNormed], saved.sent, elements(wire));
    call.kernels.gather_rows(weights.reshaped(weights.elems(), 1),
                             one_by_one(weights.elems(), saved.sent.sources), label(wire, kWeight));
  }

  void shared_up(UnitCall& call) const { project_shared_up(call, saved_of(call)); }

  void take_rows(UnitCall& call) const {
    const Saved saved = saved_of(call);
    const Tensor arrived = call.temps[kArrived];
    call.kernels.sort_rows(label(arrived, kNumber), saved.here);
    call.kernels.copy(label(arrived, kWeight), saved.here.weights);
    call.kernels.gather_rows(elements(arrived), saved.here, saved.rows);
    grouped(call, {.a = saved.rows,
                   .b = at(call.params, up_),
                   .dst = saved.up,
                   .offsets = saved.here.offsets,
                   .b_transposed = true});
  }

  void return_rows(UnitCall& call) const {
    if (call.output.empty()) return;
    const Saved saved = saved_of(call);
    const Arena::Scope scope(call.arena);
    const Tensor activated = call.take(saved.up.rows, of_.intermediate_size),
                 results = over_arrived(call);
    call.kernels.activation_forward(spec_.activation, spec_.gated, saved.up, activated);
    grouped(call, {.a = activated,
                   .b = at(call.params, down_),
                   .dst = results,
                   .offsets = saved.here.offsets,
                   .b_transposed = true});
    call.kernels.combine_rows(results, saved.here, false, {}, elements(call.temps[kWire]));
  }

  // Before the experts' results are there, which are added to it.
  void shared_down(UnitCall& call) const {
    if (!call.output.empty())
      project_shared_down(call, {.dst = call.output, .residual = input_once(call)});
  }

  void combine_all(UnitCall& call) const {
    if (call.output.empty()) return;
    const Tensor base = has_shared() ? call.output : input_once(call);
    call.kernels.combine_rows(elements(call.temps[kArrived]), saved_of(call).sent, true, base,
                              call.output);
  }
  void residual(UnitCall& call) const { add_residual(call); }

  // Backward. What lives to its end lies below the rest in the arena.
  void send_gradient(UnitCall& call) const {
    const int64_t tokens = call.input.rows;
    call.temp(kDlogits, tokens, of_.count);
    if (has_shared()) call.temp(kSharedDup, tokens, shared_up_size_);
    if (of_.shared_gate) call.temp(kDgate, tokens, 1);
    take_wires(call);
    call.kernels.gather_rows(branch_gradient(call, kDy, {}), saved_of(call).sent,
                             elements(call.temps[kWire]));
  }

  // All of the shared expert's but its part of the input's gradient, which is added to the
  // router's.
  void shared_backward(UnitCall& call) const {
    const Tensor normed = normed_again(call);
    call.arena_mark = call.arena.mark();
    call.temp(kSharedActivated, call.input.rows, of_.shared_intermediate_size);
    shared_gradient(call, saved_of(call));
    shared_down_weights(call);
    release_to_mark(call, {kSharedActivated});
    shared_up_weights(call, normed);
  }

  // By weights too, but these come while what is sent here travels: their rows are here now. What
  // has come is read first of all, so that results may lie in its place.
  void return_gradient(UnitCall& call) const {
    const Saved saved = saved_of(call);
    const int64_t rows = saved.rows.rows;
    call.arena_mark = call.arena.mark();
    const Tensor dy = call.temp(kRows, rows, spec_.hidden_size),
                 dup = call.temp(kDup, rows, up_size_),
                 activated = call.temp(kActivated, rows, of_.intermediate_size),
                 wire = call.temps[kWire], results = over_arrived(call);
    const Arena::Scope scope(call.arena);
    const Tensor dactivated = call.take(rows, of_.intermediate_size),
                 dweights = call.arena.take(rows, 1, DType::f32);
    call.kernels.gather_rows(elements(call.temps[kArrived]), saved.here, dy);
    call.kernels.activation_forward(spec_.activation, spec_.gated, saved.up, activated);
    grouped(
        call,
        {.a = dy, .b = at(call.params, down_), .dst = dactivated, .offsets = saved.here.offsets});
    call.kernels.weigh_rows(saved.here, dactivated, activated, dweights);
    call.kernels.activation_backward(spec_.activation, spec_.gated, saved.up, dactivated, dup, {},
                                     {});
    grouped(call,
            {.a = dup, .b = at(call.params, up_), .dst = results, .offsets = saved.here.offsets});
    call.kernels.combine_rows(results, saved.here, false, {}, elements(wire));
    call.kernels.copy(dweights, label(wire, kWeight));
  }

  void experts_weights(UnitCall& call) const {
    const Saved saved = saved_of(call);
    expert_weights(call, saved, call.temps[kRows], call.temps[kActivated], down_);
    expert_weights(call, saved, call.temps[kDup], saved.rows, up_);
    release_to_mark(call, {kRows, kDup, kActivated});
  }
  void expert_weights(const UnitCall& call, const Saved& saved, Tensor dy, Tensor x,
                      int place) const {
    if (const Tensor dst = at(call.grads, place); !dst.empty())
      grouped(call, {.a = dy,
                     .b = x,
                     .dst = dst,
                     .offsets = saved.here.offsets,
                     .a_transposed = true,
                     .accumulate = call.accumulate});
  }

  void router_backward(UnitCall& call) const {
    const Saved saved = saved_of(call);
    const Tensor arrived = label(call.temps[kArrived], kWeight);
    {
      const Arena::Scope scope(call.arena);
      const Tensor dweights = call.arena.take(call.input.rows, of_.per_token, DType::f32);
      call.kernels.gather_rows(arrived, one_by_one(arrived.rows, saved.sent.places),
                               dweights.reshaped(dweights.elems(), 1));
      router_gradient(call, saved, dweights);
    }
    router_weights(call, normed_again(call));
  }

  void all_input(UnitCall& call) const {
    const Tensor dnormed = dense_input_gradient(call);
    call.kernels.combine_rows(elements(call.temps[kArrived]), saved_of(call).sent, false, dnormed,
                              dnormed);
  }
  void norm_backward_of(UnitCall& call) const { norm_gradient(call); }

  std::vector<Entry> forward_, backward_;
};

}  // namespace

std::unique_ptr<Unit> make_mixture(const ModelSpec& spec, int block, const Share& share,
                                   const ExpertShare& experts) {
  const auto attention = static_cast<int>(make_attention(spec.base(), block)->params().size());
  if (experts.whole()) return std::make_unique<Mixture>(spec, block, attention, share);
  return std::make_unique<DividedMixture>(spec, block, attention, share, experts);
}

}  // namespace onefold
