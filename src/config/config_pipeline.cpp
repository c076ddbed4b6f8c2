// "pipeline": DeepSpeed's section, and what ours adds to it.
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "config/sections.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;
using By = PipelineOptions::By;

// Of DeepSpeed's, details that do not arise here.
constexpr const char* kIdleKeys[] = {"seed_layers", "pipe_partitioned", "grad_partitioned",
                                     "use_reentrant"};

// "best" is DeepSpeed's word for leaving it open.
void read_partition(JsonObject& in, PipelineOptions& pipeline) {
  if (!in.has("partition")) return;
  const Json partition = in.require<Json>("partition");
  if (partition == "best" || partition == "flops") return;
  if (partition == "parameters") {
    pipeline.by = By::parameters;
    return;
  }
  constexpr int64_t kMostUnits = int64_t{1} << 20;
  const bool numbers = partition.is_array() && !partition.empty() &&
                       std::all_of(partition.begin(), partition.end(), [](const Json& one) {
                         return one.is_number_integer() && one.get<int64_t>() >= 1 &&
                                one.get<int64_t>() <= kMostUnits;
                       });
  if (!numbers)
    return in.refuse(Group::conflict, "partition",
                     fmt::format("is {}; it is \"flops\", \"parameters\", or how many units each "
                                 "stage has, like [5, 5]",
                                 brief_json(partition)));
  for (const Json& one : partition) pipeline.units.push_back(static_cast<int>(one.get<int64_t>()));
}

}  // namespace

int64_t read_pipeline(JsonObject& root, PipelineOptions& pipeline) {
  if (!root.has("pipeline")) return 0;
  JsonObject in = root.object("pipeline");
  in.allow_auto();
  for (const char* key : kIdleKeys)
    if (in.has(key)) {
      in.require<Json>(key);
      in.idle(key);
    }
  if (in.at_least("activation_checkpoint_interval", 0, 0) > 0)
    in.refuse(Group::missing, "activation_checkpoint_interval",
              "is not 0: say what is computed again with run.recompute");
  constexpr int64_t kMostStages = int64_t{1} << 20;
  int64_t stages = in.at_least("stages", 1, 0);
  if (stages > kMostStages) {
    in.refuse(Group::conflict, "stages",
              fmt::format("is {}; the largest is {}", stages, kMostStages));
    stages = 1;
  }
  pipeline.interleave = static_cast<int>(std::min(in.at_least("interleave", 1, 1), kMostStages));
  const std::string schedule = in.choice("schedule", {"1f1b", "gpipe", "zb-h1"}, "1f1b");
  for (const PipelineSchedule one : kPipelineSchedules)
    if (schedule == schedule_name(one)) pipeline.schedule = one;
  read_partition(in, pipeline);
  in.finish();
  return stages;
}

Json pipeline_json(const PipelineOptions& pipeline) {
  Json json = {{"schedule", schedule_name(pipeline.schedule)}, {"interleave", pipeline.interleave}};
  if (pipeline.units.empty())
    json["partition"] = pipeline.by == By::parameters ? "parameters" : "flops";
  else
    json["partition"] = pipeline.units;
  return json;
}

}  // namespace onefold
