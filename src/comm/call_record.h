// The description of a call that ranks compare with each other's and print in errors.
#pragma once

#include <functional>

#include "comm/communicator.h"

namespace onefold {

struct CallRecord {
  Collective collective = Collective::barrier;
  int peer = -1;
  int64_t bytes = 0;         // of all shards, of a block, or of a message
  int64_t messages = 0;      // of a gather or reduction
  uint64_t sizes = 0;        // hash of the messages' sizes and types
  DType dtype = DType::f32;  // of the first message, for errors
  std::string what;

  CallRecord() = default;
  explicit CallRecord(const Channel::Call& call) { assign(call); }
  void assign(const Channel::Call& call);  // keeps the string's memory: calls are frequent

  // Whether the two are the same collective.
  bool agrees_with(const CallRecord& other) const;
  // Whether this send matches a receive.
  bool delivers_to(const CallRecord& receive) const;

  std::string text() const;  // all_gather "gather block.3, step 17" (4096 bytes)
};

// "rank 0 calls all_gather "a" (64 bytes), rank 2 calls barrier "b"": two calls that cannot be one.
std::string disagreement(int rank, const CallRecord& call, int other_rank, const CallRecord& other);

// "exchange, tensor group of ranks 2, 3": what errors call a channel of a group.
std::string channel_name(const std::string& name, const RankGroup& group);

// "rank 2 did not reach all_gather "a" (64 bytes) on channel "gather" within 600 seconds, where
// ranks 0, 1 wait; ...", and what to do. `last` describes its last call. With `seconds` < 0 it
// "left before".
std::string missing_text(std::span<const int> missing, const std::string& call,
                         const std::string& channel, double seconds, std::span<const int> waiting,
                         const std::string& last);

// missing_text() of ranks that are late in a call, where `idle` wait for no other: of those late
// ranks that do not wait themselves, or, if all do, of all, after "rank 5 is in no call, and all
// others wait, for it or for each other: ".
std::string late_text(std::vector<int> late, std::span<const int> idle,
                      const std::function<std::string(const std::vector<int>& missing)>& text);

// FNV-1a.
uint64_t hash_bytes(const void* data, size_t bytes, uint64_t seed = 14695981039346656037u);

}  // namespace onefold
