// Steps of optimizers whose length, or whose direction, follows from whole tensors. Sums over a
// tensor are taken over each rank's shard and then over ranks in their order, at every ZeRO stage,
// so that all stages have the same bits.
#pragma once

#include "optim/optimizer.h"

namespace onefold {

void lamb_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
               const StepRates& rates, const StepControl& control, const UnitStep& unit);
void lars_step(const StepTools& tools, const OptimizerSpec& spec, const StepRates& rates,
               const StepControl& control, const UnitStep& unit);
void adafactor_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
                    const StepRates& rates, const StepControl& control, const UnitStep& unit);
void muon_step(const StepTools& tools, const OptimizerSpec& spec, int64_t step,
               const StepRates& rates, const StepControl& control, const UnitStep& unit);

// The parts that elementwise optimizers have too (optimizer.cpp).
double decay_of(const OptimizerSpec& spec, const SteppedParam& param);
AdamWStep adamw_step(const OptimizerSpec& spec, int64_t step, const StepRates& rates,
                     const SteppedParam& param);

// What is stepped of a part: its master, or the parameters themselves.
inline Tensor values_of(const SteppedParam& param) {
  return param.stepped.master.empty() ? param.stepped.params : param.stepped.master;
}
// The same with a direction in the place of gradients.
inline Stepped along(const SteppedParam& param, Tensor direction) {
  Stepped stepped = param.stepped;
  stepped.grads = direction;
  return stepped;
}
// This rank's elements of a unit.
inline int64_t stepped_elems(const StepTools& tools, const UnitStep& unit) {
  return unit.sharded ? unit.whole_elems / tools.ranks->ranks() : unit.whole_elems;
}

}  // namespace onefold
