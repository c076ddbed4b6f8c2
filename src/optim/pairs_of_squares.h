// Sums of squares over whole tensors, for steps that need them.
#pragma once

#include <algorithm>

#include "optim/whole_tensors.h"

namespace onefold {

// Two sums of squares for each parameter of a unit: of it, and of something else of its shape; or
// of two such things.
class PairsOfSquares {
 public:
  // `largest`: each rank also has a number for each parameter, which all come to know.
  PairsOfSquares(const StepTools& tools, const UnitStep& unit, bool largest = false)
      : tools_(tools), unit_(unit) {
    const int ranks = tools.ranks->ranks();
    const int64_t sums = (2 + (largest ? ranks : 0)) * int64_t{unit.numbers};
    sums_ = tools.arena->take(1, (sums + ranks - 1) / ranks * ranks, DType::f64);
    // What this rank owns nothing of is written by nobody.
    tools_.kernels.fill(matrix(sums_.data, 1, 2 * sums_.cols, DType::f32), 0);
  }

  Tensor of(int number) const { return sums_.col_range(2 * number, 2); }
  // Of all ranks, and this rank's, which is 0 before it is written.
  Tensor largest(int number) const {
    const int ranks = tools_.ranks->ranks();
    return sums_.col_range(2 * int64_t{unit_.numbers} + int64_t{number} * ranks, ranks);
  }
  Tensor own_largest(int number) const {
    return largest(number).col_range(tools_.ranks->rank(), 1);
  }

  // other(part): what else is summed of the parts that this rank owns.
  template <class Other>
  void take(const Other& other) const {
    take(values_of, other);
  }
  template <class One, class Other>
  void take(const One& one, const Other& other) const {
    std::vector<Squares> list;
    for (const SteppedParam& part : unit_.owned) {
      list.push_back({one(part), of(part.number).col_range(0, 1)});
      list.push_back({other(part), of(part.number).col_range(1, 1)});
    }
    const Arena::Scope scope(*tools_.arena);
    const Tensor total = tools_.arena->take(1, 1, DType::f64);
    tools_.kernels.sum_squares(list, sums_, total, tools_.arena->take_bytes(scratch_bytes()));
    tools_.ranks->sum(sums_);
  }

 private:
  // As much on every rank, whatever it owns: at most a shard of each parameter, twice.
  int64_t scratch_bytes() const {
    const int64_t shard = unit_.whole_elems / tools_.ranks->ranks();
    int64_t bytes = 0;
    for (const ParamShape& shape : unit_.shapes)
      bytes += 2 * tools_.kernels.sum_squares_scratch_bytes(std::min(shape.elems(), shard));
    return bytes;
  }

  const StepTools& tools_;
  const UnitStep& unit_;
  Tensor sums_;
};

}  // namespace onefold
