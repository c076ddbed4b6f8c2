// "scheduler": our schedules and DeepSpeed's, as they are written.
#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "config/sections.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

struct TypeName {
  std::string_view name;
  ScheduleType type;
};

constexpr std::array<TypeName, 9> kTypes = {{
    {"constant", ScheduleType::constant},
    {"linear", ScheduleType::linear},
    {"cosine", ScheduleType::cosine},
    {"wsd", ScheduleType::wsd},
    {"WarmupLR", ScheduleType::warmup_lr},
    {"WarmupDecayLR", ScheduleType::warmup_decay_lr},
    {"WarmupCosineLR", ScheduleType::warmup_cosine_lr},
    {"OneCycle", ScheduleType::one_cycle},
    {"LRRangeTest", ScheduleType::lr_range_test},
}};

constexpr std::array<std::string_view, 3> kDecayNames = {"linear", "cosine", "sqrt"};

std::string_view type_name(ScheduleType type) {
  for (const TypeName& entry : kTypes)
    if (entry.type == type) return entry.name;
  internal_error("schedule type {} has no name", static_cast<int>(type));
}

std::optional<ScheduleType> schedule_type(JsonObject& in) {
  const std::string name = in.require<std::string>("type");
  std::vector<std::string> names;
  for (const TypeName& entry : kTypes) {
    if (entry.name == name) return entry.type;
    names.emplace_back(entry.name);
  }
  in.refuse(Group::unknown, "type",
            fmt::format("must be one of {}, not \"{}\"{}", join(names, ", "), name,
                        did_you_mean(name, names)));
  return std::nullopt;
}

