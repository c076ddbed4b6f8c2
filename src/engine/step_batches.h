// The micro-batches of a step in the device's memory: booked once, written before each step. Of
// sequences that ranks divide, the part that is this rank's.
#pragma once

#include <span>
#include <vector>

#include "device/device.h"
#include "engine/options.h"

namespace onefold {

class StepBatches {
 public:
  // Of a model's share, tokens and targets are numbered as its units want them (UnitBatch).
  StepBatches(Device& device, Ledger& ledger, const EngineOptions& options, const Model& model);

  // Copies the batches; at most as many and as large as the options say.
  std::vector<UnitBatch> upload(std::span<const BatchView> micros);

  // Targets that count, of those that are here.
  int64_t valid_targets(const BatchView& batch) const;

 private:
  // The numbers that this share has for them.
  std::vector<int32_t> places_of(std::span<const int32_t> tokens) const;
  // Of a value for each token of a batch, those of the tokens here.
  std::vector<int32_t> part_of(const BatchView& batch, std::span<const int32_t> values) const;

  Device& device_;
  const Share share_;
  const int64_t all_;                 // tokens of the vocabulary
  const Span mine_;                   // of them
  const int64_t tokens_, sequences_;  // of a micro-batch that are here, at most
  Buffer tokens_memory_, targets_memory_, starts_memory_, samples_memory_;
  Buffer places_memory_, all_starts_memory_;
};

}  // namespace onefold
