// Lion, directions and moves of steps that know whole tensors, and clipping by value and by tensor.
#include <algorithm>
#include <cmath>

#include "kernel_cases/families.h"
#include "kernel_cases/stepped.h"

namespace onefold::cases {
namespace {

// A tensor that a step writes, unless it is skipped: then it keeps its bits.
int add_state(Case& c, bool skipped, const char* name, const HostTensor& values) {
  return skipped ? c.input(name, values) : c.output(name, values);
}

// Whole, or in shards that begin anywhere: add(begin, count).
template <class Add>
void each_shard(int64_t n, bool shards, const Add& add) {
  for (int64_t begin = 0, size = shards ? 1 : n; begin < n; begin += size, size += 7)
    add(begin, std::min(n - begin, size));
}

constexpr Lion kLion = {
    .learning_rate = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f, .weight_decay = 0.1f};

// Gradients and momenta are far enough from cancelling each other that a sign is never rounding's,
// or both zero.
Case lion_case(int64_t n, float factor, bool shards = false, Held held = {}) {
  Case c;
  const bool skipped = std::isnan(factor);
  const Control control = add_control(c, factor);
  const Params t = add_params(c, n, factor, held);
  HostTensor momentum = normals(1, n, 3).as(held.moments);
  for (int64_t i = 0; i < n && !skipped; ++i) {
    if (i % 5 == 0) {
      c[t.grads].set(0, i, 0);
      momentum.set(0, i, 0);
    } else if (std::abs(momentum.at(0, i)) < 0.05f || std::abs(c[t.grads].at(0, i)) < 0.05f ||
               (momentum.at(0, i) < 0) != (c[t.grads].at(0, i) < 0)) {
      c[t.grads].set(0, i, i % 2 ? 1 : -1);
      momentum.set(0, i, i % 2 ? 0.5f : -0.5f);
    }
  }
  const int m = add_state(c, skipped, "m", momentum);
  c.run = [=](Call& call) {
    std::vector<LionStep> list;
    each_shard(n, shards, [&](int64_t begin, int64_t count) {
      list.push_back({kLion, t.shard(call, held, begin, count), call[m].col_range(begin, count)});
    });
    call.kernels().lion(control.of(call), list);
  };
  c.expected = [=](const Case& in) {
    if (skipped) return std::vector<Expected>{};
    Doubles ps, ms;
    for (int64_t i = 0; i < n; ++i) {
      const double g = static_cast<double>(in[t.grads].at(0, i)) * factor, old = in[m].at(0, i);
      const double mixed = kLion.beta1 * old + (1 - double{kLion.beta1}) * g;
      ms.push_back(kLion.beta2 * old + (1 - double{kLion.beta2}) * g);
      ps.push_back(in[t.stepped()].at(0, i) *
                       (1 - double{kLion.learning_rate} * kLion.weight_decay) -
                   kLion.learning_rate * (mixed > 0   ? 1
                                          : mixed < 0 ? -1
                                                      : 0));
    }
    // 1 - beta2 = 0.01 is rounded once in float, a hundred units of it; then three roundings.
    std::vector<Expected> all = {
        drawn(held.moments, close(m, ms, 5 * 4 * kUnit), first_moment_word)};
    add_expected(all, held, t, close(t.stepped(), ps, 2 * kUnit, 4 * kUnit));
    return all;
  };
  if (shards) c.twin = Twin{[=] { return lion_case(n, factor, false, held); }, {{"p"}, {"m"}}};
  return c;
}

constexpr Direction kLamb = {.rule = Direction::Rule::lamb,
                             .beta1 = 0.9f,
                             .beta2 = 0.95f,
                             .eps = 1e-6f,
                             .weight_decay = 0.1f};
constexpr Direction kLambInside = [] {
  Direction rule = kLamb;
  rule.eps_inside = true;
  return rule;
}();
constexpr Direction kLars = {.rule = Direction::Rule::lars,
                             .beta1 = 0.9f,
                             .weight_decay = 0.1f,
                             .learning_rate = 0.5f,
                             .trust = 0.01f};
constexpr Direction kMuon = {.rule = Direction::Rule::muon, .beta1 = 0.95f};
constexpr Direction kNesterovMuon = {
    .rule = Direction::Rule::muon, .beta1 = 0.95f, .nesterov = true};

constexpr Direction kAdafactor = {.rule = Direction::Rule::adafactor, .beta1 = 0.9f, .eps = 1e-3f};

// In double; `factor` as it is, `squares` of the parameter and its gradient.
struct Direct {
  double way, mean, square;
};
Direct direct(const Direction& hyper, double factor, const Doubles& squares, double g, double p,
              double m, double v) {
  g *= factor;
  const double b1 = hyper.beta1, b2 = hyper.beta2, wd = hyper.weight_decay;
  if (hyper.rule == Direction::Rule::lamb) {
    const double mean = b1 * m + (1 - b1) * g, square = b2 * v + (1 - b2) * g * g;
    const double root =
        hyper.eps_inside ? std::sqrt(square + hyper.eps) : std::sqrt(square) + hyper.eps;
    return {mean / root + wd * p, mean, square};
  }
  if (hyper.rule == Direction::Rule::lars) {
    const double weight = std::sqrt(squares[0]), gradient = std::sqrt(squares[1]) * factor;
    const double local =
        weight > 0 && gradient > 0 ? hyper.trust * weight / (gradient + wd * weight) : 1.0;
    const double mean = b1 * m + hyper.learning_rate * local * (g + wd * p);
    return {mean, mean, 0};
  }
  if (hyper.rule == Direction::Rule::adafactor) {
    const double square = b1 * m + (1 - b1) * g * g;
    return {g / std::max(std::sqrt(square), double{hyper.eps}), square, 0};
  }
  const double mean = b1 * m + (1 - b1) * g;
  return {hyper.nesterov ? b1 * mean + (1 - b1) * g : mean, mean, 0};
}

Case direction_case(const Direction& hyper, int64_t n, float factor, bool shards = false,
                    Held held = {}, const std::vector<double>& squares = {9.0, 4.0}) {
  Case c;
  const bool skipped = std::isnan(factor), lamb = hyper.rule == Direction::Rule::lamb;
  const Control control = add_control(c, factor);
  Params t = add_params(c, n, factor, held);
  // Parameters are only read: a master, or they themselves.
  c.tensors[static_cast<size_t>(t.params)].written = false;
  if (t.master >= 0) c.tensors[static_cast<size_t>(t.master)].written = false;
  HostTensor momentum = normals(1, n, 3);
  if (hyper.rule == Direction::Rule::adafactor)
    for (int64_t i = 0; i < n; ++i)
      momentum.set(0, i, momentum.at(0, i) * momentum.at(0, i) + 0.1f);
  const int m = add_state(c, skipped, "m", momentum.as(held.moments));
  HostTensor second = normals(1, n, 4);
  for (int64_t i = 0; i < n; ++i) second.set(0, i, second.at(0, i) * second.at(0, i) + 0.1f);
  const int v = lamb ? add_state(c, skipped, "v", second.as(held.moments)) : -1;
  const int sums = c.input("squares", row_of(squares));
  const int dst =
      skipped ? c.input("dst", HostTensor(1, n)) : c.output("dst", HostTensor(1, n).clear());
  c.run = [=](Call& call) {
    std::vector<DirectionStep> list;
    each_shard(n, shards, [&](int64_t begin, int64_t count) {
      const auto shard = [&](int tensor) { return call[tensor].col_range(begin, count); };
      list.push_back({hyper, t.shard(call, held, begin, count), shard(dst), shard(m),
                      lamb ? shard(v) : Tensor{},
                      hyper.rule == Direction::Rule::lars ? call[sums] : Tensor{}});
    });
    call.kernels().direction(control.of(call), list);
  };
  c.expected = [=](const Case& in) {
    if (skipped) return std::vector<Expected>{};
    Doubles ways, means, seconds;
    for (int64_t i = 0; i < n; ++i) {
      const Direct one =
          direct(hyper, factor, squares, in[t.grads].at(0, i), in[t.stepped()].at(0, i),
                 in[m].at(0, i), lamb ? in[v].at(0, i) : 0);
      ways.push_back(one.way);
      means.push_back(one.mean);
      seconds.push_back(one.square);
    }
    // As AdamW's: 1 - beta is rounded once in float, 20 units of 0.05; a few roundings of numbers
    // up to 5, and a quotient of up to 16 with some 60 units of relative error.
    std::vector<Expected> all = {
        drawn(held.moments, close(m, means, 4 * (5 + 10) * kUnit, 4 * kUnit), first_moment_word),
        close(dst, ways, (lamb ? 16 * 60 : 100) * kUnit, 4 * kUnit)};
    if (lamb)
      all.push_back(
          drawn(held.moments, close(v, seconds, 4 * kUnit, 30 * kUnit), second_moment_word));
    return all;
  };
  if (shards)
    c.twin = Twin{[=] { return direction_case(hyper, n, factor, false, held, squares); },
                  {{"dst"}, {"m"}}};
  return c;
}

// Gradients' squares overflow and underflow.
Case hostile_lamb_case(DType moments) {
  constexpr int64_t n = 5003;
  const Held held{DType::f32, DType::f32, false, false, moments};
  Case c;
  const Control control = add_control(c, 1);
  HostTensor gradients = normals(1, n, 2);
  for (int64_t i = 0; i < n; ++i) {
    const double by = i % 7 == 0   ? 0.0
                      : i % 7 == 1 ? 1e25
                                   : std::pow(10.0, static_cast<double>(i * 5 % 37) - 30);
    gradients.set(0, i, static_cast<float>(by * gradients.at(0, i)));
  }
  const int g = c.input("g", gradients), p = c.input("p", normals(1, n, 1)),
            m = c.output("m", HostTensor(1, n).as(moments)),
            v = c.output("v", HostTensor(1, n).as(moments)),
            dst = c.output("dst", HostTensor(1, n).clear());
  c.run = [=](Call& call) {
    Stepped stepped{call[p], call[g]};
    if (held.rounds()) stepped.rounding = kRounding;
    const DirectionStep one{kLamb, stepped, call[dst], call[m], call[v]};
    call.kernels().direction(control.of(call), {&one, 1});
  };
  c.expected = [=](const Case& in) {
    Expected ways{dst, {}, {}};
    const double limit = double{kLargestGradient};
    for (int64_t i = 0; i < n; ++i) {
      const double gradient = std::clamp(double{in[g].at(0, i)}, -limit, limit);
      ways.values.push_back(direct(kLamb, 1, {}, gradient, in[p].at(0, i), 0, 0).way);
      // A square below the smallest number loses its last digits, or all of them: eps is there.
      const double square = 0.05 * gradient * gradient;
      const bool small = square < 1e-30;
      ways.bounds.push_back(small ? 1.1 * std::abs(0.1 * gradient) / kLamb.eps * 1e-3 + 1e-6
                                  : 0.5 * 200 * kUnit);
    }
    return std::vector<Expected>{
        std::move(ways), {m, Doubles(n), Doubles(n, 1e37)}, {v, Doubles(n), Doubles(n, 1e37)}};
  };
  return c;
}

constexpr Move kMove = {.keep = 0.99f, .rate = 0.02f, .least = 0.01f, .most = 10};

// `squares`: of the parameter and the direction; none: a ratio of 1.
Case move_case(int64_t n, float factor, const std::vector<double>& squares, Held held = {},
               bool shards = false) {
  Case c;
  const bool skipped = std::isnan(factor);
  held.grads = DType::f32;
  held.moments = DType::f32;
  const Control control = add_control(c, factor);
  const Params t = add_params(c, n, factor, held);
  const int sums = squares.empty() ? -1 : c.input("squares", row_of(squares));
  c.run = [=](Call& call) {
    std::vector<MoveStep> list;
    each_shard(n, shards, [&](int64_t begin, int64_t count) {
      list.push_back({kMove, t.shard(call, held, begin, count), sums < 0 ? Tensor{} : call[sums]});
    });
    call.kernels().move(control.of(call), list);
  };
  c.expected = [=](const Case& in) {
    if (skipped) return std::vector<Expected>{};
    double ratio = 1;
    if (!squares.empty() && squares[0] > 0 && squares[1] > 0)
      ratio = std::clamp(std::sqrt(squares[0]) / std::sqrt(squares[1]), double{kMove.least},
                         double{kMove.most});
    Doubles ps;
    for (int64_t i = 0; i < n; ++i)
      ps.push_back(double{kMove.keep} * in[t.stepped()].at(0, i) -
                   kMove.rate * ratio * in[t.grads].at(0, i));
    std::vector<Expected> all;
    add_expected(all, held, t, close(t.stepped(), ps, 8 * 2 * kUnit, 2 * kUnit));
    return all;
  };
  if (shards) c.twin = Twin{[=] { return move_case(n, factor, squares, held); }, {{"p"}}};
  return c;
}

// Spikes, zeros, denormals and what is not finite, around the limit.
Case clamp_case(int64_t n, DType type) {
  constexpr float kLimit = 0.5f;
  Case c;
  HostTensor values = normals(1, n, 1);
  const float strange[] = {0.0f,   -0.0f,   1e-40f,
                           kLimit, -kLimit, std::nextafter(kLimit, 1.0f),
                           1e30f,  -1e30f,  std::numeric_limits<float>::infinity(),
                           kNan};
  for (int64_t i = 0; i < n; i += 3) values.set(0, i, strange[static_cast<size_t>(i / 3 % 10)]);
  const int x = c.output("x", values.as(type));
  const int count = c.output("count", row_of(std::vector<double>{0}));
  c.run = [=](Call& call) {
    const Clamp one{call[x], call[count]};
    call.kernels().clamp({&one, 1}, kLimit);
  };
  c.expected = [=](const Case& in) {
    Doubles clamped;
    double number = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double value = in[x].at(0, i);
      const bool beyond = std::isfinite(value) && std::abs(value) > kLimit;
      number += beyond;
      clamped.push_back(beyond ? std::copysign(kLimit, value) : value);
    }
    return std::vector<Expected>{exactly(x, clamped), exactly(count, {number})};
  };
  return c;
}

Case normalise_case(int64_t rows, int64_t cols, bool zero) {
  Case c;
  HostTensor values = zero ? HostTensor(rows, cols) : normals(rows, cols, 1);
  double squares = 0;
  for (const double value : values.doubles()) squares += value * value;
  const int x = c.input("x", values), sum = c.input("squares", row_of(std::vector{squares})),
            dst = c.output("dst", HostTensor(rows, cols).clear());
  c.run = [=](Call& call) { call.kernels().normalise(call[x], call[sum], 1e-7f, call[dst]); };
  c.expected = [=](const Case& in) {
    Doubles all = in[x].doubles();
    for (double& value : all) value /= std::sqrt(squares) + 1e-7;
    return std::vector<Expected>{close(dst, all, 0, 4 * kUnit)};
  };
  return c;
}

Case clip_each_case(bool by_weights, double scale) {
  const std::vector<double> squares = {0, 1e-300, 0.25, 1, 4, 1e6, 1e300, 9},
                            weights = {1, 1, 0, 1e-12, 4, 1e6, 1, 1e300};
  Case c;
  const int s = c.input("squares", row_of(squares)), w = c.input("weights", row_of(weights)),
            factors = c.output("factors", HostTensor(1, 8).clear());
  c.run = [=](Call& call) {
    call.kernels().clip_each({.squares = call[s],
                              .weights = by_weights ? call[w] : Tensor{},
                              .limit = 0.7,
                              .least = 1e-3,
                              .eps = 1e-6,
                              .scale = scale,
                              .factors = call[factors]});
  };
  c.expected = [=](const Case&) {
    Doubles all;
    for (size_t i = 0; i < squares.size(); ++i) {
      const double limit = by_weights ? 0.7 * std::max(std::sqrt(weights[i]), 1e-3) : 0.7;
      all.push_back(std::min(1.0, limit / (std::sqrt(squares[i]) / scale + 1e-6)) / scale);
    }
    return std::vector<Expected>{close(factors, all, 1e-40, 2 * kUnit)};
  };
  return c;
}

// A factor of its own in the place of the step's.
Case own_factor_case() {
  constexpr int64_t n = 1031;
  Case c;
  const Control control = add_control(c, 1);
  const int own = c.input("own factor", row_of(std::vector{0.25f}));
  const Params t = add_params(c, n, 1, {});
  c.run = [=](Call& call) {
    Stepped stepped = t.shard(call, {}, 0, n);
    stepped.factor = call[own];
    const SgdStep one{{.learning_rate = 0.5f,
                       .momentum = 0,
                       .weight_decay = 0,
                       .nesterov = false,
                       .first = false},
                      stepped};
    call.kernels().sgd(control.of(call), {&one, 1});
  };
  c.expected = [=](const Case& in) {
    Doubles ps;
    for (int64_t i = 0; i < n; ++i)
      ps.push_back(in[t.params].at(0, i) - 0.5 * 0.25 * in[t.grads].at(0, i));
    return std::vector<Expected>{close(t.params, ps, 2 * 8 * kUnit)};
  };
  return c;
}

// Elements [first, first + n) of a matrix.
Case factored_case(int64_t rows, int64_t cols, int64_t first, int64_t n, float factor, DType type,
                   bool zeros = false) {
  constexpr float kEps = 1e-4f;
  Case c;
  const bool skipped = std::isnan(factor);
  const Control control = add_control(c, factor);
  const auto positive = [&](int64_t count, uint64_t seed) {
    HostTensor values = normals(1, count, seed);
    for (int64_t i = 0; i < count; ++i)
      values.set(0, i, zeros ? 0 : values.at(0, i) * values.at(0, i) + 0.01f);
    return values;
  };
  const HostTensor of_rows = positive(rows, 3);
  double total = 0;
  for (const double value : of_rows.doubles()) total += value;
  const int g = c.input("g", gradients(n, factor).as(type)), r = c.input("rows", of_rows),
            k = c.input("columns", positive(cols, 4)),
            sum = c.input("sum", row_of(std::vector{total}));
  const int dst =
      skipped ? c.input("dst", HostTensor(1, n)) : c.output("dst", HostTensor(1, n).clear());
  c.run = [=](Call& call) {
    const Factored one{{call[g], call[g]}, first, call[r], call[k], call[sum], kEps, call[dst]};
    call.kernels().factored(control.of(call), {&one, 1});
  };
  c.expected = [=](const Case& in) {
    if (skipped) return std::vector<Expected>{};
    Doubles ways;
    const double mean = std::max(total / static_cast<double>(rows), double{kEps});
    for (int64_t i = 0; i < n; ++i) {
      const double square =
          double{in[r].at(0, (first + i) / cols)} * in[k].at(0, (first + i) % cols) / mean;
      ways.push_back(double{in[g].at(0, i)} * factor / std::max(std::sqrt(square), double{kEps}));
    }
    return std::vector<Expected>{close(dst, ways, 1e-30, 8 * kUnit)};
  };
  return c;
}

Case blend_case(float factor) {
  Case c;
  const bool skipped = std::isnan(factor);
  const Control control = add_control(c, factor);
  const std::vector<double> values = {0, 1e-300, 1e-20, 0.5, 7, 1e30};
  const int x = c.input("x", row_of(values)),
            dst = add_state(c, skipped, "dst", row_of(std::vector<float>{1, 0, 2, 3, 0.5f, 1}));
  c.run = [=](Call& call) {
    const Blend one{call[x], call[dst], 0.125, 0.3};
    call.kernels().blend(control.of(call), {&one, 1});
  };
  c.expected = [=](const Case& in) {
    if (skipped) return std::vector<Expected>{};
    Doubles all;
    for (size_t i = 0; i < values.size(); ++i) {
      const double before = in[dst].at(0, static_cast<int64_t>(i)), by = factor;
      all.push_back(before + 0.3 * (0.125 * by * by * values[i] - before));
    }
    return std::vector<Expected>{close(dst, all, 1e-40, kUnit)};
  };
  return c;
}

Case adafactor_move_case(const std::vector<double>& squares) {
  constexpr int64_t n = 1031;
  const Move hyper{.keep = 0.99f, .rate = 0.02f, .least = 1e-3f, .most = 1, .elems = n};
  Case c;
  const Control control = add_control(c, 1);
  const Params t = add_params(c, n, 1, {});
  const int sums = c.input("squares", row_of(squares));
  c.run = [=](Call& call) {
    const MoveStep one{hyper, t.shard(call, {}, 0, n), call[sums]};
    call.kernels().move(control.of(call), {&one, 1});
  };
  c.expected = [=](const Case& in) {
    const double root = std::sqrt(static_cast<double>(n));
    const double ratio =
        std::max(std::sqrt(squares[0]) / root, 1e-3) / std::max(1.0, std::sqrt(squares[1]) / root);
    Doubles ps;
    for (int64_t i = 0; i < n; ++i)
      ps.push_back(double{hyper.keep} * in[t.params].at(0, i) -
                   hyper.rate * ratio * in[t.grads].at(0, i));
    return std::vector<Expected>{close(t.params, ps, 8 * 2 * kUnit, 2 * kUnit)};
  };
  return c;
}

void add_rule_cases(CaseList& list, const std::string& name, const Direction& hyper) {
  for (const float factor : {1.0f, 0.5f, kNan})
    for (const int64_t n : {1, 17, 1031})
      list.push_back({"optimizer", fmt::format("{} {} {}", name, n, control_name(factor)),
                      [=] { return direction_case(hyper, n, factor); }});
  list.push_back({"optimizer", name + " 1003 in shards",
                  [=] { return direction_case(hyper, 1003, 0.5f, true); }});
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const Held& held : held_in(type))
      list.push_back({"optimizer", fmt::format("{} {} 1031", name, name_of(held)),
                      [=] { return direction_case(hyper, 1031, 0.5f, false, held); }});
}

}  // namespace

