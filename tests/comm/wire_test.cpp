// The promises of wire formats, on data that is hard on them: lengths by formula, errors within
// the bounds that their files derive, nothing lost between what is sent and what is kept, and
// nothing that is not finite overlooked.
#include "comm/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "comm/hard_data.h"
#include "kernels/support.h"
#include "tensor/tensor.h"
#include "unwatched.h"

namespace onefold {
namespace {

using Type = WireFormat::Type;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMost = test::kMostFloat;

// Every format, with blocks that divide nothing too.
std::vector<WireFormat> wire_formats() {
  std::vector<WireFormat> formats;
  for (const bool stochastic : {false, true}) {
    formats.push_back({.type = Type::bf16, .stochastic = stochastic});
    for (const Type type : {Type::int8, Type::int4})
      for (const int64_t block : {256, 37})
        formats.push_back({.type = type, .block = block, .stochastic = stochastic});
  }
  for (const int64_t block : {256, 37}) formats.push_back({.type = Type::sign, .block = block});
  for (const double density : {0.01, 0.3, 1.0}) {
    formats.push_back({.type = Type::topk, .density = density});
    formats.push_back({.type = Type::sampled, .density = density});
    formats.push_back({.type = Type::threshold, .density = density, .least = 0.5});
    formats.push_back({.type = Type::randomk, .density = density});
    formats.push_back({.type = Type::blocks, .block = 7, .density = density});
  }
  for (const double density : {0.01, 0.3, 1.0}) {
    formats.push_back({.type = Type::rows, .block = 7, .density = density});
    formats.push_back({.type = Type::importance, .density = density});
  }
  return formats;
}

using test::drawn_number;
using test::hard_data;
using test::HardData;
using test::values_of;

constexpr int64_t kSizes[] = {1, 2, 7, 16, 37, 255, 256, 257, 1024, 4099};

WireDraw some_draw(uint32_t number = 0) {
  return {.own = philox_key(11, Draw::wire, 1, number), .common = philox_key(11, Draw::wire, 2)};
}

std::vector<std::byte> packet_of(Wire& wire, std::span<const float> values, const WireDraw& draw,
                                 std::byte before = std::byte{0xA5}) {
  std::vector<std::byte> packet(
      static_cast<size_t>(wire.packet_bytes(static_cast<int64_t>(values.size()))), before);
  wire.encode(values, draw, packet.data());
  return packet;
}

// Calls check(format, wire, values) for all of them.
template <class Check>
void for_each_case(const Check& check) {
  // One thread: for its sanitizer a few do, of all data and sizes, as 7 divides neither's number.
  const int one_of = test::kThreadSanitized ? 7 : 1;
  int next = 0;
  for (const WireFormat& format : wire_formats()) {
    const std::unique_ptr<Wire> wire = make_wire(format);
    for (const HardData& data : hard_data())
      for (const int64_t elems : kSizes) {
        if (next++ % one_of != 0) continue;
        SCOPED_TRACE(fmt::format("{}: {}, {} elements", describe(format), data.name, elems));
        check(format, *wire, values_of(data, elems));
        if (testing::Test::HasFailure()) return;
      }
  }
}

int64_t up_to_four(int64_t bytes) { return (bytes + 3) / 4 * 4; }

int64_t expected_bytes(const WireFormat& format, int64_t n) {
  const int64_t blocks = (n + format.block - 1) / format.block;
  const auto share = [&](int64_t of) {
    return std::max<int64_t>(1,
                             static_cast<int64_t>(std::ceil(format.density * double(of) - 1e-9)));
  };
  switch (format.type) {
    case Type::none:
      break;
    case Type::bf16:
      return up_to_four(2 * n);
    case Type::int8:
      return up_to_four(n + 2 * blocks);
    case Type::int4:
      return up_to_four((n + 1) / 2 + 2 * blocks);
    case Type::sign:
      return up_to_four((n + 7) / 8 + 2 * blocks);
    case Type::topk:
    case Type::sampled:
    case Type::threshold:
    case Type::importance:
      return 8 * share(n);
    case Type::randomk:
      return 4 * share(n);
    case Type::blocks:
      return share(blocks) * (4 * format.block + 4);
    case Type::rows:
      return 4 * share(n) + 4 * std::max<int64_t>(1, share(n) / 16);
  }
  return -1;
}

TEST(WireFormats, PacketsHaveTheLengthOfTheirFormula) {
  for (const WireFormat& format : wire_formats())
    for (const int64_t elems : {int64_t{1}, int64_t{3}, int64_t{16}, int64_t{1000}, int64_t{65536}})
      EXPECT_EQ(make_wire(format)->packet_bytes(elems), expected_bytes(format, elems))
          << describe(format) << " of " << elems;
}

// Nothing beyond a packet is written, and all of it is, whatever was there before.
TEST(WireFormats, TheSameNumbersMakeTheSamePacket) {
  for_each_case([](const WireFormat&, Wire& wire, const std::vector<float>& values) {
    const auto bytes = static_cast<size_t>(wire.packet_bytes(static_cast<int64_t>(values.size())));
    std::vector<std::byte> one(bytes + 8, std::byte{0}), other(bytes + 8, std::byte{0xFF});
    wire.encode(values, some_draw(), one.data());
    wire.encode(values, some_draw(), other.data());
    EXPECT_EQ(std::memcmp(one.data(), other.data(), bytes), 0);
    for (size_t i = bytes; i < one.size(); ++i) {
      EXPECT_EQ(one[i], std::byte{0});
      EXPECT_EQ(other[i], std::byte{0xFF});
    }
  });
}

// Hard data of all sizes, as it is and with something that is not finite in the middle.
std::vector<std::vector<float>> all_hard_values() {
  std::vector<std::vector<float>> all;
  for (const HardData& data : hard_data())
    for (const int64_t elems : {1, 7, 37, 257, 4099, 20011})
      for (const float bad : {0.0f, kInf, std::nanf("")}) {
        all.push_back(values_of(data, elems));
        if (bad != 0) all.back()[static_cast<size_t>(elems / 2)] = bad;
      }
  return all;
}

// Checksums of packets, of sums and of what is kept, in the order of wire_formats().
TEST(WireFormats, KeepTheirBitsOnEverySimdTarget) {
  if (test::kThreadSanitized) GTEST_SKIP() << "one thread";
  constexpr uint64_t kExpected[] = {
      0x9638461ecb46923a, 0xb15c1876d4bb7658, 0xc0d9c86437572c5f, 0xe5b2300472b54239,
      0x819df03479df9306, 0x8d114c88ae5914bc, 0x9486408dc604fd9d, 0x8259b741578ffb2f,
      0x31b4beab852fb751, 0x43489015b253a4bc, 0x59539fd7ec66e460, 0x2193582a10457727,
      0x1f7daf3a9f1fb54f, 0x1fc365ef9055c172, 0xd9bcb1105194db05, 0xf9b0fe9a3772a3c7,
      0x87302e1539c19383, 0xa79881e53793c6d4, 0xe45a8e42a0e8e154, 0x11cf1df16be74883,
      0xc6859a5cb9b68c4b, 0xe13ddb0c06ed0f4d, 0xfc34b5b48ae63de4, 0xf23bbfdb5166dd9f,
      0x8ec9597bd3c1e0c7, 0xb601a9f40fe93c12, 0xc4fb6e616bac44dc, 0x74f5495b1a5310bf,
      0x3d5af860cd2a9a8e, 0x54114bde572d897c, 0x3f8433f4fa7901df, 0x151848998b9f55cc,
      0xfc34b5b48ae63de4,
  };
  const std::vector<WireFormat> formats = wire_formats();
  const std::vector<std::vector<float>> all = all_hard_values();
  ASSERT_EQ(formats.size(), std::size(kExpected));
  test::for_each_target([&] {
    for (size_t f = 0; f < formats.size(); ++f) {
      const std::unique_ptr<Wire> wire = make_wire(formats[f]);
      uint64_t sum = 0xcbf29ce484222325u;  // as FNV-1a, of words
      const auto add = [&](const auto& list) {
        std::vector<uint32_t> words(list.size() * sizeof(list[0]) / 4);
        std::memcpy(words.data(), list.data(), words.size() * 4);
        for (const uint32_t word : words) sum = (sum ^ word) * 0x100000001b3u;
      };
      for (const std::vector<float>& values : all) {
        const std::vector<std::byte> packet = packet_of(*wire, values, some_draw());
        std::vector<float> added(values.size(), 1.0f), left = values;
        wire->apply(packet.data(), some_draw(), Apply::add, added);
        wire->apply(packet.data(), some_draw(), Apply::subtract, left);
        for (float& value : added)
          if (std::isnan(value)) value = std::nanf("");
        add(packet);
        add(added);
        add(left);
      }
      EXPECT_EQ(sum, kExpected[f]) << describe(formats[f]);
    }
  });
}

// Packing for error feedback is packing, and taking away what was sent; whatever is done at once.
TEST(WireFormats, PackingLeavesWhatThePacketLacks) {
  const std::vector<std::vector<float>> all = all_hard_values();
  for (const WireFormat& format : wire_formats()) {
    const std::unique_ptr<Wire> wire = make_wire(format);
    for (size_t v = 0; v < all.size(); ++v) {
      SCOPED_TRACE(fmt::format("{}: values {}, {} elements", describe(format), v, all[v].size()));
      const std::vector<float>& values = all[v];
      const std::vector<std::byte> packet = packet_of(*wire, values, some_draw());
      std::vector<float> left = values, kept = values;
      wire->apply(packet.data(), some_draw(), Apply::subtract, left);
      std::vector<std::byte> packed(packet.size(), std::byte{0x3C});
      const Wire::Squares squares = wire->pack(kept, some_draw(), packed.data());
      ASSERT_EQ(packed, packet);
      ASSERT_EQ(kept, left);
      double given = 0, lost = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        given += double{values[i]} * double{values[i]};
        lost += double{left[i]} * double{left[i]};
      }
      ASSERT_NEAR(squares.lost, lost, 1e-12 * lost);
      if (std::isfinite(given)) {
        ASSERT_NEAR(squares.given, given, 1e-12 * given);
      } else {
        ASSERT_FALSE(std::isfinite(squares.given));
      }
    }
  }
}

// The bounds that the formats' files derive.
double bound_of(const WireFormat& format, std::span<const float> values, size_t i) {
  const double x = std::abs(double{values[i]});
  const auto begin = static_cast<int64_t>(i) / format.block * format.block;
  double most = 0;
  for (int64_t j = begin; j < std::min(begin + format.block, int64_t(values.size())); ++j)
    most = std::max(most, std::abs(double{values[static_cast<size_t>(j)]}));
  const double whole = format.stochastic ? 2 : 1;  // of the distance of neighbours, in halves
  switch (format.type) {
    case Type::none:
      return 0;
    case Type::bf16:
      return x > 0x1.FEp127 ? 0x1p-7 * x : whole * (0x1p-8 * x + 0x1p-134);
    case Type::int8:
    case Type::int4: {
      const double levels = format.type == Type::int8 ? 127 : 7;
      const double bound = whole / 2 * (most / levels * (1 + 0x1p-7) * (1 + 0x1p-22) + 0x1p-133);
      return most * (1 + 0x1p-7) > kMost ? std::max(bound, 0x1p-7 * x) : bound;
    }
    case Type::sign:
      return most * (1 + 0x1p-7) + 0x1p-133;
    case Type::importance: {
      const int64_t room = sent_elems(format.density, static_cast<int64_t>(values.size()));
      double sum = 0;
      for (const float value : values) sum += std::abs(double{value});
      if (room == static_cast<int64_t>(values.size())) return 0;
      return sum / static_cast<double>(room) * (1 + 0x1p-4) * (1 + 0x1p-20) + 0x1p-149;
    }
    default:
      return x;
  }
}

TEST(WireFormats, WhatIsDecodedIsWithinTheBound) {
  for_each_case([](const WireFormat& format, Wire& wire, const std::vector<float>& values) {
    const std::vector<std::byte> packet = packet_of(wire, values, some_draw());
    std::vector<float> decoded(values.size(), 7.0f);
    wire.apply(packet.data(), some_draw(), Apply::set, decoded);
    for (size_t i = 0; i < values.size(); i += test::kThreadSanitized ? 7 : 1)
      ASSERT_LE(std::abs(double{values[i]} - double{decoded[i]}), bound_of(format, values, i))
          << "element " << i << ": " << values[i] << " became " << decoded[i];
  });
}

// Where the result is rounded: 1 bit, and stochastic levels far above a small number.
bool keeps_exactly(const WireFormat& format) {
  if (format.type == Type::sign || format.type == Type::importance) return false;
  return !format.stochastic || (format.type != Type::int8 && format.type != Type::int4);
}

TEST(WireFormats, WhatIsSentAndWhatIsKeptIsWhatWasGiven) {
  for_each_case([](const WireFormat& format, Wire& wire, const std::vector<float>& values) {
    const std::vector<std::byte> packet = packet_of(wire, values, some_draw());
    std::vector<float> decoded(values.size()), kept = values;
    wire.apply(packet.data(), some_draw(), Apply::set, decoded);
    wire.apply(packet.data(), some_draw(), Apply::subtract, kept);
    for (size_t i = 0; i < values.size(); ++i) {
      const float left = values[i] - decoded[i];  // rounded once, as fp32 does
      ASSERT_EQ(kept[i], std::isfinite(left) ? left : 0.0f) << "element " << i;
      if (!keeps_exactly(format)) continue;
      // Nothing was rounded: the three numbers add up in any precision that holds them.
      const double whole = double{values[i]}, sent = double{decoded[i]};
      ASSERT_EQ(whole - sent, double{kept[i]}) << "element " << i << ": " << whole;
    }
  });
}

TEST(WireFormats, AddingIsSettingOnZeros) {
  for_each_case([](const WireFormat&, Wire& wire, const std::vector<float>& values) {
    const std::vector<std::byte> packet = packet_of(wire, values, some_draw());
    std::vector<float> set(values.size(), 3.0f), added(values.size(), 0.0f);
    wire.apply(packet.data(), some_draw(), Apply::set, set);
    wire.apply(packet.data(), some_draw(), Apply::add, added);
    EXPECT_EQ(set, added);
  });
}

TEST(WireFormats, WhatIsNotFiniteIsFoundAndNotKept) {
  for (const WireFormat& format : wire_formats()) {
    const std::unique_ptr<Wire> wire = make_wire(format);
    for (const int64_t elems : {int64_t{1}, int64_t{256}, int64_t{1000}})
      for (const float bad : {kInf, -kInf, std::nanf("")})
        for (const int64_t place : {int64_t{0}, elems / 2, elems - 1}) {
          SCOPED_TRACE(fmt::format("{}: {} at {} of {}", describe(format), bad, place, elems));
          std::vector<float> values = values_of(hard_data()[0], elems);
          values[static_cast<size_t>(place)] = bad;
          const std::vector<std::byte> packet = packet_of(*wire, values, some_draw());
          std::vector<float> sum(values.size(), 1.0f);
          wire->apply(packet.data(), some_draw(), Apply::add, sum);
          EXPECT_TRUE(
              std::any_of(sum.begin(), sum.end(), [](float v) { return !std::isfinite(v); }));
          wire->apply(packet.data(), some_draw(), Apply::subtract, values);
          EXPECT_TRUE(
              std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }));
        }
  }
}

