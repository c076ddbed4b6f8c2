#include "program/program.h"

#include <gtest/gtest.h>

#include "program/shapes.h"
#include "program/verify.h"

namespace onefold {
namespace {

using test::plain_step;
using test::Shape;
using test::traits_of;
using Lines = std::vector<std::string>;

Lines described(const Program& program) {
  Lines result;
  for (const Action& action : program.actions)
    result.push_back(describe(action, "u" + std::to_string(action.unit)));
  return result;
}

TEST(Program, AUnitThatHasTheLossIsEnteredBackwardsOnly) {
  EXPECT_EQ(described(plain_step({.units = 3})),
            (Lines{"forward u0, micro 0", "forward u1, micro 0", "backward u2, micro 0",
                   "squares u2", "backward u1, micro 0", "squares u1", "backward u0, micro 0",
                   "squares u0", "clip", "step u0", "step u1", "step u2"}));
}

TEST(Program, SquaresFollowTheLastMicroBatchAndEachUnitStepsOnce) {
  int squares = 0, steps = 0;
  for (const Action& action : plain_step({.units = 4, .micros = 3}).actions) {
    squares += action.verb == Verb::squares;
    steps += action.verb == Verb::step;
  }
  EXPECT_EQ(squares, 4);
  EXPECT_EQ(steps, 4);
}

TEST(Program, ATableThatTheHeadAddsToWaitsForAllOfItsMicroBatches) {
  const Lines all = described(plain_step({.units = 3, .micros = 2, .tied = true}));
  EXPECT_EQ(Lines(all.begin() + 8, all.begin() + 13),
            (Lines{"backward u1, micro 1", "squares u1", "backward u0, micro 0",
                   "backward u0, micro 1", "squares u0"}));
}

TEST(Accumulate, OnlyTheFirstMicroBatchOverwrites) {
  for (const Action& action : plain_step({.units = 3, .micros = 2}).actions) {
    if (action.verb == Verb::backward) {
      EXPECT_EQ(action.accumulate, action.micro > 0);
    }
  }
}

// ---- Liveness

// The forwards of a unit, in order.
std::vector<Action> forwards(const Program& program, int unit) {
  std::vector<Action> found;
  for (const Action& action : program.actions)
    if (action.verb == Verb::forward && action.unit == unit) found.push_back(action);
  return found;
}

TEST(Liveness, ATrainedUnitKeepsInputAndSavedUntilItsBackward) {
  const Program program = plain_step({.units = 4});
  for (const int unit : {1, 2}) {
    const Action action = forwards(program, unit)[0];
    EXPECT_TRUE(action.keep_input && action.keep_saved && action.output) << unit;
  }
}

TEST(Liveness, UnitsBelowTheLowestTrainedKeepNothing) {
  for (const Order order : {Order::micro_first, Order::unit_first}) {
    const Program program = plain_step({.units = 6,
                                        .micros = 16,
                                        .order = order,
                                        .frozen = {true, true, true, true, true, false}});
    for (int unit = 0; unit < 5; ++unit)
      for (const Action& action : forwards(program, unit)) {
        EXPECT_FALSE(action.keep_input || action.keep_saved) << "unit " << unit;
        EXPECT_TRUE(action.output);
      }
  }
}

TEST(Liveness, AFrozenUnitAboveATrainedOneKeepsWhatItsBackwardNeeds) {
  const Program program = plain_step({.units = 5, .frozen = {false, false, true, false, false}});
  EXPECT_TRUE(forwards(program, 2)[0].keep_saved);
}

TEST(Liveness, TheGradientOfAnInputIsMadeForTheUnitBelowAlone) {
  const Program program = plain_step({.units = 5, .frozen = {true, true, false, false, false}});
  for (const Action& action : program.actions)
    if (action.verb == Verb::backward) {
      EXPECT_EQ(action.output, action.unit > 2) << action.unit;
    }
}

TEST(Evaluation, KeepsNothing) {
  for (const Action& action : build_evaluation(3).actions) {
    EXPECT_FALSE(action.keep_input || action.keep_saved);
    EXPECT_EQ(action.output, action.unit < 2);
  }
}

// ---- Recompute

TEST(Recompute, RunsASegmentsForwardsAgainJustBeforeItsLastUnitsBackward) {
  // u1 and u2 are one segment, u3 and u4 another.
  EXPECT_EQ(described(plain_step({.units = 6}, true)), (Lines{"forward u0, micro 0",
                                                              "forward u1, micro 0",
                                                              "forward u2, micro 0",
                                                              "forward u3, micro 0",
                                                              "forward u4, micro 0",
                                                              "backward u5, micro 0",
                                                              "squares u5",
                                                              "forward u3, micro 0",
                                                              "forward u4, micro 0",
                                                              "backward u4, micro 0",
                                                              "squares u4",
                                                              "backward u3, micro 0",
                                                              "squares u3",
                                                              "forward u1, micro 0",
                                                              "forward u2, micro 0",
                                                              "backward u2, micro 0",
                                                              "squares u2",
                                                              "backward u1, micro 0",
                                                              "squares u1",
                                                              "backward u0, micro 0",
                                                              "squares u0",
                                                              "clip",
                                                              "step u0",
                                                              "step u1",
                                                              "step u2",
                                                              "step u3",
                                                              "step u4",
                                                              "step u5"}));
}

TEST(Recompute, KeepsTheInputOfASegmentsFirstUnitAndNothingElse) {
  const Program program = plain_step({.units = 6}, true);
  const std::vector<Action> first = forwards(program, 3), second = forwards(program, 4);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_TRUE(first[0].keep_input && !first[0].keep_saved && first[0].output);
  EXPECT_TRUE(!second[0].keep_input && !second[0].keep_saved && second[0].output);
  EXPECT_TRUE(first[1].keep_input && first[1].keep_saved && first[1].output);
  EXPECT_TRUE(second[1].keep_input && second[1].keep_saved && !second[1].output);
}

TEST(Recompute, RunsOfMicroBatchesRecomputeTheLowerUnitsInARun) {
  const Lines all =
      described(plain_step({.units = 4, .micros = 2, .order = Order::unit_first}, true));
  EXPECT_EQ(Lines(all.begin() + 9, all.begin() + 15),
            (Lines{"forward u1, micro 0", "forward u1, micro 1", "forward u2, micro 0",
                   "backward u2, micro 0", "forward u2, micro 1", "backward u2, micro 1"}));
}

// ---- Phases

TEST(SplitPhases, CutsEachComputationAndPutsAnExchangeBetweenTwoPhases) {
  Program program = plain_step({.units = 3});
  std::vector<UnitTraits> units = traits_of({.units = 3}, 0);
  units[0].phases = {2, 1};
  units[1].phases = {3, 2};
  units[2].phases = {1, 2};
  split_phases(program, units);
  const Lines all = described(program);
  EXPECT_EQ(
      Lines(all.begin(), all.begin() + 8),
      (Lines{"forward u0, micro 0, phase 0", "exchange u0, micro 0, after phase 0 of forward",
             "forward u0, micro 0, phase 1", "forward u1, micro 0, phase 0",
             "exchange u1, micro 0, after phase 0 of forward", "forward u1, micro 0, phase 1",
             "exchange u1, micro 0, after phase 1 of forward", "forward u1, micro 0, phase 2"}));
  EXPECT_EQ(problems_of(program, units, 1), Lines{});
}

// Of a backward in two parts, what travels does so in the first.
TEST(SplitPhases, LeavesGradientsOfWeightsThatComeLaterWhole) {
  Program program{.units = 1, .micros = 1, .actions = {}};
  for (const Part part : {Part::by_input, Part::by_weights})
    program.actions.push_back({.verb = Verb::backward, .unit = 0, .micro = 0, .part = part});
  std::vector<UnitTraits> units = traits_of({.units = 1}, 0);
  units[0].phases = {1, 4, {false, true, false, false}};
  units[0].travels = {{false}, {true, false, false, false}};
  split_phases(program, units);
  EXPECT_EQ(lines(program), (Lines{"backward u0, micro 0, phase 0",
                                   "exchange u0, micro 0, after phase 0 of backward",
                                   "backward u0, micro 0, phase 2", "backward u0, micro 0, phase 3",
                                   "backward u0, micro 0, by weights"}));
}

// A step whose units are shares: the middle one sums after two of its phases, and its gradients.
struct SharedStep {
  Program program = plain_step({.units = 3, .micros = 2});
  std::vector<UnitTraits> units = traits_of({.units = 3, .micros = 2}, 0);

