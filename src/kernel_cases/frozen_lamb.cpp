// LAMB with ratios that stay: its direction, and what a tensor's step is multiplied by.
#include <algorithm>
#include <cmath>

#include "kernel_cases/families.h"
#include "kernel_cases/stepped.h"

namespace onefold::cases {
namespace {

constexpr FrozenLamb kHyper = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-6f, .weight_decay = 0.1f};

FrozenLamb changed(bool inside, bool arrives) {
  FrozenLamb hyper = kHyper;
  hyper.eps_inside = inside;
  hyper.arrives = arrives;
  return hyper;
}

HostTensor squares_of(int64_t n, uint64_t seed) {
  HostTensor values = normals(1, n, seed);
  for (int64_t i = 0; i < n; ++i) values.set(0, i, values.at(0, i) * values.at(0, i) + 0.1f);
  return values;
}

// `begins`: there is no last factor yet, and `fresh` holds nothing. `plain`: it is asked for.
Case frozen_lamb_case(const FrozenLamb& hyper, int64_t n, float factor, bool begins, bool plain,
                      Held held = {}, bool shards = false) {
  Case c;
  const bool skipped = std::isnan(factor);
  const Control control = add_control(c, factor);
  Params t = add_params(c, n, factor, held);
  c.tensors[static_cast<size_t>(t.params)].written = false;
  if (t.master >= 0) c.tensors[static_cast<size_t>(t.master)].written = false;
  const auto state = [&](const char* name, const HostTensor& values) {
    return skipped ? c.input(name, values) : c.output(name, values);
  };
  const int m = state("m", normals(1, n, 3).as(held.moments)),
            v = c.input("v", squares_of(n, 4).as(held.moments)),
            fresh = state("fresh", begins ? HostTensor(1, n).as(held.moments)
                                          : squares_of(n, 5).as(held.moments)),
            ratios = c.input("ratios", row_of(std::vector{0.5f, begins ? 0.0f : 1.0f, 0.0f})),
            largest = state("largest", row_of(std::vector<double>{0})),
            dst = state("dst", HostTensor(1, n)),
            way = plain ? state("plain", HostTensor(1, n)) : -1;
  c.run = [=](Call& call) {
    std::vector<FrozenLambStep> list;
    for (int64_t begin = 0, size = shards ? 1 : n; begin < n; begin += size, size += 7) {
      const int64_t count = std::min(n - begin, size);
      const auto shard = [&](int tensor) { return call[tensor].col_range(begin, count); };
      list.push_back({hyper, t.shard(call, held, begin, count), shard(dst),
                      plain ? shard(way) : Tensor{}, shard(m), shard(v), shard(fresh), call[ratios],
                      call[largest]});
    }
    call.kernels().frozen_lamb(control.of(call), list);
  };
  c.expected = [=](const Case& in) {
    if (skipped) return std::vector<Expected>{};
    const double b1 = hyper.beta1, b2 = hyper.beta2;
    const auto root = [&](double square) {
      return hyper.eps_inside ? std::sqrt(square + hyper.eps) : std::sqrt(square) + hyper.eps;
    };
    Doubles means, squares, plains, ways;
    double most = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double g = double{in[t.grads].at(0, i)} * factor, old = in[m].at(0, i),
                   stays = in[v].at(0, i);
      const double mean = hyper.arrives ? g : b1 * old + (1 - b1) * g;
      const double taken = (mean - b1 * old) / (1 - b1);
      const double after = b2 * (begins ? stays : in[fresh].at(0, i)) + (1 - b2) * taken * taken;
      means.push_back(mean);
      squares.push_back(after);
      plains.push_back(mean / root(stays));
      ways.push_back(plains.back() + double{hyper.weight_decay} * in[t.stepped()].at(0, i));
      most = std::max(most, root(stays) / root(after));
    }
    // As LAMB's direction. A gradient of up to 5 from two means of up to 5 has ten times their
    // roundings, some 100 units; from a mean that arrives, and up to 50, its square has 2 * 50 *
    // 100 units, of which a twentieth is taken in. Root and quotient halve what is relative.
    const double bound = 0.05 * 2 * 60 * 200 * kUnit;
    std::vector<Expected> all = {
        drawn(held.moments, close(m, means, 4 * (5 + 10) * kUnit, 4 * kUnit), first_moment_word),
        drawn(held.moments, close(fresh, squares, bound, 30 * kUnit), second_moment_word),
        close(dst, ways, 16 * 60 * kUnit, 4 * kUnit),
        close(largest, {most}, 0, bound / 0.09 + 100 * kUnit)};
    if (plain) all.push_back(close(way, plains, 16 * 60 * kUnit, 4 * kUnit));
    return all;
  };
  if (shards)
    c.twin = Twin{[=] { return frozen_lamb_case(hyper, n, factor, begins, plain, held); },
                  {{"dst"}, {"m"}, {"fresh"}, {"largest"}}};
  return c;
}

constexpr double kLeast = 0.01, kMost = 10, kBeta = 0.9;
constexpr double kLeastFactor = 0.5, kMostFactor = 4, kThreshold = 0.1;

