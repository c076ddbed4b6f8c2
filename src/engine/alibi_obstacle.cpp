// Apart from the rest, because configurations are read where there are no ranks.
#include "engine/alibi_obstacle.h"

#include "device/device_name.h"

namespace onefold {

std::string obstacle_to_alibi(const ModelSpec& spec, const EngineOptions& options) {
  if (spec.positions != Positions::alibi || parse_device(options.device).kind == "cpu") return "";
  return fmt::format("model.positions: alibi is there for the device cpu alone yet, not for {}",
                     options.device);
}

}  // namespace onefold
