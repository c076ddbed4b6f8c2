#include "base/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>
#include <system_error>
#include <vector>

namespace onefold {
namespace {

// The number after the name in a file of names and numbers; 0 if there is none.
int64_t memory_field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line, word; std::getline(file, line);) {
    std::istringstream words(line);
    int64_t value = 0;
    if (words >> word >> value && word == name) return value;
  }
  return 0;
}

// A file that holds one number; -1 if it holds none ("max") or is not there.
int64_t only_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

struct GroupMemory {
  int64_t limit, used;  // used: without what the system can give back at once, cached files
};

// How one version of control groups names its files.
struct GroupFiles {
  std::string mount, limit, used, cached;
};

// Of the group and those above it, which bind it too. A container may see its own group as the root
// of the mount, while /proc names it by its place on the host: folders that are not there are
// passed over, the mount itself is always looked at.
void add_groups(const GroupFiles& files, const std::string& group, std::vector<GroupMemory>& list) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 2;  // v1: a huge number
  for (std::filesystem::path at = group;; at = at.parent_path()) {
    const std::string folder = files.mount + (at == "/" ? "" : at.string()) + "/";
    const int64_t limit = only_number(folder + files.limit);
    const int64_t used = only_number(folder + files.used);
    if (limit > 0 && limit < kNoLimit && used >= 0)
      list.push_back({limit, used - memory_field(folder + "memory.stat", files.cached)});
    if (at == at.parent_path()) return;
  }
}

// The control groups, of version 1 or 2, that limit the memory of this process.
std::vector<GroupMemory> limiting_groups(const std::string& root) {
  std::vector<GroupMemory> list;
  std::ifstream groups(root + "/proc/self/cgroup");
  const std::string mount = root + "/sys/fs/cgroup";
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/job" or "0::/job"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,")
      add_groups({mount, "memory.max", "memory.current", "inactive_file"}, group, list);
    else if (controllers.find(",memory,") != std::string::npos)
      add_groups({mount + "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                  "total_inactive_file"},
                 group, list);
  }
  return list;
}

}  // namespace

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

int64_t total_memory_bytes(const std::string& root) {
  int64_t least = memory_field(root + "/proc/meminfo", "MemTotal:") * 1024;
  for (const GroupMemory& group : limiting_groups(root))
    if (least == 0 || group.limit < least) least = group.limit;
  return least;
}

int64_t available_memory_bytes(const std::string& root) {
  int64_t least = memory_field(root + "/proc/meminfo", "MemAvailable:") * 1024;
  for (const GroupMemory& group : limiting_groups(root)) {
    const int64_t left = std::max<int64_t>(1, group.limit - group.used);
    if (least == 0 || left < least) least = left;
  }
  return least;
}

int threads_by_environment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  if (!text) return 0;
  int threads = 0;
  const std::string_view list = text;  // "8", or "8,2" for levels of OpenMP
  const char* end = list.data() + std::min(list.find(','), list.size());
  const auto [at, error] = std::from_chars(list.data(), end, threads);
  return error == std::errc() && at == end && threads > 0 ? threads : 0;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

}  // namespace onefold
