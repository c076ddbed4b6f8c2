#include "kernel_cases/attention_oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace onefold::cases {
namespace {

constexpr int64_t kTile = 128;  // the CPU kernel's, in queries and in keys

int64_t tiles(int64_t length) { return (length + kTile - 1) / kTile; }

// A query and a key that it sees, as offsets: `weight` into [batch, heads, query, key], `row` into
// [batch, heads, query], `query` and `key` to the first element of their heads.
struct Pair {
  size_t weight, row, query, key;
  int64_t head, distance;  // of the key behind the query's own
};

template <class Visit>
void for_each_pair(const AttentionParams& p, const Visit& visit) {
  const std::vector<int32_t> starts = p.starts();
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t h = 0; h < p.heads; ++h)
      for (int64_t i = 0; i < p.queries; ++i) {
        const int64_t own = p.causal ? i + p.keys - p.queries : p.keys - 1;  // the last it sees
        const int64_t document =
            starts.empty() ? 0 : starts[static_cast<size_t>(b * p.queries + i)];
        const int64_t begin = p.window == 0 ? document : std::max(document, own - p.window + 1);
        const int64_t kv_head = h / (p.heads / p.kv_heads);
        const int64_t row = (b * p.heads + h) * p.queries + i;
        for (int64_t j = begin; j <= own; ++j)
          visit(Pair{static_cast<size_t>(row * p.keys + j), static_cast<size_t>(row),
                     static_cast<size_t>(((b * p.queries + i) * p.heads + h) * p.head_dim),
                     static_cast<size_t>(((b * p.keys + j) * p.kv_heads + kv_head) * p.head_dim), h,
                     own - j});
      }
}

size_t rows_of(const AttentionParams& p) {
  return static_cast<size_t>(p.batch * p.heads * p.queries);
}
size_t weights_of(const AttentionParams& p) { return rows_of(p) * static_cast<size_t>(p.keys); }

double scale_of(const AttentionParams& p) {
  return p.score_scale != 0 ? static_cast<double>(p.score_scale)
                            : 1 / std::sqrt(static_cast<double>(p.head_dim));
}

// By the recursive rule of the paper: the slopes of the largest power of two, then every other one
// of those of twice as many heads.
std::vector<double> slopes_of(int64_t heads) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  std::vector<double> slopes;
  for (int64_t i = 1; i <= power; ++i)
    slopes.push_back(std::pow(2.0, -8.0 * static_cast<double>(i) / static_cast<double>(power)));
  if (power == heads) return slopes;
  const std::vector<double> twice = slopes_of(2 * power);
  for (size_t i = 0; std::ssize(slopes) < heads; i += 2) slopes.push_back(twice[i]);
  return slopes;
}

}  // namespace

Doubles attention_biases(const AttentionParams& p) {
  Doubles biases(weights_of(p));
  if (p.alibi == 0) return biases;
  const std::vector<double> slopes = slopes_of(p.alibi_heads);
  for_each_pair(p, [&](const Pair& at) {
    biases[at.weight] = -static_cast<double>(p.alibi) *
                        slopes[static_cast<size_t>(p.first_head + at.head)] *
                        static_cast<double>(at.distance);
  });
  return biases;
}

Doubles attention_scores(const AttentionParams& p, const Doubles& q, const Doubles& k) {
  const auto hd = static_cast<size_t>(p.head_dim);
  const double scale = scale_of(p), cap = static_cast<double>(p.soft_cap);
  Doubles scores = attention_biases(p);
  for_each_pair(p, [&](const Pair& at) {
    double sum = 0;
    for (size_t c = 0; c < hd; ++c) sum += q[at.query + c] * k[at.key + c];
    scores[at.weight] += cap > 0 ? cap * std::tanh(scale * sum / cap) : scale * sum;
  });
  return scores;
}

Doubles attention_slopes(const AttentionParams& p, const Doubles& scores) {
  Doubles slopes(scores.size(), 1);
  const auto cap = static_cast<double>(p.soft_cap);
  for (size_t i = 0; cap > 0 && i < slopes.size(); ++i)
    slopes[i] = 1 - (scores[i] / cap) * (scores[i] / cap);
  return slopes;
}

AttentionSoftmax attention_softmax(const AttentionParams& p, const Doubles& scores) {
  AttentionSoftmax r{Doubles(weights_of(p)), Doubles(rows_of(p))};
  Doubles top(rows_of(p), -std::numeric_limits<double>::infinity()), sum(rows_of(p));
  for_each_pair(p, [&](const Pair& at) { top[at.row] = std::max(top[at.row], scores[at.weight]); });
  for_each_pair(p, [&](const Pair& at) {
    r.probabilities[at.weight] = std::exp(scores[at.weight] - top[at.row]);
    sum[at.row] += r.probabilities[at.weight];
  });
  for_each_pair(p, [&](const Pair& at) { r.probabilities[at.weight] /= sum[at.row]; });
  for (size_t row = 0; row < sum.size(); ++row) r.lse[row] = top[row] + std::log(sum[row]);
  return r;
}

