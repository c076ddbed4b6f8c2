#include "device/hardware_measured.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "device/disk.h"
#include "device/dry_kernels.h"
#include "device/host_side.h"
#include "device/rates.h"
#include "kernels/probe.h"

namespace onefold {
namespace {

// Memory for the tensors of one probe.
class Probe {
 public:
  Probe(Device& device, int repeats)
      : device_(device), ledger_(*device.memory(Tier::device)), repeats_(repeats) {}

  Tensor take(int64_t rows, int64_t cols, DType type = DType::f32) {
    const Tensor tensor = take_bytes(rows * cols * dtype_bytes(type)).as(rows, cols, type);
    fill_with_random(device_, tensor);
    return tensor;
  }
  Tensor scratch(int64_t bytes) {
    return bytes > 0 ? take_bytes(bytes).as(1, bytes, DType::u8) : Tensor{};
  }

  // Seconds of one call, when it is called many times in a row; median.
  template <class Call>
  double seconds(const Call& call, int calls = 1) {
    std::vector<double> times;
    for (int repeat = 0; repeat <= std::max(1, repeats_); ++repeat) {  // the first one warms up
      const double begin = now_seconds();
      device_.compute().post({}, [&] {
        for (int i = 0; i < calls; ++i) call(device_.kernels());
      });
      const Ticket ticket = device_.compute().mark();
      if (ticket.lane) ticket.lane->wait(ticket.number);
      if (repeat > 0) times.push_back((now_seconds() - begin) / calls);
    }
    device_.compute().take_spans();
    return median(times);
  }

 private:
  const Buffer& take_bytes(int64_t bytes) {
    memory_.push_back(ledger_.allocate(Kind::workspace, bytes, "hardware probe"));
    return memory_.back();
  }

