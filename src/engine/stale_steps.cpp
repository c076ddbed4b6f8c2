// Ranks that compute with weights of some steps ago (StaleOptions).
#include <algorithm>

#include "engine/engine.h"

namespace onefold {
namespace {

std::span<float> weights_of(const UnitState& own) {
  return floats_of(own.exact_parameters().at_home());
}

}  // namespace

// From one taking of weights to the next. All ranks take them every so many steps, so that nobody
// has to go back to the beginning to know where a rank is.
int64_t StaleOptions::age(uint64_t seed, int rank, int64_t steps) const {
  constexpr int64_t kTogether = 1024;
  constexpr uint32_t kNoUnit = ~0u;  // packets draw by unit, from 0
  if (!on() || steps < whole_steps) return 0;
  int64_t taken = whole_steps + (steps - whole_steps) / kTogether * kTogether;
  while (true) {
    const PhiloxKey key = philox_key(seed, Draw::wire, static_cast<uint32_t>(taken), kNoUnit,
                                     static_cast<uint32_t>(rank));
    const int64_t more = philox_word(key, 0) % static_cast<uint64_t>(bound + 1);
    if (steps <= taken + more) return steps - taken;
    taken += more + 1;
  }
}

void Executor::swap_stale() {
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    if (own.frozen() || own.own_states() == 0) continue;
    const std::span<float> weights = weights_of(own), other = floats_of(own.own_state(0));
    std::swap_ranges(weights.begin(), weights.end(), other.begin());
  }
}

// By the square of the gradient, where a second derivative would stand (Zheng et al. 2017). What is
// summed is a rank's part of a mean: its own mean is as many times larger as there are ranks.
void Executor::compensate(int unit) {
  const UnitState& own = state_.unit(unit);
  const float factor = options_.stale.compensation * static_cast<float>(control_.ranks());
  if (factor == 0 || device_.dry()) return;
  const std::span<const float> old = weights_of(own), newest = floats_of(own.own_state(0));
  float* const gradient = static_cast<float*>(own.reduce_message().whole);
  for (size_t i = 0; i < old.size(); ++i)
    gradient[i] += factor * gradient[i] * gradient[i] * (newest[i] - old[i]);
}

// What this rank computes with: the newest weights, of which it takes a copy, or the copy that it
// has, in their place until the step.
bool Engine::begin_stale_step() {
  if (!options_.stale.on() || device_->dry()) return false;
  // Whoever copies the state behind the run has it before it changes.
  if (options_.before_action)
    options_.before_action({.verb = Verb::step, .unit = state_.units() - 1});
  const bool stale = options_.stale.age(options_.seed, rank(), steps_done_) > 0;
  if (stale) {
    executor_.swap_stale();
    return true;
  }
  for (int u = 0; u < state_.units(); ++u) {
    const UnitState& own = state_.unit(u);
    if (own.frozen() || own.own_states() == 0) continue;
    const std::span<const float> newest = weights_of(own);
    std::copy(newest.begin(), newest.end(), floats_of(own.own_state(0)).begin());
  }
  return false;
}

}  // namespace onefold
