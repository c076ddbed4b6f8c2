// onefold info: what this machine is, and what it measures.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/files.h"
#include "base/process.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "cli/cli.h"
#include "comm/mpi.h"
#include "comm/mpi_library.h"
#include "device/cuda_library.h"
#include "device/hardware_measured.h"
#include "engine/launch.h"
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
  std::string save, disk, device = "cpu";
  int ranks = 0;  // 0: not given
};

// A link between ranks: an all-gather takes latency_us and its bytes at gb_per_s.
struct LinkRates {
  double gb_per_s = 0, latency_us = 0;
};

LinkRates measure_link(Communicator& communicator) {
  constexpr int64_t kShard = int64_t{16} << 20;
  constexpr size_t kAlignment = 64;
  constexpr int kBarriers = 200, kGathers = 5;
  std::vector<std::byte> scratch(static_cast<size_t>(communicator.scratch_bytes()) + kAlignment),
      whole(static_cast<size_t>(kShard * communicator.ranks()));
  void* aligned = scratch.data();
  size_t space = scratch.size();
  const auto channel = communicator.open(
      "info", std::align(kAlignment, scratch.size() - kAlignment, aligned, space));
  const Message message{whole.data(), whole.data() + communicator.rank() * kShard,
                        kShard / dtype_bytes(DType::f32)};
  const auto seconds = [&](int calls, const auto& call) {
    call();  // warms up
    const double begin = now_seconds();
    for (int i = 0; i < calls; ++i) call();
    return (now_seconds() - begin) / calls;
  };
  const double barrier = seconds(kBarriers, [&] { channel->barrier("info"); }),
               gather = seconds(kGathers, [&] {
                 channel->all_gather("info", {&message, 1});
               });
  return {static_cast<double>(kShard * (communicator.ranks() - 1)) / gather / 1e9, 1e6 * barrier};
}

// What one of so many ranks of this machine has, as a hardware description for `plan --hardware`.
// All measure at the same time: in a step too they compete for memory, caches and the disk.
Hardware describe_rank(const InfoArguments& arguments, int threads, int ranks) {
  const bool card = arguments.device != "cpu";
  const std::unique_ptr<Device> device = open_device(arguments.device, threads);
  Hardware described = this_machine(device->threads(), arguments.device);
  if (!card) described.device_bytes = total_memory_bytes() / ranks;
  if (card) described.host_bytes = total_memory_bytes();
  Hardware machine = measured(*device, described);
  if (!arguments.disk.empty()) {
    const DiskRates disk = measure_disk(arguments.disk);
    machine.disk_gb_per_s = disk.read;
    machine.disk_write_gb_per_s = disk.write;
    int64_t left = 0;
    if (!files().free_bytes(arguments.disk, left)) machine.disk_bytes = left / ranks;
  }
  return machine;
}

// Of a card one rank measures: its rates are the card's. What the first rank has; of processes that
// a launcher has started, the others get nothing.
Hardware describe_machine(Ranks& ranks, const InfoArguments& arguments) {
  Hardware machine;
  ranks.run([&](const std::shared_ptr<Communicator>& communicator) {
    const bool first = !communicator || communicator->rank() == 0;
    const int threads =
        arguments.threads > 0 ? std::max(1, arguments.threads / ranks.count()) : ranks.cores();
    Hardware mine;
    if (first || arguments.device == "cpu")
      mine = describe_rank(arguments, threads, ranks.ranks_here());
    if (communicator) {
      const LinkRates link = measure_link(*communicator);
      mine.link_gb_per_s = link.gb_per_s;
      mine.link_latency_us = link.latency_us;
    }
    if (first) machine = mine;
  });
  return machine;
}

int save_description(const InfoArguments& arguments) {
  Ranks ranks(arguments.ranks, {});
  const Hardware machine = describe_machine(ranks, arguments);
  if (!ranks.leads()) return kOk;
  const std::string text = machine.to_json().dump(2) + "\n";
  write_file(arguments.save, text);
  if (arguments.json)
    fmt::print("{}", text);
  else
    fmt::print(
        "{}: what {} has, as measured; plan with: onefold plan CONFIG --hardware {}\n",
        arguments.save,
        ranks.count() > 1 ? fmt::format("each of {} ranks", ranks.count()) : std::string("a rank"),
        arguments.save);
  return kOk;
}

int run_info(const InfoArguments& arguments) {
  if (!arguments.save.empty()) return save_description(arguments);
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
  auto* save = info->add_option("--save", arguments->save,
                                "Measure a hardware description for plan --hardware, and write it")
                   ->type_name("FILE");
  info->add_option("--device", arguments->device, "With --save: cpu, cuda or cuda:N")
      ->capture_default_str()
      ->needs(save);
  info->add_option("--ranks", arguments->ranks,
                   "With --save: ranks that share this machine, and measure it together")
      ->check(at_least(1))
      ->needs(save);
  info->add_option("--disk", arguments->disk, "With --save: a folder whose disk is measured too")
      ->type_name("FOLDER")
      ->needs(save);
  info->footer("Examples:\n  onefold info --json\n  onefold info --save machine.json --disk /tmp");
  info->callback([arguments, &run] { run = [arguments] { return run_info(*arguments); }; });
}

}  // namespace onefold::cli
