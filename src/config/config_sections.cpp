// "model", "data" and "run".
#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/chat_markers.h"
#include "config/sections.h"
#include "data/hf_tokenizer.h"
#include "device/device_name.h"
#include "io/hf_folder.h"
#include "model/gguf_model.h"
#include "model/spec_limits.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;
using Group = JsonReport::Group;

constexpr int64_t kDefaultSequenceLength = 1024;
constexpr int64_t kDefaultEvalEvery = 100;
constexpr int64_t kDefaultEvalSequences = 128;
constexpr double kMostWeight = 1e6;

// The tokenizer that goes with a model is the default. A folder with weights and no tokenizer that
// can be read is named all the same: opening it says what to do, where raw bytes would be trained
// on in silence.
void take_tokenizer(const std::string& folder, Config& config) {
  const std::string found = tokenizer_in_folder(folder);
  if (!found.empty())
    config.data.tokenizer = found;
  else if (!config.model_weights.empty())
    config.data.tokenizer = folder;
}

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
  config.model = spec_from_json(read_plain_json(file), fmt::format("model ({})", file));
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
  if (GgufFile::is_named(name) && !fs::is_directory(file, ignored)) {
    config.model_weights = config.model_source = name;
    take_tokenizer(name, config);
    config.model =
        spec_from_hf_config(hf_config_of_gguf(GgufFile(name)), fmt::format("model ({})", name));
    return;
  }
  if (fs::is_directory(file, ignored)) {
    // The folder of a Hugging Face model: its weights and its tokenizer go with it.
    if (TensorFiles::in_folder(name)) config.model_weights = name;
    if (const auto unread = TensorFiles::unreadable_in_folder(name); !unread.empty())
      user_error(
          "model: the folder {0} has weights that are not read: {1}. {2}; or, to begin with random "
          "weights, name {0}/config.json",
          name, join(unread, ", "),
          GgufFile::is_named(unread.front())
              ? "Name a GGUF file by itself"
              : fmt::format("Load it in transformers and save_pretrained(), which writes {}",
                            kHfWeights));
    take_tokenizer(name, config);
    file /= "config.json";
    if (!fs::exists(file, ignored)) user_error("model: the folder {} has no config.json", name);
  }
  config.model_source = file.string();
  // A description that is named by itself may come through a pipe.
  const Json described =
      file == fs::path(name) ? read_json(name) : read_plain_json(config.model_source);
  config.model = spec_from_hf_config(described, fmt::format("model ({})", config.model_source));
}

DataFormat format_by_extension(JsonObject& data, std::string_view key, const std::string& path) {
  const std::optional<DataFormat> format = format_by_name(path);
  if (!format)
    data.fail(key, fmt::format("names {}, which is not text, JSON lines or a token file; if it is "
                               "one all the same, set data.format",
                               path));
  return *format;
}

