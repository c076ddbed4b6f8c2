// What a rank did when: spans of time on its lanes, for a picture of a step. Off until switched on.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "program/program.h"

namespace onefold {

struct TraceSpan {
  std::string name;  // "gather block.3.mlp"
  double begin = 0, end = 0;
  int64_t bytes = 0;  // sent to other ranks
  int action = -1;    // of the program: its number; -1: none
};

class Trace {
 public:
  void switch_on() { on_ = true; }
  bool on() const { return on_; }
  void add(Lane lane, TraceSpan span) {
    if (on_) spans_[static_cast<size_t>(lane)].push_back(std::move(span));
  }
  const std::vector<TraceSpan>& spans(Lane lane) const { return spans_[static_cast<size_t>(lane)]; }

 private:
  bool on_ = false;
  std::array<std::vector<TraceSpan>, kLanes> spans_;
};

}  // namespace onefold
