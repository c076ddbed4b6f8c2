// The loss is multiplied by a scale before backward, so that fp16 holds its small gradients, and
// gradients are divided by it before they are clipped and used. A step whose gradients overflow is
// skipped. The rules are those of DeepSpeed's `fp16` section.
#pragma once

#include <cstdint>

namespace onefold {

struct LossScaleConfig {
  double fixed = 1;          // loss_scale; 0: it follows the gradients, by what is below
  int initial_power = 16;    // initial_scale_power: the first scale is 2 to this
  int64_t window = 1000;     // loss_scale_window: so many steps without overflow, and it doubles
  int64_t hysteresis = 2;    // overflows that are let pass, but for the last, which halves it
  bool consecutive = false;  // consecutive_hysteresis: any good step allows that many again;
                             // else only one that doubles the scale
  double least = 1;          // min_loss_scale

  bool dynamic() const { return fixed == 0; }
};

class LossScale {
 public:
  // What follows from the steps so far; saved with checkpoints.
  struct State {
    double scale = 1;
    int64_t steps = 0;           // seen, skipped ones too
    int64_t last_overflow = -1;  // the step
    int64_t hysteresis = 1;      // overflows that are left, the halving one included
    int64_t skipped = 0;         // steps that overflowed
    bool followed = false;       // whether the scale has followed gradients
    bool operator==(const State&) const = default;
  };

  explicit LossScale(const LossScaleConfig& config);

  double scale() const { return state_.scale; }
  const State& state() const { return state_; }
  // As it is configured now: a fixed scale is that one, and one that follows gradients begins anew
  // where the one before did not.
  void resume(const State& state);

  // After every step. False: gradients overflow at the least scale, and there is no way on.
  [[nodiscard]] bool update(bool overflow);

 private:
  LossScaleConfig config_;
  State state_;
};

}  // namespace onefold
