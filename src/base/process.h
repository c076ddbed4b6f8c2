// What the operating system says about this process and its machine.
#pragma once

#include <cstdint>
#include <string>

namespace onefold {

// Peak and current resident set.
int64_t peak_rss_bytes();
int64_t current_rss_bytes();

// The memory that this process may use, and what is left of it: the machine's, or less where a
// control group (a container, a batch system's job) limits it. 0: the system does not say. `root`
// is where /proc and /sys are, for tests.
int64_t total_memory_bytes(const std::string& root = "");
int64_t available_memory_bytes(const std::string& root = "");

// What OMP_NUM_THREADS asks for, the first number of it; 0 if it is not set or is no such number.
int threads_by_environment();

// The processor's name; "unknown" if the system does not say.
std::string cpu_name();

}  // namespace onefold
