// onefold info: what this machine is, and what it measures.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/process.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "cli/cli.h"
#include "comm/mpi.h"
#include "comm/mpi_library.h"
#include "device/cuda_library.h"
#include "device/disk.h"
#include "device/hardware.h"
#include "kernels/kernels.h"
#include "kernels/probe.h"

namespace onefold::cli {
namespace {

// Devices that the NVIDIA driver shows.
int64_t visible_gpus() {
  std::error_code error;
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    (void)entry;
    ++count;
  }
  return count;
}

// The cards that this program can use, or why it cannot.
struct Cards {
  std::vector<CudaCard> all;
  std::string problem;
};

Cards find_cards() {
  try {
    return {cuda_cards(), ""};
  } catch (const UserError& error) {
    return {{}, error.what()};
  }
}

Json cards_json(const Cards& cards) {
  Json list = Json::array();
  for (const CudaCard& card : cards.all)
    list.push_back({{"name", card.name},
                    {"capability", fmt::format("{}.{}", card.major, card.minor)},
                    {"memory_bytes", card.bytes},
                    {"usable", card.problem.empty()}});
  return list;
}

// A card on each line, under the name by which --device knows it.
std::string cards_text(const Cards& cards, int64_t gpus) {
  if (!cards.problem.empty())
    return gpus == 0 ? "none visible"
                     : fmt::format("{} visible, and not used: {}", gpus, cards.problem);
  std::string text;
  for (size_t number = 0; number < cards.all.size(); ++number) {
    const CudaCard& card = cards.all[number];
    text += fmt::format("{}cuda:{}  {}, {}, compute capability {}.{}{}{}",
                        number == 0 ? "" : "\n         ", number, card.name,
                        format_bytes(card.bytes), card.major, card.minor,
                        card.problem.empty() ? "" : "; not used: it ", card.problem);
  }
  return text;
}

struct InfoArguments {
  int threads = 0;
  bool json = false;
  std::string save, disk;
};

// GB/s of a disk: the slower of writing and reading a file past the page cache.
double measure_disk_gb_per_s(const std::string& folder) {
  constexpr size_t kBytes = size_t{256} << 20;
  Disk disk(folder);
  void* const block = disk.take(kBytes);
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kDiskBlock, kBytes)), &std::free);
  if (!memory) user_error("there is no memory for measuring the disk");
  const std::span<std::byte> bytes(memory.get(), kBytes);
  std::fill(bytes.begin(), bytes.end(), std::byte{1});
  double slowest = 0;
  for (const bool writing : {true, false}) {
    const double begin = now_seconds();
    writing ? disk.write(block, bytes) : disk.read(block, bytes);
    slowest = std::max(slowest, now_seconds() - begin);
  }
  return static_cast<double>(kBytes) / slowest / 1e9;
}

// This machine as a hardware description, for `plan --hardware`.
void save_description(const InfoArguments& arguments, ThreadPool& pool, double gemm,
                      double memory) {
  Hardware machine = this_machine(pool.threads());
  machine.product_gflops = gemm;
  machine.half_product_gflops = measure_gemm_gflops(pool, 7, DType::bf16);
  machine.memory_gb_per_s = memory;
  machine.host_gb_per_s = memory / 2;  // a copy reads and writes
  machine.device_bytes = total_memory_bytes();
  if (!arguments.disk.empty()) machine.disk_gb_per_s = measure_disk_gb_per_s(arguments.disk);
  write_file(arguments.save, machine.to_json().dump(2) + "\n");
}

int run_info(const InfoArguments& arguments) {
  ThreadPool pool(arguments.threads);
  const double gemm = measure_gemm_gflops(pool);
  const double memory = measure_memory_gb_per_s(pool);
  if (!arguments.save.empty()) save_description(arguments, pool, gemm, memory);
  const int64_t gpus = visible_gpus();
  const Cards cards = find_cards();
  const Json result = {{"version", ONEFOLD_VERSION},
                       {"cpu", cpu_name()},
                       {"cores", available_cores()},
                       {"threads", pool.threads()},
                       {"simd", cpu_simd_name()},
                       {"memory_bytes", total_memory_bytes()},
                       {"available_bytes", available_memory_bytes()},
                       {"gpus", gpus},
                       {"cuda", cards.problem.empty()},
                       {"cards", cards_json(cards)},
                       {"mpi", mpi_library().api != nullptr},
                       {"gemm_gflops", gemm},
                       {"memory_gb_per_s", memory}};
  if (arguments.json) {
    print_json(result);
    return kOk;
  }
  fmt::print("onefold  {}\n", ONEFOLD_VERSION);
  fmt::print("CPU      {}, {} core{} available, SIMD in use: {}\n", cpu_name(), available_cores(),
             available_cores() == 1 ? "" : "s", cpu_simd_name());
  fmt::print("memory   {}, {} available\n", format_bytes(total_memory_bytes()),
             format_bytes(available_memory_bytes()));
  fmt::print("GPUs     {}\n", cards_text(cards, gpus));
  fmt::print("MPI      {}\n", mpi_status());
  fmt::print("measured on {} thread{}: {:.1f} GFLOP/s matrix products (f32), {:.1f} GB/s memory\n",
             pool.threads(), pool.threads() == 1 ? "" : "s", gemm, memory);
  return kOk;
}

}  // namespace

void add_info(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<InfoArguments>();
  CLI::App* info = app.add_subcommand("info", "Describe this machine and measure its ceilings");
  info->add_option("--threads", arguments->threads, "Threads to measure with; 0 takes all cores")
      ->check(at_least(0))
      ->capture_default_str();
  info->add_flag("--json", arguments->json, "One JSON object instead of text");
  info->add_option("--save", arguments->save,
                   "Write what was measured as a hardware description, for plan --hardware")
      ->type_name("FILE");
  info->add_option("--disk", arguments->disk, "With --save: a folder whose disk is measured too")
      ->type_name("FOLDER");
  info->footer("Examples:\n  onefold info --json\n  onefold info --save machine.json --disk /tmp");
  info->callback([arguments, &run] { run = [arguments] { return run_info(*arguments); }; });
}

}  // namespace onefold::cli
