// What a step does not keep in forward, and computes again in backward. None of this changes a bit
// of the result.
#pragma once

#include <algorithm>
#include <climits>

#include "model/unit.h"

namespace onefold {

struct Recompute {
  static constexpr int kAll = INT_MAX;

  // Of so many blocks, the first ones: backward comes to them last, when most of what the others
  // kept has been given back.
  int attention = 0;
  int mlp = 0;
  bool joined = false;  // both of a block together, from the block's input alone
  int every = 0;        // instead: all units, in segments of so many, each from its input

  constexpr Recompute() = default;
  constexpr Recompute(int of_attention, int of_mlp) : attention(of_attention), mlp(of_mlp) {}
  // true: of every block only its input is kept.
  constexpr Recompute(bool all) : Recompute(blocks(all ? kAll : 0)) {}  // NOLINT: reads as a switch
  static constexpr Recompute blocks(int count) {
    Recompute policy(count, count);
    policy.joined = true;
    return policy;
  }
  static constexpr Recompute in_segments(int units) {
    Recompute policy;
    policy.every = units;
    return policy;
  }

  constexpr bool any() const { return attention > 0 || mlp > 0 || every > 0; }
  bool operator==(const Recompute&) const = default;
};

// The segment (UnitTraits) of a unit; `number` counts the units that are parts of blocks.
inline int segment_of(const Recompute& policy, BlockPart part, int block, int number) {
  if (part == BlockPart::none) return -1;
  if (policy.every > 0) return number / policy.every;
  // A unit that is both halves of its block is computed again where one of them is.
  const int blocks = part == BlockPart::attention ? policy.attention
                     : part == BlockPart::mlp     ? policy.mlp
                                                  : std::max(policy.attention, policy.mlp);
  if (block >= blocks) return -1;
  return policy.joined ? block : number;
}
inline int segment_of(const Recompute& policy, const Unit& unit, int number) {
  return segment_of(policy, unit.part(), unit.block(), number);
}

}  // namespace onefold
