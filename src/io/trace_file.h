// Chrome's trace format, which Perfetto reads too: one process for each rank, one thread for each
// lane.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onefold {

struct RankTrace {
  struct Span {
    std::string name;
    double begin_seconds, seconds;  // since the ranks began together
    int64_t bytes;                  // sent; 0: none
  };
  struct Lane {
    std::string name;
    std::vector<Span> spans;
  };
  int rank = 0;
  std::vector<Lane> lanes;
};

// A trace as text, for its way between processes.
std::string trace_to_text(const RankTrace& trace);
RankTrace trace_from_text(const std::string& text);

void write_trace(const std::string& path, const std::vector<RankTrace>& ranks);

}  // namespace onefold
