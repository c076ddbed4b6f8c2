#include "model/double_kernels.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace onefold::test {

double number_at(const Tensor& x, int64_t row, int64_t col) {
  const int64_t at = row * x.stride + col;
  switch (x.dtype) {
    case DType::f64:
      return x.f64()[at];
    case DType::bf16:
      return widened(x.as<Bf16>()[at]);
    case DType::f16:
      return widened(x.as<F16>()[at]);
    default:
      return x.f32()[at];
  }
}

void set_number(const Tensor& x, int64_t row, int64_t col, double value) {
  const int64_t at = row * x.stride + col;
  const auto single = static_cast<float>(value);
  switch (x.dtype) {
    case DType::f64:
      x.f64()[at] = value;
      break;
    case DType::bf16:
      x.as<Bf16>()[at] = narrowed<Bf16>(single);
      break;
    case DType::f16:
      x.as<F16>()[at] = narrowed<F16>(single);
      break;
    default:
      x.f32()[at] = single;
  }
}

namespace {

using Doubles = std::vector<double>;

void store(const Tensor& x, int64_t row, int64_t col, double value, bool accumulate) {
  set_number(x, row, col, accumulate ? number_at(x, row, col) + value : value);
}

Doubles row_of(const Tensor& x, int64_t row, int64_t first, int64_t count) {
  Doubles values;
  for (int64_t i = 0; i < count; ++i) values.push_back(number_at(x, row, first + i));
  return values;
}

double dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

struct Slope {
  double value, slope;
};

Slope activate(Activation act, double x) {
  switch (act) {
    case Activation::relu:
      return {x > 0 ? x : 0, x > 0 ? 1.0 : 0.0};
    case Activation::gelu: {
      const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
      return {x * below, below + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi)};
    }
    case Activation::gelu_tanh: {
      const double a = std::sqrt(2 / std::numbers::pi);
      const double t = std::tanh(a * (x + 0.044715 * x * x * x));
      return {0.5 * x * (1 + t),
              0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 3 * 0.044715 * x * x)};
    }
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return {x * s, s * (1 + x * (1 - s))};
    }
    case Activation::sigmoid: {
      const double s = 1 / (1 + std::exp(-x));
      return {s, s * (1 - s)};
    }
    case Activation::identity:
      return {x, 1};
  }
  return {};
}

// A row (or one head of it) without its mean, if that is taken off, and divided by its deviation.
struct Normed {
  Doubles values;
  double scale;
};

Normed normalised(Norm norm, Doubles x, double eps) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, square = 0;
  if (norm == Norm::layernorm)
    for (const double value : x) mean += value / n;
  for (double& value : x) value -= mean;
  for (const double value : x) square += value * value / n;
  const double scale = 1 / std::sqrt(square + eps);
  for (double& value : x) value *= scale;
  return {std::move(x), scale};
}

// Rows of a head: those of queries, and those of the keys that they share.
struct Head {
  int64_t query, key, row;  // first columns; the first row of its sequence
};

// visit(b, h, head) for each sequence and head.
template <class Visit>
void for_each_head(const AttentionShape& s, const Visit& visit) {
  require(s.starts.empty() && s.query_length == s.key_length && s.window == 0 && s.soft_cap == 0 &&
              s.alibi == 0,
          "whole sequences only");
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      visit(b, h,
            Head{h * s.head_dim, h / (s.heads / s.kv_heads) * s.head_dim, b * s.query_length});
}

// The probabilities with which a query sees the keys up to its own.
Doubles seen_by(const AttentionShape& s, const Head& head, int64_t query, Tensor q, Tensor k) {
  const Doubles own = row_of(q, head.row + query, head.query, s.head_dim);
  Doubles p;
  double top = -INFINITY, sum = 0;
  for (int64_t key = 0; key <= query; ++key) {
    p.push_back(dot(own, row_of(k, head.row + key, head.key, s.head_dim)) /
                std::sqrt(static_cast<double>(s.head_dim)));
    top = std::max(top, p.back());
  }
  for (double& value : p) sum += value = std::exp(value - top);
  for (double& value : p) value /= sum;
  return p;
}

