#include "base/numa.h"

#include <hwloc.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace onefold {
namespace {

// Of this machine, or of the one that is described.
std::vector<NumaNode> nodes_from_hwloc(const char* described) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {};
  const bool loaded = (!described || hwloc_topology_set_synthetic(topology, described) == 0) &&
                      hwloc_topology_load(topology) == 0;
  std::vector<NumaNode> nodes;
  hwloc_obj_t node = nullptr;
  while (loaded && (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node))) {
    nodes.push_back({static_cast<int>(node->os_index), {}});
    for (int cpu = hwloc_bitmap_first(node->cpuset); cpu >= 0;
         cpu = hwloc_bitmap_next(node->cpuset, cpu))
      nodes.back().cpus.push_back(cpu);
  }
  hwloc_topology_destroy(topology);
  if (described) require(loaded, "hwloc does not know the machine \"{}\"", described);
  return nodes;
}

std::vector<int> cpus_of_this_thread() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &mask)) cpus.push_back(cpu);
  return cpus;
}

}  // namespace

std::vector<NumaNode> described_numa_nodes(const std::string& machine) {
  return nodes_from_hwloc(machine.c_str());
}

std::vector<NumaNode> numa_nodes_of(const std::vector<NumaNode>& machine,
                                    const std::vector<int>& cpus) {
  const char* wish = std::getenv("ONEFOLD_NUMA");
  if (wish && std::string_view(wish) == "off") return {};
  std::vector<NumaNode> nodes;
  for (const NumaNode& node : machine) {
    NumaNode usable{node.number, {}};
    for (const int cpu : node.cpus)
      if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end()) usable.cpus.push_back(cpu);
    if (!usable.cpus.empty()) nodes.push_back(std::move(usable));
  }
  return nodes.size() > 1 ? nodes : std::vector<NumaNode>{};
}

std::vector<NumaNode> numa_nodes() {
  static const std::vector<NumaNode> machine = nodes_from_hwloc(nullptr);
  if (machine.size() < 2) return {};
  return numa_nodes_of(machine, cpus_of_this_thread());
}

size_t node_of_thread(std::span<const NumaNode> nodes, int thread, int threads) {
  size_t cores = 0;
  for (const NumaNode& node : nodes) cores += node.cpus.size();
  // The core that the thread would have if threads were spread evenly.
  size_t core = static_cast<size_t>(thread) * cores / static_cast<size_t>(threads);
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (core < nodes[i].cpus.size()) return i;
    core -= nodes[i].cpus.size();
  }
  internal_error("thread {} of {} on {} nodes", thread, threads, nodes.size());
}

void bind_to_node(const NumaNode& node) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int cpu : node.cpus)
    if (cpu < CPU_SETSIZE) CPU_SET(cpu, &mask);
  sched_setaffinity(0, sizeof(mask), &mask);
}

void interleave_pages(void* block, int64_t bytes, std::span<const NumaNode> nodes) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  unsigned long mask[1024 / kBits] = {};
  for (const NumaNode& node : nodes) {
    const auto number = static_cast<size_t>(node.number);
    if (number < 1024) mask[number / kBits] |= 1ul << number % kBits;
  }
  // The C library has no function for it.
  syscall(SYS_mbind, block, static_cast<size_t>(bytes), MPOL_INTERLEAVE, mask, 1024ul + 1, 0u);
}

}  // namespace onefold
