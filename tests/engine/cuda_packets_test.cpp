// Packets that a card makes have the bytes that the host makes of the same numbers, keep what the
// host keeps, and add up to the same sums: on numbers that are hard on formats, with and without
// error feedback and momentum, in every type. Where there is no card, that is said.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <thread>

#include "base/half.h"
#include "comm/hard_data.h"
#include "comm/local.h"
#include "comm/packed.h"
#include "device/device.h"
#include "error_text.h"
#include "tensor/convert.h"

namespace onefold {
namespace {

using test::hard_data;
using test::HardData;
using test::values_of;
using Type = WireFormat::Type;

std::vector<WireFormat> card_formats() {
  std::vector<WireFormat> formats;
  for (const bool stochastic : {false, true}) {
    formats.push_back({.type = Type::bf16, .stochastic = stochastic});
    for (const Type type : {Type::int8, Type::int4})
      for (const int64_t block : {256, 8, 40, 1000})
        formats.push_back({.type = type, .block = block, .stochastic = stochastic});
  }
  for (const int64_t block : {256, 8, 40, 1000})
    formats.push_back({.type = Type::sign, .block = block});
  for (const double density : {0.01, 0.3, 1.0}) {
    formats.push_back({.type = Type::topk, .density = density});
    formats.push_back({.type = Type::sampled, .density = density});
    formats.push_back({.type = Type::threshold, .density = density, .least = 0.5});
    formats.push_back({.type = Type::randomk, .density = density});
    formats.push_back({.type = Type::blocks, .block = 7, .density = density});
  }
  return formats;
}

// One rank's numbers of a slab that two ranks share, in memory of the host or of a card.
struct Slab {
  std::vector<float> values, kept, velocity;
};

struct Packed {
  std::vector<std::byte> whole, shard;
  std::vector<float> kept, velocity;
  PackWork work;
};

struct Settings {
  WireFormat format;
  DType dtype = DType::f32;
  bool feedback = false, momentum = false, scaled = false, whole = false;
  int64_t shard = 0;
};

std::vector<std::byte> bytes_of(DType dtype, std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  if (dtype == DType::f32)
    std::memcpy(bytes.data(), values.data(), bytes.size());
  else
    narrow(dtype, values, bytes);
  return bytes;
}

// Opened once: it takes longer than most of what is done on it.
Device& device_of(const std::string& name, int rank) {
  static std::map<std::pair<std::string, int>, std::unique_ptr<Device>> devices;
  std::unique_ptr<Device>& device = devices[{name, rank}];
  if (!device) device = open_device(name, 1);
  return *device;
}

// What two ranks, threads that share a device, make of their slabs.
std::vector<Packed> exchange(const std::string& name, const Settings& how,
                             const std::vector<Slab>& slabs) {
  constexpr int kRanks = 2;
  std::vector<Packed> results(kRanks);
  LocalGroup group(kRanks, {.timeout_seconds = 60});
  std::vector<std::thread> threads;
  std::vector<std::string> errors(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) (void)device_of(name, rank);
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Communicator> communicator = group.join(rank);
      errors[static_cast<size_t>(rank)] = error_text([&] {
        Device* const device = &device_of(name, rank);
        Ledger ledger(*device->memory(Tier::device));
        const std::unique_ptr<LaneQueue> lane = device->open_lane();
        const std::unique_ptr<RankMemory> memory = device->rank_memory(*lane);
        const std::unique_ptr<Channel> channel =
            memory ? communicator->open_on(*memory, "packets", nullptr)
                   : communicator->open("packets", nullptr);
        const Slab& slab = slabs[static_cast<size_t>(rank)];
        Packed& result = results[static_cast<size_t>(rank)];
        std::vector<Buffer> blocks;
        const auto put = [&](std::span<const std::byte> bytes) {
          blocks.push_back(
              ledger.allocate(Kind::workspace, static_cast<int64_t>(bytes.size()), "test"));
          const Tensor tensor = blocks.back().as(1, static_cast<int64_t>(bytes.size()), DType::u8);
          upload(*device, bytes, tensor);
          return tensor;
        };
        const Tensor whole = put(bytes_of(how.dtype, slab.values));
        const Tensor shard =
            put(std::vector<std::byte>(static_cast<size_t>(how.shard * dtype_bytes(how.dtype))));
        const Tensor kept = put(std::as_bytes(std::span(slab.kept)));
        const Tensor velocity = put(std::as_bytes(std::span(slab.velocity)));
        const std::vector<SlabGap> gaps = {{1, 3}};
        const std::vector<SlabScale> scales = {
            {0, 1, 2.0f}, {3, how.shard + 5, 0.7f}, {how.shard + 5, 2 * how.shard, 11.0f}};
        PackedMessage message{.message = {whole.data, shard.data, how.shard, how.dtype},
                              .gaps = gaps,
                              .key = philox_key(7, Draw::test)};
        if (how.feedback) message.kept = static_cast<float*>(kept.data);
        if (how.momentum) message.velocity = static_cast<float*>(velocity.data);
        if (how.scaled) message.scales = scales;
        MomentumCorrection correction;
        if (how.momentum)
          correction = {
              .momentum = 0.9f, .share = 0.1f, .masks = how.format.sparse(), .limit = 0.25f};
        const std::unique_ptr<Wire> wire = make_wire(how.format);
        const Message size{nullptr, nullptr, how.shard, how.dtype};
        const int64_t bytes = PackedCalls::scratch_bytes(
            how.whole ? Collective::all_reduce : Collective::reduce_scatter, *wire, {&size, 1},
            {kRanks});
        const int64_t more = PackedCalls::packer_bytes(*wire, {&size, 1});
        const Buffer scratch = ledger.allocate(Kind::workspace, bytes + more, "packets");
        PackedCalls calls(*channel, false, nullptr, memory ? memory->packer() : nullptr);
        calls.set_scratch(scratch.data(), bytes + more, more);
        lane->after(device->compute().mark());
        lane->post({}, [&] {
          if (how.whole)
            calls.all_reduce("sum", *wire, {&message, 1}, correction);
          else
            calls.reduce_scatter("sum", *wire, {&message, 1}, correction);
        });
        lane->wait(lane->mark().number);
        result.work = calls.work();
        const auto get = [&](Tensor tensor, auto& values) {
          std::vector<std::byte> back(static_cast<size_t>(tensor.elems()));
          download(*device, tensor, std::span(back));
          values.resize(back.size() / sizeof(values[0]));
          std::memcpy(values.data(), back.data(), back.size());
        };
        get(shard, result.shard);
        get(whole, result.whole);
        get(kept, result.kept);
        get(velocity, result.velocity);
      });
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return results;
}

bool same_bytes(const auto& a, const auto& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
}

bool all_finite(DType dtype, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(dtype_bytes(dtype)));
  if (dtype == DType::f32)
    std::memcpy(values.data(), bytes.data(), bytes.size());
  else
    widen(dtype, bytes, values);
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// Of what is not finite, that is all that counts.
bool same_sum(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b) {
  return same_bytes(a, b) || (!all_finite(dtype, a) && !all_finite(dtype, b));
}

class CudaPackets : public testing::TestWithParam<WireFormat> {
 protected:
  void SetUp() override {
    const std::string problem = error_text([] { (void)open_device("cuda", 1); });
    if (!problem.empty()) GTEST_SKIP() << problem;
  }
  // The slabs' numbers are scaled, so that gradients, what is kept and velocities are not alike.
  static std::vector<Slab> slabs_of(const HardData& data, int64_t elems) {
    std::vector<Slab> slabs;
    for (int rank = 0; rank < 2; ++rank) {
      Slab slab;
      slab.values = values_of(data, elems);
      std::rotate(slab.values.begin(), slab.values.begin() + rank, slab.values.end());
      slab.kept.resize(slab.values.size());
      slab.velocity.resize(slab.values.size());
      for (size_t i = 0; i < slab.kept.size(); ++i) {
        slab.kept[i] = 0.25f * slab.values[(i + 17) % slab.values.size()];
        slab.velocity[i] = -0.5f * slab.values[(i + 5) % slab.values.size()];
      }
      slabs.push_back(slab);
    }
    return slabs;
  }
  static void expect_alike(const Settings& how, const std::vector<Slab>& slabs) {
    const std::vector<Packed> host = exchange("cpu", how, slabs),
                              card = exchange("cuda:0", how, slabs);
    for (size_t rank = 0; rank < host.size(); ++rank) {
      SCOPED_TRACE(fmt::format("rank {}", rank));
      const auto sum = how.whole ? &Packed::whole : &Packed::shard;
      EXPECT_TRUE(same_sum(how.dtype, host[rank].*sum, card[rank].*sum)) << "the sum";
      if (how.feedback) {
        EXPECT_TRUE(same_bytes(host[rank].kept, card[rank].kept)) << "kept";
      }
      if (how.momentum) {
        EXPECT_TRUE(same_bytes(host[rank].velocity, card[rank].velocity)) << "velocity";
      }
      EXPECT_NEAR(card[rank].work.error(), host[rank].work.error(), 1e-12);
      EXPECT_EQ(card[rank].work.packed_bytes, host[rank].work.packed_bytes);
    }
  }
};

TEST_P(CudaPackets, HaveTheNumbersOfTheHosts) {
  for (const HardData& data : hard_data())
    for (const int64_t shard : {16, 1031, 50'000}) {
      if (shard == 50'000 && std::string(data.name) != "ordinary" &&
          std::string(data.name) != "ranges of 2^60")
        continue;
      SCOPED_TRACE(fmt::format("{} in {}, blocks of {}, {} elements", data.name,
                               describe(GetParam()), GetParam().block, shard));
      const std::vector<Slab> slabs = slabs_of(data, 2 * shard);
      Settings how{.format = GetParam(), .shard = shard};
      expect_alike(how, slabs);
      how.whole = true;
      expect_alike(how, slabs);
      how.feedback = true;
      expect_alike(how, slabs);
      how.whole = false;
      how.momentum = true;
      expect_alike(how, slabs);
      how.scaled = true;
      expect_alike(how, slabs);
    }
}

TEST_P(CudaPackets, OfSixteenBitsToo) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const bool feedback : {false, true}) {
      Settings how{.format = GetParam(), .dtype = dtype, .feedback = feedback, .shard = 4099};
      expect_alike(how, slabs_of(hard_data()[0], 2 * how.shard));
      how.whole = true;
      expect_alike(how, slabs_of(hard_data()[dtype == DType::bf16 ? 3 : 0], 2 * how.shard));
    }
}

// What is not finite arrives as such, and leaves what is kept as it was.
TEST_P(CudaPackets, HideNothingThatIsNotFinite) {
  for (const float broken : {INFINITY, -INFINITY, NAN})
    for (const bool feedback : {false, true})
      for (const bool momentum : {false, true}) {
        if (momentum && !feedback) continue;
        Settings how{
            .format = GetParam(), .feedback = feedback, .momentum = momentum, .shard = 1031};
        std::vector<Slab> slabs = slabs_of(hard_data()[0], 2 * how.shard);
        slabs[0].values[700] = broken;
        const std::vector<Packed> card = exchange("cuda:0", how, slabs);
        EXPECT_FALSE(all_finite(DType::f32, card[0].shard)) << describe(GetParam());
        if (!feedback) continue;
        std::vector<float> kept = slabs[0].kept;
        std::fill(kept.begin() + 1, kept.begin() + 3, 0.0f);  // the gap
        EXPECT_TRUE(same_bytes(card[0].kept, kept)) << describe(GetParam());
        EXPECT_TRUE(same_bytes(card[0].velocity, slabs[0].velocity)) << describe(GetParam());
      }
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaPackets, testing::ValuesIn(card_formats()),
                         [](const auto& info) {
                           return fmt::format("{}_{}", info.index,
                                              std::string(wire_name(info.param.type)) == "1bit"
                                                  ? "sign"
                                                  : wire_name(info.param.type));
                         });

}  // namespace
}  // namespace onefold