  SharedStep() {
    for (UnitTraits& unit : units) {
      unit.phases = {2, 2};
      unit.travels = {{false, false}, {false, false}};
    }
    units[1].travels = {{true, false}, {true, false}, true};
    split_phases(program, units);
  }
};

// What rows of a phase leave travels beside further rows and gradients of weights; who reads it
// waits.
struct OverlappedStep {
  Program program = plain_step({.units = 3});
  std::vector<UnitTraits> units = traits_of({.units = 3}, 0);

  OverlappedStep() {
    for (UnitTraits& unit : units) unit.travels = {{false}, {false}};
    units[1].phases = {2, 3, {false, true, false}};
    units[1].travels = {{true, false}, {true, false, false}};
    units[1].travels.forward_rows = {true, false};
    units[1].travels.backward_rows = {true, false, false};
    split_phases(program, units);
    overlap_exchanges(program, units, 2);
  }
};

TEST(OverlapExchanges, PutsRowsOnALaneAndLetsTheirReaderWait) {
  const OverlappedStep step;
  EXPECT_EQ(problems_of(step.program, step.units, 1), Lines{});
  std::vector<std::string> of_unit;
  for (const Action& action : step.program.actions) {
    if (action.unit != 1 || (!computes(action) && action.verb != Verb::exchange)) continue;
    of_unit.push_back(describe(action, "u1"));
    if (action.lane != Lane::compute)
      of_unit.back() += fmt::format(" on {} as {}", lane_name(action.lane), action.ticket);
    for (const int ticket : action.waits) of_unit.back() += fmt::format(" after {}", ticket);
  }
  EXPECT_EQ(
      of_unit,
      (Lines{"forward u1, micro 0, phase 0, rows 1/2",
             "exchange u1, micro 0, after phase 0 of forward, rows 1/2 on exchange as 0",
             "forward u1, micro 0, phase 0, rows 2/2",
             "exchange u1, micro 0, after phase 0 of forward, rows 2/2 on exchange as 1",
             "forward u1, micro 0, phase 1 after 0 after 1",
             "backward u1, micro 0, phase 0, rows 1/2",
             "exchange u1, micro 0, after phase 0 of backward, rows 1/2 on exchange as 2",
             "backward u1, micro 0, phase 0, rows 2/2",
             "exchange u1, micro 0, after phase 0 of backward, rows 2/2 on exchange as 3",
             "backward u1, micro 0, phase 1", "backward u1, micro 0, phase 2 after 2 after 3"}));
}

// What travels before phases that do not read it does so beside them; the next reader waits.
TEST(OverlapExchanges, PutsWhatIsNotReadYetBesideThePhasesThatFollow) {
  Program program = plain_step({.units = 3});
  std::vector<UnitTraits> units = traits_of({.units = 3}, 0);
  for (UnitTraits& unit : units) unit.travels = {{false}, {false}};
  units[1].phases = {3, 3};
  units[1].phases.forward_beside = {false, true, false};
  units[1].travels = {{true, false, false}, {true, true, false}};
  units[1].travels.forward_lane = {true, false, false};
  split_phases(program, units);
  Program in_order = program;
  overlap_exchanges(program, units, 1);
  EXPECT_EQ(problems_of(program, units, 1), Lines{});
  Lines of_unit;
  for (const Action& action : program.actions) {
    if (action.unit != 1 || (!computes(action) && action.verb != Verb::exchange)) continue;
    of_unit.push_back(describe(action, "u1"));
    if (action.lane != Lane::compute)
      of_unit.back() += fmt::format(" on {} as {}", lane_name(action.lane), action.ticket);
    for (const int ticket : action.waits) of_unit.back() += fmt::format(" after {}", ticket);
  }
  EXPECT_EQ(
      of_unit,
      (Lines{"forward u1, micro 0, phase 0",
             "exchange u1, micro 0, after phase 0 of forward on exchange as 0",
             "forward u1, micro 0, phase 1", "forward u1, micro 0, phase 2 after 0",
             "backward u1, micro 0, phase 0", "exchange u1, micro 0, after phase 0 of backward",
             "backward u1, micro 0, phase 1", "exchange u1, micro 0, after phase 1 of backward",
             "backward u1, micro 0, phase 2"}));
  for (Action& action : program.actions) action.waits.clear();
  EXPECT_EQ(problems_of(program, units, 1).size(), 1u) << "the reader does not wait";
  for (UnitTraits& unit : units) unit.travels.forward_lane = {};
  overlap_exchanges(in_order, units, 1);
  EXPECT_EQ(lines(in_order), lines(program)) << "and there is no lane where nothing is beside";
  for (const Action& action : in_order.actions) EXPECT_EQ(action.lane, Lane::compute);
}

// What reads nothing of it may not be the last of its unit, whose memory is given back then.
TEST(OverlapExchanges, AUnitThatEndsWhileSomethingOfItTravelsIsNotSound) {
  Program program = plain_step({.units = 3});
  std::vector<UnitTraits> units = traits_of({.units = 3}, 0);
  for (UnitTraits& unit : units) unit.travels = {{false}, {false}};
  units[1].phases = {2, 2};
  units[1].travels = {{true, false}, {true, false}};
  units[1].travels.forward_lane = units[1].travels.backward_lane = {true, false};
  split_phases(program, units);
  Program read = program;
  overlap_exchanges(read, units, 1);
  EXPECT_EQ(problems_of(read, units, 1), Lines{});
  units[1].phases.forward_beside = {false, true};
  units[1].phases.by_weights = {false, true};
  overlap_exchanges(program, units, 1);
  const Lines problems = problems_of(program, units, 1);
  EXPECT_EQ(problems.size(), 2u) << "in forward and in backward";
  for (const std::string& problem : problems)
    EXPECT_TRUE(problem.ends_with("phase 1): ends while something of it travels")) << problem;
}

TEST(OverlapExchanges, WithoutAWaitARunOrAMessageIsNotSound) {
  const OverlappedStep step;
  int broken = 0;
  for (size_t i = 0; i < step.program.actions.size(); ++i) {
    const Action& action = step.program.actions[i];
    if (action.unit != 1) continue;
    for (size_t w = 0; w < action.waits.size(); ++w, ++broken) {
      Program other = step.program;
      other.actions[i].waits.erase(other.actions[i].waits.begin() + static_cast<ptrdiff_t>(w));
      EXPECT_NE(problems_of(other, step.units, 1), Lines{}) << i;
    }
    if (action.chunk.count == 1) continue;
    Program without = step.program;
    without.actions.erase(without.actions.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_NE(problems_of(without, step.units, 1), Lines{}) << i;
    Program twice = step.program;
    twice.actions.insert(twice.actions.begin() + static_cast<ptrdiff_t>(i), action);
    EXPECT_NE(problems_of(twice, step.units, 1), Lines{}) << i;
    broken += 2;
  }
  EXPECT_EQ(broken, 4 + 2 * 8);
}

TEST(SplitPhases, ExchangesComeWhereSomethingTravelsAndOfGradientsOnce) {
  const SharedStep step;
  EXPECT_EQ(problems_of(step.program, step.units, 1), Lines{});
  int exchanges = 0, gradients = 0;
  for (const Action& action : step.program.actions) {
    if (action.verb != Verb::exchange) continue;
    EXPECT_EQ(action.unit, 1);
    ++(action.state == State::gradients ? gradients : exchanges);
  }
  EXPECT_EQ(exchanges, 4);  // forward and backward of two micro-batches
  EXPECT_EQ(gradients, 1);
}

TEST(Verify, EveryExchangeIsNeededAndComesOnce) {
  const SharedStep sound;
  int removed = 0;
  for (size_t i = 0; i < sound.program.actions.size(); ++i) {
    if (sound.program.actions[i].verb != Verb::exchange) continue;
    Program program = sound.program;
    program.actions.erase(program.actions.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_FALSE(problems_of(program, sound.units, 1).empty()) << "without action " << i;
    program = sound.program;
    program.actions.insert(program.actions.begin() + static_cast<ptrdiff_t>(i),
                           sound.program.actions[i]);
    EXPECT_FALSE(problems_of(program, sound.units, 1).empty()) << "twice action " << i;
    ++removed;
  }
  EXPECT_EQ(removed, 5);
  Program whole = plain_step({.units = 3, .micros = 2});
  EXPECT_FALSE(problems_of(whole, sound.units, 1).empty());
}

// ---- Verify

// Applies a mutation to a sound program of three micro-batches at stage 3 and returns what is
// found.
Lines problems_after(const std::function<void(std::vector<Action>&)>& mutate) {
  const Shape shape{.units = 4, .micros = 3};
  const std::vector<UnitTraits> units = traits_of(shape, 3);
  Program program = plain_step(shape, false, 3);
  shard(program, units, 2, {});
  overlap(program, units);
  EXPECT_EQ(problems_of(program, units, 2), Lines{});
  mutate(program.actions);
  return problems_of(program, units, 2);
}

size_t find(const std::vector<Action>& actions, Verb verb, int unit,
            State state = State::parameters) {
  for (size_t i = 0; i < actions.size(); ++i)
    if (actions[i].verb == verb && actions[i].unit == unit && actions[i].state == state) return i;
  ADD_FAILURE() << "no such action";
  return 0;
}

void erase(std::vector<Action>& actions, size_t i) {
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(i));
}

bool names(const Lines& problems, const std::string& text) {
  for (const std::string& problem : problems)
    if (problem.find(text) != std::string::npos) return true;
  return false;
}

TEST(Verify, FindsAnAcquireThatIsMissingOrReleasedTwice) {
  EXPECT_TRUE(names(problems_after([](auto& a) { erase(a, find(a, Verb::gather, 1)); }),
                    "which is not gathered"));
  EXPECT_TRUE(names(problems_after([](auto& a) { erase(a, find(a, Verb::release, 1)); }),
                    "is gathered twice"));
  EXPECT_TRUE(names(problems_after([](auto& a) {
                      const size_t i = find(a, Verb::release, 1);
                      a.insert(a.begin() + static_cast<std::ptrdiff_t>(i), a[i]);
                    }),
                    "was not gathered"));
}

TEST(Verify, FindsWhatIsHeldWithoutAReader) {
  EXPECT_TRUE(names(problems_after([](auto& a) {
                      const Action gather = a[find(a, Verb::gather, 2)];
                      const size_t i = find(a, Verb::clip, 0);
                      Action late = gather;
                      late.ticket = 1000;
                      a.insert(a.begin() + static_cast<std::ptrdiff_t>(i), late);
                    }),
                    "stays gathered"));
  // What an earlier version kept of the forward of a frozen unit, without a reader.
  Program program = plain_step({.units = 4, .frozen = {true, true, false, false}});
  const std::vector<UnitTraits> units =
      traits_of({.units = 4, .frozen = {true, true, false, false}}, 0);
  EXPECT_EQ(problems_of(program, units, 1), Lines{});
  program.actions[1].keep_input = program.actions[1].keep_saved = true;
  EXPECT_TRUE(names(problems_of(program, units, 1), "held without a reader"));
}

TEST(Verify, FindsAReadBeforeItsWrite) {
  EXPECT_TRUE(names(problems_after([](auto& a) { erase(a, find(a, Verb::forward, 1)); }),
                    "its input is not there"));
  EXPECT_TRUE(
      names(problems_after([](auto& a) { a[find(a, Verb::forward, 1)].keep_saved = false; }),
            "what its forward saved is not there"));
  EXPECT_TRUE(names(problems_after([](auto& a) { erase(a, find(a, Verb::backward, 3)); }),
                    "the gradient of its output is not there"));
  EXPECT_TRUE(
      names(problems_after([](auto& a) { erase(a, find(a, Verb::reduce, 1)); }), "is not reduced"));
  EXPECT_TRUE(names(problems_after([](auto& a) { erase(a, find(a, Verb::squares, 1)); }),
                    "the squares of unit 1 are missing"));
  EXPECT_TRUE(names(problems_after([](auto& a) { erase(a, find(a, Verb::step, 1)); }),
                    "unit 1 has no step"));
}

TEST(Verify, FindsTicketsThatAreNotSound) {
  EXPECT_TRUE(names(problems_after([](auto& a) { a[find(a, Verb::forward, 1)].waits.clear(); }),
                    "without waiting for its gather"));
  EXPECT_TRUE(names(problems_after([](auto& a) { a[find(a, Verb::squares, 1)].waits.clear(); }),
                    "without waiting for its reduction"));
  EXPECT_TRUE(names(problems_after([](auto& a) { a[find(a, Verb::forward, 1)].waits = {999}; }),
                    "which nothing before it issues"));
  EXPECT_TRUE(names(problems_after([](auto& a) { a[find(a, Verb::gather, 2)].ticket = 0; }),
                    "is issued twice"));
}

TEST(Verify, FindsAGradientThatIsOverwritten) {
  EXPECT_TRUE(names(problems_after([](auto& a) {
                      for (Action& action : a)
                        if (action.verb == Verb::backward) action.accumulate = false;
                    }),
                    "overwrites the gradient"));
}

}  // namespace
}  // namespace onefold
