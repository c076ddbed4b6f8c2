// Apart from the rest, because configurations are read where there are no ranks.
#include "engine/lines.h"
#include "engine/stages.h"

namespace onefold {

std::string obstacle_to_mesh(const ModelSpec& spec, const EngineOptions& options) {
  for (const auto& obstacle :
       {obstacle_to_tensor, obstacle_to_context, obstacle_to_pipeline, obstacle_to_expert_ranks})
    if (std::string why = obstacle(spec, options); !why.empty()) return why;
  return "";
}

}  // namespace onefold