// More of them than a packet has room for leave nothing behind either.
TEST(WireFormats, ManyThatAreNotFiniteAreAllDropped) {
  for (const WireFormat& format : wire_formats()) {
    SCOPED_TRACE(describe(format));
    const std::unique_ptr<Wire> wire = make_wire(format);
    std::vector<float> values(1000, kInf);
    const std::vector<std::byte> packet = packet_of(*wire, values, some_draw());
    wire->apply(packet.data(), some_draw(), Apply::subtract, values);
    EXPECT_EQ(std::count(values.begin(), values.end(), 0.0f), 1000);
  }
}

TEST(SparseWires, TopkSendsTheLargestAndOfEqualOnesTheFirst) {
  for (const HardData& data : hard_data())
    for (const int64_t elems : kSizes)
      for (const double density : {0.01, 0.1, 0.5}) {
        SCOPED_TRACE(fmt::format("{}, {} of {}", data.name, density, elems));
        const std::vector<float> values = values_of(data, elems);
        const WireFormat format{.type = Type::topk, .density = density};
        const std::unique_ptr<Wire> wire = make_wire(format);
        const std::vector<std::byte> packet = packet_of(*wire, values, some_draw());
        std::vector<size_t> order(values.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
          return std::abs(values[a]) > std::abs(values[b]);
        });
        std::vector<float> expected(values.size(), 0.0f), decoded(values.size());
        for (int64_t k = 0; k < sent_elems(density, elems); ++k)
          expected[order[static_cast<size_t>(k)]] = values[order[static_cast<size_t>(k)]];
        wire->apply(packet.data(), some_draw(), Apply::set, decoded);
        EXPECT_EQ(decoded, expected);
      }
}

