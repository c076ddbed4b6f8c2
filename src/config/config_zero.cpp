// "zero_optimization": DeepSpeed's keys. Each has its effect, or changes nothing here and is noted,
// or is refused with the reason.
#include <algorithm>

#include "base/error.h"
#include "config/deepspeed_keys.h"
#include "config/sections.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

// Where a state is offloaded to. A device other than none is not there yet; the other keys belong
// to one.
void read_offload(JsonObject& zero, std::string_view key, std::initializer_list<const char*> keys) {
  if (!zero.has(key)) return;
  JsonObject offload = zero.object(key);
  offload.allow_auto();
  const std::string device = offload.choice("device", {"none", "cpu", "nvme"}, "none");
  for (const std::string_view other : keys)
    if (offload.has(other)) offload.require<Json>(other);
  offload.finish();
  if (device == "none")
    zero.idle(key);
  else
    offload.refuse(Group::missing, "device",
                   fmt::format("is \"{}\": other devices arrive with offload", device));
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
  read_offload(in, "offload_optimizer",
               {"nvme_path", "buffer_count", "pin_memory", "pipeline_read", "pipeline_write",
                "pipeline", "fast_init", "ratio", "super_offload", "cpuadam_cores_perc"});
  read_offload(in, "offload_param",
               {"nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory"});
  read_leaf_module(in);
  read_compute_grad_norm(in, zero.stage, config.gradient_clipping);
  for (const PlainKey& row : plain_zero_keys()) read_plain(in, row);
  in.finish();
}

Json zero_json(const ZeroOptions& zero) {
  Json json;
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
  return json;
}

}  // namespace onefold