  Device& device_;
  Ledger ledger_;
  const int repeats_;
  std::vector<Buffer> memory_;
};

double share_of(double part, double whole) { return std::clamp(part / whole, 0.01, 1.0); }

bool is_card(const Device& device) { return !device.memory_is_the_hosts(); }

// Tokens and widths of a middling model: GPT-2's on a processor, a 1B's on a card.
struct Sizes {
  int64_t tokens, hidden, inner, batch, sequence, head_dim;
};
Sizes sizes_for(const Device& device) {
  if (is_card(device))
    return {.tokens = 8192,
            .hidden = 2048,
            .inner = 8192,
            .batch = 4,
            .sequence = 2048,
            .head_dim = 128};
  return {.tokens = 512, .hidden = 768, .inner = 3072, .batch = 4, .sequence = 512, .head_dim = 64};
}

// Seconds of a projection's three products, forward and the gradients of its input and weight, one
// layer after the other; and their work, as the dry device counts it.
struct Products {
  double seconds;
  Work work;
  int count;
  double gflops() const { return work.flops / seconds / 1e9; }
};
Products measure_products(Device& device, DType type, int64_t tokens, int64_t inner, int layers,
                          int repeats) {
  const Sizes s = sizes_for(device);
  Probe probe(device, repeats);
  const Tensor x = probe.take(tokens, s.hidden, type), y = probe.take(tokens, inner, type),
               dx = probe.take(tokens, s.hidden, type);
  std::vector<Gemm> products;
  for (int layer = 0; layer < layers; ++layer) {
    const Tensor w = probe.take(inner, s.hidden, type),
                 dw = probe.take(inner, s.hidden, DType::f32);
    products.push_back({.a = x, .b = w, .dst = y, .b_transposed = true});
    products.push_back({.a = y, .b = w, .dst = dx});
    products.push_back({.a = y, .b = x, .dst = dw, .a_transposed = true});
  }
  int64_t bytes = 0;
  for (const Gemm& product : products)
    bytes = std::max(bytes, device.kernels().gemm_scratch_bytes(product));
  const Tensor scratch = probe.scratch(bytes);
  for (Gemm& product : products) product.scratch = scratch;
  const auto call = [&](Kernels& kernels) {
    for (const Gemm& product : products) kernels.gemm(product);
  };
  const double seconds = probe.seconds(call);
  DryKernels counted(nullptr);
  call(counted);
  return {seconds, counted.work(), static_cast<int>(products.size())};
}

// On a processor, products of few tokens wait for operands to be packed and for the slowest thread:
// what that takes is told apart from the arithmetic by several numbers of tokens and widths, the
// last being a vocabulary's. The weights of several layers are no more in the cache than those of a
// model. The memory's rate is known.
void measure_half_products(Device& device, Hardware& machine, int repeats) {
  const auto products = [&](int64_t tokens, int64_t inner, int layers) {
    return measure_products(device, DType::bf16, tokens, inner, layers, repeats);
  };
  const Products all[] = {products(256, 768, 8),   products(256, 3072, 8),
                          products(1024, 768, 4),  products(1024, 3072, 4),
                          products(4096, 3072, 1), products(512, 16384, 1)};
  // Seconds for an operation, a packed byte and a product: those with the least sum of squared
  // relative errors, none of them negative and no operation faster than a large product's. Each is
  // moved to where it is best beside the others, in turn.
  const double least[] = {1 / (1e9 * machine.half_product_gflops), 0, 0};
  double factors[] = {least[0], 0, 0};
  for (int turn = 0; turn < 1000; ++turn)
    for (int which = 0; which < 3; ++which) {
      double along = 0, square = 0;
      for (const Products& p : all) {
        const double others =
            (p.work.bytes - p.work.packed_bytes) / (1e9 * machine.memory_gb_per_s);
        const double terms[] = {p.work.flops / p.seconds, p.work.packed_bytes / p.seconds,
                                p.count / p.seconds};
        double missing = 1 - others / p.seconds;
        for (int i = 0; i < 3; ++i) missing -= factors[i] * terms[i];
        along += terms[which] * missing, square += terms[which] * terms[which];
      }
      factors[which] = std::max(least[which], factors[which] + along / square);
    }
  machine.half_product_share = share_of(least[0], factors[0]);
  // A rate of packing that is too fast to be seen is still one: other bytes take their time.
  machine.half_operand_gb_per_s = std::min(1e6, 1e-9 / std::max(factors[1], 1e-15));
  machine.half_product_latency_us = 1e6 * factors[2];
}

// GFLOP/s of attention forward and backward, as the dry device counts them.
double measure_attention(Device& device, DType type, int repeats) {
  const Sizes s = sizes_for(device);
  Probe probe(device, repeats);
  const AttentionShape shape{.batch = s.batch,
                             .query_length = s.sequence,
                             .key_length = s.sequence,
                             .heads = s.hidden / s.head_dim,
                             .kv_heads = s.hidden / s.head_dim,
                             .head_dim = s.head_dim,
                             .dtype = type};
  const auto take = [&] { return probe.take(s.batch * s.sequence, s.hidden, type); };
  const Tensor q = take(), k = take(), v = take(), out = take(), dout = take(), dq = take(),
               dk = take(), dv = take(),
               lse = probe.take(shape.batch * shape.heads, shape.query_length);
  const Tensor forward = probe.scratch(device.kernels().attention_forward_scratch_bytes(shape)),
               backward = probe.scratch(device.kernels().attention_backward_scratch_bytes(shape));
  const auto call = [&](Kernels& kernels) {
    kernels.attention_forward(shape, q, k, v, out, lse, {}, forward);
    kernels.attention_backward(shape, q, k, v, out, dout, lse, dq, dk, dv, {}, backward);
  };
  const double seconds = probe.seconds(call);
  DryKernels counted(nullptr);
  call(counted);
  return counted.work().flops / seconds / 1e9;
}

// Elements a second of an activation, in a piece that stays in the cache.
double measure_functions(Device& device, int repeats) {
  const Sizes s = sizes_for(device);
  Probe probe(device, repeats);
  const Tensor x = probe.take(s.tokens / 2, s.hidden), y = probe.take(s.tokens / 2, s.hidden);
  const double seconds = probe.seconds(
      [&](Kernels& kernels) { kernels.activation_forward(Activation::silu, false, x, y); }, 16);
  return static_cast<double>(x.elems()) / seconds / 1e9;
}

// GB/s of a sum of vectors, of so many bytes in all.
double measure_sum(Device& device, int64_t bytes, int calls, int repeats) {
  Probe probe(device, repeats);
  const int64_t elems = bytes / 3 / dtype_bytes(DType::f32);
  const Tensor a = probe.take(1, elems), b = probe.take(1, elems), c = probe.take(1, elems);
  const double seconds = probe.seconds([&](Kernels& kernels) { kernels.add(a, b, c); }, calls);
  return static_cast<double>(bytes) / seconds / 1e9;
}

double measure_latency_us(Device& device, int repeats) {
  Probe probe(device, repeats);
  const Tensor x = probe.take(1, 64);
  return 1e6 * probe.seconds([&](Kernels& kernels) { kernels.scale(x, 1, x); }, 256);
}

// GB/s between the device and the host tier, on a lane beside computation.
double measure_copy(Device& device, int repeats) {
  constexpr int64_t kBytes = int64_t{128} << 20;
  Ledger here(*device.memory(Tier::device)), there(*device.memory(Tier::host));
  const Buffer to = here.allocate(Kind::workspace, kBytes, "copy probe"),
               from = there.allocate(Kind::workspace, kBytes, "copy probe");
  std::memset(from.data(), 1, kBytes);  // so that there are pages
  const std::unique_ptr<LaneQueue> lane = device.open_lane();
  std::vector<double> times;
  for (int repeat = 0; repeat <= std::max(1, repeats); ++repeat) {
    const double begin = now_seconds();
    const Ticket ticket = device.copy(*lane, {}, to.data(), from.data(), kBytes);
    if (ticket.lane) ticket.lane->wait(ticket.number);
    if (repeat > 0) times.push_back(now_seconds() - begin);
  }
  return static_cast<double>(kBytes) / median(times) / 1e9;
}

// What the cores of a card's host lose to copies both ways, of the bytes that these move.
//
// A loop and copies begin together, and the copies last longer: alone they would take twice the
// loop's time. From when each ends follows how many bytes they had moved when the loop ended.
double measure_copy_share(Device& device, int repeats) {
  constexpr int64_t kBytes = int64_t{128} << 20;
  constexpr int kPasses = 8;
  const HostSide host = open_host_side(device);
  Ledger here(*device.memory(Tier::device)), there(*device.memory(Tier::host));
  std::vector<Buffer> memory;
  const auto take = [&](Ledger& ledger) {
    memory.push_back(ledger.allocate(Kind::workspace, kBytes, "copy probe"));
    return memory.back().as(1, kBytes / dtype_bytes(DType::f32));
  };
  const Tensor a = take(there), b = take(there), c = take(there);
  std::array<Tensor, 2> ours, theirs;
  for (size_t way : {0, 1}) ours[way] = take(here), theirs[way] = take(there);
  for (const Tensor& vector : {a, b, c, theirs[0], theirs[1]}) host.kernels->fill(vector, 1);
  const std::array lanes = {device.open_lane(), device.open_lane()};
  const auto wait = [](const Ticket& ticket) {
    if (ticket.lane) ticket.lane->wait(ticket.number);
  };
  // When the loop and when the copies end.
  const auto run = [&](int passes, int copies) {
    const double begin = now_seconds();
    for (int i = 0; i < copies; ++i) {
      device.copy(*lanes[0], {}, ours[0].data, theirs[0].data, kBytes);
      device.copy(*lanes[1], {.out = true}, theirs[1].data, ours[1].data, kBytes);
    }
    for (int i = 0; i < passes; ++i) host.lane->post({}, [&] { host.kernels->add(a, b, c); });
    wait(host.lane->mark());
    const double loop = now_seconds() - begin;
    for (const std::unique_ptr<LaneQueue>& lane : lanes) wait(lane->mark());
    return std::array{loop, now_seconds() - begin};
  };
  std::vector<double> shares;
  run(1, 1);
  for (int repeat = 0; repeat < std::max(1, repeats); ++repeat) {
    const double loop_alone = run(kPasses, 0)[0], copy_alone = run(0, 4)[1] / 4;
    const int copies = static_cast<int>(std::ceil(2 * loop_alone / copy_alone));
    const auto [loop, all] = run(kPasses, copies);
    // In bytes of one copy each way; after the loop copies go on as when they are alone.
    const double copied = copies - std::max(0.0, all - loop) / copy_alone;
    const double lost = kPasses * 3.0 * (loop / loop_alone - 1);
    shares.push_back(std::clamp(lost / (2 * std::max(copied, 1.0)), 0.0, 1.0));
  }
  for (const std::unique_ptr<LaneQueue>& lane : lanes) lane->take_spans();
  host.lane->take_spans();
  return median(shares);
}

// Of a processor that is the second level's, which each core has for itself.
constexpr int64_t kProcessorCacheBytes = int64_t{1} << 20, kCardCacheBytes = int64_t{32} << 20;

}  // namespace

Hardware measured(Device& device, Hardware described, int repeats) {
  Hardware machine = std::move(described);
  machine.cores = device.threads();
  machine.product_gflops = measure_product_gflops(device, DType::f32, repeats);
  machine.half_product_gflops = measure_product_gflops(device, DType::bf16, repeats);
  const DType type = is_card(device) ? DType::bf16 : DType::f32;
  const Sizes sizes = sizes_for(device);
  machine.product_share =
      share_of(measure_products(device, type, sizes.tokens, sizes.inner, 1, repeats).gflops(),
               type == DType::f32 ? machine.product_gflops : machine.half_product_gflops);
  machine.memory_gb_per_s = measure_memory_gb_per_s(device, repeats);
  if (!is_card(device)) measure_half_products(device, machine, repeats);
  machine.attention_share =
      share_of(measure_attention(device, DType::f32, repeats), machine.product_gflops);
  machine.half_attention_share =
      share_of(measure_attention(device, DType::bf16, repeats), machine.half_product_gflops);
  machine.cache_bytes = is_card(device) ? kCardCacheBytes : kProcessorCacheBytes * machine.cores;
  machine.cache_gb_per_s =
      std::max(machine.memory_gb_per_s, measure_sum(device, machine.cache_bytes / 2, 64, repeats));
  machine.function_gelems_per_s = measure_functions(device, repeats);
  machine.kernel_latency_us = measure_latency_us(device, repeats);
  machine.host_gb_per_s = measure_copy(device, repeats);
  machine.host_memory_gb_per_s = machine.memory_gb_per_s;
  if (is_card(device)) {
    ThreadPool pool(device.threads());
    machine.host_memory_gb_per_s = measure_memory_gb_per_s(pool, repeats);
    machine.host_copy_share = measure_copy_share(device, repeats);
    // With the kernels of all these loaded. Nobody else may use the card meanwhile, as for rates.
    const Device::DriverMemory memory = device.driver_memory();
    machine.context_bytes = memory.used_bytes - memory.mapped_bytes;
    machine.device_bytes += machine.context_bytes;  // what was free was beside it
  }
  return machine;
}

DiskRates measure_disk(const std::string& folder) {
  constexpr size_t kBytes = size_t{256} << 20, kPiece = size_t{16} << 20;
  constexpr int kPasses = 3;
  Disk disk(folder);
  void* const block = disk.take(kBytes);
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kDiskBlock, kBytes)), &std::free);
  if (!memory) user_error("there is no memory for measuring the disk");
  const std::span<std::byte> bytes(memory.get(), kBytes);
  std::fill(bytes.begin(), bytes.end(), std::byte{1});
  disk.lend(bytes);
  // In pieces like those of a unit's state.
  const auto rate = [&](const auto& transfer) {
    std::vector<double> times;
    for (int repeat = 0; repeat < kPasses; ++repeat) {
      const double begin = now_seconds();
      for (size_t at = 0; at < kBytes; at += kPiece)
        transfer(static_cast<std::byte*>(block) + at, bytes.subspan(at, kPiece));
      times.push_back(now_seconds() - begin);
    }
    return static_cast<double>(kBytes) / median(times) / 1e9;
  };
  disk.write(block, bytes);  // room is made at the first time
  DiskRates rates;
  rates.write = rate([&](std::byte* there, auto piece) { disk.write(there, piece); });
  rates.read = rate([&](std::byte* there, auto piece) { disk.read(there, piece); });
  disk.take_back(bytes);
  disk.give_back(block, kBytes);
  return rates;
}

}  // namespace onefold
