// "scheduler": our schedules and DeepSpeed's, as they are written.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "config/sections.h"

namespace onefold {
namespace {

struct TypeName {
  std::string_view name;
  ScheduleType type;
};

constexpr std::array<TypeName, 7> kTypes = {{
    {"constant", ScheduleType::constant},
    {"linear", ScheduleType::linear},
    {"cosine", ScheduleType::cosine},
    {"wsd", ScheduleType::wsd},
    {"WarmupLR", ScheduleType::warmup_lr},
    {"WarmupDecayLR", ScheduleType::warmup_decay_lr},
    {"WarmupCosineLR", ScheduleType::warmup_cosine_lr},
}};

constexpr std::array<std::string_view, 3> kDecayNames = {"linear", "cosine", "sqrt"};

std::string_view type_name(ScheduleType type) {
  for (const TypeName& entry : kTypes)
    if (entry.type == type) return entry.name;
  internal_error("schedule type {} has no name", static_cast<int>(type));
}

ScheduleType schedule_type(JsonObject& in) {
  const std::string name = in.require<std::string>("type");
  if (name == "LRRangeTest" || name == "OneCycle")
    in.fail("type", fmt::format("is \"{}\", a DeepSpeed schedule that is not supported", name));
  std::vector<std::string> names;
  for (const TypeName& entry : kTypes) {
    if (entry.name == name) return entry.type;
    names.emplace_back(entry.name);
  }
  in.fail("type", fmt::format("must be one of {}, not \"{}\"{}", join(names, ", "), name,
                              did_you_mean(name, names)));
}

// A key that another schedule has: not unknown, but without effect on this one.
void refuse_other_keys(JsonObject& params, ScheduleType type) {
  static constexpr std::array<std::string_view, 13> kAll = {
      "warmup_steps",  "total_steps",      "min_lr_ratio",        "decay_steps", "decay_type",
      "warmup_min_lr", "warmup_max_lr",    "warmup_num_steps",    "warmup_type", "total_num_steps",
      "cos_min_ratio", "warmup_min_ratio", "last_batch_iteration"};
  for (const std::string_view key : kAll)
    params.no_effect(key, fmt::format("the schedule {} does not have it", type_name(type)));
}

void read_ours(JsonObject& params, ScheduleConfig& config) {
  config.warmup_steps = params.at_least("warmup_steps", 0, 0);
  if (config.type == ScheduleType::constant) return;
  config.total_steps = params.at_least("total_steps", 1, 0);
  config.min_lr_ratio = params.ratio("min_lr_ratio", 0);
  if (config.type != ScheduleType::wsd) return;
  config.decay_steps = params.at_least("decay_steps", 1, 0);
  const std::string decay = params.choice("decay_type", {"linear", "cosine", "sqrt"}, "linear");
  config.decay_type = static_cast<DecayType>(
      std::find(kDecayNames.begin(), kDecayNames.end(), decay) - kDecayNames.begin());
}

// WarmupLR rises to the optimizer's rate unless told otherwise, WarmupDecayLR to 0.001 (DeepSpeed's
// signatures). The optimizer's own rate is then never used, so one that differs is a mistake, which
// DeepSpeed does not report.
void read_peak(JsonObject& params, ScheduleType type, double& lr, bool lr_given) {
  constexpr double kWarmupDecayDefault = 0.001;
  // "auto" is what trainers fill with their learning rate.
  const bool is_auto = params.value().contains("warmup_max_lr") && !params.has("warmup_max_lr");
  double peak = lr;
  if (type == ScheduleType::warmup_decay_lr && !is_auto) peak = kWarmupDecayDefault;
  const bool peak_given = params.has("warmup_max_lr");
  peak = params.positive("warmup_max_lr", peak);
  if (lr_given && peak != lr)
    user_error(
        "optimizer.params.lr is {}, but {} rises to {} {}, and the optimizer's rate would have no "
        "effect; give both the same value",
        lr, type_name(type), peak_given ? "its warmup_max_lr" : "DeepSpeed's default of", peak);
  lr = peak;
}

void read_deepspeed(JsonObject& params, ScheduleConfig& config, double& lr, bool lr_given) {
  params.allow_auto({"warmup_min_lr", "warmup_max_lr", "total_num_steps"});
  if (config.type == ScheduleType::warmup_cosine_lr) {
    config.warmup_min_ratio = params.ratio("warmup_min_ratio", 0);
    config.min_lr_ratio = params.ratio("cos_min_ratio", 0.0001);
  } else {
    config.warmup_min_lr = params.non_negative("warmup_min_lr", 0);
    read_peak(params, config.type, lr, lr_given);
  }
  config.warmup_steps = params.at_least("warmup_num_steps", 1, 1000);
  config.log_warmup = params.choice("warmup_type", {"log", "linear"}, "log") == "log";
  if (config.type != ScheduleType::warmup_lr)
    config.total_steps = params.at_least("total_num_steps", 1, 0);
  if (params.has("last_batch_iteration") && params.require<int64_t>("last_batch_iteration") != -1)
    params.fail("last_batch_iteration", "must be -1 or absent: a resumed run knows its step");
}

}  // namespace

ScheduleConfig read_schedule(JsonObject& scheduler, double& lr, bool lr_given) {
  ScheduleConfig config;
  config.type = schedule_type(scheduler);
  JsonObject params = scheduler.object("params");
  if (config.is_deepspeed())
    read_deepspeed(params, config, lr, lr_given);
  else
    read_ours(params, config);
  // Everything this type has is read by now; what is left of the others' keys is without effect.
  JsonObject rest = params.unread();
  refuse_other_keys(rest, config.type);
  params.finish();
  return config;
}

Json schedule_json(const ScheduleConfig& config, double peak_lr) {
  Json params = Json::object();
  if (config.is_deepspeed()) {
    if (config.type == ScheduleType::warmup_cosine_lr) {
      params["warmup_min_ratio"] = config.warmup_min_ratio;
      params["cos_min_ratio"] = config.min_lr_ratio;
    } else {
      params["warmup_min_lr"] = config.warmup_min_lr;
      params["warmup_max_lr"] = peak_lr;
    }
    params["warmup_num_steps"] = config.warmup_steps;
    params["warmup_type"] = config.log_warmup ? "log" : "linear";
    if (config.type != ScheduleType::warmup_lr && config.total_steps > 0)
      params["total_num_steps"] = config.total_steps;
  } else {
    params["warmup_steps"] = config.warmup_steps;
    if (config.type != ScheduleType::constant) {
      if (config.total_steps > 0) params["total_steps"] = config.total_steps;
      params["min_lr_ratio"] = config.min_lr_ratio;
    }
    if (config.type == ScheduleType::wsd) {
      if (config.decay_steps > 0) params["decay_steps"] = config.decay_steps;
      params["decay_type"] = kDecayNames[static_cast<size_t>(config.decay_type)];
    }
  }
  return {{"type", type_name(config.type)}, {"params", params}};
}

}  // namespace onefold
