#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

constexpr PhiloxKey kKey = {0x12345678u, 0x9abcdef0u};
constexpr int64_t kSamples[] = {7, 0x100000007, 0};
constexpr int64_t kTile = 128;  // the kernel's, in queries and in keys

Dropout dropout_of(float rate) { return {rate, kKey, kSamples}; }

Doubles values_of(Tensor t) {
  Doubles values;
  for (int64_t r = 0; r < t.rows; ++r)
    for (int64_t c = 0; c < t.cols; ++c) values.push_back(t.f32()[r * t.stride + c]);
  return values;
}

Doubles magnitudes(Doubles x) {
  for (double& value : x) value = std::abs(value);
  return x;
}

double largest(const Doubles& x) { return *std::max_element(x.begin(), x.end()); }

// Multiples of 1/16 (times a power of two): every product of two heads, a sum of up to 64 products
// of such numbers below 6, is exact in float, so that tolerances need to allow for the softmax and
// what follows alone. Products of any numbers are gemm_test's.
Matrix coarse_matrix(int64_t rows, int64_t cols, uint64_t seed, int64_t stride = 0,
                     float scale = 1) {
  Matrix matrix = random_matrix(rows, cols, seed, stride);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      matrix.at(r, c) = scale * std::round(16 * matrix.at(r, c)) / 16;
  return matrix;
}

// Queries, keys and values as the model hands them over: columns of one buffer, [q | k | v]; over a
// cache, where there are fewer queries than keys, the queries are a buffer of their own.
class Qkv {
 public:
  Qkv(const AttentionShape& s, uint64_t seed, int64_t gap, float scale = 1)
      : q_cols_(s.heads * s.head_dim),
        kv_cols_(s.kv_heads * s.head_dim),
        over_cache_(s.query_length != s.key_length),
        queries_(
            coarse_matrix(s.batch * s.query_length, q_cols_, seed + 1000, q_cols_ + gap, scale)),
        packed_(coarse_matrix(s.batch * s.key_length, q_cols_ + 2 * kv_cols_, seed,
                              q_cols_ + 2 * kv_cols_ + gap, scale)) {}

  Tensor q() { return over_cache_ ? queries_.view() : packed_.view().col_range(0, q_cols_); }
  Tensor k() { return packed_.view().col_range(q_cols_, kv_cols_); }
  Tensor v() { return packed_.view().col_range(q_cols_ + kv_cols_, kv_cols_); }
  Matrix& packed() { return packed_; }

 private:
  int64_t q_cols_, kv_cols_;
  bool over_cache_;
  Matrix queries_, packed_;
};

// ---- The oracle: attention by its definition, in double. ----

// A query and a key that it sees, as offsets: `weight` into [batch, heads, query, key], `row` into
// [batch, heads, query], `query` and `key` to the first element of their heads.
struct Pair {
  size_t weight, row, query, key;
};

template <class Visit>
void for_each_pair(const AttentionShape& s, const Visit& visit) {
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t i = 0; i < s.query_length; ++i)
        for (int64_t j = 0; j <= i + s.key_length - s.query_length; ++j) {
          const int64_t kv_head = h / (s.heads / s.kv_heads);
          const int64_t row = (b * s.heads + h) * s.query_length + i;
          visit(Pair{
              static_cast<size_t>(row * s.key_length + j), static_cast<size_t>(row),
              static_cast<size_t>(((b * s.query_length + i) * s.heads + h) * s.head_dim),
              static_cast<size_t>(((b * s.key_length + j) * s.kv_heads + kv_head) * s.head_dim)});
        }
}

size_t rows_of(const AttentionShape& s) {
  return static_cast<size_t>(s.batch * s.heads * s.query_length);
}
size_t weights_of(const AttentionShape& s) {
  return rows_of(s) * static_cast<size_t>(s.key_length);
}

Doubles scores_of(const AttentionShape& s, const Doubles& q, const Doubles& k) {
  const auto hd = static_cast<size_t>(s.head_dim);
  const double scale = 1 / std::sqrt(static_cast<double>(hd));
  Doubles scores(weights_of(s));
  for_each_pair(s, [&](const Pair& at) {
    double sum = 0;
    for (size_t c = 0; c < hd; ++c) sum += q[at.query + c] * k[at.key + c];
    scores[at.weight] = scale * sum;
  });
  return scores;
}

