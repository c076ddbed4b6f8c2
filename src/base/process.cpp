#include "base/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

namespace onefold {

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int64_t current_rss_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t memory_bytes(const std::string& field) {
  std::ifstream info("/proc/meminfo");
  std::string name, unit;
  for (int64_t kib = 0; info >> name >> kib; std::getline(info, unit))
    if (name == field + ":") return kib * 1024;
  return 0;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace onefold
