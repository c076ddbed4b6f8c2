// onefold export: a trained model as a folder for transformers, adapters as one for PEFT.
#include <fmt/format.h>

#include <filesystem>

#include "base/clock.h"
#include "base/process.h"
#include "base/say.h"
#include "base/text.h"
#include "cli/cli.h"
#include "inspect/hf_export.h"

namespace onefold::cli {
namespace {

struct ExportArguments {
  std::string checkpoint, folder, adapter, dtype, family, shard_size;
  bool merge = false, overwrite = false, json = false;
};

ExportOptions options_of(const ExportArguments& arguments) {
  ExportOptions options;
  if (arguments.dtype == "f32") options.dtype = "F32";
  if (arguments.dtype == "f16") options.dtype = "F16";
  if (arguments.dtype == "bf16") options.dtype = "BF16";
  if (!arguments.family.empty()) options.family = hf_family_named(arguments.family, "--family");
  if (!arguments.shard_size.empty())
    options.max_shard_bytes = parse_bytes(arguments.shard_size, "--max-shard-size");
  if (options.max_shard_bytes < 1) user_error("--max-shard-size must be greater than 0");
  options.overwrite = arguments.overwrite;
  return options;
}

// Adapters alone, as PEFT reads them.
int export_adapter(const ExportArguments& arguments, const AdapterWeights& adapter, double begin) {
  for (const auto& [flag, value] : {std::pair("--family", arguments.family),
                                    std::pair("--max-shard-size", arguments.shard_size)})
    if (!value.empty())
      user_error("{} is for a whole model, and {} holds adapters: pass --merge for one", flag,
                 arguments.checkpoint);
  const ExportOptions options = options_of(arguments);
  const std::string dtype = options.dtype.empty() ? "F32" : options.dtype;
  const PeftResult result = export_peft(adapter, arguments.folder, {dtype, options.overwrite});
  const double seconds = now_seconds() - begin;
  if (arguments.json)
    print_json({{"output", arguments.folder},
                {"peft_type", "LORA"},
                {"base", adapter.base},
                {"rank", adapter.lora.rank},
                {"target_modules", result.target_modules},
                {"dtype", dtype},
                {"parameters", result.parameters},
                {"bytes", result.bytes},
                {"files", result.files},
                {"seconds", seconds}});
  else
    fmt::print("{}: adapters of rank {} for {}, {} parameters, {} of {}, {} files in {}\n",
               arguments.folder, adapter.lora.rank, adapter.base, format_count(result.parameters),
               format_bytes(result.bytes), dtype, result.files.size(), format_duration(seconds));
  return kOk;
}

int run_export(const ExportArguments& arguments) {
  const double begin = now_seconds();
  const ExportOptions options = options_of(arguments);
  std::error_code ignored;
  if (std::filesystem::equivalent(arguments.checkpoint, arguments.folder, ignored))
    user_error("{} is the checkpoint itself; name another folder", arguments.folder);
  if (arguments.adapter.empty()) {
    const std::optional<AdapterWeights> adapter = open_adapter(arguments.checkpoint);
    if (adapter && !arguments.merge) return export_adapter(arguments, *adapter, begin);
    if (!adapter && arguments.merge)
      user_error("--merge: {} holds no adapters; name those to merge with --adapter",
                 arguments.checkpoint);
  }
  ModelOnDisk model = open_model(arguments.checkpoint);
  if (!arguments.adapter.empty()) model.source = with_adapter(model.source, arguments.adapter);
  for (const std::string& problem : model.passed_over)
    say("onefold: warning: passed over: {}\n", problem);
  const ExportResult result = export_hf(*model.source, model.extras, arguments.folder, options);
  const double seconds = now_seconds() - begin;
  if (arguments.json) {
    print_json({{"output", arguments.folder},
                {"architecture", hf_architecture(result.family)},
                {"dtype", result.dtype},
                {"parameters", result.parameters},
                {"bytes", result.bytes},
                {"files", result.files},
                {"remarks", result.remarks},
                {"passed_over", model.passed_over},
                {"seconds", seconds},
                {"peak_rss_bytes", peak_rss_bytes()}});
    return kOk;
  }
  for (const std::string& remark : result.remarks) say("note: {}\n", remark);
  fmt::print("{}: {}, {} parameters, {} of {}, {} files in {}\n", arguments.folder,
             hf_architecture(result.family), format_count(result.parameters),
             format_bytes(result.bytes), result.dtype, result.files.size(),
             format_duration(seconds));
  return kOk;
}

}  // namespace

void add_export(CLI::App& app, Run& run) {
  auto a = std::make_shared<ExportArguments>();
  CLI::App* command =
      app.add_subcommand("export", "Write a model as a folder for Hugging Face transformers");
  command
      ->add_option("checkpoint", a->checkpoint,
                   "The folder of a run, a checkpoint or a Hugging Face model")
      ->required();
  command->add_option("folder", a->folder, "The folder to write")->required();
  command->add_option("--dtype", a->dtype, "Type of the weights; default: as they are")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  command->add_option(
      "--max-shard-size", a->shard_size,
      "Files of at most this size, with an index if there are several; default: 5GB");
  command->add_option("--family", a->family,
                      "gpt2, llama, mistral, qwen2 or qwen3; default: what the model is");
  auto* merge = command->add_flag(
      "--merge", a->merge,
      "Of a run with lora: the whole model, with the adapters added to its base's weights");
  command
      ->add_option("--adapter", a->adapter,
                   "Adds the adapters of this folder (PEFT's, or a run's) to the model's weights")
      ->excludes(merge);
  command->add_flag("--overwrite", a->overwrite, "Replace a model in the folder");
  command->add_flag("--json", a->json, "One JSON object instead of text");
  command->footer(
      "Examples:\n"
      "  onefold export runs/demo models/demo --dtype bf16\n"
      "  onefold export runs/lora adapters/lora           # adapters, for PEFT\n"
      "  onefold export runs/lora models/merged --merge");
  command->callback([a, &run] { run = [a] { return run_export(*a); }; });
}

}  // namespace onefold::cli
