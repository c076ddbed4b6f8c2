// Optimizers with constants that make every term of their rules count, and their rules in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "engine/options.h"

namespace onefold::test {

struct NamedOptimizer {
  const char* name;
  OptimizerSpec spec;
  friend void PrintTo(const NamedOptimizer& one, std::ostream* out) { *out << one.name; }
};

inline const std::vector<NamedOptimizer>& all_optimizers() {
  using Type = OptimizerSpec::Type;
  static const std::vector<NamedOptimizer> kAll = {
      {"adamw", {.beta2 = 0.95, .weight_decay = 0.1}},
      {"adamw_frozen", {.beta2 = 0.95, .weight_decay = 0.1, .freeze_step = 2}},
      {"adamw_doubling",
       {.beta2 = 0.95, .weight_decay = 0.1, .freeze_step = 9, .variance_scaler = 2}},
      {"lamb_frozen", {.type = Type::lamb, .eps = 1e-6, .weight_decay = 0.1, .freeze_step = 2}},
      {"lamb_trust_frozen",
       {.type = Type::lamb,
        .beta2 = 0.95,
        .eps = 1e-6,
        .weight_decay = 0.1,
        .bias_correction = false,
        .freeze_step = 2,
        .frozen_trust = FrozenTrust{.least = 0.8, .most = 1.5}}},
      {"sgd", {.type = Type::sgd, .weight_decay = 0.1, .momentum = 0.9, .nesterov = true}},
      {"lion", {.type = Type::lion, .beta2 = 0.99, .weight_decay = 0.1}},
      {"lamb", {.type = Type::lamb, .eps = 1e-6, .weight_decay = 0.1}},
      {"lars", {.type = Type::lars, .weight_decay = 0.1, .momentum = 0.9, .trust = 0.02}},
      {"adafactor", {.type = Type::adafactor, .weight_decay = 0.1}},
      {"muon",
       {.type = Type::muon,
        .beta2 = 0.95,
        .eps = 1e-10,
        .weight_decay = 0.1,
        .momentum = 0.95,
        .nesterov = true,
        .adam_rate = 0.5}},
  };
  return kAll;
}

// A parameter in double, with its state.
struct Reference {
  ParamShape shape;
  std::vector<double> values, first, second;
  std::vector<double> fresh = {};  // LAMB's second moment that goes on
  double mean_ratio = 0, last_factor = 1;
};

inline double norm_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

// x [rows, cols] made nearly orthogonal, as Keller Jordan's five lines do it.
inline std::vector<double> newton_schulz(std::vector<double> x, int64_t rows, int64_t cols,
                                         int iterations) {
  const auto product = [](const std::vector<double>& a, const std::vector<double>& b, int64_t m,
                          int64_t k, int64_t n) {
    std::vector<double> dst(static_cast<size_t>(m * n));
    for (int64_t i = 0; i < m; ++i)
      for (int64_t l = 0; l < k; ++l)
        for (int64_t j = 0; j < n; ++j)
          dst[static_cast<size_t>(i * n + j)] +=
              a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(l * n + j)];
    return dst;
  };
  const auto transposed = [](const std::vector<double>& a, int64_t m, int64_t n) {
    std::vector<double> dst(a.size());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j)
        dst[static_cast<size_t>(j * m + i)] = a[static_cast<size_t>(i * n + j)];
    return dst;
  };
  const bool tall = rows > cols;
  if (tall) x = transposed(x, rows, cols);
  const int64_t m = std::min(rows, cols), n = std::max(rows, cols);
  const double size = norm_of(x) + 1e-7;
  for (double& value : x) value /= size;
  for (int step = 0; step < iterations; ++step) {
    const std::vector<double> a = product(x, transposed(x, m, n), m, n, m);
    std::vector<double> b = product(a, a, m, m, m);
    for (size_t i = 0; i < b.size(); ++i) b[i] = -4.7750 * a[i] + 2.0315 * b[i];
    const std::vector<double> bx = product(b, x, m, m, n);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + bx[i];
  }
  return tall ? transposed(x, m, n) : x;
}

