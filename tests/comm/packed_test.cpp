// Collectives in wire formats: the sums are those of decoded packets in rank order, whole or in
// shards, joined or not; what a rank sends is the formula's; and what is not sent comes later.
#include "comm/packed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "comm/threads.h"
#include "tensor/convert.h"

namespace onefold {
namespace {

using Type = WireFormat::Type;

std::vector<WireFormat> packed_formats() {
  return {{.type = Type::bf16},
          {.type = Type::int8, .block = 32},
          {.type = Type::int8, .block = 32, .stochastic = true},
          {.type = Type::int4, .block = 16},
          {.type = Type::sign, .block = 64},
          {.type = Type::topk, .density = 0.05},
          {.type = Type::sampled, .density = 0.05},
          {.type = Type::threshold, .density = 0.2, .least = 0.8},
          {.type = Type::randomk, .density = 0.1},
          {.type = Type::blocks, .block = 8, .density = 0.1},
          {.type = Type::rows, .block = 8, .density = 0.2},
          {.type = Type::importance, .density = 0.1}};
}

// One slab of one rank: its shards of all ranks, filled by what it is and whose.
struct PackedSlab {
  DType dtype = DType::f32;
  int64_t shard_elems = 0;
  std::vector<std::byte> whole, shard;
  std::vector<float> kept, velocity;

