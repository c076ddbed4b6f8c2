// What optimizers' kernels check, and how they cut what they are given.
#pragma once

#include "base/block8.h"
#include "kernels/cpu/chunk.h"
#include "kernels/kernels.h"

namespace onefold::cpu {

inline void check_stepped(const Stepped& s) {
  const Tensor &params = s.params, &grads = s.grads, &master = s.master;
  require(grads.elems() == params.elems() && (master.empty() || master.elems() == params.elems()),
          "an optimizer: {} parameters, {} gradients, a master of {}", params.elems(),
          grads.elems(), master.elems());
  require(params.dtype != DType::f32 || master.empty(),
          "an optimizer: parameters of f32 have no master");
}

inline void check_moment(const char* what, const Stepped& s, const Moment& moment) {
  const int64_t n = s.params.elems();
  require(moment.values.elems() == n, "{}: {} parameters, {} moments", what, n,
          moment.values.elems());
  if (moment.values.dtype == DType::u8)
    require(moment.scales.elems() == ceil_div(n, kBlock8), "{}: {} scales of {} codes", what,
            moment.scales.elems(), n);
  require(moment.values.dtype == DType::f32 || s.rounding, "{}: moments of {} without a rounding",
          what, dtype_name(moment.values.dtype));
}

// Elements [begin, end) of flat tensors.
inline Stepped range_of(const Stepped& s, int64_t begin, int64_t end) {
  Stepped piece{piece_of(s.params.flat(), 0, begin, end), piece_of(s.grads.flat(), 0, begin, end),
                s.master.empty() ? Tensor{} : piece_of(s.master.flat(), 0, begin, end), s.rounding,
                s.factor};
  if (piece.rounding) piece.rounding->first += begin;
  return piece;
}

// What gradients are multiplied by as they are read.
inline float factor_of(const StepControl& control, const Stepped& s) {
  return *(s.factor.empty() ? control.factor : s.factor).f32();
}

}  // namespace onefold::cpu
