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

// As measured on an H200, with all kernels of a step loaded (docs/benchmarks.md).
constexpr int64_t kContextBytes = int64_t{590} << 20;

// What Onefold reaches on a card, not its data sheet: products about four fifths of it, memory nine
// tenths. Those of the H200 follow docs/benchmarks.md. Links are NVLink's (or Infinity Fabric's),
// one way.
Hardware card(const char* name, double half_tflops, double memory_tb, double link_gb,
              double host_gb, int64_t gib) {
  return {.name = name,
          .device = "cuda",
          .cores = 16,
          .product_gflops = 50'000,
          .half_product_gflops = 1e3 * half_tflops,
          .half_attention_share = 0.5,
          .memory_gb_per_s = 1e3 * memory_tb,
          .link_gb_per_s = link_gb,
          .link_latency_us = 15,
          .host_gb_per_s = host_gb,
          .host_memory_gb_per_s = 130,
          .disk_gb_per_s = 6,
          .disk_write_gb_per_s = 3,
          .device_bytes = gib << 30,
          .context_bytes = kContextBytes};
}

Hardware processor(const char* name, const char* instruction_set, int cores, double gflops,
                   double memory_gb, double link_gb, int64_t gib) {
  return {.name = name,
          .instruction_set = instruction_set,
          .cores = cores,
          .product_gflops = gflops,
          .memory_gb_per_s = memory_gb,
          .link_gb_per_s = link_gb,
          .device_bytes = gib << 30};
}

const std::vector<Hardware>& presets() {
  static const std::vector<Hardware> kPresets = {
      {.name = "cpu"},
      processor("laptop", "AVX2", 8, 400, 50, 10, 16),
      processor("server-64", "AVX3", 64, 5'000, 250, 12, 256),
      processor("server-192", "AVX3", 192, 15'000, 500, 25, 1024),
      card("a100", 250, 1.8, 200, 24, 79),
      card("h100", 700, 2.8, 300, 50, 79),
      card("h200", 800, 4.0, 300, 50, 139),
      card("b200", 1'700, 7.2, 600, 50, 178),
      card("mi300x", 700, 4.5, 300, 50, 191)};
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

// Into what has the usual ones.
void read_rates(JsonObject& in, Hardware& hardware) {
  const auto read = [&](const char* key, double& value) { value = rate(in, key, value); };
  const auto read_optional = [&](const char* key, double& value) {
    value = in.non_negative(key, value);
  };
  read("product_gflops", hardware.product_gflops);
  read_optional("half_product_gflops", hardware.half_product_gflops);
  hardware.product_share = share(in, "product_share", hardware.product_share);
  hardware.half_product_share = in.ratio("half_product_share", hardware.half_product_share);
  read_optional("half_operand_gb_per_s", hardware.half_operand_gb_per_s);
  read_optional("half_product_latency_us", hardware.half_product_latency_us);
  hardware.attention_share = share(in, "attention_share", hardware.attention_share);
  hardware.half_attention_share = in.ratio("half_attention_share", hardware.half_attention_share);
  read("memory_gb_per_s", hardware.memory_gb_per_s);
  read_optional("cache_gb_per_s", hardware.cache_gb_per_s);
  hardware.cache_bytes = size(in, "cache");
  read_optional("function_gelems_per_s", hardware.function_gelems_per_s);
  read_optional("kernel_latency_us", hardware.kernel_latency_us);
  read("link_gb_per_s", hardware.link_gb_per_s);
  read_optional("link_latency_us", hardware.link_latency_us);
  hardware.host_ranks = static_cast<int>(in.at_least("host_ranks", 0, hardware.host_ranks));
  read_optional("between_hosts_gb_per_s", hardware.between_hosts_gb_per_s);
  read_optional("between_hosts_latency_us", hardware.between_hosts_latency_us);
  if ((hardware.host_ranks > 0) != (hardware.between_hosts_gb_per_s > 0))
    in.fail("between_hosts_gb_per_s", "goes with host_ranks: give both or neither");
  read("host_gb_per_s", hardware.host_gb_per_s);
  read("host_memory_gb_per_s", hardware.host_memory_gb_per_s);
  hardware.host_copy_share = in.ratio("host_copy_share", hardware.host_copy_share);
  read("disk_gb_per_s", hardware.disk_gb_per_s);
  read_optional("disk_write_gb_per_s", hardware.disk_write_gb_per_s);
}

}  // namespace

Json Hardware::to_json() const {
  return {{"name", name},
          {"device", device},
          {"instruction_set", instruction_set},
          {"multiplies_bf16", multiplies_bf16},
          {"cores", cores},
          {"product_gflops", product_gflops},
          {"half_product_gflops", half_product_gflops},
          {"product_share", product_share},
          {"half_product_share", half_product_share},
          {"half_operand_gb_per_s", half_operand_gb_per_s},
          {"half_product_latency_us", half_product_latency_us},
          {"attention_share", attention_share},
          {"half_attention_share", half_attention_share},
          {"memory_gb_per_s", memory_gb_per_s},
          {"cache_gb_per_s", cache_gb_per_s},
          {"cache", cache_bytes},
          {"function_gelems_per_s", function_gelems_per_s},
          {"kernel_latency_us", kernel_latency_us},
          {"link_gb_per_s", link_gb_per_s},
          {"link_latency_us", link_latency_us},
          {"host_ranks", host_ranks},
          {"between_hosts_gb_per_s", between_hosts_gb_per_s},
          {"between_hosts_latency_us", between_hosts_latency_us},
          {"host_gb_per_s", host_gb_per_s},
          {"host_memory_gb_per_s", host_memory_gb_per_s},
          {"host_copy_share", host_copy_share},
          {"disk_gb_per_s", disk_gb_per_s},
          {"disk_write_gb_per_s", disk_write_gb_per_s},
          {"device_memory", device_bytes},
          {"context", context_bytes},
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
    hardware.multiplies_bf16 = in.get<bool>("multiplies_bf16", usual.multiplies_bf16);
    const auto cores = in.get<int64_t>("cores", usual.cores);
    if (cores < 1 || cores > kMostCores)
      in.fail("cores", fmt::format("must be from 1 to {}", kMostCores));
    hardware.cores = static_cast<int>(cores);
    read_rates(in, hardware);
    hardware.device_bytes = size(in, "device_memory");
    hardware.context_bytes = size(in, "context");
    if (hardware.device_bytes > 0 && hardware.context_bytes >= hardware.device_bytes)
      in.fail("context", "is a part of device_memory: it must be less");
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
  Hardware machine{.name = cpu_name(),
                   .device = named.kind,
                   .instruction_set = cpu_simd_name(),
                   .multiplies_bf16 = cpu_multiplies_bf16(),
                   .cores = cores};
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
