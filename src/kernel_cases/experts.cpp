// Routing of tokens to experts: choices, weights and the order of rows; and gradients by logits,
// with the losses of balance and of large logits.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"
#include "kernel_cases/routing.h"

namespace onefold::cases {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

enum class Logits : uint8_t { random, one_expert, ties, huge, far_below, one_is_nan };

const char* name_of(Logits logits) {
  switch (logits) {
    case Logits::random:
      return "random";
    case Logits::one_expert:
      return "all to one";
    case Logits::ties:
      return "ties";
    case Logits::huge:
      return "huge";
    case Logits::far_below:
      return "far below zero";
    case Logits::one_is_nan:
      return "one NaN";
  }
  return "?";
}

HostTensor logits_of(const RouterRule& r, Logits kind) {
  HostTensor x = normals(r.tokens, r.experts, 11, 0, 1.5f);
  for (int64_t t = 0; t < r.tokens; ++t)
    for (int64_t e = 0; e < r.experts; ++e) {
      const float own = x.at(t, e);
      if (kind == Logits::one_expert && e == r.experts / 2) x.set(t, e, own + 40);
      if (kind == Logits::ties) x.set(t, e, static_cast<float>((t + e) % 2));
      if (kind == Logits::huge) x.set(t, e, e % 3 == 2 ? -kInf : own * 1e30f);
      if (kind == Logits::far_below) x.set(t, e, own - 300);
      if (kind == Logits::one_is_nan && t == 1 && e == 0)
        x.set(t, e, std::numeric_limits<float>::quiet_NaN());
    }
  return x;
}

Doubles doubles_of(const std::vector<int64_t>& values) {
  return Doubles(values.begin(), values.end());
}

// The error of a score: of a sum of exponentials, and of an argument that was rounded.
double score_error(const RouterRule& r) { return static_cast<double>(r.experts + 48) * kUnit; }

Case route_case(RouterRule r, Logits kind) {
  Case c;
  const int logits = c.input("logits", logits_of(r, kind));
  const RoutingTensors to = written_routing(c, r);
  c.run = [=](Call& call) {
    call.kernels().route({.logits = call[logits],
                          .scores = r.scores,
                          .normalised = r.normalised,
                          .capacity = r.capacity,
                          .routing = to.of(call)});
  };
  c.expected = [=](const Case& in) {
    RoutingOracle o = routing_of(r, in[logits].doubles());
    if (kind == Logits::one_is_nan)  // of a softmax, the whole row
      for (int64_t j = 0; j < r.choices; ++j) o.weights[static_cast<size_t>(r.choices + j)] = kNan;
    // Scores below the smallest normal number may be 0.
    return std::vector{exactly(to.experts, doubles_of(o.experts)),
                       exactly(to.places, doubles_of(o.places)),
                       exactly(to.sources, doubles_of(o.sources)),
                       exactly(to.offsets, doubles_of(o.offsets)),
                       exactly(to.counts, doubles_of(o.counts)),
                       close(to.weights, o.weights, 1e-17, 2 * score_error(r))};
  };
  return c;
}

// The two losses of logits, for given choices of all parts.
struct RouterLosses {
  double balance = 0, z = 0;
};

RouterLosses losses_of(const RouterRule& r, const Doubles& logits,
                       const std::vector<int64_t>& counts, int64_t parts) {
  RouterLosses losses;
  const auto tokens = static_cast<double>(r.tokens), experts = static_cast<double>(r.experts);
  for (int64_t t = 0; t < r.tokens; ++t) {
    const Doubles scores = scores_of(r, logits, t);
    double sum = r.scores == RouterScores::softmax ? 0 : 1e-20, largest = -INFINITY, total = 0;
    for (const double score : scores) sum += score;
    for (int64_t e = 0; e < r.experts; ++e) {
      losses.balance += experts * static_cast<double>(counts[static_cast<size_t>(e)]) /
                        (tokens * static_cast<double>(parts)) * scores[static_cast<size_t>(e)] /
                        sum / tokens;
      largest = std::max(largest, logits[static_cast<size_t>(t * r.experts + e)]);
    }
    for (int64_t e = 0; e < r.experts; ++e)
      total += std::exp(logits[static_cast<size_t>(t * r.experts + e)] - largest);
    const double lse = largest + std::log(total);
    losses.z += lse * lse / tokens;
  }
  return losses;
}

struct Factors {
  float balance = 0, z = 0, scale = 1;
};

// What other parts of the sequences have chosen: as often as there are choices, unevenly.
std::vector<int32_t> chosen_elsewhere(const RouterRule& r, int64_t part) {
  std::vector<int32_t> counts(static_cast<size_t>(r.experts));
  for (int64_t i = 0; i < r.tokens * r.choices; ++i)
    ++counts[static_cast<size_t>((i * i + part) % r.experts)];
  return counts;
}

// `parts`: of which these tokens are the second, if there are several.
Case backward_case(RouterRule r, Logits kind, Factors f, DType dtype = DType::f32,
                   bool with_load = true, int64_t parts = 1) {
  Case c;
  const HostTensor values = logits_of(r, kind);
  const RoutingOracle o = routing_of(r, values.doubles());
  const int logits = c.input("logits", values);
  const RoutingTensors to = read_routing(c, r, o);
  const int dweights = c.input("dweights", normals(r.tokens, r.choices, 12));
  const int scale = c.input("scale", row_of(std::vector<float>{f.scale}));
  const int dlogits = c.output("dlogits", HostTensor(r.tokens, r.experts, 1, dtype).clear());
  std::vector<int32_t> of_parts;
  std::vector<int64_t> all_counts = o.counts;
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t e = 0; e < r.experts; ++e) {
      const auto i = static_cast<size_t>(e);
      const bool own = part == 1;
      of_parts.push_back(own ? static_cast<int32_t>(o.counts[i]) : chosen_elsewhere(r, part)[i]);
      if (!own && parts > 1) all_counts[i] += of_parts.back();
    }
  const int elsewhere = c.input("of_parts", row_of(of_parts));
  std::vector<double> before;
  for (int64_t i = 0; i < load_elems(r.experts); ++i) before.push_back(static_cast<double>(i));
  const int load = with_load ? c.output("load", row_of(before)) : -1;
  c.run = [=](Call& call) {
    call.kernels().route_backward(
        {.forward = {.logits = call[logits],
                     .scores = r.scores,
                     .normalised = r.normalised,
                     .capacity = r.capacity,
                     .routing = to.of(call)},
         .dweights = call[dweights],
         .balance = f.balance,
         .z = f.z,
         .of_parts = parts > 1 ? call[elsewhere].reshaped(parts, r.experts) : Tensor{},
         .scale = call[scale],
         .dlogits = call[dlogits],
         .load = with_load ? call[load] : Tensor{},
         .scratch =
             call.scratch(call.kernels().route_backward_scratch_bytes(r.tokens, r.experts))});
  };
  c.expected = [=](const Case& in) {
    const Doubles from = in[logits].doubles(), dw = in[dweights].doubles();
    const auto loss = [&](const Doubles& x) {
      const Doubles weights = weights_of(r, x, o.experts);
      double sum = 0;
      for (size_t i = 0; i < weights.size(); ++i)
        if (o.places[i] >= 0) sum += dw[i] * weights[i];
      const RouterLosses own = losses_of(r, x, all_counts, parts);
      return sum + double{f.scale} * (double{f.balance} * own.balance + double{f.z} * own.z);
    };
    // Gradients by scores are below 4 by weights (divided by a sum of shares that is at least k /
    // experts), and terms cancel; those of the losses are as large as their factors.
    const double size = 4.0 * static_cast<double>(r.experts) +
                        std::abs(double{f.scale}) * (double{f.balance} * 8 + double{f.z} * 64);
    const double error = size * score_error(r) + 40 * kDifferenceError * (1 + size);
    std::vector<Expected> all = {
        stored(dtype, close(dlogits, gradient_of(loss, from), error, 32 * kUnit))};
    if (!with_load) return all;
    const RouterLosses own = losses_of(r, from, all_counts, parts);
    Doubles sums = before, bounds(before.size());
    sums[0] += double{f.balance} * own.balance;
    sums[1] += double{f.z} * own.z;
    // The log-sum-exp is squared.
    bounds[0] = 4 * score_error(r) * double{f.balance} * own.balance;
    bounds[1] = 8 * score_error(r) * double{f.z} * (1 + own.z);
    for (int64_t e = 0; e < r.experts; ++e) {
      const auto i = static_cast<size_t>(e);
      const int64_t kept = o.offsets[i + 1] - o.offsets[i];
      sums[2 + i] += static_cast<double>(o.counts[i]);
      sums[2 + static_cast<size_t>(r.experts) + i] += static_cast<double>(o.counts[i] - kept);
    }
    all.push_back({load, sums, bounds});
    return all;
  };
  return c;
}

