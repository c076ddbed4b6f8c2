// What each pass of ZeRO promises about the program it leaves, on short programs written out and on
// every shape of step.
#include "program/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "program/shapes.h"
#include "program/verify.h"

namespace onefold {
namespace {

using test::Shape;
using Lines = std::vector<std::string>;
constexpr int64_t kAll = int64_t{1} << 40;

std::string line(const Action& action) {
  std::string text = describe(action, "u" + std::to_string(action.unit));
  if (action.verb == Verb::release && action.state == State::gradients) text += " gradients";
  return text;
}

Lines lines(const Program& program, const std::set<Verb>& verbs = {}) {
  Lines result;
  for (const Action& action : program.actions)
    if (verbs.empty() || verbs.contains(action.verb)) result.push_back(line(action));
  return result;
}

struct Step {
  Shape shape;
  bool recomputes = false;
  std::vector<UnitTraits> units = {};

  explicit Step(int stage, const Shape& s = {.units = 5}, bool recomputes = false)
      : shape(s), recomputes(recomputes), units(test::traits_of(s, stage)) {}

  int64_t elems(int unit) const { return units[static_cast<size_t>(unit)].elems; }
  std::vector<int> reads(const Action& action) const { return reads_of(action, units); }

  Program plain() const { return test::plain_step(shape, recomputes); }
  Program sharded(const ShardLimits& limits = {}) const {
    Program program = plain();
    shard(program, units, 2, limits);
    return program;
  }
  Program bucketed(int64_t elems) const {
    Program program = sharded();
    bucket(program, units, elems, elems);
    return program;
  }
  Program overlapped(int64_t bucket_elems = 0) const {
    Program program = bucketed(bucket_elems);
    overlap(program, units);
    return program;
  }
  Program prefetched(int64_t ahead, int64_t max_live = kAll, int64_t bucket_elems = 0) const {
    Program program = overlapped(bucket_elems);
    prefetch(program, units, ahead, max_live);
    return program;
  }
};

// Every shape of step that a stage has.
template <class Check>
void for_each_step(int stage, const Check& check) {
  for (const int micros : {1, 3})
    for (const Order order : {Order::micro_first, Order::unit_first})
      for (const bool tied : {false, true})
        for (const bool recomputes : {false, true})
          for (const bool frozen : {false, true}) {
            Shape shape{.units = 6, .micros = micros, .order = order, .tied = tied};
            if (frozen) shape.frozen = {!tied, true, false, true, false, false};
            SCOPED_TRACE(testing::Message()
                         << micros << " micros, " << order_name(order) << (tied ? ", tied" : "")
                         << (recomputes ? ", recomputing" : "") << (frozen ? ", frozen" : ""));
            check(Step(stage, shape, recomputes));
          }
}

// Walks a program as the executor does and expects that nothing is gathered that is whole, nothing
// used or released that is not, and that nothing stays. Calls visit(action, whole units).
template <class Visit>
void expect_sound(const Step& step, const Program& program, const Visit& visit) {
  std::set<int> whole;
  bool stepping = false;
  for (const Action& action : program.actions) {
    stepping |= action.verb == Verb::clip;
    for (const int unit : step.reads(action)) EXPECT_TRUE(whole.contains(unit)) << line(action);
    if (action.verb == Verb::gather && !stepping) {
      EXPECT_TRUE(whole.insert(action.unit).second) << line(action) << " is whole already";
    }
    if (action.verb == Verb::release && action.state == State::parameters) {
      EXPECT_EQ(whole.erase(action.unit), 1) << line(action) << " is not whole";
    }
    visit(action, whole);
  }
  EXPECT_TRUE(whole.empty()) << whole.size() << " units stay whole";
}
void expect_sound(const Step& step, const Program& program) {
  expect_sound(step, program, [](const Action&, const std::set<int>&) {});
}

int64_t sum(const Step& step, const std::set<int>& units) {
  return std::accumulate(units.begin(), units.end(), int64_t{0},
                         [&](int64_t total, int unit) { return total + step.elems(unit); });
}

// Where in the program an action is; -1 if it is not there.
int index_of(const Program& program, Verb verb, int unit, State state = State::parameters) {
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    if (action.verb != verb || action.state != state) continue;
    const std::vector<int> units = units_of(action);
    if (std::find(units.begin(), units.end(), unit) != units.end()) return static_cast<int>(i);
  }
  return -1;
}

// The last backward that adds to the unit's gradient.
int last_backward(const Step& step, const Program& program, int unit) {
  const int head = step.shape.units - 1;
  int last = -1;
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const bool adds = action.unit == unit || (step.shape.tied && unit == 0 && action.unit == head);
    if (action.verb == Verb::backward && adds) last = static_cast<int>(i);
  }
  return last;
}

