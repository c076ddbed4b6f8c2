#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "config/sections.h"
#include "error_text.h"

namespace onefold {
namespace {

struct Read {
  ScheduleConfig config;
  double lr;
};

Read read(const char* text, double lr = 1.0) {
  JsonObject in(parse_json(text, "test"), "scheduler");
  Read result{{}, lr};
  result.config = read_schedule(in, result.lr);
  in.finish();
  return result;
}

Schedule schedule(const char* text, double lr = 1.0, int64_t run_steps = 100) {
  const Read r = read(text, lr);
  return {r.config, r.lr, run_steps};
}

TEST(Schedule, ConstantWithoutWarmupIsConstant) {
  const Schedule s(ScheduleConfig{}, 0.25, 10);
  for (const int64_t step : {0, 5, 9, 1000}) EXPECT_EQ(s.rate(step), 0.25);
}

TEST(Schedule, WarmupRisesInEqualStepsAndIsNeverZero) {
  const Schedule s = schedule(R"({"type": "constant", "params": {"warmup_steps": 4}})");
  for (int64_t step = 0; step < 4; ++step)
    EXPECT_DOUBLE_EQ(s.rate(step), static_cast<double>(step + 1) / 5);
  EXPECT_EQ(s.rate(4), 1.0);
  EXPECT_EQ(s.rate(50), 1.0);
}

TEST(Schedule, LinearFallsToItsFloorAtTheEndOfTheRun) {
  const Schedule s = schedule(
      R"({"type": "linear", "params": {"warmup_steps": 20, "min_lr_ratio": 0.2}})", 2.0, 100);
  EXPECT_DOUBLE_EQ(s.rate(20), 2.0);
  EXPECT_DOUBLE_EQ(s.rate(60), 2.0 * (0.2 + 0.8 * 0.5));
  EXPECT_DOUBLE_EQ(s.rate(100), 0.4);
  EXPECT_DOUBLE_EQ(s.rate(1000), 0.4);
}

TEST(Schedule, CosineIsHalfWayInTheMiddle) {
  const Schedule s = schedule(R"({"type": "cosine", "params": {"total_steps": 40}})", 2.0, 100);
  EXPECT_EQ(s.total_steps(), 40);
  EXPECT_DOUBLE_EQ(s.rate(0), 2.0);
  EXPECT_NEAR(s.rate(20), 1.0, 1e-15);
  EXPECT_NEAR(s.rate(40), 0.0, 1e-15);
  EXPECT_NEAR(s.rate(99), 0.0, 1e-15);
}

TEST(Schedule, WarmupStableDecay) {
  const Schedule s = schedule(R"({"type": "wsd", "params": {"warmup_steps": 10, "decay_steps": 20,
                                             "decay_type": "sqrt", "min_lr_ratio": 0.1}})");
  EXPECT_DOUBLE_EQ(s.rate(10), 1.0);
  EXPECT_DOUBLE_EQ(s.rate(80), 1.0);
  EXPECT_DOUBLE_EQ(s.rate(85), 0.1 + 0.9 * (1 - std::sqrt(0.25)));
  EXPECT_DOUBLE_EQ(s.rate(100), 0.1);
  const Schedule tenth = schedule(R"({"type": "wsd"})");
  EXPECT_DOUBLE_EQ(tenth.rate(90), 1.0);
  EXPECT_DOUBLE_EQ(tenth.rate(95), 0.5);
}

TEST(Schedule, RefusesWarmupAndDecayThatDoNotFit) {
  EXPECT_ERROR(schedule(R"({"type": "cosine", "params": {"warmup_steps": 101}})"),
               "scheduler.params.warmup_steps is 101", "100 steps");
  EXPECT_ERROR(schedule(R"({"type": "wsd", "params": {"warmup_steps": 60, "decay_steps": 50}})"),
               "warmup_steps 60 and decay_steps 50 do not fit in 100");
}

// DeepSpeed's optimizer step s runs with last_batch_iteration = s - 1; the values are its formulas
// by hand.
TEST(DeepSpeedSchedule, WarmupLRWithLogWarmup) {
  const Schedule s = schedule(
      R"({"type": "WarmupLR", "params": {"warmup_min_lr": 0.1, "warmup_max_lr": 1.0,
                                         "warmup_num_steps": 10}})");
  EXPECT_DOUBLE_EQ(s.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(s.rate(1), 0.1);
  EXPECT_DOUBLE_EQ(s.rate(2), 0.1 + 0.9 * std::log(2.0) / std::log(10.0));
  EXPECT_DOUBLE_EQ(s.rate(10), 1.0);  // log(10) / log(10): one step before the warm-up ends
  EXPECT_DOUBLE_EQ(s.rate(11), 1.0);
}