  PackedSlab(int number, int rank, int ranks, int64_t shard_elems, DType dtype = DType::f32,
             bool feedback = false)
      : dtype(dtype), shard_elems(shard_elems) {
    const auto elems = static_cast<size_t>(shard_elems * ranks);
    whole.resize(elems * static_cast<size_t>(dtype_bytes(dtype)));
    shard.resize(whole.size() / static_cast<size_t>(ranks));
    if (feedback) kept.resize(elems);
    give(number, rank);
  }
  std::vector<float> given(int number, int rank, int step = 0) const {
    const PhiloxKey key = philox_key(5, Draw::test, static_cast<uint32_t>(number),
                                     static_cast<uint32_t>(rank), static_cast<uint32_t>(step));
    std::vector<float> values(whole.size() / static_cast<size_t>(dtype_bytes(dtype)));
    philox_normals(key, 0, values);
    return values;
  }
  void give(int number, int rank, int step = 0) { narrow(dtype, given(number, rank, step), whole); }
  PackedMessage message(int number, bool in_place = false, int rank = 0) {
    void* const mine = in_place ? whole.data() + static_cast<size_t>(rank) * shard.size()
                                : static_cast<void*>(shard.data());
    return {.message = {whole.data(), mine, shard_elems, dtype},
            .kept = kept.empty() ? nullptr : kept.data(),
            .velocity = velocity.empty() ? nullptr : velocity.data(),
            .key = philox_key(7, Draw::wire, static_cast<uint32_t>(number))};
  }
  std::vector<float> numbers(const std::vector<std::byte>& bytes) const {
    std::vector<float> values(bytes.size() / static_cast<size_t>(dtype_bytes(dtype)));
    widen(dtype, bytes, values);
    return values;
  }
};

std::vector<Message> sizes_of(std::span<const PackedMessage> messages) {
  std::vector<Message> all;
  for (const PackedMessage& packed : messages) all.push_back(packed.message);
  return all;
}

// One call, with the scratch that it asks for, and the bytes that the channel has counted.
template <class Call>
int64_t with_scratch(Communicator& communicator, Collective collective, Wire& wire,
                     std::span<const PackedMessage> messages, const Call& call) {
  const auto channel = communicator.open("data", nullptr);
  const int64_t bytes =
      PackedCalls::scratch_bytes(collective, wire, sizes_of(messages), communicator.ranks());
  std::vector<std::byte> scratch(static_cast<size_t>(bytes));
  PackedCalls calls(*channel, false);
  calls.set_scratch(scratch.data(), bytes);
  call(calls);
  int64_t sent = 0;
  for (const Traffic& traffic : channel->traffic()) sent += traffic.bytes_sent;
  return sent;
}

constexpr int64_t kShards[] = {48, 16, 112};

// All ways to the same sums, by rank: [rank][slab] whole results of an all-reduce.
struct PackedResults {
  std::vector<std::vector<std::vector<float>>> of_rank;
};

enum class Way { reduce_scatter, all_reduce, one_by_one };

PackedResults results_of(const WireFormat& format, int ranks, DType dtype, bool feedback, Way way) {
  PackedResults results;
  results.of_rank.resize(static_cast<size_t>(ranks));
  const auto errors = test::run_ranks(ranks, {}, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const std::unique_ptr<Wire> wire = make_wire(format);
    std::vector<PackedSlab> slabs;
    for (int s = 0; s < 3; ++s) slabs.emplace_back(s, rank, ranks, kShards[s], dtype, feedback);
    std::vector<PackedMessage> messages;
    for (int s = 0; s < 3; ++s) messages.push_back(slabs[static_cast<size_t>(s)].message(s));
    const Collective collective =
        way == Way::all_reduce ? Collective::all_reduce : Collective::reduce_scatter;
    const auto call = [&](std::span<const PackedMessage> some) {
      const int64_t sent =
          with_scratch(communicator, collective, *wire, some, [&](PackedCalls& calls) {
            if (collective == Collective::all_reduce)
              calls.all_reduce("sum", *wire, some);
            else
              calls.reduce_scatter("sum", *wire, some);
          });
      EXPECT_EQ(sent, collective == Collective::all_reduce
                          ? PackedCalls::all_reduce_bytes(*wire, sizes_of(some), ranks)
                          : PackedCalls::reduce_scatter_bytes(*wire, sizes_of(some), ranks));
    };
    if (way == Way::one_by_one)
      for (size_t s = 0; s < 3; ++s) call({&messages[2 - s], 1});
    else
      call(messages);
    for (const PackedSlab& slab : slabs)
      results.of_rank[static_cast<size_t>(rank)].push_back(
          slab.numbers(way == Way::all_reduce ? slab.whole : slab.shard));
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return results;
}

// Rank r's shard of each slab's whole results.
std::vector<float> packed_shard_of(const std::vector<float>& whole, int rank, int64_t elems) {
  return {whole.begin() + rank * elems, whole.begin() + (rank + 1) * elems};
}

TEST(PackedSums, AreTheSameWholeInShardsAndJoined) {
  for (const WireFormat& format : packed_formats())
    for (const int ranks : {2, 3, 5})
      for (const DType dtype : {DType::f32, DType::bf16})
        for (const bool feedback : {false, true}) {
          SCOPED_TRACE(fmt::format("{}, {} ranks, {}, feedback {}", describe(format), ranks,
                                   dtype_name(dtype), feedback));
          const auto whole = results_of(format, ranks, dtype, feedback, Way::all_reduce).of_rank;
          const auto shards =
              results_of(format, ranks, dtype, feedback, Way::reduce_scatter).of_rank;
          const auto apart = results_of(format, ranks, dtype, feedback, Way::one_by_one).of_rank;
          EXPECT_EQ(shards, apart);
          for (size_t r = 0; r < whole.size(); ++r) {
            EXPECT_EQ(whole[r], whole[0]);
            for (size_t s = 0; s < 3; ++s)
              EXPECT_EQ(shards[r][s],
                        packed_shard_of(whole[0][s], static_cast<int>(r), kShards[s]));
          }
        }
}

// Small packets are gathered by all; large ones are summed first: both are among the formats.
TEST(PackedSums, SendTheLesserOfPacketsAndSums) {
  const Message message{nullptr, nullptr, 1024, DType::f32};
  for (const int ranks : {2, 4, 64}) {
    bool gathered = false, summed = false;
    for (const WireFormat& format : packed_formats()) {
      const std::unique_ptr<Wire> wire = make_wire(format);
      const int64_t packet = wire->packet_bytes(1024);
      const int64_t packets = packet * ranks, sums = packet + 4 * 1024;
      EXPECT_EQ(PackedCalls::all_reduce_bytes(*wire, {&message, 1}, ranks),
                std::min(packets, sums) * (ranks - 1));
      (packets < sums ? gathered : summed) = true;
    }
    EXPECT_TRUE(gathered || ranks == 64);
    EXPECT_TRUE(summed || ranks == 2);
  }
}

// The oracle: each rank's packet decoded by itself, added in rank order.
TEST(PackedSums, AreThoseOfDecodedPacketsInRankOrder) {
  constexpr int kRanks = 3;
  constexpr int64_t kElems = 64;
  // Formats without draws, of which the test can make packets itself.
  for (const WireFormat& format : packed_formats()) {
    if (format.stochastic || format.type == Type::sampled || format.type == Type::threshold ||
        format.type == Type::randomk || format.type == Type::importance)
      continue;
    SCOPED_TRACE(describe(format));
    const std::unique_ptr<Wire> wire = make_wire(format);
    std::vector<float> expected(kElems * kRanks);
    for (int destination = 0; destination < kRanks; ++destination)
      for (int source = 0; source < kRanks; ++source) {
        const PackedSlab slab(0, source, kRanks, kElems);
        const std::vector<float> piece =
            packed_shard_of(slab.given(0, source), destination, kElems);
        std::vector<std::byte> packet(static_cast<size_t>(wire->packet_bytes(kElems)));
        wire->encode(piece, {}, packet.data());
        wire->apply(packet.data(), {}, source == 0 ? Apply::set : Apply::add,
                    std::span(expected).subspan(static_cast<size_t>(destination * kElems), kElems));
      }
    test::run_ranks(kRanks, {}, [&](Communicator& communicator) {
      PackedSlab slab(0, communicator.rank(), kRanks, kElems);
      const PackedMessage message = slab.message(0);
      with_scratch(communicator, Collective::all_reduce, *make_wire(format), {&message, 1},
                   [&](PackedCalls& calls) {
                     const std::unique_ptr<Wire> own = make_wire(format);
                     calls.all_reduce("sum", *own, {&message, 1});
                   });
      EXPECT_EQ(slab.numbers(slab.whole), expected);
    });
  }
}

// Over many steps nothing is lost: all that was given is in the sums, or kept. Sparse formats and
// bf16 round nothing on the way, so only the additions of the test and of the feedback do.
TEST(PackedFeedback, SendsLaterWhatItKeepsBack) {
  constexpr int kRanks = 2, kSteps = 12;
  constexpr int64_t kElems = 48;
  for (const WireFormat& format : packed_formats()) {
    SCOPED_TRACE(describe(format));
    test::run_ranks(kRanks, {}, [&](Communicator& communicator) {
      const int rank = communicator.rank();
      const std::unique_ptr<Wire> wire = make_wire(format);
      PackedSlab slab(0, rank, kRanks, kElems, DType::f32, true);
      std::vector<double> given(kElems * kRanks), sums(kElems * kRanks), kept(kElems * kRanks);
      const auto channel = communicator.open("data", nullptr);
      const Message size = slab.message(0).message;
      std::vector<std::byte> scratch(static_cast<size_t>(
          PackedCalls::scratch_bytes(Collective::all_reduce, *wire, {&size, 1}, kRanks)));
      PackedCalls calls(*channel, false);
      calls.set_scratch(scratch.data(), static_cast<int64_t>(scratch.size()));
      for (int step = 0; step < kSteps; ++step) {
        for (int r = 0; r < kRanks; ++r) {
          const std::vector<float> of_rank = slab.given(0, r, step);
          for (size_t i = 0; i < given.size(); ++i) given[i] += double{of_rank[i]};
        }
        slab.give(0, rank, step);
        PackedMessage message = slab.message(0);
        message.key = philox_key(8, Draw::wire, static_cast<uint32_t>(step));
        calls.all_reduce("sum", *wire, {&message, 1});
        const std::vector<float> sum = slab.numbers(slab.whole);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += double{sum[i]};
      }
      // What the ranks keep, added up.
      std::vector<double> mine(slab.kept.begin(), slab.kept.end());
      const Message message{mine.data(), nullptr, kElems, DType::f64};
      channel->all_reduce("kept", {&message, 1});
      for (size_t i = 0; i < sums.size(); ++i)
        EXPECT_NEAR(given[i], sums[i] + mine[i], kSteps * kRanks * 8 * 0x1p-23) << i;
      EXPECT_GT(calls.work().error(), 0);
      EXPECT_EQ(calls.work().calls, kSteps);
    });
  }
}

// What lies between parameters is no number, and must not count.
TEST(PackedSums, GapsCountAsZeros) {
  for (const WireFormat& format : packed_formats())
    for (const bool feedback : {false, true}) {
      SCOPED_TRACE(describe(format));
      test::run_ranks(2, {}, [&](Communicator& communicator) {
        PackedSlab slab(0, communicator.rank(), 2, 48, DType::f32, feedback);
        auto* const values = reinterpret_cast<float*>(slab.whole.data());
        for (int i = 40; i < 50; ++i) values[i] = std::nanf("");
        const SlabGap gaps[] = {{40, 50}};
        PackedMessage message = slab.message(0);
        message.gaps = gaps;
        const std::unique_ptr<Wire> wire = make_wire(format);
        with_scratch(communicator, Collective::all_reduce, *wire, {&message, 1},
                     [&](PackedCalls& calls) {
                       calls.all_reduce("sum", *wire, {&message, 1});
                     });
        for (const float value : slab.numbers(slab.whole)) EXPECT_TRUE(std::isfinite(value));
        for (size_t i = 40; i < 50 && feedback; ++i)
          EXPECT_TRUE(slab.kept[i] == 0.0f || format.type == Type::sign);
      });
    }
}

TEST(PackedGathers, GiveAllRanksTheSameDecodedShards) {
  for (const Type type : {Type::bf16, Type::int8, Type::int4})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      constexpr int kRanks = 3;
      std::vector<std::vector<float>> wholes(kRanks);
      test::run_ranks(kRanks, {}, [&](Communicator& communicator) {
        const int rank = communicator.rank();
        const std::unique_ptr<Wire> wire = make_wire({.type = type});
        PackedSlab slab(0, rank, kRanks, 48, dtype);
        std::copy_n(slab.whole.begin(), slab.shard.size(), slab.shard.begin());
        const std::vector<std::byte> before = slab.shard;
        const PackedMessage message = slab.message(0);
        const int64_t sent = with_scratch(communicator, Collective::all_gather, *wire,
                                          {&message, 1}, [&](PackedCalls& calls) {
                                            calls.all_gather("gather", *wire, {&message, 1});
                                          });
        EXPECT_EQ(sent, wire->packet_bytes(48) * (kRanks - 1));
        EXPECT_EQ(slab.shard, before);
        wholes[static_cast<size_t>(rank)] = slab.numbers(slab.whole);
        const std::vector<float> exact = slab.numbers(slab.shard);
        for (size_t i = 0; i < exact.size(); ++i)
          EXPECT_NEAR(wholes[static_cast<size_t>(rank)][static_cast<size_t>(rank) * 48 + i],
                      exact[i], 0.4);
      });
      EXPECT_EQ(wholes[0], wholes[1]);
      EXPECT_EQ(wholes[0], wholes[2]);
    }
}

// Momentum before the sum: with everything sent at once, the sum of momenta is the momentum of the
// sums; what is sent ends there if it is masked.
TEST(PackedMomentum, IsThatOfTheSumWhereEverythingIsSent) {
  constexpr int kRanks = 2;
  constexpr int64_t kElems = 32;
  const WireFormat all{.type = Type::topk, .density = 1};
  test::run_ranks(kRanks, {}, [&](Communicator& communicator) {
    const std::unique_ptr<Wire> wire = make_wire(all);
    PackedSlab slab(0, communicator.rank(), kRanks, kElems, DType::f32, true);
    slab.velocity.resize(slab.kept.size());
    std::vector<double> momentum(kElems * kRanks);
    for (int step = 0; step < 5; ++step) {
      for (size_t i = 0; i < momentum.size(); ++i) momentum[i] *= 0.5;
      for (int r = 0; r < kRanks; ++r) {
        const std::vector<float> given = slab.given(0, r, step);
        for (size_t i = 0; i < momentum.size(); ++i) momentum[i] += double{given[i]};
      }
      slab.give(0, communicator.rank(), step);
      const PackedMessage message = slab.message(0);
      const MomentumCorrection correction{.momentum = 0.5f, .masks = false};
      with_scratch(communicator, Collective::all_reduce, *wire, {&message, 1},
                   [&](PackedCalls& calls) {
                     calls.all_reduce("sum", *wire, {&message, 1}, correction);
                   });
      const std::vector<float> sum = slab.numbers(slab.whole);
      for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], momentum[i], 1e-5);
    }
    // Masked: nothing is left of what was sent, which is all.
    slab.give(0, communicator.rank(), 9);
    const PackedMessage message = slab.message(0);
    with_scratch(communicator, Collective::all_reduce, *wire, {&message, 1},
                 [&](PackedCalls& calls) {
                   calls.all_reduce("sum", *wire, {&message, 1}, {.momentum = 0.5f});
                 });
    EXPECT_EQ(slab.velocity, std::vector<float>(slab.velocity.size(), 0.0f));
  });
}

