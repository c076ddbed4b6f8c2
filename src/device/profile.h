// Times every kernel of a device and counts its work: where the time of a step goes, against what
// the device could do. A profiled device is a device around another one; while its profile is off,
// calls pass through.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/dry_kernels.h"

namespace onefold {

class KernelProfile {
 public:
  // Of all calls of one kernel with one shape, as the dry device counts work.
  struct Row {
    std::string family, shape;
    int64_t calls = 0;
    double seconds = 0;
    Work work = {};
  };

  void turn(bool on) { on_ = on; }
  bool on() const { return on_; }
  // In the order in which they were first called. Complete when the host has waited for the spans
  // of the compute lane.
  const std::vector<Row>& rows() const { return rows_; }
  // The same, of all shapes of a family together.
  std::vector<Row> families() const;

  // A call that is about to be timed, and the seconds of the first call that has none yet.
  void begin(const char* family, std::string shape, const Work& work);
  void end(double seconds);

 private:
  bool on_ = false;
  std::vector<Row> rows_;
  std::map<std::pair<std::string, std::string>, size_t> places_;
  std::vector<size_t> begun_;  // rows of the calls that have not been timed
  size_t timed_ = 0;
};

std::unique_ptr<Device> profiled(std::unique_ptr<Device> device,
                                 std::shared_ptr<KernelProfile> profile);

}  // namespace onefold
