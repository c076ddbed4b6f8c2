// Decoding: the caches of all blocks for some sequences, and the logits of their last positions.
// One rank.
#pragma once

#include <span>
#include <vector>

#include "engine/engine.h"

namespace onefold {

class Decoder {
 public:
  // For `batch` sequences of at most `capacity` tokens.
  Decoder(Engine& engine, int64_t batch, int64_t capacity);

  // Feeds tokens [batch, length], sequence after sequence; afterwards logits(b) are those of b's
  // last position. Where rotary frequencies change with the length (RopeScaling::switches), the
  // whole past is computed again when it comes to that.
  void feed(std::span<const int32_t> tokens);
  // On the host; they may be changed.
  std::span<float> logits(int64_t b);
  // Forgets all but the first `length` tokens of each sequence.
  void keep(int64_t length);
  int64_t capacity() const { return caches_.front().capacity; }
  // Sequence b's past becomes that of `from`'s sequence sources[b].
  void take_past(const Decoder& from, std::span<const int64_t> sources);

 private:
  int64_t length() const { return caches_.front().length; }
  void compute(std::span<const int32_t> tokens);
  void compute_past_again();

  Engine& engine_;
  const int64_t batch_;
  Program blocks_;  // an evaluation without the head
  Buffer memory_, logits_memory_;
  std::vector<KvCache> caches_;             // by block
  std::vector<float> logits_;               // [batch, vocab]
  std::vector<std::vector<int32_t>> past_;  // by sequence; only where frequencies change
};

}  // namespace onefold
