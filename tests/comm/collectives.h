// Every collective with awkward sizes, checked bit by bit against a serial oracle. One rank runs it
// on its communicator, whatever the transport.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "comm/communicator.h"
#include "unwatched.h"

namespace onefold::test {

template <class T>
using Values = std::vector<T>;
using Floats = Values<float>;

template <class T>
constexpr DType kDType = sizeof(T) == 8 ? DType::f64 : DType::f32;

// Element i of rank r's data. Magnitudes differ widely, so a sum in another order has other bits. A
// hash, because it is fast: the large cases have millions of elements.
template <class T = float>
ONEFOLD_UNWATCHED T value(int rank, uint64_t key, int64_t i) {
  uint64_t x = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u;
  x ^= static_cast<uint64_t>(rank + 1) * 0xBF58476D1CE4E5B9u + key * 0x94D049BB133111EBu;
  x = (x ^ (x >> 31)) * 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  static constexpr T kScales[] = {0x1p-12f, 0x1p-7f, 0x1p-3f, 1.0f,
                                  0x1p2f,   0x1p5f,  0x1p9f,  0x1p12f};
  const T scale = kScales[(x >> 40) % 8];
  if constexpr (sizeof(T) == 8)  // all bits of the mantissa
    return static_cast<T>(static_cast<int64_t>(x)) * 0x1p-63 * scale;
  else
    return static_cast<T>(static_cast<int32_t>(x)) * 0x1p-31f * scale;
}

template <class T = float>
ONEFOLD_UNWATCHED Values<T> values(int rank, uint64_t key, int64_t elems) {
  Values<T> result(static_cast<size_t>(elems));
  T* const to = result.data();
  for (int64_t i = 0; i < elems; ++i) to[i] = value<T>(rank, key, i);
  return result;
}

// ((r0 + r1) + r2) + ...
template <class T>
ONEFOLD_UNWATCHED Values<T> ordered_sum_oracle(int ranks, uint64_t key, int64_t elems) {
  Values<T> result = values<T>(0, key, elems);
  T* const sum = result.data();
  for (int r = 1; r < ranks; ++r)
    for (int64_t i = 0; i < elems; ++i) sum[i] += value<T>(r, key, i);
  return result;
}

template <class T>
void expect_bits(std::span<const T> actual, const Values<T>& expected, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  if (actual.empty() || std::memcmp(actual.data(), expected.data(), actual.size_bytes()) == 0)
    return;
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(T)), 0)
        << what << ", element " << i << ": " << actual[i] << " instead of " << expected[i];
}
template <class T>
void expect_bits(const Values<T>& actual, const Values<T>& expected, const std::string& what) {
  expect_bits(std::span<const T>(actual), expected, what);
}

// The shards' sizes of a bucket's messages, in elements. Zero is allowed.
using Sizes = std::vector<int64_t>;

// Whole slabs, and shards apart from them or inside them.
template <class T>
struct Slabs {
  std::vector<Values<T>> whole, shard;
  std::vector<Message> messages;

  Slabs(const Channel& channel, const Sizes& sizes, bool in_place) {
    for (const int64_t elems : sizes) {
      whole.emplace_back(static_cast<size_t>(elems * channel.ranks()), T{-1});
      shard.emplace_back(static_cast<size_t>(elems), T{-2});
    }
    for (size_t m = 0; m < sizes.size(); ++m) {
      T* place = whole[m].data() + channel.rank() * sizes[m];
      messages.push_back(
          {whole[m].data(), in_place ? place : shard[m].data(), sizes[m], kDType<T>});
    }
  }
  T* shard_of(size_t m) { return static_cast<T*>(messages[m].shard); }
};