// In one block numbers of 1 and of 128 have one magnitude, which is right for neither; multiplied
// to one size both are, and arrive at their own, whole or in shards.
TEST(PackedMomentum, ThatIsMultipliedArrivesAtItsOwnSize) {
  constexpr int kRanks = 2;
  constexpr int64_t kElems = 64, kEach = 32;  // of a shard, of one size
  for (const bool multiplied : {true, false})
    for (const bool whole : {true, false})
      test::run_ranks(kRanks, {}, [&](Communicator& communicator) {
        const std::unique_ptr<Wire> wire = make_wire({.type = Type::sign, .block = 1024});
        PackedSlab slab(0, communicator.rank(), kRanks, kElems, DType::f32, true);
        slab.velocity.resize(slab.kept.size());
        std::vector<float> values(slab.kept.size());
        std::vector<SlabScale> scales;
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = (i % 3 == 0 ? -1.0f : 1.0f) * (i / kEach % 2 == 0 ? 1.0f : 128.0f);
        for (int64_t at = 0; at < kElems * kRanks; at += kEach)
          scales.push_back({at, at + kEach, at / kEach % 2 == 0 ? 64.0f : 0.5f});
        narrow(DType::f32, values, slab.whole);
        PackedMessage message = slab.message(0);
        if (multiplied) message.scales = scales;
        const MomentumCorrection correction{.momentum = 0.9f, .masks = false};
        with_scratch(communicator, whole ? Collective::all_reduce : Collective::reduce_scatter,
                     *wire, {&message, 1}, [&](PackedCalls& calls) {
                       if (whole)
                         calls.all_reduce("sum", *wire, {&message, 1}, correction);
                       else
                         calls.reduce_scatter("sum", *wire, {&message, 1}, correction);
                     });
        const std::vector<float> sum = slab.numbers(whole ? slab.whole : slab.shard);
        const size_t first = whole ? 0 : static_cast<size_t>(communicator.rank() * kElems);
        int wrong = 0;
        for (size_t i = 0; i < sum.size(); ++i) wrong += sum[i] != kRanks * values[first + i];
        EXPECT_EQ(wrong, multiplied ? 0 : static_cast<int>(sum.size()));
      });
}

