// The pieces of Config::from_json, one for each part of the file. Private to src/config.
#pragma once

#include <span>
#include <string_view>

#include "config/config.h"

namespace onefold {

// Refuses DeepSpeed's keys that are known and not supported, unless their value says "off".
void read_deepspeed_keys(JsonObject& root);
void read_zero(JsonObject& root, Config& config);
// A key of zero_optimization for a detail of DeepSpeed that is fixed here.
struct SettledKey {
  std::string_view name;
  const char* settled;  // the value, as JSON, that describes Onefold; it and null are accepted
  std::string_view reason;
};
std::span<const SettledKey> settled_zero_keys();
BatchConfig read_batch(JsonObject& root, int64_t world_size);
// Refuses sizes whose products do not fit, or of which a plan would have no end. After all
// sections.
void check_sizes(const Config& config);
// optimizer and scheduler together: either may set the learning rate.
void read_optimizer(JsonObject& root, Config& config);
// {"type", "params"} of "scheduler". `lr` is the optimizer's rate, and `lr_given` whether the user
// wrote it: WarmupLR and WarmupDecayLR replace it by their warmup_max_lr, which must not contradict
// it.
ScheduleConfig read_schedule(JsonObject& scheduler, double& lr, bool lr_given);
// model, data and run, in this order: data needs the model's longest sequence, run whether there is
// validation data.
void read_model(JsonObject& root, Config& config);
void read_data(JsonObject& root, Config& config);
void read_run(JsonObject& root, Config& config);

Json optimizer_json(const Config& config);
// Every value that has an effect.
Json schedule_json(const ScheduleConfig& config, double peak_lr);
Json zero_json(const ZeroOptions& zero);
Json data_json(const DataConfig& data);
Json run_json(const Config& config);

}  // namespace onefold
