// The micro-batches of a step in the device's memory: booked once, written before each step.
#pragma once

#include <span>
#include <vector>

#include "device/device.h"
#include "engine/options.h"

namespace onefold {

class StepBatches {
 public:
  StepBatches(Device& device, Ledger& ledger, const EngineOptions& options);

  // Copies the batches; at most as many and as large as the options say.
  std::vector<UnitBatch> upload(std::span<const BatchView> micros);

 private:
  Device& device_;
  const int64_t tokens_, sequences_;  // of a micro-batch, at most
  Buffer tokens_memory_, targets_memory_, starts_memory_, samples_memory_;
};

}  // namespace onefold