// A key that another schedule has: not unknown, but without effect on this one.
void refuse_other_keys(JsonObject& params, ScheduleType type, const Json& left) {
  static constexpr std::array<std::string_view, 29> kAll = {"warmup_steps",
                                                            "total_steps",
                                                            "min_lr_ratio",
                                                            "decay_steps",
                                                            "decay_type",
                                                            "warmup_min_lr",
                                                            "warmup_max_lr",
                                                            "warmup_num_steps",
                                                            "warmup_type",
                                                            "total_num_steps",
                                                            "cos_min_ratio",
                                                            "warmup_min_ratio",
                                                            "last_batch_iteration",
                                                            "cycle_min_lr",
                                                            "cycle_max_lr",
                                                            "decay_lr_rate",
                                                            "cycle_first_step_size",
                                                            "cycle_second_step_size",
                                                            "cycle_first_stair_count",
                                                            "cycle_second_stair_count",
                                                            "decay_step_size",
                                                            "cycle_momentum",
                                                            "cycle_min_mom",
                                                            "cycle_max_mom",
                                                            "decay_mom_rate",
                                                            "lr_range_test_min_lr",
                                                            "lr_range_test_step_size",
                                                            "lr_range_test_step_rate",
                                                            "lr_range_test_staircase"};
  for (const std::string_view key : kAll)
    if (left.contains(key))
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

// WarmupLR rises to the optimizer's rate unless told otherwise, WarmupDecayLR to 0.001: DeepSpeed's
// signatures. "auto" is what trainers fill with their learning rate.
double read_peak(JsonObject& params, ScheduleType type, double lr) {
  constexpr double kWarmupDecayDefault = 0.001;
  const bool own = type == ScheduleType::warmup_decay_lr && !params.is_auto("warmup_max_lr");
  return params.positive("warmup_max_lr", own ? kWarmupDecayDefault : lr);
}

void read_warmup(JsonObject& params, ScheduleConfig& config, double& lr) {
  params.allow_auto({"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"});
  if (config.type == ScheduleType::warmup_cosine_lr) {
    config.warmup_min_ratio = params.ratio("warmup_min_ratio", 0);
    config.min_lr_ratio = params.ratio("cos_min_ratio", 0.0001);
  } else {
    config.warmup_min_lr = params.non_negative("warmup_min_lr", 0);
    lr = read_peak(params, config.type, lr);
  }
  // Hugging Face's trainer warms up only if it is told to.
  config.warmup_steps =
      params.at_least("warmup_num_steps", 1, params.is_auto("warmup_num_steps") ? 1 : 1000);
  config.log_warmup = params.choice("warmup_type", {"log", "linear"}, "log") == "log";
  if (config.type != ScheduleType::warmup_lr)
    config.total_steps = params.at_least("total_num_steps", 1, 0);
}

void read_one_cycle(JsonObject& params, OneCycleConfig& cycle, double& lr) {
  for (const std::string_view key : {"cycle_min_lr", "cycle_max_lr"})
    if (!params.has(key)) params.refuse(Group::conflict, key, "is missing: OneCycle needs it");
  cycle.min_lr = params.non_negative("cycle_min_lr", 0);
  lr = params.positive("cycle_max_lr", lr);
  cycle.first_steps = params.at_least("cycle_first_step_size", 1, 2000);
  cycle.second_steps = params.at_least("cycle_second_step_size", 0, cycle.first_steps);
  cycle.first_stairs = params.at_least("cycle_first_stair_count", 0, 0);
  cycle.second_stairs = params.at_least("cycle_second_stair_count", 0, cycle.first_stairs);
  cycle.decay_steps = params.at_least("decay_step_size", 0, 0);
  cycle.decay_lr_rate = params.non_negative("decay_lr_rate", 0);
  cycle.momentum = params.get<bool>("cycle_momentum", true);
  cycle.min_momentum = params.fraction("cycle_min_mom", 0.8);
  cycle.max_momentum = params.fraction("cycle_max_mom", 0.9);
  cycle.decay_momentum_rate = params.non_negative("decay_mom_rate", 0);
}

void read_range_test(JsonObject& params, RangeTestConfig& test, double& lr) {
  lr = params.positive("lr_range_test_min_lr", 1e-3);
  test.step_size = params.at_least("lr_range_test_step_size", 1, 2000);
  test.step_rate = params.non_negative("lr_range_test_step_rate", 1);
  test.staircase = params.get<bool>("lr_range_test_staircase", false);
}

void read_deepspeed(JsonObject& params, ScheduleConfig& config, double& lr) {
  if (config.type == ScheduleType::one_cycle)
    read_one_cycle(params, config.cycle, lr);
  else if (config.type == ScheduleType::lr_range_test)
    read_range_test(params, config.range_test, lr);
  else
    read_warmup(params, config, lr);
  if (params.get<int64_t>("last_batch_iteration", -1) != -1)
    params.refuse(Group::conflict, "last_batch_iteration",
                  "must be -1 or absent: a resumed run knows its step");
}

Json one_cycle_json(const OneCycleConfig& cycle, double peak_lr) {
  Json params = {{"cycle_min_lr", cycle.min_lr},
                 {"cycle_max_lr", peak_lr},
                 {"cycle_first_step_size", cycle.first_steps},
                 {"cycle_second_step_size", cycle.second_steps},
                 {"cycle_first_stair_count", cycle.first_stairs},
                 {"cycle_second_stair_count", cycle.second_stairs},
                 {"decay_step_size", cycle.decay_steps},
                 {"decay_lr_rate", cycle.decay_lr_rate},
                 {"cycle_momentum", cycle.momentum}};
  if (cycle.momentum)
    params.update(Json{{"cycle_min_mom", cycle.min_momentum},
                       {"cycle_max_mom", cycle.max_momentum},
                       {"decay_mom_rate", cycle.decay_momentum_rate}});
  return params;
}

Json warmup_json(const ScheduleConfig& config, double peak_lr) {
  Json params;
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
  return params;
}

Json deepspeed_json(const ScheduleConfig& config, double peak_lr) {
  if (config.type == ScheduleType::one_cycle) return one_cycle_json(config.cycle, peak_lr);
  if (config.type == ScheduleType::lr_range_test)
    return {{"lr_range_test_min_lr", peak_lr},
            {"lr_range_test_step_size", config.range_test.step_size},
            {"lr_range_test_step_rate", config.range_test.step_rate},
            {"lr_range_test_staircase", config.range_test.staircase}};
  return warmup_json(config, peak_lr);
}

}  // namespace

ScheduleConfig read_schedule(JsonObject& scheduler, double& lr) {
  ScheduleConfig config;
  const std::optional<ScheduleType> type = schedule_type(scheduler);
  JsonObject params = scheduler.object("params");
  if (!type) return config;
  config.type = *type;
  if (config.is_deepspeed())
    read_deepspeed(params, config, lr);
  else
    read_ours(params, config);
  // Everything this type has is read by now; what is left of the others' keys is without effect.
  const Json left = params.unread().value();
  refuse_other_keys(params, config.type, left);
  params.finish();
  return config;
}

Json schedule_json(const ScheduleConfig& config, double peak_lr) {
  Json params = Json::object();
  if (config.is_deepspeed()) {
    params = deepspeed_json(config, peak_lr);
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
