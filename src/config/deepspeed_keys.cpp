// DeepSpeed's keys that are known and not supported (yet). A configuration made for DeepSpeed may
// name many of them only to switch them off; those are accepted. docs/config.md shows the same
// table.
#include <array>

#include "base/error.h"
#include "config/sections.h"

namespace onefold {
namespace {

struct KnownKey {
  std::string_view name;
  const char*
      off;  // the value, as JSON, that switches it off; sections may also have "enabled": false
  std::string_view reason;
};

constexpr const char* kFalse = "false";
constexpr const char* kNone = "null";

constexpr std::array kKnownKeys = {
    KnownKey{"amp", kNone, "all arithmetic is in fp32"},
    KnownKey{"torch_autocast", kNone, "all arithmetic is in fp32"},
    KnownKey{"data_types", R"({"grad_accum_dtype": "fp32"})", "gradients are summed in fp32"},
    KnownKey{"communication_data_type", R"("fp32")", "gradients are reduced in fp32"},
    KnownKey{"seq_parallel_comm_data_type", R"("fp32")", "there is no sequence parallelism yet"},
    KnownKey{"seq_parallel_communication_data_type", R"("fp32")",
             "there is no sequence parallelism yet"},
    KnownKey{"fp32_allreduce", "true", "gradients are always reduced in fp32"},
    KnownKey{"prescale_gradients", kFalse, "gradients are averaged in one fixed way"},
    KnownKey{"gradient_predivide_factor", "1.0", "gradients are averaged in one fixed way"},
    KnownKey{"sparse_gradients", kFalse, "embedding gradients are dense"},
    KnownKey{"disable_allgather", kFalse, "it is a detail of DeepSpeed's communication"},
    KnownKey{"zero_allow_untested_optimizer", kFalse,
             "every optimizer here is tested; leave it out"},
    KnownKey{"zero_force_ds_cpu_optimizer", kFalse,
             "there is one implementation of each optimizer; leave it out"},
    KnownKey{"activation_checkpointing", kNone, "use run.recompute"},
    KnownKey{"aio", kNone, "it belongs to offloading to NVMe, which is not supported yet"},
    KnownKey{"pipeline", kNone, "there is no pipeline parallelism yet"},
    KnownKey{"tensor_parallel", kNone, "there is no tensor parallelism yet"},
    KnownKey{"sequence_parallel_size", "1", "there is no sequence parallelism yet"},
    KnownKey{"use_data_before_expert_parallelism", kFalse, "there are no experts yet"},
    KnownKey{"elasticity", kNone, "the batch does not change during a run"},
    KnownKey{"autotuning", kNone, "`onefold plan` says what fits"},
    KnownKey{"flops_profiler", kNone,
             "the progress line shows the share of the measured matrix rate"},
    KnownKey{"comms_logger", kNone,
             "a table of all communication closes every run; --trace has more"},
    KnownKey{"monitor_config", kNone, "use run.tensorboard; metrics are written as JSON lines"},
    KnownKey{"tensorboard", kNone, "use run.tensorboard"},
    KnownKey{"wandb", kNone, "metrics are written as JSON lines and with run.tensorboard"},
    KnownKey{"comet", kNone, "metrics are written as JSON lines and with run.tensorboard"},
    KnownKey{"csv_monitor", kNone, "metrics are written as JSON lines"},
    KnownKey{"dump_state", kFalse, "the effective configuration is always printed"},
    KnownKey{"memory_breakdown", kFalse, "peak memory is always printed, by kind"},
    KnownKey{"vocabulary_size", kNone, "use model.vocab_size"},
    KnownKey{"dataloader_drop_last", "true", "an incomplete last batch is always left out"},
    KnownKey{"checkpoint", kNone, "checkpoints have one layout; use run.save_every"},
    KnownKey{"nebula", kNone, "it is a service of Azure"},
    KnownKey{"datastates", kNone, "checkpoints have one layout"},
    KnownKey{"sparse_attention", kNone, "attention is dense and causal"},
    KnownKey{"data_efficiency", kNone, "data is sampled in one way; see data.shuffle"},
    KnownKey{"curriculum_learning", kNone, "the sequence length does not change during a run"},
    KnownKey{"compression_training", kNone, "there is no compression"},
    KnownKey{"weight_quantization", kNone, "there is no quantization"},
    KnownKey{"quantize_training", kNone, "there is no quantization"},
    KnownKey{"progressive_layer_drop", kNone, "layers are not dropped"},
    KnownKey{"eigenvalue", kNone, "it belongs to DeepSpeed's quantization"},
    KnownKey{"hybrid_engine", kNone, "there is no reinforcement learning"},
    KnownKey{"graph_harvesting", kFalse, "it belongs to CUDA graphs"},
    KnownKey{"compile", kNone, "nothing is compiled at run time"},
    KnownKey{"timers", kNone, "use wall_clock_breakdown"},
};

bool is_off(const Json& value, const char* off) {
  if (value.is_null() || value == Json::parse(off)) return true;
  if (!value.is_object()) return false;
  if (value.empty()) return true;
  const auto enabled = value.find("enabled");
  return enabled != value.end() && *enabled == false;
}

// Sections whose other keys only tune them: with "enabled": false (or "auto", which means off here)
// all are accepted.
void read_precision(JsonObject& root, std::string_view key) {
  if (!root.has(key)) return;
  JsonObject section = root.object(key);
  section.allow_auto({"enabled"});
  if (section.get<bool>("enabled", false))
    section.fail("enabled", "must be false: all arithmetic is in fp32 so far");
}

}  // namespace

void read_deepspeed_keys(JsonObject& root) {
  for (const std::string_view key : {"bf16", "bfloat16", "fp16"}) read_precision(root, key);
  for (const KnownKey& known : kKnownKeys) {
    if (!root.value().contains(known.name)) continue;
    if (!is_off(root.require<Json>(known.name), known.off))
      root.fail(known.name,
                fmt::format("is a DeepSpeed key that is not supported: {}", known.reason));
  }
}

}  // namespace onefold
