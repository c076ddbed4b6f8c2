// The state of one walk over a program: what has been computed and is still needed, and what is
// under way on the lanes. Private to the engine.
#pragma once

#include <map>
#include <vector>

#include "engine/engine.h"

namespace onefold {

struct Engine::Walk {
  struct Held {
    Buffer input, saved;
  };
  struct Ticket {
    Lane lane;
    int64_t job;
    std::string name;
  };
  std::span<const BatchView> micros;
  std::vector<std::vector<Held>> held;  // [unit][micro]
  std::vector<Buffer> streams;          // [micro]
  std::map<int, Ticket> tickets;
  std::span<KvCache> caches;
  bool training = false;
  float loss_scale = 0;
  double loss_sum = 0;  // of this rank; after clip, of all
  // This rank's first loss or gradient that is not finite. It goes on to clip, where all ranks
  // meet: one that stopped at once would leave the others, and the checkpoint under way, behind.
  std::string diverged;
  double learning_rate = 0;
  double gradient_norm = 0;
  double gradient_scale = 1;

  Walk(std::span<const BatchView> batches, size_t units)
      : micros(batches), held(units), streams(batches.size()) {
    for (auto& unit : held) unit.resize(batches.size());
  }
};

}  // namespace onefold
