// onefold inspect: the tensors of a run, a Hugging Face folder or a safetensors file.
#include <fmt/format.h>

#include "cli/cli.h"
#include "inspect/describe.h"

namespace onefold::cli {
namespace {

struct InspectArguments {
  std::string path;
  int threads = 0;
  bool headers = false, json = false;
};

int run_inspect(const InspectArguments& arguments) {
  ThreadPool pool(arguments.threads);
  const Description description = describe(arguments.path, !arguments.headers, pool);
  if (arguments.json)
    print_json(description_json(description));
  else
    fmt::print("{}", description_text(description));
  return kOk;
}

}  // namespace

void add_inspect(CLI::App& app, Run& run) {
  auto a = std::make_shared<InspectArguments>();
  CLI::App* command =
      app.add_subcommand("inspect", "Describe a model's tensors: shapes, types, norms, health");
  command
      ->add_option("path", a->path,
                   "The folder of a run, a checkpoint or a Hugging Face model, or a .safetensors")
      ->required();
  command->add_flag("--headers", a->headers, "Names, shapes and types alone; values are not read");
  command->add_option("--threads", a->threads, "Threads; 0 takes all cores")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_flag("--json", a->json, "One JSON object instead of text");
  command->footer(
      "Examples:\n  onefold inspect runs/demo\n  onefold inspect models/llama --headers");
  command->callback([a, &run] { run = [a] { return run_inspect(*a); }; });
}

}  // namespace onefold::cli
