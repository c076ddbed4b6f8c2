// "zero_optimization": DeepSpeed's keys. Each has its effect, or changes nothing here and is noted,
// or is refused with the reason.
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "config/deepspeed_keys.h"
#include "config/sections.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

// Buffers are sized from the model, copies always have lanes of their own, and memory is pinned
// where that helps.
constexpr std::initializer_list<const char*> kIdleOffloadKeys = {
    "buffer_count",   "buffer_size", "pin_memory", "pipeline_read",
    "pipeline_write", "pipeline",    "fast_init",  "cpuadam_cores_perc"};

// Where a state lives. The other keys belong to a device other than none.
Tier read_offload(JsonObject& zero, std::string_view key, OffloadOptions& options) {
  if (!zero.has(key)) return Tier::device;
  JsonObject in = zero.object(key);
  in.allow_auto();
  const std::string device = in.choice("device", {"none", "cpu", "nvme"}, "none");
  const bool disk = device == "nvme", optimizer = key == "offload_optimizer";
  const auto folder = in.has("nvme_path") ? in.get<std::string>("nvme_path", "") : "";
  if (disk && folder.empty())
    in.refuse(Group::conflict, "nvme_path", "is missing: name a folder on the disk");
  else if (disk && !options.folder.empty() && options.folder != folder)
    in.refuse(Group::conflict, "nvme_path",
              fmt::format("is \"{}\", and another section's \"{}\": one folder serves all", folder,
                          options.folder));
  else if (disk)
    options.folder = folder;
  else
    in.idle("nvme_path");
  if (optimizer && device != "none") {
    options.optimizer_ratio = in.get<double>("ratio", 1.0);
    if (!(options.optimizer_ratio >= 0 && options.optimizer_ratio <= 1))
      in.refuse(Group::conflict, "ratio", "must be from 0 to 1");
    if (in.get<bool>("super_offload", false))
      in.refuse(Group::missing, "super_offload", "is true: there is no such schedule yet");
  } else {
    in.idle("ratio");
    in.idle("super_offload");
  }
  if (key == "offload_param" && disk)
    options.host_parameter_elems = in.at_least("max_in_cpu", 0, 0);
  else
    in.idle("max_in_cpu");
  for (const std::string_view other : kIdleOffloadKeys) in.idle(other);
  in.finish();
  if (device == "none") zero.idle(key);
  return disk ? Tier::disk : device == "cpu" ? Tier::host : Tier::device;
}

// Of before there were sections.
Tier read_old_offload(JsonObject& zero, const char* key, Tier tier) {
  if (!zero.get<bool>(key, false)) {
    zero.idle(key);
    return tier;
  }
  if (tier == Tier::disk)
    zero.refuse(Group::conflict, key, "is true, and the section beside it says nvme: keep one");
  return Tier::host;
}

void read_offloads(JsonObject& zero, OffloadOptions& options) {
  options.optimizer = read_offload(zero, "offload_optimizer", options);
  options.parameters = read_offload(zero, "offload_param", options);
  // Not DeepSpeed's, whose activation_checkpointing.cpu_checkpointing has been read before.
  if (const Tier tier = read_offload(zero, "offload_activations", options); tier != Tier::device) {
    if (options.activations != Tier::device && tier != options.activations)
      zero.refuse(Group::conflict, "offload_activations",
                  "says nvme, and activation_checkpointing.cpu_checkpointing the host: keep one");
    options.activations = tier;
  }
  options.optimizer = read_old_offload(zero, "cpu_offload", options.optimizer);
  for (const char* key : {"cpu_offload_param", "cpu_offload_params"})
    options.parameters = read_old_offload(zero, key, options.parameters);
}

Json offload_json(Tier tier, const OffloadOptions& options) {
  Json json = {{"device", tier == Tier::disk ? "nvme" : "cpu"}};
  if (tier == Tier::disk) json["nvme_path"] = options.folder;
  return json;
}

// Names of modules that DeepSpeed gathers as one; here that is a unit.
void read_leaf_module(JsonObject& zero) {
  if (!zero.has("leaf_module")) return;
  JsonObject leaf = zero.object("leaf_module");
  for (const std::string_view key : {"classes", "names", "name_suffixes"})
    leaf.get<std::vector<std::string>>(key, {});
  leaf.finish();
  zero.idle("leaf_module");
}

// DeepSpeed takes the stage-3 keys with and without their prefix.
int64_t read_elems(JsonObject& zero, const std::string& name, bool matters, int64_t fallback) {
  const std::string prefixed = "stage3_" + name;
  const bool plain = zero.has(name) || zero.is_auto(name);
  if (plain && zero.has(prefixed))
    zero.refuse(Group::conflict, name,
                fmt::format("is {} under another name: keep one", zero.path(prefixed)));
  const std::string& key = plain ? name : prefixed;
  const int64_t elems = zero.at_least(key, 0, fallback);
  if (!matters) zero.idle(key);
  return matters ? elems : fallback;
}

// Not computing the norm changes no weight, but nothing may need it: DeepSpeed has the same rules.
void read_compute_grad_norm(JsonObject& zero, int stage, double clipping) {
  if (zero.get<bool>("compute_grad_norm", true)) return zero.idle("compute_grad_norm");
  if (stage != 1 && stage != 2)
    zero.refuse(Group::conflict, "compute_grad_norm", "can be false at stages 1 and 2 only");
  else if (clipping > 0)
    zero.refuse(Group::conflict, "compute_grad_norm",
                fmt::format("is false, but gradient_clipping is {} and needs the norm", clipping));
  else
    zero.idle("compute_grad_norm");
}