// On numbers without structure, between half and all of the room is used.
TEST(SparseWires, ASampledThresholdFillsMostOfItsRoom) {
  constexpr int64_t kElems = 100000;
  const std::vector<float> values = values_of(hard_data()[0], kElems);
  for (const double density : {0.001, 0.01, 0.1}) {
    const std::unique_ptr<Wire> wire = make_wire({.type = Type::sampled, .density = density});
    for (uint32_t draw = 0; draw < 5; ++draw) {
      const std::vector<std::byte> packet = packet_of(*wire, values, some_draw(draw));
      std::vector<float> decoded(values.size());
      wire->apply(packet.data(), some_draw(draw), Apply::set, decoded);
      const auto sent = kElems - std::count(decoded.begin(), decoded.end(), 0.0f);
      EXPECT_LE(sent, sent_elems(density, kElems));
      EXPECT_GE(sent, sent_elems(density, kElems) / 2);
      for (size_t i = 0; i < values.size(); ++i)
        if (decoded[i] != 0) {
          ASSERT_GT(std::abs(values[i]), 1 - 2 * density - 0.01);
        }
    }
  }
}

TEST(SparseWires, AThresholdSendsNothingBelowIt) {
  const std::vector<float> values = values_of(hard_data()[0], 4099);
  const std::unique_ptr<Wire> wire =
      make_wire({.type = Type::threshold, .density = 1, .least = 0.9});
  const std::vector<std::byte> packet = packet_of(*wire, values, some_draw());
  std::vector<float> decoded(values.size());
  wire->apply(packet.data(), some_draw(), Apply::set, decoded);
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(decoded[i], std::abs(values[i]) >= 0.9f ? values[i] : 0.0f);
}

