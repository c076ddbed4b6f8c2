// Every way to train the tiny models on several ranks. All of one model and one division of the
// batch must end with the same bits, and each rank must hold what its plan says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace onefold::test {

struct Configuration {
  std::string model;
  int stage = 0;
  int64_t prefetch_elems = 0;
  int64_t bucket_elems = 0;
  int micros = 1;
  Order order = Order::micro_first;
  std::string optimizer = "adamw";  // engine/optimizers.h
  std::string compression = "";     // engine/compressions.h
  MeshAxes axes = {};               // beside data

  ModelSpec spec() const;
  EngineOptions options() const;
  std::string batch() const;  // "gpt2-tiny, 4 micro-batches": what the bits may depend on
  std::string name() const;   // and all the rest
};

// `quick`: of the ways of travel only one for each model, stage and division of the batch, but all
// of them somewhere.
std::vector<Configuration> matrix(bool quick);

// The same of optimizers: each at every stage.
std::vector<Configuration> optimizer_matrix();

// The same of compressions; and of some of them beside the other axes of a mesh of four ranks.
std::vector<Configuration> compression_matrix();
std::vector<Configuration> compression_mesh_matrix();

// Trains each for so many steps; rank 0 prints a line for each:
//   name | hash of all losses and weights | planned peak bytes | each rank's measured peak bytes
// Rank 0 throws, with the difference named, where hashes or peaks differ on any rank.
void walk(const std::vector<Configuration>& configurations, int steps,
          const std::shared_ptr<Communicator>& communicator);

}  // namespace onefold::test
