#include "device/rates.h"

#include <algorithm>

#include "base/clock.h"
#include "kernels/probe.h"
#include "tensor/convert.h"

namespace onefold {
namespace {

// A size at which a GPU's matrix units are all at work, and past its caches.
constexpr int64_t kProductSize = 8192;
constexpr int64_t kVectorBytes = int64_t{1} << 30;

// Seconds of one call, from the second on; median.
double measure(Device& device, int repeats, const std::function<void()>& call) {
  std::vector<double> seconds;
  for (int repeat = 0; repeat <= std::max(1, repeats); ++repeat) {
    const double begin = now_seconds();
    device.compute().post({}, call);
    const Ticket ticket = device.compute().mark();
    if (ticket.lane) ticket.lane->wait(ticket.number);
    if (repeat > 0) seconds.push_back(now_seconds() - begin);
  }
  device.compute().take_spans();
  return median(seconds);
}

}  // namespace

void fill_with_random(Device& device, Tensor tensor) {
  const PhiloxKey key = philox_key(1, Draw::test);
  // 8 bits of fraction: exact in every type.
  device.write(
      tensor,
      [&](int64_t first, std::span<std::byte> piece) {
        std::vector<float> values(piece.size() / static_cast<size_t>(dtype_bytes(tensor.dtype)));
        for (size_t i = 0; i < values.size(); ++i) {
          const auto word = static_cast<uint32_t>(first + static_cast<int64_t>(i));
          values[i] =
              static_cast<float>(philox(key, {word / 4, 0, 0, 0})[word % 4] >> 24) / 128 - 1;
        }
        narrow(tensor.dtype, values, piece);
      },
      Device::Calls::shared_out);
}

double measure_product_gflops(Device& device, DType type, int repeats) {
  if (device.memory_is_the_hosts()) return measure_gemm_gflops(*device.pool(), repeats, type);
  Ledger ledger(*device.memory(Tier::device));
  const int64_t bytes = kProductSize * kProductSize * dtype_bytes(type);
  std::vector<Buffer> memory;
  for (int i = 0; i < 3; ++i)
    memory.push_back(ledger.allocate(Kind::workspace, bytes, "product probe"));
  const auto square = [&](size_t i) { return memory[i].as(kProductSize, kProductSize, type); };
  for (const size_t operand : {0, 1}) fill_with_random(device, square(operand));
  Gemm product{.a = square(0), .b = square(1), .dst = square(2), .b_transposed = true};
  const int64_t scratch = device.kernels().gemm_scratch_bytes(product);
  if (scratch > 0) {
    memory.push_back(ledger.allocate(Kind::workspace, scratch, "product probe"));
    product.scratch = memory.back().as(1, scratch, DType::u8);
  }
  const double seconds = measure(device, repeats, [&] { device.kernels().gemm(product); });
  return 2.0 * kProductSize * kProductSize * kProductSize / seconds / 1e9;
}

double measure_memory_gb_per_s(Device& device, int repeats) {
  if (device.memory_is_the_hosts()) return measure_memory_gb_per_s(*device.pool(), repeats);
  Ledger ledger(*device.memory(Tier::device));
  const int64_t elems = kVectorBytes / dtype_bytes(DType::f32);
  std::vector<Buffer> memory;
  std::vector<Tensor> x;
  for (int i = 0; i < 3; ++i) {
    memory.push_back(ledger.allocate(Kind::workspace, kVectorBytes, "memory probe"));
    x.push_back(memory.back().as(1, elems));
    device.kernels().fill(x.back(), 1);
  }
  const double seconds = measure(device, repeats, [&] { device.kernels().add(x[0], x[1], x[2]); });
  return 3.0 * static_cast<double>(kVectorBytes) / seconds / 1e9;
}

}  // namespace onefold
