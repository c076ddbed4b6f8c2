// Gathers and reductions whose numbers travel in a wire format.
#include <algorithm>
#include <cmath>

#include "engine/executor.h"

namespace onefold {
namespace {

// What no parameter of a slab holds.
std::vector<SlabGap> gaps_of(const SlabLayout& layout) {
  std::vector<SlabGap> gaps;
  int64_t end = 0;
  for (const SlabPiece& piece : layout.whole_pieces()) {
    if (piece.offset > end) gaps.push_back({end, piece.offset});
    end = piece.offset + piece.elems;
  }
  if (layout.elems() > end) gaps.push_back({end, layout.elems()});
  return gaps;
}

std::vector<Message> plain(const std::vector<PackedMessage>& messages) {
  std::vector<Message> all;
  for (const PackedMessage& packed : messages) all.push_back(packed.message);
  return all;
}

// Of all shards.
int64_t elems_of(const std::vector<Message>& messages) {
  int64_t elems = 0;
  for (const Message& message : messages) elems += message.shard_elems;
  return elems;
}

Collective collective_of(Lane lane, bool whole) {
  if (lane == Lane::gather) return Collective::all_gather;
  return whole ? Collective::all_reduce : Collective::reduce_scatter;
}

// What a byte takes that is exchanged inside a host, about: a core copies it.
constexpr double kInsideSeconds = 1e-10;

}  // namespace

void Executor::Packing::set(const WireFormat& now) {
  if (now == format && wire) return;
  format = now;
  wire = now.none() ? nullptr : make_wire(now);
}

// A plan is of a step among others. The least magnitude that is sent is a gradient's, and what
// travels is multiplied by the loss scale.
void Executor::set_formats(double loss_scale) {
  const CompressionOptions& compression = options_.compression;
  WireFormat now = device_.dry() ? compression.gradients
                                 : compression.gradients_after(updates_, options_.optimizer);
  now.least *= loss_scale;
  reduces_.set(now);
  take_momentum_scales();
  unit_wires_.clear();
  if (!compression.adaptive || device_.dry() || !reduces_.wire || unit_squares_.empty()) return;
  // A table that two stages of a pipeline step has packets of one length on both; and what no other
  // rank has does not travel. Neither takes part.
  std::vector<int64_t> elems;
  for (int u = 0; u < state_.units(); ++u) {
    const SlabLayout& layout = state_.unit(u).trained_layout();
    elems.push_back(traits(u).copied || layout.ranks() == 1 ? 0 : layout.shard_elems());
  }
  WireFormat format = reduces_.format;
  const std::vector<double> densities =
      CompressionOptions::densities(format.density, unit_squares_, elems);
  for (size_t u = 0; u < densities.size(); ++u) {
    format.density = traits_[u].copied ? reduces_.format.density : densities[u];
    unit_wires_.push_back(make_wire(format));
  }
}

// They stay as the first step that sends momentum has set them.
void Executor::take_momentum_scales() {
  const CompressionOptions& compression = options_.compression;
  if (!options_.optimizer.frozen_trust || !compression.corrects_momentum || !reduces_.on() ||
      device_.dry() || updates_ < compression.whole_steps || !momentum_scales_.empty())
    return;
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    std::vector<SlabScale>& scales = momentum_scales_.emplace_back();
    if (own.frozen()) continue;
    for (const SlabPiece& piece : own.trained_layout().whole_pieces())
      scales.push_back(
          {piece.offset, piece.offset + piece.elems, own.momentum_scale(device_, piece.param)});
  }
}

// Without the loss scale: it may have been another when the others were taken.
void Executor::take_unit_squares(double loss_scale) {
  if (!options_.compression.adaptive || !reduces_.on() || device_.dry()) return;
  constexpr double kKept = 0.9;
  std::vector<double> now(static_cast<size_t>(scalars_.sums().elems()));
  download(device_, scalars_.sums(), std::span(now));
  const auto units = static_cast<size_t>(state_.units());
  const bool first = unit_squares_.empty();
  unit_squares_.resize(units);
  for (size_t u = 0; u < units; ++u) {
    const double squares = now[u] / loss_scale / loss_scale;
    unit_squares_[u] = kKept * (first ? squares : unit_squares_[u]) + (1 - kKept) * squares;
  }
}

Message Executor::size_of(const Action& action, int unit) const {
  const UnitState& own = state_.unit(unit);
  if (action.verb == Verb::gather)
    return {.shard_elems = own.layout().shard_elems(), .dtype = own.homes().parameters.dtype};
  return {.shard_elems = own.trained_layout().shard_elems(), .dtype = own.homes().gradients.dtype};
}

