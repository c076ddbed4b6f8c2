#include "run/resume.h"

#include <algorithm>

#include "base/text.h"
#include "inspect/parameter_source.h"

namespace onefold {
namespace {

// What may change without changing what is learned: where state lives, how it travels, what is
// printed and kept. Data files may move; whether they are the same is told by their fingerprint.
constexpr std::string_view kHarmless[] = {"mesh",
                                          "context",
                                          "pipeline",
                                          "zero_optimization",
                                          "train_micro_batch_size_per_gpu",
                                          "gradient_accumulation_steps",
                                          "steps_per_print",
                                          "wall_clock_breakdown",
                                          "data.train",
                                          "data.validation",
                                          "data.tokenizer",
                                          "model.weights",
                                          "run.output",
                                          "run.threads",
                                          "run.device",
                                          "run.memory",
                                          "run.recompute",
                                          "run.accumulate",
                                          "run.products",  // of a former version
                                          "run.timeout",
                                          "run.check_collectives",
                                          "run.save_every",
                                          "run.save_minutes",
                                          "run.keep_last",
                                          "run.keep_every",
                                          "run.save_failures",
                                          "run.tensorboard",
                                          "tensorboard",
                                          "csv_monitor",
                                          "run.eval_every",
                                          "run.eval_sequences",
                                          "run.eval_batches",  // of a former version
                                          "data.format",
                                          "data.document_unit"};

bool harmless(const std::string& path) {
  for (const std::string_view key : kHarmless)
    if (path == key || (path.starts_with(key) && path[key.size()] == '.')) return true;
  return false;
}

// Files may move, and how often they are drawn stays with their places in the list.
Json weights_of_files(const Json& files) {
  Json weights;
  for (const Json& file : files.is_array() ? files : Json::array())
    if (file.is_object()) weights.push_back(file.value("weight", 1.0));
  return weights;
}

void compare(const Json& saved, const Json& now, const std::string& path,
             std::vector<std::string>& changes) {
  if (path == "data.train")
    if (const Json were = weights_of_files(saved), are = weights_of_files(now); were != are)
      changes.push_back(fmt::format("data.train: weights {}, were {}",
                                    are.is_null() ? "left out" : are.dump(),
                                    were.is_null() ? "left out" : were.dump()));
  if (harmless(path) || saved == now) return;
  if (!saved.is_object() || !now.is_object()) {
    changes.push_back(fmt::format("{}: {}, was {}", path,
                                  now.is_null() ? "left out" : brief_json(now),
                                  saved.is_null() ? "left out" : brief_json(saved)));
    return;
  }
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  for (const auto& [key, value] : saved.items())
    compare(value, now.value(key, Json()), below(key), changes);
  for (const auto& [key, value] : now.items())
    if (!saved.contains(key)) compare(Json(), value, below(key), changes);
}

// This rank's part of checking that the files are what was written.
std::string problem_of(const std::string& path, int rank, int ranks,
                       std::unique_ptr<Checkpoint>& checkpoint) {
  try {
    checkpoint = std::make_unique<Checkpoint>(path);
    const Json& run = checkpoint->manifest().run;
    if (!run.contains("position") || !run["position"].is_number_integer())
      user_error("{}: the manifest's run has no position", path);
    const auto files = static_cast<int>(checkpoint->manifest().files.size());
    for (int file = rank; file < files; file += ranks) checkpoint->verify(file);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// What every rank finds, for all have the same manifest.
template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw AgreedError(fmt::format(format, std::forward<Args>(args)...));
}

// Every state that the engine has of a tensor must be there, and be one that can be read.
void require_states(const Checkpoint& checkpoint, const std::string& unit,
                    const std::string& tensor, const std::vector<std::string>& needed) {
  const auto& tensors = checkpoint.manifest().tensors;
  const CheckpointTensor& saved = tensors.at(tensor);
  for (const std::string& name : needed) {
    if (const CheckpointState* const state = saved.state(name)) {
      if (const std::string obstacle = state->obstacle(); !obstacle.empty())
        refuse("{}: {}: {}", checkpoint.folder(), tensor, obstacle);
      continue;
    }
    // An optimizer that keeps state has kept it of every unit that was trained.
    const bool frozen =
        saved.states.size() == 1 && std::any_of(tensors.begin(), tensors.end(),
                                                [](auto& t) { return t.second.states.size() > 1; });
    if (frozen)
      refuse(
          "{0} has no optimizer state of unit {1}, which run.freeze kept from training when it was "
          "saved, and does not now. Freeze it again, or start a new run from the weights: onefold "
          "export {0} FOLDER, then \"model\": \"FOLDER\" without --resume",
          checkpoint.folder(), unit);
    refuse("{} has no {} of {}: it was saved with another optimizer", checkpoint.folder(), name,
           tensor);
  }
}

// A tensor of another shape would be read as if it were cut off.
void require_fit(Engine& engine, const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.manifest().tensors;
  for (size_t u = 0; u < engine.model().units.size(); ++u) {
    const Unit& unit = *engine.model().units[u];
    for (const ParamSpec& param : engine.state().whole_params(static_cast<int>(u))) {
      if (!is_saved(engine.model().spec, param)) continue;
      std::vector<std::string> needed;
      for (const OptimizerState& state : engine.state().saved_states(static_cast<int>(u), param))
        if (state.block == 1) needed.push_back(state.name);  // scales follow from the values
      const auto found = tensors.find(param.name);
      if (found == tensors.end())
        refuse("{} has no tensor {}: it belongs to another model", checkpoint.folder(), param.name);
      if (found->second.shape != file_shape(param))
        refuse("{}: {} has the shape {}, the model needs {}: it belongs to another model",
               checkpoint.folder(), param.name, shape_text(found->second.shape),
               shape_text(file_shape(param)));
      require_states(checkpoint, unit.name(), param.name, needed);
    }
  }
}

// Absent from checkpoints of earlier versions, which had none.
std::optional<LossScale::State> saved_scale(const Json& run) {
  if (!run.contains("loss_scale")) return {};
  JsonObject in(run["loss_scale"], "run.loss_scale");
  LossScale::State state;
  state.scale = in.require<double>("scale");
  state.steps = in.require<int64_t>("steps");
  state.last_overflow = in.require<int64_t>("last_overflow");
  state.hysteresis = in.require<int64_t>("hysteresis");
  state.skipped = in.require<int64_t>("skipped");
  // Earlier checkpoints have it in the configuration alone, as 0.
  state.followed = in.get<bool>(
      "followed", run.value("/configuration/fp16/loss_scale"_json_pointer, Json(1)) == 0);
  in.finish();
  return state;
}

// Those that a percentile is taken of, or squares by unit; none where none were saved.
std::vector<double> saved_numbers(const Json& run, const char* key) {
  if (!run.contains(key)) return {};
  return JsonObject(run, "run").get<std::vector<double>>(key, {});
}

// Each rank's own; on another number of ranks every so manieth of the saved ones, so that their sum
// over ranks stays what it was. Those that were not saved begin as zeros.
void load_own_states(Engine& engine, const Checkpoint& checkpoint) {
  engine.state().write_own_states([&](const std::string& state, const RankState::OwnPlace& place,
                                      const ParamSpec& param, int64_t first, std::span<float> dst) {
    std::fill(dst.begin(), dst.end(), 0.0f);
    const CheckpointTensor& tensor = checkpoint.manifest().tensors.at(param.name);
    std::vector<float> part(dst.size());
    for (int rank = place.rank; tensor.state(own_state_name(state, rank)); rank += place.ranks) {
      checkpoint.read(own_state_name(state, rank), param.name, first, part);
      for (size_t i = 0; i < dst.size(); ++i) dst[i] += part[i];
    }
  });
}

// Of one rank, and of a run without momentum_correction, nothing is.
bool momentum_is_saved(const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.manifest().tensors;
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& tensor) {
    return tensor.second.state(own_state_name(CompressionOptions::kVelocity, 0)) != nullptr;
  });
}

void load(Engine& engine, const Checkpoint& checkpoint) {
  require_fit(engine, checkpoint);
  const bool local = engine.options().local.on();
  const bool stale = engine.options().stale.on();
  if ((local || stale) && static_cast<int>(checkpoint.manifest().files.size()) != engine.ranks())
    refuse("{} is of {} ranks that {}, and goes on with as many", checkpoint.folder(),
           checkpoint.manifest().files.size(),
           local ? "step by themselves (delay.local_steps)"
                 : "have old weights of their own (delay.staleness)");
  const auto read = [&](const std::string& state, const ParamSpec& param, int64_t first,
                        std::span<float> dst) {
    checkpoint.read(local ? own_state_name(kLocal + state, engine.rank()) : state, param.name,
                    first, dst);
  };
  engine.state().write_parameters(
      [&](const ParamSpec& param, int64_t first, std::span<float> dst) {
        read(kParameters, param, first, dst);
      },
      Device::Calls::in_order, true);
  engine.state().write_optimizer(read);
  load_own_states(engine, checkpoint);
  if (engine.options().compression.corrects_momentum && !momentum_is_saved(checkpoint))
    engine.begin_momentum_again();
  const Json& run = checkpoint.manifest().run;
  const std::vector<double> norms = engine.options().clip_rule.percentile > 0
                                        ? saved_numbers(run, "gradient_norms")
                                        : std::vector<double>();
  if (engine.options().compression.adaptive)
    if (std::vector<double> squares = saved_numbers(run, "unit_squares");
        squares.size() == engine.model().units.size())
      engine.executor().set_unit_squares(std::move(squares));
  engine.set_rates_since_sum(JsonObject(run, "run").get<double>("rates_since_sum", 0));
  engine.resume_after(checkpoint.manifest().step, saved_scale(run), norms);
}

}  // namespace

