#include "optim/loss_scale.h"

#include <algorithm>
#include <cmath>

namespace onefold {
namespace {

constexpr double kFactor = 2;

}  // namespace

LossScale::LossScale(const LossScaleConfig& config) : config_(config) {
  state_.scale = config.dynamic() ? std::ldexp(1.0, config.initial_power) : config.fixed;
  state_.hysteresis = config.hysteresis;
  state_.followed = config.dynamic();
}

void LossScale::resume(const State& state) {
  const State begun = state_;
  state_ = state;
  if (begun.followed && state.followed) return;
  state_.scale = begun.scale;
  state_.hysteresis = begun.hysteresis;
  state_.followed = begun.followed;
}

bool LossScale::update(bool overflow) {
  const int64_t step = state_.steps++;
  if (overflow) ++state_.skipped;
  if (!config_.dynamic()) return true;
  if (overflow) {
    state_.last_overflow = step;
    if (config_.hysteresis != 1 && state_.hysteresis != 1) {
      --state_.hysteresis;
      return true;
    }
    if (state_.scale == config_.least) return false;
    state_.scale = std::max(state_.scale / kFactor, config_.least);
    return true;
  }
  if (config_.consecutive) state_.hysteresis = config_.hysteresis;
  if ((step - state_.last_overflow) % config_.window != 0) return true;
  if (!config_.consecutive) state_.hysteresis = config_.hysteresis;
  state_.scale *= kFactor;
  return true;
}

}  // namespace onefold
