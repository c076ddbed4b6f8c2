// A training run with a fault on one rank, before one action of one step. A seed determines the
// fault, the rank, the step and the action.
#pragma once

#include <random>

#include "engine/ranks.h"
#include "engine/stages.h"

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
  MeshAxes axes;
  bool sequence_parallel = false, ring = false;
  FaultPlan plan;

  ModelSpec spec() const {
    ModelSpec spec = spec_from_preset(model, "test");
    if (axes.tensor * axes.context * axes.expert == 1) return spec;
    spec.hidden_size = 24;  // which meshes divide
    spec.num_heads = spec.num_kv_heads = 4;
    spec.head_dim = 6;
    if (spec.experts.enabled()) spec.experts.count = 4;
    return spec;
  }
  // Of the rank with the fault: those at other places of a pipeline have others.
  Program program() const {
    const EngineOptions o = options();
    const Pipeline pipeline =
        pipeline_of(spec(), o, Mesh(ranks, axes).place(Axis::pipeline, plan.rank));
    return training_program(
        o, unit_traits(model_of(spec(), o, kLogitsBytes, plan.rank), o, ranks, pipeline), ranks,
        pipeline);
  }
  EngineOptions options() const {
    EngineOptions options{.tensor = axes.tensor,
                          .sequence_parallel = sequence_parallel,
                          .context = axes.context,
                          .context_method = ring ? ContextMethod::ring : ContextMethod::ulysses,
                          .expert = axes.expert,
                          .threads = 1,
                          .micro_batch = 1,
                          .sequence = 8,
                          .micros = 2,
                          .clipping = 1.0};
    options.pipeline.ranks = axes.pipeline;
    options.zero.stage = stage;
    options.zero.persistence_elems = 0;
    options.zero.reduce_bucket_elems = 40000;
    options.zero.overlap = overlap;
    return options;
  }
  std::string name() const {
    return fmt::format(
        "{}, stage {}{}, tensor {}{} x context {}{} x expert {} x pipeline {}: {} of rank {} of "
        "{}, step {}, action {}",
        model, stage, overlap ? "" : " without lanes", axes.tensor,
        sequence_parallel ? " with sequences" : "", axes.context, ring ? " in a ring" : "",
        axes.expert, axes.pipeline, fault_name(plan.fault), plan.rank, ranks, plan.step,
        plan.action);
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

// The same over a mesh of two to five axes.
inline FaultCase draw_mesh_fault(unsigned seed, std::span<const Fault> kinds) {
  std::mt19937 random(seed);
  const auto below = [&](size_t count) { return random() % static_cast<unsigned>(count); };
  FaultCase drawn;
  drawn.plan.fault = kinds[seed % kinds.size()];
  drawn.model = below(2) == 0 ? "mixtral-tiny" : "llama-tiny";
  int data = 1;
  std::vector<int*> sizes = {&drawn.axes.tensor, &drawn.axes.context, &drawn.axes.pipeline, &data};
  if (drawn.model == "mixtral-tiny") sizes.push_back(&drawn.axes.expert);
  for (const size_t axes = 2 + below(sizes.size() - 1); drawn.ranks < 1 << axes;) {
    int& size = *sizes[below(sizes.size())];
    if (size == 1) {
      size = 2;
      drawn.ranks =
          data * drawn.axes.tensor * drawn.axes.context * drawn.axes.pipeline * drawn.axes.expert;
    }
  }
  drawn.stage = static_cast<int>(below(4));
  drawn.overlap = below(4) > 0;
  drawn.sequence_parallel = drawn.axes.tensor > 1 && below(2) == 0;
  drawn.ring = below(2) == 0;
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
