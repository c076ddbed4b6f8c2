// Apart from the rest, because configurations are read where there are no ranks.
#include "base/text.h"
#include "engine/lines.h"
#include "model/head_exchange.h"

namespace onefold {
namespace {

// Parts divide the heads that a rank of a tensor group has.
std::vector<std::string> obstacles_of_heads(const ModelSpec& spec, const EngineOptions& options) {
  if (!obstacles_to_shares(spec, options.tensor).empty()) return {};  // said of mesh.tensor
  std::vector<std::string> reasons =
      obstacles_to_head_exchange(spec_of(spec, {0, options.tensor}), options.context);
  if (options.tensor > 1)
    for (std::string& reason : reasons)
      reason += fmt::format(" (of each of mesh.tensor {} ranks)", options.tensor);
  return reasons;
}

// What attention over one set of keys at a time does not know.
std::vector<std::string> obstacles_to_ring(const ModelSpec& spec, const EngineOptions& options) {
  std::vector<std::string> reasons;
  const auto refuse = [&](bool wrong, const char* what) {
    if (wrong) reasons.push_back(fmt::format("{} yet; context.method ulysses does", what));
  };
  bool windows = false;
  for (int block = 0; block < spec.num_layers; ++block) windows |= spec.window_of(block) > 0;
  refuse(options.documents, "a ring does not keep documents apart (data.documents isolated)");
  refuse(windows, "a ring does not look through windows (sliding_window)");
  refuse(spec.positions == Positions::alibi,
         "a ring does not count how far keys of other runs are (positions alibi)");
  refuse(spec.dropout > 0 && options.training,
         "a ring does not drop probabilities of attention (dropout)");
  return reasons;
}

}  // namespace

bool divides_heads(const ModelSpec& spec, const EngineOptions& options) {
  return obstacles_of_heads(spec, options).empty();
}

std::string obstacle_to_context(const ModelSpec& spec, const EngineOptions& options) {
  if (options.context == 1) return "";
  const bool ring = options.context_method == ContextMethod::ring;
  std::vector<std::string> reasons =
      ring ? obstacles_to_ring(spec, options) : obstacles_of_heads(spec, options);
  if (const int pieces = (ring ? 2 : 1) * options.context; options.sequence % pieces != 0)
    reasons.push_back(fmt::format(
        "sequences of {} tokens (data.sequence_length) cannot be divided by {}{}", options.sequence,
        pieces, ring ? ", two runs for each rank (context.method ring)" : ""));
  if (spec.experts.capacity_factor > 0 && options.training)
    reasons.emplace_back(
        "a capacity of experts (capacity_factor) counts the tokens of whole sequences");
  if (options.local.on())
    reasons.emplace_back("delay.local_steps does not go with mesh.context yet");
  if (reasons.empty()) return "";
  return fmt::format("mesh.context is {}, and sequences cannot be divided so: {}", options.context,
                     join(reasons, "; "));
}

}  // namespace onefold