Executor::PackedLine Executor::packed_line(Lane lane, const UnitTraits& unit) const {
  if (lane == Lane::reduce && channels_.inside() != nullptr)
    return {*channels_.between(), channels_.inside()};
  return {channels_.of(lane, unit), nullptr};
}

void Executor::open_packing(std::span<const Program* const> programs) {
  const CompressionOptions& compression = options_.compression;
  if (!compression.any()) return;
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    gaps_.push_back(gaps_of(own.trained_layout()));
    copies_.push_back(copies_of(own.layout(), !model_.share.whole()));
    copied_gradients_.push_back(copies_of(own.trained_layout(), !model_.share.whole()));
  }
  if (options_.local.sums_moves) return open_moved_sums();
  if (compression.gradients.type == WireFormat::Type::rows && !device_.dry())
    for (int u = 0; u < state_.units(); ++u) {
      const SlabLayout& layout = state_.unit(u).trained_layout();
      std::vector<std::vector<int64_t>>& shards = rows_.emplace_back();
      for (int rank = 0; rank < layout.ranks(); ++rank) shards.push_back(layout.row_starts(rank));
    }
  for (const Lane lane : {Lane::gather, Lane::reduce})
    if (!(lane == Lane::gather ? compression.weights : compression.gradients).none())
      open_packing(lane, programs);
}

// One block of memory, as large as the largest call: calls follow each other. The same of copies.
void Executor::open_packing(Lane lane, std::span<const Program* const> programs) {
  const CompressionOptions& compression = options_.compression;
  // The longest packets are those of the first packed step.
  WireFormat longest = lane == Lane::gather ? compression.weights
                                            : compression.gradients_after(compression.whole_steps);
  if (lane == Lane::reduce && compression.adaptive)
    longest.density = std::min(1.0, CompressionOptions::kMostDensity * longest.density);
  const std::unique_ptr<Wire> wire = make_wire(longest);
  const bool varies =
      lane == Lane::reduce && (compression.adaptive || compression.density_steps > 0);
  Packing& own = packing(lane);
  const bool by_device = !device_.memory_is_the_hosts();
  RankMemory* const memory = channels_.memory(lane);
  int64_t bytes = 0, packer_bytes = 0, copies_bytes = 0;
  for (const Program* program : programs)
    for (const Action& action : program->actions) {
      if (!action.packed || (action.verb == Verb::gather) != (lane == Lane::gather)) continue;
      const UnitTraits& unit = traits(action.unit);
      const PackedLine line = packed_line(lane, unit);
      std::unique_ptr<PackedCalls>& calls = unit.ranks > 0 ? own.same_experts : own.calls;
      if (!calls)
        calls = std::make_unique<PackedCalls>(line.channel, device_.dry(), line.inside,
                                              memory ? memory->packer() : nullptr);
      std::vector<Message> messages;
      std::vector<PackedMessage> packed;
      for (const int u : units_of(action)) {
        messages.push_back(size_of(action, u));
        packed.push_back({.message = messages.back()});
      }
      const bool whole = !state_.unit(action.unit).homes().optimizer.sharded;
      bytes = std::max(bytes, PackedCalls::scratch_bytes(collective_of(lane, whole), *wire,
                                                         messages, line.ranks(), varies));
      if (by_device)
        packer_bytes = std::max(packer_bytes, PackedCalls::packer_bytes(*wire, messages));
      copies_bytes = std::max(copies_bytes, copies_call(action, packed).scratch_bytes());
    }
  if (bytes == 0) return;
  own.scratch = ledger_.allocate(Kind::communication, bytes + packer_bytes, "packets");
  for (const auto* calls : {&own.calls, &own.same_experts})
    if (*calls) (*calls)->set_scratch(own.scratch.data(), bytes + packer_bytes, packer_bytes);
  if (copies_bytes > 0)
    own.copies = ledger_.allocate(Kind::communication, copies_bytes, "copies beside packets");
  if (lane == Lane::gather) own.set(compression.weights);
}

bool Executor::packs(Lane lane) const {
  return (lane == Lane::gather || lane == Lane::reduce) &&
         (lane == Lane::gather ? gathers_ : reduces_).on();
}

std::optional<PackWork> Executor::packed(Lane lane) const {
  if (!packs(lane)) return {};
  const Packing& own = lane == Lane::gather ? gathers_ : reduces_;
  std::optional<PackWork> work;
  for (const auto* calls : {&own.calls, &own.same_experts})
    if (*calls) work = work ? *work + (*calls)->work() : (*calls)->work();
  return work;
}

