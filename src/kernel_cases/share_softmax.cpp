// Softmax cross-entropy over shares of the columns: what each tells of its own, and then losses and
// gradients as of the whole.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Logits are cut before each of these columns.
struct Shares {
  int64_t rows, cols;
  std::vector<int64_t> cuts;
  float spread, scale;  // of logits; of gradients, 0: none are wanted
  DType dtype = DType::f32;

  int64_t count() const { return std::ssize(cuts) + 1; }
  int64_t first(int64_t share) const {
    return share == 0 ? 0 : cuts[static_cast<size_t>(share - 1)];
  }
  int64_t size(int64_t share) const {
    return (share + 1 == count() ? cols : cuts[static_cast<size_t>(share)]) - first(share);
  }
};

struct Tensors {
  int logits, stats, losses, scale;
  std::vector<int> targets;  // by share
};

Tensors add_call(Case& c, const Shares& s, HostTensor logits, const std::vector<int32_t>& targets) {
  Tensors t;
  t.logits =
      s.scale > 0 ? c.output("logits", std::move(logits)) : c.input("logits", std::move(logits));
  t.stats = c.output("stats", HostTensor(kShareStats * s.count(), s.rows).clear());
  t.losses = c.output("losses", HostTensor(1, s.rows).clear());
  t.scale = c.input("gradient_scale", row_of(std::vector{s.scale}));
  for (int64_t share = 0; share < s.count(); ++share) {
    std::vector<int32_t> places;
    for (const int32_t target : targets) {
      const int64_t place = target - s.first(share), size = s.size(share);
      places.push_back(
          target < 0 ? target : static_cast<int32_t>(place >= 0 && place < size ? place : size));
    }
    t.targets.push_back(c.input(fmt::format("targets of {}", share), row_of(places)));
  }
  c.run = [=](Call& call) {
    const auto own = [&](int64_t share) {
      return call[t.logits].col_range(s.first(share), s.size(share));
    };
    for (int64_t share = 0; share < s.count(); ++share)
      call.kernels().share_softmax(own(share), call[t.targets[static_cast<size_t>(share)]],
                                   call[t.stats].row_range(kShareStats * share, kShareStats));
    for (int64_t share = 0; share < s.count(); ++share)
      call.kernels().share_cross_entropy(own(share), call[t.targets[static_cast<size_t>(share)]],
                                         call[t.stats], s.scale > 0 ? call[t.scale] : Tensor{},
                                         call[t.losses]);
  };
  return t;
}

std::vector<Expected> oracle(const Case& in, const Shares& s, const Tensors& t,
                             const std::vector<int32_t>& targets) {
  const Doubles x = in[t.logits].doubles();
  const auto at = [&](int64_t row, int64_t col) {
    return x[static_cast<size_t>(row * s.cols + col)];
  };
  Doubles stats(static_cast<size_t>(kShareStats * s.count() * s.rows)), losses, gradient;
  for (int64_t row = 0; row < s.rows; ++row) {
    const int32_t target = targets[static_cast<size_t>(row)];
    double top = -kInf, sum = 0;
    for (int64_t share = 0; share < s.count(); ++share) {
      const auto told = [&](int64_t which) -> double& {
        return stats[static_cast<size_t>((kShareStats * share + which) * s.rows + row)];
      };
      const int64_t begin = s.first(share), end = begin + s.size(share);
      told(0) = -kInf;
      for (int64_t col = begin; col < end; ++col) told(0) = std::max(told(0), at(row, col));
      for (int64_t col = begin; col < end; ++col) told(1) += std::exp(at(row, col) - told(0));
      if (target >= begin && target < end) told(2) = at(row, target);
      top = std::max(top, told(0));
    }
    for (int64_t col = 0; col < s.cols; ++col) sum += std::exp(at(row, col) - top);
    losses.push_back(target < 0 ? 0 : std::log(sum) + top - at(row, target));
    for (int64_t col = 0; col < s.cols; ++col)
      gradient.push_back(target < 0 ? 0
                                    : static_cast<double>(s.scale) *
                                          (std::exp(at(row, col) - top) / sum - (col == target)));
  }
  // As of the whole kernel (cross_entropy.cpp), and one rounding of each share's sum. Sums are up
  // to the number of columns.
  const double error = 46 * kUnit + sum_error(std::min<int64_t>(s.cols, 2048));
  std::vector<Expected> all = {close(t.losses, losses, error, 2 * kUnit),
                               close(t.stats, stats, 0, error)};
  if (s.scale > 0)
    all.push_back(stored(s.dtype, close(t.logits, gradient, static_cast<double>(s.scale) * error)));
  return all;
}

