// Apart from the rest, because configurations are read where there are no ranks.
#include "base/text.h"
#include "engine/lines.h"

namespace onefold {

void refuse_what_knows_whole_tensors(const EngineOptions& options,
                                     std::vector<std::string>& reasons) {
  if (options.precision.moments == DType::u8)
    reasons.emplace_back("moments of 8 bits (data_types) cannot be divided yet");
  if (!options.optimizer.elementwise())
    reasons.emplace_back(
        "its optimizer steps whole tensors, which are divided; AdamW, Adam, SGD and Lion step each "
        "element by itself");
  if (options.clip_rule.counts_tensors())
    reasons.emplace_back(
        "gradients of single tensors are not clipped where these are divided; clip by the norm of "
        "all or of a unit");
}

std::string obstacle_to_tensor(const ModelSpec& spec, const EngineOptions& options) {
  if (options.tensor == 1) return "";
  std::vector<std::string> reasons = obstacles_to_shares(spec, options.tensor);
  refuse_what_knows_whole_tensors(options, reasons);
  if (reasons.empty()) return "";
  return fmt::format("mesh.tensor is {}, and the model cannot be divided so: {}", options.tensor,
                     join(reasons, "; "));
}

}  // namespace onefold