class DoubleKernels final : public Kernels {
 public:
  int64_t gemm_scratch_bytes(const Gemm&) const override { return 0; }
  int64_t norm_backward_scratch_bytes(int64_t, int64_t, int64_t) const override { return 0; }
  int64_t attention_forward_scratch_bytes(const AttentionShape&) const override { return 0; }
  int64_t attention_backward_scratch_bytes(const AttentionShape&) const override { return 0; }
  int64_t embedding_backward_scratch_bytes(int64_t, int64_t) const override { return 0; }
  int64_t column_sum_scratch_bytes(int64_t, int64_t) const override { return 0; }
  int64_t sum_squares_scratch_bytes(int64_t) const override { return 0; }
  int64_t logits_bytes() const override { return kLogitsBytes; }

  void gemm(const Gemm& g) override {
    const int64_t terms = g.a_transposed ? g.a.rows : g.a.cols;
    for (int64_t r = 0; r < g.dst.rows; ++r)
      for (int64_t c = 0; c < g.dst.cols; ++c) {
        double sum = g.accumulate ? number_at(g.dst, r, c) : 0;
        for (int64_t t = 0; t < terms; ++t)
          sum += (g.a_transposed ? number_at(g.a, t, r) : number_at(g.a, r, t)) *
                 (g.b_transposed ? number_at(g.b, c, t) : number_at(g.b, t, c));
        if (!g.bias.empty()) sum += number_at(g.bias, 0, c);
        if (!g.residual.empty()) sum += number_at(g.residual, r, c);
        set_number(g.dst, r, c, sum);
      }
  }

  void norm_forward(Norm norm, Tensor x, int64_t groups, Tensor weight, Tensor bias, float eps,
                    Tensor dst) override {
    const int64_t n = x.cols / groups;
    for (int64_t row = 0; row < x.rows; ++row)
      for (int64_t group = 0; group < groups; ++group) {
        const Normed normed = normalised(norm, row_of(x, row, group * n, n), double{eps});
        for (int64_t i = 0; i < n; ++i)
          set_number(dst, row, group * n + i,
                     normed.values[static_cast<size_t>(i)] * number_at(weight, 0, i) +
                         (bias.empty() ? 0 : number_at(bias, 0, i)));
      }
  }

  void norm_backward(Norm norm, Tensor x, int64_t groups, Tensor weight, float eps, Tensor dy,
                     Tensor dx, bool accumulate_dx, Tensor dweight, Tensor dbias, Tensor dbefore,
                     bool accumulate_weights, Tensor) override {
    if (!dbefore.empty()) column_sum(dx, dbefore, accumulate_weights, {});
    const int64_t n = x.cols / groups;
    Doubles of_weight(static_cast<size_t>(n)), of_bias(static_cast<size_t>(n));
    for (int64_t row = 0; row < x.rows; ++row)
      for (int64_t group = 0; group < groups; ++group) {
        const Normed normed = normalised(norm, row_of(x, row, group * n, n), double{eps});
        Doubles direction = row_of(dy, row, group * n, n);
        for (size_t i = 0; i < direction.size(); ++i) {
          of_weight[i] += direction[i] * normed.values[i];
          of_bias[i] += direction[i];
          direction[i] *= number_at(weight, 0, static_cast<int64_t>(i));
        }
        double mean = 0;
        if (norm == Norm::layernorm)
          for (const double value : direction) mean += value / static_cast<double>(n);
        const double along = dot(direction, normed.values) / static_cast<double>(n);
        for (size_t i = 0; i < direction.size(); ++i)
          store(dx, row, group * n + static_cast<int64_t>(i),
                normed.scale * (direction[i] - mean - normed.values[i] * along), accumulate_dx);
      }
    for (int64_t i = 0; i < n; ++i) {
      if (!dweight.empty())
        store(dweight, 0, i, of_weight[static_cast<size_t>(i)], accumulate_weights);
      if (!dbias.empty()) store(dbias, 0, i, of_bias[static_cast<size_t>(i)], accumulate_weights);
    }
  }

  void activation_forward(Activation act, bool gated, Tensor x, Tensor dst) override {
    for (int64_t row = 0; row < dst.rows; ++row)
      for (int64_t i = 0; i < dst.cols; ++i)
        set_number(dst, row, i,
                   activate(act, number_at(x, row, i)).value *
                       (gated ? number_at(x, row, dst.cols + i) : 1));
  }

  void activation_backward(Activation act, bool gated, Tensor x, Tensor dy, Tensor dx, Tensor y,
                           const BiasGradient& dbias) override {
    if (!y.empty()) activation_forward(act, gated, x, y);
    for (int64_t row = 0; row < dy.rows; ++row)
      for (int64_t i = 0; i < dy.cols; ++i) {
        const double gradient = number_at(dy, row, i);
        const Slope at = activate(act, number_at(x, row, i));
        set_number(dx, row, i, gradient * at.slope * (gated ? number_at(x, row, dy.cols + i) : 1));
        if (gated) set_number(dx, row, dy.cols + i, gradient * at.value);
      }
    if (!dbias.dst.empty()) column_sum(dx, dbias.dst, dbias.accumulate, {});
  }