// ---- Shard

TEST(Shard, StageThreeGathersAUnitForEachUseAndReleasesItAfter) {
  EXPECT_EQ(lines(Step(3, {.units = 3}).sharded()), (Lines{"gather u0",
                                                           "forward u0, micro 0",
                                                           "release u0",  //
                                                           "gather u1",
                                                           "forward u1, micro 0",
                                                           "release u1",  //
                                                           "gather u2",
                                                           "backward u2, micro 0",
                                                           "release u2",  //
                                                           "reduce u2",
                                                           "squares u2",
                                                           "release u2 gradients",  //
                                                           "gather u1",
                                                           "backward u1, micro 0",
                                                           "release u1",  //
                                                           "reduce u1",
                                                           "squares u1",
                                                           "release u1 gradients",  //
                                                           "backward u0, micro 0",
                                                           "reduce u0",
                                                           "squares u0",
                                                           "release u0 gradients",  //
                                                           "clip",
                                                           "step u0",
                                                           "step u1",
                                                           "step u2"}));
}

TEST(Shard, ATiedHeadGathersTheEmbedding) {
  const Lines all = lines(Step(3, {.units = 3, .tied = true}).sharded());
  const auto head = std::find(all.begin(), all.end(), "backward u2, micro 0");
  EXPECT_EQ(Lines(head - 2, head + 3),
            (Lines{"gather u2", "gather u0", "backward u2, micro 0", "release u0", "release u2"}));
}

TEST(Shard, AnEmbeddingsBackwardReadsNothingAndGathersNothing) {
  const Lines gathers = lines(Step(3, {.units = 3}).sharded(), {Verb::gather});
  EXPECT_EQ(std::count(gathers.begin(), gathers.end(), "gather u0"), 1);
}

TEST(Shard, AUnitUsedByTheNextActionStaysWhateverTheLimit) {
  const Step step(3, {.units = 3, .micros = 4, .order = Order::unit_first});
  for (const int64_t live : {int64_t{0}, kAll})
    EXPECT_EQ(lines(step.sharded({.max_live_elems = live}), {Verb::gather}),
              (Lines{"gather u0", "gather u1", "gather u2", "gather u1"}));
}

TEST(Shard, WhateverIsReadIsWholeAndEveryGatherHasOneRelease) {
  for_each_step(3, [](const Step& step) {
    for (const int64_t reuse : {int64_t{0}, int64_t{250}, kAll})
      expect_sound(step, step.sharded({.max_reuse_distance = reuse}));
  });
}

TEST(Shard, WholeParametersAreNotGatheredForUse) {
  for (const int stage : {0, 1, 2})
    for_each_step(stage, [](const Step& step) {
      const Program program = step.sharded();
      for (const Action& action : program.actions) {
        if (action.verb == Verb::clip) break;
        EXPECT_NE(action.verb, Verb::gather);
      }
    });
}

TEST(Shard, EveryTrainedUnitIsReducedOnceAfterItsLastBackwardAndBeforeItsSquares) {
  for (const int stage : {0, 1, 2, 3})
    for_each_step(stage, [](const Step& step) {
      const Program program = step.sharded();
      std::map<int, int> reductions;
      for (const Action& action : program.actions)
        if (action.verb == Verb::reduce) ++reductions[action.unit];
      for (int unit = 0; unit < step.shape.units; ++unit) {
        EXPECT_EQ(reductions[unit], step.shape.is_frozen(unit) ? 0 : 1) << "unit " << unit;
        if (step.shape.is_frozen(unit)) continue;
        const int reduce = index_of(program, Verb::reduce, unit);
        EXPECT_LT(last_backward(step, program, unit), reduce);
        EXPECT_LT(reduce, index_of(program, Verb::squares, unit));
      }
    });
}

