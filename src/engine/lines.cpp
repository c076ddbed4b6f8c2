#include "engine/lines.h"

#include "base/text.h"
#include "device/device_name.h"

namespace onefold {

std::string obstacle_to_tensor(const ModelSpec& spec, const EngineOptions& options) {
  if (options.tensor == 1) return "";
  std::vector<std::string> reasons = obstacles_to_shares(spec, options.tensor);
  if (parse_device(options.device).kind != "cpu")
    reasons.push_back(fmt::format(
        "tensor parallelism is there for the device cpu alone yet, not for {}", options.device));
  if (options.precision.moments == DType::u8)
    reasons.push_back("moments of 8 bits (data_types) cannot be divided yet");
  if (reasons.empty()) return "";
  return fmt::format("mesh.tensor is {}, and the model cannot be divided so: {}", options.tensor,
                     join(reasons, "; "));
}

Lines make_lines(const ModelSpec& spec, const EngineOptions& options,
                 std::shared_ptr<Communicator> all) {
  Lines lines{.mesh = Mesh(all->ranks(), options.tensor), .all = all, .data = all};
  if (options.tensor == 1) return lines;
  if (const std::string why = obstacle_to_tensor(spec, options); !why.empty())
    user_error("{}", why);
  lines.data = all->group(lines.mesh.group(Axis::data, all->rank()));
  lines.tensor = all->group(lines.mesh.group(Axis::tensor, all->rank()));
  if (const int count = kv_replicas(spec, options.tensor); count > 1)
    lines.replicas = all->group(lines.mesh.replicas(all->rank(), count));
  return lines;
}

}  // namespace onefold