// Different ranks choose the same places, different steps others, and in the long run all.
TEST(SparseWires, RandomPlacesAreThoseOfAllRanksAndChange) {
  const std::unique_ptr<Wire> wire = make_wire({.type = Type::randomk, .density = 0.1});
  const std::vector<float> ones(1000, 1.0f);
  std::vector<float> often(ones.size(), 0.0f);
  for (uint32_t step = 0; step < 200; ++step) {
    const WireDraw mine{.own = philox_key(1, Draw::wire, step),
                        .common = philox_key(2, Draw::wire, step)};
    const WireDraw yours{.own = philox_key(9, Draw::wire, step), .common = mine.common};
    const std::vector<std::byte> packet = packet_of(*wire, ones, mine);
    wire->apply(packet.data(), yours, Apply::add, often);
  }
  for (const float count : often) {
    EXPECT_GE(count, 3.0f);  // 20 on average; a deviation is 4.2
    EXPECT_LE(count, 45.0f);
  }
}

TEST(SparseWires, ClearForgetsWhatWasSentAlone) {
  for (const Type type : {Type::topk, Type::sampled, Type::threshold, Type::randomk, Type::blocks,
                          Type::rows, Type::importance}) {
    SCOPED_TRACE(wire_name(type));
    const std::unique_ptr<Wire> wire =
        make_wire({.type = type, .block = 7, .density = 0.1, .least = 0.5});
    const std::vector<float> values = values_of(hard_data()[0], 1000);
    const std::vector<std::byte> packet = packet_of(*wire, values, some_draw());
    std::vector<float> decoded(values.size()), marks(values.size(), 2.0f);
    wire->apply(packet.data(), some_draw(), Apply::set, decoded);
    wire->apply(packet.data(), some_draw(), Apply::clear, marks);
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_EQ(marks[i], decoded[i] != 0 ? 0.0f : 2.0f) << i;
  }
}

