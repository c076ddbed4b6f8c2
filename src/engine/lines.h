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

  Share share() const { return {mesh.place(Axis::tensor, all->rank()), mesh.size(Axis::tensor)}; }
};

// Makes the groups; all ranks do. Throws UserError where the model, the options or the transport
// cannot be divided so.
Lines make_lines(const ModelSpec& spec, const EngineOptions& options,
                 std::shared_ptr<Communicator> all);

// Why a model with these options cannot be divided among options.tensor ranks: a sentence that ends
// with all reasons; "" if it can.
std::string obstacle_to_tensor(const ModelSpec& spec, const EngineOptions& options);

// Ranks of the data axis.
inline int data_ranks(const EngineOptions& options, int ranks) {
  return Mesh(ranks, options.tensor).size(Axis::data);
}

// The units that a rank computes.
inline Model model_of(const ModelSpec& spec, const EngineOptions& options,
                      int64_t logits_bytes = kLogitsBytes, int rank = 0) {
  return Model(spec, logits_bytes, {rank % options.tensor, options.tensor});
}

}  // namespace onefold
