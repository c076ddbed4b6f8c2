#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace onefold {
namespace {

// The largest logit. NaN has no place in an order: sorting with it is undefined behaviour, and no
// choice among such logits would mean anything.
float checked_top(std::span<const float> logits) {
  float top = -std::numeric_limits<float>::infinity();
  for (size_t token = 0; token < logits.size(); ++token) {
    if (std::isnan(logits[token]))
      user_error(
          "the model's output for token {} is not a number: its weights hold values that are not "
          "finite, or too large to compute with; take an earlier checkpoint",
          token);
    top = std::max(top, logits[token]);
  }
  if (top == -std::numeric_limits<float>::infinity())
    user_error(
        "the model gives every token the probability 0: its weights hold values that are not "
        "finite, or too large to compute with; take an earlier checkpoint");
  return top;
}

// logit - top, where infinity is a limit: logits of +inf are equally likely, and alone.
double below_top(float logit, float top) {
  return logit == top ? 0.0 : static_cast<double>(logit) - top;
}

}  // namespace

void check_sampling(const SamplingOptions& o) {
  if (!(o.temperature >= 0 && std::isfinite(o.temperature)))
    user_error("temperature is {}; it must be 0 (greedy) or larger, and finite", o.temperature);
  if (o.top_k < 0) user_error("top-k is {}; it must be 0 (all tokens) or larger", o.top_k);
  if (!(o.top_p > 0 && o.top_p <= 1))
    user_error("top-p is {}; it must be above 0 and at most 1", o.top_p);
  if (!(o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty)))
    user_error("repetition penalty is {}; it must be above 0 (1 switches it off), and finite",
               o.repetition_penalty);
}

void penalise_repetition(std::span<float> logits, std::span<const int32_t> present,
                         double penalty) {
  if (penalty == 1.0) return;
  std::vector<int32_t> unique(present.begin(), present.end());
  std::sort(unique.begin(), unique.end());
  unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
  for (const int32_t token : unique) {
    float& logit = logits[static_cast<size_t>(token)];
    logit = static_cast<float>(logit > 0 ? logit / penalty : logit * penalty);
  }
}

void log_softmax(std::span<float> logits) {
  const float top = checked_top(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(below_top(logit, top));
  const double shift = std::log(sum);
  for (float& logit : logits) logit = static_cast<float>(below_top(logit, top) - shift);
}

int32_t pick_token(std::span<const float> logits, const SamplingOptions& options, double uniform) {
  const float top = checked_top(logits);
  if (options.temperature == 0)
    return static_cast<int32_t>(std::find(logits.begin(), logits.end(), top) - logits.begin());
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const float la = logits[static_cast<size_t>(a)], lb = logits[static_cast<size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  const bool limited = options.top_k > 0 && options.top_k < static_cast<int64_t>(order.size());
  if (limited) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(), likelier);
    order.resize(static_cast<size_t>(options.top_k));
  } else {
    std::sort(order.begin(), order.end(), likelier);
  }
  std::vector<double> weights(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    weights[i] =
        std::exp(below_top(logits[static_cast<size_t>(order[i])], top) / options.temperature);
  // What has no probability is not drawn, however the sums below round.
  while (weights.back() == 0) weights.pop_back();
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options.top_p < 1) {
    double kept = 0;
    size_t count = 0;
    while (count < weights.size() && kept < options.top_p * total) kept += weights[count++];
    weights.resize(count);
    total = kept;
  }
  double left = uniform * total;
  for (size_t i = 0; i < weights.size(); ++i)
    if ((left -= weights[i]) < 0) return order[i];
  return order[weights.size() - 1];
}

}  // namespace onefold