Case shares_case(const Shares& s) {
  std::vector<int32_t> targets;
  for (const double target : random_ints(s.rows, s.cols, 2).doubles())
    targets.push_back(static_cast<int32_t>(target));
  if (s.rows > 2) targets[1] = -1;
  Case c;
  const Tensors t = add_call(c, s, normals(s.rows, s.cols, 1, 3, s.spread).as(s.dtype), targets);
  c.expected = [=](const Case& in) { return oracle(in, s, t, targets); };
  return c;
}

// One row whose loss and gradient are exact: spikes, a share without any probability, magnitudes at
// the ends of the type.
Case row_case(const std::vector<float>& logits, int32_t target, double loss,
              const Doubles& gradient, const std::vector<int64_t>& cuts, DType dtype) {
  Case c;
  const Shares s{1, static_cast<int64_t>(logits.size()), cuts, 1, 1, dtype};
  const Tensors t = add_call(c, s, row_of(logits).as(dtype), {target});
  c.expected = [=](const Case&) {
    return std::vector{exactly(t.losses, {loss}), exactly(t.logits, gradient)};
  };
  return c;
}

Case not_finite_case(float bad, int64_t at, DType dtype) {
  Case c;
  std::vector<float> logits = {1, 2, -kInf, -kInf, 5, 6};
  logits[static_cast<size_t>(at)] = bad;
  const Tensors t = add_call(c, {1, 6, {2, 4}, 1, 1, dtype}, row_of(logits).as(dtype), {1});
  c.expected = [=](const Case&) { return std::vector{Expected{t.losses, {}, {}, true}}; };
  return c;
}

void add_hostile_cases(CaseList& list, DType dtype) {
  const float most = dtype == DType::f16 ? 65504.0f : 3e38f;
  const std::string suffix = type_suffix(dtype);
  const auto add = [&](const std::string& name, std::function<Case()> make) {
    list.push_back({"cross_entropy", "shares: " + name + suffix, std::move(make)});
  };
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{2}, {1, 2, 3}}) {
    const std::string of = fmt::format(", {} shares", cuts.size() + 1);
    add("large logits do not overflow" + of, [=] {
      return row_case({most, -most, 1, 0}, 0, 0, {0, 0, 0, 0}, cuts, dtype);
    });
    add("a share without probability" + of, [=] {
      return row_case({-kInf, -kInf, -kInf, 5}, 3, 0, {0, 0, 0, 0}, cuts, dtype);
    });
    add("a spike elsewhere" + of, [=] {
      return row_case({-1e4f, -1e4f, 1e4f, -1e4f}, 2, 0, {0, 0, 0, 0}, cuts, dtype);
    });
  }
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInf})
    for (const int64_t at : {0, 3, 5})
      add(fmt::format("{} at {} makes the loss not finite", bad, at),
          [=] { return not_finite_case(bad, at, dtype); });
}

void add(CaseList& list, const Shares& s) {
  list.push_back(
      {"cross_entropy",
       fmt::format("shares: {}x{} in {}, spread {}{}{}", s.rows, s.cols, fmt::join(s.cuts, ","),
                   s.spread, s.scale > 0 ? fmt::format(" gradient times {}", s.scale) : "",
                   type_suffix(s.dtype)),
       [=] { return shares_case(s); }});
}

}  // namespace

void add_share_cases(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const float spread : {0.1f, 3.0f, 8.0f})
      for (const std::vector<int64_t>& cuts :
           {std::vector<int64_t>{18}, {1}, {36}, {12, 24}, {5, 17, 18, 30}})
        add(list, {6, 37, cuts, spread, 0.25f, dtype});
    add(list, {6, 37, {18}, 3, 0, dtype});
    add(list, {3, 50257, {25129}, 4, 0.25f, dtype});
    add(list, {67, 2503, {626, 1252, 1878}, 1, 0.5f, dtype});
    add(list, {0, 17, {9}, 1, 1, dtype});
    add_hostile_cases(list, dtype);
  }
}

void add_share_benchmarks(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16})
    list.push_back({"cross_entropy", "shares: 512x50257 in 2" + type_suffix(dtype), [=] {
                      return shares_case({512, 50257, {25129}, 1, 1, dtype});
                    }});
}

}  // namespace onefold::cases
