#include "data/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"

namespace onefold {
namespace {

constexpr uint32_t kRounds =
    6;  // 4 suffice for wide halves; small sets have halves of a few bits, and rounds are cheap

uint64_t low_mask(int bits) { return (uint64_t{1} << bits) - 1; }

uint64_t round_word(PhiloxKey key, uint64_t half, uint32_t round) {
  const PhiloxWords words =
      philox(key, {static_cast<uint32_t>(half), static_cast<uint32_t>(half >> 32), round, 0});
  return uint64_t{words[1]} << 32 | words[0];
}

}  // namespace

Permutation::Permutation(int64_t count) : count_(static_cast<uint64_t>(count)) {
  require(count > 0, "a permutation of {}", count);
  const int bits = std::bit_width(count_ - 1);
  low_bits_ = (bits + 1) / 2;
  high_bits_ = bits - low_bits_;
}

uint64_t Permutation::operator()(PhiloxKey key, uint64_t index) const {
  do {  // fewer than two turns on average: the power of two is less than twice the count
    uint64_t low = index & low_mask(low_bits_), high = index >> low_bits_;
    for (uint32_t round = 0; round < kRounds; ++round) {
      if (round % 2 == 0) {
        high ^= round_word(key, low, round) & low_mask(high_bits_);
      } else {
        low ^= round_word(key, high, round) & low_mask(low_bits_);
      }
    }
    index = high << low_bits_ | low;
  } while (index >= count_);
  return index;
}

Sampler::Sampler(int64_t count, uint64_t seed, bool shuffle)
    : Sampler(std::vector<Group>{{count, 1}}, seed, shuffle) {}

Sampler::Sampler(std::vector<Group> groups, uint64_t seed, bool shuffle)
    : seed_(seed), shuffle_(shuffle) {
  const bool weighted = std::any_of(groups.begin(), groups.end(),
                                    [](const Group& group) { return group.weight != 1; });
  int64_t sequences = 0;
  for (const Group& group : groups) {
    require(group.count > 0 && group.weight > 0, "a sampler of {} sequences, {} times each",
            group.count, group.weight);
    if (weighted) {
      const double places = std::round(static_cast<double>(group.count) * group.weight);
      if (!(places < 0x1p62)) user_error("a weight of {} is too large", group.weight);
      parts_.push_back({.first_sequence = sequences,
                        .sequences = group.count,
                        .first_place = count_,
                        .places = std::max<int64_t>(1, static_cast<int64_t>(places)),
                        .permutation = Permutation(group.count)});
    }
    sequences += group.count;
    count_ += weighted ? parts_.back().places : group.count;
  }
  require(count_ > 0, "a sampler of {} sequences", count_);
  permutation_ = Permutation(count_);
}

Sampler::Sample Sampler::sample(int64_t position) const {
  require(position >= 0, "sample at position {}", position);
  const int64_t epoch = position / count_;
  int64_t place = position % count_;
  if (shuffle_) {
    const PhiloxKey key = philox_key(seed_, Draw::shuffle, static_cast<uint32_t>(epoch),
                                     static_cast<uint32_t>(epoch >> 32));
    place = static_cast<int64_t>(permutation_(key, static_cast<uint64_t>(place)));
  }
  if (parts_.empty()) return {epoch, place};
  const auto part = std::upper_bound(parts_.begin(), parts_.end(), place,
                                     [](int64_t p, const Part& of) { return p < of.first_place; }) -
                    1;
  // The group's own samples, over all epochs; a pass is each of its sequences once.
  const int64_t own = epoch * part->places + place - part->first_place;
  const int64_t pass = own / part->sequences;
  int64_t index = own % part->sequences;
  if (shuffle_) {
    const auto group = static_cast<uint32_t>(part - parts_.begin());
    const PhiloxKey key = philox_key(seed_, Draw::shuffle, static_cast<uint32_t>(pass),
                                     static_cast<uint32_t>(pass >> 32), group + 1);
    index = static_cast<int64_t>(part->permutation(key, static_cast<uint64_t>(index)));
  }
  return {epoch, part->first_sequence + index};
}

}  // namespace onefold