// The row of the largest norm first, and then what fits; a row that is too long in parts.
TEST(SparseWires, RowsAreSentWhole) {
  const std::vector<int64_t> starts = {0, 3, 23, 24, 100, 160};
  const WireFormat format{.type = Type::rows, .density = 0.15};
  const std::unique_ptr<Wire> wire = make_wire(format);
  WireDraw draw = some_draw();
  draw.rows = starts;
  std::vector<float> values(200, 0.125f);
  for (size_t i = 3; i < 23; ++i) values[i] = 1.0f;     // norm 4.5, 20 numbers
  values[23] = 2.0f;                                    // a row of one
  for (size_t i = 130; i < 160; ++i) values[i] = 0.5f;  // the third part of 30 of a row of 60
  for (size_t i = 0; i < 3; ++i) values[i] = 0.25f;
  const std::vector<std::byte> packet = packet_of(*wire, values, draw);
  std::vector<float> decoded(values.size());
  wire->apply(packet.data(), draw, Apply::set, decoded);
  // Room for 30 in 1 place: the row of 20. With more places the row of one would fit too.
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(decoded[i], i >= 3 && i < 23 ? values[i] : 0) << i;
  const std::unique_ptr<Wire> larger = make_wire({.type = Type::rows, .density = 0.3});
  const std::vector<std::byte> more = packet_of(*larger, values, draw);
  larger->apply(more.data(), draw, Apply::set, decoded);
  // Room for 60 in 3 places: beside that row the one of 60 and those of 40 do not fit; the row of
  // one does, and the row of 16.
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(decoded[i], (i >= 3 && i < 24) || (i >= 84 && i < 100) ? values[i] : 0) << i;
}