  void rope(Tensor x, int64_t heads, Tensor table, const RowPositions& positions,
            bool inverse) override {
    const int64_t half = x.cols / heads / 2;
    for (int64_t row = 0; row < x.rows; ++row)
      for (int64_t i = 0; i < heads * half; ++i) {
        const int64_t position = row % positions.length, low = i / half * 2 * half + i % half;
        const double c = number_at(table, position, i % half),
                     s = number_at(table, position, half + i % half) * (inverse ? -1 : 1);
        const double a = number_at(x, row, low), b = number_at(x, row, low + half);
        set_number(x, row, low, a * c - b * s);
        set_number(x, row, low + half, b * c + a * s);
      }
  }

  void attention_forward(const AttentionShape& s, Tensor q, Tensor k, Tensor v, Tensor out, Tensor,
                         const Dropout&, Tensor) override {
    for_each_head(s, [&](int64_t, int64_t, const Head& head) {
      for (int64_t query = 0; query < s.query_length; ++query) {
        const Doubles p = seen_by(s, head, query, q, k);
        for (int64_t c = 0; c < s.head_dim; ++c) {
          double sum = 0;
          for (size_t key = 0; key < p.size(); ++key)
            sum += p[key] * number_at(v, head.row + static_cast<int64_t>(key), head.key + c);
          set_number(out, head.row + query, head.query + c, sum);
        }
      }
    });
  }

  // What a query's probabilities have in common is taken from the result as it was stored, as every
  // kernel that keeps no probabilities does.
  void attention_backward(const AttentionShape& s, Tensor q, Tensor k, Tensor v, Tensor out,
                          Tensor dout, Tensor, Tensor dq, Tensor dk, Tensor dv, const Dropout&,
                          Tensor) override {
    const auto rows = static_cast<size_t>(k.rows), width = static_cast<size_t>(k.cols);
    Doubles of_k(rows * width), of_v(rows * width);
    const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
    for_each_head(s, [&](int64_t, int64_t, const Head& head) {
      for (int64_t query = 0; query < s.query_length; ++query) {
        const Doubles p = seen_by(s, head, query, q, k);
        const Doubles direction = row_of(dout, head.row + query, head.query, s.head_dim);
        const double common = dot(direction, row_of(out, head.row + query, head.query, s.head_dim));
        Doubles of_q(static_cast<size_t>(s.head_dim));
        for (size_t key = 0; key < p.size(); ++key) {
          const int64_t row = head.row + static_cast<int64_t>(key);
          const double score =
              scale * p[key] * (dot(direction, row_of(v, row, head.key, s.head_dim)) - common);
          for (int64_t c = 0; c < s.head_dim; ++c) {
            const size_t at = static_cast<size_t>(row) * width + static_cast<size_t>(head.key + c);
            of_q[static_cast<size_t>(c)] += score * number_at(k, row, head.key + c);
            of_k[at] += score * number_at(q, head.row + query, head.query + c);
            of_v[at] += p[key] * direction[static_cast<size_t>(c)];
          }
        }
        for (int64_t c = 0; c < s.head_dim; ++c)
          set_number(dq, head.row + query, head.query + c, of_q[static_cast<size_t>(c)]);
      }
    });
    for (int64_t row = 0; row < k.rows; ++row)
      for (int64_t c = 0; c < k.cols; ++c) {
        set_number(dk, row, c, of_k[static_cast<size_t>(row * k.cols + c)]);
        set_number(dv, row, c, of_v[static_cast<size_t>(row * k.cols + c)]);
      }
  }

  void embedding_forward(Tensor tokens, Tensor table, Tensor position_table,
                         const RowPositions& positions, Tensor dst) override {
    for (int64_t row = 0; row < dst.rows; ++row)
      for (int64_t c = 0; c < dst.cols; ++c)
        set_number(
            dst, row, c,
            number_at(table, tokens.i32()[row], c) +
                (position_table.empty() ? 0
                                        : number_at(position_table, row % positions.length, c)));
  }

