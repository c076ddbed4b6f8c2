// Softmax cross-entropy: losses, and gradients in the place of logits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Softmax {
  Doubles probabilities, losses;
};

Softmax softmax_of(const Doubles& logits, int64_t cols, const Doubles& targets) {
  Softmax r{Doubles(logits.size()), {}};
  for (size_t row = 0; row < targets.size(); ++row) {
    const double* x = logits.data() + static_cast<int64_t>(row) * cols;
    double* p = r.probabilities.data() + static_cast<int64_t>(row) * cols;
    const double max = *std::max_element(x, x + cols);
    double sum = 0;
    for (int64_t col = 0; col < cols; ++col) sum += p[col] = std::exp(x[col] - max);
    for (int64_t col = 0; col < cols; ++col) p[col] /= sum;
    r.losses.push_back(
        targets[row] < 0 ? 0 : std::log(sum) + max - x[static_cast<int64_t>(targets[row])]);
  }
  return r;
}

Doubles gradient_in_double(const Softmax& softmax, int64_t cols, const Doubles& targets,
                           double scale) {
  Doubles gradient = softmax.probabilities;
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double target = targets[i / static_cast<size_t>(cols)];
    const bool hit = static_cast<double>(i % static_cast<size_t>(cols)) == target;
    gradient[i] = target < 0 ? 0 : scale * (gradient[i] - (hit ? 1 : 0));
  }
  return gradient;
}

// `scale` of NaN: no gradient is wanted.
struct CaseTensors {
  int logits, targets, losses, scale;
};
CaseTensors add_call(Case& c, HostTensor logits, const std::vector<int32_t>& targets, float scale) {
  const bool gradient = !std::isnan(scale);
  const CaseTensors t{
      gradient ? c.output("logits", std::move(logits)) : c.input("logits", std::move(logits)),
      c.input("targets", row_of(targets)),
      c.output("losses", HostTensor(1, static_cast<int64_t>(targets.size())).clear()),
      gradient ? c.input("gradient_scale", row_of(std::vector{scale})) : -1};
  c.run = [=](Call& call) {
    call.kernels().cross_entropy(call[t.logits], call[t.targets],
                                 gradient ? call[t.scale] : Tensor{}, call[t.losses]);
  };
  return t;
}

struct Params {
  int64_t rows, cols, gap;
  float spread, scale;   // of logits; of gradients
  int64_t ignored = -1;  // a row
  DType dtype = DType::f32;
};

std::vector<int32_t> targets_of(const Params& p) {
  std::vector<int32_t> targets;
  for (const double target : random_ints(p.rows, p.cols, 2).doubles())
    targets.push_back(static_cast<int32_t>(target));
  if (p.ignored >= 0) targets[static_cast<size_t>(p.ignored)] = p.ignored % 2 == 0 ? -1 : -100;
  return targets;
}

Case cross_entropy_case(Params p) {
  Case c;
  const bool gradient = !std::isnan(p.scale);
  const CaseTensors t =
      add_call(c, normals(p.rows, p.cols, 1, p.gap, p.spread).as(p.dtype), targets_of(p), p.scale);
  c.expected = [=](const Case& in) {
    const Doubles logits = in[t.logits].doubles(), targets = in[t.targets].doubles();
    const Softmax softmax = softmax_of(logits, p.cols, targets);
    // Each term of the sum errs by 2 ulp of exp and by the rounding of its argument of up to 40;
    // blocks of 2048 are summed in float and the rest in double.
    const double error = 45 * kUnit + sum_error(std::min<int64_t>(p.cols, 2048));
    std::vector<Expected> all = {close(t.losses, softmax.losses, error, 2 * kUnit)};
    if (!gradient) return all;
    // Probabilities are at most 1; see the loss for their error.
    all.push_back(stored(
        p.dtype,
        close(t.logits, gradient_in_double(softmax, p.cols, targets, p.scale), p.scale * error)));
    if (logits.size() <= 500) {
      const auto loss = [&](const Doubles& v) {
        double sum = 0;
        for (const double one : softmax_of(v, p.cols, targets).losses) sum += one;
        return p.scale * sum;
      };
      all.push_back(stored(
          p.dtype, close(t.logits, gradient_of(loss, logits), p.scale * error + kDifferenceError)));
    }
    return all;
  };
  return c;
}

