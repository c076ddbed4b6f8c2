// Apart from the rest, because configurations are read where there are no ranks.
#include "base/text.h"
#include "device/device_name.h"
#include "engine/expert_load.h"
#include "engine/lines.h"

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

std::string obstacle_to_expert_ranks(const ModelSpec& spec, const EngineOptions& options) {
  if (options.expert == 1) return "";
  std::vector<std::string> reasons;
  const int64_t experts = spec.experts.count;
  if (!spec.experts.enabled())
    reasons.emplace_back("it has none (model.experts)");
  else if (experts % options.expert != 0)
    reasons.push_back(fmt::format("there are {} experts in each", experts));
  if (parse_device(options.device).kind != "cpu")
    reasons.push_back(fmt::format(
        "expert parallelism is there for the device cpu alone yet, not for {}", options.device));
  refuse_what_knows_whole_tensors(options, reasons);
  if (options.compression.any())
    reasons.emplace_back("what travels is not compressed beside it yet (compression)");
  if (options.local.on())
    reasons.emplace_back("ranks that share experts cannot step by themselves (delay.local_steps)");
  if (reasons.empty()) return "";
  return fmt::format("mesh.expert is {}, and the experts of the model cannot be divided so: {}",
                     options.expert, join(reasons, "; "));
}

}  // namespace onefold
