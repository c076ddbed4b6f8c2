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

namespace {

// Successive ones of those that share state.
void add_node(const EngineOptions& options, const std::vector<int>& sharing, Lines& lines) {
  if (const std::string why = obstacle_to_nodes(options, lines.all->ranks()); !why.empty())
    user_error("{}", why);
  const int inside = options.zero.node_ranks, first = lines.data->rank() / inside * inside;
  const RankGroup node{"node", {sharing.begin() + first, sharing.begin() + first + inside}};
  lines.node = lines.all->group(node);
  if (options.expert == 1 || expert_node_ranks(options, lines.all->ranks()) == 0) return;
  RankGroup same{"same experts of a node", {}};
  const int expert = lines.mesh.place(Axis::expert, lines.all->rank());
  for (const int rank : node.members)
    if (lines.mesh.place(Axis::expert, rank) == expert) same.members.push_back(rank);
  lines.expert_node = lines.all->group(same);
}

}  // namespace

Lines make_lines(const ModelSpec& spec, const EngineOptions& options,
                 std::shared_ptr<Communicator> all) {
  Lines lines{.mesh = mesh_of(options, all->ranks()), .all = all, .data = all};
  const int rank = all->rank();
  if (options.local.on()) lines.data = make_dry_communicator(1);  // each rank for itself
  if (options.training && options.compression.host_ranks > 1)
    add_hosts(options.compression.host_ranks, lines);
  const bool nodes = options.zero.node_ranks > 1;
  if (lines.mesh.size(Axis::data) == all->ranks()) {
    if (nodes) add_node(options, lines.mesh.group(Axis::data, rank).members, lines);
    return lines;
  }
  if (const std::string why = obstacle_to_mesh(spec, options); !why.empty()) user_error("{}", why);
  std::vector<Axis> same, summing;  // axes of equal experts, and of all sums of gradients
  if (options.context > 1) same.push_back(Axis::context);
  summing = same;
  if (options.expert > 1) summing.push_back(Axis::expert);
  for (std::vector<Axis>* axes : {&same, &summing}) axes->push_back(Axis::data);
  lines.data = all->group(lines.mesh.group(summing, rank));
  if (nodes) add_node(options, lines.mesh.group(summing, rank).members, lines);
  if (options.context > 1) lines.context = all->group(lines.mesh.group(Axis::context, rank));
  lines.method = options.context_method;
  lines.scattered = scatters(options);
  lines.overlapped = overlaps_exchanges(options);
  lines.beside = exchanges_beside(options);
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
