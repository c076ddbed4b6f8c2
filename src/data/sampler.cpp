#include "data/sampler.h"

#include <bit>

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

Sampler::Sampler(int64_t count, uint64_t seed, bool shuffle)
    : count_(count), seed_(seed), shuffle_(shuffle) {
  require(count > 0, "a sampler of {} sequences", count);
  const int bits = std::bit_width(static_cast<uint64_t>(count - 1));
  low_bits_ = (bits + 1) / 2;
  high_bits_ = bits - low_bits_;
}

uint64_t Sampler::permute(PhiloxKey key, uint64_t index) const {
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
  } while (index >= static_cast<uint64_t>(count_));
  return index;
}

Sampler::Sample Sampler::sample(int64_t position) const {
  require(position >= 0, "sample at position {}", position);
  const int64_t epoch = position / count_, index = position % count_;
  if (!shuffle_) return {epoch, index};
  const PhiloxKey key = philox_key(seed_, Draw::shuffle, static_cast<uint32_t>(epoch),
                                   static_cast<uint32_t>(epoch >> 32));
  return {epoch, static_cast<int64_t>(permute(key, static_cast<uint64_t>(index)))};
}

}  // namespace onefold
