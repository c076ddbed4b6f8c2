#include "program/program.h"

#include <gtest/gtest.h>

#include "program/passes.h"

namespace onefold {
namespace {

std::vector<std::string> lines(const Program& program) {
  std::vector<std::string> result;
  for (const Action& action : program.actions)
    result.push_back(describe(action, "u" + std::to_string(action.unit)));
  return result;
}

TEST(Program, TheHeadIsEnteredBackwardsOnly) {
  EXPECT_EQ(lines(build_training_step({.units = 3, .micros = 1})),
            (std::vector<std::string>{"forward u0, micro 0", "forward u1, micro 0",
                                      "backward u2, micro 0", "norm u2", "backward u1, micro 0",
                                      "norm u1", "backward u0, micro 0", "norm u0", "clip",
                                      "step u0", "step u1", "step u2"}));
}

TEST(Program, NormsFollowTheLastMicroBatchAndEachUnitStepsOnce) {
  const Program program = build_training_step({.units = 4, .micros = 3});
  int norms = 0, steps = 0;
  for (const Action& action : program.actions) {
    norms += action.verb == Verb::norm;
    steps += action.verb == Verb::step;
  }
  EXPECT_EQ(norms, 4);
  EXPECT_EQ(steps, 4);
}

TEST(Accumulate, OnlyTheFirstMicroBatchOverwrites) {
  Program program = build_training_step({.units = 3, .micros = 2});
  accumulate(program);
  for (const Action& action : program.actions) {
    if (action.verb == Verb::backward) {
      EXPECT_EQ(action.accumulate, action.micro > 0);
    }
  }
}

TEST(Recompute, RunsABlocksForwardAgainJustBeforeItsBackward) {
  Program program = build_training_step({.units = 4, .micros = 1});
  recompute(program);
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const bool block = action.unit == 1 || action.unit == 2;
    if (action.verb == Verb::backward && block) {
      const Action& before = program.actions[i - 1];
      EXPECT_EQ(before.verb, Verb::forward);
      EXPECT_EQ(before.unit, action.unit);
      EXPECT_TRUE(before.again && before.keep);
    }
    if (action.verb == Verb::forward && block && !action.again) {
      EXPECT_FALSE(action.keep);
    }
  }
}

TEST(Evaluation, KeepsNothing) {
  for (const Action& action : build_evaluation(3).actions) EXPECT_FALSE(action.keep);
}

}  // namespace
}  // namespace onefold
