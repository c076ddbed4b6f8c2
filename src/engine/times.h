// Where a rank's time went: added up from the spans of its lanes after each walk.
#pragma once

#include <array>
#include <memory>

#include "device/lane.h"
#include "engine/trace.h"
#include "program/program.h"

namespace onefold {

// Seconds spent in each verb since the engine began; communication is what computation had to wait
// for.
struct VerbTimes {
  double forward = 0, backward = 0, squares = 0, step = 0, communication = 0;
};

// Copies between the device and other tiers.
struct CopyWork {
  int64_t count = 0, bytes = 0;
  double seconds = 0;
};

class Times {
 public:
  const VerbTimes& verbs() const { return verbs_; }
  // How long computation waited for a lane's jobs.
  double exposed_seconds(Lane lane) const { return exposed_[static_cast<size_t>(lane)]; }
  // Of that, what was done in the place of computation, and so on no lane.
  double in_place_seconds(Lane lane) const { return in_place_[static_cast<size_t>(lane)]; }
  // On the lanes fetch and spill, or in their place.
  const CopyWork& copies(Lane lane) const { return copies_[lane == Lane::spill ? 1 : 0]; }
  Trace& trace() { return trace_; }
  bool tracing() const { return trace_.on(); }

  // Takes the spans that the lanes have collected; JobLabel::tag is the job's Verb.
  void collect(const std::array<LaneQueue*, kLanes>& lanes);
  // Small exchanges of the host, which never hide.
  void add_control(double seconds) {
    verbs_.communication += seconds;
    exposed_[static_cast<size_t>(Lane::compute)] += seconds;
  }

 private:
  void add_work(Lane lane, const LaneSpan& span);
  void add_in_place(Lane lane, double seconds);

  VerbTimes verbs_;
  std::array<double, kLanes> exposed_{}, in_place_{};
  std::array<CopyWork, 2> copies_{};
  Trace trace_;
};

}  // namespace onefold