// LAMB's step where its ratio stays, as DeepSpeed 0.19.6 has it (OnebitLamb); `mean`: the momentum
// after it.
inline void frozen_lamb_reference(const OptimizerSpec& spec, double rate, double decay,
                                  Reference& p, const std::vector<double>& mean) {
  const FrozenTrust& trust = *spec.frozen_trust;
  const size_t n = p.values.size();
  if (p.fresh.empty()) p.fresh = p.second;
  std::vector<double> plain(n), way(n);
  double largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const double gradient = (mean[i] - spec.beta1 * p.first[i]) / (1 - spec.beta1);
    p.fresh[i] = spec.beta2 * p.fresh[i] + (1 - spec.beta2) * gradient * gradient;
    p.first[i] = mean[i];
    const double root = std::sqrt(p.second[i]) + spec.eps;
    plain[i] = mean[i] / root;
    way[i] = plain[i] + decay * p.values[i];
    largest = std::max(largest, root / (std::sqrt(p.fresh[i]) + spec.eps));
  }
  const double share =
      decay > 0 && norm_of(way) > 0 ? std::min(1.0, norm_of(plain) / norm_of(way)) : 1;
  double factor = largest * share + 1 - share;
  factor = std::clamp(factor, trust.least, trust.most);
  factor = std::clamp(factor, p.last_factor * (1 - trust.threshold),
                      p.last_factor * (1 + trust.threshold));
  p.last_factor = factor;
  for (size_t i = 0; i < n; ++i) p.values[i] -= rate * p.mean_ratio * factor * way[i];
}

