// Steps of AdamW and SGD under a step's control.
#include <cmath>
#include <limits>

#include "base/block8.h"
#include "base/half.h"
#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"
#include "kernel_cases/stepped.h"

namespace onefold::cases {
namespace {

constexpr AdamW kAdamW = {.learning_rate = 0.01f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .bias_correction1 = 0.271f,
                          .bias_correction2 = 0.142625f};
// Adam: the decay inside the gradient.
constexpr AdamW kL2 = [] {
  AdamW hyper = kAdamW;
  hyper.l2 = true;
  return hyper;
}();
constexpr AdamW kUncorrected = [] {
  AdamW hyper = kAdamW;
  hyper.bias_correction1 = hyper.bias_correction2 = 1;
  return hyper;
}();

HostTensor squares(int64_t n) {
  HostTensor values = normals(1, n, 3);
  for (int64_t i = 0; i < n; ++i) values.set(0, i, values.at(0, i) * values.at(0, i) + 0.1f);
  return values;
}

// Whole, or as a list of shards that begin anywhere.
Case adamw_case(const AdamW& hyper, int64_t n, float factor, bool shards = false, Held held = {}) {
  Case c;
  const bool skipped = std::isnan(factor);
  const auto state = [&](const char* name, const HostTensor& values) {
    return skipped ? c.input(name, values) : c.output(name, values);
  };
  const Control control = add_control(c, factor);
  const Params t = add_params(c, n, factor, held);
  const int m = state("m", normals(1, n, 3).as(held.moments)),
            v = state("v", squares(n).as(held.moments));
  c.run = [=](Call& call) {
    std::vector<AdamWStep> list;
    const auto add = [&](int64_t begin, int64_t count) {
      const auto shard = [&](int tensor) { return call[tensor].col_range(begin, count); };
      list.push_back({hyper, t.shard(call, held, begin, count), shard(m), shard(v)});
    };
    for (int64_t begin = 0, size = shards ? 0 : n; begin < n; begin += size, size += 7)
      add(begin, std::min(n - begin, size));
    call.kernels().adamw(control.of(call), list);
  };
  c.expected = [=](const Case& in) {
    if (skipped) return std::vector<Expected>{};  // what is an input keeps its bits
    Doubles ps, ms, vs;
    for (int64_t i = 0; i < n; ++i) {
      const double b1 = hyper.beta1, b2 = hyper.beta2, lr = hyper.learning_rate;
      const double l2 = hyper.l2 ? hyper.weight_decay : 0, shrink = hyper.l2 ? 0 : lr;
      const double old = in[t.stepped()].at(0, i);
      const double gradient = static_cast<double>(in[t.grads].at(0, i)) * factor + l2 * old;
      ms.push_back(b1 * in[m].at(0, i) + (1 - b1) * gradient);
      vs.push_back(b2 * in[v].at(0, i) + (1 - b2) * gradient * gradient);
      ps.push_back(old * (1 - shrink * hyper.weight_decay) -
                   lr * (ms.back() / hyper.bias_correction1) /
                       (std::sqrt(vs.back() / hyper.bias_correction2) + hyper.eps));
    }
    // 1 - beta is rounded once in float (relative to 1 - beta2 = 0.05: 20 units); then up to 4
    // roundings of values up to 4 (m) and 16 (v). Adam's decay adds one rounding to the gradient.
    // The update is about lr * |m| / sqrt(v) <= 0.05,
    // with some 60 units of relative error.
    std::vector<Expected> all = {
        drawn(held.moments, close(m, ms, 4 * (4 + 10) * kUnit), first_moment_word),
        drawn(held.moments, close(v, vs, 4 * kUnit, 30 * kUnit), second_moment_word)};
    add_expected(all, held, t, close(t.stepped(), ps, 0.05 * 60 * kUnit, 3 * kUnit));
    return all;
  };
  if (shards)
    c.twin = Twin{[=] { return adamw_case(hyper, n, factor, false, held); }, {{"p"}, {"m"}, {"v"}}};
  return c;
}

// Moments as codes of 8 bits with their scales.
struct CodedMoment {
  int codes, scales;

