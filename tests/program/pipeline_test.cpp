// Pipelines' programs: the order of turns, what travels between stages, and how long ranks stand
// still, in virtual time.
#include "program/pipeline.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "base/error.h"
#include "program/shapes.h"
#include "program/timeline.h"
#include "program/verify.h"

namespace onefold {
namespace {

using test::Shape;
using test::traits_of;
using Schedule = PipelineSchedule;

Pipeline pipeline_at(int place, int ranks, Schedule schedule, int units, int interleave = 1) {
  Pipeline pipeline{
      .ranks = ranks, .place = place, .interleave = interleave, .schedule = schedule, .first = {}};
  for (int stage = 0; stage <= pipeline.stages(); ++stage)
    pipeline.first.push_back(units * stage / pipeline.stages());
  return pipeline;
}

struct Staged {
  std::vector<Program> programs;
  std::vector<std::vector<UnitTraits>> units;
};

// The programs of all ranks of a pipeline, with `stage` of ZeRO on two ranks each if it is not 0.
Staged staged(const Shape& shape, int ranks, Schedule schedule, int interleave = 1, int stage = 0,
              bool recomputes = false) {
  Staged all;
  for (int place = 0; place < ranks; ++place) {
    const Pipeline pipeline = pipeline_at(place, ranks, schedule, shape.units, interleave);
    std::vector<UnitTraits> units = traits_of(shape, stage);
    place_units(units, pipeline);
    Program program =
        build_training_step({.units = units, .micros = shape.micros, .pipeline = pipeline});
    accumulate(program);
    if (recomputes) recompute(program, units);
    if (stage > 0) {
      shard(program, units, 2, {});
      bucket(program, units, 250, 250);
      overlap(program, units);
      prefetch(program, units, kOneUnit, INT64_MAX);
    }
    pass_between_stages(program, interleave > 1 ? 2 : 1);
    all.programs.push_back(std::move(program));
    all.units.push_back(std::move(units));
  }
  return all;
}

std::string text_of(const std::vector<Turn>& turns) {
  std::string text;
  for (const Turn& turn : turns)
    text += fmt::format("{}{}{} ",
                        turn.weights    ? 'W'
                        : turn.backward ? 'B'
                                        : 'F',
                        turn.micro, turn.number > 0 ? fmt::format("'{}", turn.number) : "");
  return text;
}

TEST(PipelineTurns, AreThoseOfTheirSchedule) {
  const auto turns = [](int place, Schedule schedule, int micros, int interleave = 1) {
    return text_of(turns_of(pipeline_at(place, 3, schedule, 12, interleave), micros));
  };
  EXPECT_EQ(turns(1, Schedule::gpipe, 3), "F0 F1 F2 B0 B1 B2 ");
  EXPECT_EQ(turns(0, Schedule::one_f_one_b, 4), "F0 F1 F2 B0 F3 B1 B2 B3 ");
  EXPECT_EQ(turns(1, Schedule::one_f_one_b, 4), "F0 F1 B0 F2 B1 F3 B2 B3 ");
  EXPECT_EQ(turns(2, Schedule::one_f_one_b, 4), "F0 B0 F1 B1 F2 B2 F3 B3 ");
  EXPECT_EQ(turns(0, Schedule::one_f_one_b, 1), "F0 B0 ");
  EXPECT_EQ(turns(0, Schedule::zero_bubble, 3), "F0 F1 F2 B0 W0 B1 W1 B2 W2 ");
  EXPECT_EQ(turns(2, Schedule::zero_bubble, 4), "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3 ");
  EXPECT_EQ(turns(2, Schedule::one_f_one_b, 3, 2),
            "F0 F1 F2 F0'1 B0'1 F1'1 B1'1 F2'1 B2'1 B0 B1 B2 ");
}

TEST(PipelineTurns, TakeEveryMicroBatchOnceInEachDirectionInOrder) {
  for (const int ranks : {2, 3, 5})
    for (const int interleave : {1, 2, 3})
      for (int place = 0; place < ranks; ++place) {
        const int micros = 2 * ranks;
        const auto turns =
            turns_of(pipeline_at(place, ranks, Schedule::one_f_one_b, 30, interleave), micros);
        EXPECT_EQ(turns.size(), static_cast<size_t>(2 * micros * interleave));
        for (int number = 0; number < interleave; ++number)
          for (const bool backward : {false, true}) {
            int next = 0;
            for (const Turn& turn : turns) {
              if (turn.number != number || turn.backward != backward) continue;
              EXPECT_EQ(turn.micro, next++);
            }
            EXPECT_EQ(next, micros);
          }
      }
}

TEST(PipelineProgram, PassesInputsUpAndGradientsDown) {
  const Staged two = staged({.units = 4, .micros = 1}, 2, Schedule::one_f_one_b);
  std::vector<std::string> lines;
  for (const Action& action : two.programs[0].actions)
    lines.push_back(describe(action, fmt::format("u{}", action.unit)));
  EXPECT_EQ(lines,
            (std::vector<std::string>{
                "forward u0, micro 0", "forward u1, micro 0", "send input of u2, micro 0",
                "recv output gradient of u1, micro 0", "backward u1, micro 0", "squares u1",
                "backward u0, micro 0", "squares u0", "release u2", "clip", "step u0", "step u1"}));
  lines.clear();
  for (const Action& action : two.programs[1].actions)
    lines.push_back(describe(action, fmt::format("u{}", action.unit)));
  EXPECT_EQ(lines,
            (std::vector<std::string>{"recv input of u2, micro 0", "forward u2, micro 0",
                                      "backward u3, micro 0", "squares u3", "backward u2, micro 0",
                                      "squares u2", "send output gradient of u1, micro 0",
                                      "release u1", "clip", "step u2", "step u3"}));
}

template <typename Check>
void for_each_pipeline(const Check& check) {
  for (const bool tied : {false, true})
    for (const Schedule schedule : kPipelineSchedules)
      for (const int ranks : {2, 3, 4})
        for (const int interleave : {1, 2}) {
          if (interleave > 1 && schedule != Schedule::one_f_one_b) continue;
          for (const int micros : {ranks, interleave > 1 ? 2 * ranks : 1, 4 * ranks})
            for (const std::vector<bool>& frozen :
                 {std::vector<bool>(11),
                  {false, true, true, false, false, false, false, false, true, false, true},
                  {true, true, true, true, false, false, false, false, false, false, false}})
              check(Shape{.units = 11, .micros = micros, .tied = tied, .frozen = frozen}, ranks,
                    schedule, interleave);
        }
}

TEST(PipelineProgram, IsSoundInEveryScheduleAndAtEveryStage) {
  const std::vector<std::string> none;
  int checked = 0;
  for_each_pipeline([&](const Shape& shape, int ranks, Schedule schedule, int interleave) {
    for (const int stage : {0, 1, 2, 3})
      for (const bool again : {false, true}) {
        const Staged all = staged(shape, ranks, schedule, interleave, stage, again);
        for (size_t place = 0; place < all.programs.size(); ++place)
          EXPECT_EQ(problems_of(all.programs[place], all.units[place], stage > 0 ? 2 : 1), none)
              << ranks << " ranks, " << schedule_name(schedule) << ", place " << place;
        ++checked;
      }
  });
  EXPECT_GT(checked, 500);
}

// Each message, release and wait is there for a reason.
TEST(PipelineProgram, LacksNothingThatTheVerifierWouldMiss) {
  const Shape shape{.units = 7, .micros = 3, .tied = true};
  const Staged all = staged(shape, 3, Schedule::one_f_one_b);
  int taken = 0;
  for (size_t place = 0; place < all.programs.size(); ++place) {
    const Program& sound = all.programs[place];
    for (size_t i = 0; i < sound.actions.size(); ++i) {
      const Verb verb = sound.actions[i].verb;
      if (verb == Verb::send || verb == Verb::recv || verb == Verb::release) {
        Program program = sound;
        program.actions.erase(program.actions.begin() + static_cast<int64_t>(i));
        EXPECT_FALSE(problems_of(program, all.units[place], 1).empty())
            << "place " << place << " without action " << i << ": "
            << describe(sound.actions[i], "unit");
        ++taken;
      }
      if (sound.actions[i].waits.empty()) continue;
      Program program = sound;
      program.actions[i].waits.clear();
      EXPECT_FALSE(problems_of(program, all.units[place], 1).empty())
          << "place " << place << " without the waits of action " << i;
      ++taken;
    }
  }
  EXPECT_GT(taken, 40);
}

// ---- Virtual time

// So many units for each stage, none of them special.
Staged equal_stages(int ranks, int micros, Schedule schedule, int interleave = 1) {
  Staged all;
  const int units = 2 * ranks * interleave;
  for (int place = 0; place < ranks; ++place) {
    const Pipeline pipeline = pipeline_at(place, ranks, schedule, units, interleave);
    std::vector<UnitTraits> traits = traits_of({.units = units, .micros = micros}, 0);
    traits.back().has_loss = false;
    place_units(traits, pipeline);
    Program program =
        build_training_step({.units = traits, .micros = micros, .pipeline = pipeline});
    pass_between_stages(program, interleave > 1 ? 2 : 1);
    all.programs.push_back(std::move(program));
    all.units.push_back(std::move(traits));
  }
  return all;
}

struct Costs {
  double forward = 1, by_input = 1.25, by_weights = 0.75;