// One row of these logits, whose loss and gradient are exact.
Case row_case(const std::vector<float>& logits, int32_t target, double loss,
              const Doubles& gradient, DType dtype = DType::f32) {
  Case c;
  const CaseTensors t = add_call(c, row_of(logits).as(dtype), {target}, 1);
  c.expected = [=](const Case&) {
    return std::vector{exactly(t.losses, {loss}), exactly(t.logits, gradient)};
  };
  return c;
}

Case not_finite_case(float bad, int64_t at, DType dtype = DType::f32) {
  Case c;
  HostTensor logits = normals(1, 19, 1).as(dtype);
  logits.set(0, at, bad);
  const CaseTensors t = add_call(c, logits, {2}, 1);
  c.expected = [=](const Case&) { return std::vector{Expected{t.losses, {}, {}, true}}; };
  return c;
}

void add(CaseList& list, const Params& p) {
  std::string name = fmt::format("{}x{}", p.rows, p.cols);
  if (p.gap > 0) name += " strided";
  if (!std::isnan(p.scale)) name += fmt::format(" gradient times {}", p.scale);
  if (p.ignored >= 0) name += " ignored target";
  name += type_suffix(p.dtype);
  list.push_back({"cross_entropy", name, [=] { return cross_entropy_case(p); }});
}

void add_half_cases(CaseList& list, DType dtype) {
  for (const int64_t cols : {1, 17, 1031, 50257}) add(list, {5, cols, 3, 4, kNan, 3, dtype});
  for (const int64_t cols : {1, 3, 37, 64}) add(list, {4, cols, 2, 3, 0.125f, 1, dtype});
  add(list, {5, 50257, 3, 4, 0.25f, 2, dtype});
  add(list, {5, 128256, 0, 1, 0.25f, 2, dtype});
  add(list, {3, 60001, 3, 4, 0.25f, 1, dtype});
  add(list, {67, 2503, 0, 1, 0.5f, -1, dtype});
  // A scale as losses have for f16: gradients are not lost below its smallest numbers.
  add(list, {4, 1031, 2, 3, 1024, 1, dtype});
  add(list, {4, 37, 2, 3, 0, 1, dtype});
  add(list, {0, 17, 0, 1, 1, -1, dtype});
  const std::string suffix = type_suffix(dtype);
  const float most = dtype == DType::f16 ? 65504.0f : 3e38f;
  list.push_back({"cross_entropy", "large logits do not overflow" + suffix, [=] {
                    return row_case({most, -most, 1}, 0, 0, {0, 0, 0}, dtype);
                  }});
  list.push_back({"cross_entropy", "a logit of -infinity has no probability" + suffix, [=] {
                    return row_case({-kInf, 7, -kInf}, 1, 0, {0, 0, 0}, dtype);
                  }});
  for (const float bad : {kNan, kInf})
    for (const int64_t at : {0, 5, 18})
      list.push_back({"cross_entropy",
                      fmt::format("{} at {} makes the loss not finite{}", bad, at, suffix),
                      [=] { return not_finite_case(bad, at, dtype); }});
}

}  // namespace

void add_cross_entropy_cases(CaseList& list) {
  for (const int64_t cols : {1, 2, 17, 1031, 50257}) add(list, {5, cols, 3, 4, kNan, 3});
  for (const int64_t cols : {1, 3, 37, 64}) add(list, {4, cols, 2, 3, 0.125f, 1});
  add(list, {5, 50257, 3, 4, 0.25f, 2});
  add(list, {67, 2503, 0, 1, 0.5f});  // many chunks
  add(list, {4, 37, 2, 3, 0, 1});
  add(list, {0, 17, 0, 1, 1});
  list.push_back({"cross_entropy", "large logits do not overflow", [] {
                    return row_case({3e38f, -3e38f, 1}, 0, 0, {0, 0, 0});
                  }});
  list.push_back({"cross_entropy", "a logit of -infinity has no probability", [] {
                    return row_case({-kInf, 7, -kInf}, 1, 0, {0, 0, 0});
                  }});
  for (const float bad : {kNan, kInf})
    for (const int64_t at : {0, 5, 16, 18})
      list.push_back({"cross_entropy", fmt::format("{} at {} makes the loss not finite", bad, at),
                      [=] { return not_finite_case(bad, at); }});
  for (const DType dtype : kHalfTypes) add_half_cases(list, dtype);
  add_share_cases(list);
}

void add_cross_entropy_benchmarks(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16})
    list.push_back({"cross_entropy", "gradient 512x50257" + type_suffix(dtype), [=] {
                      return cross_entropy_case({512, 50257, 0, 1, 1, -1, dtype});
                    }});
  add_share_benchmarks(list);
}

}  // namespace onefold::cases