CopiesCall Executor::copies_call(const Action& action, const std::vector<PackedMessage>& messages) {
  const Lane lane = action.verb == Verb::gather ? Lane::gather : Lane::reduce;
  const auto& runs = lane == Lane::gather ? copies_ : copied_gradients_;
  const std::vector<int> units = units_of(action);
  std::vector<CopiesCall::Slab> slabs;
  for (size_t m = 0; m < messages.size(); ++m)
    slabs.push_back({messages[m], runs[static_cast<size_t>(units[m])]});
  return {std::move(slabs), channels_.of(lane, traits(action.unit)),
          lane == Lane::gather ? 0 : state_.unit(action.unit).own_states(),
          packing(lane).copies.data()};
}

PackedMessage Executor::packed_message(int unit, const Message& message) const {
  return {.message = message,
          .key = philox_key(options_.seed, Draw::wire, static_cast<uint32_t>(step_),
                            static_cast<uint32_t>(unit))};
}

void Executor::gather_packed(const Action& action, Walk& walk) {
  std::vector<PackedMessage> messages;
  for (const int unit : units_of(action)) {
    state_.unit(unit).acquire();
    messages.push_back(packed_message(unit, state_.unit(unit).gather_message()));
  }
  PackedCalls& calls = gathers_.calls_of(traits(action.unit));
  Wire& wire = *gathers_.wire;
  const Channel& channel = packed_line(Lane::gather, traits(action.unit)).channel;
  const int ranks = channel.ranks();
  const std::vector<Message> sizes = plain(messages);
  const CopiesCall copies = copies_call(action, messages);
  communicate(
      action, walk, channel, Travel::together,
      PackedCalls::all_gather_bytes(wire, sizes, ranks) + copies.sent_bytes(),
      [&calls, &wire, messages, copies](const std::string& what) {
        copies.take_parameters();
        copies.sum(what);
        calls.all_gather(what, wire, messages);
        copies.put(true);
      },
      pack_cost(gathers_.format, elems_of(sizes), elems_of(sizes) * ranks));
}

void Executor::reduce_packed(const Action& action, Walk& walk) {
  std::vector<PackedMessage> messages;
  for (const int u : units_of(action)) {
    UnitState& own = state_.unit(u);
    own.begin_reduce();
    PackedMessage packed = packed_message(u, own.reduce_message());
    packed.gaps = gaps_[static_cast<size_t>(u)];
    if (!rows_.empty()) packed.rows = rows_[static_cast<size_t>(u)];
    if (own.own_states() > 0) packed.kept = static_cast<float*>(own.own_state(0).data);
    if (!momentum_scales_.empty()) packed.scales = momentum_scales_[static_cast<size_t>(u)];
    if (own.own_states() > 1) packed.velocity = static_cast<float*>(own.own_state(1).data);
    messages.push_back(packed);
  }
  const bool whole = !state_.unit(action.unit).homes().optimizer.sharded;
  PackedCalls& calls = reduces_.calls_of(traits(action.unit));
  Wire& wire =
      unit_wires_.empty() ? *reduces_.wire : *unit_wires_[static_cast<size_t>(action.unit)];
  const PackedLine line = packed_line(Lane::reduce, traits(action.unit));
  const Channel& channel = line.channel;
  const PackedRanks ranks = line.ranks();
  MomentumCorrection correction = options_.compression.correction;
  correction.limit /= std::sqrt(static_cast<float>(ranks.between));
  correction.limit *= static_cast<float>(walk.loss_scale);  // as gradients are
  const auto bytes = whole ? PackedCalls::all_reduce_bytes : PackedCalls::reduce_scatter_bytes;
  const std::vector<Message> sizes = plain(messages);
  const auto inside_bytes = static_cast<double>(PackedCalls::inside_bytes(
      whole ? Collective::all_reduce : Collective::reduce_scatter, sizes, ranks));
  const CopiesCall copies = copies_call(action, messages);
  const int64_t given = elems_of(sizes) * ranks.between;
  PackCost cost = pack_cost(reduces_.format, given, given);
  cost.core_seconds += kInsideSeconds * inside_bytes;
  communicate(
      action, walk, channel, Travel::together, bytes(wire, sizes, ranks) + copies.sent_bytes(),
      [&calls, &wire, messages, whole, correction, copies](const std::string& what) {
        copies.take_gradients(correction);
        copies.sum(what);
        if (whole)
          calls.all_reduce(what, wire, messages, correction);
        else
          calls.reduce_scatter(what, wire, messages, correction);
        copies.put(whole);
      },
      cost);
}

}  // namespace onefold
