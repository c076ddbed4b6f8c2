#include "engine/lines.h"

#include "base/error.h"
#include "engine/stages.h"

namespace onefold {
namespace {

// Of those that sum gradients: hosts are successive ranks, and each has as many of these.
void add_hosts(const EngineOptions& options, const std::vector<int>& summing, Lines& lines) {
  const int ranks = lines.all->ranks();
  if (const std::string why = obstacle_to_compression(options, ranks); !why.empty())
    user_error("{}", why);
  const int of_host = options.compression.host_ranks / options.tensor;
  if (of_host == 1) return;  // packets between hosts are all there are
  const int place = lines.data->rank();
  RankGroup inside{"host", {}}, between{"between hosts", {}};
  for (int i = 0; i < static_cast<int>(summing.size()); ++i) {
    const int member = summing[static_cast<size_t>(i)];
    if (i / of_host == place / of_host) inside.members.push_back(member);
    if (i % of_host == place % of_host) between.members.push_back(member);
  }
  lines.inside = lines.all->group(inside);
  lines.between = lines.all->group(between);
}

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
  const bool hosts = options.training && options.compression.host_ranks > 1;
  const bool nodes = options.zero.node_ranks > 1;
  if (lines.mesh.size(Axis::data) == all->ranks()) {
    if (hosts) add_hosts(options, lines.mesh.group(Axis::data, rank).members, lines);
    if (nodes) add_node(options, lines.mesh.group(Axis::data, rank).members, lines);
    return lines;
  }
  if (const std::string why = obstacle_to_mesh(spec, options); !why.empty()) user_error("{}", why);
  if (const std::string why = obstacle_to_compression(options, all->ranks()); !why.empty())
    user_error("{}", why);
  std::vector<Axis> same, summing;  // axes of equal experts, and of all sums of gradients
  if (options.context > 1) same.push_back(Axis::context);
  summing = same;
  if (options.expert > 1) summing.push_back(Axis::expert);
  for (std::vector<Axis>* axes : {&same, &summing}) axes->push_back(Axis::data);
  lines.data = all->group(lines.mesh.group(summing, rank));
  if (hosts) add_hosts(options, lines.mesh.group(summing, rank).members, lines);
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
