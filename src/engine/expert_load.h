// What the routers of a step measure: their losses, and how many tokens each expert was sent. It is
// added up in the device's memory over micro-batches, then over ranks where a step is clipped; the
// host reads it once, after the step.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "engine/options.h"
#include "model/unit.h"

namespace onefold {

// Of one step, over all its micro-batches and ranks.
struct StepExperts {
  struct Layer {
    int unit = 0;
    std::vector<double> shares;  // of all choices, by expert
    double dropped = 0;          // the share of choices that no expert took
  };
  double balance_loss = 0, z_loss = 0;  // as they are added to the loss
  std::vector<Layer> layers;            // those with experts
};

class ExpertLoad {
 public:
  ExpertLoad(Device& device, Ledger& ledger, const Model& model, int ranks);

  bool any() const { return elems_ > 0; }
  // Before a step or an evaluation: nothing is counted yet. The losses' gradients are multiplied by
  // `scale`.
  void begin(float scale);
  Tensor scale() const { return scale_; }
  // What a unit adds to; empty where it has no experts.
  Tensor of(int unit) const;
  // Where a unit says that rows have found no room (SpreadRows::needed), on this rank; likewise.
  Tensor rows_needed(int unit) const;
  // After a step or an evaluation: a UserError names the first unit whose rows have found none.
  // The numbers it has computed are NaN then, and a step has changed nothing.
  void require_room(const Model& model, int64_t step, double bound) const;
  // For the sum over ranks.
  Message message(int rank) const;
  // `parts`: micro-batches of all ranks.
  StepExperts read(double parts) const;

 private:
  Tensor all_rows_needed() const;

  Device& device_;
  const int ranks_;
  std::vector<int64_t> experts_;  // by unit
  int64_t elems_ = 0;             // of all units
  Buffer memory_;
  Tensor numbers_, scale_;
};

// Why a mixture of experts cannot be trained with these options: a sentence; "" if it can, or the
// model has none.
std::string obstacle_to_experts(const ModelSpec& spec, const EngineOptions& options);

}  // namespace onefold
