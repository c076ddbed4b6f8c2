// Where a step's time goes, kernel family by kernel family, and how near each is to what the device
// could do: the larger of its operations at the measured product rate, and its bytes at the
// measured memory rate.
#pragma once

#include <string>

#include "base/json.h"
#include "device/profile.h"

namespace onefold::cli {

struct Ceilings {
  double product_gflops, memory_gb_per_s;
  double kept = 1;  // of the choices of experts: products of experts are counted for these alone
};

// A line for each family, the longest first, and their sum.
std::string roofline_table(const KernelProfile& profile, const Ceilings& ceilings);
// The same for every shape.
Json roofline_json(const KernelProfile& profile, const Ceilings& ceilings);

}  // namespace onefold::cli
