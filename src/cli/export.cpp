// onefold export: a trained model as a folder for transformers or a file for llama.cpp, adapters as
// a folder for PEFT.
#include <fmt/format.h>

#include <filesystem>

#include "base/clock.h"
#include "base/process.h"
#include "base/say.h"
#include "base/text.h"
#include "cli/cli.h"
#include "inspect/gguf_export.h"

namespace onefold::cli {
namespace {

struct ExportArguments {
  std::string checkpoint, folder, adapter, format = "hf", type, dtype, family, shard_size;
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
  const PeftResult result = export_peft(adapter, arguments.folder,
                                        {dtype, options.overwrite, family_of_base(adapter.base)});
  const double seconds = now_seconds() - begin;
  if (arguments.json)
    print_json({{"output", arguments.folder},
                {"peft_type", "LORA"},
                {"base", adapter.base},
                {"rank", result.rank},
                {"target_modules", result.target_modules},
                {"dtype", dtype},
                {"parameters", result.parameters},
                {"bytes", result.bytes},
                {"files", result.files},
                {"seconds", seconds}});
  else
    fmt::print("{}: adapters of rank {} for {}, {} parameters, {} of {}, {} files in {}\n",
               arguments.folder, result.rank, adapter.base, format_count(result.parameters),
               format_bytes(result.bytes), dtype, result.files.size(), format_duration(seconds));
  return kOk;
}

// Flags that the other format has.
void require_format(const ExportArguments& arguments) {
  const bool gguf = arguments.format == "gguf";
  for (const auto& [flag, value, for_gguf] :
       {std::tuple("--type", arguments.type, true), std::tuple("--dtype", arguments.dtype, false),
        std::tuple("--max-shard-size", arguments.shard_size, false)})
    if (!value.empty() && for_gguf != gguf)
      user_error("{} is for --format {}", flag, for_gguf ? "gguf" : "hf");
}

ExportResult export_model(const ExportArguments& arguments, const ModelOnDisk& model) {
  const ExportOptions options = options_of(arguments);
  if (arguments.format != "gguf")
    return export_hf(*model.source, model.extras, arguments.folder, options);
  return export_gguf(*model.source, model.extras, arguments.folder,
                     {arguments.type, options.family, options.overwrite});
}

int run_export(const ExportArguments& arguments) {
  const double begin = now_seconds();
  require_format(arguments);
  std::error_code ignored;
  if (std::filesystem::equivalent(arguments.checkpoint, arguments.folder, ignored))
    user_error("{} is the checkpoint itself; name another folder", arguments.folder);
  if (arguments.adapter.empty()) {
    const std::optional<AdapterWeights> adapter = open_adapter(arguments.checkpoint);
    if (adapter && !arguments.merge && arguments.format == "gguf")
      user_error("--format gguf is for a whole model, and {} holds adapters: pass --merge for one",
                 arguments.checkpoint);
    if (adapter && !arguments.merge) return export_adapter(arguments, *adapter, begin);
    if (!adapter && arguments.merge)
      user_error("--merge: {} holds no adapters; name those to merge with --adapter",
                 arguments.checkpoint);
  }
  ModelOnDisk model = open_model(arguments.checkpoint);
  if (!arguments.adapter.empty()) model.source = with_adapter(model.source, arguments.adapter);
  for (const std::string& problem : model.passed_over)
    say("onefold: warning: passed over: {}\n", problem);
  const ExportResult result = export_model(arguments, model);
  const double seconds = now_seconds() - begin;
  if (arguments.json) {
    print_json({{"output", arguments.folder},
                {"format", arguments.format},
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
  fmt::print("{}: {}, {} parameters, {} of {}, {} file{} in {}\n", arguments.folder,
             hf_architecture(result.family), format_count(result.parameters),
             format_bytes(result.bytes), result.dtype, result.files.size(),
             result.files.size() == 1 ? "" : "s", format_duration(seconds));
  return kOk;
}

}  // namespace

void add_export(CLI::App& app, Run& run) {
  auto a = std::make_shared<ExportArguments>();
  CLI::App* command =
      app.add_subcommand("export", "Write a model for Hugging Face transformers or llama.cpp");
  command
      ->add_option("checkpoint", a->checkpoint,
                   "The folder of a run, a checkpoint or a Hugging Face model, or a GGUF file")
      ->required();
  command->add_option("folder", a->folder, "The folder to write; with --format gguf, the file")
      ->required();
  command
      ->add_option("--format", a->format,
                   "hf, a folder for transformers, or gguf, a file for llama.cpp; default: hf")
      ->check(CLI::IsMember({"hf", "gguf"}));
  command
      ->add_option("--type", a->type,
                   "With --format gguf, the type of matrices; default: as they are")
      ->transform(CLI::IsMember({"F32", "F16", "BF16", "Q8_0", "Q4_K"}, CLI::ignore_case));
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
  command->add_flag("--overwrite", a->overwrite, "Replace a model in the folder, or the file");
  command->add_flag("--json", a->json, "One JSON object instead of text");
  command->footer(
      "Examples:\n"
      "  onefold export runs/demo models/demo --dtype bf16\n"
      "  onefold export runs/demo demo.gguf --format gguf --type Q8_0\n"
      "  onefold export runs/lora adapters/lora           # adapters, for PEFT\n"
      "  onefold export runs/lora models/merged --merge");
  command->callback([a, &run] { run = [a] { return run_export(*a); }; });
}

}  // namespace onefold::cli
