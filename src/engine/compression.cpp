#include <algorithm>
#include <cmath>

#include "engine/options.h"

namespace onefold {

WireFormat CompressionOptions::gradients_after(int64_t updates,
                                               const OptimizerSpec& optimizer) const {
  if (updates < whole_steps) return {};
  if (optimizer.variance_scaler > 0 && optimizer.takes_squares(updates + 1)) return {};
  WireFormat format = gradients;
  if (const int64_t done = updates - whole_steps; format.sparse() && done < density_steps) {
    // Four stages of equal length: a quarter of the elements, a sixteenth, ...
    const auto stage = static_cast<double>(4 * done / density_steps);
    format.density = std::max(format.density, std::pow(0.25, stage + 1));
  }
  return format;
}

std::vector<double> CompressionOptions::densities(double density, std::span<const double> squares,
                                                  std::span<const int64_t> shard_elems) {
  constexpr int kHalvings = 200;
  const double least = kLeastDensity * density, most = std::min(1.0, kMostDensity * density);
  std::vector<double> sizes;
  double largest = 0, room = 0;
  for (size_t u = 0; u < squares.size(); ++u) {
    const double elems = static_cast<double>(std::max<int64_t>(shard_elems[u], 1));
    sizes.push_back(std::sqrt(squares[u] / elems));
    largest = std::max(largest, sizes.back());
    room += static_cast<double>(sent_elems(density, shard_elems[u]));
  }
  std::vector<double> found(squares.size(), density);
  if (!(largest > 0)) return found;
  // Whole elements, so that nothing is rounded up after this.
  const auto take = [&](double by) {
    double sum = 0;
    for (size_t u = 0; u < found.size(); ++u) {
      const double elems = static_cast<double>(std::max<int64_t>(shard_elems[u], 1));
      const double share = std::clamp(by * (sizes[u] / largest), least, most);
      const double sent = std::max(1.0, std::floor(share * elems));
      found[u] = sent / elems;
      sum += sent;
    }
    return sum;
  };
  double low = 0, high = 1;
  for (const double size : sizes)  // where every unit has the most
    if (size > 0) high = std::max(high, most / (size / largest));
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (take(middle) <= room ? low : high) = middle;
  }
  take(low);
  return found;
}

std::vector<std::string> CompressionOptions::own_states(int ranks) const {
  if (ranks == 1 || gradients.none() || !feedback) return {};
  if (corrects_momentum) return {"residual", kVelocity};
  return {"residual"};
}

}  // namespace onefold
