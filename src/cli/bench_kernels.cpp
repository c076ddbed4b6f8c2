// onefold bench kernels: each kernel on shapes of realistic size, against what matrix products and
// memory reach.
#include <algorithm>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"
#include "device/device.h"
#include "kernel_cases/runner.h"
#include "kernels/probe.h"

namespace onefold::cli {
namespace {

struct KernelBench {
  std::vector<std::string> families;
  int threads = 0, repeats = 9;
  bool json = false;
};

// What the machine reaches, in operations and bytes per second.
struct KernelCeilings {
  double flops, bytes;
};

struct KernelRow {
  cases::CaseEntry entry;
  Work work;
  std::vector<double> seconds;

  double flops_rate() const { return work.flops / median(seconds); }
  double bytes_rate() const { return work.bytes / median(seconds); }
  bool bound_by_products(const KernelCeilings& ceilings) const {
    return work.flops / ceilings.flops > work.bytes / ceilings.bytes;
  }
  // The time that the ceilings allow, as a share of the time it took.
  double share(const KernelCeilings& ceilings) const {
    return std::max(flops_rate() / ceilings.flops, bytes_rate() / ceilings.bytes);
  }
};

std::vector<std::string> wanted_families(const KernelBench& b) {
  const std::vector<std::string> all = cases::case_families();
  for (const std::string& family : b.families)
    if (std::find(all.begin(), all.end(), family) == all.end())
      user_error("--families: there are no kernels \"{}\"{} (there are: {})", family,
                 did_you_mean(family, all), join(all, ", "));
  return b.families.empty() ? all : b.families;
}

void print_row(const KernelRow& row, const KernelCeilings& ceilings) {
  const auto rate = [](double per_second) {
    return per_second == 0 ? std::string("-") : fmt::format("{:.1f}", per_second / 1e9);
  };
  fmt::print("  {:<44}{:>10.3f} ms{:>9}{:>9}{:>7.0f} % of {}\n", row.entry.name,
             1e3 * median(row.seconds), rate(row.flops_rate()), rate(row.bytes_rate()),
             100 * row.share(ceilings), row.bound_by_products(ceilings) ? "products" : "memory");
}

Json to_json(const KernelRow& row, const KernelCeilings& ceilings) {
  return {{"family", row.entry.family},
          {"name", row.entry.name},
          {"flops", row.work.flops},
          {"bytes", row.work.bytes},
          {"seconds", row.seconds},
          {"gflops", row.flops_rate() / 1e9},
          {"gb_per_s", row.bytes_rate() / 1e9},
          {"bound", row.bound_by_products(ceilings) ? "products" : "memory"},
          {"ceiling_fraction", row.share(ceilings)}};
}

int run_kernels(const KernelBench& b) {
  const std::vector<std::string> families = wanted_families(b);
  const std::unique_ptr<Device> device = open_device("cpu", b.threads);
  const KernelCeilings ceilings{1e9 * measure_gemm_gflops(*device->pool()),
                                1e9 * measure_memory_gb_per_s(*device->pool())};
  Json result = {{"device", device->name()},
                 {"threads", device->threads()},
                 {"repeats", b.repeats},
                 {"gemm_gflops", ceilings.flops / 1e9},
                 {"memory_gb_per_s", ceilings.bytes / 1e9},
                 {"results", Json::array()}};
  if (!b.json) {
    fmt::print("{}, {} thread{}: {:.1f} GFLOP/s of matrix products and {:.1f} GB/s of memory\n",
               device->name(), device->threads(), device->threads() == 1 ? "" : "s",
               ceilings.flops / 1e9, ceilings.bytes / 1e9);
    fmt::print("\n{:<46}{:>13}{:>9}{:>9}  {}\n", "", "time", "GFLOP/s", "GB/s", "share");
  }
  for (const std::string& family : families) {
    if (!b.json) fmt::print("{}\n", family);
    for (const cases::CaseEntry& entry : cases::benchmarks_of(family)) {
      const cases::Case test = entry.make();
      Ledger ledger(*device->memory(Tier::device));
      const KernelRow row{entry, cases::work_of(test),
                          cases::time_case(*device, ledger, test, b.repeats)};
      if (b.json)
        result["results"].push_back(to_json(row, ceilings));
      else
        print_row(row, ceilings);
    }
  }
  if (b.json) print_json(result);
  return kOk;
}

}  // namespace

void add_bench_kernels(CLI::App& bench, Run& run) {
  auto options = std::make_shared<KernelBench>();
  CLI::App* kernels = bench.add_subcommand(
      "kernels", "Each kernel on GPT-2's shapes, against matrix products and memory");
  kernels
      ->add_option("--families", options->families,
                   "Families of kernels, as in gemm,attention; all of them if left away")
      ->delimiter(',');
  kernels->add_option("--threads", options->threads, "Threads; 0 is one for each core")
      ->check(at_least(0))
      ->capture_default_str();
  kernels->add_option("--repeats", options->repeats, "Timed repeats of each; medians are printed")
      ->check(at_least(1))
      ->capture_default_str();
  kernels->add_flag("--json", options->json, "One JSON object instead of text");
  kernels->footer("Example:\n  onefold bench kernels --families gemm,attention --threads 2");
  kernels->callback([options, &run] { run = [options] { return run_kernels(*options); }; });
}

}  // namespace onefold::cli