TEST(DeepSpeedSchedule, WarmupLRWithLinearWarmupOfAtLeastTwoSteps) {
  const Schedule s = schedule(
      R"({"type": "WarmupLR", "params": {"warmup_num_steps": 1, "warmup_type": "linear"}})");
  EXPECT_EQ(s.rate(0), 0.0);
  EXPECT_EQ(s.rate(1), 0.0);
  EXPECT_EQ(s.rate(2), 0.5);
  EXPECT_EQ(s.rate(3), 1.0);
}

TEST(DeepSpeedSchedule, WarmupDecayLR) {
  const Schedule s = schedule(
      R"({"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear",
          "warmup_max_lr": 1.0, "warmup_min_lr": 0.2, "total_num_steps": 50}})");
  EXPECT_DOUBLE_EQ(s.rate(6), 0.2 + 0.8 * 0.5);
  EXPECT_DOUBLE_EQ(s.rate(11), 1.0);
  EXPECT_DOUBLE_EQ(s.rate(31), 0.2 + 0.8 * 0.5);
  EXPECT_DOUBLE_EQ(s.rate(51), 0.2);
  EXPECT_DOUBLE_EQ(s.rate(80), 0.2);
}

TEST(DeepSpeedSchedule, WarmupCosineLR) {
  const Schedule s = schedule(
      R"({"type": "WarmupCosineLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear",
          "warmup_min_ratio": 0.5, "cos_min_ratio": 0.1, "total_num_steps": 50}})",
      2.0);
  EXPECT_EQ(s.rate(0), 0.0);
  EXPECT_DOUBLE_EQ(s.rate(1), 1.0);
  EXPECT_DOUBLE_EQ(s.rate(6), 2.0 * 0.75);
  const double first = (1 + std::cos(std::numbers::pi / 40)) / 2;
  EXPECT_DOUBLE_EQ(s.rate(11), 2.0 * (0.1 + 0.9 * first));
  EXPECT_DOUBLE_EQ(s.rate(30), 2.0 * (0.1 + 0.9 * 0.5));
  EXPECT_DOUBLE_EQ(s.rate(50), 0.2);
  EXPECT_DOUBLE_EQ(s.rate(70), 0.2);
}

// The values are the formulas of DeepSpeed's _get_scale_factor and _get_decay_lr by hand.
TEST(DeepSpeedSchedule, OneCycleRisesFallsAndDecays) {
  const Schedule s = schedule(
      R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1.1,
          "cycle_first_step_size": 10, "cycle_second_step_size": 20, "decay_step_size": 5,
          "decay_lr_rate": 2, "cycle_min_mom": 0.85, "cycle_max_mom": 0.95}})");
  EXPECT_DOUBLE_EQ(s.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(s.rate(5), 0.6);
  EXPECT_DOUBLE_EQ(s.rate(10), 1.1);
  EXPECT_DOUBLE_EQ(s.rate(15), 0.1 + 0.75);
  EXPECT_DOUBLE_EQ(s.rate(30), 0.1);
  EXPECT_DOUBLE_EQ(s.rate(35), 0.1 / (1 + 2 * 5 / 5.0));
  EXPECT_DOUBLE_EQ(s.rates(0).betas->first, 0.85) << "DeepSpeed starts at the lowest";
  EXPECT_DOUBLE_EQ(s.rates(5).betas->first, 0.9);
  EXPECT_DOUBLE_EQ(s.rates(10).betas->first, 0.85);
  EXPECT_DOUBLE_EQ(s.rates(40).betas->first, 0.95);
  EXPECT_EQ(s.rates(5).betas->second, 0.99);
}

TEST(DeepSpeedSchedule, OneCycleWithStairsAndWithoutMomentum) {
  const Schedule s = schedule(
      R"({"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1,
          "cycle_first_step_size": 10, "cycle_first_stair_count": 2, "cycle_momentum": false}})");
  EXPECT_EQ(s.rate(4), 0.0);
  EXPECT_EQ(s.rate(5), 0.5);
  EXPECT_EQ(s.rate(10), 1.0);
  EXPECT_EQ(s.rate(14), 0.5) << "as many stairs down, unless said otherwise";
  EXPECT_EQ(s.rate(60), 0.0) << "no decay";
  EXPECT_FALSE(s.rates(5).betas);
}