TEST(PackedMomentum, ALimitIsOfTheOwnGradient) {
  test::run_ranks(2, {}, [&](Communicator& communicator) {
    const std::unique_ptr<Wire> wire = make_wire({.type = Type::topk, .density = 1});
    PackedSlab slab(0, communicator.rank(), 2, 32, DType::f32, true);
    slab.velocity.resize(slab.kept.size());
    const std::vector<float> given = slab.given(0, communicator.rank());
    double squares = 0;
    for (const float value : given) squares += double{value} * value;
    const PackedMessage message = slab.message(0);
    with_scratch(communicator, Collective::all_reduce, *wire, {&message, 1},
                 [&](PackedCalls& calls) {
                   calls.all_reduce("sum", *wire, {&message, 1},
                                    {.momentum = 0.9f, .masks = false, .limit = 0.5f});
                 });
    double limited = 0;
    for (const float value : slab.velocity) limited += double{value} * value;
    EXPECT_GT(std::sqrt(squares), 1);
    EXPECT_NEAR(std::sqrt(limited), 0.5, 1e-6);
  });
}

TEST(PackedCalls, ThatAreDryOnlyCount) {
  const auto communicator = make_dry_communicator(4);
  const auto channel = communicator->open("data", nullptr);
  const std::unique_ptr<Wire> wire = make_wire({.type = Type::int8});
  const PackedMessage message{.message = {nullptr, nullptr, 1024, DType::f32}, .key = {}};
  const Message size = message.message;
  PackedCalls calls(*channel, true);
  calls.set_scratch(nullptr,
                    PackedCalls::scratch_bytes(Collective::all_reduce, *wire, {&size, 1}, 4));
  calls.reduce_scatter("sum", *wire, {&message, 1});
  calls.all_reduce("sum", *wire, {&message, 1});
  calls.all_gather("gather", *wire, {&message, 1});
  int64_t sent = 0;
  for (const Traffic& traffic : channel->traffic()) sent += traffic.bytes_sent;
  EXPECT_EQ(sent, PackedCalls::reduce_scatter_bytes(*wire, {&size, 1}, 4) +
                      PackedCalls::all_reduce_bytes(*wire, {&size, 1}, 4) +
                      PackedCalls::all_gather_bytes(*wire, {&size, 1}, 4));
  EXPECT_EQ(calls.work().calls, 3);
}

}  // namespace
}  // namespace onefold
