#include "config/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "config/dialect.h"
#include "config/key_hints.h"
#include "config/sections.h"
#include "engine/expert_load.h"

namespace onefold {

namespace {

// A trainer that prints for itself switches DeepSpeed's lines off by a number of steps without end.
int64_t read_steps_per_print(JsonObject& root) {
  constexpr int64_t kDefault = 10, kNever = INT64_MAX;
  const Json value = root.value().value("steps_per_print", Json());
  const bool endless = value.is_string() ? lower(value.get<std::string>()) == "inf"
                                         : value.is_number_float() && value.get<double>() > 1e15;
  if (!endless) return root.at_least("steps_per_print", 1, kDefault);
  root.require<Json>("steps_per_print");
  return kNever;
}

// The value in force at a path; null if there is none.
Json value_at(const Json& effective, const std::string& path) {
  const Json* at = &effective;
  const std::vector<std::string> keys = split(path, '.');
  for (const std::string& key : keys) {
    if (!at->is_object()) return nullptr;
    // DeepSpeed's stage-3 keys may stand without their prefix.
    const auto found = at->contains(key) ? at->find(key) : at->find("stage3_" + key);
    if (found == at->end()) return nullptr;
    at = &*found;
  }
  return *at;
}

// Number types are settled by a remark of their own.
bool is_precision(const std::string& path) {
  return path.starts_with("bf16") || path.starts_with("bfloat16") || path.starts_with("fp16");
}

// The folder as DeepSpeed splits it.
Json monitor_json(const std::string& folder) {
  const size_t slash = folder.rfind('/');
  const std::string path = slash == std::string::npos ? "" : folder.substr(0, slash);
  return {{"enabled", true}, {"output_path", path}, {"job_name", folder.substr(slash + 1)}};
}

void note_report(const JsonReport& report, Config& config) {
  ConfigNotes& notes = config.notes;
  notes.idle = report.idle;
  const Json effective = config.effective();
  for (const std::string& path : report.autos) {
    const Json value = value_at(effective, path);
    if (path == "scheduler.params.total_num_steps")
      notes.filled.push_back(path + " the run's");
    else if (value == "auto")
      notes.filled.push_back(path + " one unit");
    else if (!value.is_null())
      notes.filled.push_back(fmt::format("{} {}", path, value.dump()));
    else if (!is_precision(path))
      notes.idle.push_back(path);
  }
}

}  // namespace

namespace {

// Keys at the top that stand elsewhere, or have another name here.
void refuse_misplaced(JsonObject& root) {
  const Json unread = root.unread().value();
  for (const auto& [name, value] : unread.items())
    if (const std::string key = key_known_as(name); !key.empty() && key != name && root.has(name)) {
      root.refuse(JsonReport::Group::unknown, name,
                  fmt::format("is not a known key at the top: write {}", key));
      root.require<Json>(name);
    }
}

}  // namespace

Config Config::from_json(const Json& root_json, int64_t world_size) {
  JsonReport report;
  JsonObject root(root_json, "", &report);
  Config config;
  report.collect([&] { read_model(root, config); });
  report.collect([&] { read_precision(root, config); });
  read_deepspeed_keys(root, config);
  read_clipping(root, config);
  read_zero(root, report, config);
  read_aio(root, config.offload);
  if (config.clip_rule.adaptive && config.offload.parameters != Tier::device)
    root.refuse(JsonReport::Group::missing, "clipping",
                "is adaptive, which needs the weights where gradients are: leave out "
                "zero_optimization.offload_param");
  report.collect([&] { read_optimizer(root, config); });
  if (config.precision.moments == DType::u8 && !config.optimizer.takes_codes())
    root.refuse(
        JsonReport::Group::missing, "data_types",
        fmt::format("asks for moments in 8 bits, which AdamW and Adam have, and {} does not",
                    config.optimizer.freeze_step > 0
                        ? "optimizer.params.freeze_step"
                        : optimizer_json(config)["type"].get<std::string>()));
  if (config.precision.moments == DType::bf16 &&
      config.optimizer.type == OptimizerSpec::Type::adafactor)
    root.refuse(JsonReport::Group::missing, "data_types",
                "asks for moments in bf16; Adafactor's factors are fp32, and small");
  config.steps_per_print = read_steps_per_print(root);
  config.wall_clock_breakdown = root.get<bool>("wall_clock_breakdown", false);
  report.collect([&] { read_data(root, config); });
  report.collect([&] { read_mesh(root, world_size, config); });
  check_partitioned_activations(root, config);
  report.collect([&] { config.batch = read_batch(root, config.mesh.data * config.mesh.expert); });
  report.collect([&] { read_run(root, config); });
  report.collect([&] { read_lora(root, config); });
  report.collect([&] { read_compression(root, config); });
  report.collect([&] { read_delay(root, config); });
  refuse_misplaced(root);
  root.finish();
  report.raise();
  settle_context(config);
  check_mesh(config);
  if (const std::string why = obstacle_to_experts(config.model, engine_options(config));
      !why.empty())
    user_error("{}", why);
  settle_batch(config);
  apply_batch_scaling(config);
  check_sizes(config);
  note_report(report, config);
  // Whether warm-up and decay fit can be told now if the length is known, and else when the data
  // is.
  if (config.run.steps > 0 || config.run.tokens > 0)
    Schedule(config.schedule, config.learning_rate, config.total_steps(0));
  return config;
}

void Config::require_training() const {
  if (data.train.paths.empty())
    user_error("data.train is missing: name the file or files to train on");
  if (model.lora.enabled() && model_weights.empty())
    user_error(
        "lora adapts weights, and the model has none: name the folder of a Hugging Face model "
        "(model, or model.weights)");
  if (run.steps == 0 && run.epochs == 0 && run.tokens == 0)
    user_error("run.steps, run.epochs or run.tokens is missing: one must say how long to train");
}

int64_t Config::total_steps(int64_t sequences) const {
  if (run.steps > 0) return run.steps;
  if (run.tokens > 0) {
    const int64_t step_tokens = batch.global * data.sequence_length;
    return run.tokens / step_tokens + (run.tokens % step_tokens != 0);
  }
  const double samples = run.epochs * static_cast<double>(sequences);
  const double whole_steps = std::floor(samples / static_cast<double>(batch.global));
  if (whole_steps > static_cast<double>(most_steps()))
    user_error("run.epochs is {}; of {} training sequences the largest is {}", run.epochs,
               sequences,
               std::floor(static_cast<double>(most_steps()) * static_cast<double>(batch.global) /
                          static_cast<double>(sequences)));
  const auto steps = static_cast<int64_t>(whole_steps);
  if (steps < 1)
    user_error(
        "run.epochs is {}: of {} training sequences that is less than one batch of {}; train "
        "longer, "
        "or lower train_batch_size or data.sequence_length",
        run.epochs, sequences, batch.global);
  return steps;
}

Json Config::effective() const {
  Json json;
  json["model"] = model.to_json();
  if (!model_weights.empty()) json["model"]["weights"] = model_weights;
  if (model.lora.enabled()) json["lora"] = lora_section(*this);
  json["data"] = data_json(data);
  json["run"] = run_json(*this);
  if (mesh.others() > 1) json["mesh"] = mesh_json(mesh);
  if (mesh.context > 1) json["context"] = {{"method", context_method}};
  if (mesh.pipeline > 1) json["pipeline"] = pipeline_json(pipeline);
  json["train_batch_size"] = batch.global;
  json["train_micro_batch_size_per_gpu"] = batch.micro;
  json["gradient_accumulation_steps"] = batch.accumulation;
  json["gradient_clipping"] = clip_rule.adaptive ? 0 : gradient_clipping;
  if (Json clipping = clipping_json(*this); !clipping.is_null()) json["clipping"] = clipping;
  add_precision_json(*this, json);
  json["zero_optimization"] = zero_json(zero, offload);
  if (offload.uses(Tier::disk))
    json["aio"] = {{"block_size", offload.requests.bytes}, {"queue_depth", offload.requests.depth}};
  if (Json section = compression_json(*this); !section.is_null()) json["compression"] = section;
  if (Json section = delay_json(delay); !section.is_null()) json["delay"] = section;
  json["optimizer"] = optimizer_json(*this);
  json["scheduler"] = schedule_json(schedule, learning_rate);
  json["steps_per_print"] = steps_per_print;
  json["wall_clock_breakdown"] = wall_clock_breakdown;
  if (!run.tensorboard_folder.empty()) json["tensorboard"] = monitor_json(run.tensorboard_folder);
  if (!run.csv_folder.empty()) json["csv_monitor"] = monitor_json(run.csv_folder);
  return json;
}

EngineOptions engine_options(const Config& config) {
  return {.device = config.run.device,
          .library_sums = config.run.library_sums,
          .tensor = static_cast<int>(config.mesh.tensor),
          .sequence_parallel = config.mesh.sequence_parallel,
          .overlap_chunks = static_cast<int>(config.mesh.overlap_chunks),
          .context = static_cast<int>(config.mesh.context),
          .context_method =
              config.context_method == "ring" ? ContextMethod::ring : ContextMethod::ulysses,
          .expert = static_cast<int>(config.mesh.expert),
          .expert_bound = config.mesh.expert_bound,
          .pipeline = config.pipeline,
          .threads = config.run.threads,
          .seed = config.run.seed,
          .micro_batch = config.batch.micro,
          .sequence = config.data.sequence_length,
          .documents = config.data.documents == DocumentMode::kIsolated,
          .micros = static_cast<int>(config.batch.accumulation),
          .order = config.run.accumulate == "unit_first" ? Order::unit_first : Order::micro_first,
          .recompute = config.run.recompute,
          .frozen = config.run.freeze,
          .zero = config.zero,
          .offload = config.offload,
          .compression = config.compression,
          .local = config.delay.local,
          .stale = config.delay.stale,
          .optimizer = engine_optimizer(config),
          .precision = config.precision,
          .loss_scale = config.loss_scale,
          .skip_overflow = config.skip_overflow,
          .clipping = config.gradient_clipping,
          .clip_rule = config.clip_rule,
          .memory_limit_bytes =
              config.run.memory_bytes > 0 ? config.run.memory_bytes : Ledger::kNoLimit};
}

void apply_override(Json& root, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0)
    user_error("--set {}: write it as path=value, like --set optimizer.params.lr=3e-4", assignment);
  const std::string path = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  const std::vector<std::string> keys = split(path, '.');
  if (std::any_of(keys.begin(), keys.end(), [](const std::string& key) { return key.empty(); }))
    user_error("--set {}: the path \"{}\" has an empty part", assignment, path);