TEST(Shard, ShardedGradientsAreReleasedAfterTheirSquares) {
  for (const int stage : {1, 2})
    for_each_step(stage, [stage](const Step& step) {
      const Program program = step.sharded();
      for (int unit = 0; unit < step.shape.units; ++unit) {
        const int release = index_of(program, Verb::release, unit, State::gradients);
        const bool expected = stage == 2 && !step.shape.is_frozen(unit);
        EXPECT_EQ(release >= 0, expected) << "unit " << unit;
        if (expected) {
          EXPECT_LT(index_of(program, Verb::squares, unit), release);
        }
      }
    });
}

TEST(Shard, WhatAShardedStepChangesIsGatheredWhereParametersAreWhole) {
  const Lines changed{"clip",      "step u0", "gather u0", "step u1",
                      "gather u1", "step u2", "gather u2"};
  const Lines plain{"clip", "step u0", "step u1", "step u2"};
  const std::set<Verb> verbs{Verb::clip, Verb::step, Verb::gather};
  EXPECT_EQ(lines(Step(0, {.units = 3}).sharded(), verbs), plain);
  EXPECT_EQ(lines(Step(1, {.units = 3}).sharded(), verbs), changed);
  EXPECT_EQ(lines(Step(2, {.units = 3}).sharded(), verbs), changed);
}

TEST(Shard, WhatIsUsedAgainWithinTheReuseDistanceStays) {
  const Step step(3, {.units = 4});
  const auto gathers = [&](int64_t distance, int64_t live) {
    return lines(step.sharded({.max_live_elems = live, .max_reuse_distance = distance}),
                 {Verb::gather});
  };
  const Lines each{"gather u0", "gather u1", "gather u2", "gather u3", "gather u2", "gather u1"};
  EXPECT_EQ(gathers(0, kAll), each);
  // Between the two uses of block u2 lies the head, u3.
  EXPECT_EQ(gathers(step.elems(3) - 1, kAll), each);
  EXPECT_EQ(gathers(step.elems(3), kAll),
            (Lines{"gather u0", "gather u1", "gather u2", "gather u3", "gather u1"}));
  EXPECT_EQ(gathers(kAll, kAll), (Lines{"gather u0", "gather u1", "gather u2", "gather u3"}));
  EXPECT_EQ(gathers(kAll, 0), each) << "no room";
}

// ---- Compress

TEST(Compress, MarksReductionsAndGathersForUseAlone) {
  for (const int stage : {0, 1, 2, 3})
    for_each_step(stage, [](const Step& step) {
      Program program = step.bucketed(250);
      const size_t actions = program.actions.size();
      compress(program, {.gradients = true, .parameters = true});
      EXPECT_EQ(program.actions.size(), actions);
      for (const Action& action : program.actions)
        EXPECT_EQ(action.packed, action.verb == Verb::reduce || (action.verb == Verb::gather &&
                                                                 action.state == State::parameters))
            << line(action);
      overlap(program, step.units);
      EXPECT_EQ(problems_of(program, step.units, 2), Lines());
      for (const Action& action : program.actions)
        EXPECT_TRUE(action.packed || action.verb != Verb::reduce) << line(action);
    });
}

TEST(Compress, OfNothingChangesNothing) {
  for_each_step(3, [](const Step& step) {
    Program program = step.bucketed(250);
    compress(program, {});
    EXPECT_EQ(lines(program), lines(step.bucketed(250)));
  });
}

// ---- Bucket

TEST(Bucket, OfNoElementsJoinsNothingAndDelaysNothing) {
  for (const int stage : {0, 1, 2, 3})
    for_each_step(
        stage, [](const Step& step) { EXPECT_EQ(lines(step.bucketed(0)), lines(step.sharded())); });
}

TEST(Bucket, ThatIsFullGoesAtOnce) {
  const Step step(1, {.units = 4});
  EXPECT_EQ(lines(step.bucketed(step.elems(3) + step.elems(2)), {Verb::backward, Verb::reduce}),
            (Lines{"backward u3, micro 0", "backward u2, micro 0", "reduce u3 and 1 more",
                   "backward u1, micro 0", "backward u0, micro 0", "reduce u1 and 1 more"}));
}

TEST(Bucket, OfEverythingIsOneReductionBeforeTheClipAndOneGatherAfterTheSteps) {
  const Lines all = lines(Step(1, {.units = 3}).bucketed(kAll));
  EXPECT_EQ(Lines(all.end() - 9, all.end()),
            (Lines{"reduce u2 and 2 more", "squares u2", "squares u1", "squares u0", "clip",
                   "step u0", "step u1", "step u2", "gather u0 and 2 more"}));
}

