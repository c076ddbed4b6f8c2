// "model", "data" and "run".
#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "config/sections.h"
#include "io/hf_folder.h"
#include "model/spec_limits.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;
using Group = JsonReport::Group;

constexpr int64_t kDefaultSequenceLength = 1024;
constexpr int64_t kDefaultEvalEvery = 100;
constexpr int64_t kDefaultEvalBatches = 20;

// The folder of a run has its model and its tokenizer in these files; weights or checkpoints too.
constexpr const char* kRunModelFile = "model.json";
constexpr const char* kTokenizerFile = "tokenizer.json";

bool is_run(const std::string& folder) {
  std::error_code ignored;
  return fs::exists(fs::path(folder) / kRunModelFile, ignored);
}

// A new run that begins with the weights that another one has trained.
void read_model_of_run(const std::string& folder, Config& config) {
  const std::string file = (fs::path(folder) / kRunModelFile).string();
  config.model = spec_from_json(read_json(file), fmt::format("model ({})", file));
  config.model_source = file;
  config.model_weights = folder;
  std::error_code ignored;
  const fs::path tokenizer = fs::path(folder) / kTokenizerFile;
  if (fs::exists(tokenizer, ignored)) config.data.tokenizer = tokenizer.string();
}

// A plain string names a preset if there is one of that name, else a path.
void read_named_model(const std::string& name, Config& config) {
  const std::vector<std::string> presets = preset_names();
  if (std::find(presets.begin(), presets.end(), name) != presets.end()) {
    config.model = spec_from_preset(name, "model");
    config.model_source = name;
    return;
  }
  std::error_code ignored;
  if (!fs::exists(name, ignored))
    user_error("model: \"{}\" is neither a preset nor a file or folder{}; presets: {}", name,
               did_you_mean(name, presets), join(presets, ", "));
  fs::path file = name;
  if (is_run(name)) return read_model_of_run(name, config);
  if (fs::is_directory(file, ignored)) {
    // The folder of a Hugging Face model: its weights and its tokenizer go with it.
    if (TensorFiles::in_folder(name)) config.model_weights = name;
    if (const auto unread = TensorFiles::unreadable_in_folder(name); !unread.empty())
      user_error(
          "model: the folder {0} has weights that are not read: {1}. Load it in transformers and "
          "save_pretrained(), which writes {2}; or, to begin with random weights, name "
          "{0}/config.json",
          name, join(unread, ", "), kHfWeights);
    const fs::path tokenizer = file / kTokenizerFile;
    if (fs::exists(tokenizer, ignored)) config.data.tokenizer = tokenizer.string();
    file /= "config.json";
    if (!fs::exists(file, ignored)) user_error("model: the folder {} has no config.json", name);
  }
  config.model_source = file.string();
  config.model =
      spec_from_hf_config(read_json(file.string()), fmt::format("model ({})", file.string()));
}

constexpr std::array<std::string_view, 3> kFormats = {"text", "jsonl", "tokens"};
constexpr std::array<std::string_view, 3> kDocumentUnits = {"file", "line", "blank_line"};

std::string_view format_name(DataFormat format) { return kFormats[static_cast<size_t>(format)]; }

template <typename Enum>
Enum named(std::span<const std::string_view> names, std::string_view name) {
  return static_cast<Enum>(std::find(names.begin(), names.end(), name) - names.begin());
}

DataFormat format_by_extension(JsonObject& data, std::string_view key, const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  if (extension == ".jsonl" || extension == ".ndjson") return DataFormat::kJsonl;
  if (extension == ".tokens" || extension == ".bin") return DataFormat::kTokens;
  for (const std::string_view other :
       {".json", ".parquet", ".arrow", ".npy", ".csv", ".gz", ".zst", ".xz", ".zip"})
    if (extension == other)
      data.fail(key, fmt::format("names {}, which is not text, JSON lines or a token file; if it "
                                 "is one all the same, set data.format",
                                 path));
  return DataFormat::kText;
}

DataFormat read_format(JsonObject& data, const DataConfig& config) {
  if (data.has("format"))
    return named<DataFormat>(kFormats, data.choice("format", {"text", "jsonl", "tokens"}, ""));
  DataFormat format = DataFormat::kText;
  std::string first;
  const auto agree = [&](std::string_view key, const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      const DataFormat one = format_by_extension(data, key, path);
      if (!first.empty() && one != format)
        data.fail(key, fmt::format("mixes formats: {} is {} by its name, {} is {}; set data.format",
                                   first, format_name(format), path, format_name(one)));
      format = one;
      first = path;
    }
  };
  agree("train", config.train.paths);
  agree("validation", config.validation);
  return format;
}

