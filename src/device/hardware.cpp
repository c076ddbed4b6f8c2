#include "device/hardware.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/process.h"
#include "base/text.h"
#include "device/cuda_library.h"
#include "device/device_name.h"
#include "kernels/kernels.h"

namespace onefold {
namespace {

constexpr int kMostCores = 1 << 16;

const std::vector<Hardware>& presets() {
  static const std::vector<Hardware> kPresets = {{.name = "cpu"},
                                                 {.name = "laptop",
                                                  .instruction_set = "AVX2",
                                                  .cores = 8,
                                                  .product_gflops = 400,
                                                  .memory_gb_per_s = 50,
                                                  .device_bytes = int64_t{16} << 30},
                                                 {.name = "server-64",
                                                  .instruction_set = "AVX3",
                                                  .cores = 64,
                                                  .product_gflops = 5000,
                                                  .memory_gb_per_s = 250,
                                                  .link_gb_per_s = 12,
                                                  .device_bytes = int64_t{256} << 30},
                                                 {.name = "server-192",
                                                  .instruction_set = "AVX3",
                                                  .cores = 192,
                                                  .product_gflops = 15000,
                                                  .memory_gb_per_s = 500,
                                                  .link_gb_per_s = 25,
                                                  .device_bytes = int64_t{1} << 40},
                                                 {.name = "h100",
                                                  .device = "cuda",
                                                  .cores = 16,
                                                  .product_gflops = 50'000,
                                                  .half_product_gflops = 700'000,
                                                  .memory_gb_per_s = 2'800,
                                                  .link_gb_per_s = 300,
                                                  .host_gb_per_s = 50,
                                                  .device_bytes = int64_t{79} << 30},
                                                 {.name = "h200",
                                                  .device = "cuda",
                                                  .cores = 16,
                                                  .product_gflops = 50'000,
                                                  .half_product_gflops = 800'000,
                                                  .memory_gb_per_s = 4'000,
                                                  .link_gb_per_s = 300,
                                                  .host_gb_per_s = 50,
                                                  .device_bytes = int64_t{139} << 30}};
  return kPresets;
}

double rate(JsonObject& in, std::string_view key, double otherwise) {
  const auto value = in.get<double>(key, otherwise);
  if (!(value > 0 && value < 1e15)) in.fail(key, "must be above 0");
  return value;
}

double share(JsonObject& in, std::string_view key, double otherwise) {
  const auto value = in.get<double>(key, otherwise);
  if (!(value > 0 && value <= 1)) in.fail(key, "must be above 0, and at most 1");
  return value;
}

// A number of bytes, or text like "80GiB".
int64_t size(JsonObject& in, std::string_view key) {
  const Json value = in.get<Json>(key, Json(0));
  const int64_t bytes = value.is_string() ? parse_bytes(value.get<std::string>(), in.path(key))
                        : value.is_number_integer() ? value.get<int64_t>()
                                                    : -1;
  if (bytes < 0) in.fail(key, "must be a number of bytes, or like \"80GiB\"");
  return bytes;
}

}  // namespace

Json Hardware::to_json() const {
  return {{"name", name},
          {"device", device},
          {"instruction_set", instruction_set},
          {"cores", cores},
          {"product_gflops", product_gflops},
          {"half_product_gflops", half_product_gflops},
          {"memory_gb_per_s", memory_gb_per_s},
          {"product_share", product_share},
          {"attention_share", attention_share},
          {"kernel_latency_us", kernel_latency_us},
          {"link_gb_per_s", link_gb_per_s},
          {"link_latency_us", link_latency_us},
          {"host_gb_per_s", host_gb_per_s},
          {"disk_gb_per_s", disk_gb_per_s},
          {"device_memory", device_bytes},
          {"host_memory", host_bytes},
          {"disk", disk_bytes}};
}

Hardware hardware_from_json(const Json& json, const std::string& where) {
  try {
    JsonObject in(json, "");
    const Hardware usual;
    Hardware hardware;
    hardware.name = in.get<std::string>("name", "described");
    hardware.device = in.get<std::string>("device", usual.device);
    if (hardware.device != "cpu" && hardware.device != "cuda")
      in.fail("device",
              fmt::format("is \"{}\"; this Onefold plans for: cpu, cuda", hardware.device));
    hardware.instruction_set = in.get<std::string>("instruction_set", usual.instruction_set);
    const auto cores = in.get<int64_t>("cores", usual.cores);
    if (cores < 1 || cores > kMostCores)
      in.fail("cores", fmt::format("must be from 1 to {}", kMostCores));
    hardware.cores = static_cast<int>(cores);
    hardware.product_gflops = rate(in, "product_gflops", usual.product_gflops);
    hardware.half_product_gflops = in.non_negative("half_product_gflops", 0);
    hardware.memory_gb_per_s = rate(in, "memory_gb_per_s", usual.memory_gb_per_s);
    hardware.product_share = share(in, "product_share", usual.product_share);
    hardware.attention_share = share(in, "attention_share", usual.attention_share);
    hardware.kernel_latency_us = in.non_negative("kernel_latency_us", usual.kernel_latency_us);
    hardware.link_gb_per_s = rate(in, "link_gb_per_s", usual.link_gb_per_s);
    hardware.link_latency_us = rate(in, "link_latency_us", usual.link_latency_us);
    hardware.host_gb_per_s = rate(in, "host_gb_per_s", usual.host_gb_per_s);
    hardware.disk_gb_per_s = rate(in, "disk_gb_per_s", usual.disk_gb_per_s);
    hardware.device_bytes = size(in, "device_memory");
    hardware.host_bytes = size(in, "host_memory");
    hardware.disk_bytes = size(in, "disk");
    in.finish();
    return hardware;
  } catch (const UserError& error) {
    user_error("{}: {}", where, error.what());
  }
}

std::vector<std::string> hardware_presets() {
  std::vector<std::string> names;
  for (const Hardware& preset : presets()) names.push_back(preset.name);
  return names;
}

Hardware hardware_named(const std::string& name) {
  for (const Hardware& preset : presets())
    if (preset.name == name) return preset;
  std::error_code ignored;
  if (name.ends_with(".json") || std::filesystem::exists(name, ignored))
    return hardware_from_json(read_json(name), name);
  user_error("there is no hardware \"{}\"{}; the presets are {}, or give a JSON file", name,
             did_you_mean(name, hardware_presets()), join(hardware_presets(), ", "));
}

Hardware this_machine(int cores, const std::string& device, int ranks) {
  const DeviceName named = parse_device(device);
  Hardware machine{
      .name = cpu_name(), .device = named.kind, .instruction_set = cpu_simd_name(), .cores = cores};
  if (named.kind == "cpu") return machine;
  if (named.card) {
    machine.device_bytes = free_cuda_bytes(*named.card) / ranks;
    return machine;
  }
  machine.device_bytes = free_cuda_bytes(*parse_device(device_of_rank(device, 0, ranks)).card);
  for (int card = 1; card < ranks; ++card)
    machine.device_bytes = std::min(machine.device_bytes, free_cuda_bytes(card));
  return machine;
}

}  // namespace onefold