TEST(Bucket, NeverExceedsItsSizeUnlessOneUnitDoesAndTakesTheNextUnitIfItFits) {
  for (const int stage : {0, 1, 2})
    for (const int64_t most : {100, 150, 250, 400, 1000})
      for_each_step(stage, [&](const Step& step) {
        std::map<Verb, int64_t> before;
        for (const Action& action : step.bucketed(most).actions) {
          if (action.verb != Verb::reduce && action.verb != Verb::gather) continue;
          int64_t elems = 0;
          for (const int unit : units_of(action)) elems += step.elems(unit);
          EXPECT_TRUE(elems <= most || action.joined.empty()) << line(action);
          if (before.contains(action.verb)) {
            EXPECT_GT(before[action.verb] + step.elems(action.unit), most) << line(action);
          }
          before[action.verb] = elems;
        }
      });
}

// A mixture whose experts are divided is summed and shared by fewer ranks than the rest.
TEST(Bucket, JoinsNothingThatOtherRanksSum) {
  std::vector<UnitTraits> units = test::traits_of({.units = 5}, 1);
  units[2].ranks = 2;
  Program program = test::plain_step({.units = 5}, false, 1);
  shard(program, units, 4, {});
  bucket(program, units, kAll, kAll);
  EXPECT_EQ(problems_of(program, units, 4), std::vector<std::string>());
  EXPECT_EQ(lines(program, {Verb::reduce, Verb::gather}),
            (Lines{"reduce u4 and 1 more", "reduce u2", "reduce u1 and 1 more",
                   "gather u0 and 1 more", "gather u2", "gather u3 and 1 more"}));
}

TEST(Shard, NobodyElseReducesWhatOneRankAloneSums) {
  std::vector<UnitTraits> units = test::traits_of({.units = 4}, 2);
  units[1].ranks = 1;
  units[1].homes = {};
  Program program = test::plain_step({.units = 4}, false, 2);
  shard(program, units, 4, {});
  EXPECT_EQ(problems_of(program, units, 4), std::vector<std::string>());
  EXPECT_EQ(lines(program, {Verb::reduce}), (Lines{"reduce u3", "reduce u2", "reduce u0"}));
  units[1].ranks = 0;
  EXPECT_NE(problems_of(program, units, 4), std::vector<std::string>());
}

TEST(Bucket, KeepsTheOrderOfUnitsAndEachOneOnce) {
  for (const int stage : {0, 1, 2, 3})
    for_each_step(stage, [](const Step& step) {
      const auto order = [](const Program& program, Verb verb) {
        std::vector<int> units;
        for (const Action& action : program.actions)
          if (action.verb == verb)
            for (const int unit : units_of(action)) units.push_back(unit);
        return units;
      };
      for (const Verb verb : {Verb::reduce, Verb::gather, Verb::squares, Verb::step})
        EXPECT_EQ(order(step.bucketed(250), verb), order(step.sharded(), verb)) << verb_name(verb);
    });
}

TEST(Bucket, NeverJoinsGathersForUse) {
  for_each_step(3, [](const Step& step) {
    const Program program = step.bucketed(kAll);
    expect_sound(step, program);
    for (const Action& action : program.actions)
      EXPECT_TRUE(action.verb != Verb::gather || action.joined.empty());
  });
}

TEST(Bucket, SquaresAndAReleaseOfGradientsFollowTheirReduction) {
  for (const int stage : {0, 2, 3})
    for_each_step(stage, [](const Step& step) {
      const Program program = step.bucketed(250);
      for (int unit = 0; unit < step.shape.units; ++unit) {
        if (step.shape.is_frozen(unit)) continue;
        const int reduce = index_of(program, Verb::reduce, unit);
        EXPECT_LT(last_backward(step, program, unit), reduce);
        EXPECT_LT(reduce, index_of(program, Verb::squares, unit));
        EXPECT_LT(index_of(program, Verb::squares, unit), index_of(program, Verb::clip, 0));
        const int release = index_of(program, Verb::release, unit, State::gradients);
        EXPECT_TRUE(release < 0 || release > reduce);
      }
    });
}

// ---- Overlap

