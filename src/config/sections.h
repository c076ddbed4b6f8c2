// The pieces of Config::from_json, one for each part of the file. Private to src/config.
#pragma once

#include <cctype>

#include "config/config.h"

namespace onefold {

inline std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// All that has no section of its own below: DeepSpeed's keys that change nothing, monitors, number
// types.
void read_deepspeed_keys(JsonObject& root, Config& config);
void check_partitioned_activations(JsonObject& root, const Config& config);
// bf16, fp16, data_types, communication_data_type. After the model, whose weights' type "auto"
// follows.
void read_precision(JsonObject& root, Config& config);
// After the model, whose width "auto" follows, and gradient_clipping.
void read_zero(JsonObject& root, JsonReport& report, Config& config);
// "aio": how the disk tier's calls are cut. After read_zero, which says whether there is one.
void read_aio(JsonObject& root, OffloadOptions& offload);
// "mesh", tensor_parallel.autotp_size and "pipeline", for so many ranks.
void read_mesh(JsonObject& root, int64_t world_size, Config& config);
// "pipeline": its options, and how many stages it names; 0 for none.
int64_t read_pipeline(JsonObject& root, PipelineOptions& pipeline);
Json pipeline_json(const PipelineOptions& pipeline);
// After all sections: how parts of a sequence attend, where that is left open; and refuses a model
// that cannot be divided so.
void settle_context(Config& config);
void check_mesh(const Config& config);
Json mesh_json(const MeshConfig& mesh);
// Any of the three may be open; 0 for a size that follows from nothing else (settle_batch).
BatchConfig read_batch(JsonObject& root, int64_t world_size);
// A size that was left open: by memory. After all sections.
void settle_batch(Config& config);
// What one rank with so many cores of this machine would hold.
int64_t planned_bytes(const Config& config, int cores);
// Refuses sizes whose products do not fit, or of which a plan would have no end. After all
// sections.
void check_sizes(const Config& config);
// optimizer and scheduler together: either may set the learning rate.
void read_optimizer(JsonObject& root, Config& config);
// optimizer.groups. After the optimizer and its scheduler, whose rate a group's is measured by.
void read_groups(JsonObject& optimizer, Config& config);
Json groups_json(const Config& config);
// gradient_clipping and clipping.
void read_clipping(JsonObject& root, Config& config);
Json clipping_json(const Config& config);  // null where nothing is set
// zero_optimization's zero_quantized_weights and zero_quantized_gradients.
void read_quantized(JsonObject& zero, int stage, CompressionOptions& compression);
// "compression". After those, the optimizer, the batch and run.
void read_compression(JsonObject& root, Config& config);
Json compression_json(const Config& config);  // null where nothing is set
// "delay". After the optimizer.
void read_delay(JsonObject& root, Config& config);
Json delay_json(const DelayConfig& delay);  // null where nothing is set
// What steps: without momentum where that is taken before the sum over ranks, and delayed.
OptimizerSpec engine_optimizer(const Config& config);
// optimizer.batch_scaling: the rate and the warm-up of a base batch become those of the batch.
// After settle_batch().
void read_batch_scaling(JsonObject& optimizer, Config& config);
void apply_batch_scaling(Config& config);
// {"type", "params"} of "scheduler". `lr` is the optimizer's rate; schedules with rates of their
// own replace it.
ScheduleConfig read_schedule(JsonObject& scheduler, double& lr);
// model, data and run, in this order: data needs the model's longest sequence, run whether there is
// validation data.
void read_model(JsonObject& root, Config& config);
void read_data(JsonObject& root, Config& config);
void read_run(JsonObject& root, Config& config);

void add_precision_json(const Config& config, Json& json);
// In the section "run".
void read_recompute(JsonObject& in, Config& config);
Json recompute_json(const RunConfig& run);
// "lora", into the model's spec. After run, whose "freeze" it excludes.
void read_lora(JsonObject& root, Config& config);

Json optimizer_json(const Config& config);
// Every value that has an effect.
Json schedule_json(const ScheduleConfig& config, double peak_lr);
Json zero_json(const ZeroOptions& zero, const OffloadOptions& offload);
Json data_json(const DataConfig& data);
Json run_json(const Config& config);
Json lora_section(const Config& config);

}  // namespace onefold
