// Apart from the rest, because configurations are read where there are no ranks.
#include "base/text.h"
#include "engine/lines.h"

namespace onefold {

std::string obstacle_to_nodes(const EngineOptions& options, int ranks) {
  const int inside = options.zero.node_ranks;
  if (inside <= 1) return "";
  const int sharing = summing_ranks(options, ranks);
  std::vector<std::string> reasons;
  if (options.zero.stage < 3)
    reasons.push_back(
        fmt::format("parameters are whole on each rank at stage {}", options.zero.stage));
  if (sharing % inside != 0 || sharing == inside)
    reasons.push_back(fmt::format(
        "the {} rank{} that share{} parameters are no nodes of so many: it must divide their "
        "number, and be less",
        sharing, sharing == 1 ? "" : "s", sharing == 1 ? "s" : ""));
  const int apart = options.context * options.expert;
  const bool even = inside % apart == 0 || options.context % inside == 0 ||
                    (apart % inside == 0 && inside % options.context == 0);
  if (options.expert > 1 && !even)
    reasons.push_back(
        fmt::format("nodes of so many would have some experts of mesh.expert {} more often than "
                    "others (mesh.context is {})",
                    options.expert, options.context));
  if (options.offload.parameters != Tier::device)
    reasons.emplace_back("parameters live on another tier (zero_optimization.offload_param)");
  if (!options.compression.weights.none())
    reasons.emplace_back("parameters travel in a wire format (compression.weights)");
  if (reasons.empty()) return "";
  return fmt::format("zero_hpz_partition_size is {}, and so many ranks cannot keep parameters: {}",
                     inside, join(reasons, "; "));
}

}  // namespace onefold
