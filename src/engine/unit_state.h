// One unit's training state on one rank: a slab for parameters, gradients and each state of the
// optimizer, each where its home says. Adapters are a further slab of parameters; gradients and
// optimizer state are then theirs, and the rest has none. What is sharded is made whole by a
// protocol (acquire, use, release; backward, reduce, release), and misuse throws.
#pragma once

#include <optional>
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

  const SlabLayout& layout() const { return layout_; }  // of parameters, without adapters
  // Of what is trained: adapters, where there are some.
  const SlabLayout& trained_layout() const { return adapters_ ? adapters_layout_ : layout_; }
  const Homes& homes() const { return homes_; }
  bool frozen() const { return frozen_; }
  bool adapted() const { return adapters_.has_value(); }

  // Parameters. acquire() takes memory for the whole where they are sharded; the bytes come through
  // the message. After a step they may be gathered in place.
  void acquire();
  void release() { parameters_.unstage(); }
  Message gather_message() const { return parameters_.message(); }
  Message stepped_message() const { return trained_parameters().message(); }
  Tensor param(int index) const {
    if (adapters_ && adapters_layout_.holds(index))
      return adapters_layout_.view(adapters_->whole(), index);
    return layout_.view(parameters_.whole(), index);
  }
  Tensor held_parameters() const { return parameters_.held(); }
  std::vector<SlabPiece> held_pieces() const { return pieces(layout_, homes_.parameters.sharded); }
  // Everything that this rank keeps of parameters: the slab's, the adapters', the master copy.
  struct Part {
    Tensor slab;
    std::vector<SlabPiece> pieces;
  };
  std::vector<Part> parameter_parts() const;

  // Gradients. Memory is taken when a backward first asks for it: backward frees activations as it
  // goes, so the two peaks do not add up. Where they are sharded, the whole is staged, and a
  // reduction puts this rank's piece of the sum into the shard.
  Tensor grad(int index);  // empty if it is not trained
  bool has_gradients() const { return gradients_.is_held(); }
  void begin_reduce();
  Message reduce_message() const { return gradients_.message(); }
  void release_gradients() { gradients_.unstage(); }
  void stage_gradients() { gradients_.stage(); }  // to gather them for a visitor
  Tensor whole_gradient(int index) const {
    return trained_layout().view(gradients_.whole(), index);
  }
  Tensor gradient_shard() const { return gradients_.shard(); }
  void drop_gradients() { gradients_.drop(); }

  // What this rank's optimizer step works on: the shard, or everything where the optimizer is
  // replicated.
  std::vector<SlabPiece> stepped_pieces() const {
    return pieces(trained_layout(), homes_.optimizer.sharded);
  }
  Tensor stepped_parameters() const { return of_step(trained_parameters()); }
  Tensor stepped_gradients() const { return of_step(gradients_); }
  Tensor stepped_state(int index) const { return optimizer_[static_cast<size_t>(index)].held(); }
  // The state that is the master copy of the parameters, or -1.
  int master() const { return master_; }
  int states() const { return static_cast<int>(optimizer_.size()); }
  int64_t block(int index) const { return optimizer_[static_cast<size_t>(index)].block(); }

  // The parameters that are trained, as exactly as they are kept: the master copy, where there is
  // one.
  Slab& exact_parameters() { return const_cast<Slab&>(std::as_const(*this).exact_parameters()); }
  const Slab& exact_parameters() const {
    return master_ < 0 ? trained_parameters() : optimizer_[static_cast<size_t>(master_)];
  }
  // Those beside adapters.
  Slab& base_parameters() { return parameters_; }

  // This rank's share of the state, wherever it lives: what a checkpoint takes from it.
  Tensor state_shard(int index) const { return optimizer_[static_cast<size_t>(index)].shard(); }

 private:
  std::vector<SlabPiece> pieces(const SlabLayout& layout, bool shard) const {
    return shard ? layout.shard_pieces(rank_) : layout.whole_pieces();
  }
  const Slab& trained_parameters() const { return adapters_ ? *adapters_ : parameters_; }
  Tensor of_step(const Slab& slab) const {
    return homes_.optimizer.sharded ? slab.shard() : slab.held();
  }

  const SlabLayout layout_, adapters_layout_;
  const Homes homes_;
  const bool frozen_;
  const int rank_;
  int master_ = -1;
  Slab parameters_;
  std::optional<Slab> adapters_;
  Slab gradients_;
  std::vector<Slab> optimizer_;
};

}  // namespace onefold