  void embedding_backward(Tensor tokens, Tensor dx, const RowPositions& positions, Tensor dtable,
                          bool accumulate_table, Tensor dpositions, bool accumulate_positions,
                          Tensor) override {
    add_rows(dx, dtable, accumulate_table, [&](int64_t row) { return int64_t{tokens.i32()[row]}; });
    if (!dpositions.empty())
      add_rows(dx, dpositions, accumulate_positions,
               [&](int64_t row) { return row % positions.length; });
  }

  void cross_entropy(Tensor logits, Tensor targets, Tensor gradient_scale, Tensor losses) override {
    for (int64_t row = 0; row < logits.rows; ++row) {
      Doubles p = row_of(logits, row, 0, logits.cols);
      const int64_t target = targets.i32()[row];
      double top = -INFINITY, sum = 0;
      for (const double value : p) top = std::max(top, value);
      for (const double value : p) sum += std::exp(value - top);
      set_number(losses, 0, row, top + std::log(sum) - p[static_cast<size_t>(target)]);
      if (gradient_scale.empty()) continue;
      for (int64_t c = 0; c < logits.cols; ++c)
        set_number(logits, row, c,
                   (std::exp(p[static_cast<size_t>(c)] - top) / sum - (c == target)) *
                       number_at(gradient_scale, 0, 0));
    }
  }

  void column_sum(Tensor x, Tensor dst, bool accumulate, Tensor) override {
    for (int64_t c = 0; c < x.cols; ++c) {
      double sum = 0;
      for (int64_t row = 0; row < x.rows; ++row) sum += number_at(x, row, c);
      store(dst, 0, c, sum, accumulate);
    }
  }

  void copy(Tensor src, Tensor dst) override {
    for (int64_t row = 0; row < src.rows; ++row)
      for (int64_t c = 0; c < src.cols; ++c) set_number(dst, row, c, number_at(src, row, c));
  }

  void dropout(Tensor, const Dropout&, int64_t, Tensor, Tensor) override { refuse(); }
  void fill(Tensor, float) override { refuse(); }
  void add(Tensor, Tensor, Tensor) override { refuse(); }
  void scale(Tensor, float, Tensor) override { refuse(); }
  void soft_cap(Tensor, float, Tensor) override { refuse(); }
  void soft_cap_backward(Tensor, float, Tensor, Tensor) override { refuse(); }
  void sum(Tensor, Tensor) override { refuse(); }
  void sum_squares(std::span<const Squares>, Tensor, Tensor, Tensor) override { refuse(); }
  void clip(const Clip&) override { refuse(); }
  void clip_each(const ClipEach&) override { refuse(); }
  void clamp(std::span<const Clamp>, float) override { refuse(); }
  void normalise(Tensor, Tensor, float, Tensor) override { refuse(); }
  void adamw(const StepControl&, std::span<const AdamWStep>) override { refuse(); }
  void sgd(const StepControl&, std::span<const SgdStep>) override { refuse(); }
  void lion(const StepControl&, std::span<const LionStep>) override { refuse(); }
  void direction(const StepControl&, std::span<const DirectionStep>) override { refuse(); }
  void frozen_lamb(const StepControl&, std::span<const FrozenLambStep>) override { refuse(); }
  void tensor_trust(const StepControl&, std::span<const TensorTrust>) override { refuse(); }
  void move(const StepControl&, std::span<const MoveStep>) override { refuse(); }
  void factored(const StepControl&, std::span<const Factored>) override { refuse(); }
  void factor_squares(std::span<const FactorSquares>) override { refuse(); }
  void blend(const StepControl&, std::span<const Blend>) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { internal_error("not among the kernels in double"); }

  // dst[place(row)] (+)= the sum over its rows of x, rounded once.
  template <class Place>
  static void add_rows(const Tensor& x, const Tensor& dst, bool accumulate, const Place& place) {
    Doubles sums(static_cast<size_t>(dst.rows * dst.cols));
    for (int64_t row = 0; row < x.rows; ++row)
      for (int64_t c = 0; c < x.cols; ++c)
        sums[static_cast<size_t>(place(row) * x.cols + c)] += number_at(x, row, c);
    for (int64_t row = 0; row < dst.rows; ++row)
      for (int64_t c = 0; c < dst.cols; ++c)
        store(dst, row, c, sums[static_cast<size_t>(row * dst.cols + c)], accumulate);
  }
};

}  // namespace

std::unique_ptr<Kernels> make_double_kernels() { return std::make_unique<DoubleKernels>(); }

}  // namespace onefold::test