TEST(Overlap, EveryCollectiveIsOnItsLaneWithATicketOfItsOwn) {
  for (const int stage : {0, 1, 2, 3})
    for_each_step(stage, [](const Step& step) {
      int next = 0;
      for (const Action& action : step.overlapped(250).actions) {
        const bool gathers = action.verb == Verb::gather, reduces = action.verb == Verb::reduce;
        EXPECT_EQ(action.lane, gathers ? Lane::gather : reduces ? Lane::reduce : Lane::compute);
        EXPECT_EQ(action.ticket, gathers || reduces ? next++ : -1) << line(action);
      }
    });
}

// With what is gathered, who reads it first: that one waits, and only that one.
void expect_first_readers_wait(const Step& step, const Program& program) {
  std::map<int, int> gathered;  // unit: ticket, until it has been waited for
  bool stepping = false;
  for (const Action& action : program.actions) {
    stepping |= action.verb == Verb::clip;
    if (action.verb == Verb::gather && !stepping) gathered[action.unit] = action.ticket;
    if (action.verb != Verb::forward && action.verb != Verb::backward) continue;
    std::vector<int> expected;
    for (const int unit : step.reads(action)) {
      if (!gathered.contains(unit)) continue;
      expected.push_back(gathered[unit]);
      gathered.erase(unit);
    }
    EXPECT_EQ(action.waits, expected) << line(action);
  }
  EXPECT_TRUE(gathered.empty());
}

TEST(Overlap, OnlyTheFirstReaderOfAGatherWaitsForIt) {
  for_each_step(3, [](const Step& step) {
    expect_sound(step, step.overlapped());
    expect_first_readers_wait(step, step.overlapped());
  });
}

TEST(Overlap, SquaresWaitForTheirReductionAndComeAfterIt) {
  for (const int stage : {0, 1, 2, 3})
    for (const int64_t elems : {int64_t{0}, int64_t{250}, kAll})
      for_each_step(stage, [&](const Step& step) {
        const Program program = step.overlapped(elems);
        std::map<int, int> reduced;
        for (const Action& action : program.actions) {
          if (action.verb == Verb::reduce)
            for (const int unit : units_of(action)) reduced[unit] = action.ticket;
          if (action.verb != Verb::squares) continue;
          ASSERT_TRUE(reduced.contains(action.unit)) << line(action);
          EXPECT_EQ(action.waits, std::vector<int>{reduced[action.unit]}) << line(action);
        }
      });
}

TEST(Overlap, AReductionHidesBehindTheNextBackward) {
  const std::set<Verb> verbs{Verb::backward, Verb::reduce, Verb::squares, Verb::release,
                             Verb::clip};
  EXPECT_EQ(lines(Step(2, {.units = 3}).overlapped(), verbs),
            (Lines{"backward u2, micro 0", "reduce u2",  //
                   "backward u1, micro 0", "squares u2", "release u2 gradients", "reduce u1",
                   "backward u0, micro 0", "squares u1", "release u1 gradients", "reduce u0",
                   "squares u0", "release u0 gradients", "clip"}));
}

TEST(Overlap, GradientsAreReleasedAfterTheirSquaresAndEverythingBeforeTheClip) {
  for (const int stage : {2, 3})
    for_each_step(stage, [](const Step& step) {
      const Program program = step.overlapped(250);
      for (int unit = 0; unit < step.shape.units; ++unit) {
        if (step.shape.is_frozen(unit)) continue;
        const int release = index_of(program, Verb::release, unit, State::gradients);
        EXPECT_LT(index_of(program, Verb::squares, unit), release);
        EXPECT_LT(release, index_of(program, Verb::clip, 0));
      }
    });
}

// ---- Prefetch

// Gathers that are not for the very next computation.
template <class Visit>
void for_each_early_gather(const Step& step, const Program& program, const Visit& visit) {
  std::set<int> ahead;
  expect_sound(step, program, [&](const Action& action, const std::set<int>& whole) {
    for (const int unit : step.reads(action)) ahead.erase(unit);
    if (action.verb != Verb::gather || !whole.contains(action.unit)) return;
    ahead.insert(action.unit);
    const auto here = &action - program.actions.data();
    const auto next = std::find_if(
        program.actions.begin() + here, program.actions.end(),
        [](const Action& a) { return a.verb == Verb::forward || a.verb == Verb::backward; });
    const std::vector<int> reads = step.reads(*next);
    std::set<int> early = ahead;
    for (const int unit : reads) early.erase(unit);
    if (early.contains(action.unit)) visit(action, early, whole);
  });
}