struct Softmax {
  Doubles probabilities, lse;  // [batch, heads, query, key] (0 for keys not seen), [.., query]
};
Softmax softmax_of(const AttentionShape& s, const Doubles& scores) {
  Softmax r{Doubles(weights_of(s)), Doubles(rows_of(s))};
  Doubles top(rows_of(s), -std::numeric_limits<double>::infinity()), sum(rows_of(s));
  for_each_pair(s, [&](const Pair& at) { top[at.row] = std::max(top[at.row], scores[at.weight]); });
  for_each_pair(s, [&](const Pair& at) {
    r.probabilities[at.weight] = std::exp(scores[at.weight] - top[at.row]);
    sum[at.row] += r.probabilities[at.weight];
  });
  for_each_pair(s, [&](const Pair& at) { r.probabilities[at.weight] /= sum[at.row]; });
  for (size_t row = 0; row < sum.size(); ++row) r.lse[row] = top[row] + std::log(sum[row]);
  return r;
}

// The contract of dropout-inl.h for element ((head * query_length + query) * key_length + key) of
// the sample, for all weights.
Doubles multipliers_of(const AttentionShape& s, const Dropout& dropout) {
  Doubles all(weights_of(s), 1);
  if (dropout.rate == 0) return all;
  const auto of_sample = static_cast<size_t>(s.heads * s.query_length * s.key_length);
  for (size_t i = 0; i < all.size(); ++i) {
    const uint64_t element = i % of_sample, block = element / 4;
    const auto sample = static_cast<uint64_t>(dropout.samples[i / of_sample]);
    const PhiloxWords words =
        philox(dropout.key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                             static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
    const bool kept = philox_uniform(words[element % 4]) >= dropout.rate;
    all[i] = kept ? 1.0f / (1.0f - dropout.rate) : 0.0f;
  }
  return all;
}

Doubles out_of(const AttentionShape& s, const Doubles& probabilities, const Doubles& multipliers,
               const Doubles& v) {
  const auto hd = static_cast<size_t>(s.head_dim);
  Doubles out(rows_of(s) * hd);
  for_each_pair(s, [&](const Pair& at) {
    const double weight = probabilities[at.weight] * multipliers[at.weight];
    for (size_t c = 0; c < hd; ++c) out[at.query + c] += weight * v[at.key + c];
  });
  return out;
}

Doubles forward_of(const AttentionShape& s, const Doubles& q, const Doubles& k, const Doubles& v,
                   const Doubles& multipliers) {
  return out_of(s, softmax_of(s, scores_of(s, q, k)).probabilities, multipliers, v);
}

struct Gradients {
  Doubles dq, dk, dv;
};
// With delta_sign -1. Called on magnitudes with +1 it gives the sum of the magnitudes of all that
// goes into each result: what roundings are relative to.
Gradients backward_of(const AttentionShape& s, const Doubles& probabilities,
                      const Doubles& multipliers, const Doubles& q, const Doubles& k,
                      const Doubles& v, const Doubles& dout, double delta_sign = -1) {
  const auto hd = static_cast<size_t>(s.head_dim);
  const double scale = 1 / std::sqrt(static_cast<double>(hd));
  Gradients g{Doubles(q.size()), Doubles(k.size()), Doubles(v.size())};
  Doubles dprobabilities(weights_of(s)), delta(rows_of(s));
  for_each_pair(s, [&](const Pair& at) {
    double sum = 0;
    for (size_t c = 0; c < hd; ++c) sum += dout[at.query + c] * v[at.key + c];
    dprobabilities[at.weight] = multipliers[at.weight] * sum;
    delta[at.row] += probabilities[at.weight] * dprobabilities[at.weight];
  });
  for_each_pair(s, [&](const Pair& at) {
    const double p = probabilities[at.weight], weight = p * multipliers[at.weight];
    const double dscore = p * (dprobabilities[at.weight] + delta_sign * delta[at.row]) * scale;
    for (size_t c = 0; c < hd; ++c) {
      g.dq[at.query + c] += dscore * k[at.key + c];
      g.dk[at.key + c] += dscore * q[at.query + c];
      g.dv[at.key + c] += weight * dout[at.query + c];
    }
  });
  return g;
}

// ---- Tolerances. ----

int64_t tiles(int64_t length) { return (length + kTile - 1) / kTile; }

// Bounds the relative error of a probability, forward as e^(score - maximum) / sum and backward as
// e^(score - lse).
double probability_error(const AttentionShape& s, const Doubles& q, const Doubles& k) {
  const double top = largest(magnitudes(scores_of(s, q, k)));
  // q·k is exact here, and so is its product with a scale that is a power of two (head_dim 1, 4,
  // 16, 64); any other scale may be multiplied to each term before the sum.
  const auto hd = static_cast<uint64_t>(s.head_dim);
  const bool exact = std::has_single_bit(hd) && std::countr_zero(hd) % 2 == 0;
  const double score_error =
      exact ? 0 : static_cast<double>(hd + 2) * largest(scores_of(s, magnitudes(q), magnitudes(k)));
  // Scores, maxima and lse are up to `top` (lse: and log(keys) < 6 more), their differences up to
  // twice that; exponentials add 4 units (2 ulp), a tile's sum 16, log and division 4. For each
  // tile, sums and results are scaled by one more exponential of a difference of maxima.
  const double softmax_error =
      (5 * top + 40) + static_cast<double>(tiles(s.key_length)) * (2 * top + 6);
  return (2 * score_error + softmax_error) * kUnit;
}

// Terms go through at most a tile's length of roundings in the library's sum over a tile, and one
// for each tile after that.
double chain_error(int64_t length, int64_t repeats = 1) {
  return static_cast<double>(std::min(length, kTile) + repeats * tiles(length) + 4) * kUnit;
}

void expect_within(const char* what, Tensor actual, const Doubles& expected,
                   const Doubles& magnitude, double relative) {
  SCOPED_TRACE(what);
  const Doubles values = values_of(actual);
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i)
    // 1e-30: exponentials below e^-86.9 are 0.
    ASSERT_LE(std::abs(values[i] - expected[i]), relative * magnitude[i] + 1e-30)
        << values[i] << " instead of " << expected[i] << " at row "
        << static_cast<int64_t>(i) / actual.cols << " column "
        << static_cast<int64_t>(i) % actual.cols;
}

