#include "engine/unit_state.h"

namespace onefold {

UnitState::UnitState(Ledger& ledger, const Unit& unit, const UnitTraits& traits, int rank,
                     int ranks, int optimizer_states)
    : ledger_(ledger),
      name_(unit.name()),
      layout_(unit.params(), ranks),
      residence_(traits.residence),
      frozen_(traits.frozen),
      rank_(rank),
      parameters_(take(Kind::parameters, residence_.shard_parameters)) {
  for (int i = 0; i < optimizer_states && !frozen_; ++i)
    optimizer_.push_back(take(Kind::optimizer, residence_.shard_optimizer));
}

Buffer UnitState::take(Kind kind, bool shard) const {
  const int64_t elems = shard ? layout_.shard_elems() : layout_.elems();
  return ledger_.allocate(kind, elems * dtype_bytes(DType::f32), name_);
}

void UnitState::begin_gather() {
  if (!residence_.shard_parameters) return;  // in place, after a step
  require(!gathered_, "{} is gathered twice", name_);
  gathered_ = take(Kind::communication, false);
}

Message UnitState::gather_part() const {
  const Tensor whole = flat(gathered_ ? *gathered_ : parameters_, false);
  return {whole.data, residence_.shard_parameters ? parameters_.data() : shard_of(whole).data,
          layout_.shard_elems()};
}

void UnitState::release_parameters() {
  require(gathered_.has_value(), "{} is released and was not gathered", name_);
  gathered_.reset();
}

Tensor UnitState::param(int index) const {
  require(gathered_ || !residence_.shard_parameters, "{} is used and was not gathered", name_);
  return layout_.view(gathered_ ? gathered_->data() : parameters_.data(), index);
}

Tensor UnitState::held_parameters() const { return flat(parameters_, residence_.shard_parameters); }

std::vector<Piece> UnitState::held_pieces() const {
  return residence_.shard_parameters ? layout_.shard_pieces(rank_) : layout_.whole_pieces();
}

Tensor UnitState::grad(int index) {
  if (frozen_) return {};
  if (!gradients_)
    gradients_ = take(residence_.shard_gradients ? Kind::communication : Kind::gradients, false);
  return layout_.view(gradients_->data(), index);
}

void UnitState::begin_reduce() {
  require(gradients_.has_value(), "{} has no gradients to reduce", name_);
  if (residence_.shard_gradients && !gradient_shard_) gradient_shard_ = take(Kind::gradients, true);
}

Message UnitState::reduce_part() const {
  const Tensor whole = flat(*gradients_, false);
  return {whole.data, gradient_shard_ ? gradient_shard_->data() : shard_of(whole).data,
          layout_.shard_elems()};
}

void UnitState::release_gradients() {
  require(gradient_shard_.has_value(), "{} gives back gradients that were not reduced", name_);
  gradients_.reset();
}

Tensor UnitState::gradient_shard() const {
  if (gradient_shard_) return flat(*gradient_shard_, true);
  require(gradients_.has_value(), "{} has no gradients", name_);
  return shard_of(flat(*gradients_, false));
}

void UnitState::drop_gradients() {
  gradients_.reset();
  gradient_shard_.reset();
}

std::vector<Piece> UnitState::stepped_pieces() const {
  return residence_.shard_optimizer ? layout_.shard_pieces(rank_) : layout_.whole_pieces();
}

Tensor UnitState::stepped_parameters() const {
  const Tensor held = held_parameters();
  return residence_.shard_optimizer && !residence_.shard_parameters ? shard_of(held) : held;
}

Tensor UnitState::stepped_gradients() const {
  return residence_.shard_optimizer ? gradient_shard() : flat(*gradients_, false);
}

Tensor UnitState::stepped_state(int index) const {
  return flat(optimizer_[static_cast<size_t>(index)], residence_.shard_optimizer);
}

}  // namespace onefold
