#include "config/layout_keys.h"

#include <algorithm>

#include "base/text.h"
#include "plan/recompute.h"

namespace onefold {
namespace {

constexpr const char* kDisk = "offload";  // where no nvme_path is named

// The value at a path; null if there is none.
Json key_at(const Json& root, std::string_view path) {
  const Json* here = &root;
  for (const std::string& key : split(path, '.')) {
    if (!here->is_object() || !here->contains(key)) return nullptr;
    here = &(*here)[key];
  }
  return *here;
}

bool is_auto(const Json& root, std::string_view path) { return key_at(root, path) == "auto"; }

bool is_open(const Json& root, std::string_view path) {
  return key_at(root, path).is_null() || is_auto(root, path);
}

// An axis's keys: ours, and DeepSpeed's.
struct AxisKeys {
  const char *ours, *theirs;
  bool FreeAxes::*free;
  int MeshAxes::*size;
};
constexpr AxisKeys kAxisKeys[] = {
    {"tensor", "tensor_parallel.autotp_size", &FreeAxes::tensor, &MeshAxes::tensor},
    {"pipeline", "pipeline.stages", &FreeAxes::pipeline, &MeshAxes::pipeline},
    {"context", "sequence_parallel_size", &FreeAxes::context, &MeshAxes::context},
    {"expert", "expert_parallel.autoep_size", &FreeAxes::expert, &MeshAxes::expert}};

// Whether the axes of a mesh are to be found: all of one that is "auto" (or missing, if `missing`
// says so), or those that are "auto" in it.
FreeAxes free_axes(const Json& root, bool missing) {
  const Json mesh = key_at(root, "mesh");
  FreeAxes free;
  if (!key_at(root, "train_batch_size").is_number()) return free;
  for (const AxisKeys& axis : kAxisKeys) {
    const bool open = mesh == "auto" || (missing && mesh.is_null()) ||
                      (mesh.is_object() && is_auto(mesh, axis.ours));
    free.*axis.free = open && is_open(root, axis.theirs);
  }
  return free;
}

// What follows once there is a mesh to be found: the order of a pipeline's turns, and what tensor
// groups exchange.
void free_what_follows(const Json& root, Freedom& freedom) {
  const bool cut = key_at(root, "pipeline.partition").is_array();
  freedom.schedule = is_open(root, "pipeline.schedule");
  freedom.interleave = is_open(root, "pipeline.interleave") && !cut;
  freedom.sequence_parallel = is_open(root, "mesh.sequence_parallel");
  freedom.overlap_chunks = is_open(root, "mesh.overlap_chunks");
}

const char* device_name(Tier tier) { return tier == Tier::disk ? "nvme" : "cpu"; }

void write_home(Json& zero, const char* key, Tier tier, const std::string& folder) {
  if (tier == Tier::device) {
    zero.erase(key);
    return;
  }
  Json& section = zero[key];
  if (!section.is_object()) section = Json::object();
  section["device"] = device_name(tier);
  if (tier == Tier::disk && !section.contains("nvme_path"))
    section["nvme_path"] = folder.empty() ? kDisk : folder;
}

void write_zero(Json& zero, const EngineOptions& layout, const Freedom& freedom) {
  if (!zero.is_object()) zero = Json::object();
  const ZeroOptions& options = layout.zero;
  if (freedom.stage) zero["stage"] = options.stage;
  if (freedom.overlap) zero["overlap_comm"] = options.overlap;
  if (freedom.reduce_bucket) zero["reduce_bucket_size"] = options.reduce_bucket_elems;
  if (freedom.prefetch && options.stage == 3 && options.overlap)
    zero["stage3_prefetch_bucket_size"] =
        options.prefetch_elems == ZeroOptions::kAuto ? Json("auto") : Json(options.prefetch_elems);
  const OffloadOptions& offload = layout.offload;
  if (freedom.optimizer_home)
    write_home(zero, "offload_optimizer", offload.optimizer, offload.folder);
  if (freedom.ratio && offload.optimizer != Tier::device)
    zero["offload_optimizer"]["ratio"] = offload.optimizer_ratio;
  if (freedom.parameter_home) write_home(zero, "offload_param", offload.parameters, offload.folder);
}

}  // namespace

Freedom left_open(const Json& root) {
  const auto open = [&](const char* path) { return is_open(root, path); };
  const auto home = [&](const char* section) {
    const Json value = key_at(root, std::string("zero_optimization.") + section);
    return value.is_null() || (value.is_object() && is_open(value, "device"));
  };
  const bool old_home = !open("zero_optimization.cpu_offload"),
             old_parameters = !open("zero_optimization.cpu_offload_param") ||
                              !open("zero_optimization.cpu_offload_params");
  Freedom freedom{
      .stage = open("zero_optimization.stage") && !key_at(root, "zero_optimization").is_boolean(),
      .optimizer_home = home("offload_optimizer") && !old_home,
      .parameter_home = home("offload_param") && !old_parameters,
      .ratio = open("zero_optimization.offload_optimizer.ratio"),
      .recompute = open("run.recompute"),
      .batch = open("train_micro_batch_size_per_gpu") && open("gradient_accumulation_steps"),
      .overlap = open("zero_optimization.overlap_comm"),
      .prefetch = open("zero_optimization.stage3_prefetch_bucket_size") &&
                  open("zero_optimization.prefetch_bucket_size"),
      .reduce_bucket = open("zero_optimization.reduce_bucket_size"),
      .order = open("run.accumulate"),
      .host_step = open("run.host_step"),
      .mesh = free_axes(root, true)};
  free_what_follows(root, freedom);
  return freedom;
}

Freedom asked_for(const Json& root) {
  const auto asked = [&](const char* path) { return is_auto(root, path); };
  Freedom freedom{.stage = asked("zero_optimization.stage"),
                  .optimizer_home = asked("zero_optimization.offload_optimizer.device"),
                  .parameter_home = asked("zero_optimization.offload_param.device"),
                  .overlap = asked("zero_optimization.overlap_comm")};
  freedom.ratio =
      freedom.optimizer_home && is_open(root, "zero_optimization.offload_optimizer.ratio");
  freedom.host_step = freedom.optimizer_home && is_open(root, "run.host_step");
  freedom.batch = key_at(root, "train_batch_size").is_number() &&
                  asked("train_micro_batch_size_per_gpu") && asked("gradient_accumulation_steps");
  freedom.mesh = free_axes(root, false);
  if (freedom.mesh.any()) {
    free_what_follows(root, freedom);
    freedom.batch = is_open(root, "train_micro_batch_size_per_gpu") &&
                    is_open(root, "gradient_accumulation_steps");
  }
  if (freedom == Freedom{}) return freedom;
  // These have a meaning of their own, which they keep where they stand alone.
  freedom.recompute = asked("run.recompute");
  freedom.prefetch = asked("zero_optimization.stage3_prefetch_bucket_size");
  return freedom;
}

MeshAxes given_axes(const Json& root) {
  MeshAxes axes;
  for (const AxisKeys& axis : kAxisKeys)
    for (const Json& size :
         {key_at(root, axis.theirs), key_at(root, std::string("mesh.") + axis.ours)})
      if (size.is_number_integer()) axes.*axis.size = std::max(1, size.get<int>());
  return axes;
}

int64_t given_data(const Json& root) {
  const Json data = key_at(root, "mesh.data");
  return data.is_number_integer() ? data.get<int64_t>() : 0;
}

Json with_mesh(Json root, const MeshAxes& axes, const FreeAxes& free) {
  if (!free.any()) return root;
  Json mesh = key_at(root, "mesh");
  if (!mesh.is_object()) mesh = Json::object();
  for (const AxisKeys& axis : kAxisKeys) {
    if (!(free.*axis.free)) continue;
    mesh.erase(axis.ours);
    if (axes.*axis.size > 1) mesh[axis.ours] = axes.*axis.size;
  }
  // The first that is missing takes what the others leave: that is data.
  if (is_auto(mesh, "data")) mesh.erase("data");
  for (const char* key : {"sequence_parallel", "overlap_chunks"})
    if (is_auto(mesh, key)) mesh.erase(key);
  if (mesh.empty()) mesh["tensor"] = 1;
  root["mesh"] = mesh;
  return root;
}

namespace {

void write_mesh(Json& root, const EngineOptions& layout, const Freedom& freedom) {
  const PipelineOptions& pipeline = layout.pipeline;
  const MeshAxes axes{layout.tensor, layout.context, layout.expert, pipeline.ranks};
  root = with_mesh(root, axes, freedom.mesh);
  if (layout.tensor > 1 && freedom.sequence_parallel && layout.sequence_parallel)
    root["mesh"]["sequence_parallel"] = true;
  if (layout.tensor > 1 && freedom.overlap_chunks && layout.overlap_chunks > 1)
    root["mesh"]["overlap_chunks"] = layout.overlap_chunks;
  if (pipeline.ranks == 1) return;
  if (freedom.schedule) root["pipeline"]["schedule"] = schedule_name(pipeline.schedule);
  if (freedom.interleave) root["pipeline"]["interleave"] = pipeline.interleave;
}

}  // namespace

void write_layout(Json& root, const EngineOptions& layout, const Freedom& freedom) {
  write_mesh(root, layout, freedom);
  if (freedom.batch) {
    root["train_micro_batch_size_per_gpu"] = layout.micro_batch;
    root["gradient_accumulation_steps"] = layout.micros;
  }
  if (freedom.recompute) root["run"]["recompute"] = recompute_value(layout.recompute);
  if (freedom.order && layout.micros > 1) root["run"]["accumulate"] = order_name(layout.order);
  if (layout.offload.optimizer != Tier::host) {
    if (root.contains("run")) root["run"].erase("host_step");  // it would have no effect
  } else if (freedom.host_step && layout.offload.host_step_ratio < 1) {
    root["run"]["host_step"] = layout.offload.host_step_ratio;
  }
  Json zero = key_at(root, "zero_optimization");
  write_zero(zero, layout, freedom);
  if (!zero.empty()) root["zero_optimization"] = zero;
}

}  // namespace onefold
