// Runs cases on a device.
#pragma once

#include <string>
#include <vector>

#include "device/device.h"
#include "device/dry_kernels.h"
#include "kernel_cases/case.h"
#include "tensor/ledger.h"

namespace onefold::cases {

struct CaseResult {
  std::vector<HostTensor> tensors;    // as they came back; none from a dry device
  std::vector<std::string> failures;  // a sentence for each promise that was broken
};

// Copies the case's tensors to memory of the ledger, calls the kernel, and copies all of them back.
// Checks what holds for every kernel: inputs keep their bits, and nothing is written between rows
// or behind a tensor.
CaseResult run_case(Device& device, Ledger& ledger, const Case& test);

// What differs from what was expected: at most one sentence for each.
std::vector<std::string> differences(const Case& test, const CaseResult& result,
                                     const std::vector<Expected>& expected);
// Whether all that was written has the same bits in two results of one case.
std::vector<std::string> bit_differences(const Case& test, const CaseResult& a,
                                         const CaseResult& b);
// The same for the parts of a case and of its twin.
std::vector<std::string> bit_differences(const Case& test, const CaseResult& result,
                                         const Case& twin, const CaseResult& twin_result,
                                         const std::vector<Twin::Part>& parts);

// Operations and bytes of one call, as the dry device counts them.
Work work_of(const Case& test);

// Seconds of each repeat, after one that warms up.
std::vector<double> time_case(Device& device, Ledger& ledger, const Case& test, int repeats);

}  // namespace onefold::cases
