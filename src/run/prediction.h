// How long a step takes, as a hardware description predicts it: the dry device's clock, read after
// a dry run of the same programs.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "io/trace_file.h"

namespace onefold {

struct Prediction {
  // A lane beside computation: how long it is at work, and how much of that computation waits for.
  struct LaneTime {
    Lane lane = Lane::gather;
    double busy = 0, exposed = 0;
  };

  std::string hardware;  // whose rates
  double seconds = 0;    // of a step
  double tokens_per_second = 0;
  // Of computation: kernels that are bound by products, and those bound by memory or by their
  // number.
  double products = 0, memory = 0;
  std::vector<LaneTime> lanes;  // those that have work
  RankTrace trace;              // of one step

  // Of a rank that was predicted alone: the step of all stages of its pipeline takes so long.
  void wait_for_other_stages(double step_seconds);

  double exposed() const;
  // What takes the largest part of the step: "products", "memory", or a lane's name.
  std::string bound_by() const;
};

// Of the step after the one that `dry` has made, so that what one step leaves to the next counts.
Prediction predict(Engine& dry, const std::string& hardware);

// What a rank's lanes did since `begin`, which becomes 0.
RankTrace rank_trace(Engine& engine, double begin);

std::string prediction_text(const Prediction& prediction);
Json prediction_json(const Prediction& prediction);

}  // namespace onefold