  Moment shard(const Call& call, int64_t begin, int64_t count) const {
    return {call[codes].col_range(begin, count),
            call[scales].col_range(begin / kBlock8, (count + kBlock8 - 1) / kBlock8)};
  }
  double value(const Case& in, Moment8 moment, int64_t i) const {
    return decode8(moment, static_cast<uint8_t>(in[codes].number(0, i)),
                   in[scales].at(0, i / kBlock8));
  }
};

CodedMoment add_coded(Case& c, Moment8 moment, const HostTensor& values, bool skipped) {
  const int64_t n = values.cols();
  HostTensor codes(1, n, 0, DType::u8), scales(1, (n + kBlock8 - 1) / kBlock8);
  const Doubles all = values.doubles();
  for (int64_t begin = 0; begin < n; begin += kBlock8) {
    const std::vector<float> block(all.begin() + begin, all.begin() + std::min(n, begin + kBlock8));
    const float scale = scale8(block);
    scales.set(0, begin / kBlock8, scale);
    for (size_t i = 0; i < block.size(); ++i)
      codes.bytes()[static_cast<size_t>(begin) + i] = std::byte{encode8(moment, block[i], scale)};
  }
  const std::string name = moment == Moment8::first ? "m" : "v";
  const auto add = [&](const std::string& tensor, const HostTensor& held) {
    return skipped ? c.input(tensor, held) : c.output(tensor, held);
  };
  return {add(name, codes), add(name + ".scale", scales)};
}

// One of the two levels around each value, whose scale may be off by a few units: within a
// thousandth of a level, either neighbour will do.
void add_expected_codes(std::vector<Expected>& all, Moment8 moment, const CodedMoment& t,
                        const Doubles& values) {
  Expected codes{t.codes, {}, {}}, scales{t.scales, {}, {}};
  const double last = block8::kLevels[static_cast<int>(moment)];
  for (size_t begin = 0; begin < values.size(); begin += kBlock8) {
    const size_t end = std::min(values.size(), begin + kBlock8);
    double scale = 0;
    for (size_t i = begin; i < end; ++i) scale = std::max(scale, std::abs(values[i]));
    scales.values.push_back(scale);
    scales.bounds.push_back(scale * 64 * kUnit + 1e-30);
    for (size_t i = begin; i < end; ++i) {
      const double share = std::abs(values[i]) / scale;
      const double place =
          last * (moment == Moment8::first ? std::sqrt(share) : std::sqrt(std::sqrt(share)));
      double low = std::floor(place - 1e-3), high = std::ceil(place + 1e-3);
      if (moment == Moment8::second) low = std::max(low, 1.0);
      high = std::min(high, last);
      const double middle = (low + high) / 2, sign = values[i] < 0 ? -1 : 1;
      codes.values.push_back(moment == Moment8::first ? 128 + sign * middle : middle);
      codes.bounds.push_back((high - low) / 2);
    }
  }
  all.push_back(std::move(codes));
  all.push_back(std::move(scales));
}

// Whole, or as a list of shards that begin at blocks.
Case adamw8_case(const AdamW& hyper, int64_t n, float factor, bool shards = false, Held held = {}) {
  Case c;
  const bool skipped = std::isnan(factor);
  held.moments = DType::u8;
  const Control control = add_control(c, factor);
  const Params t = add_params(c, n, factor, held);
  const CodedMoment m = add_coded(c, Moment8::first, normals(1, n, 3), skipped),
                    v = add_coded(c, Moment8::second, squares(n), skipped);
  c.run = [=](Call& call) {
    std::vector<AdamWStep> list;
    const auto add = [&](int64_t begin, int64_t count) {
      list.push_back({hyper, t.shard(call, held, begin, count), m.shard(call, begin, count),
                      v.shard(call, begin, count)});
    };
    for (int64_t begin = 0, size = shards ? kBlock8 : n; begin < n; begin += size, size *= 2)
      add(begin, std::min(n - begin, size));
    call.kernels().adamw(control.of(call), list);
  };
  c.expected = [=](const Case& in) {
    if (skipped) return std::vector<Expected>{};
    Doubles ps, ms, vs;
    for (int64_t i = 0; i < n; ++i) {
      const double old = in[t.stepped()].at(0, i);
      const double gradient = static_cast<double>(in[t.grads].at(0, i)) * factor;
      ms.push_back(hyper.beta1 * m.value(in, Moment8::first, i) + (1 - hyper.beta1) * gradient);
      vs.push_back(hyper.beta2 * v.value(in, Moment8::second, i) +
                   (1 - hyper.beta2) * gradient * gradient);
      ps.push_back(old * (1 - hyper.learning_rate * hyper.weight_decay) -
                   hyper.learning_rate * (ms.back() / hyper.bias_correction1) /
                       (std::sqrt(vs.back() / hyper.bias_correction2) + hyper.eps));
    }
    std::vector<Expected> all;
    add_expected_codes(all, Moment8::first, m, ms);
    add_expected_codes(all, Moment8::second, v, vs);
    add_expected(all, held, t, close(t.stepped(), ps, 0.05 * 60 * kUnit, 3 * kUnit));
    return all;
  };
  if (shards)
    c.twin = Twin{[=] { return adamw8_case(hyper, n, factor, false, held); },
                  {{"p"}, {"m"}, {"m.scale"}, {"v"}, {"v.scale"}}};
  return c;
}

// Gradients [steps, n] that are hard on moments of few bits: element by element, in every block.
struct HostileGradients {
  const char* name;
  double (*at)(int64_t step, int64_t element, double normal);
};

constexpr HostileGradients kHostileGradients[] = {
    // One element of a block is a million once, the others are 1e-8.
    {"spikes", [](int64_t step, int64_t i,
                  double normal) { return i % kBlock8 == 7 && step == 2 ? 1e6 : 1e-8 * normal; }},
    {"zeros", [](int64_t step, int64_t i,
                 double normal) { return i % 3 != 0 || step % 3 != 0 ? 0.0 : normal; }},
    // From 1e-30 to 1e6, each element its own: squares underflow, alone and beside the block's.
    {"ranges",
     [](int64_t, int64_t i, double normal) {
       return std::pow(10.0, static_cast<double>(i * 5 % 37) - 30) * normal;
     }},
    {"alternating signs", [](int64_t step, int64_t i,
                             double) { return (step % 2 == 0 ? 1e3 : -1e3) * (i % 2 ? 1 : -1); }},
    // Squares that overflow.
    {"beyond all squares",
     [](int64_t step, int64_t i, double normal) {
       return i % 1000 == 5 && step == 1 ? -1e25 : normal;
     }},
};

// How far AdamW can move a parameter in step t (from 1), in learning rates: by Cauchy's inequality
// m <= r sqrt(v) for any gradients.
double largest_move(const AdamW& hyper, int step) {
  const double b1 = hyper.beta1, b2 = hyper.beta2;
  double sum = 0;
  for (int i = 0; i < step; ++i) sum += std::pow(b1 * b1 / b2, i);
  return (1 - b1) * std::sqrt(sum / (1 - b2)) * std::sqrt(1 - std::pow(b2, step)) /
         (1 - std::pow(b1, step));
}

// Steps from moments of zero, against AdamW in double without any rounding. What may be off: in
// f32, arithmetic. In bf16, the rounding of moments: an eighth of the way at most. In codes a
// second moment lies between levels that are up to 16 times apart, and a step is divided by its
// root: four times the way. What has no gradient only decays.
Case hostile_case(const HostileGradients& hostile, const Held& held) {
  constexpr int kSteps = 8;
  constexpr int64_t n = 70001;
  const bool codes = held.moments == DType::u8;
  Case c;
  const Control control = add_control(c, 1);
  HostTensor gradients = normals(kSteps, n, 5);
  for (int64_t step = 0; step < kSteps; ++step)
    for (int64_t i = 0; i < n; ++i)
      gradients.set(step, i,
                    static_cast<float>(hostile.at(step, i, double{gradients.at(step, i)})));
  const int g = c.input("g", gradients.as(held.grads)),
            p = c.output("p", normals(1, n, 1).as(held.params));
  const HostTensor zeros = HostTensor(1, n);
  CodedMoment m8{}, v8{};
  int m = -1, v = -1;
  if (codes) {
    m8 = add_coded(c, Moment8::first, zeros, false);
    v8 = add_coded(c, Moment8::second, zeros, false);
  } else {
    m = c.output("m", zeros.as(held.moments));
    v = c.output("v", zeros.as(held.moments));
  }
  const auto hyper_of = [](int step) {
    AdamW hyper = kAdamW;
    hyper.bias_correction1 = static_cast<float>(1 - std::pow(double{hyper.beta1}, step));
    hyper.bias_correction2 = static_cast<float>(1 - std::pow(double{hyper.beta2}, step));
    return hyper;
  };
  c.run = [=](Call& call) {
    for (int step = 1; step <= kSteps; ++step) {
      Stepped stepped{call[p], call[g].row_range(step - 1, 1)};
      if (held.rounds()) stepped.rounding = StochasticRounding{{1, static_cast<uint32_t>(step)}};
      const AdamWStep one{hyper_of(step), stepped, codes ? m8.shard(call, 0, n) : Moment(call[m]),
                          codes ? v8.shard(call, 0, n) : Moment(call[v])};
      call.kernels().adamw(control.of(call), {&one, 1});
    }
  };
  c.expected = [=](const Case& in) {
    const double unit = held.params == DType::bf16 ? 0x1p-8 : kUnit;
    double way = 0;  // that a parameter can go
    for (int step = 1; step <= kSteps; ++step)
      way += kAdamW.learning_rate * largest_move(kAdamW, step);
    Expected params{p, {}, {}};
    for (int64_t i = 0; i < n; ++i) {
      double value = in[p].at(0, i), mean = 0, square = 0, largest_value = std::abs(value);
      bool moves = false;
      for (int step = 1; step <= kSteps; ++step) {
        const AdamW hyper = hyper_of(step);
        const double limit = double{kLargestGradient},
                     gradient = std::clamp(double{in[g].at(step - 1, i)}, -limit, limit);
        moves = moves || gradient != 0;
        mean = hyper.beta1 * mean + (1 - hyper.beta1) * gradient;
        square = hyper.beta2 * square + (1 - hyper.beta2) * gradient * gradient;
        value = value * (1 - hyper.learning_rate * hyper.weight_decay) -
                hyper.learning_rate * (mean / hyper.bias_correction1) /
                    (std::sqrt(square / hyper.bias_correction2) + hyper.eps);
        largest_value = std::max(largest_value, std::abs(value));
      }
      const double share = codes ? 4 : held.moments == DType::bf16 ? 0.125 : 1e-5;
      params.values.push_back(value);
      // Each step rounds the parameter twice.
      params.bounds.push_back(kSteps * 4 * unit * (largest_value + 0.1) +
                              (moves ? share * way : 0));
    }
    std::vector<Expected> all = {std::move(params)};
    // Moments that are not finite are outside of any bound.
    for (const int moment : codes ? std::vector{m8.scales, v8.scales} : std::vector{m, v}) {
      const auto count = static_cast<size_t>(in[moment].elems());
      all.push_back({moment, Doubles(count), Doubles(count, 1e37)});
    }
    return all;
  };
  return c;
}

// PyTorch's SGD with dampening 0.
void sgd_oracle(const Sgd& hyper, double factor, const Doubles& g, Doubles& p, Doubles& buffer) {
  for (size_t i = 0; i < p.size(); ++i) {
    double direction = g[i] * factor + hyper.weight_decay * p[i];
    if (hyper.momentum != 0) {
      buffer[i] = hyper.first ? direction : hyper.momentum * buffer[i] + direction;
      direction = hyper.nesterov ? direction + hyper.momentum * buffer[i] : buffer[i];
    }
    p[i] -= hyper.learning_rate * direction;
  }
}

Case sgd_case(Sgd hyper, int64_t n, float factor, Held held = {}) {
  Case c;
  const bool skipped = std::isnan(factor), momentum = hyper.momentum != 0;
  const auto state = [&](const char* name, const HostTensor& values) {
    return skipped ? c.input(name, values) : c.output(name, values);
  };
  const Control control = add_control(c, factor);
  const Params t = add_params(c, n, factor, held);
  // The first step must not read it.
  const int m =
      !momentum
          ? -1
          : state("m",
                  (hyper.first ? HostTensor(1, n).clear() : normals(1, n, 3)).as(held.moments));
  c.run = [=](Call& call) {
    const SgdStep step{hyper, t.shard(call, held, 0, n), momentum ? call[m] : Tensor{}};
    call.kernels().sgd(control.of(call), {&step, 1});
  };
  c.expected = [=](const Case& in) {
    if (skipped) return std::vector<Expected>{};
    Doubles ps = in[t.stepped()].doubles(), buffer = momentum ? in[m].doubles() : Doubles();
    sgd_oracle(hyper, factor, in[t.grads].doubles(), ps, buffer);
    // Four roundings of values up to 8 each.
    std::vector<Expected> all;
    add_expected(all, held, t, close(t.stepped(), ps, 4 * 8 * kUnit));
    if (momentum)
      all.push_back(drawn(held.moments, close(m, buffer, 4 * 8 * kUnit), first_moment_word));
    return all;
  };
  return c;
}

constexpr Sgd kPlain = {
    .learning_rate = 0.1f, .momentum = 0, .weight_decay = 0.01f, .nesterov = false, .first = false};
constexpr Sgd kHeavy = {0.1f, 0.9f, 0.01f, false, false};
constexpr Sgd kNesterov = {0.1f, 0.9f, 0.01f, true, false};
constexpr Sgd kFirst = {0.1f, 0.9f, 0.01f, false, true};
constexpr Sgd kFirstNesterov = {0.1f, 0.9f, 0.01f, true, true};

// One step of sgd from 1 by `step` units of the type's last place, on many elements: the smallest
// steps are lost to the nearest number, and not to a random one.
Case small_step_case(const Held& held, float step) {
  constexpr int64_t kElems = 10007;
  const float unit = held.params == DType::bf16 ? 0x1p-7f : 0x1p-10f;
  Case c;
  const Control control = add_control(c, 1);
  HostTensor ones(1, kElems, 0, held.params), gradient(1, kElems, 0, held.grads);
  ones.fill(1);
  gradient.fill(-step * unit);
  const Params t{c.input("g", gradient), c.output("p", ones), -1};
  const Sgd hyper{
      .learning_rate = 1, .momentum = 0, .weight_decay = 0, .nesterov = false, .first = false};
  c.run = [=](Call& call) {
    const SgdStep one{hyper, t.shard(call, held, 0, kElems)};
    call.kernels().sgd(control.of(call), {&one, 1});
  };
  c.expected = [=](const Case&) {
    std::vector<Expected> all;  // 1 + step * unit is exact in f32
    add_expected(all, held, t,
                 exactly(t.params, Doubles(static_cast<size_t>(kElems), 1.0 + step * unit)));
    return all;
  };
  return c;
}

void add_held_cases(CaseList& list, DType type) {
  for (const Held& held : held_in(type)) {
    const std::string name = name_of(held);
    for (const float factor : {0.5f, kNan})
      for (const int64_t n : {1, 17, 1031, 70001})
        list.push_back({"optimizer", fmt::format("adamw {} {} {}", name, n, control_name(factor)),
                        [=] { return adamw_case(kAdamW, n, factor, false, held); }});
    list.push_back({"optimizer", fmt::format("adamw {} 1003 in shards", name),
                    [=] { return adamw_case(kAdamW, 1003, 0.5f, true, held); }});
    list.push_back({"optimizer", fmt::format("adamw {} 0", name),
                    [=] { return adamw_case(kAdamW, 0, 0.5f, false, held); }});
    list.push_back({"optimizer", fmt::format("sgd {} plain", name),
                    [=] { return sgd_case(kPlain, 1031, 0.5f, held); }});
    list.push_back({"optimizer", fmt::format("sgd {} first nesterov", name),
                    [=] { return sgd_case(kFirstNesterov, 1031, 0.5f, held); }});
    list.push_back({"optimizer", fmt::format("sgd {} nesterov", name),
                    [=] { return sgd_case(kNesterov, 1031, 1, held); }});
    for (const float step : {0.25f, 0.5f, 0.75f, -0.125f})
      if (!held.master && held.moments == DType::f32)
        list.push_back({"optimizer", fmt::format("sgd {} by {} units", name, step),
                        [=] { return small_step_case(held, step); }});
  }
}

}  // namespace

void add_optimizer_cases(CaseList& list) {
  for (const float factor : {1.0f, 0.5f, 0.0625f, kNan})
    for (const int64_t n : {1, 15, 16, 17, 1031, 200003}) {
      if (n > 1031 && factor != 0.5f) continue;
      list.push_back({"optimizer", fmt::format("adamw {} {}", n, control_name(factor)),
                      [=] { return adamw_case(kAdamW, n, factor); }});
    }
  for (const auto& [name, hyper] : {std::pair{"adam", kL2}, {"adamw uncorrected", kUncorrected}})
    for (const float factor : {1.0f, 0.5f, kNan})
      for (const int64_t n : {1, 17, 1031})
        list.push_back({"optimizer", fmt::format("{} {} {}", name, n, control_name(factor)),
                        [=, hyper = hyper] { return adamw_case(hyper, n, factor); }});
  list.push_back(
      {"optimizer", "adamw 1003 in shards", [] { return adamw_case(kAdamW, 1003, 0.5f, true); }});
  list.push_back(
      {"optimizer", "adam 1003 in shards", [] { return adamw_case(kL2, 1003, 0.5f, true); }});
  list.push_back({"optimizer", "adamw 0", [] { return adamw_case(kAdamW, 0, 0.5f); }});
  const std::pair<const char*, Sgd> kinds[] = {{"plain", kPlain},
                                               {"momentum", kHeavy},
                                               {"nesterov", kNesterov},
                                               {"first momentum", kFirst},
                                               {"first nesterov", kFirstNesterov}};
  for (const auto& [name, hyper] : kinds)
    for (const float factor : {1.0f, 0.5f, kNan})
      for (const int64_t n : {1, 17, 1031})
        list.push_back({"optimizer", fmt::format("sgd {} {} {}", name, n, control_name(factor)),
                        [=, hyper = hyper] { return sgd_case(hyper, n, factor); }});
  list.push_back(
      {"optimizer", "sgd nesterov 200003 factor 1", [] { return sgd_case(kNesterov, 200003, 1); }});
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) add_held_cases(list, type);
  add_optimizer_rule_cases(list);
  add_frozen_lamb_cases(list);
  for (const Held& held :
       {Held{}, Held{DType::bf16, DType::f32, true}, Held{DType::bf16, DType::bf16, false, true}}) {
    const std::string name = "adamw in codes, " + name_of(held);
    for (const float factor : {0.5f, kNan})
      for (const int64_t n : {1, 256, 257, 1031, 70001})
        list.push_back({"optimizer", fmt::format("{} {} {}", name, n, control_name(factor)),
                        [=] { return adamw8_case(kAdamW, n, factor, false, held); }});
    list.push_back({"optimizer", fmt::format("{} 5003 in shards", name),
                    [=] { return adamw8_case(kAdamW, 5003, 0.5f, true, held); }});
  }
  for (const HostileGradients& hostile : kHostileGradients)
    for (const DType moments : {DType::f32, DType::bf16, DType::u8})
      for (const bool wide : {true, false}) {
        const DType type = wide ? DType::f32 : DType::bf16;
        const Held held{type, type, false, !wide, moments};
        list.push_back({"optimizer",
                        fmt::format("adamw by {}, {} with moments of {}", hostile.name,
                                    dtype_name(type), dtype_name(moments)),
                        [=] { return hostile_case(hostile, held); }});
      }
}

