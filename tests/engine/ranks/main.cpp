// Trains tiny models on ranks: N threads with --ranks N, or the processes that mpirun has started.
// Walks the matrix of configurations, or makes one rank fail. matrix_test.cpp and fault_test.cpp
// start it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>

#include "engine/faults.h"
#include "engine/launch.h"
#include "engine/ranks/matrix.h"

namespace onefold {
namespace {

struct Settings {
  int ranks = 0, steps = 20;
  bool quick = false, optimizers = false, compressions = false, meshes = false;
  double timeout_seconds = 120;
  std::vector<std::string> fault;  // kind, rank, step, action
  test::FaultCase fault_case;
  bool no_overlap = false;
};

Settings settings_from(int argc, char** argv) {
  Settings s;
  CLI::App app("Tiny models on several ranks");
  s.fault_case.model = "gpt2-tiny";
  app.add_option("--ranks", s.ranks, "threads");
  app.add_option("--steps", s.steps);
  app.add_flag("--quick", s.quick, "a part of the matrix");
  app.add_flag("--optimizers", s.optimizers, "the matrix of optimizers");
  app.add_flag("--compressions", s.compressions, "the matrix of compressions");
  app.add_flag("--compressed-meshes", s.meshes, "the same beside other axes");
  app.add_option("--timeout", s.timeout_seconds);
  app.add_option("--fault", s.fault, "kind,rank,step,action")->delimiter(',')->expected(4);
  app.add_option("--model", s.fault_case.model, "of the run with a fault");
  app.add_option("--stage", s.fault_case.stage, "of the run with a fault");
  std::vector<int> axes;
  app.add_option("--axes", axes, "its mesh: tensor, context, expert, pipeline")
      ->delimiter(',')
      ->expected(4);
  app.add_flag("--no-overlap", s.no_overlap, "in the run with a fault");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (!axes.empty()) s.fault_case.axes = {axes[0], axes[1], axes[2], axes[3]};
  return s;
}

test::FaultCase fault_case(const Settings& s, int ranks) {
  test::FaultCase fault = s.fault_case;
  fault.ranks = ranks;
  fault.overlap = !s.no_overlap;
  size_t kind = 0;
  while (kind < std::size(test::kFaultNames) && s.fault[0] != test::kFaultNames[kind]) ++kind;
  if (kind == std::size(test::kFaultNames)) user_error("--fault: no kind \"{}\"", s.fault[0]);
  fault.plan = {static_cast<test::Fault>(kind), std::stoi(s.fault[1]), std::stoll(s.fault[2]),
                std::stoul(s.fault[3])};
  return fault;
}

void inject(test::Fault fault) {
  switch (fault) {
    case test::Fault::raise:
      throw std::runtime_error("as the test asks");
    case test::Fault::exit_early:
      std::_Exit(4);
    case test::Fault::kill:
      raise(SIGKILL);
      break;
    case test::Fault::hang:
      pause();
      break;
    case test::Fault::leave:
      user_error("--fault: a process cannot leave its engine behind");
  }
}

void run(const Settings& s) {
  Ranks ranks(s.ranks, {.timeout_seconds = s.timeout_seconds});
  if (ranks.count() < 2) user_error("several ranks are needed: --ranks 2, or mpirun -n 2");
  ranks.run([&](std::shared_ptr<Communicator> communicator) {
    if (s.fault.empty())
      return test::walk(s.meshes         ? test::compression_mesh_matrix()
                        : s.compressions ? test::compression_matrix()
                        : s.optimizers   ? test::optimizer_matrix()
                                         : test::matrix(s.quick),
                        s.steps, communicator);
    const test::FaultCase fault = fault_case(s, ranks.count());
    test::train_with_fault(fault, communicator, [&] { inject(fault.plan.fault); });
  });
}

}  // namespace
}  // namespace onefold

int main(int argc, char** argv) {
  try {
    onefold::run(onefold::settings_from(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "engine_ranks: {}\n", error.what());
    std::fflush(stderr);
    // The launcher ends all processes when the first one exits: wait until all have printed.
    usleep(500000);
    return 1;
  }
  return 0;
}