// One step (counted from 1) by the rule of `spec`, by gradients `g` that are clipped already.
// `actual`: what the engine has made of it, for elements whose sign no precision decides.
inline void reference_step(const OptimizerSpec& spec, int64_t step, double rate, Reference& p,
                           const std::vector<double>& g, std::span<const float> actual) {
  using Type = OptimizerSpec::Type;
  const size_t n = p.values.size();
  p.first.resize(n);
  p.second.resize(n);
  const double decay = p.shape.matrix || spec.decay_all ? spec.weight_decay : 0;
  const auto count = static_cast<double>(step);
  // How often squares have been taken in, and whether they are now.
  int64_t taken = 0, interval = 1;
  bool frozen = true;
  for (int64_t at = 1; at <= step; ++at) {
    frozen = (spec.freeze_step > 0 && at > spec.freeze_step) || at % interval != 0;
    if (!frozen && ++taken % std::max<int64_t>(spec.variance_scaler, 1) == 0 &&
        spec.variance_scaler > 0)
      interval *= 2;
  }
  const double c1 = 1 - std::pow(spec.beta1, count);
  const double c2 = 1 - std::pow(spec.beta2, static_cast<double>(taken));
  const auto adam_moments = [&](size_t i, double gradient) {
    p.first[i] = spec.beta1 * p.first[i] + (1 - spec.beta1) * gradient;
    if (!frozen) p.second[i] = spec.beta2 * p.second[i] + (1 - spec.beta2) * gradient * gradient;
  };
  const auto adamw = [&](double by) {
    for (size_t i = 0; i < n; ++i) {
      adam_moments(i, g[i]);
      p.values[i] = p.values[i] * (1 - by * decay) -
                    by * (p.first[i] / c1) / (std::sqrt(p.second[i] / c2) + spec.eps);
    }
  };
  switch (spec.type) {
    case Type::adamw:
      return adamw(rate);
    case Type::sgd:
      for (size_t i = 0; i < n; ++i) {
        const double d = g[i] + decay * p.values[i];
        p.first[i] = step == 1 ? d : spec.momentum * p.first[i] + d;
        p.values[i] -= rate * (spec.nesterov ? d + spec.momentum * p.first[i] : p.first[i]);
      }
      return;
    case Type::lion:
      for (size_t i = 0; i < n; ++i) {
        const double kept = spec.beta1 * p.first[i], taken = (1 - spec.beta1) * g[i];
        const double sum = kept + taken;
        p.values[i] = p.values[i] * (1 - rate * decay) - rate * (sum > 0 ? 1 : sum < 0 ? -1 : 0);
        if (std::abs(sum) <= 1e-6 * (std::abs(kept) + std::abs(taken))) p.values[i] = actual[i];
        p.first[i] = spec.beta2 * p.first[i] + (1 - spec.beta2) * g[i];
      }
      return;
    case Type::lamb: {
      std::vector<double> way(n);
      if (spec.frozen_trust && frozen) {
        for (size_t i = 0; i < n; ++i) way[i] = spec.beta1 * p.first[i] + (1 - spec.beta1) * g[i];
        const double corrected = spec.bias_correction ? std::sqrt(c2) / c1 : 1;
        return frozen_lamb_reference(spec, rate * corrected, decay, p, way);
      }
      for (size_t i = 0; i < n; ++i) {
        adam_moments(i, g[i]);
        way[i] = p.first[i] / (std::sqrt(p.second[i]) + spec.eps) + decay * p.values[i];
      }
      const double weight = norm_of(p.values), length = norm_of(way);
      const double ratio = weight > 0 && length > 0
                               ? std::clamp(weight / length, spec.least_trust, spec.most_trust)
                               : 1;
      if (spec.frozen_trust && ratio != 1) {
        const double beta = spec.frozen_trust->beta;
        p.mean_ratio = beta * p.mean_ratio + (1 - beta) * ratio;
      }
      const double corrected = spec.bias_correction ? std::sqrt(c2) / c1 : 1;
      for (size_t i = 0; i < n; ++i) p.values[i] -= rate * corrected * ratio * way[i];
      return;
    }
    case Type::lars: {
      const double weight = norm_of(p.values), gradient = norm_of(g);
      const double local =
          weight > 0 && gradient > 0 ? spec.trust * weight / (gradient + decay * weight) : 1;
      for (size_t i = 0; i < n; ++i) {
        p.first[i] = spec.momentum * p.first[i] + rate * local * (g[i] + decay * p.values[i]);
        p.values[i] -= p.first[i];
      }
      return;
    }
    case Type::adafactor: {
      // PyTorch's, with p.first of rows, p.second of columns; or p.first of elements.
      constexpr double kEps = 0x1p-23;
      const double share = std::pow(count, spec.decay_power);
      const double root = std::sqrt(static_cast<double>(n));
      const double alpha = std::max(spec.parameter_eps, norm_of(p.values) / root) *
                           std::min(rate, 1 / std::sqrt(count));
      std::vector<double> way(n);
      if (!p.shape.matrix) {
        for (size_t i = 0; i < n; ++i) {
          p.first[i] += share * (g[i] * g[i] - p.first[i]);
          way[i] = g[i] / std::sqrt(std::max(p.first[i], kEps * kEps));
        }
      } else {
        const auto rows = static_cast<size_t>(p.shape.rows),
                   cols = static_cast<size_t>(p.shape.cols);
        std::vector<double> of_rows(rows), of_columns(cols);
        for (size_t i = 0; i < n; ++i) {
          of_rows[i / cols] += g[i] * g[i] / static_cast<double>(cols);
          of_columns[i % cols] += g[i] * g[i] / static_cast<double>(rows);
        }
        double mean = 0;
        for (size_t r = 0; r < rows; ++r) {
          p.first[r] += share * (of_rows[r] - p.first[r]);
          mean += p.first[r] / static_cast<double>(rows);
        }
        for (size_t c = 0; c < cols; ++c) p.second[c] += share * (of_columns[c] - p.second[c]);
        for (size_t i = 0; i < n; ++i)
          way[i] = g[i] /
                   std::sqrt(std::max(p.first[i / cols] * p.second[i % cols] / std::max(mean, kEps),
                                      kEps * kEps));
      }
      const double longer = std::max(1.0, norm_of(way) / (root * spec.clip));
      for (size_t i = 0; i < n; ++i)
        p.values[i] = p.values[i] * (1 - rate * decay) - alpha / longer * way[i];
      return;
    }
    case Type::muon: {
      if (!p.shape.hidden) return adamw(rate * spec.adam_rate);
      std::vector<double> way(n);
      for (size_t i = 0; i < n; ++i) {
        p.first[i] = spec.momentum * p.first[i] + (1 - spec.momentum) * g[i];
        way[i] =
            spec.nesterov ? spec.momentum * p.first[i] + (1 - spec.momentum) * g[i] : p.first[i];
      }
      way = newton_schulz(std::move(way), p.shape.rows, p.shape.cols, spec.iterations);
      const double tall =
          std::sqrt(std::max(1.0, static_cast<double>(p.shape.rows) / p.shape.cols));
      for (size_t i = 0; i < n; ++i)
        p.values[i] = p.values[i] * (1 - rate * decay) - rate * tall * way[i];
      return;
    }
  }
}

}  // namespace onefold::test