DataFormat read_format(JsonObject& data, const DataConfig& config) {
  if (data.has("format"))
    return parse_data_format(data.choice("format", {"text", "jsonl", "tokens", "chat"}, "text"),
                             data.path("format"));
  DataFormat format = DataFormat::kText;
  std::string first;
  const auto agree = [&](std::string_view key, const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      const DataFormat one = format_by_extension(data, key, path);
      if (!first.empty() && one != format)
        data.fail(key, fmt::format("mixes formats: {} is {} by its name, {} is {}; set data.format",
                                   first, data_format_name(format), path, data_format_name(one)));
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

// A path, or a list in which an entry may be {"path": ..., "weight": ...} too.
void read_weighted_paths(JsonObject& data, std::string_view key, DataSource& source) {
  if (!data.has(key)) return;
  Json entries = data.require<Json>(key);
  if (entries.is_object()) entries = Json::array({entries});
  const auto is_object = [](const Json& entry) { return entry.is_object(); };
  if (!entries.is_array() || std::none_of(entries.begin(), entries.end(), is_object)) {
    source.paths = read_paths(data, key);
    return;
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const bool plain = entries[i].is_string();
    const Json& entry = plain ? Json{{"path", entries[i]}} : entries[i];
    JsonObject in(entry, fmt::format("{}[{}]", data.path(key), i));
    source.paths.push_back(in.require<std::string>("path"));
    if (source.paths.back().empty()) in.fail("path", "is empty");
    source.weights.push_back(in.positive("weight", 1));
    if (source.weights.back() > kMostWeight)
      in.fail("weight",
              fmt::format("is {}; the largest is {}", source.weights.back(), kMostWeight));
    in.finish();
  }
  const auto once = [](double weight) { return weight == 1; };
  if (std::all_of(source.weights.begin(), source.weights.end(), once)) source.weights.clear();
}

void read_source(JsonObject& data, DataConfig& config) {
  DataSource& train = config.train;
  train.format = read_format(data, config);
  const auto only = [&](std::string_view key, std::initializer_list<DataFormat> formats) {
    if (std::find(formats.begin(), formats.end(), train.format) != formats.end()) return;
    std::vector<std::string> names;
    for (const DataFormat format : formats) names.emplace_back(data_format_name(format));
    data.no_effect(key, fmt::format("it is for the format {}, and this is {}", join(names, " or "),
                                    data_format_name(train.format)));
  };
  only("field", {DataFormat::kJsonl});
  only("document_unit", {DataFormat::kText});
  only("chat", {DataFormat::kChat});
  only("skip_bad", {DataFormat::kJsonl, DataFormat::kChat});
  only("special_tokens", {DataFormat::kText, DataFormat::kJsonl});
  train.field = data.get<std::string>("field", "text");
  train.text_documents =
      parse_text_documents(data.choice("document_unit", {"file", "line", "blank_line"}, "file"),
                           data.path("document_unit"));
  if (data.has("chat") && data.value()["chat"].is_string()) {
    data.choice("chat", {"chatml"}, "chatml");  // a folder's own template is the default
    train.chat = ChatMarkers::chatml();
  } else if (data.has("chat")) {
    train.chat = read_chat_markers(data.object("chat"));
  }
  train.skip_bad = data.get<bool>("skip_bad", false);
  train.special_tokens = data.get<bool>("special_tokens", false);
  // A token file records its vocabulary; a tokenizer given with it is used only to show text.
  const bool none = config.tokenizer == "bytes" ||
                    (is_folder(config.tokenizer) && tokenizer_in_folder(config.tokenizer).empty());
  if (train.format == DataFormat::kTokens && none) config.tokenizer = "";
  config.tokenizer = data.get<std::string>("tokenizer", config.tokenizer);
  if (config.tokenizer.empty() && data.has("tokenizer"))
    data.fail("tokenizer", "is empty; name \"bytes\" or a tokenizer.json");
}

}  // namespace

ChatMarkers read_chat_markers(JsonObject object) {
  ChatMarkers markers;
  markers.between = object.get<std::string>("between", "");
  for (const auto& [role, value] : object.value().items()) {
    if (role == "between") continue;
    const auto around = object.require<std::vector<std::string>>(role);
    if (!value.is_array() || around.size() != 2)
      object.fail(role, "must be a list of two strings: what comes before a message, and after it");
    markers.roles[role] = {around[0], around[1]};
  }
  if (!markers.roles.contains(kChatAssistant))
    object.fail(kChatAssistant, "is missing: its messages are what is trained on");
  object.finish();
  return markers;
}

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
  const bool gguf = GgufFile::is_named(config.model_weights) && path_exists(config.model_weights);
  if (in.has("weights") && !gguf && !TensorFiles::in_folder(config.model_weights) &&
      !is_run(config.model_weights))
    in.fail("weights", fmt::format("is \"{}\", which is neither a run nor a folder with {} or {}, "
                                   "nor a GGUF file",
                                   config.model_weights, kHfWeights, kHfIndex));
  if (!config.model_weights.empty()) take_tokenizer(config.model_weights, config);
  Json fields = in.unread().value();
  config.model_source = "inline";
  std::string shortened;
  if (in.has("weights") && !model.contains("preset")) {  // fields over those of the folder
    const bool run = is_run(config.model_weights);
    config.model_source = gguf ? config.model_weights
                               : config.model_weights + "/" + (run ? kRunModelFile : "config.json");
    const Json saved = gguf ? hf_config_of_gguf(GgufFile(config.model_source))
                            : read_plain_json(config.model_source);
    const std::string where = fmt::format("model ({})", config.model_source);
    const ModelSpec given = run ? spec_from_json(saved, where) : spec_from_hf_config(saved, where);
    Json all = given.to_json();
    all.update(fields);
    fields = std::move(all);
    if (!model.contains("max_sequence_length")) shortened = given.shortened;
  }
  config.model = spec_from_json(fields, "model");
  config.model.shortened = shortened;
  if (model.contains("preset")) config.model_source = model["preset"].get<std::string>();
}

