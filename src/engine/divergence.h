// Where in a step the first value appeared that is not finite. Healthy steps do not look: a step
// that failed is walked again (its weights are unchanged and its bits repeat) and watched.
#pragma once

#include <limits>
#include <string>

#include "device/device.h"
#include "model/unit.h"
#include "program/program.h"

namespace onefold {

class FirstNotFinite {
 public:
  // `staged`: ranks compute different units.
  FirstNotFinite(Device& device, const Model& model, bool staged)
      : device_(device), model_(model), staged_(staged) {}

  // After a unit's forward or backward: its parameters, then what it computed.
  void look(const Action& action, const UnitCall& call);

  // Of units computed, or of ranks that compute different ones: in the order of one rank,
  // micro-batch by micro-batch; infinity if nothing was found.
  double position() const { return found_ ? position_ : std::numeric_limits<double>::infinity(); }
  int micro() const { return micro_; }
  // "the loss is nan (unit head, tensor logits)"; "" if nothing was found.
  const std::string& what() const { return what_; }
  bool is_weight() const { return is_weight_; }  // then the step itself is not to blame

 private:
  void look_at_forward(const Action& action, const UnitCall& call);
  void look_at_backward(const Action& action, const UnitCall& call);
  // Notes a tensor that has a value that is not finite; `what` says what it is.
  void look_at(const Action& action, Tensor tensor, const std::string& what,
               const std::string& name);

  Device& device_;
  const Model& model_;
  const bool staged_;
  double position_ = -1;
  int micro_ = 0;
  bool found_ = false, is_weight_ = false;
  std::string what_;
};

}  // namespace onefold