template <class T = float>
void check_all_gather(Channel& channel, const Sizes& sizes, bool in_place) {
  Slabs<T> slabs(channel, sizes, in_place);
  for (size_t m = 0; m < sizes.size(); ++m)
    for (int64_t i = 0; i < sizes[m]; ++i) slabs.shard_of(m)[i] = value<T>(channel.rank(), m, i);
  channel.all_gather("gather test", slabs.messages);
  for (size_t m = 0; m < sizes.size(); ++m) {
    Values<T> expected;
    for (int r = 0; r < channel.ranks(); ++r) {
      const Values<T> theirs = values<T>(r, m, sizes[m]);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    expect_bits(slabs.whole[m], expected, "all_gather");
  }
}

template <class T = float>
void check_reduce_scatter(Channel& channel, const Sizes& sizes, bool in_place) {
  Slabs<T> slabs(channel, sizes, in_place);
  const int rank = channel.rank();
  for (size_t m = 0; m < sizes.size(); ++m) {
    const Values<T> own = values<T>(rank, m, sizes[m] * channel.ranks());
    std::copy(own.begin(), own.end(), slabs.whole[m].begin());
  }
  channel.reduce_scatter("reduce test", slabs.messages);
  for (size_t m = 0; m < sizes.size(); ++m) {
    const int64_t elems = sizes[m] * channel.ranks(), begin = rank * sizes[m];
    const Values<T> sum = ordered_sum_oracle<T>(channel.ranks(), m, elems);
    const Values<T> own(sum.begin() + begin, sum.begin() + begin + sizes[m]);
    expect_bits(std::span<const T>(slabs.shard_of(m), own.size()), own, "reduce_scatter");
    // whole is only read, but for the own piece in place
    Values<T> untouched = values<T>(rank, m, elems);
    if (in_place) std::copy(own.begin(), own.end(), untouched.begin() + begin);
    expect_bits(slabs.whole[m], untouched, "what reduce_scatter reads");
  }
}

template <class T = float>
void check_all_reduce(Channel& channel, const Sizes& sizes) {
  Slabs<T> slabs(channel, sizes, true);
  for (size_t m = 0; m < sizes.size(); ++m) {
    const Values<T> own = values<T>(channel.rank(), m, sizes[m] * channel.ranks());
    std::copy(own.begin(), own.end(), slabs.whole[m].begin());
    slabs.messages[m].shard = nullptr;
  }
  channel.all_reduce("sum test", slabs.messages);
  for (size_t m = 0; m < sizes.size(); ++m)
    expect_bits(slabs.whole[m],
                ordered_sum_oracle<T>(channel.ranks(), m, sizes[m] * channel.ranks()),
                "all_reduce");
}

// One bucket of both types: each message is summed in its own.
inline void check_mixed_sum(Channel& channel) {
  const int ranks = channel.ranks();
  Floats narrow = values<float>(channel.rank(), 1, 37 * ranks);
  Values<double> wide = values<double>(channel.rank(), 2, 1031 * ranks);
  const Message messages[] = {{narrow.data(), nullptr, 37},
                              {wide.data(), nullptr, 1031, DType::f64}};
  channel.all_reduce("mixed sum", messages);
  expect_bits(narrow, ordered_sum_oracle<float>(ranks, 1, 37 * ranks), "f32 beside f64");
  expect_bits(wide, ordered_sum_oracle<double>(ranks, 2, 1031 * ranks), "f64 beside f32");
}

// Every type, in shards whose size is no multiple of a vector or a cache line.
inline void check_gather_of_every_type(Channel& channel) {
  constexpr DType kAll[] = {DType::f32,  DType::i32, DType::f64, DType::i64,
                            DType::bf16, DType::f16, DType::u8};
  const auto byte_of = [](int rank, size_t m, int64_t i) {
    return static_cast<uint8_t>(rank * 89 + static_cast<int>(m) * 31 + static_cast<int>(i) * 7);
  };
  constexpr int64_t kElems = 101;
  std::vector<std::vector<uint8_t>> whole, shard;
  std::vector<Message> messages;
  for (const DType dtype : kAll) {
    const auto bytes = static_cast<size_t>(kElems * dtype_bytes(dtype));
    whole.emplace_back(bytes * static_cast<size_t>(channel.ranks()));
    shard.emplace_back(bytes);
    for (size_t i = 0; i < bytes; ++i)
      shard.back()[i] = byte_of(channel.rank(), shard.size(), static_cast<int64_t>(i));
    messages.push_back({whole.back().data(), shard.back().data(), kElems, dtype});
  }
  channel.all_gather("every type", messages);
  for (size_t m = 0; m < messages.size(); ++m)
    for (int64_t i = 0; i < static_cast<int64_t>(whole[m].size()); ++i) {
      const int64_t bytes = messages[m].shard_bytes();
      ASSERT_EQ(whole[m][static_cast<size_t>(i)],
                byte_of(static_cast<int>(i / bytes), m + 1, i % bytes))
          << dtype_name(messages[m].dtype) << ", byte " << i;
    }
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

// Each rank sends to the next. Even ranks send first, because a send may wait for its receiver.
inline void check_ring(Channel& channel, int64_t elems) {
  const int ranks = channel.ranks(), rank = channel.rank();
  if (ranks == 1) return;
  const int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
  const Floats from = values(rank, 7, elems);
  Floats to(from.size(), -1.0f);
  const bool first =
      rank % 2 == 0 && rank != ranks - 1;  // with an odd number of ranks, the last one receives
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
      check_all_gather<double>(channel, sizes, in_place);
      check_reduce_scatter<double>(channel, sizes, in_place);
      check_all_reduce<double>(channel, sizes);
      calls += 2;
      for (const int64_t elems : sizes) shards += (4 + 8) * elems;
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
  check_mixed_sum(channel);
  check_gather_of_every_type(channel);
}

}  // namespace onefold::test