// ---- The kernel, with scratch of exactly the size it asks for, which holds no number. ----

struct Forward {
  Matrix out, lse;
};
Forward run_forward(ThreadPool& pool, const AttentionShape& s, Qkv& x, float rate,
                    int64_t gap = 0) {
  const int64_t cols = s.heads * s.head_dim;
  Forward r{Matrix(s.batch * s.query_length, cols, cols + gap),
            Matrix(s.batch * s.heads, s.query_length, s.query_length + gap)};
  r.out.fill(NAN);
  r.lse.fill(NAN);
  Matrix scratch(1, cpu::attention_forward_scratch(s, pool.threads()));
  scratch.fill(NAN);
  cpu::attention_forward(pool, s, x.q(), x.k(), x.v(), r.out.view(), r.lse.view(), dropout_of(rate),
                         scratch.view());
  EXPECT_TRUE(r.out.gaps_untouched());
  EXPECT_TRUE(r.lse.gaps_untouched());
  return r;
}

Qkv run_backward(ThreadPool& pool, const AttentionShape& s, Qkv& x, Forward& y, Matrix& dout,
                 float rate, int64_t gap = 0) {
  Qkv dx(s, 0, gap);
  dx.packed().fill(NAN);
  Matrix scratch(1, cpu::attention_backward_scratch(s, pool.threads()));
  scratch.fill(NAN);
  cpu::attention_backward(pool, s, x.q(), x.k(), x.v(), y.out.view(), dout.view(), y.lse.view(),
                          dx.q(), dx.k(), dx.v(), dropout_of(rate), scratch.view());
  EXPECT_TRUE(dx.packed().gaps_untouched());
  return dx;
}

Matrix random_dout(const AttentionShape& s, int64_t gap = 0) {
  const int64_t cols = s.heads * s.head_dim;
  return coarse_matrix(s.batch * s.query_length, cols, 3, cols + gap);
}

struct Case {
  AttentionShape shape;  // batch, queries, keys, heads, kv_heads, head_dim
  float rate;
  int64_t gap;
  float scale = 1;
};

