// A rank's communicators along the axes of the mesh.
#pragma once

#include <memory>

#include "comm/mesh.h"
#include "engine/options.h"

namespace onefold {

struct Lines {
  Mesh mesh;
  std::shared_ptr<Communicator> all;
  std::shared_ptr<Communicator> data;      // `all` where there is no other axis
  std::shared_ptr<Communicator> tensor;    // null without that axis
  std::shared_ptr<Communicator> replicas;  // of key and value heads; null where there are none
  std::shared_ptr<Communicator> pipeline;  // null without that axis
  // Of gradients that are compressed between hosts alone: the ranks of this host, and those of the
  // same place on every host; else null.
  std::shared_ptr<Communicator> inside, between;

  int place() const { return mesh.place(Axis::pipeline, all->rank()); }
  Share share() const { return {mesh.place(Axis::tensor, all->rank()), mesh.size(Axis::tensor)}; }
};

// Makes the groups; all ranks do. Throws UserError where the model, the options or the transport
// cannot be divided so.
Lines make_lines(const ModelSpec& spec, const EngineOptions& options,
                 std::shared_ptr<Communicator> all);

// Why a model with these options cannot be divided among options.tensor ranks: a sentence that ends
// with all reasons; "" if it can.
std::string obstacle_to_tensor(const ModelSpec& spec, const EngineOptions& options);

inline Mesh mesh_of(const EngineOptions& options, int ranks) {
  return Mesh(ranks, {.tensor = options.tensor,
                      .context = options.context,
                      .expert = options.expert,
                      .pipeline = options.pipeline.ranks});
}
// Ranks of the data axis.
inline int data_ranks(const EngineOptions& options, int ranks) {
  return mesh_of(options, ranks).size(Axis::data);
}

// Those that sum their gradients in every step, and so may share state.
inline int summing_ranks(const EngineOptions& options, int ranks) {
  return options.local.on() ? 1 : data_ranks(options, ranks);
}

// The units of a rank's share.
inline Model model_of(const ModelSpec& spec, const EngineOptions& options,
                      int64_t logits_bytes = kLogitsBytes, int rank = 0) {
  return Model(spec, logits_bytes, {rank % options.tensor, options.tensor});
}

}  // namespace onefold