void read_data(JsonObject& root, Config& config) {
  JsonObject in = root.object("data");
  DataConfig& data = config.data;
  read_weighted_paths(in, "train", data.train);
  data.validation = read_paths(in, "validation");
  if (!data.validation.empty())
    in.no_effect("validation_fraction", "data.validation names the validation data");
  data.validation_fraction = in.fraction("validation_fraction", 0);
  if (data.validation_fraction > 0 && !data.train.weights.empty())
    in.refuse(Group::conflict, "validation_fraction",
              "cannot be taken off files with weights, which are drawn more or less often; name "
              "data.validation");
  read_source(in, data);

  const int64_t longest = config.model.max_sequence_length;
  data.sequence_length =
      in.at_least("sequence_length", 1, std::min(longest, kDefaultSequenceLength));
  if (config.model.hidden_size > 0 && data.sequence_length > longest)  // else there is no model
    in.refuse(
        Group::conflict, "sequence_length",
        fmt::format("is {}, but the model's max_sequence_length is {}{}{}", data.sequence_length,
                    longest, config.model.shortened.empty() ? "" : ": ", config.model.shortened));
  data.documents = parse_document_mode(
      in.choice("documents", {"packed", "isolated", "separated"}, "packed"), in.path("documents"));
  data.shuffle = in.get<bool>("shuffle", true);
  in.finish();
}

namespace {

// Of a former version. It counted micro-batches, so that other ranks evaluated on other data.
void refuse_eval_batches(JsonObject& run, int64_t micro) {
  if (!run.has("eval_batches")) return;
  const int64_t batches = run.at_least("eval_batches", 0, 0);
  const std::string same =
      micro > 0 || batches == 0
          ? fmt::format("set run.eval_sequences to {}", saturating_product({batches, micro}))
          : fmt::format("set run.eval_sequences to {} times the micro-batch", batches);
  run.refuse(Group::conflict, "eval_batches",
             fmt::format("is now run.eval_sequences, which counts sequences, so that an evaluation "
                         "is the same for any ranks and micro-batches: for what it was, {}",
                         same));
}

}  // namespace

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
    for (const std::string_view key : {"eval_every", "eval_sequences"})
      in.no_effect(key,
                   "there is no validation data; set data.validation or "
                   "data.validation_fraction");
  const bool evaluates = config.data.has_validation();
  run.eval_every = in.at_least("eval_every", 1, evaluates ? kDefaultEvalEvery : 0);
  run.eval_sequences = in.at_least("eval_sequences", 0, evaluates ? kDefaultEvalSequences : 0);
  refuse_eval_batches(in, config.batch.micro);

  run.device = in.get<std::string>("device", "cpu");
  try {
    parse_device(run.device);
  } catch (const UserError& error) {
    in.refuse(Group::conflict, "device", fmt::format("is \"{}\": {}", run.device, error.what()));
  }
  if (run.device != "cuda")
    in.no_effect("sums", "it is for ranks with a card each (run.device \"cuda\"), over NCCL");
  run.library_sums = in.choice("sums", {"ordered", "library"}, "ordered") == "library";
  if (config.offload.optimizer != Tier::host)
    in.no_effect("host_step", "it is for zero_optimization.offload_optimizer with the device cpu");
  config.offload.host_step_ratio = in.get<double>("host_step", 1.0);
  if (!(config.offload.host_step_ratio >= 0 && config.offload.host_step_ratio <= 1))
    in.refuse(Group::conflict, "host_step", "must be from 0 to 1");
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
  read_recompute(in, config);
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
  const DataSource& train = data.train;
  if (!train.paths.empty()) json["train"] = train.paths;
  for (size_t i = 0; i < train.weights.size(); ++i)
    json["train"][i] = {{"path", train.paths[i]}, {"weight", train.weights[i]}};
  if (!data.validation.empty())
    json["validation"] = data.validation;
  else
    json["validation_fraction"] = data.validation_fraction;
  json["format"] = data_format_name(train.format);
  if (train.format == DataFormat::kJsonl) json["field"] = train.field;
  if (train.format == DataFormat::kText)
    json["document_unit"] = text_documents_name(train.text_documents);
  if (train.chat) {
    for (const auto& [role, around] : train.chat->roles)
      json["chat"][role] = {around.before, around.after};
    json["chat"]["between"] = train.chat->between;
  }
  if (train.skip_bad) json["skip_bad"] = true;
  if (train.special_tokens) json["special_tokens"] = true;
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
    json["eval_sequences"] = run.eval_sequences;
  }
  json["device"] = run.device;
  if (run.device == "cuda") json["sums"] = run.library_sums ? "library" : "ordered";
  if (config.offload.optimizer == Tier::host) json["host_step"] = config.offload.host_step_ratio;
  json["threads"] = run.threads;
  json["recompute"] = recompute_json(run);
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
