// What the operating system says about this process and its machine.
#pragma once

#include <cstdint>
#include <string>

namespace onefold {

// Peak and current resident set.
int64_t peak_rss_bytes();
int64_t current_rss_bytes();

// A field of /proc/meminfo ("MemTotal", "MemAvailable"); 0 if there is none.
int64_t memory_bytes(const std::string& field);

// The processor's name; "unknown" if the system does not say.
std::string cpu_name();

}  // namespace onefold