// `largest`: of each rank; none: before the second moment stays.
Case trust_case(const std::vector<double>& squares, const std::vector<double>& largest,
                const std::vector<float>& before, bool skipped = false) {
  Case c;
  const Control control = add_control(c, skipped ? kNan : 0.5f);
  const auto state = [&](const char* name, const HostTensor& values) {
    return skipped ? c.input(name, values) : c.output(name, values);
  };
  const int s = c.input("squares", row_of(squares)),
            l = largest.empty() ? -1 : c.input("largest", row_of(largest)),
            ratios = state("ratios", row_of(before)),
            dst = state("dst", row_of(std::vector<double>{7}));
  c.run = [=](Call& call) {
    const TensorTrust one{.squares = call[s],
                          .largest = l < 0 ? Tensor{} : call[l],
                          .ratios = call[ratios],
                          .dst = call[dst],
                          .least = kLeast,
                          .most = kMost,
                          .beta = kBeta,
                          .least_factor = kLeastFactor,
                          .most_factor = kMostFactor,
                          .threshold = kThreshold};
    call.kernels().tensor_trust(control.of(call), {&one, 1});
  };
  c.expected = [=](const Case&) {
    if (skipped) return std::vector<Expected>{};
    Doubles after(before.begin(), before.end());
    double step = 1;
    const double first = std::sqrt(squares[0]), second = std::sqrt(squares[1]);
    if (largest.empty()) {
      if (first > 0 && second > 0) step = std::clamp(first / second, kLeast, kMost);
      if (step != 1) after[0] = kBeta * after[0] + (1 - kBeta) * step;
    } else {
      const double share = second > 0 ? std::min(1.0, first / second) : 1;
      double factor = *std::max_element(largest.begin(), largest.end()) * share + 1 - share;
      factor = std::clamp(factor, kLeastFactor, kMostFactor);
      const double last = after[1] == 0 ? 1 : after[1];
      factor = std::clamp(factor, last * (1 - kThreshold), last * (1 + kThreshold));
      after[1] = factor;
      step = after[0] * factor;
    }
    return std::vector<Expected>{close(ratios, after, 0, kUnit), close(dst, {step}, 0, 1e-14)};
  };
  return c;
}

// In the place of a ratio of norms.
Case given_ratio_case() {
  constexpr int64_t n = 1031;
  Case c;
  const Control control = add_control(c, 1);
  const Params t = add_params(c, n, 1, {});
  const int ratio = c.input("ratio", row_of(std::vector<double>{3}));
  c.run = [=](Call& call) {
    const MoveStep one{{.keep = 0.5f, .rate = 0.25f}, t.shard(call, {}, 0, n), {}, call[ratio]};
    call.kernels().move(control.of(call), {&one, 1});
  };
  c.expected = [=](const Case& in) {
    Doubles ps;
    for (int64_t i = 0; i < n; ++i)
      ps.push_back(0.5 * in[t.params].at(0, i) - 0.25 * 3 * in[t.grads].at(0, i));
    return std::vector<Expected>{close(t.params, ps, 8 * 2 * kUnit, 2 * kUnit)};
  };
  return c;
}

}  // namespace

void add_frozen_lamb_cases(CaseList& list) {
  for (const bool arrives : {false, true})
    for (const bool begins : {false, true})
      for (const float factor : {1.0f, 0.5f, kNan})
        for (const int64_t n : {1, 17, 70001})
          list.push_back({"optimizer",
                          fmt::format("frozen lamb {} {}{}{}", n, control_name(factor),
                                      arrives ? " arrives" : "", begins ? " begins" : ""),
                          [=] {
                            return frozen_lamb_case(changed(false, arrives), n, factor, begins,
                                                    !begins);
                          }});
  list.push_back({"optimizer", "frozen lamb eps inside",
                  [] { return frozen_lamb_case(changed(true, false), 1031, 1, false, true); }});
  list.push_back({"optimizer", "frozen lamb 1003 in shards",
                  [] { return frozen_lamb_case(kHyper, 1003, 0.5f, false, true, {}, true); }});
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const Held& held : held_in(type))
      list.push_back({"optimizer", fmt::format("frozen lamb {} 1031", name_of(held)),
                      [=] { return frozen_lamb_case(kHyper, 1031, 0.5f, false, true, held); }});
  struct Named {
    const char* name;
    std::vector<double> squares, largest;
    std::vector<float> before;
  };
  for (const Named& one :
       {Named{"follows", {9, 4}, {}, {0.5f, 0, 0}}, Named{"at most", {1e6, 1}, {}, {0.5f, 0, 0}},
        Named{"at least", {1e-12, 1}, {}, {0.5f, 0, 0}},
        Named{"of no weight", {0, 1}, {}, {0.5f, 0, 0}}, Named{"of one", {4, 4}, {}, {0.5f, 0, 0}},
        Named{"frozen, first", {4, 4}, {0.2, 1.05, 0.9}, {0.5f, 0, 2}},
        Named{"frozen, rising", {4, 4}, {3, 2}, {0.5f, 2, 2}},
        Named{"frozen, falling", {4, 4}, {0.1}, {0.5f, 2, 2}},
        Named{"frozen, at most", {4, 4}, {9}, {0.5f, 3.9f, 2}},
        Named{"frozen, at least", {4, 4}, {0.1}, {0.5f, 0.52f, 2}},
        Named{"frozen, decaying", {1, 4}, {1.1, 0}, {0.5f, 1, 2}},
        Named{"frozen, of nothing", {0, 0}, {1.02}, {0.5f, 1, 2}}})
    list.push_back({"optimizer", fmt::format("trust {}", one.name),
                    [one] { return trust_case(one.squares, one.largest, one.before); }});
  list.push_back({"optimizer", "trust not finite", [] {
                    return trust_case({9, 4}, {1}, {0.5f, 1, 2}, true);
                  }});
  list.push_back({"optimizer", "a move by a given ratio", given_ratio_case});
}

void add_frozen_lamb_benchmarks(CaseList& list) {
  list.push_back({"optimizer", "frozen lamb's direction of 4 Mi parameters",
                  [] { return frozen_lamb_case(kHyper, int64_t{4} << 20, 0.5f, false, true); }});
}

}  // namespace onefold::cases
