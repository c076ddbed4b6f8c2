// What a search has found, as numbers and in words.
#include <utility>

#include "base/text.h"
#include "engine/lines.h"
#include "plan/recompute.h"
#include "plan/search.h"

namespace onefold {
namespace {

const char* device_key(Tier tier) {
  return tier == Tier::disk ? "nvme" : tier == Tier::host ? "cpu" : "none";
}

}  // namespace

double Layout::tokens_per_second(int ranks) const {
  return static_cast<double>(options.micro_batch * options.micros * options.sequence *
                             data_ranks(options, ranks)) /
         seconds;
}

bool same_mesh(const EngineOptions& a, const EngineOptions& b) {
  return a.tensor == b.tensor && a.context == b.context && a.expert == b.expert &&
         a.pipeline.ranks == b.pipeline.ranks;
}

std::vector<std::string> layout_changes(const EngineOptions& from, const EngineOptions& to) {
  std::vector<std::string> changes;
  const auto add = [&](bool differs, std::string text) {
    if (differs) changes.push_back(std::move(text));
  };
  add(to.tensor != from.tensor, fmt::format("mesh.tensor {}", to.tensor));
  const PipelineOptions &p0 = from.pipeline, &p = to.pipeline;
  add(p.ranks != p0.ranks, fmt::format("mesh.pipeline {}", p.ranks));
  if (p.ranks > 1) {
    add(p.schedule != p0.schedule, fmt::format("pipeline.schedule {}", schedule_name(p.schedule)));
    add(p.interleave != p0.interleave, fmt::format("pipeline.interleave {}", p.interleave));
  }
  add(to.context != from.context, fmt::format("mesh.context {}", to.context));
  add(to.expert != from.expert, fmt::format("mesh.expert {}", to.expert));
  add(to.sequence_parallel != from.sequence_parallel,
      fmt::format("mesh.sequence_parallel {}", to.sequence_parallel));
  add(to.overlap_chunks != from.overlap_chunks,
      fmt::format("mesh.overlap_chunks {}", to.overlap_chunks));
  const ZeroOptions &z0 = from.zero, &z = to.zero;
  const OffloadOptions &o0 = from.offload, &o = to.offload;
  add(z.stage != z0.stage, fmt::format("zero_optimization.stage {}", z.stage));
  add(o.optimizer != o0.optimizer,
      fmt::format("zero_optimization.offload_optimizer.device {}", device_key(o.optimizer)));
  add(o.optimizer_ratio != o0.optimizer_ratio,
      fmt::format("zero_optimization.offload_optimizer.ratio {:g}", o.optimizer_ratio));
  add(o.host_step_ratio != o0.host_step_ratio,
      fmt::format("run.host_step {:g}", o.host_step_ratio));
  add(o.parameters != o0.parameters,
      fmt::format("zero_optimization.offload_param.device {}", device_key(o.parameters)));
  add(z.overlap != z0.overlap, fmt::format("zero_optimization.overlap_comm {}", z.overlap));
  add(z.prefetch_elems != z0.prefetch_elems,
      fmt::format("zero_optimization.stage3_prefetch_bucket_size {}", z.prefetch_elems));
  add(z.reduce_bucket_elems != z0.reduce_bucket_elems,
      fmt::format("zero_optimization.reduce_bucket_size {}", z.reduce_bucket_elems));
  add(to.micro_batch != from.micro_batch,
      fmt::format("train_micro_batch_size_per_gpu {}, gradient_accumulation_steps {}",
                  to.micro_batch, to.micros));
  // Values and not policies: there are two of none.
  const std::string again = recompute_value(to.recompute).dump();
  add(again != recompute_value(from.recompute).dump(), fmt::format("run.recompute {}", again));
  return changes;
}

std::string step_time_text(double seconds) {
  if (seconds < 0.1) return fmt::format("{:.1f}ms", 1e3 * seconds);
  return seconds < 10 ? fmt::format("{:.2f}s", seconds) : format_duration(seconds);
}

std::string stopped_text(const SearchResult& found) {
  if (!found.stopped) return "";
  const std::string begin = "the search has stopped after the work that it may do: ";
  if (!found.of_meshes)
    return begin + "it may have missed faster layouts; say more of the layout to search it whole";
  if (found.looked_at == found.meshes)
    return begin + "it has looked at all meshes, but has not refined all of the best";
  return begin + fmt::format("it has looked at {} of {} meshes; give an axis to search it whole",
                             found.looked_at, found.meshes);
}

std::string why_first(const SearchResult& found) {
  if (found.best.empty()) return "";
  const Layout& first = found.best[0];
  std::string text;
  if (found.best.size() == 1) {
    text = found.of_meshes ? "Every other mesh is slower, or does not fit."
                           : "It is the only one that fits.";
  } else {
    const Layout& second = found.best[1];
    const double waits = second.waits - first.waits,
                 work = (second.seconds - second.waits) - (first.seconds - first.waits);
    const double gain = 100 * (second.seconds / first.seconds - 1);
    const std::string other = join(layout_changes(first.options, second.options), ", ");
    text = gain < 0.05 ? fmt::format("The first and the second ({}) take the same time.", other)
                       : fmt::format("The first is {:.1f} % faster than the second ({}): it {}.",
                                     gain, other, work >= waits ? "computes less" : "waits less");
  }
  if (found.refused)
    text += fmt::format(
        " A faster one does not fit: {}would take {} less and needs {}{}.",
        [&] {
          const auto changes = layout_changes(first.options, found.refused->options);
          return changes.empty() ? "" : join(changes, ", ") + " ";
        }(),
        step_time_text(first.seconds - found.refused->seconds),
        format_bytes(found.refused->device_bytes),
        found.refused->host_bytes + found.refused->disk_bytes > 0 ? " on the device" : "");
  return text;
}

}  // namespace onefold
