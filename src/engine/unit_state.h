// One unit's training state on one rank: a slab for parameters, gradients and each state of the
// optimizer, each where its home says. Adapters are a further slab of parameters; gradients and
// optimizer state are then theirs, and the rest has none. What is sharded is made whole by a
// protocol (acquire, use, release; backward, reduce, release), and misuse throws.
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/device.h"
#include "engine/slab.h"
#include "optim/optimizer.h"
#include "program/program.h"
#include "tensor/ledger.h"

namespace onefold {

// What a unit's layout is aligned to, in elements: tensors are aligned in all of its slabs,
// whatever their types, and no block of a state is in two shards.
int64_t slab_alignment(const Homes& homes, const std::vector<OptimizerState>& states);

// The elements of a flat tensor of fp32 in the host's memory.
inline std::span<float> floats_of(Tensor tensor) {
  return {tensor.f32(), static_cast<size_t>(tensor.elems())};
}

// The layout of a state that is whole on each rank: of vectors alone, of matrices' rows and
// columns, or of ratios; `trained`: which of a unit's parameters are.
SlabLayout whole_layout(std::span<const ParamSpec> params, int64_t align_elems, SlabOf trained,
                        OptimizerState::Of of);

class UnitState {
 public:
  // `states`: what the optimizer keeps; empty where nothing is trained. `own_states`: how many
  // states of this rank's own there are. `params`: those of it that this rank has.
  UnitState(Ledger& ledger, const std::string& name, std::span<const ParamSpec> params,
            const UnitTraits& traits, int rank, int ranks,
            const std::vector<OptimizerState>& states, size_t own_states = 0);
  UnitState(const UnitState&) = delete;
  UnitState& operator=(const UnitState&) = delete;

  const SlabLayout& layout() const { return layout_; }  // of parameters, without adapters
  // Of what is trained: adapters, where there are some.
  const SlabLayout& trained_layout() const { return adapters_ ? adapters_layout_ : layout_; }
  const Homes& homes() const { return homes_; }
  int rank() const { return rank_; }  // among those that share it
  bool frozen() const { return frozen_; }
  bool adapted() const { return adapters_.has_value(); }

  // What lives on another tier: memory on the device for it, and what is to be copied there; what
  // is to be copied back; and giving back what is on the device beyond what is at home there.
  std::vector<Transfer> fetch(State state);
  std::vector<Transfer> spill(State state);
  void release(State state);

  // Parameters. acquire() takes memory for the whole where they are sharded; the bytes come through
  // the message. After a step they may be gathered in place.
  void acquire();
  Message gather_message() const { return parameters_.message(); }
  Message stepped_message() const { return trained_parameters().message(); }
  // Of parameters that a node keeps: a gather from what its ranks have, and where this rank's part
  // of what was gathered goes.
  bool in_node() const { return node_ranks_ > 0; }
  Message node_message() const;
  struct NodeCopy {
    void* to = nullptr;
    const void* from = nullptr;
    int64_t bytes = 0;
  };
  NodeCopy node_copy() const;
  Tensor param(int index) const {
    if (adapters_ && adapters_layout_.holds(index))
      return adapters_layout_.view(adapters_->whole(), index);
    return layout_.view(parameters_.whole(), index);
  }
  // Everything that this rank keeps of parameters, where it lives: the slab's, the adapters', the
  // master copy.
  struct Part {
    Tier tier;
    Tensor slab;
    std::vector<SlabPiece> pieces;
  };
  std::vector<Part> parameter_parts() const;

  // Gradients. Memory is taken when a backward first asks for it: backward frees activations as it
  // goes, so the two peaks do not add up. Where they are sharded, the whole is staged, and a
  // reduction puts this rank's piece of the sum into the shard.
  Tensor grad(int index);  // empty if it is not trained
  bool has_gradients() const { return has_gradients_; }
  void begin_reduce();
  Message reduce_message() const { return gradients_.message(); }
  Slab& gradients() { return gradients_; }  // for visitors
  Tensor whole_gradient(int index) const {
    return trained_layout().view(gradients_.whole(), index);
  }
  Tensor gradient_shard() const { return gradients_.shard(); }
  // All of it that this rank's step reads, on the device.
  Tensor gradients_to_step() const {
    return homes_.optimizer.sharded ? gradients_.shard() : gradients_.here();
  }
  // This rank's shard of what is trained, on the device.
  Tensor parameter_shard() const { return trained_parameters().shard(); }
  void drop_gradients();

