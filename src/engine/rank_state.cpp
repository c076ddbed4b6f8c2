#include "engine/rank_state.h"

#include <algorithm>
#include <cstring>

#include "base/block8.h"
#include "tensor/convert.h"

namespace onefold {
namespace {

constexpr const char* kParameters = "parameters";

int64_t blocks_of(int64_t elems, int64_t block) { return (elems + block - 1) / block; }

// Codes of 8 bits as the numbers that lie over them: slabs are long multiples of those.
Tensor as_numbers(Tensor slab) {
  return slab.dtype == DType::u8 ? matrix(slab.data, 1, slab.elems() / 4, DType::f32) : slab;
}

Moment8 moment_of(const std::string& state) {
  return state == "moment2" ? Moment8::second : Moment8::first;
}

using FillPiece = std::function<void(int64_t first, std::span<float> dst)>;

// Calls take(first, values) with whole blocks of elements [begin, end) of `elems` in all, as `fill`
// gives them, a few thousand at a time.
template <class TakeBlocks>
void for_each_block(int64_t begin, int64_t end, int64_t elems, const FillPiece& fill,
                    const TakeBlocks& take) {
  std::vector<float> block;
  for (int64_t first = begin / kBlock8 * kBlock8; first < end; first += kBlock8) {
    block.resize(static_cast<size_t>(std::min(kBlock8, elems - first)));
    fill(first, block);
    take(first, block);
  }
}

// Moments in codes: `values` and their scales, of elements [first, first + values.elems()) of a
// parameter of `elems`, by `fill`.
void write_codes(const Tiers& tiers, Tier tier, Moment8 moment, Tensor values, Tensor scales,
                 int64_t first, int64_t elems, const FillPiece& fill) {
  tiers.write(tier, values, [&](int64_t offset, std::span<std::byte> codes) {
    const int64_t begin = first + offset, end = begin + static_cast<int64_t>(codes.size());
    for_each_block(begin, end, elems, fill, [&](int64_t at, std::span<const float> block) {
      const float scale = scale8(block);
      for (int64_t i = std::max(begin, at);
           i < std::min(end, at + static_cast<int64_t>(block.size())); ++i)
        codes[static_cast<size_t>(i - begin)] =
            std::byte{encode8(moment, block[static_cast<size_t>(i - at)], scale)};
    });
  });
  std::vector<float> all;
  for_each_block(first, first + values.elems(), elems, fill,
                 [&](int64_t, std::span<const float> block) { all.push_back(scale8(block)); });
  tiers.write(tier, scales, [&](int64_t offset, std::span<std::byte> piece) {
    std::memcpy(piece.data(), all.data() + offset, piece.size());
  });
}

// Writes `dst`, elements [first, ...) of a state of a parameter, by `fill`, in its own type.
void write_values(const Tiers& tiers, Tier tier, const std::string& state, const ParamSpec& param,
                  Tensor dst, int64_t first, const FillPiece& fill,
                  Device::Calls calls = Device::Calls::in_order) {
  const auto make = [&](int64_t offset, std::span<std::byte> piece) {
    const size_t count = piece.size() / static_cast<size_t>(dtype_bytes(dst.dtype));
    if (dst.dtype == DType::f32)
      return fill(first + offset, {reinterpret_cast<float*>(piece.data()), count});
    std::vector<float> wide(count);
    fill(first + offset, wide);
    if (const int64_t overflows = narrow(dst.dtype, wide, piece); overflows > 0)
      user_error(
          "{} of {}: {} of {} values are too large for {}; train in bf16 or fp32, which hold them",
          state, param.name, overflows, count, dtype_name(dst.dtype));
  };
  tiers.write(tier, dst, make, calls);
}

// What a rank has of a unit's parameters. Copies are counted and saved where the unit is computed.
std::vector<ParamSpec> params_here(const Unit& unit, const UnitTraits& traits) {
  if (!traits.held()) return {};
  std::vector<ParamSpec> params = unit.params();
  if (!traits.here())
    for (ParamSpec& param : params) param.own = 0;
  return params;
}

}  // namespace

RankState::RankState(Device& device, const Tiers& tiers, Ledger& ledger, const Model& model,
                     const std::vector<UnitTraits>& traits, const EngineOptions& options,
                     const Lines& lines)
    : device_(device),
      tiers_(tiers),
      model_(model),
      whole_(model.spec),
      options_(options),
      traits_(traits),
      all_ranks_(lines.all->ranks()),
      among_all_(lines.all->rank()) {
  for (size_t u = 0; u < model.units.size(); ++u) {
    const Unit& unit = *model.units[u];
    const Communicator& sharing = traits[u].ranks > 0 ? *lines.same_experts : *lines.data;
    units_.push_back(std::make_unique<UnitState>(ledger, unit.name(), params_here(unit, traits[u]),
                                                 traits[u], sharing.rank(), sharing.ranks(),
                                                 kept_states(options, traits[u].has_hidden),
                                                 own_states_of(options, sharing.ranks()).size()));
  }
}

std::string own_state_name(const std::string& state, int rank) {
  return fmt::format("{}.{}", state, rank);
}

void RankState::initialise() {
  // Padding travels with the rest: it must be defined.
  for (const auto& unit : units_) {
    if (unit->layout().params().empty()) continue;
    for (const UnitState::Part& part : unit->parameter_parts())
      fill_with_zeros(part.tier, part.slab);
    for (int i = 0; i < unit->states(); ++i)
      fill_with_zeros(unit->homes().optimizer.tier, unit->state(i).at_home());
    for (int i = 0; i < unit->own_states(); ++i) fill_with_zeros(Tier::device, unit->own_state(i));
  }
  const auto random = [&](const ParamSpec& param, int64_t first, std::span<float> dst) {
    onefold::initialise(param, model_.spec, options_.seed, first, dst);
  };
  write_parameters(
      [&](const ParamSpec& param, int64_t first, std::span<float> dst) {
        const Fill& given = param.adapter ? options_.initial_adapters : options_.initial;
        given ? given(param, first, dst) : random(param, first, dst);
      },
      Device::Calls::shared_out);
}

// On the device by a kernel, which is quicker.
void RankState::fill_with_zeros(Tier tier, Tensor slab) const {
  if (tier == Tier::device)
    device_.kernels().fill(as_numbers(slab), 0);
  else
    tiers_.fill_with_zeros(tier, slab);
}

void RankState::visit_parameter(int u, int p, Tensor values, const VisitWhole& visit) const {
  const ParamSpec& whole = whole_params(u)[static_cast<size_t>(p)];
  const ParamSpec& here = unit(u).layout().params()[static_cast<size_t>(p)];
  if (here.boxes.empty()) return visit_whole(whole, values, visit);
  visit_whole(here, values, [&](const ParamSpec&, std::span<const float> mine) {
    visit(whole, joined(u, p, mine));
  });
}

// A divided parameter, from what each share has of it.
std::vector<float> RankState::joined(int u, int p, std::span<const float> mine) const {
  const ParamSpec& whole = whole_params(u)[static_cast<size_t>(p)];
  const int shares = model_.share.count,
            holders =
                whole_.units[static_cast<size_t>(u)]->experts() > 0 ? model_.experts.count : 1;
  const auto part_of = [&](int share, int holder) {
    const Model other(model_.spec, kLogitsBytes, {share, shares}, {{holder, model_.experts.count}});
    return other.units[static_cast<size_t>(u)]->params()[static_cast<size_t>(p)];
  };
  // From all shares, and of a mixture then from all holders. The first share has the most.
  const int64_t most = part_of(0, 0).elems();
  std::vector<float> all(mine.begin(), mine.end());
  all.resize(static_cast<size_t>(most));
  const auto gather_over = [&](Channel* channel) {
    require(channel != nullptr, "{} is divided, and there is no channel to the others", whole.name);
    std::vector<float> more(all.size() * static_cast<size_t>(channel->ranks()));
    const Message message{more.data(), all.data(), static_cast<int64_t>(all.size()), DType::f32};
    channel->all_gather("visit " + whole.name, {&message, 1});
    all = std::move(more);
  };
  if (shares > 1) gather_over(shares_);
  if (holders > 1) gather_over(holders_);
  std::vector<float> values(static_cast<size_t>(whole.elems()));
  for (int place = 0; place < shares * holders; ++place) {
    const ParamSpec part = part_of(place % shares, place / shares);
    for_each_run(part, whole.cols, 0, part.own_elems(), [&](int64_t at, int64_t to, int64_t elems) {
      std::copy_n(all.begin() + place * most + at, elems, values.begin() + to);
    });
  }
  return values;
}

FillPiece RankState::filler(int u, int p, const Fill& fill) const {
  const ParamSpec& whole = whole_params(u)[static_cast<size_t>(p)];
  const ParamSpec& here = unit(u).layout().params()[static_cast<size_t>(p)];
  return [&whole, &here, fill](int64_t first, std::span<float> dst) {
    for_each_run(here, whole.cols, first, first + static_cast<int64_t>(dst.size()),
                 [&](int64_t at, int64_t from, int64_t elems) {
                   fill(whole, from,
                        dst.subspan(static_cast<size_t>(at - first), static_cast<size_t>(elems)));
                 });
  };
}

void RankState::visit_whole(const ParamSpec& param, Tensor values, const VisitWhole& visit) const {
  std::vector<float> joined;  // where the values are of another type, or come in pieces
  device_.read(values, [&](int64_t first, std::span<const std::byte> bytes) {
    const auto count = static_cast<int64_t>(bytes.size()) / dtype_bytes(values.dtype);
    if (values.dtype == DType::f32 && count == values.elems())
      return visit(param,
                   {reinterpret_cast<const float*>(bytes.data()), static_cast<size_t>(count)});
    joined.resize(static_cast<size_t>(first + count));
    widen(values.dtype, bytes, std::span(joined).subspan(static_cast<size_t>(first)));
    if (first + count == values.elems()) visit(param, joined);
  });
}

// What computation has been given and has not reached writes what is gathered outside of a program.
void RankState::finish_computation() const {
  device_.compute().wait(device_.compute().mark().number);
}

void RankState::visit_slab(int u, Slab& slab, const SlabLayout& layout, Channel& gather,
                           const VisitWhole& visit) const {
  bring(slab);
  if (slab.home().sharded) {
    slab.stage();
    finish_computation();
    const Message message = slab.message();
    gathers(u, gather).all_gather("visit " + model_.units[static_cast<size_t>(u)]->name(),
                                  {&message, 1});
  }
  for (int p = 0; p < static_cast<int>(layout.params().size()); ++p)
    if (layout.holds(p)) visit_parameter(u, p, layout.view(slab.whole(), p), visit);
  put_back(slab);
}

void RankState::bring(Slab& slab) const {
  if (!slab.home().offloaded()) return;
  slab.bring();
  tiers_.copy(device_.compute(), {}, slab.transfer(), Tiers::Way::in);
}

void RankState::put_back(Slab& slab) {
  if (slab.home().offloaded() || slab.home().sharded) slab.release();
}

std::vector<int> RankState::visited_params(int u, bool adapters) const {
  std::vector<int> params;
  for (size_t p = 0; p < whole_params(u).size(); ++p)
    if (whole_params(u)[p].adapter == adapters) params.push_back(static_cast<int>(p));
  return params;
}

bool RankState::keeps(int index) const {
  return !model_.spec.lora.enabled() || !visited_params(index, true).empty();
}

RankState::VisitWhole RankState::passing_on(const VisitWhole& visit) const {
  if (stages_ == nullptr) return visit;
  return [this, &visit](const ParamSpec& param, std::span<const float> values) {
    stages_->broadcast("visit " + param.name, stages_->rank(), const_cast<float*>(values.data()),
                       static_cast<int64_t>(values.size_bytes()));
    visit(param, values);
  };
}

void RankState::visit_elsewhere(int u, const std::vector<int>& params,
                                const VisitWhole& visit) const {
  require(stages_ != nullptr, "unit {} is of another stage, and there is no channel to it", u);
  for (const int p : params) {
    const ParamSpec& param = whole_params(u)[static_cast<size_t>(p)];
    std::vector<float> values(static_cast<size_t>(param.elems()));
    stages_->broadcast("visit " + param.name, traits(u).place, values.data(),
                       static_cast<int64_t>(values.size() * sizeof(float)));
    visit(param, values);
  }
}

void RankState::for_each_parameter(Channel& gather, const VisitWhole& visit) {
  const VisitWhole pass = passing_on(visit);
  for (int u = 0; u < units(); ++u) {
    if (!traits(u).here()) {
      for (const bool adapters : {false, true})
        visit_elsewhere(u, visited_params(u, adapters), visit);
      continue;
    }
    UnitState& own = unit(u);
    if (own.adapted()) visit_slab(u, own.base_parameters(), own.layout(), gather, pass);
    visit_slab(u, own.exact_parameters(), own.trained_layout(), gather, pass);
  }
}

void RankState::for_each_saved(Channel& gather, const VisitWhole& visit) {
  const VisitWhole pass = passing_on(visit);
  for (int u = 0; u < units(); ++u) {
    if (!keeps(u)) continue;
    if (traits(u).here())
      visit_slab(u, unit(u).exact_parameters(), unit(u).trained_layout(), gather, pass);
    else
      visit_elsewhere(u, visited_params(u, model_.spec.lora.enabled()), visit);
  }
}

void RankState::for_each_gradient(Channel& gather, const VisitWhole& visit) {
  require(options_.keep_gradients, "gradients are asked for, and were not kept");
  const VisitWhole pass = passing_on(visit);
  for (int u = 0; u < units(); ++u) {
    UnitState& own = unit(u);
    if (own.frozen()) continue;
    if (!traits(u).here()) {
      visit_elsewhere(u, visited_params(u, !visited_params(u, true).empty()), visit);
      continue;
    }
    require(own.has_gradients(), "gradients are asked for before a step");
    // Where the optimizer is sharded, each rank has the sum of its own shard alone.
    bring(own.gradients());
    if (own.homes().gradients.sharded) own.gradients().stage();
    if (own.homes().optimizer.sharded) {
      finish_computation();
      const Message message = own.reduce_message();
      gathers(u, gather).all_gather(
          "visit gradients of " + model_.units[static_cast<size_t>(u)]->name(), {&message, 1});
    }
    const SlabLayout& layout = own.trained_layout();
    for (int p = 0; p < static_cast<int>(layout.params().size()); ++p)
      if (layout.holds(p)) visit_parameter(u, p, own.whole_gradient(p), pass);
    put_back(own.gradients());
  }
}

void RankState::write_parameters(const Fill& fill, Device::Calls calls, bool saved_only) {
  for (int u = 0; u < units(); ++u) {
    if (!traits(u).held()) continue;
    for (const UnitState::Part& part : unit(u).parameter_parts())
      for (const SlabPiece& piece : part.pieces) {
        const ParamSpec& param = whole_params(u)[static_cast<size_t>(piece.param)];
        if (saved_only && !is_saved(model_.spec, param)) continue;
        write_values(tiers_, part.tier, kParameters, param,
                     part.slab.col_range(piece.offset, piece.elems), piece.first,
                     filler(u, piece.param, fill), calls);
      }
  }
}

void RankState::write_optimizer(const FillState& fill) {
  for (int u = 0; u < units(); ++u) {
    const UnitState& own = unit(u);
    for (int i = 0; i < own.states(); ++i) {
      // Scales are written with their codes.
      if (i == own.master() || own.kept(i).block > 1) continue;
      if (!own.kept(i).of_parameters()) {
        for (const SlabPiece& piece : own.stepped_pieces()) write_state(u, i, piece, fill);
        continue;
      }
      // Every rank has all of them.
      for (int p = 0; p < static_cast<int>(own.layout().params().size()); ++p)
        if (own.trained_layout().holds(p)) write_state(u, i, {.param = p}, fill);
    }
  }
}

void RankState::write_state(int u, int index, const SlabPiece& piece, const FillState& fill) {
  const UnitState& own = unit(u);
  const OptimizerState& state = own.kept(index);
  const ParamSpec& param = whole_params(u)[static_cast<size_t>(piece.param)];
  const Tier tier = own.homes().optimizer.tier;
  const Tensor dst = own.part_of(index, own.state(index).at_home(), piece);
  if (dst.empty()) return;
  const FillPiece values =
      filler(u, piece.param, [&](const ParamSpec& of, int64_t first, std::span<float> to) {
        fill(state.name, of, first, to);
      });
  if (state.dtype != DType::u8)
    return write_values(tiers_, tier, state.name, param, dst, piece.first, values);
  const Tensor scales = own.state(index + 1).at_home().col_range(piece.offset / kBlock8,
                                                                 blocks_of(piece.elems, kBlock8));
  write_codes(tiers_, tier, moment_of(state.name), dst, scales, piece.first,
              own.layout().params()[static_cast<size_t>(piece.param)].elems(), values);
}

std::vector<std::string> RankState::own_states(int index) const {
  const UnitState& own = unit(index);
  if (own.own_states() == 0) return {};
  std::vector<std::string> names = own_states_of(options_, own.layout().ranks());
  if (!options_.local.on()) return names;
  names.push_back(std::string(kLocal) + kParameters);
  for (int i = 0; i < own.states(); ++i)
    if (i != own.master()) names.push_back(kLocal + own.kept(i).name);
  return names;
}

Tensor RankState::own_slab(int index, size_t place) const {
  const UnitState& own = unit(index);
  auto at = static_cast<int>(place) - own.own_states();
  if (at < 0) return own.own_state(static_cast<int>(place));
  if (at == 0) return own.exact_parameters().at_home();
  --at;  // the states beside the master
  if (own.master() >= 0 && at >= own.master()) ++at;
  return own.state(at).at_home();
}

RankState::OwnPlace RankState::own_place(int index) const {
  if (own_states_are_of_all()) return {among_all_, all_ranks_};
  return {unit(index).rank(), unit(index).layout().ranks()};
}

void RankState::write_own_states(const FillOwnState& fill) {
  for (int u = 0; u < units(); ++u) {
    const std::vector<std::string> names = own_states(u);
    for (size_t i = 0; i < static_cast<size_t>(unit(u).own_states()); ++i)
      for (const SlabPiece& piece : unit(u).trained_layout().whole_pieces()) {
        const Fill fill_here = [&](const ParamSpec& param, int64_t first, std::span<float> dst) {
          fill(names[i], own_place(u), param, first, dst);
        };
        write_values(tiers_, Tier::device, names[i],
                     whole_params(u)[static_cast<size_t>(piece.param)],
                     own_slab(u, i).col_range(piece.offset, piece.elems), 0,
                     filler(u, piece.param, fill_here));
      }
  }
}

std::vector<OptimizerState> RankState::as_saved(int index, const ParamSpec& param,
                                                std::vector<OptimizerState> kept) const {
  const std::vector<ParamSpec>& here = model_.units[static_cast<size_t>(index)]->params();
  const auto found = std::find_if(here.begin(), here.end(),
                                  [&](const ParamSpec& one) { return one.name == param.name; });
  if (found->boxes.empty()) return kept;
  std::erase_if(kept, [](const OptimizerState& state) { return state.block > 1; });
  for (OptimizerState& state : kept)
    if (state.dtype == DType::u8) state.dtype = DType::f32;
  return kept;
}

std::vector<OptimizerState> RankState::saved_states(int index, const ParamSpec& param) const {
  const UnitState& own = unit(index);
  if (!keeps(index)) return {};
  // The same of every unit that is trained, wherever it is.
  if (!traits(index).held()) {
    const Precision& precision = options_.precision;
    const bool trained = options_.training && !traits(index).frozen;
    std::vector<OptimizerState> states{
        {kParameters, trained && precision.has_master() ? DType::f32 : precision.compute}};
    for (const OptimizerState& state : kept_states(options_, traits(index).has_hidden))
      if (trained && state.name != kMaster && state.elements(shape_of(param)) > 0)
        states.push_back(state);
    return as_saved(index, param, std::move(states));
  }
  std::vector<OptimizerState> states{{kParameters, own.exact_parameters().home().dtype}};
  for (int i = 0; i < own.states(); ++i)
    if (i != own.master() && own.kept(i).elements(shape_of(param)) > 0)
      states.push_back(own.kept(i));
  return as_saved(index, param, std::move(states));
}

std::vector<RankState::SavedPiece> RankState::saved_pieces(int index) const {
  const UnitState& own = unit(index);
  std::vector<SavedPiece> pieces;
  if (!keeps(index) || !traits(index).here()) return pieces;
  const auto divided = [&](const SlabPiece& piece) {
    return !own.layout().params()[static_cast<size_t>(piece.param)].boxes.empty();
  };
  const auto add = [&](const std::string& state, const Slab& slab, const auto& part_of,
                       const Slab* scales = nullptr) {
    // What each rank has of its own: the first one's stands for all.
    if (options_.local.on() && among_all_ > 0) return;
    for (SlabPiece piece : own.trained_layout().shard_pieces(own.rank())) {
      const ParamSpec& here = own.layout().params()[static_cast<size_t>(piece.param)];
      piece.elems = std::min(piece.elems, here.own_elems() - piece.first);
      if (piece.elems <= 0) continue;  // another share saves it
      const Tensor part = part_of(piece);
      if (part.empty()) continue;
      pieces.push_back({&whole_params(index)[static_cast<size_t>(piece.param)], state, piece.first,
                        piece.elems,
                        here.boxes.empty() ? std::vector<Box>{}
                                           : boxes_of(here, piece.first, piece.first + piece.elems),
                        slab.home().tier, part});
      if (scales == nullptr || !divided(piece)) continue;
      pieces.back().scales =
          scales->home_shard().col_range(piece.offset / kBlock8, blocks_of(piece.elems, kBlock8));
      pieces.back().moment = moment_of(state);
    }
  };
  const Slab& parameters = own.exact_parameters();
  add(kParameters, parameters, [&](const SlabPiece& piece) {
    return parameters.home_shard().col_range(piece.offset, piece.elems);
  });
  for (int i = 0; i < own.states(); ++i) {
    if (i == own.master()) continue;
    const bool of_parameters = own.kept(i).of_parameters();
    const Tensor slab = own.kept(i).of == OptimizerState::Of::all ? own.state(i).home_shard()
                                                                  : own.state(i).at_home();
    const size_t before = pieces.size();
    const auto part_of = [&](const SlabPiece& piece) {
      // Whoever has a parameter's beginning saves what is kept of all of it.
      if (of_parameters && piece.first > 0) return Tensor{};
      if (own.kept(i).block > 1 && divided(piece)) return Tensor{};  // saved with their codes
      return own.part_of(i, slab, piece);
    };
    add(own.kept(i).name, own.state(i), part_of,
        own.kept(i).dtype == DType::u8 ? &own.state(i + 1) : nullptr);
    for (size_t j = before; j < pieces.size(); ++j) pieces[j].whole = of_parameters;
  }
  const std::vector<std::string> names = own_states(index);
  const bool of_all = own_states_are_of_all();
  for (size_t i = 0; i < names.size(); ++i)
    for (const SlabPiece& piece : own.trained_layout().whole_pieces()) {
      const ParamSpec& here = own.layout().params()[static_cast<size_t>(piece.param)];
      const int64_t elems = of_all ? piece.elems : here.own_elems();
      if (elems == 0) continue;  // what others hold too is saved by the first of them
      pieces.push_back({.param = &whole_params(index)[static_cast<size_t>(piece.param)],
                        .state = own_state_name(names[i], own_place(index).rank),
                        .first = 0,
                        .elems = elems,
                        .boxes = here.boxes.empty() ? std::vector<Box>{} : boxes_of(here, 0, elems),
                        .tier = Tier::device,
                        .data = own_slab(index, i).col_range(piece.offset, elems),
                        .whole = of_all,
                        .own = !of_all});
    }
  return pieces;
}

}  // namespace onefold