  double of(const Action& action) const {
    if (action.verb == Verb::forward) return forward;
    if (action.verb != Verb::backward) return 0;
    return (action.part != Part::by_weights ? by_input : 0) +
           (action.part != Part::by_input ? by_weights : 0);
  }
};

double idle_share(const Staged& all, double message = 0, const Costs& costs = {}) {
  const Timeline times = timeline(all.programs, all.units, [&](int rank, size_t i) {
    const Action& action = all.programs[static_cast<size_t>(rank)].actions[i];
    if (action.lane == Lane::send) return message;
    return costs.of(action);
  });
  return times.idle_share(all.programs);
}

TEST(PipelineTime, RanksStandStillForTheBubbleOfTheFormula) {
  for (const int p : {2, 3, 4, 8})
    for (const int m : {1, 2, p, 3 * p, 7})
      for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b})
        EXPECT_NEAR(idle_share(equal_stages(p, m, schedule)), (p - 1.0) / (m + p - 1), 1e-12)
            << p << " ranks, " << m << " micro-batches, " << schedule_name(schedule);
}

TEST(PipelineTime, InterleavedStagesDivideTheBubble) {
  for (const int p : {2, 3, 4})
    for (const int v : {2, 3, 4})
      for (const int m : {p, 2 * p, 5 * p})
        EXPECT_NEAR(idle_share(equal_stages(p, m, Schedule::one_f_one_b, v)),
                    (p - 1.0) / (v * m + p - 1), 1e-12)
            << p << " ranks, " << v << " stages each, " << m << " micro-batches";
}

