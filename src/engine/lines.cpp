#include "engine/lines.h"

#include "base/error.h"
#include "engine/stages.h"

namespace onefold {
namespace {

void add_hosts(int host_ranks, Lines& lines) {
  const int ranks = lines.all->ranks(), rank = lines.all->rank();
  if (ranks % host_ranks != 0 || ranks == host_ranks)
    user_error(
        "compression.ranks_per_host is {}, and {} ranks are no hosts of so many: it must "
        "divide their number, and be less",
        host_ranks, ranks);
  RankGroup inside{"host", {}}, between{"between hosts", {}};
  for (int r = 0; r < ranks; ++r) {
    if (r / host_ranks == rank / host_ranks) inside.members.push_back(r);
    if (r % host_ranks == rank % host_ranks) between.members.push_back(r);
  }
  lines.inside = lines.all->group(inside);
  lines.between = lines.all->group(between);
}

}  // namespace

Lines make_lines(const ModelSpec& spec, const EngineOptions& options,
                 std::shared_ptr<Communicator> all) {
  Lines lines{.mesh = mesh_of(options, all->ranks()), .all = all, .data = all};
  const int rank = all->rank();
  if (options.local.on()) lines.data = make_dry_communicator(1);  // each rank for itself
  if (options.training && options.compression.host_ranks > 1)
    add_hosts(options.compression.host_ranks, lines);
  if (lines.mesh.size(Axis::data) == all->ranks()) return lines;
  for (const std::string& why :
       {obstacle_to_tensor(spec, options), obstacle_to_context(spec, options),
        obstacle_to_pipeline(spec, options), obstacle_to_expert_ranks(spec, options)})
    if (!why.empty()) user_error("{}", why);
  std::vector<Axis> same, summing;  // axes of equal experts, and of all sums of gradients
  if (options.context > 1) same.push_back(Axis::context);
  summing = same;
  if (options.expert > 1) summing.push_back(Axis::expert);
  for (std::vector<Axis>* axes : {&same, &summing}) axes->push_back(Axis::data);
  lines.data = all->group(lines.mesh.group(summing, rank));
  if (options.context > 1) lines.context = all->group(lines.mesh.group(Axis::context, rank));
  lines.method = options.context_method;
  if (options.expert > 1) {
    lines.experts = all->group(lines.mesh.group(Axis::expert, rank));
    lines.same_experts = all->group(lines.mesh.group(same, rank));
  }
  if (options.tensor > 1) lines.tensor = all->group(lines.mesh.group(Axis::tensor, rank));
  if (const int count = options.tensor > 1 ? kv_replicas(spec, options.tensor) : 1; count > 1)
    lines.replicas = all->group(lines.mesh.replicas(rank, count));
  if (options.pipeline.ranks > 1)
    lines.pipeline = all->group(lines.mesh.group(Axis::pipeline, rank));
  return lines;
}

}  // namespace onefold