  // What this rank's optimizer step works on: the shard, or everything where the optimizer is
  // replicated.
  std::vector<SlabPiece> stepped_pieces() const {
    return pieces(trained_layout(), homes_.optimizer.sharded);
  }
  // All of it on the device, or in the host's memory where the host steps.
  bool host_steps() const { return host_steps_; }
  bool has_outbox() const { return outbox_.has_value(); }
  // With the parameters as they are, after a step that was to change nothing.
  void fill_outbox() const;
  Tensor stepped_parameters() const { return of_step(outbox_ ? *outbox_ : trained_parameters()); }
  Tensor stepped_gradients() const { return of_step(gradients_); }
  Tensor stepped_state(int index) const {
    return host_steps_ ? state(index).at_home() : state(index).here();
  }
  // The state that is the master copy of the parameters, or -1.
  int master() const { return master_; }
  int states() const { return static_cast<int>(optimizer_.size()); }
  // The part of a state that belongs to a piece of what this rank steps, found in `slab`, which is
  // all that it has of the state; of rows and columns and of ratios, all of the parameter's. Empty
  // where the parameter has none.
  Tensor part_of(int index, Tensor slab, const SlabPiece& piece) const;
  const OptimizerState& kept(int index) const { return kept_[static_cast<size_t>(index)]; }

  // The parameters that are trained, as exactly as they are kept: the master copy, where there is
  // one.
  Slab& exact_parameters() { return const_cast<Slab&>(std::as_const(*this).exact_parameters()); }
  const Slab& exact_parameters() const {
    return master_ < 0 ? trained_parameters() : state(master_);
  }
  // Those beside adapters.
  Slab& base_parameters() { return parameters_; }

  // What a parameter's momentum is multiplied by where it travels: a place in LAMB's ratios, which
  // is at home in the host's memory where momentum travels. 1 where it has none yet.
  float momentum_scale(Device& device, int param) const;
  void set_momentum_scale(Device& device, int param, float scale);

  // States that are this rank's own, and no other's: f32, of all that is trained, on the device.
  int own_states() const { return static_cast<int>(own_.size()); }
  Tensor own_state(int index) const { return own_[static_cast<size_t>(index)].at_home(); }

  // A state of the optimizer: what a checkpoint takes from its home.
  const Slab& state(int index) const { return optimizer_[static_cast<size_t>(index)]; }

 private:
  std::vector<Slab*> slabs(State state);
  Tensor momentum_scale_of(int param) const;
  const SlabLayout& layout_of(const OptimizerState& state) const;
  std::vector<SlabPiece> pieces(const SlabLayout& layout, bool shard) const {
    return shard ? layout.shard_pieces(rank_) : layout.whole_pieces();
  }
  const Slab& trained_parameters() const { return adapters_ ? *adapters_ : parameters_; }
  Tensor of_step(const Slab& slab) const {
    if (host_steps_) return homes_.optimizer.sharded ? slab.home_shard() : slab.at_home();
    return homes_.optimizer.sharded ? slab.shard() : slab.here();
  }
  Transfer stepped_transfer() const;

  const SlabLayout layout_, adapters_layout_, vectors_layout_, factors_layout_, ratios_layout_;
  const Homes homes_;
  const bool frozen_, host_steps_;
  const int rank_;
  const int node_ranks_;
  int master_ = -1;
  bool has_gradients_ = false;
  Slab parameters_;
  Buffer node_;  // this rank's part of what the node keeps
  std::optional<Slab> adapters_;
  std::optional<Slab> outbox_;  // of parameters that live on the device: what the host has stepped
  Slab gradients_;
  std::vector<OptimizerState> kept_;
  std::vector<Slab> optimizer_, own_;
};

}  // namespace onefold