std::string name_of(const RouterRule& r) {
  return fmt::format("{}x{} top {} {}{}{}", r.tokens, r.experts, r.choices,
                     r.scores == RouterScores::softmax ? "softmax" : "sigmoid",
                     r.normalised ? " normalised" : "",
                     r.capacity > 0 ? fmt::format(" capacity {}", r.capacity) : "");
}

void add_route(CaseList& list, const RouterRule& r, Logits kind) {
  list.push_back({"experts", fmt::format("route {} {}", name_of(r), name_of(kind)),
                  [=] { return route_case(r, kind); }});
}

void add_backward(CaseList& list, const RouterRule& r, Logits kind, const Factors& f,
                  DType dtype = DType::f32, bool with_load = true, int64_t parts = 1) {
  list.push_back(
      {"experts",
       fmt::format("route backward {} {} balance {} z {} scale {}{}{}{}", name_of(r), name_of(kind),
                   f.balance, f.z, f.scale, with_load ? "" : " without load",
                   parts > 1 ? fmt::format(" of {} parts", parts) : "", type_suffix(dtype)),
       [=] { return backward_case(r, kind, f, dtype, with_load, parts); }});
}

}  // namespace

void add_expert_cases(CaseList& list) {
  constexpr RouterScores kSoftmax = RouterScores::softmax, kSigmoid = RouterScores::sigmoid;
  for (const RouterScores scores : {kSoftmax, kSigmoid})
    for (const bool normalised : {false, true})
      for (const auto& [tokens, experts, choices] :
           {std::tuple{1, 1, 1}, {7, 8, 2}, {61, 5, 5}, {330, 16, 3}})
        for (const int64_t capacity : {0, 1, 3})
          add_route(list, {tokens, experts, choices, scores, normalised, capacity}, Logits::random);
  for (const Logits kind : {Logits::one_expert, Logits::ties, Logits::huge}) {
    add_route(list, {23, 8, 2, kSoftmax, true, 0}, kind);
    add_route(list, {23, 8, 2, kSoftmax, true, 4}, kind);
    add_route(list, {23, 8, 2, kSigmoid, false, 4}, kind);
  }
  add_route(list, {9, 6, 2, kSigmoid, true, 0}, Logits::far_below);
  add_route(list, {3, 6, 4, kSoftmax, true, 0}, Logits::one_is_nan);
  add_route(list, {0, 6, 2, kSoftmax, true, 0}, Logits::random);

  for (const RouterScores scores : {kSoftmax, kSigmoid})
    for (const bool normalised : {false, true})
      for (const int64_t capacity : {0, 2}) {
        const RouterRule r{11, 6, 2, scores, normalised, capacity};
        add_backward(list, r, Logits::random, {});
        add_backward(list, r, Logits::random, {0.3f, 0, 0.5f});
        add_backward(list, r, Logits::random, {0, 0.2f, 2});
        add_backward(list, r, Logits::random, {0.3f, 0.2f, 0.5f}, DType::f32, false);
        for (const DType dtype : kHalfTypes)
          add_backward(list, r, Logits::random, {0.3f, 0.2f, 0.5f}, dtype);
      }
  for (const RouterScores scores : {kSoftmax, kSigmoid})
    for (const int64_t parts : {2, 5})
      add_backward(list, {11, 6, 2, scores, true, 0}, Logits::random, {0.3f, 0.2f, 0.5f},
                   DType::f32, true, parts);
  add_backward(list, {1, 1, 1, kSigmoid, false, 0}, Logits::random, {});
  add_backward(list, {70, 3, 3, kSoftmax, true, 5}, Logits::ties, {0.1f, 0.1f, 1});
  add_backward(list, {9, 8, 2, kSoftmax, true, 3}, Logits::one_expert, {0.1f, 0, 1});
  add_row_cases(list);
  add_grouped_gemm_cases(list);
}

void add_expert_benchmarks(CaseList& list) {
  const RouterRule r{1024, 64, 4};
  add_route(list, r, Logits::random);
  add_grouped_gemm_benchmarks(list);
}

}  // namespace onefold::cases