std::vector<std::string> read_paths(JsonObject& data, std::string_view key) {
  if (!data.has(key)) return {};
  auto paths = data.require<std::vector<std::string>>(key);
  if (paths.empty()) data.fail(key, "is an empty list; name a file or leave it out");
  for (const std::string& path : paths)
    if (path.empty()) data.fail(key, "has an empty path");
  return paths;
}

void read_source(JsonObject& data, DataConfig& config) {
  DataSource& train = config.train;
  train.format = read_format(data, config);
  const auto only = [&](std::string_view key, DataFormat format) {
    if (train.format != format)
      data.no_effect(key, fmt::format("it is for the format {}, and this is {}",
                                      format_name(format), format_name(train.format)));
  };
  only("field", DataFormat::kJsonl);
  only("document_unit", DataFormat::kText);
  train.field = data.get<std::string>("field", "text");
  train.text_documents = named<TextDocuments>(
      kDocumentUnits, data.choice("document_unit", {"file", "line", "blank_line"}, "file"));
  // A token file records its vocabulary; a tokenizer given with it is used only to show text.
  if (train.format == DataFormat::kTokens && config.tokenizer == "bytes") config.tokenizer = "";
  config.tokenizer = data.get<std::string>("tokenizer", config.tokenizer);
  if (config.tokenizer.empty() && data.has("tokenizer"))
    data.fail("tokenizer", "is empty; name \"bytes\" or a tokenizer.json");
}

}  // namespace

void read_model(JsonObject& root, Config& config) {
  if (!root.has("model"))
    user_error(
        "model is missing: name a preset (like \"gpt2\"), a folder with a config.json, or write "
        "the architecture as an object");
  const Json model = root.require<Json>("model");
  if (model.is_string()) return read_named_model(model.get<std::string>(), config);
  if (!model.is_object())
    root.fail("model", fmt::format("must be a preset's name, a path or an object, not {} ({})",
                                   json_kind(model), brief_json(model)));
  JsonObject in(model, "model");
  config.model_weights = in.get<std::string>("weights", "");
  if (in.has("weights") && !TensorFiles::in_folder(config.model_weights) &&
      !is_run(config.model_weights))
    in.fail("weights", fmt::format("is \"{}\", which is neither a run nor a folder with {} or {}",
                                   config.model_weights, kHfWeights, kHfIndex));
  Json fields = in.unread().value();
  config.model_source = "inline";
  if (in.has("weights") && !model.contains("preset")) {  // fields over those of the folder
    const bool run = is_run(config.model_weights);
    config.model_source = config.model_weights + "/" + (run ? kRunModelFile : "config.json");
    const Json saved = read_json(config.model_source);
    const std::string where = fmt::format("model ({})", config.model_source);
    Json all = (run ? spec_from_json(saved, where) : spec_from_hf_config(saved, where)).to_json();
    all.update(fields);
    fields = std::move(all);
  }
  config.model = spec_from_json(fields, "model");
  if (model.contains("preset")) config.model_source = model["preset"].get<std::string>();
}

void read_data(JsonObject& root, Config& config) {
  JsonObject in = root.object("data");
  DataConfig& data = config.data;
  data.train.paths = read_paths(in, "train");
  data.validation = read_paths(in, "validation");
  if (!data.validation.empty())
    in.no_effect("validation_fraction", "data.validation names the validation data");
  data.validation_fraction = in.fraction("validation_fraction", 0);
  read_source(in, data);

  const int64_t longest = config.model.max_sequence_length;
  data.sequence_length =
      in.at_least("sequence_length", 1, std::min(longest, kDefaultSequenceLength));
  if (config.model.hidden_size > 0 && data.sequence_length > longest)  // else there is no model
    in.refuse(Group::conflict, "sequence_length",
              fmt::format("is {}, but the model's max_sequence_length is {}", data.sequence_length,
                          longest));
  data.documents = parse_document_mode(
      in.choice("documents", {"packed", "isolated", "separated"}, "packed"), in.path("documents"));
  data.shuffle = in.get<bool>("shuffle", true);
  in.finish();
}