std::vector<std::string> changes_that_matter(const Json& saved, const Json& now) {
  std::vector<std::string> changes;
  compare(saved, now, "", changes);
  return changes;
}

bool same_data(const Json& saved_run, const std::string& hash, const std::string& fingerprint) {
  const Json saved = saved_run.value("/data/xxh3"_json_pointer, Json());
  // Of the same tokens, weights make other sequences; the fingerprint is of these.
  if (saved.is_string() && !hash.empty() && saved != hash) return false;
  return saved_run.value("/data/fingerprint"_json_pointer, Json()) == fingerprint;
}

// Where only one of the two has adapters, the configurations differ.
bool same_base(const Json& saved_run, const std::optional<LoraRecord>& now) {
  const Json saved = saved_run.value("/lora/base/fingerprint"_json_pointer, Json());
  return !now || saved.is_null() || saved == now->fingerprint;
}

Resumed resume(Engine& engine, const std::vector<CheckpointFolder::Entry>& candidates) {
  Resumed resumed;
  for (const CheckpointFolder::Entry& candidate : candidates) {
    std::unique_ptr<Checkpoint> checkpoint;
    const std::string mine = problem_of(candidate.path, engine.rank(), engine.ranks(), checkpoint);
    std::string problem;
    for (const std::string& of_rank : engine.control().collect("check " + candidate.path, mine))
      if (problem.empty()) problem = of_rank;
    if (!problem.empty()) {
      resumed.remarks.push_back(problem);
      resumed.passed_over.push_back(candidate);
      continue;
    }
    load(engine, *checkpoint);
    resumed.step = checkpoint->manifest().step;
    resumed.position = checkpoint->manifest().run.at("position").get<int64_t>();
    resumed.path = candidate.path;
    resumed.bytes_read = checkpoint->bytes_read();
    return resumed;
  }
  refuse("no checkpoint can be resumed from:\n  {}", join(resumed.remarks, "\n  "));
}

}  // namespace onefold
