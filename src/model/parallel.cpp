// A block whose attention and MLP read the same input: output = input + attention(norm(input)) +
// mlp(norm(input)). It is one unit, for units meet at the residual connection alone; its phases are
// those of the two, which know of each other only that the MLP adds to what attention has left.
//
// Backward takes the MLP first. The norms come last, when neither reads the gradient by output any
// more, which they may overwrite; where there is one norm, it gets the sum of both gradients.
#include <fmt/format.h>

#include "model/unit.h"

namespace onefold {
namespace {

class ParallelBlock final : public Unit {
 public:
  ParallelBlock(const ModelSpec& spec, int block, const Share& share)
      : Unit(spec, share, fmt::format("block.{}", block), block + 1),
        attention_(make_attention(spec, block, share)),
        mlp_(make_mlp_beside(*attention_, spec, block, share)) {
    params_ = mlp_->params();
  }

  int block() const override { return static_cast<int>(layer_) - 1; }
  BlockPart part() const override { return BlockPart::both; }

  int64_t saved_bytes(int64_t batch, int64_t sequence, DType type) const override {
    return attention_->saved_bytes(batch, sequence, type) +
           mlp_->saved_bytes(batch, sequence, type);
  }

  // In backward the MLP's norm is in the place of its last phase, behind attention's.
  int phases(bool backward, int64_t tokens) const override {
    const int all = attention_->phases(backward, tokens) + mlp_->phases(backward, tokens);
    return backward && one_norm() ? all - 1 : all;
  }

  Phase phase(bool backward, int index, int64_t tokens) const override {
    const Place place = place_of(backward, index, tokens);
    return place.unit->phase(backward, place.index, tokens);
  }

  void run(bool backward, int index, UnitCall& call) const override {
    const Place place = place_of(backward, index, call.batch.tokens_count());
    if (backward && one_norm() && index + 1 == phases(true, call.batch.tokens_count())) {
      const Tensor dnormed = gradient_of(*attention_, call);
      call.kernels.add(dnormed, gradient_of(*mlp_, call), dnormed);
    }
    const Tensor all = call.saved;
    const int64_t mark = call.arena_mark;
    call.saved = saved_of(*place.unit, call);
    // Gradients of the MLP's weights may come when attention has begun: what that has taken from
    // the arena stays.
    const bool late = backward && place.unit == mlp_.get() && !call.temps[0].empty();
    if (late) call.arena_mark = call.arena.mark();
    place.unit->run(backward, place.index, call);
    if (late) call.arena_mark = mark;
    call.saved = all;
  }

  Tensor boundary(bool backward, int index, const UnitCall& call) const override {
    const Place place = place_of(backward, index, call.batch.tokens_count());
    return place.unit->boundary(backward, place.index, part_of(*place.unit, call));
  }
  Tensor arrival(bool backward, int index, const UnitCall& call) const override {
    const Place place = place_of(backward, index, call.batch.tokens_count());
    return place.unit->arrival(backward, place.index, part_of(*place.unit, call));
  }

 private:
  struct Place {
    const Unit* unit;
    int index;
  };

  bool one_norm() const { return spec_.parallel == Parallel::one_norm; }

  Place place_of(bool backward, int index, int64_t tokens) const {
    const int of_attention = attention_->phases(backward, tokens),
              of_mlp = mlp_->phases(backward, tokens);
    if (!backward)
      return index < of_attention ? Place{attention_.get(), index}
                                  : Place{mlp_.get(), index - of_attention};
    if (index < of_mlp - 1) return {mlp_.get(), index};
    const int behind = index - (of_mlp - 1);
    return behind < of_attention ? Place{attention_.get(), behind} : Place{mlp_.get(), of_mlp - 1};
  }

  Tensor saved_of(const Unit& part, const UnitCall& call) const {
    const int64_t first =
        attention_->saved_bytes(call.batch.batch, call.batch.sequence, call.type());
    return &part == attention_.get() ? call.saved.col_range(0, first)
                                     : call.saved.col_range(first, call.saved.cols - first);
  }

  UnitCall part_of(const Unit& unit, const UnitCall& call) const {
    UnitCall part = call;
    part.saved = saved_of(unit, call);
    return part;
  }

  // By the normalised input: what the last phase by rows leaves.
  static Tensor gradient_of(const Unit& part, const UnitCall& call) {
    const int64_t tokens = call.batch.tokens_count();
    int index = part.phases(true, tokens) - 1;
    while (!part.phase(true, index, tokens).by_rows) --index;
    return part.boundary(true, index, call);
  }

  const std::unique_ptr<Unit> attention_, mlp_;
};

}  // namespace

std::unique_ptr<Unit> make_parallel(const ModelSpec& spec, int block, const Share& share) {
  return std::make_unique<ParallelBlock>(spec, block, share);
}

}  // namespace onefold
