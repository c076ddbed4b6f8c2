// What no step of some options takes less than, of a rank's device, known without a plan.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/options.h"
#include "program/pipeline.h"

namespace onefold {

// Of options that differ in what a search may choose.
class LeastBytes {
 public:
  LeastBytes(const ModelSpec& spec, int ranks) : spec_(spec), ranks_(ranks) {}

  // State, and what is kept for the backwards of the micro-batches that are under way at once, of
  // the rank that holds the most. Whatever travels, and as if all of the optimizer were in its
  // home.
  int64_t of(const EngineOptions& options);
  // State alone.
  int64_t of_state(const EngineOptions& options);

 private:
  struct State {
    // Of the whole: what backwards make, and what is not there before the last of them.
    int64_t whole = 0, gradients = 0, late = 0;
    // In the place of gradients, between two backwards of a unit: they are whole, and on the
    // device, until the last one.
    int64_t growing = 0;
  };
  struct Unit {
    int64_t saved = 0, input = 0;
    int block = -1;
    BlockPart part = BlockPart::none;
    bool keeps = false;  // backward comes to it
  };
  // Forwards of each of a rank's stages that await their backward when the most do: before all of
  // its gradients have been made, and then.
  struct UnderWay {
    std::vector<int> first, later;
  };

  const std::vector<State>& states(const EngineOptions& options);
  const std::vector<Unit>& units(const EngineOptions& options);
  const std::vector<UnderWay>& under_way(const EngineOptions& options);
  const std::vector<int>& stages(const EngineOptions& options);
  std::vector<int64_t> kept(const EngineOptions& options);  // by stage, of a micro-batch

  const ModelSpec& spec_;
  const int ranks_;
  std::map<std::string, std::vector<State>> states_;  // by place
  std::map<std::string, std::vector<Unit>> units_;
  std::map<std::tuple<int, int, int, int>, std::vector<UnderWay>> under_way_;  // by place
  std::map<std::pair<int, int>, std::vector<int>> stages_;
};

}  // namespace onefold