void check_forward(const Case& c) {
  const AttentionShape& s = c.shape;
  Qkv x(s, 1, c.gap, c.scale);
  const Doubles q = values_of(x.q()), k = values_of(x.k()), v = values_of(x.v());
  const Softmax softmax = softmax_of(s, scores_of(s, q, k));
  const Doubles multipliers = multipliers_of(s, dropout_of(c.rate));
  const Doubles out = out_of(s, softmax.probabilities, multipliers, v);
  const Doubles magnitude = out_of(s, softmax.probabilities, multipliers, magnitudes(v));
  const double p_error = probability_error(s, q, k);
  for_each_target([&] {
    ThreadPool pool(2);
    Forward y = run_forward(pool, s, x, c.rate, c.gap);
    expect_within("out", y.out.view(), out, magnitude, p_error + chain_error(s.key_length));
    // An absolute error of the logarithm is a relative one of the sum.
    expect_within("lse", y.lse.view(), softmax.lse, Doubles(softmax.lse.size(), 1), p_error);
  });
}

void check_backward(const Case& c) {
  const AttentionShape& s = c.shape;
  Qkv x(s, 1, c.gap, c.scale);
  Matrix dout = random_dout(s, c.gap);
  const Doubles q = values_of(x.q()), k = values_of(x.k()), v = values_of(x.v());
  const Doubles p = softmax_of(s, scores_of(s, q, k)).probabilities;
  const Doubles multipliers = multipliers_of(s, dropout_of(c.rate));
  const Gradients g = backward_of(s, p, multipliers, q, k, v, dout.doubles());
  const Gradients size = backward_of(s, p, multipliers, magnitudes(q), magnitudes(k), magnitudes(v),
                                     magnitudes(dout.doubles()), 1);
  // delta = dout · out has the forward's error and that of its own sum; then the probability's, 4
  // roundings of a score's gradient, and the sum over keys, or over queries and the group's heads.
  const double p_error = probability_error(s, q, k);
  const double dscore_error =
      2 * p_error + chain_error(s.key_length) + sum_error(s.head_dim) + 4 * kUnit;
  const int64_t group = s.heads / s.kv_heads;
  for_each_target([&] {
    ThreadPool pool(2);
    Forward y = run_forward(pool, s, x, c.rate, c.gap);
    Qkv dx = run_backward(pool, s, x, y, dout, c.rate, c.gap);
    expect_within("dq", dx.q(), g.dq, size.dq, dscore_error + chain_error(s.key_length));
    expect_within("dk", dx.k(), g.dk, size.dk, dscore_error + chain_error(s.query_length, group));
    expect_within("dv", dx.v(), g.dv, size.dv, p_error + chain_error(s.query_length, group));
  });
}

class AttentionCase : public testing::TestWithParam<Case> {};
class CachedAttentionCase : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionCase,
    testing::Values(Case{{1, 1, 1, 1, 1, 1}, 0, 0}, Case{{3, 2, 2, 2, 2, 3}, 0, 1},
                    Case{{2, 13, 13, 6, 2, 7}, 0.3f, 5}, Case{{1, 37, 37, 3, 1, 5}, 0, 0},
                    Case{{1, 127, 127, 2, 1, 64}, 0.1f, 0}, Case{{1, 128, 128, 1, 1, 16}, 0, 3},
                    Case{{1, 129, 129, 2, 2, 64}, 0.5f, 1}, Case{{2, 150, 150, 6, 2, 7}, 0, 3},
                    Case{{2, 150, 150, 6, 2, 7}, 0.3f, 0}, Case{{1, 257, 257, 2, 1, 64}, 0, 16},
                    Case{{1, 257, 257, 4, 2, 13}, 0.1f, 7}));

// 100 queries over 180 keys: some see no key of the last tile.
INSTANTIATE_TEST_SUITE_P(
    Shapes, CachedAttentionCase,
    testing::Values(Case{{1, 1, 2, 1, 1, 1}, 0, 0}, Case{{1, 1, 128, 2, 2, 7}, 0, 0},
                    Case{{2, 1, 131, 6, 2, 16}, 0, 3}, Case{{1, 1, 385, 6, 2, 64}, 0.2f, 0},
                    Case{{3, 7, 300, 2, 1, 9}, 0, 1}, Case{{2, 100, 180, 3, 1, 7}, 0, 2},
                    Case{{1, 150, 280, 2, 2, 64}, 0.2f, 0}));

