#include "optim/loss_scale.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace onefold {
namespace {

LossScaleConfig dynamic(int power, int64_t window, int64_t hysteresis, bool consecutive = false) {
  return {.fixed = 0,
          .initial_power = power,
          .window = window,
          .hysteresis = hysteresis,
          .consecutive = consecutive};
}

// The scale after each step; 'o' overflows, '.' does not.
std::vector<double> scales(const LossScaleConfig& config, const std::string& steps) {
  LossScale scale(config);
  std::vector<double> all;
  for (const char step : steps) {
    EXPECT_TRUE(scale.update(step == 'o'));
    all.push_back(scale.scale());
  }
  return all;
}

TEST(LossScale, AFixedOneStays) {
  EXPECT_EQ(scales({.fixed = 128}, "..o.o"), (std::vector<double>(5, 128)));
}

TEST(LossScale, DoublesAfterAWindowWithoutOverflow) {
  EXPECT_EQ(scales(dynamic(4, 3, 1), "......."), (std::vector<double>{16, 16, 32, 32, 32, 64, 64}));
  EXPECT_EQ(scales(dynamic(4, 3, 1), ".o....."), (std::vector<double>{16, 8, 8, 8, 16, 16, 16}));
}

TEST(LossScale, HysteresisLetsOverflowsPass) {
  EXPECT_EQ(scales(dynamic(6, 100, 3), "oo.oo"), (std::vector<double>{64, 64, 64, 32, 16}));
  EXPECT_EQ(scales(dynamic(6, 100, 3, true), "oo.ooo"),
            (std::vector<double>{64, 64, 64, 64, 64, 32}));
  // Doubling allows them again.
  EXPECT_EQ(scales(dynamic(6, 2, 2), "oo..oo"), (std::vector<double>{64, 32, 32, 64, 64, 32}));
}

TEST(LossScale, StopsAtTheLeast) {
  LossScaleConfig config = dynamic(1, 100, 1);
  LossScale scale(config);
  EXPECT_TRUE(scale.update(true));
  EXPECT_EQ(scale.scale(), 1);
  EXPECT_FALSE(scale.update(true));
  config.least = 0.75;
  EXPECT_EQ(scales(config, "oo"), (std::vector<double>{1, 0.75}));
}

// What is configured now holds; what was counted stays.
TEST(LossScale, GoesOnAsItIsConfigured) {
  LossScale followed(dynamic(6, 3, 1));
  for (const char step : std::string("o...")) ASSERT_TRUE(followed.update(step == 'o'));
  ASSERT_EQ(followed.scale(), 64);
  LossScale fixed({.fixed = 128});
  fixed.resume(followed.state());
  EXPECT_EQ(fixed.scale(), 128);
  EXPECT_EQ(fixed.state().skipped, 1);
  ASSERT_TRUE(fixed.update(true));
  LossScale again(dynamic(9, 3, 2));
  again.resume(fixed.state());
  EXPECT_EQ(again.scale(), 512);
  EXPECT_EQ(again.state().hysteresis, 2);
  EXPECT_EQ(again.state().skipped, 2);
  EXPECT_EQ(again.state().steps, 5);
}

TEST(LossScale, GoesOnFromItsState) {
  const LossScaleConfig config = dynamic(6, 3, 2);
  const std::string steps = "o.o..o....o..oo.....";
  for (size_t cut = 0; cut < steps.size(); ++cut) {
    LossScale whole(config), first(config), second(config);
    for (size_t i = 0; i < steps.size(); ++i) {
      (void)whole.update(steps[i] == 'o');
      if (i == cut) second.resume(first.state());
      (void)(i < cut ? first : second).update(steps[i] == 'o');
    }
    EXPECT_EQ(second.state(), whole.state()) << cut;
    EXPECT_EQ(whole.state().skipped, 6);
  }
}

}  // namespace
}  // namespace onefold