// The mean of many draws is the number, and what is large is sent as it is.
TEST(SparseWires, NumbersDrawnByTheirMagnitudesAreRightOnAverage) {
  constexpr int kDraws = 4000;
  constexpr size_t kElems = 200;
  const WireFormat format{.type = Type::importance, .density = 0.1};
  const std::unique_ptr<Wire> wire = make_wire(format);
  std::vector<float> values = values_of(hard_data()[0], kElems), decoded(kElems);
  values[17] = 50;
  values[18] = -40;
  std::vector<double> sums(kElems);
  for (uint32_t draw = 0; draw < kDraws; ++draw) {
    const std::vector<std::byte> packet = packet_of(*wire, values, some_draw(draw));
    wire->apply(packet.data(), some_draw(draw), Apply::set, decoded);
    EXPECT_EQ(decoded[17], 50.0f);
    EXPECT_EQ(decoded[18], -40.0f);
    EXPECT_LE(kElems - static_cast<size_t>(std::count(decoded.begin(), decoded.end(), 0.0f)), 20u);
    for (size_t i = 0; i < kElems; ++i) sums[i] += decoded[i];
  }
  // About 100 is left for 18 draws: a level of 5.6, and a deviation of at most half of it.
  for (size_t i = 0; i < kElems; ++i)
    EXPECT_NEAR(sums[i] / kDraws, values[i], 5 * 2.8 / std::sqrt(double(kDraws))) << i;
}

// Of large arrays, numbers are drawn in two steps: the first with a level from a sample, which on
// hard data is far off. None is off by more than the bound, and the packet is full where there is
// enough to draw from.
TEST(SparseWires, CandidatesThatAreDrawnAgainKeepTheBound) {
  constexpr int64_t kElems = 40009;
  std::vector<HardData> all = hard_data();
  all.push_back(
      {"empty rows", [](int64_t i) { return i / 512 % 5 == 0 ? drawn_number(i) : 0.0f; }});
  all.push_back({"what a sample passes over",
                 [](int64_t i) { return (i % 39 == 5 ? 1e4f : 1e-4f) * drawn_number(i); }});
  for (const HardData& data : all)
    for (const double density : {0.01, 0.1, 0.4}) {
      SCOPED_TRACE(fmt::format("{}, {}", data.name, density));
      const WireFormat format{.type = Type::importance, .density = density};
      const std::unique_ptr<Wire> wire = make_wire(format);
      const std::vector<float> values = values_of(data, kElems);
      const std::vector<std::byte> packet = packet_of(*wire, values, some_draw());
      std::vector<float> decoded(values.size()), kept = values;
      wire->apply(packet.data(), some_draw(), Apply::set, decoded);
      double sum = 0;
      for (const float value : values) sum += std::abs(double{value});
      const auto room = static_cast<double>(sent_elems(density, kElems));
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_LE(std::abs(double{values[i]} - double{decoded[i]}),
                  sum / room * (1 + 0x1p-4) * (1 + 0x1p-20) + 0x1p-149)
            << i;
      std::vector<std::byte> packed(packet.size());
      double lost = 0;
      const Wire::Squares squares = wire->pack(kept, some_draw(), packed.data());
      EXPECT_EQ(packed, packet);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(kept[i], values[i] - decoded[i]);
        lost += double{kept[i]} * double{kept[i]};
      }
      EXPECT_NEAR(squares.lost, lost, 1e-12 * lost);
    }
}

