#include "kernel_cases/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace onefold::cases {
namespace {

HostTensor ints(int64_t rows, const std::vector<int64_t>& values) {
  const std::vector<int32_t> narrow(values.begin(), values.end());
  HostTensor made(rows, static_cast<int64_t>(values.size()) / rows, 0, DType::i32);
  std::memcpy(made.bytes().data(), narrow.data(), narrow.size() * sizeof(int32_t));
  return made;
}

size_t place(int64_t row, int64_t cols, int64_t col) {
  return static_cast<size_t>(row * cols + col);
}

}  // namespace

Doubles scores_of(const RouterRule& rule, const Doubles& logits, int64_t token) {
  const auto begin = logits.begin() + token * rule.experts;
  Doubles row(begin, begin + rule.experts);
  if (rule.scores == RouterScores::sigmoid) {
    for (double& x : row) x = 1 / (1 + std::exp(-x));
    return row;
  }
  double largest = -INFINITY, sum = 0;
  for (const double x : row) largest = std::max(largest, x);
  for (double& x : row) sum += x = std::exp(x - largest);
  for (double& x : row) x /= sum;
  return row;
}

Doubles weights_of(const RouterRule& rule, const Doubles& logits,
                   const std::vector<int64_t>& experts) {
  Doubles weights;
  for (int64_t token = 0; token < rule.tokens; ++token) {
    const Doubles scores = scores_of(rule, logits, token);
    double sum = 1e-20;
    for (int64_t j = 0; j < rule.choices; ++j)
      sum += scores[static_cast<size_t>(experts[place(token, rule.choices, j)])];
    for (int64_t j = 0; j < rule.choices; ++j) {
      const double own = scores[static_cast<size_t>(experts[place(token, rule.choices, j)])];
      weights.push_back(rule.normalised ? own / sum : own);
    }
  }
  return weights;
}

RoutingOracle routing_of(const RouterRule& rule, const Doubles& logits) {
  RoutingOracle r;
  std::vector<std::vector<int64_t>> taken(static_cast<size_t>(rule.experts));
  r.counts.resize(static_cast<size_t>(rule.experts));
  for (int64_t token = 0; token < rule.tokens; ++token) {
    std::vector<int64_t> order(static_cast<size_t>(rule.experts));
    std::iota(order.begin(), order.end(), 0);
    const auto rank = [&](int64_t e) {
      const double x = logits[place(token, rule.experts, e)];
      return std::isnan(x) ? -INFINITY : x;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return rank(a) > rank(b); });
    for (int64_t j = 0; j < rule.choices; ++j) {
      const int64_t expert = order[static_cast<size_t>(j)];
      r.experts.push_back(expert);
      const int64_t before = r.counts[static_cast<size_t>(expert)]++;
      if (rule.capacity == 0 || before < rule.capacity)
        taken[static_cast<size_t>(expert)].push_back(token * rule.choices + j);
    }
  }
  r.weights = weights_of(rule, logits, r.experts);
  r.places.assign(r.experts.size(), -1);
  for (const std::vector<int64_t>& choices : taken) {
    r.offsets.push_back(static_cast<int64_t>(r.sources.size()));
    for (const int64_t choice : choices) {
      r.places[static_cast<size_t>(choice)] = static_cast<int64_t>(r.sources.size());
      r.sources.push_back(choice);
    }
  }
  r.offsets.push_back(static_cast<int64_t>(r.sources.size()));
  r.sources.resize(r.experts.size(), -1);
  return r;
}

RoutingTensors read_routing(Case& c, const RouterRule& rule, const RoutingOracle& r) {
  HostTensor weights(rule.tokens, rule.choices);
  for (int64_t i = 0; i < weights.elems(); ++i)
    weights.set(i / rule.choices, i % rule.choices,
                static_cast<float>(r.weights[static_cast<size_t>(i)]));
  return {c.input("experts", ints(rule.tokens, r.experts)), c.input("weights", weights),
          c.input("places", ints(rule.tokens, r.places)),   c.input("sources", ints(1, r.sources)),
          c.input("offsets", ints(1, r.offsets)),           c.input("counts", ints(1, r.counts))};
}

RoutingTensors written_routing(Case& c, const RouterRule& rule) {
  const auto cleared = [](int64_t rows, int64_t cols, DType dtype) {
    return HostTensor(rows, cols, 0, dtype).clear();
  };
  const int64_t t = rule.tokens, k = rule.choices, n = rule.experts;
  return {c.output("experts", cleared(t, k, DType::i32)),
          c.output("weights", cleared(t, k, DType::f32)),
          c.output("places", cleared(t, k, DType::i32)),
          c.output("sources", cleared(1, t * k, DType::i32)),
          c.output("offsets", cleared(1, n + 1, DType::i32)),
          c.output("counts", cleared(1, n, DType::i32))};
}

}  // namespace onefold::cases