void read_run(JsonObject& root, Config& config) {
  JsonObject in = root.object("run");
  RunConfig& run = config.run;
  run.output = in.get<std::string>("output", "");
  run.seed = static_cast<uint64_t>(in.at_least("seed", 0, 1));
  run.steps = in.at_least("steps", 1, 0);
  run.epochs = in.positive("epochs", 0);
  run.tokens = in.at_least("tokens", 1, 0);
  if ((run.steps > 0) + (run.epochs > 0) + (run.tokens > 0) > 1)
    in.refuse(Group::conflict, "steps, run.epochs and run.tokens", "exclude each other: keep one");

  if (!config.data.has_validation())
    for (const std::string_view key : {"eval_every", "eval_batches"})
      in.no_effect(key,
                   "there is no validation data; set data.validation or "
                   "data.validation_fraction");
  const bool evaluates = config.data.has_validation();
  run.eval_every = in.at_least("eval_every", 1, evaluates ? kDefaultEvalEvery : 0);
  run.eval_batches = in.at_least("eval_batches", 0, evaluates ? kDefaultEvalBatches : 0);

  const int64_t threads = in.at_least("threads", 0, 0);
  if (threads > kMostThreads)
    in.refuse(Group::conflict, "threads",
              fmt::format("is {}; the largest is {}", threads, kMostThreads));
  run.threads = static_cast<int>(threads);
  if (in.has("memory")) {
    const Json memory = in.require<Json>("memory");
    run.memory_bytes = memory.is_string()
                           ? parse_bytes(memory.get<std::string>(), in.path("memory"))
                           : in.require<int64_t>("memory");
    if (run.memory_bytes < 1)
      in.refuse(Group::conflict, "memory", "must be greater than 0; leave it out for no limit");
  }
  if (run.output.empty())
    for (const std::string_view key :
         {"save_every", "save_minutes", "keep_last", "keep_every", "save_failures", "tensorboard"})
      in.no_effect(key, "nothing is written without run.output");
  run.save_every = in.at_least("save_every", 0, 0);
  run.save_minutes = in.non_negative("save_minutes", 0);
  run.keep_last = in.at_least("keep_last", 1, run.keep_last);
  run.keep_every = in.at_least("keep_every", 0, 0);
  run.stop_if_unsaved = in.choice("save_failures", {"warn", "stop"}, "warn") == "stop";
  run.tensorboard = in.get<bool>("tensorboard", false);
  run.recompute = in.get<bool>("recompute", false);
  run.accumulate = in.choice("accumulate", {"auto", "micro_first", "unit_first"}, "auto");
  // Of a former version, whose runs all have it in their config.json: they can be resumed.
  if (in.choice("products", {"auto", "library", "paired"}, "auto") == "paired")
    in.refuse(Group::conflict, "products",
              "must not be \"paired\": paired products were removed, because their gradients were "
              "wrong where a softmax is peaked. Leave the key out: all products are the library's");
  run.freeze = in.get<std::vector<std::string>>("freeze", {});
  run.timeout_seconds = in.positive("timeout", run.timeout_seconds);
  run.check_collectives = in.get<bool>("check_collectives", false);
  in.finish();
}

Json data_json(const DataConfig& data) {
  Json json;
  if (!data.train.paths.empty()) json["train"] = data.train.paths;
  if (!data.validation.empty())
    json["validation"] = data.validation;
  else
    json["validation_fraction"] = data.validation_fraction;
  json["format"] = format_name(data.train.format);
  if (data.train.format == DataFormat::kJsonl) json["field"] = data.train.field;
  if (data.train.format == DataFormat::kText)
    json["document_unit"] = kDocumentUnits[static_cast<size_t>(data.train.text_documents)];
  if (!data.tokenizer.empty()) json["tokenizer"] = data.tokenizer;
  json["sequence_length"] = data.sequence_length;
  json["documents"] = document_mode_name(data.documents);
  json["shuffle"] = data.shuffle;
  return json;
}

Json run_json(const Config& config) {
  const RunConfig& run = config.run;
  Json json;
  if (!run.output.empty()) json["output"] = run.output;
  json["seed"] = run.seed;
  if (run.steps > 0) json["steps"] = run.steps;
  if (run.epochs > 0) json["epochs"] = run.epochs;
  if (run.tokens > 0) json["tokens"] = run.tokens;
  if (config.data.has_validation()) {
    json["eval_every"] = run.eval_every;
    json["eval_batches"] = run.eval_batches;
  }
  json["threads"] = run.threads;
  json["recompute"] = run.recompute;
  json["accumulate"] = run.accumulate;
  if (!run.freeze.empty()) json["freeze"] = run.freeze;
  json["timeout"] = run.timeout_seconds;
  json["check_collectives"] = run.check_collectives;
  if (run.memory_bytes > 0) json["memory"] = run.memory_bytes;
  if (!run.output.empty()) {
    json["save_every"] = run.save_every;
    json["save_minutes"] = run.save_minutes;
    json["keep_last"] = run.keep_last;
    json["keep_every"] = run.keep_every;
    json["save_failures"] = run.stop_if_unsaved ? "stop" : "warn";
    json["tensorboard"] = run.tensorboard;
  }
  return json;
}

}  // namespace onefold