TEST_P(AttentionCase, ForwardMatchesTheOracle) { check_forward(GetParam()); }

TEST_P(AttentionCase, BackwardMatchesTheOracle) { check_backward(GetParam()); }

TEST_P(CachedAttentionCase, ForwardMatchesTheOracle) { check_forward(GetParam()); }

TEST(Attention, ScoresFarBeyondTheRangeOfExpMatchTheOracle) {
  // Numbers up to 32 * 5 make scores of several thousand; e^89 is infinite in float.
  const Case large{{1, 150, 150, 2, 1, 64}, 0, 0, 32};
  Qkv x(large.shape, 1, 0, large.scale);
  ASSERT_GT(largest(scores_of(large.shape, values_of(x.q()), values_of(x.k()))), 3000);
  check_forward(large);
  check_backward(large);
}

TEST(Attention, BackwardMatchesFiniteDifferences) {
  for (const Case& c : {Case{{1, 1, 1, 1, 1, 2}, 0, 0}, Case{{2, 5, 5, 6, 2, 7}, 0, 3},
                        Case{{2, 6, 6, 3, 1, 4}, 0.3f, 0}, Case{{1, 11, 11, 2, 2, 3}, 0.1f, 1}}) {
    const AttentionShape& s = c.shape;
    Qkv x(s, 1, c.gap);
    Matrix dout = random_dout(s, c.gap);
    const Doubles q = values_of(x.q()), k = values_of(x.k()), v = values_of(x.v());
    const Doubles d = dout.doubles(), multipliers = multipliers_of(s, dropout_of(c.rate));
    const Doubles dq = gradient_of(
        [&](const Doubles& z) { return dot(d, forward_of(s, z, k, v, multipliers)); }, q);
    const Doubles dk = gradient_of(
        [&](const Doubles& z) { return dot(d, forward_of(s, q, z, v, multipliers)); }, k);
    const Doubles dv = gradient_of(
        [&](const Doubles& z) { return dot(d, forward_of(s, q, k, z, multipliers)); }, v);

    // The oracle of the sizes that are too large for differences. Third derivatives are up to 10
    // times those that kDifferenceError is for: scores move with numbers up to 4, outputs too.
    const Doubles p = softmax_of(s, scores_of(s, q, k)).probabilities;
    const Gradients g = backward_of(s, p, multipliers, q, k, v, d);
    const Gradients size = backward_of(s, p, multipliers, magnitudes(q), magnitudes(k),
                                       magnitudes(v), magnitudes(d), 1);
    const double difference_error = 10 * kDifferenceError;
    for (const auto& [exact, difference] : {std::pair{&g.dq, &dq}, {&g.dk, &dk}, {&g.dv, &dv}})
      for (size_t i = 0; i < exact->size(); ++i)
        ASSERT_NEAR((*exact)[i], (*difference)[i], difference_error);

    // As in check_backward, where the terms are told apart: here lengths are below 16.
    const double relative =
        3 * probability_error(s, q, k) + 2 * chain_error(16, 3) + sum_error(s.head_dim);
    const double absolute =
        relative * std::max({largest(size.dq), largest(size.dk), largest(size.dv)});
    for_each_target([&] {
      ThreadPool pool(2);
      Forward y = run_forward(pool, s, x, c.rate, c.gap);
      Qkv dx = run_backward(pool, s, x, y, dout, c.rate, c.gap);
      for (const auto& [actual, difference] :
           {std::pair{dx.q(), &dq}, {dx.k(), &dk}, {dx.v(), &dv}})
        expect_within("gradient", actual, *difference, Doubles(difference->size(), 1),
                      absolute + difference_error);
    });
  }
}