Doubles attention_multipliers(const AttentionParams& p) {
  Doubles all(weights_of(p), 1);
  if (p.rate == 0) return all;
  const auto of_sample = static_cast<size_t>(p.heads * p.queries * p.keys),
             before = static_cast<size_t>(p.first_head * p.queries * p.keys);
  for (size_t i = 0; i < all.size(); ++i)
    all[i] =
        dropout_multiplier(kAttentionKey, static_cast<uint64_t>(kAttentionSamples[i / of_sample]),
                           before + i % of_sample, p.rate);
  return all;
}

Doubles attention_out(const AttentionParams& p, const Doubles& probabilities,
                      const Doubles& multipliers, const Doubles& v) {
  const auto hd = static_cast<size_t>(p.head_dim);
  Doubles out(rows_of(p) * hd);
  for_each_pair(p, [&](const Pair& at) {
    const double weight = probabilities[at.weight] * multipliers[at.weight];
    for (size_t c = 0; c < hd; ++c) out[at.query + c] += weight * v[at.key + c];
  });
  return out;
}

AttentionGradients attention_gradients(const AttentionParams& p, const Doubles& probabilities,
                                       const Doubles& multipliers, const Doubles& q,
                                       const Doubles& k, const Doubles& v, const Doubles& dout,
                                       const Doubles& slopes, double delta_sign) {
  const auto hd = static_cast<size_t>(p.head_dim);
  const double scale = scale_of(p);
  AttentionGradients g{Doubles(q.size()), Doubles(k.size()), Doubles(v.size())};
  Doubles dprobabilities(weights_of(p)), delta(rows_of(p));
  for_each_pair(p, [&](const Pair& at) {
    double sum = 0;
    for (size_t c = 0; c < hd; ++c) sum += dout[at.query + c] * v[at.key + c];
    dprobabilities[at.weight] = multipliers[at.weight] * sum;
    delta[at.row] += probabilities[at.weight] * dprobabilities[at.weight];
  });
  for_each_pair(p, [&](const Pair& at) {
    const double probability = probabilities[at.weight],
                 weight = probability * multipliers[at.weight];
    const double dscore = probability * (dprobabilities[at.weight] + delta_sign * delta[at.row]) *
                          scale * (slopes.empty() ? 1 : slopes[at.weight]);
    for (size_t c = 0; c < hd; ++c) {
      g.dq[at.query + c] += dscore * k[at.key + c];
      g.dk[at.key + c] += dscore * q[at.query + c];
      g.dv[at.key + c] += weight * dout[at.query + c];
    }
  });
  return g;
}

double probability_error(const AttentionParams& p, const Doubles& q, const Doubles& k) {
  const double top = largest(magnitudes(attention_scores(p, q, k)));
  // q·k is exact here, and so is its product with a scale that is a power of two (head_dim 1, 4,
  // 16, 64); any other scale may be multiplied to each term before the sum.
  const auto hd = static_cast<uint64_t>(p.head_dim);
  const bool exact = p.score_scale == 0 && std::has_single_bit(hd) && std::countr_zero(hd) % 2 == 0;
  AttentionParams uncapped = p;
  uncapped.soft_cap = uncapped.alibi = 0;
  double score_error = exact
                           ? 0
                           : static_cast<double>(hd + 2) *
                                 largest(attention_scores(uncapped, magnitudes(q), magnitudes(k)));
  // A cap lets no error grow, and adds those of a quotient, a tanh (5 ulp) and a product.
  if (p.soft_cap > 0) score_error += 14 * top;
  // A slope is rounded once, and so is the sum.
  if (p.alibi > 0) score_error += largest(magnitudes(attention_biases(p))) + top;
  // Scores, maxima and lse are up to `top` (lse: and log(keys) < 6 more), their differences up to
  // twice that; exponentials add 4 units (2 ulp), a tile's sum 16, log and division 4. For each
  // tile, sums and results are scaled by one more exponential of a difference of maxima.
  const double softmax_error = (5 * top + 40) + static_cast<double>(tiles(p.keys)) * (2 * top + 6);
  return (2 * score_error + softmax_error) * kUnit;
}

double chain_error(int64_t length, int64_t repeats) {
  return static_cast<double>(std::min(length, kTile) + repeats * tiles(length) + 4) * kUnit;
}

}  // namespace onefold::cases
