// The training state of one rank: a UnitState for each unit, and the ways to visit what is in it
// from the host, for initialising, loading, saving and comparing.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/block8.h"
#include "device/device.h"
#include "engine/channels.h"
#include "engine/options.h"
#include "engine/unit_state.h"

namespace onefold {

inline constexpr const char* kLocal = "local_";
// In checkpoints, that of a rank.
std::string own_state_name(const std::string& state, int rank);

class RankState {
 public:
  RankState(Device& device, const Tiers& tiers, Ledger& ledger, const Model& model,
            const std::vector<UnitTraits>& traits, const EngineOptions& options,
            const Lines& lines);

  UnitState& unit(int index) { return *units_[static_cast<size_t>(index)]; }
  const UnitState& unit(int index) const { return *units_[static_cast<size_t>(index)]; }
  int units() const { return static_cast<int>(units_.size()); }

  // Of a share of a model: the channel to the other shares, which visitors need to see what is
  // divided as a whole; of divided experts, that to the other holders, and the one along which
  // those are gathered.
  void set_shares(Channel& channel) { shares_ = &channel; }
  void set_holders(Channel& channel) { holders_ = &channel; }
  void set_same_experts(Channel& channel) { same_experts_ = &channel; }

  // Of a pipeline: the channel to the other stages, which visitors need to see their units.
  void set_stages(Channel& channel) { stages_ = &channel; }

  // A unit's parameters as the whole model has them: what visitors and fillers are told of.
  const std::vector<ParamSpec>& whole_params(int unit) const {
    return whole_.units[static_cast<size_t>(unit)]->params();
  }

  // Initial values of everything: by options.initial, or random by the seed.
  void initialise();

  // Every parameter in order, whole. All ranks call it together; sharded units are gathered through
  // the channel, one at a time.
  using VisitWhole = std::function<void(const ParamSpec&, std::span<const float> values)>;
  void for_each_parameter(Channel& gather, const VisitWhole& visit);
  // The same of those that a run keeps (is_saved).
  void for_each_saved(Channel& gather, const VisitWhole& visit);
  // The same of gradients, which options.keep_gradients has kept.
  void for_each_gradient(Channel& gather, const VisitWhole& visit);

  // Lets `fill` write elements [first, first + dst.size()) of each whole parameter, as far as this
  // rank holds them: for loading. `saved_only`: of those that a run keeps.
  using Fill = std::function<void(const ParamSpec&, int64_t first, std::span<float> dst)>;
  void write_parameters(const Fill& fill, Device::Calls calls = Device::Calls::in_order,
                        bool saved_only = false);
  // The same of the optimizer's states, by name.
  using FillState = std::function<void(const std::string& state, const ParamSpec&, int64_t first,
                                       std::span<float> dst)>;
  void write_optimizer(const FillState& fill);

  // Whose a rank's own states are: its place among those that sum a unit's gradients, of whom
  // others have the other parts of it; or among all, where ranks step by themselves.
  struct OwnPlace {
    int rank = 0, ranks = 1;
  };
  // The same of this rank's own states (CompressionOptions::own_states), by name and place.
  using FillOwnState = std::function<void(const std::string& state, const OwnPlace& place,
                                          const ParamSpec&, int64_t first, std::span<float> dst)>;
  void write_own_states(const FillOwnState& fill);
  // Those of a unit; with local steps also everything else, as this rank alone has it, under names
  // that begin with kLocal.
  std::vector<std::string> own_states(int unit) const;
  // Whether these are of each rank, whatever it has of a unit.
  bool own_states_are_of_all() const { return options_.local.on() || options_.stale.on(); }

  // What this rank alone puts into a checkpoint of a unit: its share of parameters and optimizer
  // state. It stays as it is until the unit's next step action.
  struct SavedPiece {
    const ParamSpec* param;
    std::string state;       // "parameters", or the optimizer's
    int64_t first, elems;    // of the parameter; of a divided one, of what is here
    std::vector<Box> boxes;  // the same of a divided one, as boxes of the whole; else none
    Tier tier;
    Tensor data;
    bool whole = false;  // of rows and columns, of ratios, or of its own where that is one of all:
                         // `data` is all there is of the state
    bool own = false;    // else of its own: cut by itself
    // Of codes of a divided parameter, whose blocks are of what is here: their scales. The values
    // that they stand for are saved, which any other division can read.
    Tensor scales = {};
    Moment8 moment = Moment8::first;
  };
  std::vector<SavedPiece> saved_pieces(int unit) const;
  // The states that are saved of a unit's parameter.
  std::vector<OptimizerState> saved_states(int unit, const ParamSpec& param) const;

  // What lanes may use until they end, which is before this does.
  void keep_to_the_end(std::shared_ptr<void> memory) {
    kept_to_the_end_.push_back(std::move(memory));
  }

 private:
  // One piece of a state of the optimizer; of codes, their scales too.
  void write_state(int unit, int index, const SlabPiece& piece, const FillState& fill);
  void finish_computation() const;
  // Along which a unit is gathered.
  Channel& gathers(int unit, Channel& others) const {
    return traits(unit).ranks > 0 ? *same_experts_ : others;
  }
  void visit_slab(int unit, Slab& slab, const SlabLayout& layout, Channel& gather,
                  const VisitWhole& visit) const;
  OwnPlace own_place(int unit) const;
  // Slabs of all of its trained parameters, whole, by own_states().
  Tensor own_slab(int unit, size_t index) const;
  // Whether a run keeps anything of the unit.
  bool keeps(int index) const;
  // Parameters of a unit in the order in which they are visited: of its adapters, of the others.
  std::vector<int> visited_params(int unit, bool adapters) const;
  const UnitTraits& traits(int index) const { return traits_[static_cast<size_t>(index)]; }
  // A visitor that passes what it sees to the other stages first; and the visit of a parameter of
  // another stage.
  VisitWhole passing_on(const VisitWhole& visit) const;
  void visit_elsewhere(int unit, const std::vector<int>& params, const VisitWhole& visit) const;
  // One parameter that is whole on the data axis.
  void visit_parameter(int unit, int param, Tensor values, const VisitWhole& visit) const;
  void visit_whole(const ParamSpec& param, Tensor values, const VisitWhole& visit) const;
  std::vector<float> joined(int unit, int param, std::span<const float> mine) const;
  // The states that are saved of a parameter, of those that are kept of it: of a divided one, the
  // values of codes.
  std::vector<OptimizerState> as_saved(int unit, const ParamSpec& param,
                                       std::vector<OptimizerState> kept) const;
  // What fills elements of a parameter as they are here.
  std::function<void(int64_t first, std::span<float> dst)> filler(int unit, int param,
                                                                  const Fill& fill) const;

  void fill_with_zeros(Tier tier, Tensor slab) const;
  // What a visitor needs of a slab on the device; and giving it back.
  void bring(Slab& slab) const;
  static void put_back(Slab& slab);

  Device& device_;
  const Tiers& tiers_;
  const Model& model_;
  const Model whole_;
  const EngineOptions& options_;
  const std::vector<UnitTraits>& traits_;
  const int all_ranks_;
  const int among_all_;  // the rank's number among all ranks
  Channel *shares_ = nullptr, *holders_ = nullptr, *same_experts_ = nullptr, *stages_ = nullptr;
  std::vector<std::shared_ptr<void>> kept_to_the_end_;
  std::vector<std::unique_ptr<UnitState>> units_;
};

}  // namespace onefold
