// Apart from the rest, because configurations are read where there are no ranks.
#include "base/text.h"
#include "device/device_name.h"
#include "engine/lines.h"

namespace onefold {
namespace {

// Hosts are successive ranks, of which those that sum gradients must be as many on each.
std::string obstacle_to_hosts(const EngineOptions& options, int ranks) {
  const int host = options.compression.host_ranks;
  if (host == 1) return "";
  if (ranks % host != 0 || ranks == host)
    return fmt::format(
        "compression.ranks_per_host is {}, and {} ranks are no hosts of so many: it must divide "
        "their number, and be less",
        host, ranks);
  std::vector<std::string> reasons;
  if (options.expert > 1)
    reasons.emplace_back(
        "with mesh.expert, of which experts are summed among fewer ranks than the rest, it must be "
        "left out");
  if (host % options.tensor != 0)
    reasons.push_back(
        fmt::format("it must be a multiple of mesh.tensor, {}, for a share and those that have the "
                    "others are of one host",
                    options.tensor));
  const int stage = ranks / options.pipeline.ranks;
  if (stage % host != 0 || stage == host)
    reasons.push_back(fmt::format(
        "of the {} ranks of each stage of the pipeline, which sum gradients, it must be a part",
        stage));
  if (reasons.empty()) return "";
  return fmt::format("compression.ranks_per_host is {}, and ranks are not on hosts so: {}", host,
                     join(reasons, "; "));
}

}  // namespace

std::string obstacle_to_compression(const EngineOptions& options, int ranks) {
  const CompressionOptions& compression = options.compression;
  if (!compression.any() || !options.training) return "";
  if (std::string why = obstacle_to_hosts(options, ranks); !why.empty()) return why;
  std::vector<std::string> reasons;
  if (options.tensor > 1 || options.expert > 1) {
    if (compression.correction.limit > 0)
      reasons.emplace_back(
          "with mesh.tensor or mesh.expert no rank has all of a unit's gradient, whose norm "
          "local_clipping would limit");
    if (parse_device(options.device).kind != "cpu")
      reasons.push_back(fmt::format(
          "with mesh.tensor or mesh.expert, what several ranks hold alike is taken out of packets "
          "by the processor, and run.device is {}",
          options.device));
  }
  if (options.expert > 1 && compression.corrects_momentum &&
      expert_summing_ranks(options, ranks) == 1)
    reasons.emplace_back(
        "with mesh.expert of all ranks, gradients of experts do not travel, and have no momentum "
        "of momentum_correction");
  if (options.pipeline.ranks > 1 && compression.corrects_momentum && options.optimizer.frozen_trust)
    reasons.emplace_back(
        "with mesh.pipeline no rank knows the sizes of all tensors' momentum, which 1-bit LAMB "
        "brings to one");
  if (reasons.empty()) return "";
  return fmt::format("compression does not go with this mesh: {}", join(reasons, "; "));
}

}  // namespace onefold
