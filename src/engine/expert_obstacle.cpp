// Apart from the rest, because configurations are read where there are no ranks.
#include "base/text.h"
#include "engine/expert_load.h"
#include "engine/lines.h"

namespace onefold {

std::string obstacle_to_experts(const ModelSpec& spec, const EngineOptions& options) {
  if (!spec.experts.enabled() || options.optimizer.type != OptimizerSpec::Type::muon) return "";
  return "model.experts: Muon would make one matrix of all experts of a layer orthogonal; AdamW, "
         "Adam, SGD and Lion step each element by itself";
}

std::string obstacle_to_expert_ranks(const ModelSpec& spec, const EngineOptions& options) {
  if (options.expert == 1) return "";
  std::vector<std::string> reasons;
  const int64_t experts = spec.experts.count;
  if (!spec.experts.enabled())
    reasons.emplace_back("it has none (model.experts)");
  else if (experts % options.expert != 0)
    reasons.push_back(fmt::format("there are {} experts in each", experts));
  refuse_what_knows_whole_tensors(options, reasons);
  if (options.local.on())
    reasons.emplace_back("ranks that share experts cannot step by themselves (delay.local_steps)");
  if (reasons.empty()) return "";
  return fmt::format("mesh.expert is {}, and the experts of the model cannot be divided so: {}",
                     options.expert, join(reasons, "; "));
}

}  // namespace onefold