TEST(DeepSpeedSchedule, OneCyclesMomentumMayGrowButNotTo1) {
  const char* grows = R"({"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1,
      "cycle_first_step_size": 10, "decay_step_size": 10, "decay_mom_rate": 0.01}})";
  EXPECT_DOUBLE_EQ(schedule(grows).rates(40).betas->first, 0.9 * 1.02);
  EXPECT_ERROR(schedule(grows, 1.0, 1000), "decay_mom_rate is 0.01", "reach 1 within 1000 steps");
}

TEST(DeepSpeedSchedule, LRRangeTestGrowsWithoutEnd) {
  const Schedule smooth = schedule(
      R"({"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.1,
          "lr_range_test_step_size": 4, "lr_range_test_step_rate": 5}})");
  EXPECT_DOUBLE_EQ(smooth.rate(0), 0.1);
  EXPECT_DOUBLE_EQ(smooth.rate(6), 0.1 * (1 + 5 * 1.5));
  const Schedule stairs = schedule(
      R"({"type": "LRRangeTest", "params": {"lr_range_test_step_size": 4,
          "lr_range_test_staircase": true}})");
  EXPECT_DOUBLE_EQ(stairs.rate(7), 0.002);
  EXPECT_DOUBLE_EQ(stairs.rate(8), 0.003);
}

TEST(ReadSchedule, ASchedulesOwnRateReplacesTheOptimizers) {
  EXPECT_EQ(read(R"({"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}})", 1.0).lr, 0.5);
  EXPECT_EQ(read(R"({"type": "WarmupLR"})", 0.3).lr, 0.3);
  EXPECT_EQ(read(R"({"type": "WarmupDecayLR"})", 0.3).lr, 0.001) << "DeepSpeed's default";
  EXPECT_EQ(read(R"({"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto"}})", 0.3).lr, 0.3);
}

TEST(ReadSchedule, KeysOfAnotherTypeHaveNoEffectAndSayso) {
  EXPECT_ERROR(read(R"({"type": "WarmupLR", "params": {"total_num_steps": 5}})"),
               "scheduler.params.total_num_steps has no effect", "WarmupLR");
  EXPECT_ERROR(read(R"({"type": "constant", "params": {"min_lr_ratio": 0.1}})"),
               "scheduler.params.min_lr_ratio has no effect");
  EXPECT_ERROR(read(R"({"type": "cosine", "params": {"warmup_num_steps": 5}})"),
               "scheduler.params.warmup_num_steps has no effect");
  EXPECT_ERROR(read(R"({"type": "cosine", "params": {"warmup_step": 5}})"),
               "scheduler.params.warmup_step is not a known key", "warmup_steps");
}

TEST(ReadSchedule, TypeErrors) {
  EXPECT_ERROR(read(R"({"type": "OneCycle"})"), "scheduler.params.cycle_min_lr is missing");
  EXPECT_ERROR(read(R"({"type": "LRRangeTest", "params": {"warmup_type": "log"}})"),
               "scheduler.params.warmup_type has no effect");
  EXPECT_ERROR(read(R"({"type": "cosin"})"), "did you mean \"cosine\"?");
  EXPECT_ERROR(read(R"({"params": {}})"), "scheduler.type is missing");
  EXPECT_ERROR(read(R"({"type": "WarmupLR", "params": {"warmup_type": "auto"}})"),
               "scheduler.params.warmup_type must be one of");
  EXPECT_EQ(
      read(R"({"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}})").config.warmup_steps,
      1);
}

TEST(ReadSchedule, PrintsWhatItReads) {
  for (const char* text :
       {R"({"type": "constant"})", R"({"type": "linear", "params": {"warmup_steps": 3}})",
        R"({"type": "wsd", "params": {"decay_steps": 7, "decay_type": "cosine"}})",
        R"({"type": "WarmupLR", "params": {"warmup_type": "linear"}})",
        R"({"type": "WarmupDecayLR", "params": {"warmup_max_lr": 1, "total_num_steps": 9}})",
        R"({"type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.25}})"}) {
    const Read once = read(text);
    const Json printed = schedule_json(once.config, once.lr);
    const Read twice = read(printed.dump().c_str());
    EXPECT_EQ(schedule_json(twice.config, twice.lr).dump(), printed.dump());
  }
}

}  // namespace
}  // namespace onefold
