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
// Kept besides what an undivided mixture keeps: the rows that have come, so that the gradients of
// weights need no further exchange, and both routings.
#include "model/mixture.h"

#include <cmath>

#include "base/error.h"

namespace onefold {
namespace {

class DividedMixture final : public Mixture {
 public:
  using Mixture::Mixture;

  Phase phase(bool backward, int index, int64_t) const override {
    static constexpr Phase kBackward[] = {{"dispatch", Role::dispatch},
                                          {"experts", Role::dispatch},
                                          {"router"},
                                          {"weights"},
                                          {"input", Role::sum},
                                          {"norm"}};
    return backward ? kBackward[index] : forward_phase(index);
  }

  void run(bool backward, int index, UnitCall& call) const override {
    static constexpr Step kForward[] = {&DividedMixture::route_apart, &DividedMixture::send_rows,
                                        &DividedMixture::take_rows,   &DividedMixture::return_rows,
                                        &DividedMixture::combine_all, &DividedMixture::residual};
    static constexpr Step kBackward[] = {
        &DividedMixture::send_gradient,   &DividedMixture::return_gradient,
        &DividedMixture::router_backward, &DividedMixture::dense_weights,
        &DividedMixture::all_input,       &DividedMixture::norm_backward_of};
    (this->*(backward ? kBackward : kForward)[index])(call);
  }

  // Of a forward that is computed again for backward no result comes back.
  Tensor boundary(bool backward, int index, const UnitCall& call) const override {
    if (index == 4 || (index == 0 && !backward)) return Mixture::boundary(backward, index, call);
    return !backward && index == 3 && call.output.empty() ? Tensor{} : call.temps[kWire];
  }
  Tensor arrival(bool backward, int index, const UnitCall& call) const override {
    return index == 0 && !backward ? Mixture::arrival(backward, index, call) : call.temps[kArrived];
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
    project_shared_up(call, saved);
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

  void combine_all(UnitCall& call) const {
    if (!call.output.empty())
      combine_from(call, elements(call.temps[kArrived]), saved_of(call).sent);
  }
  void residual(UnitCall& call) const { add_residual(call); }

  // Backward. What lives to its end lies below the rest in the arena.
  void send_gradient(UnitCall& call) const {
    const int64_t tokens = call.input.rows;
    call.temp(kDlogits, tokens, of_.count);
    if (has_shared()) {
      call.temp(kSharedDup, tokens, shared_up_size_);
      call.temp(kSharedActivated, tokens, of_.shared_intermediate_size);
    }
    if (of_.shared_gate) call.temp(kDgate, tokens, 1);
    take_wires(call);
    call.kernels.gather_rows(branch_gradient(call, kDy, {}), saved_of(call).sent,
                             elements(call.temps[kWire]));
  }

  // All of the experts' gradients: by weights too, for their rows are here now.
  void return_gradient(UnitCall& call) const {
    const Saved saved = saved_of(call);
    const int64_t rows = saved.rows.rows;
    const Arena::Scope scope(call.arena);
    const Tensor dy = call.take(rows, spec_.hidden_size), dup = call.take(rows, up_size_),
                 activated = call.take(rows, of_.intermediate_size),
                 dactivated = call.take(rows, of_.intermediate_size),
                 dweights = call.arena.take(rows, 1, DType::f32);
    call.kernels.gather_rows(elements(call.temps[kArrived]), saved.here, dy);
    call.kernels.activation_forward(spec_.activation, spec_.gated, saved.up, activated);
    grouped(
        call,
        {.a = dy, .b = at(call.params, down_), .dst = dactivated, .offsets = saved.here.offsets});
    call.kernels.weigh_rows(saved.here, dactivated, activated, dweights);
    call.kernels.activation_backward(spec_.activation, spec_.gated, saved.up, dactivated, dup, {},
                                     {});
    expert_weights(call, saved, dy, activated, down_);
    expert_weights(call, saved, dup, saved.rows, up_);
    grouped(call, {.a = dup, .b = at(call.params, up_), .dst = dy, .offsets = saved.here.offsets});
    const Tensor wire = call.temps[kWire];
    call.kernels.combine_rows(dy, saved.here, false, {}, elements(wire));
    call.kernels.copy(dweights, label(wire, kWeight));
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
    if (has_shared()) shared_gradient(call, saved);
  }

  void dense_weights(UnitCall& call) const {
    shared_down_weights(call);
    dense_up_weights(call);
  }

  void all_input(UnitCall& call) const {
    const Tensor dnormed = dense_input_gradient(call);
    call.kernels.combine_rows(elements(call.temps[kArrived]), saved_of(call).sent, false, dnormed,
                              dnormed);
  }
  void norm_backward_of(UnitCall& call) const { norm_gradient(call); }
};

}  // namespace

std::unique_ptr<Unit> make_mixture(const ModelSpec& spec, int block, const Share& share,
                                   const ExpertShare& experts) {
  const auto attention = static_cast<int>(make_attention(spec.base(), block)->params().size());
  if (experts.whole()) return std::make_unique<Mixture>(spec, block, attention, share);
  return std::make_unique<DividedMixture>(spec, block, attention, share, experts);
}

}  // namespace onefold