void add_optimizer_benchmarks(CaseList& list) {
  constexpr int64_t kElems = int64_t{4} << 20;
  add_optimizer_rule_benchmarks(list);
  add_frozen_lamb_benchmarks(list);
  list.push_back(
      {"optimizer", "adamw of 4 Mi parameters", [] { return adamw_case(kAdamW, kElems, 0.5f); }});
  list.push_back(
      {"optimizer", "sgd of 4 Mi parameters", [] { return sgd_case(kHeavy, kElems, 0.5f); }});
  for (const Held& held :
       {Held{DType::bf16, DType::f32, true}, Held{DType::bf16, DType::bf16, true},
        Held{DType::bf16, DType::bf16, false, true},
        Held{DType::bf16, DType::bf16, false, true, DType::bf16}})
    list.push_back({"optimizer", fmt::format("adamw of 4 Mi parameters {}", name_of(held)),
                    [=] { return adamw_case(kAdamW, kElems, 0.5f, false, held); }});
  const Held lean{DType::bf16, DType::bf16, false, true};
  list.push_back({"optimizer", fmt::format("adamw of 4 Mi parameters in codes, {}", name_of(lean)),
                  [=] { return adamw8_case(kAdamW, kElems, 0.5f, false, lean); }});
}

}  // namespace onefold::cases