// Files of before there were stages: true is stage 1.
Json zero_section(JsonObject& root) {
  if (!root.has("zero_optimization")) return Json::object();
  const Json value = root.require<Json>("zero_optimization");
  if (!value.is_boolean()) return value;
  root.idle("allgather_size");
  return {{"stage", value.get<bool>() ? 1 : 0}};
}

}  // namespace

void read_zero(JsonObject& root, JsonReport& report, Config& config) {
  JsonObject in(zero_section(root), "zero_optimization", &report);
  in.allow_auto();
  ZeroOptions& zero = config.zero;
  const int64_t stage = in.at_least("stage", 0, 0);
  if (stage > 3)
    in.refuse(Group::conflict, "stage", fmt::format("must be 0, 1, 2 or 3, not {}", stage));
  zero.stage = static_cast<int>(std::min<int64_t>(stage, 3));
  zero.overlap = in.get<bool>("overlap_comm", zero.stage == 3);
  // Hugging Face's trainer fills in these three, by the model's width; prefetching has its own
  // "auto" here, one unit.
  const int64_t width = config.model.hidden_size;
  if (in.is_auto("reduce_bucket_size")) zero.reduce_bucket_elems = width * width;
  if (in.is_auto("stage3_param_persistence_threshold")) zero.persistence_elems = 10 * width;
  zero.reduce_bucket_elems = in.at_least("reduce_bucket_size", 0, zero.reduce_bucket_elems);
  const int64_t gathered = in.at_least("allgather_bucket_size", 0, zero.gather_bucket_elems);
  if (zero.stage == 0)
    in.idle("allgather_bucket_size");
  else
    zero.gather_bucket_elems = gathered;
  const bool third = zero.stage == 3;
  zero.prefetch_elems =
      read_elems(in, "prefetch_bucket_size", third && zero.overlap, zero.prefetch_elems);
  zero.max_live_elems = read_elems(in, "max_live_parameters", third, zero.max_live_elems);
  zero.max_reuse_distance = read_elems(in, "max_reuse_distance", third, zero.max_reuse_distance);
  zero.persistence_elems =
      read_elems(in, "param_persistence_threshold", third, zero.persistence_elems);
  // 0, as in DeepSpeed, is 1.
  const int64_t node = std::max<int64_t>(1, in.at_least("zero_hpz_partition_size", 0, 1));
  if (third)
    zero.node_ranks = static_cast<int>(std::min<int64_t>(node, int64_t{1} << 20));
  else
    in.idle("zero_hpz_partition_size");
  read_offloads(in, config.offload);
  read_quantized(in, zero.stage, config.compression);
  read_leaf_module(in);
  read_compute_grad_norm(in, zero.stage, config.gradient_clipping);
  for (const PlainKey& row : plain_zero_keys()) read_plain(in, row);
  in.finish();
}

// Requests travel by a ring of each direction, or by threads as many as are under way at once: the
// other keys are about DeepSpeed's own threads.
void read_aio(JsonObject& root, OffloadOptions& offload) {
  if (!root.has("aio")) return;
  JsonObject in = root.object("aio");
  in.allow_auto();
  Files::Requests& requests = offload.requests;
  requests.bytes = in.at_least("block_size", Files::kScratchBlock, requests.bytes);
  if (requests.bytes % Files::kScratchBlock != 0 || requests.bytes > Files::kMostRequestBytes)
    in.refuse(Group::conflict, "block_size",
              fmt::format("is {}: it must be a multiple of {}, up to {}", requests.bytes,
                          Files::kScratchBlock, format_bytes(Files::kMostRequestBytes)));
  const int64_t depth = in.at_least("queue_depth", 1, requests.depth);
  if (depth > Files::kMostRequests)
    in.refuse(Group::conflict, "queue_depth",
              fmt::format("is {}: at most {} requests are under way", depth, Files::kMostRequests));
  requests.depth = static_cast<int>(std::min<int64_t>(depth, Files::kMostRequests));
  if (in.get<bool>("use_gds", false))
    in.refuse(Group::missing, "use_gds", "is true: bytes pass through the host's memory");
  for (const std::string_view key :
       {"intra_op_parallelism", "thread_count", "single_submit", "overlap_events", "use_gds"})
    in.idle(key);
  in.finish();
  if (!offload.uses(Tier::disk)) root.idle("aio");
}

Json zero_json(const ZeroOptions& zero, const OffloadOptions& offload) {
  Json json;
  if (offload.optimizer != Tier::device) {
    json["offload_optimizer"] = offload_json(offload.optimizer, offload);
    if (offload.optimizer_ratio < 1) json["offload_optimizer"]["ratio"] = offload.optimizer_ratio;
  }
  if (offload.parameters != Tier::device) {
    json["offload_param"] = offload_json(offload.parameters, offload);
    if (offload.host_parameter_elems > 0)
      json["offload_param"]["max_in_cpu"] = offload.host_parameter_elems;
  }
  if (offload.activations != Tier::device)
    json["offload_activations"] = offload_json(offload.activations, offload);
  json["stage"] = zero.stage;
  json["overlap_comm"] = zero.overlap;
  json["reduce_bucket_size"] = zero.reduce_bucket_elems;
  if (zero.stage > 0) json["allgather_bucket_size"] = zero.gather_bucket_elems;
  if (zero.stage < 3) return json;
  if (zero.overlap)
    json["stage3_prefetch_bucket_size"] =
        zero.prefetch_elems == ZeroOptions::kAuto ? Json("auto") : Json(zero.prefetch_elems);
  json["stage3_max_live_parameters"] = zero.max_live_elems;
  json["stage3_max_reuse_distance"] = zero.max_reuse_distance;
  json["stage3_param_persistence_threshold"] = zero.persistence_elems;
  if (zero.node_ranks > 1) json["zero_hpz_partition_size"] = zero.node_ranks;
  return json;
}

}  // namespace onefold
