// Ranges that a profiler shows (NVTX): what the host enqueues within one belongs to it.
#pragma once

#include <string>

namespace onefold::cuda {

// Whether there is a profiler that would show them; without one, names need not be made.
bool ranges_are_shown();

class NamedRange {
 public:
  explicit NamedRange(const std::string& name);  // empty: no range
  ~NamedRange();
  NamedRange(const NamedRange&) = delete;
  NamedRange& operator=(const NamedRange&) = delete;

 private:
  const bool open_;
};

}  // namespace onefold::cuda
