#include "engine/lines.h"

#include "base/error.h"

namespace onefold {

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
