#include "engine/lines.h"
#include "plan/recompute.h"
#include "plan/search.h"

namespace onefold {
namespace {

Json axes_json(const EngineOptions& options, int ranks) {
  const Mesh mesh = mesh_of(options, ranks);
  Json json;
  for (const Axis axis : {Axis::data, Axis::tensor, Axis::pipeline, Axis::context, Axis::expert})
    json[axis_name(axis)] = mesh.size(axis);
  json["sequence_parallel"] = options.sequence_parallel;
  json["overlap_chunks"] = options.overlap_chunks;
  if (options.pipeline.ranks > 1) {
    json["schedule"] = schedule_name(options.pipeline.schedule);
    json["interleave"] = options.pipeline.interleave;
  }
  return json;
}

Json layout_json(const Layout& layout, int ranks) {
  const EngineOptions& options = layout.options;
  const auto tier = [](Tier t) {
    return t == Tier::disk ? "nvme" : t == Tier::host ? "cpu" : "none";
  };
  return {{"predicted_tokens_per_second", layout.tokens_per_second(ranks)},
          {"predicted_step_seconds", layout.seconds},
          {"predicted_wait_seconds", layout.waits},
          {"planned_peak_bytes", layout.device_bytes},
          {"planned_host_bytes", layout.host_bytes},
          {"planned_disk_bytes", layout.disk_bytes},
          {"mesh", axes_json(options, ranks)},
          {"stage", options.zero.stage},
          {"offload_optimizer", tier(options.offload.optimizer)},
          {"offload_optimizer_ratio", options.offload.optimizer_ratio},
          {"host_step", options.offload.host_step_ratio},
          {"offload_param", tier(options.offload.parameters)},
          {"recompute", recompute_value(options.recompute)},
          {"micro_batch", options.micro_batch},
          {"accumulation", options.micros},
          {"accumulate", order_name(options.order)},
          {"overlap_comm", options.zero.overlap},
          {"prefetch_bucket_size", options.zero.prefetch_elems == ZeroOptions::kAuto
                                       ? Json("auto")
                                       : Json(options.zero.prefetch_elems)},
          {"reduce_bucket_size", options.zero.reduce_bucket_elems}};
}

}  // namespace

Json search_json(const SearchResult& found, int ranks) {
  Json layouts = Json::array();
  for (const Layout& layout : found.best) layouts.push_back(layout_json(layout, ranks));
  return {{"fits", !found.best.empty()},
          {"layouts", layouts},
          {"why", why_first(found)},
          {"least_bytes", found.least.device_bytes},
          {"plans", found.plans},
          {"meshes", found.meshes},
          {"meshes_looked_at", found.looked_at},
          {"stopped", found.stopped}};
}

}  // namespace onefold