TEST(Prefetch, OfNothingGathersJustBeforeUse) {
  for_each_step(3, [](const Step& step) {
    for_each_early_gather(
        step, step.prefetched(0),
        [](const Action& gather, const auto&, const auto&) { ADD_FAILURE() << line(gather); });
  });
}

TEST(Prefetch, OfOneUnitGathersItUnderTheComputationBefore) {
  const Step step(3, {.units = 4});
  EXPECT_EQ(lines(step.prefetched(step.elems(3)), {Verb::gather, Verb::forward, Verb::backward}),
            (Lines{"gather u0", "gather u1", "forward u0, micro 0",  //
                   "gather u2", "forward u1, micro 0",               //
                   "gather u3", "forward u2, micro 0",               //
                   "gather u2", "backward u3, micro 0",              //
                   "gather u1", "backward u2, micro 0",              //
                   "backward u1, micro 0", "backward u0, micro 0"}));
}

TEST(Prefetch, NeverHasMoreThanTheLimitAheadOrLive) {
  for_each_step(3, [](const Step& step) {
    for (const int64_t ahead : {int64_t{0}, int64_t{120}, int64_t{260}, kAll})
      for (const int64_t live : {int64_t{0}, int64_t{250}, int64_t{400}, kAll})
        for_each_early_gather(step, step.prefetched(ahead, live),
                              [&](const Action& gather, const auto& early, const auto& whole) {
                                EXPECT_LE(sum(step, early), ahead) << line(gather);
                                EXPECT_LE(sum(step, whole), live) << line(gather);
                              });
  });
}

TEST(Prefetch, OfEverythingGathersAllThatIsNotWholeAtOnce) {
  const Lines all = lines(Step(3, {.units = 4}).prefetched(kAll));
  EXPECT_EQ(Lines(all.begin(), all.begin() + 5),
            (Lines{"gather u0", "gather u1", "gather u2", "gather u3", "forward u0, micro 0"}));
}

TEST(Prefetch, ChangesNeitherTheOrderOfGathersNorThatOfTheRest) {
  const std::set<Verb> rest{Verb::release, Verb::forward, Verb::backward, Verb::reduce,
                            Verb::squares, Verb::clip,    Verb::step};
  for (const int stage : {0, 1, 2, 3})
    for_each_step(stage, [&](const Step& step) {
      const Program before = step.overlapped(250);
      for (const int64_t ahead : {int64_t{0}, int64_t{120}, kAll}) {
        const Program after = step.prefetched(ahead, kAll, 250);
        EXPECT_EQ(lines(after, {Verb::gather}), lines(before, {Verb::gather}));
        EXPECT_EQ(lines(after, rest), lines(before, rest));
      }
    });
}

TEST(Prefetch, FirstReadersStillWait) {
  for_each_step(3, [](const Step& step) {
    for (const int64_t ahead : {int64_t{0}, int64_t{120}, kAll})
      expect_first_readers_wait(step, step.prefetched(ahead));
  });
}

TEST(Prefetch, LeavesTheGathersAfterStepsAlone) {
  for (const int stage : {1, 2})
    for_each_step(stage, [](const Step& step) {
      EXPECT_EQ(lines(step.prefetched(kAll, kAll, 250)), lines(step.overlapped(250)));
    });
}

// ---- All of them

TEST(EveryProgram, IsSoundAtEveryStageAndAfterEveryPass) {
  for (const int stage : {0, 1, 2, 3})
    for_each_step(stage, [&](const Step& step) {
      EXPECT_EQ(problems_of(step.plain(), Step(0, step.shape).units, 1), Lines{});
      EXPECT_EQ(problems_of(step.sharded(), step.units, 2), Lines{});
      for (const int64_t bucket_elems : {int64_t{0}, int64_t{250}, kAll}) {
        EXPECT_EQ(problems_of(step.bucketed(bucket_elems), step.units, 2), Lines{});
        EXPECT_EQ(problems_of(step.overlapped(bucket_elems), step.units, 2), Lines{});
        for (const int64_t ahead : {int64_t{0}, int64_t{120}, kAll})
          EXPECT_EQ(problems_of(step.prefetched(ahead, kAll, bucket_elems), step.units, 2),
                    Lines{});
      }
    });
}

}  // namespace
}  // namespace onefold
