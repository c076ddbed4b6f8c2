// A training run with a fault on one rank, before one action of one step. A seed determines the
// fault, the rank, the step and the action.
#pragma once

#include <random>

#include "engine/ranks.h"

namespace onefold::test {

enum class Fault {
  raise,       // an exception
  leave,       // threads only: its thread ends, and with it engine and communicator
  hang,        // it makes no further progress
  exit_early,  // processes only: without finalizing MPI
  kill         // processes only: SIGKILL
};
inline constexpr const char* kFaultNames[] = {"raise", "leave", "hang", "exit", "kill"};
inline const char* fault_name(Fault fault) { return kFaultNames[static_cast<size_t>(fault)]; }

struct FaultPlan {
  Fault fault = Fault::raise;
  int rank = 0;
  int64_t step = 0;
  size_t action = 0;  // of the step's program
};

struct FaultCase {
  std::string model;
  int ranks = 2, stage = 0;
  bool overlap = true;
  FaultPlan plan;

  ModelSpec spec() const { return spec_from_preset(model, "test"); }
  Program program() const {
    const EngineOptions o = options();
    return training_program(o, unit_traits(Model(spec()), o, ranks), ranks);
  }
  EngineOptions options() const {
    EngineOptions options{
        .threads = 1, .micro_batch = 1, .sequence = 8, .micros = 2, .clipping = 1.0};
    options.zero.stage = stage;
    options.zero.persistence_elems = 0;
    options.zero.reduce_bucket_elems = 40000;
    options.zero.overlap = overlap;
    return options;
  }
  std::string name() const {
    return fmt::format("{}, stage {}{}: {} of rank {} of {}, step {}, action {}", model, stage,
                       overlap ? "" : " without lanes", fault_name(plan.fault), plan.rank, ranks,
                       plan.step, plan.action);
  }
};

// The steps of a run with a fault: enough that after any fault the other ranks still make calls in
// which they wait for the one that failed.
inline constexpr int64_t kFaultSteps = 4;

// Kinds come in turn; everything else is random.
inline FaultCase draw_fault(unsigned seed, std::span<const Fault> kinds) {
  std::mt19937 random(seed);
  const auto below = [&](size_t count) { return random() % static_cast<unsigned>(count); };
  FaultCase drawn;
  drawn.plan.fault = kinds[seed % kinds.size()];
  drawn.model = below(2) == 0 ? "gpt2-tiny" : "llama-tiny";
  drawn.ranks = 2 + static_cast<int>(below(3));
  drawn.stage = static_cast<int>(below(4));
  drawn.overlap = below(4) > 0;
  drawn.plan.rank = static_cast<int>(below(static_cast<size_t>(drawn.ranks)));
  drawn.plan.step = below(kFaultSteps - 1);
  drawn.plan.action = below(drawn.program().actions.size());
  return drawn;
}

// The calls in which the other ranks may wait: those at or after the fault, up to the first one
// that all later actions wait for.
inline std::vector<std::string> calls_after(const FaultCase& fault) {
  const Model model(fault.spec());
  const Program program = fault.program();
  std::vector<std::string> calls;
  for (size_t i = fault.plan.action; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    if (action.verb != Verb::gather && action.verb != Verb::reduce && action.verb != Verb::clip)
      continue;
    const std::string& unit = model.units[static_cast<size_t>(action.unit)]->name();
    calls.push_back(fmt::format("\"{}, step {}\"", describe(action, unit), fault.plan.step + 1));
    if (action.verb == Verb::clip) return calls;
  }
  calls.push_back(fmt::format("\"count targets, step {}\"", fault.plan.step + 2));
  return calls;
}

// Trains; on the rank of the plan, `inject` is called before its action.
inline void train_with_fault(const FaultCase& fault, std::shared_ptr<Communicator> communicator,
                             const std::function<void()>& inject) {
  EngineOptions options = fault.options();
  const size_t actions = fault.program().actions.size();
  const size_t at = static_cast<size_t>(fault.plan.step) * actions + fault.plan.action;
  if (communicator->rank() == fault.plan.rank)
    options.before_action = [&inject, at, seen = size_t{0}](const Action&) mutable {
      if (seen++ == at) inject();
    };
  Engine engine(fault.spec(), options, std::move(communicator));
  while (engine.steps_done() < kFaultSteps) train_step(engine);
}

}  // namespace onefold::test
