#include <algorithm>
#include <cmath>

#include "engine/options.h"

namespace onefold {

WireFormat CompressionOptions::gradients_after(int64_t steps,
                                               const OptimizerSpec& optimizer) const {
  if (steps < whole_steps) return {};
  if (optimizer.variance_scaler > 0 && optimizer.takes_squares(steps + 1)) return {};
  WireFormat format = gradients;
  if (const int64_t done = steps - whole_steps; format.sparse() && done < density_steps) {
    // Four stages of equal length: a quarter of the elements, a sixteenth, ...
    const auto stage = static_cast<double>(4 * done / density_steps);
    format.density = std::max(format.density, std::pow(0.25, stage + 1));
  }
  return format;
}

std::vector<std::string> CompressionOptions::own_states(int ranks) const {
  if (ranks == 1 || gradients.none() || !feedback) return {};
  if (corrects_momentum) return {"residual", "velocity"};
  return {"residual"};
}

}  // namespace onefold
