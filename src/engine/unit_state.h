// One unit's training state on one rank: parameters, gradients and optimizer state, each whole or
// as this rank's shard, as its residence says. What is sharded is made whole by a protocol (gather,
// use, release; backward, reduce, release), and misuse throws.
#pragma once

#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "engine/slab.h"
#include "program/passes.h"
#include "tensor/ledger.h"

namespace onefold {

class UnitState {
 public:
  // `optimizer_states`: tensors of state for each parameter; 0 where nothing is trained.
  UnitState(Ledger& ledger, const Unit& unit, const UnitTraits& traits, int rank, int ranks,
            int optimizer_states);

  const SlabLayout& layout() const { return layout_; }
  const Residence& residence() const { return residence_; }
  bool frozen() const { return frozen_; }

  // Parameters. begin_gather takes memory for the whole; the bytes come through gather_part.
  void begin_gather();
  Message gather_part() const;
  void release_parameters();
  Tensor param(int index) const;  // whole
  // The elements that this rank holds between steps, and what they are.
  Tensor held_parameters() const;
  std::vector<Piece> held_pieces() const;

  // Gradients. Memory is taken when a backward first asks for it: backward frees activations as it
  // goes, so the two peaks do not add up.
  Tensor grad(int index);
  bool has_gradients() const { return gradients_.has_value(); }
  void begin_reduce();
  Message reduce_part() const;
  void release_gradients();       // the whole ones, after a reduction into a shard
  Tensor gradient_shard() const;  // this rank's piece of the sum
  void drop_gradients();          // after the step

  // This rank's share of the state, whatever its residence: what a checkpoint takes from it.
  Tensor parameter_shard() const {
    return residence_.shard_parameters ? held_parameters() : shard_of(held_parameters());
  }
  Tensor state_shard(int index) const {
    return residence_.shard_optimizer ? stepped_state(index) : shard_of(stepped_state(index));
  }

  // What this rank's optimizer step works on: the shard, or everything where the optimizer is
  // replicated.
  std::vector<Piece> stepped_pieces() const;
  Tensor stepped_parameters() const;
  Tensor stepped_gradients() const;
  Tensor stepped_state(int index) const;

 private:
  bool sharded() const { return layout_.ranks() > 1; }
  Tensor shard_of(Tensor whole) const {
    return whole.col_range(rank_ * layout_.shard_elems(), layout_.shard_elems());
  }
  Buffer take(Kind kind, bool shard) const;
  Tensor flat(const Buffer& buffer, bool shard) const {
    return buffer.as(1, shard ? layout_.shard_elems() : layout_.elems());
  }

  Ledger& ledger_;
  const std::string name_;
  const SlabLayout layout_;
  const Residence residence_;
  const bool frozen_;
  const int rank_;
  Buffer parameters_;
  std::optional<Buffer> gathered_;        // parameters made whole, where they are sharded
  std::optional<Buffer> gradients_;       // whole, from the first backward
  std::optional<Buffer> gradient_shard_;  // the sum's piece, where gradients are sharded
  std::vector<Buffer> optimizer_;
};

}  // namespace onefold
