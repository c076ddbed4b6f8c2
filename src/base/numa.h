// NUMA nodes: cores, and the memory that is near them. Where a thread may use the cores of several,
// the threads of its pools are bound to nodes, and its large blocks of memory lie on all of these
// nodes in turn, so that no node's memory serves all threads. On one node nothing is done.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace onefold {

struct NumaNode {
  int number;
  std::vector<int> cpus;
};

// The nodes on which the calling thread may run, with those of their cores that it may use. Empty
// if there is but one, and where the environment says ONEFOLD_NUMA=off.
std::vector<NumaNode> numa_nodes();
// The same of a machine's nodes and the cores that a thread may use.
std::vector<NumaNode> numa_nodes_of(const std::vector<NumaNode>& machine,
                                    const std::vector<int>& cpus);
// All nodes of the machine that hwloc's notation describes, such as "node:2 core:4 pu:1".
std::vector<NumaNode> described_numa_nodes(const std::string& machine);

// Which of the nodes a pool's thread belongs to: threads are divided as the cores are.
size_t node_of_thread(std::span<const NumaNode> nodes, int thread, int threads);

// Binds the calling thread to a node's cores. Where the system refuses, it stays where it is.
void bind_to_node(const NumaNode& node);

// Pages of the block (whole pages, not touched yet) will come from the nodes in turn. Where the
// system refuses, from the node of the thread that touches them first.
void interleave_pages(void* block, int64_t bytes, std::span<const NumaNode> nodes);

}  // namespace onefold