TEST(Attention, DropoutMaskIsTheScalarContractForwardAndBackward) {
  // Without queries all weights of a row are equal, and with unit vectors for values and gradients
  // out[query] holds the row of weights and dv[key] the column: the mask lies open.
  constexpr int64_t kLength = 150, kHeads = 2;
  const AttentionShape s{2, kLength, kLength, kHeads, kHeads, kLength};
  Qkv x(s, 1, 0);
  x.packed().fill(0);
  Matrix dout(s.batch * kLength, kHeads * kLength);
  const Tensor values = x.v();
  for (int64_t row = 0; row < s.batch * kLength; ++row)
    for (int64_t h = 0; h < kHeads; ++h) {
      values.f32()[row * values.stride + h * kLength + row % kLength] = 1;
      dout.at(row, h * kLength + row % kLength) = 1;
    }
  const Doubles multipliers = multipliers_of(s, dropout_of(0.4f));
  for_each_target([&] {
    ThreadPool pool(2);
    Forward y = run_forward(pool, s, x, 0.4f);
    Qkv dx = run_backward(pool, s, x, y, dout, 0.4f);
    const Tensor dv = dx.v();
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t query = 0; query < kLength; ++query)
          for (int64_t key = 0; key < kLength; ++key) {
            const int64_t element = ((b * kHeads + h) * kLength + query) * kLength + key;
            const double weight = key > query ? 0
                                              : multipliers[static_cast<size_t>(element)] /
                                                    static_cast<double>(query + 1);
            // e^0 is exactly 1 and counts are exact: division, product and, backward, a logarithm
            // and an exponential (scores up to log 150 = 5) are left.
            const double error = 16 * kUnit * weight;
            const int64_t of_query = b * kLength + query, of_key = b * kLength + key;
            ASSERT_NEAR(y.out.at(of_query, h * kLength + key), weight, error);
            ASSERT_NEAR(dv.f32()[of_key * dv.stride + h * kLength + query], weight, error);
          }
  });
}

TEST(Attention, LaterTokensLeaveTheBitsOfEarlierOnes) {
  const AttentionShape s{1, 150, 150, 2, 1, 16};
  constexpr int64_t kSeen = 131;
  for_each_target([&] {
    ThreadPool pool(2);
    Qkv x(s, 1, 0);
    const Forward before = run_forward(pool, s, x, 0.2f);
    for (int64_t row = kSeen; row < s.key_length; ++row)
      for (int64_t col = 0; col < x.packed().cols(); ++col) x.packed().at(row, col) *= 1e6f;
    const Forward after = run_forward(pool, s, x, 0.2f);
    for (int64_t row = 0; row < kSeen; ++row) {
      for (int64_t col = 0; col < before.out.cols(); ++col)
        ASSERT_EQ(after.out.at(row, col), before.out.at(row, col)) << "row " << row;
      for (int64_t h = 0; h < s.heads; ++h)
        ASSERT_EQ(after.lse.at(h, row), before.lse.at(h, row)) << "row " << row;
    }
  });
}

TEST(Attention, BitsDoNotDependOnTheThreads) {
  for (const Case& c : {Case{{2, 150, 150, 6, 2, 7}, 0.3f, 3}, Case{{1, 257, 257, 4, 4, 64}, 0, 0}})
    expect_same_bits_for_any_threads([&](ThreadPool& pool) {
      Qkv x(c.shape, 1, c.gap);
      Matrix dout = random_dout(c.shape);
      Forward y = run_forward(pool, c.shape, x, c.rate);
      Qkv dx = run_backward(pool, c.shape, x, y, dout, c.rate);
      std::vector<float> all = y.out.bits();
      for (const Matrix* m : {&y.lse, &dx.packed()})
        all.insert(all.end(), m->bits().begin(), m->bits().end());
      return all;
    });
}

TEST(Attention, BitsOfACachedQueryDoNotDependOnTheThreads) {
  const AttentionShape s{2, 1, 300, 6, 2, 16};
  expect_same_bits_for_any_threads([&](ThreadPool& pool) {
    Qkv x(s, 1, 0);
    return run_forward(pool, s, x, 0).out.bits();
  });
}

TEST(Attention, BackwardRefusesACache) {
  ThreadPool pool(1);
  const AttentionShape s{1, 2, 3, 1, 1, 4};
  Qkv x(s, 1, 0);
  Forward y = run_forward(pool, s, x, 0);
  Matrix dout = random_dout(s);
  EXPECT_THROW(run_backward(pool, s, x, y, dout, 0), InternalError);
}

}  // namespace
}  // namespace onefold::test
