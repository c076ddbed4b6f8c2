// A machine's description (hardware.h), measured: what `plan` predicts the time of a step by.
#pragma once

#include <string>

#include "device/device.h"

namespace onefold {

// The rates of the device's kernels and copies, on shapes like those of a step. Its memory is
// shared by the probes: a GiB on a card, half of one on a processor. Links to other ranks and disks
// keep what `described` says.
Hardware measured(Device& device, Hardware described, int repeats = 5);

// GB/s of a disk past the page cache, by a file of 256 MiB in this folder.
struct DiskRates {
  double read = 0, write = 0;
};
DiskRates measure_disk(const std::string& folder);

}  // namespace onefold
