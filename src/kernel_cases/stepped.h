// What cases of optimizers share: how parameters are held, a step's control, and what is expected
// of numbers that are rounded as they are stored.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/half.h"
#include "kernel_cases/case.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// How parameters are held.
struct Held {
  DType params = DType::f32, grads = DType::f32;
  bool master = false;      // in f32, beside params of 16 bits
  bool stochastic = false;  // without a master: rounded by random numbers
  DType moments = DType::f32;

  bool rounds() const { return stochastic || moments != DType::f32; }
};

inline constexpr StochasticRounding kRounding = {{0x12345678u, 0x9abcdef0u}, 0x3fffffffe};

// What is stepped: the tensor of this name holds the values before the step. Beside a master,
// params hold no number: they are written only.
struct Params {
  int grads, params, master;

  Stepped shard(const Call& call, const Held& held, int64_t begin, int64_t count) const {
    const auto part = [&](int tensor) { return call[tensor].col_range(begin, count); };
    Stepped stepped{part(params), part(grads)};
    if (held.master) stepped.master = part(master);
    if (held.rounds()) {
      stepped.rounding = kRounding;
      stepped.rounding->first += begin;
    }
    return stepped;
  }
  int stepped() const { return master < 0 ? params : master; }
};

// Of every number within the bounds, what is stored for it by its random number: rounding is
// monotonic.
inline Expected drawn(DType dtype, Expected expected, uint32_t (*word_of)(uint32_t) = nullptr) {
  if (dtype == DType::f32) return expected;
  const auto bits_of = dtype == DType::bf16 ? f32_to_bf16_drawn : f32_to_f16_drawn;
  const auto value_of = dtype == DType::bf16 ? bf16_to_f32 : f16_to_f32;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    double &value = expected.values[i], &bound = expected.bounds[i];
    uint32_t word = philox_word(kRounding.key, static_cast<uint64_t>(kRounding.first) + i);
    if (word_of) word = word_of(word);
    const double low = value_of(bits_of(static_cast<float>(value - bound), word)),
                 high = value_of(bits_of(static_cast<float>(value + bound), word));
    value = (low + high) / 2;
    bound = (high - low) / 2;
  }
  return expected;
}

// Of params and the master, for what was stepped.
inline void add_expected(std::vector<Expected>& all, const Held& held, const Params& t,
                         const Expected& stepped) {
  Expected params = stepped;
  params.tensor = t.params;
  all.push_back(held.stochastic ? drawn(held.params, params) : stored(held.params, params));
  if (held.master) all.push_back(stepped);
}

// What clipping left: a factor of NaN stands for a step that is not finite, of which nothing may be
// changed.
struct Control {
  int factor, finite;
  StepControl of(const Call& call) const { return {call[factor], call[finite]}; }
};
inline Control add_control(Case& c, float factor) {
  return {c.input("factor", row_of(std::vector{factor})),
          c.input("finite", row_of(std::vector<int32_t>{std::isnan(factor) ? 0 : 1}))};
}

inline HostTensor gradients(int64_t n, float factor) {
  HostTensor values = normals(1, n, 2);
  if (std::isnan(factor)) values.set(0, n / 2, kNan);
  return values;
}

inline Params add_params(Case& c, int64_t n, float factor, const Held& held) {
  const bool skipped = std::isnan(factor);
  const auto state = [&](const char* name, const HostTensor& values) {
    return skipped ? c.input(name, values) : c.output(name, values);
  };
  const HostTensor values = normals(1, n, 1);
  Params t{c.input("g", gradients(n, factor).as(held.grads)), -1, -1};
  t.params =
      state("p", held.master ? HostTensor(1, n, 0, held.params).clear() : values.as(held.params));
  if (held.master) t.master = state("master", values);
  return t;
}

inline std::string control_name(float factor) {
  return std::isnan(factor) ? "not finite" : fmt::format("factor {}", factor);
}

inline std::string name_of(const Held& held) {
  return fmt::format("{} by {}{}{}{}", dtype_name(held.params), dtype_name(held.grads),
                     held.master ? " with a master" : "", held.stochastic ? " stochastic" : "",
                     held.moments == DType::f32 ? "" : " with narrow moments");
}

inline std::vector<Held> held_in(DType type) {
  constexpr DType kNarrow = DType::bf16;
  if (type == DType::f32) return {Held{type, type, false, false, kNarrow}};
  std::vector<Held> all;
  for (const DType grads : {type, DType::f32})
    for (const DType moments : {DType::f32, kNarrow}) {
      all.push_back({type, grads, true, false, moments});
      all.push_back({type, grads, false, false, moments});
      all.push_back({type, grads, false, true, moments});
    }
  std::erase_if(all, [](const Held& held) {  // whoever rounds moments rounds parameters too
    return held.moments != DType::f32 && !held.master && !held.stochastic;
  });
  return all;
}

}  // namespace onefold::cases
