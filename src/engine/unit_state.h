// One unit's training state on one rank: a slab for parameters, gradients and each state of the
// optimizer, each where its home says. What is sharded is made whole by a protocol (acquire, use,
// release; backward, reduce, release), and misuse throws.
#pragma once

#include <utility>
#include <vector>

#include "engine/slab.h"
#include "optim/optimizer.h"
#include "tensor/ledger.h"

namespace onefold {

// What a unit's layout is aligned to, in elements: tensors are aligned in all of its slabs,
// whatever their types, and no block of a state is in two shards.
int64_t slab_alignment(const Homes& homes, const std::vector<OptimizerState>& states);

class UnitState {
 public:
  // `states`: what the optimizer keeps; empty where nothing is trained.
  UnitState(Ledger& ledger, const Unit& unit, const UnitTraits& traits, int rank, int ranks,
            const std::vector<OptimizerState>& states);
  UnitState(const UnitState&) = delete;
  UnitState& operator=(const UnitState&) = delete;

  const SlabLayout& layout() const { return layout_; }
  const Homes& homes() const { return homes_; }
  bool frozen() const { return frozen_; }

  // Parameters. acquire() takes memory for the whole where they are sharded; the bytes come through
  // the message. After a step they may be gathered in place.
  void acquire();
  void release() { parameters_.unstage(); }
  Message gather_message() const { return parameters_.message(); }
  Tensor param(int index) const { return layout_.view(parameters_.whole(), index); }
  Tensor held_parameters() const { return parameters_.held(); }
  std::vector<SlabPiece> held_pieces() const { return pieces(homes_.parameters.sharded); }

  // Gradients. Memory is taken when a backward first asks for it: backward frees activations as it
  // goes, so the two peaks do not add up. Where they are sharded, the whole is staged, and a
  // reduction puts this rank's piece of the sum into the shard.
  Tensor grad(int index);  // empty if frozen
  bool has_gradients() const { return gradients_.is_held(); }
  void begin_reduce();
  Message reduce_message() const { return gradients_.message(); }
  void release_gradients() { gradients_.unstage(); }
  void stage_gradients() { gradients_.stage(); }  // to gather them for a visitor
  Tensor whole_gradient(int index) const { return layout_.view(gradients_.whole(), index); }
  Tensor gradient_shard() const { return gradients_.shard(); }
  void drop_gradients() { gradients_.drop(); }

  // What this rank's optimizer step works on: the shard, or everything where the optimizer is
  // replicated.
  std::vector<SlabPiece> stepped_pieces() const { return pieces(homes_.optimizer.sharded); }
  Tensor stepped_parameters() const { return of_step(parameters_); }
  Tensor stepped_gradients() const { return of_step(gradients_); }
  Tensor stepped_state(int index) const { return optimizer_[static_cast<size_t>(index)].held(); }
  // The state that is the master copy of the parameters, or -1.
  int master() const { return master_; }
  int states() const { return static_cast<int>(optimizer_.size()); }
  int64_t block(int index) const { return optimizer_[static_cast<size_t>(index)].block(); }

  // The parameters as exactly as they are kept: the master copy, where there is one.
  Slab& exact_parameters() { return const_cast<Slab&>(std::as_const(*this).exact_parameters()); }
  const Slab& exact_parameters() const {
    return master_ < 0 ? parameters_ : optimizer_[static_cast<size_t>(master_)];
  }

  // This rank's share of the state, wherever it lives: what a checkpoint takes from it.
  Tensor state_shard(int index) const { return optimizer_[static_cast<size_t>(index)].shard(); }

 private:
  std::vector<SlabPiece> pieces(bool shard) const {
    return shard ? layout_.shard_pieces(rank_) : layout_.whole_pieces();
  }
  Tensor of_step(const Slab& slab) const {
    return homes_.optimizer.sharded ? slab.shard() : slab.held();
  }

  const SlabLayout layout_;
  const Homes homes_;
  const bool frozen_;
  const int rank_;
  int master_ = -1;
  Slab parameters_, gradients_;
  std::vector<Slab> optimizer_;
};

}  // namespace onefold
