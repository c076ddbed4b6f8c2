// Every collective with awkward sizes, checked bit by bit against a serial oracle. One rank runs it
// on its communicator, whatever the transport.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "comm/communicator.h"

namespace onefold::test {

using Floats = std::vector<float>;

// Element i of what rank r gives. Magnitudes differ widely, so another order has other bits. A
// hash, as the large cases draw millions.
inline float value(int rank, uint64_t stream, int64_t i) {
  uint64_t x = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u;
  x ^= static_cast<uint64_t>(rank + 1) * 0xBF58476D1CE4E5B9u + stream * 0x94D049BB133111EBu;
  x = (x ^ (x >> 31)) * 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  static constexpr float kScales[] = {0x1p-12f, 0x1p-7f, 0x1p-3f, 1.0f,
                                      0x1p2f,   0x1p5f,  0x1p9f,  0x1p12f};
  return static_cast<float>(static_cast<int32_t>(x)) * 0x1p-31f * kScales[(x >> 40) % 8];
}

inline Floats values(int rank, uint64_t stream, int64_t elems) {
  Floats result(static_cast<size_t>(elems));
  for (int64_t i = 0; i < elems; ++i) result[static_cast<size_t>(i)] = value(rank, stream, i);
  return result;
}

// ((r0 + r1) + r2) + ...
inline Floats ordered_sum_oracle(int ranks, uint64_t stream, int64_t elems) {
  Floats sum = values(0, stream, elems);
  for (int r = 1; r < ranks; ++r) {
    const Floats next = values(r, stream, elems);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += next[i];
  }
  return sum;
}

inline void expect_bits(std::span<const float> actual, std::span<const float> expected,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << ", element " << i << ": " << actual[i] << " instead of " << expected[i];
}

// Some parts of a bucket: their shards' sizes in elements. Zero is allowed.
using Sizes = std::vector<int64_t>;

// Whole slabs, and shards apart from them or inside them.
struct Slabs {
  std::vector<Floats> whole, shard;
  std::vector<Part> parts;

