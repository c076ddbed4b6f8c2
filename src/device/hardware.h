// What a rank runs on, as data: a small JSON file, a preset, or a description of this machine. The
// dry device is made from one and from nothing else, so that a plan is the same wherever it is
// made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace onefold {

// Of one rank: ranks that share a machine share out its cores and its memory.
struct Hardware {
  std::string name = "cpu";
  std::string device = "cpu";            // whose kernels are planned: cpu or cuda
  std::string instruction_set = "AVX2";  // of the processor's vector kernels, as `info` names it
  bool multiplies_bf16 = false;          // by instructions of its own: AMX or AVX512_BF16
  int cores = 1;                         // threads of a rank, unless run.threads says otherwise
  // Rates, of all cores together. Matrix products: of a large one, in fp32 and in 16 bits (0: as
  // many), and what a step's own products and attention reach of them. Where operands of 16 bits
  // are packed, that and what else is read and written takes its time beside the arithmetic (0: it
  // is hidden), and each product takes a time of its own until all threads are at work and done.
  double product_gflops = 100;
  double half_product_gflops = 0;
  double product_share = 0.87;
  double half_product_share = 0;  // 0: as product_share
  double half_operand_gb_per_s = 0;
  double half_product_latency_us = 0;
  double attention_share = 0.35;
  double half_attention_share = 0;  // 0: as attention_share
  // What a kernel reads and writes; what touches no more than cache_bytes goes at the cache's rate
  // (0: there is none).
  double memory_gb_per_s = 20;
  double cache_gb_per_s = 0;
  int64_t cache_bytes = 0;
  double function_gelems_per_s = 0;  // elements that an exponential is taken of; 0: as memory's
  double kernel_latency_us = 3;      // of each kernel, beside its work
  double link_gb_per_s = 10;         // to other ranks, one way
  double link_latency_us = 5;
  // Where so many ranks share a host: their own links to other hosts, each one way. 0: all links
  // are alike.
  int host_ranks = 0;
  double between_hosts_gb_per_s = 0;
  double between_hosts_latency_us = 0;  // 0: as link_latency_us
  double host_gb_per_s = 20;            // between the device and the host's memory, one way
  double host_memory_gb_per_s = 100;    // what the host's cores read and write, beside a card
  // Of the bytes that a card's copies move, how many the host's cores read and write less
  // meanwhile.
  double host_copy_share = 1;
  double disk_gb_per_s = 2;        // reading
  double disk_write_gb_per_s = 0;  // 0: as reading
  int64_t device_bytes = 0;        // memory by tier; 0: not said
  // Of device_bytes, what a card's driver and libraries take for themselves: no run gets it.
  int64_t context_bytes = 0;
  int64_t host_bytes = 0;
  int64_t disk_bytes = 0;

  // What runs may take of the device's memory; 0: not said.
  int64_t available_bytes() const {
    return device_bytes == 0 ? 0 : std::max<int64_t>(1, device_bytes - context_bytes);
  }

  Json to_json() const;
};

// Strict: an unknown key is an error with a suggestion. `where` names the file in errors.
Hardware hardware_from_json(const Json& json, const std::string& where);
// A preset's name, or the path of a file that holds a description.
Hardware hardware_named(const std::string& name_or_path);
std::vector<std::string> hardware_presets();

// This machine, with `cores` of it for each of `ranks` ranks: what a run is planned for before it
// starts. Rates are not measured. On cards (device_name.h), device_bytes is what is free for each
// rank, beside the context, the least of all cards where they have one each; UserError where they
// do not get one.
Hardware this_machine(int cores, const std::string& device = "cpu", int ranks = 1);

}  // namespace onefold