// A rank stands still for (p - 1)(F + B - W), once there are as many micro-batches as ranks.
TEST(PipelineTime, GradientsOfWeightsFillTheBubble) {
  for (const Costs& costs : {Costs{1, 1, 1}, Costs{1, 1.25, 0.75}, Costs{1, 1, 0.5}})
    for (const int p : {2, 3, 4, 8})
      for (const int m : {p, 2 * p, 3 * p + 1}) {
        const double f = costs.forward, b = costs.by_input, w = costs.by_weights;
        const double idle = (p - 1) * (f + b - w);
        EXPECT_NEAR(idle_share(equal_stages(p, m, Schedule::zero_bubble), 0, costs),
                    idle / (m * (f + b + w) + idle), 1e-12)
            << p << " ranks, " << m << " micro-batches, W " << w;
      }
}

TEST(PipelineTime, MessagesThatTakeTimeMakeTheBubbleLonger) {
  const Staged all = equal_stages(4, 8, Schedule::one_f_one_b);
  EXPECT_GT(idle_share(all, 0.5), idle_share(all) + 0.01);
}

// No order of any schedule waits for itself, whatever is tied or frozen.
TEST(PipelineTime, NoScheduleWaitsForItself) {
  for_each_pipeline([&](const Shape& shape, int ranks, Schedule schedule, int interleave) {
    const Staged all = staged(shape, ranks, schedule, interleave, 3, true);
    EXPECT_GT(timeline(all.programs, all.units, [](int, size_t) { return 1.0; }).seconds, 0);
  });
}

TEST(PipelineTime, ProgramsThatWaitForEachOtherAreFound) {
  Staged all = staged({.units = 4, .micros = 1}, 2, Schedule::one_f_one_b);
  std::erase_if(all.programs[0].actions, [](const Action& a) { return a.verb == Verb::send; });
  EXPECT_THROW(timeline(all.programs, all.units, [](int, size_t) { return 1.0; }), InternalError);
}

}  // namespace
}  // namespace onefold