  Slabs(const Channel& channel, const Sizes& sizes, bool in_place) {
    for (const int64_t elems : sizes) {
      whole.emplace_back(static_cast<size_t>(elems * channel.ranks()), -1.0f);
      shard.emplace_back(static_cast<size_t>(elems), -2.0f);
    }
    for (size_t p = 0; p < sizes.size(); ++p) {
      float* place = whole[p].data() + channel.rank() * sizes[p];
      parts.push_back({whole[p].data(), in_place ? place : shard[p].data(), 4 * sizes[p]});
    }
  }
  float* shard_of(size_t p) { return static_cast<float*>(parts[p].shard); }
};

inline void check_all_gather(Channel& channel, const Sizes& sizes, bool in_place) {
  Slabs slabs(channel, sizes, in_place);
  for (size_t p = 0; p < sizes.size(); ++p)
    for (int64_t i = 0; i < sizes[p]; ++i) slabs.shard_of(p)[i] = value(channel.rank(), p, i);
  channel.all_gather("gather test", slabs.parts);
  for (size_t p = 0; p < sizes.size(); ++p) {
    Floats expected;
    for (int r = 0; r < channel.ranks(); ++r)
      for (const float v : values(r, p, sizes[p])) expected.push_back(v);
    expect_bits(slabs.whole[p], expected, "all_gather");
  }
}

inline void check_reduce_scatter(Channel& channel, const Sizes& sizes, bool in_place) {
  Slabs slabs(channel, sizes, in_place);
  const int rank = channel.rank();
  for (size_t p = 0; p < sizes.size(); ++p) {
    const Floats own = values(rank, p, sizes[p] * channel.ranks());
    std::copy(own.begin(), own.end(), slabs.whole[p].begin());
  }
  channel.reduce_scatter("reduce test", slabs.parts);
  for (size_t p = 0; p < sizes.size(); ++p) {
    const int64_t elems = sizes[p] * channel.ranks(), begin = rank * sizes[p];
    const Floats sum = ordered_sum_oracle(channel.ranks(), p, elems);
    const auto own =
        std::span(sum).subspan(static_cast<size_t>(begin), static_cast<size_t>(sizes[p]));
    expect_bits({slabs.shard_of(p), own.size()}, own, "reduce_scatter");
    Floats untouched =
        values(rank, p, elems);  // whole is only read, but for the own piece in place
    if (in_place) std::copy(own.begin(), own.end(), untouched.begin() + begin);
    expect_bits(slabs.whole[p], untouched, "what reduce_scatter reads");
  }
}

inline void check_all_reduce(Channel& channel, const Sizes& sizes) {
  Slabs slabs(channel, sizes, true);
  for (size_t p = 0; p < sizes.size(); ++p) {
    const Floats own = values(channel.rank(), p, sizes[p] * channel.ranks());
    std::copy(own.begin(), own.end(), slabs.whole[p].begin());
    slabs.parts[p].shard = nullptr;
  }
  channel.all_reduce("sum test", slabs.parts);
  for (size_t p = 0; p < sizes.size(); ++p)
    expect_bits(slabs.whole[p], ordered_sum_oracle(channel.ranks(), p, sizes[p] * channel.ranks()),
                "all_reduce");
}

inline void check_broadcast(Channel& channel, int64_t elems, int root) {
  Floats data = values(channel.rank(), 5, elems);
  channel.broadcast("broadcast test", root, data.data(), 4 * elems);
  expect_bits(data, values(root, 5, elems), "broadcast");
}

inline void check_all_to_all(Channel& channel, int64_t elems) {
  const int ranks = channel.ranks(), rank = channel.rank();
  const Floats from = values(rank, 6, elems * ranks);
  Floats to(from.size(), -1.0f), expected;
  channel.all_to_all("exchange test", from.data(), to.data(), 4 * elems);
  for (int r = 0; r < ranks; ++r) {
    const Floats theirs = values(r, 6, elems * ranks);
    expected.insert(expected.end(), theirs.begin() + rank * elems,
                    theirs.begin() + (rank + 1) * elems);
  }
  expect_bits(to, expected, "all_to_all");
}

// A message round the ring: even ranks send first, as a send may wait for its receiver.
inline void check_ring(Channel& channel, int64_t elems) {
  const int ranks = channel.ranks(), rank = channel.rank();
  if (ranks == 1) return;
  const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  const Floats from = values(rank, 7, elems);
  Floats to(from.size(), -1.0f);
  const bool first = rank % 2 == 0 && rank != ranks - 1;  // of an odd number, the last one receives
  if (first) channel.send("ring", next, from.data(), 4 * elems);
  channel.receive("ring", last, to.data(), 4 * elems);
  if (!first) channel.send("ring", next, from.data(), 4 * elems);
  expect_bits(to, values(last, 7, elems), "receive");
}

// What the calls of check_collectives must have counted.
inline void expect_traffic(const Channel& channel, Collective collective, int64_t calls,
                           int64_t bytes) {
  const Traffic& traffic = channel.traffic()[static_cast<size_t>(collective)];
  EXPECT_EQ(traffic.calls, calls) << collective_name(collective);
  EXPECT_EQ(traffic.bytes_sent, bytes) << collective_name(collective);
  EXPECT_GE(traffic.seconds, 0) << collective_name(collective);
}

inline const std::vector<Sizes>& size_cases() {
  static const std::vector<Sizes> cases = {
      {1}, {17}, {4099}, {0}, {}, {3, 0, 1031, 1, 64}, Sizes(200, 5), {20011, 1, 7001}};
  return cases;
}

inline void check_collectives(Channel& channel) {
  const int64_t ranks = channel.ranks(), others = ranks - 1;
  int64_t calls = 0, shards = 0;
  for (const Sizes& sizes : size_cases()) {
    for (const bool in_place : {false, true}) {
      check_all_gather(channel, sizes, in_place);
      check_reduce_scatter(channel, sizes, in_place);
      check_all_reduce(channel, sizes);
      ++calls;
      for (const int64_t elems : sizes) shards += 4 * elems;
    }
  }
  int64_t rooted = 0, broadcasts = 0, exchanged = 0, exchanges = 0, rings = 0;
  for (const int64_t elems : {int64_t{0}, int64_t{1}, int64_t{1021}, int64_t{20011}}) {
    for (int root = 0; root < channel.ranks(); ++root, ++broadcasts) {
      check_broadcast(channel, elems, root);
      if (root == channel.rank()) rooted += 4 * elems * others;
    }
    check_all_to_all(channel, elems);
    check_ring(channel, elems);
    channel.barrier("between");
    exchanged += 4 * elems * others;
    rings += 4 * elems;
    ++exchanges;
  }
  expect_traffic(channel, Collective::all_gather, calls, shards * others);
  expect_traffic(channel, Collective::reduce_scatter, calls, shards * others);
  expect_traffic(channel, Collective::all_reduce, calls, 2 * shards * others);
  expect_traffic(channel, Collective::broadcast, broadcasts, rooted);
  expect_traffic(channel, Collective::all_to_all, exchanges, exchanged);
  expect_traffic(channel, Collective::send, others ? exchanges : 0, others ? rings : 0);
  expect_traffic(channel, Collective::receive, others ? exchanges : 0, 0);
  expect_traffic(channel, Collective::barrier, exchanges, 0);
}

}  // namespace onefold::test