// The mean is the number, and the deviation that of single draws, for which the square of what a
// draw is off is |x| (level - |x|) on average: of numbers of many sizes, and with some that are
// sent as they are.
TEST(SparseWires, CandidatesThatAreDrawnAgainAreRightOnAverage) {
  constexpr int kDraws = 600;
  constexpr size_t kElems = 16411;
  const std::unique_ptr<Wire> wire = make_wire({.type = Type::importance, .density = 0.05});
  for (const int spikes : {0, 40}) {
    SCOPED_TRACE(spikes);
    std::vector<float> values = values_of(hard_data()[0], kElems), decoded(kElems);
    for (float& value : values) value *= value * value;
    for (int spike = 0; spike < spikes; ++spike) values[static_cast<size_t>(spike) * 401] = 90;
    std::vector<double> sums(kElems);
    double mass = 0;
    for (const float value : values) mass += value < 90 ? std::abs(double{value}) : 0;
    const double level = mass / (0.05 * kElems - spikes);
    for (uint32_t draw = 0; draw < kDraws; ++draw) {
      const std::vector<std::byte> packet = packet_of(*wire, values, some_draw(draw));
      wire->apply(packet.data(), some_draw(draw), Apply::set, decoded);
      for (size_t i = 0; i < kElems; ++i) sums[i] += decoded[i];
    }
    double spread = 0, expected = 0, total = 0, given = 0;
    for (size_t i = 0; i < kElems; ++i) {
      const double x = std::abs(double{values[i]}), off = sums[i] / kDraws - double{values[i]};
      total += sums[i] / kDraws * (values[i] < 0 ? -1 : 1);
      given += x;
      if (x >= level) {
        EXPECT_EQ(off, 0) << i;
      } else {
        spread += off * off * kDraws;
        expected += x * (level - x);
      }
    }
    EXPECT_NEAR(spread, expected, 0.1 * expected);
    EXPECT_NEAR(total, given, 2e-3 * given);
  }
}

// The mean of many draws is the number: the deviation of one is half a level at most.
TEST(DenseWires, StochasticRoundingIsRightOnAverage) {
  constexpr int kDraws = 4000;
  for (const Type type : {Type::bf16, Type::int8, Type::int4}) {
    SCOPED_TRACE(wire_name(type));
    const std::unique_ptr<Wire> wire = make_wire({.type = type, .stochastic = true});
    const std::vector<float> values = values_of(hard_data()[0], 64);
    std::vector<double> sums(values.size());
    std::vector<float> decoded(values.size());
    for (uint32_t draw = 0; draw < kDraws; ++draw) {
      const std::vector<std::byte> packet = packet_of(*wire, values, some_draw(draw));
      wire->apply(packet.data(), some_draw(draw), Apply::set, decoded);
      for (size_t i = 0; i < values.size(); ++i) sums[i] += decoded[i];
    }
    const double level = type == Type::bf16 ? 0x1p-8 : type == Type::int8 ? 1.0 / 126 : 1.0 / 6.9;
    for (size_t i = 0; i < values.size(); ++i)  // five deviations of the mean
      EXPECT_NEAR(sums[i] / kDraws, values[i], 5 * level / 2 / std::sqrt(double(kDraws))) << i;
  }
}

TEST(WireFormats, HaveNamesThatReadBack) {
  for (const std::string& name : wire_names()) EXPECT_EQ(wire_name(wire_type(name)), name);
}

}  // namespace
}  // namespace onefold
