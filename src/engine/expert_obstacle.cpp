// Apart from the rest, because configurations are read where there are no ranks.
#include "base/text.h"
#include "device/device_name.h"
#include "engine/expert_load.h"

namespace onefold {

std::string obstacle_to_experts(const ModelSpec& spec, const EngineOptions& options) {
  if (!spec.experts.enabled()) return "";
  std::vector<std::string> reasons;
  if (parse_device(options.device).kind != "cpu")
    reasons.push_back(
        fmt::format("they are there for the device cpu alone yet, not for {}", options.device));
  if (options.optimizer.type == OptimizerSpec::Type::muon)
    reasons.emplace_back(
        "Muon would make one matrix of all experts of a layer orthogonal; AdamW, Adam, SGD and "
        "Lion step each element by itself");
  if (reasons.empty()) return "";
  return fmt::format("model.experts: {}", join(reasons, "; "));
}

}  // namespace onefold
