// onefold diff: how two models differ, tensor by tensor.
#include <fmt/format.h>

#include "cli/cli.h"
#include "inspect/describe.h"

namespace onefold::cli {
namespace {

struct DiffArguments {
  std::string a, b;
  int threads = 0;
  bool json = false;
};

int run_diff(const DiffArguments& arguments) {
  ThreadPool pool(arguments.threads);
  const Difference difference = compare(arguments.a, arguments.b, pool);
  if (arguments.json)
    print_json(difference_json(difference));
  else
    fmt::print("{}", difference_text(difference));
  return difference.equal() ? kOk : kDifferent;
}

}  // namespace

void add_diff(CLI::App& app, Run& run) {
  auto a = std::make_shared<DiffArguments>();
  CLI::App* command = app.add_subcommand("diff", "Compare the tensors of two models");
  command
      ->add_option("a", a->a,
                   "The folder of a run, a checkpoint or a Hugging Face model, or a .safetensors")
      ->required();
  command->add_option("b", a->b, "The other")->required();
  command->add_option("--threads", a->threads, "Threads; 0 takes all cores")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_flag("--json", a->json, "One JSON object instead of text");
  command->footer(
      "Exit code: 0 if both have the same tensors bit by bit, 4 if not.\n\n"
      "Example:\n  onefold diff runs/first runs/second");
  command->callback([a, &run] { run = [a] { return run_diff(*a); }; });
}

}  // namespace onefold::cli
