// The training state of one rank: a UnitState for each unit, and the ways to visit what is in it
// from the host, for initialising, loading, saving and comparing.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/channels.h"
#include "engine/options.h"
#include "engine/unit_state.h"

namespace onefold {

class RankState {
 public:
  RankState(Device& device, const Tiers& tiers, Ledger& ledger, const Model& model,
            const std::vector<UnitTraits>& traits, const EngineOptions& options, int rank,
            int ranks);

  UnitState& unit(int index) { return *units_[static_cast<size_t>(index)]; }
  const UnitState& unit(int index) const { return *units_[static_cast<size_t>(index)]; }
  int units() const { return static_cast<int>(units_.size()); }

  // Of a share of a model: the channel to the other shares, which visitors need to see what is
  // divided as a whole.
  void set_shares(Channel& channel) { shares_ = &channel; }

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

  // What this rank alone puts into a checkpoint of a unit: its share of parameters and optimizer
  // state. It stays as it is until the unit's next step action.
  struct SavedPiece {
    const ParamSpec* param;
    std::string state;       // "parameters", or the optimizer's
    int64_t first, elems;    // of the parameter; of a divided one, of what is here
    std::vector<Box> boxes;  // the same of a divided one, as boxes of the whole; else none
    Tier tier;
    Tensor data;
    bool whole = false;  // of rows and columns: `data` is all that there is of the state
  };
  std::vector<SavedPiece> saved_pieces(int unit) const;
  // The states that are saved of a unit's parameter.
  std::vector<OptimizerState> saved_states(int unit, const ParamSpec& param) const;

 private:
  // One piece of a state of the optimizer; of codes, their scales too.
  void write_state(int unit, int index, const SlabPiece& piece, const FillState& fill);
  void finish_computation() const;
  void visit_slab(int unit, Slab& slab, const SlabLayout& layout, Channel& gather,
                  const VisitWhole& visit) const;
  // Whether a run keeps anything of the unit.
  bool keeps(int index) const { return !model_.spec.lora.enabled() || unit(index).adapted(); }
  // One parameter that is whole on the data axis.
  void visit_parameter(int unit, int param, Tensor values, const VisitWhole& visit) const;
  void visit_whole(const ParamSpec& param, Tensor values, const VisitWhole& visit) const;
  std::vector<float> joined(int unit, int param, std::span<const float> mine) const;
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
  const int rank_;  // along the data axis
  Channel* shares_ = nullptr;
  std::vector<std::unique_ptr<UnitState>> units_;
};

}  // namespace onefold
