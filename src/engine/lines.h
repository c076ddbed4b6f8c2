// A rank's communicators along the axes of the mesh.
#pragma once

#include <algorithm>
#include <memory>

#include "comm/mesh.h"
#include "engine/options.h"

namespace onefold {

struct Lines {
  Mesh mesh;
  std::shared_ptr<Communicator> all;
  // Of those that sum gradients, along the axes data, context and expert; `all` where there is no
  // other axis.
  std::shared_ptr<Communicator> data;
  std::shared_ptr<Communicator> tensor;    // null without that axis
  std::shared_ptr<Communicator> replicas;  // of key and value heads; null where there are none
  std::shared_ptr<Communicator> context;   // null without that axis
  ContextMethod method = ContextMethod::ulysses;
  bool scattered = false;                  // Share::scattered
  bool overlapped = false;                 // Share::overlapped
  std::shared_ptr<Communicator> pipeline;  // null without that axis
  bool beside = false;                     // exchanges_beside()
  // Without the expert axis null: those that divide the experts of each mixture, and those that
  // have the same ones, along the axes data and context.
  std::shared_ptr<Communicator> experts, same_experts;
  // Of those that share state: the ranks of this node, which keep what was gathered
  // (ZeroOptions::node_ranks); else null.
  std::shared_ptr<Communicator> node;
  // Of these, those that have the same experts, if they keep them (expert_node_ranks).
  std::shared_ptr<Communicator> expert_node;
  // Of gradients that are compressed between hosts alone: the ranks of this host, and those of the
  // same place on every host; else null.
  std::shared_ptr<Communicator> inside, between;

  int place() const { return mesh.place(Axis::pipeline, all->rank()); }
  Share share() const {
    return {mesh.place(Axis::tensor, all->rank()),
            mesh.size(Axis::tensor),
            mesh.place(Axis::context, all->rank()),
            mesh.size(Axis::context),
            method,
            scattered,
            overlapped};
  }
  Share experts_share() const {
    return {mesh.place(Axis::expert, all->rank()), mesh.size(Axis::expert)};
  }
};

// Makes the groups; all ranks do. Throws UserError where the model, the options or the transport
// cannot be divided so.
Lines make_lines(const ModelSpec& spec, const EngineOptions& options,
                 std::shared_ptr<Communicator> all);

// Why a model with these options cannot be divided among options.tensor ranks: a sentence that ends
// with all reasons; "" if it can.
std::string obstacle_to_tensor(const ModelSpec& spec, const EngineOptions& options);
// The same of sequences and options.context ranks; and whether these can divide the attention heads
// among them (ContextMethod::ulysses).
bool divides_heads(const ModelSpec& spec, const EngineOptions& options);
std::string obstacle_to_context(const ModelSpec& spec, const EngineOptions& options);

// The same of the ranks of nodes that keep what was gathered (ZeroOptions::node_ranks), among all.
std::string obstacle_to_nodes(const EngineOptions& options, int ranks);

// The same of what travels in a wire format on a mesh of so many ranks.
std::string obstacle_to_compression(const EngineOptions& options, int ranks);

// Adds a reason for each option that needs whole tensors, which are divided among ranks.
void refuse_what_knows_whole_tensors(const EngineOptions& options,
                                     std::vector<std::string>& reasons);

inline Mesh mesh_of(const EngineOptions& options, int ranks) {
  return Mesh(ranks, {.tensor = options.tensor,
                      .context = options.context,
                      .expert = options.expert,
                      .pipeline = options.pipeline.ranks});
}
// Why its experts cannot be divided among options.expert ranks: likewise.
std::string obstacle_to_expert_ranks(const ModelSpec& spec, const EngineOptions& options);

// The first of the obstacles to a mesh's axes, this one, those above and the pipeline's (stages.h);
// "" if there is none.
std::string obstacle_to_mesh(const ModelSpec& spec, const EngineOptions& options);

// Ranks that compute other sequences: along the data and expert axes.
inline int data_ranks(const EngineOptions& options, int ranks) {
  const Mesh mesh = mesh_of(options, ranks);
  return mesh.size(Axis::data) * mesh.size(Axis::expert);
}

// Those that sum their gradients in every step, and so may share state.
inline int summing_ranks(const EngineOptions& options, int ranks) {
  return options.local.on() ? 1 : data_ranks(options, ranks) * options.context;
}
// The same of a mixture whose experts are divided.
inline int expert_summing_ranks(const EngineOptions& options, int ranks) {
  return summing_ranks(options, ranks) / options.expert;
}

// How many ranks of a node have the same experts, and keep what of these was gathered; 0: nobody
// does, because each has others, or because all that have the same are on one node. Successive
// ranks of a node go along the context axis first, then along that of experts.
inline int expert_node_ranks(const EngineOptions& options, int ranks) {
  const int inside = options.zero.node_ranks, apart = options.context * options.expert;
  const int same =
      inside % apart == 0 ? inside / options.expert : std::min(inside, options.context);
  return same > 1 && same < expert_summing_ranks(options, ranks) ? same : 0;
}

// Whether units have phases after which something travels.
inline bool units_exchange(const EngineOptions& options) {
  return options.tensor > 1 || options.context > 1 || options.expert > 1;
}

// Whether the residual is divided among the ranks of the tensor axis.
inline bool scatters(const EngineOptions& options) {
  return options.tensor > 1 && options.sequence_parallel;
}

// Whether sums between shares travel beside computation.
inline bool overlaps_exchanges(const EngineOptions& options) {
  return options.tensor > 1 && options.overlap_chunks > 1;
}

// Whether what passes between parts of sequences, and between holders of experts, travels beside
// what does not read it.
inline bool exchanges_beside(const EngineOptions& options) {
  return options.zero.overlap && (options.context > 1 || options.expert > 1);
}
inline bool has_exchange_lane(const EngineOptions& options) {
  return overlaps_exchanges(options) || exchanges_beside(options);
}

// The units of a rank's share.
inline Model model_of(const ModelSpec& spec, const EngineOptions& options,
                      int64_t logits_bytes = kLogitsBytes, int rank = 0) {
  const int outer = rank / options.tensor / options.context;
  return Model(
      spec, logits_bytes,
      {rank % options.tensor, options.tensor, rank / options.tensor % options.context,
       options.context, options.context_method, scatters(options), overlaps_exchanges(options)},
      {{outer % options.expert, options.expert}, options.expert_bound});
}

}  // namespace onefold
