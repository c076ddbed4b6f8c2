#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/error.h"

namespace onefold {
namespace {

double decayed(DecayType type, double progress) {
  switch (type) {
    case DecayType::linear:
      return 1 - progress;
    case DecayType::cosine:
      return (1 + std::cos(std::numbers::pi * progress)) / 2;
    case DecayType::sqrt:
      return 1 - std::sqrt(progress);
  }
  internal_error("decay type {}", static_cast<int>(type));
}

// How far up a cycle is, from 0 to 1. A stair holds until the next one is reached; it is counted
// in steps, because a fraction of the cycle may fall short of it by a rounding.
double cycle_height(const OneCycleConfig& cycle, int64_t step) {
  const int64_t length = cycle.first_steps + cycle.second_steps, at = step % length;
  const bool rising = at <= cycle.first_steps;
  const auto done = static_cast<double>(rising ? at : length - at);
  const auto half = static_cast<double>(rising ? cycle.first_steps : cycle.second_steps);
  const auto stairs = static_cast<double>(rising ? cycle.first_stairs : cycle.second_stairs);
  return stairs > 0 ? std::floor(done * stairs / half) / stairs : done / half;
}

// DeepSpeed's schedule is one call behind the optimizer, and reads its cycle one step ahead.
bool in_cycle(const OneCycleConfig& cycle, int64_t step) {
  return step - 1 < cycle.first_steps + cycle.second_steps;
}

// 1 + rate * n / decay_steps, n steps after the cycle.
double after_cycle(const OneCycleConfig& cycle, double rate, int64_t step) {
  if (cycle.decay_steps == 0) return 1;
  const auto n = static_cast<double>(step - cycle.first_steps - cycle.second_steps);
  return 1 + rate * n / static_cast<double>(cycle.decay_steps);
}

}  // namespace

Schedule::Schedule(const ScheduleConfig& config, double lr, int64_t run_steps)
    : config_(config), lr_(lr) {
  // Rates are applied in single precision: a larger one would be infinite.
  if (!(lr <= static_cast<double>(std::numeric_limits<float>::max())))
    user_error("optimizer.params.lr is {}; the largest is {}", lr,
               std::numeric_limits<float>::max());
  if (config_.total_steps == 0) config_.total_steps = run_steps;
  if (config_.type == ScheduleType::one_cycle && config_.cycle.momentum &&
      config_.total_steps > 0 && first_beta(config_.total_steps - 1) >= 1)
    user_error(
        "scheduler.params.decay_mom_rate is {}: from cycle_max_mom {} the momentum would reach 1 "
        "within {} steps",
        config_.cycle.decay_momentum_rate, config_.cycle.max_momentum, config_.total_steps);
  // DeepSpeed only warns about a warm-up longer than the total, and its formulas say what happens
  // then.
  if (config_.is_deepspeed() || config_.type == ScheduleType::constant) return;
  const int64_t total = config_.total_steps;
  if (config_.warmup_steps > total)
    user_error("scheduler.params.warmup_steps is {}, more than the {} steps in total",
               config_.warmup_steps, total);
  if (config_.type != ScheduleType::wsd) return;
  if (config_.decay_steps == 0)
    config_.decay_steps = std::min((total + 9) / 10, total - config_.warmup_steps);
  if (config_.warmup_steps + config_.decay_steps > total)
    user_error(
        "scheduler.params: warmup_steps {} and decay_steps {} do not fit in {} steps in total",
        config_.warmup_steps, config_.decay_steps, total);
}

double Schedule::rate(int64_t step) const {
  return config_.is_deepspeed() ? deepspeed(step) : ours(step);
}

StepRates Schedule::rates(int64_t step) const {
  StepRates rates = rate(step);
  constexpr double kSecondBeta = 0.99;
  if (config_.cycles_momentum()) rates.betas = {first_beta(step), kSecondBeta};
  return rates;
}

double Schedule::ours(int64_t step) const {
  if (step < config_.warmup_steps)
    return lr_ * static_cast<double>(step + 1) / static_cast<double>(config_.warmup_steps + 1);
  if (config_.type == ScheduleType::constant) return lr_;
  const bool wsd = config_.type == ScheduleType::wsd;
  const int64_t start = wsd ? config_.total_steps - config_.decay_steps : config_.warmup_steps;
  const int64_t length = std::max<int64_t>(1, config_.total_steps - start);
  const double progress =
      std::clamp(static_cast<double>(step - start) / static_cast<double>(length), 0.0, 1.0);
  const DecayType type = wsd                                    ? config_.decay_type
                         : config_.type == ScheduleType::cosine ? DecayType::cosine
                                                                : DecayType::linear;
  return lr_ * (config_.min_lr_ratio + (1 - config_.min_lr_ratio) * decayed(type, progress));
}

double Schedule::one_cycle(int64_t step) const {
  const OneCycleConfig& cycle = config_.cycle;
  if (!in_cycle(cycle, step)) return cycle.min_lr / after_cycle(cycle, cycle.decay_lr_rate, step);
  return cycle.min_lr + (lr_ - cycle.min_lr) * cycle_height(cycle, step);
}

double Schedule::first_beta(int64_t step) const {
  const OneCycleConfig& cycle = config_.cycle;
  if (step == 0) return cycle.min_momentum;
  if (!in_cycle(cycle, step))
    return cycle.max_momentum * after_cycle(cycle, cycle.decay_momentum_rate, step);
  return cycle.max_momentum - (cycle.max_momentum - cycle.min_momentum) * cycle_height(cycle, step);
}

double Schedule::range_test(int64_t step) const {
  const double interval =
      static_cast<double>(step) / static_cast<double>(config_.range_test.step_size);
  return lr_ * (1 + config_.range_test.step_rate *
                        (config_.range_test.staircase ? std::floor(interval) : interval));
}

double Schedule::deepspeed(int64_t step) const {
  if (config_.type == ScheduleType::one_cycle) return one_cycle(step);
  if (config_.type == ScheduleType::lr_range_test) return range_test(step);
  const auto iteration = static_cast<double>(step - 1);
  const bool cosine = config_.type == ScheduleType::warmup_cosine_lr;
  const double lowest = cosine ? 0 : config_.warmup_min_lr;
  if (iteration < 0) return lowest;

  const auto warmup = static_cast<double>(std::max<int64_t>(2, config_.warmup_steps));
  const auto total = static_cast<double>(config_.total_steps);
  // The share of the way up (or, past the warm-up, still left of it).
  double gamma = 1;
  if (iteration < warmup) {
    gamma = config_.log_warmup ? std::log(iteration + 1) / std::log(warmup) : iteration / warmup;
    if (cosine) return lr_ * (config_.warmup_min_ratio + gamma * (1 - config_.warmup_min_ratio));
  } else if (cosine) {
    const double progress = std::min(1.0, (iteration - warmup + 1) / std::max(1.0, total - warmup));
    const double share = (1 + std::cos(std::numbers::pi * progress)) / 2;
    return lr_ * (config_.min_lr_ratio + (1 - config_.min_lr_ratio) * share);
  } else if (config_.type == ScheduleType::warmup_decay_lr) {
    gamma = std::max(0.0, (total - iteration) / std::max(1.0, total - warmup));
  }
  return lowest + (lr_ - lowest) * gamma;
}

}  // namespace onefold