void add_optimizer_rule_cases(CaseList& list) {
  for (const float factor : {1.0f, 0.5f, kNan})
    for (const int64_t n : {1, 17, 1031, 70001})
      list.push_back({"optimizer", fmt::format("lion {} {}", n, control_name(factor)),
                      [=] { return lion_case(n, factor); }});
  list.push_back({"optimizer", "lion 1003 in shards", [] { return lion_case(1003, 0.5f, true); }});
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const Held& held : held_in(type))
      list.push_back({"optimizer", fmt::format("lion {} 1031", name_of(held)),
                      [=] { return lion_case(1031, 0.5f, false, held); }});
  add_rule_cases(list, "lamb", kLamb);
  add_rule_cases(list, "lamb eps inside", kLambInside);
  add_rule_cases(list, "lars", kLars);
  add_rule_cases(list, "muon", kMuon);
  add_rule_cases(list, "muon nesterov", kNesterovMuon);
  add_rule_cases(list, "adafactor of vectors", kAdafactor);
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const float factor : {1.0f, 0.5f, kNan}) {
      list.push_back({"optimizer",
                      fmt::format("factored 37 x 53{} {}", type_suffix(type), control_name(factor)),
                      [=] { return factored_case(37, 53, 0, 37 * 53, factor, type); }});
      list.push_back({"optimizer",
                      fmt::format("factored part{} {}", type_suffix(type), control_name(factor)),
                      [=] { return factored_case(37, 53, 60, 1000, factor, type); }});
    }
  list.push_back({"optimizer", "factored in a row",
                  [] { return factored_case(7, 901, 905, 300, 0.5f, DType::f32); }});
  list.push_back({"optimizer", "factored of zeros",
                  [] { return factored_case(7, 9, 0, 63, 0.5f, DType::f32, true); }});
  for (const float factor : {1.0f, 0.5f, kNan})
    list.push_back({"optimizer", fmt::format("blend {}", control_name(factor)),
                    [=] { return blend_case(factor); }});
  for (const auto& [name, squares] : {std::pair{"long", std::vector{1e3, 1e5}},
                                      {"short", std::vector{1e3, 1.0}},
                                      {"of no weight", std::vector{0.0, 1e3}}})
    list.push_back({"optimizer", fmt::format("adafactor's move {}", name),
                    [squares = squares] { return adafactor_move_case(squares); }});
  for (const auto& [name, squares] :
       {std::pair{"no weight", std::vector{0.0, 4.0}}, {"no gradient", std::vector{4.0, 0.0}}})
    list.push_back({"optimizer", fmt::format("lars of {}", name), [squares = squares] {
                      return direction_case(kLars, 101, 0.5f, false, {}, squares);
                    }});
  for (const DType moments : {DType::f32, DType::bf16})
    list.push_back({"optimizer", fmt::format("lamb by hostile gradients, {}", dtype_name(moments)),
                    [=] { return hostile_lamb_case(moments); }});
  for (const auto& [name, squares] : {std::pair{"plain", std::vector<double>{}},
                                      {"trusted", std::vector{9.0, 4.0}},
                                      {"at most", std::vector{1e6, 1.0}},
                                      {"at least", std::vector{1e-12, 1.0}},
                                      {"of no weight", std::vector{0.0, 1.0}}}) {
    for (const float factor : {0.5f, kNan})
      list.push_back({"optimizer", fmt::format("move {} {}", name, control_name(factor)),
                      [=, squares = squares] { return move_case(1031, factor, squares); }});
    for (const DType type : {DType::bf16, DType::f16})
      for (const Held& held : {Held{type, DType::f32, true}, Held{type, DType::f32, false, true}})
        list.push_back({"optimizer", fmt::format("move {} {}", name, name_of(held)),
                        [=, squares = squares] { return move_case(1031, 1, squares, held); }});
  }
  list.push_back({"optimizer", "move 1003 in shards", [] {
                    return move_case(1003, 1, {9.0, 4.0}, {}, true);
                  }});
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const int64_t n : {1, 31, 70001})
      list.push_back({"optimizer", fmt::format("clamp {}{}", n, type_suffix(type)),
                      [=] { return clamp_case(n, type); }});
  for (const bool zero : {false, true})
    list.push_back({"optimizer", fmt::format("normalise 37 x 53{}", zero ? " zeros" : ""),
                    [=] { return normalise_case(37, 53, zero); }});
  for (const bool by_weights : {false, true})
    for (const double scale : {1.0, 1024.0})
      list.push_back({"optimizer",
                      fmt::format("clip each{} scale {}", by_weights ? " by weights" : "", scale),
                      [=] { return clip_each_case(by_weights, scale); }});
  list.push_back({"optimizer", "a factor of its own", own_factor_case});
}

void add_optimizer_rule_benchmarks(CaseList& list) {
  constexpr int64_t kElems = int64_t{4} << 20;
  list.push_back({"optimizer", "lion of 4 Mi parameters", [] { return lion_case(kElems, 0.5f); }});
  list.push_back({"optimizer", "lamb's direction of 4 Mi parameters",
                  [] { return direction_case(kLamb, kElems, 0.5f); }});
  list.push_back({"optimizer", "a move of 4 Mi parameters", [] {
                    return move_case(kElems, 1, {9.0, 4.0});
                  }});
}

}  // namespace onefold::cases
