// The pass `offload`: programs with state on other tiers are sound, move no more than they must,
// and the verifier finds what is taken away from them.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "program/shapes.h"
#include "program/verify.h"

namespace onefold {
namespace {

using test::Shape;

struct OffTiers {
  bool parameters, optimizer;
  bool host_steps = false;  // parameters are then on the host's tier, if not on the device
};

std::vector<UnitTraits> offloaded_traits(const Shape& shape, int stage, const OffTiers& tiers) {
  std::vector<UnitTraits> units = test::traits_of(shape, stage);
  for (UnitTraits& unit : units) {
    if (tiers.parameters) unit.homes.parameters.tier = tiers.host_steps ? Tier::host : Tier::disk;
    unit.host_steps = tiers.host_steps;
    if (tiers.optimizer) unit.homes.gradients.tier = unit.homes.optimizer.tier = Tier::host;
  }
  return units;
}

Program offloaded_program(const Shape& shape, const std::vector<UnitTraits>& units, int ranks,
                          bool recomputes, const OverlapOf& of, int64_t ahead = kOneUnit) {
  Program program = test::plain_step(shape, recomputes);
  shard(program, units, ranks, {});
  if (ranks > 1) bucket(program, units, 250, 250);
  offload(program, units);
  if (of.messages || of.copies) overlap(program, units, of);
  prefetch(program, units, ahead, INT64_MAX);
  return program;
}

int64_t moves_of(const Program& program, Verb verb, State state) {
  return std::count_if(program.actions.begin(), program.actions.end(), [&](const Action& action) {
    return action.verb == verb && action.state == state;
  });
}

template <class Visit>
void for_each_offloaded(const Visit& visit) {
  for (const int stage : {0, 1, 2, 3})
    for (const int ranks : {1, 3})
      for (const int micros : {1, 3})
        for (const bool tied : {false, true})
          for (const bool recomputes : {false, true})
            for (const Order order : {Order::micro_first, Order::unit_first})
              for (const OffTiers tiers :
                   {OffTiers{true, false}, OffTiers{false, true}, OffTiers{true, true},
                    OffTiers{false, true, true}, OffTiers{true, true, true}})
                for (const bool messages : {false, true}) {
                  if ((ranks == 1 && (stage > 0 || messages)) || (micros == 1 && recomputes))
                    continue;
                  const Shape shape{.units = 6, .micros = micros, .order = order, .tied = tied};
                  SCOPED_TRACE(fmt::format(
                      "stage {}, {} ranks, {} micro-batches {}, tied {}, recomputes {}, "
                      "parameters {}, optimizer {}, host steps {}, messages {}",
                      stage, ranks, micros, order_name(order), tied, recomputes, tiers.parameters,
                      tiers.optimizer, tiers.host_steps, messages));
                  const std::vector<UnitTraits> units = offloaded_traits(shape, stage, tiers);
                  visit(offloaded_program(shape, units, ranks, recomputes, {.messages = messages}),
                        units, ranks);
                }
}

TEST(OffloadPass, EveryProgramIsSound) {
  for_each_offloaded([](const Program& program, const std::vector<UnitTraits>& units, int ranks) {
    EXPECT_EQ(problems_of(program, units, ranks), std::vector<std::string>{});
  });
}

TEST(OffloadPass, WithoutLanesItIsSoundToo) {
  const Shape shape{.units = 5, .micros = 2, .tied = true};
  const std::vector<UnitTraits> units = offloaded_traits(shape, 0, {true, true});
  const Program program = offloaded_program(shape, units, 1, false, {false, false});
  EXPECT_EQ(problems_of(program, units, 1), std::vector<std::string>{});
  for (const Action& action : program.actions) EXPECT_EQ(action.lane, Lane::compute);
}

// Each action that moves or gives back state, and each wait, is there for a reason.
void expect_nothing_can_be_taken(const Shape& shape, const std::vector<UnitTraits>& units,
                                 int ranks) {
  const Program sound = offloaded_program(shape, units, ranks, false, {.messages = ranks > 1});
  ASSERT_EQ(problems_of(sound, units, ranks), std::vector<std::string>{});
  int taken = 0;
  for (size_t i = 0; i < sound.actions.size(); ++i) {
    const Verb verb = sound.actions[i].verb;
    if (verb == Verb::fetch || verb == Verb::spill || verb == Verb::release) {
      Program program = sound;
      program.actions.erase(program.actions.begin() + static_cast<int64_t>(i));
      EXPECT_FALSE(problems_of(program, units, ranks).empty()) << "without action " << i;
      ++taken;
    }
    // Of several units in a bucket one wait is enough.
    const bool bucketed = ranks > 1 && (verb == Verb::squares || verb == Verb::spill);
    if (sound.actions[i].waits.empty() || bucketed) continue;
    Program program = sound;
    program.actions[i].waits.clear();
    EXPECT_FALSE(problems_of(program, units, ranks).empty())
        << "without the waits of action " << i << ": "
        << describe(sound.actions[i], fmt::format("unit {}", sound.actions[i].unit));
    ++taken;
  }
  EXPECT_GT(taken, 20);
}

TEST(OffloadPass, TheVerifierMissesWhateverIsTakenAway) {
  const Shape shape{.units = 5, .micros = 2, .tied = true};
  expect_nothing_can_be_taken(shape, offloaded_traits(shape, 0, {true, true}), 1);
  expect_nothing_can_be_taken(shape, offloaded_traits(shape, 0, {false, true, true}), 1);
  expect_nothing_can_be_taken(shape, offloaded_traits(shape, 1, {false, true, true}), 3);
  expect_nothing_can_be_taken(shape, offloaded_traits(shape, 1, {true, true, true}), 3);
}

TEST(OffloadPass, WhatTheHostStepsIsFetchedOnceBeforeTheNextStepReadsIt) {
  const Shape shape{.units = 5};
  const std::vector<UnitTraits> units = offloaded_traits(shape, 0, {false, true, true});
  const Program program = offloaded_program(shape, units, 1, false, {});
  EXPECT_EQ(moves_of(program, Verb::fetch, State::stepped), 5);
  EXPECT_EQ(moves_of(program, Verb::fetch, State::optimizer), 0);
  EXPECT_EQ(moves_of(program, Verb::spill, State::optimizer), 0);
  EXPECT_EQ(moves_of(program, Verb::fetch, State::gradients), 0);
  EXPECT_EQ(moves_of(program, Verb::spill, State::gradients), 5);
  bool clipped = false;
  for (const Action& action : program.actions) {
    clipped |= action.verb == Verb::clip;
    EXPECT_FALSE(clipped && action.verb == Verb::fetch) << "the next step's affair";
    if (action.verb == Verb::step) {
      EXPECT_EQ(action.lane, Lane::host);
    }
  }
}

TEST(OffloadPass, AStepMovesEachStateOnce) {
  const Shape shape{.units = 5};
  const std::vector<UnitTraits> units = offloaded_traits(shape, 0, {true, true});
  const Program program = offloaded_program(shape, units, 1, false, {});
  EXPECT_EQ(moves_of(program, Verb::fetch, State::optimizer), 5);
  EXPECT_EQ(moves_of(program, Verb::spill, State::optimizer), 5);
  EXPECT_EQ(moves_of(program, Verb::fetch, State::gradients), 5);
  EXPECT_EQ(moves_of(program, Verb::spill, State::gradients), 5);
  EXPECT_EQ(moves_of(program, Verb::spill, State::parameters), 5);
  // Forward, backward (the first unit's reads none; the head has both at once) and step.
  EXPECT_EQ(moves_of(program, Verb::fetch, State::parameters), 4 + 4 + 5);
}

TEST(OffloadPass, AGradientThatIsAddedToLaterWaitsOnItsTier) {
  const Shape shape{.units = 4, .micros = 2};
  const auto spills = [&](Order order) {
    Shape ordered = shape;
    ordered.order = order;
    const std::vector<UnitTraits> units = offloaded_traits(ordered, 0, {false, true});
    return moves_of(offloaded_program(ordered, units, 1, false, {}), Verb::spill, State::gradients);
  };
  EXPECT_EQ(spills(Order::micro_first), 2 * 4) << "after each micro-batch";
  EXPECT_EQ(spills(Order::unit_first), 4) << "once";
}

// The next unit is fetched before this one computes, and nothing of a step before clip.
TEST(OffloadPass, FetchesAreAheadByOneUnit) {
  const Shape shape{.units = 5};
  const std::vector<UnitTraits> units = offloaded_traits(shape, 0, {true, true});
  const Program program = offloaded_program(shape, units, 1, false, {});
  bool stepping = false;
  std::vector<int> fetched, computed;
  for (const Action& action : program.actions) {
    stepping |= action.verb == Verb::clip;
    EXPECT_TRUE(stepping || !action.of_step);
    if (action.verb == Verb::fetch && !stepping) fetched.push_back(action.unit);
    if (action.verb == Verb::forward) {
      ASSERT_FALSE(fetched.empty());
      EXPECT_EQ(fetched.back(), action.unit + 1);
    }
  }
}

}  // namespace
}  // namespace onefold