  const Json value = Json::accept(text) ? Json::parse(text) : Json(text);
  Json* at = &root;
  std::string walked;
  for (const std::string& key : keys) {
    if (at->is_null()) *at = Json::object();
    if (!at->is_object()) {
      const bool preset = walked == "model" && at->is_string();
      user_error("--set {}: {} is {} ({}), not an object{}", assignment,
                 walked.empty() ? "the document" : walked, json_kind(*at), brief_json(*at),
                 preset ? "; write it as {\"preset\": ...} to change parts of a preset" : "");
    }
    // Nothing to remove. A last key is set to null all the same, which says whether there is such
    // a key at all.
    if (value.is_null() && !at->contains(key) && &key != &keys.back()) return;
    walked += (walked.empty() ? "" : ".") + key;
    if (value.is_null() && &key == &keys.back() && at->contains(key)) {
      at->erase(key);
      return;
    }
    at = &(*at)[key];
  }
  *at = value;
}

namespace {

// A pipe gives its text once, and a command may ask for a configuration more than once.
std::string text_of(const std::string& path) {
  static std::map<std::string, std::string, std::less<>> of_pipes;
  std::error_code ignored;
  if (!std::filesystem::is_fifo(path, ignored)) return read_file(path);
  const auto found = of_pipes.find(path);
  return found != of_pipes.end() ? found->second : of_pipes[path] = read_file(path);
}

Json read_dialect(const std::string& path) {
  return parse_json(without_dialect(text_of(path)), path);
}

}  // namespace

CommOptions comm_options(const std::string& path, std::span<const std::string> overrides) {
  CommOptions options;
  try {
    Json root = read_dialect(path);
    for (const std::string& assignment : overrides) apply_override(root, assignment);
    JsonObject run = JsonObject(root, "").object("run");
    options.timeout_seconds = run.positive("timeout", RunConfig{}.timeout_seconds);
    options.check = run.get<bool>("check_collectives", RunConfig{}.check_collectives);
  } catch (const UserError&) {
  }
  return options;
}

Json read_config(const std::string& path, std::span<const std::string> overrides) {
  Json root = read_dialect(path);
  for (const std::string& assignment : overrides) apply_override(root, assignment);
  return root;
}

Config config_of(const Json& root, const std::string& path, int64_t world_size) {
  try {
    return Config::from_json(root, world_size);
  } catch (const UserError& error) {
    user_error("{}: {}", path, error.what());
  }
}

Config load_config(const std::string& path, std::span<const std::string> overrides,
                   int64_t world_size) {
  return config_of(read_config(path, overrides), path, world_size);
}

}  // namespace onefold
