// Shapes of training steps for the tests of programs: an embedding, units that are recomputed in
// pairs, and a head, at a stage of ZeRO.
#pragma once

#include <vector>

#include "program/passes.h"

namespace onefold::test {

struct Shape {
  int units = 5;
  int micros = 1;
  Order order = Order::micro_first;
  bool tied = false;              // the head adds to the gradient of the first unit
  std::vector<bool> frozen = {};  // by unit; empty: none

  bool is_frozen(int unit) const { return !frozen.empty() && frozen[static_cast<size_t>(unit)]; }
};

// Sizes differ, so that sums of them do.
inline std::vector<UnitTraits> traits_of(const Shape& shape, int stage) {
  std::vector<UnitTraits> units(static_cast<size_t>(shape.units));
  const int head = shape.units - 1;
  for (int u = 0; u < shape.units; ++u) {
    UnitTraits& unit = units[static_cast<size_t>(u)];
    unit.elems = 100 + 10 * u;
    unit.homes.parameters.sharded = stage >= 3;
    unit.homes.gradients.sharded = stage >= 2;
    unit.homes.optimizer.sharded = stage >= 1;
    unit.frozen = shape.is_frozen(u);
    unit.is_first = u == 0;
    unit.has_loss = u == head;
    unit.segment = u > 0 && u < head ? (u - 1) / 2 : -1;
    unit.forward_reads = {u};
    if (u == head && shape.tied) {
      unit.forward_reads.push_back(0);
      unit.adds_to.push_back(0);
    }
    if (u > 0) unit.backward_reads = unit.forward_reads;
  }
  return units;
}

inline Program plain_step(const Shape& shape, bool recomputes = false, int stage = 0) {
  const std::vector<UnitTraits> units = traits_of(shape, stage);
  Program program =
      build_training_step({.units = units, .micros = shape.micros, .order = shape.order});
  accumulate(program);
  if (recomputes) recompute(program, units);
  return program;
}

}  // namespace onefold::test
