// onefold info: what this machine is, and what it measures.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "cli/cli.h"
#include "comm/mpi.h"
#include "comm/mpi_library.h"
#include "device/cuda_library.h"
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
};

int run_info(const InfoArguments& arguments) {
  ThreadPool pool(arguments.threads);
  const double gemm = measure_gemm_gflops(pool);
  const double memory = measure_memory_gb_per_s(pool);
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
  info->footer("Example:\n  onefold info --json");
  info->callback([arguments, &run] { run = [arguments] { return run_info(*arguments); }; });
}

}  // namespace onefold::cli
