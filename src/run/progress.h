// The live line of a training run: redrawn in place on a terminal, one line every few steps
// elsewhere. Goes to standard error, so that standard output holds results alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace onefold {

// What clipping has done in a step, for records: of all gradients, and where more than one norm
// counts, of each unit.
struct StepClipping {
  struct Part {
    std::string unit;
    double factor = 1;
    int64_t tensors = 0, values = 0;
  };
  bool on = false;
  Part all;
  std::vector<Part> units;
};

// What routers have done in a step: their losses, and by unit the share of tokens that each expert
// was sent and the share that was dropped.
struct StepRouting {
  struct Layer {
    std::string unit;
    std::vector<double> shares;
    double dropped = 0;
  };
  double balance_loss = 0, z_loss = 0;
  std::vector<Layer> layers;  // none of a model without experts
};

struct ProgressState {
  int64_t step = 0;  // done
  int64_t total_steps = 0;
  double loss = 0;
  double validation_loss = -1;  // negative: none yet
  double gradient_norm = 0;
  double loss_scale = 1;
  int64_t skipped = 0;  // steps so far
  double learning_rate = 0;
  double tokens_per_second = 0;
  double gemm_fraction = 0;
  int64_t memory_bytes = 0;
  StepClipping clipping;
  StepRouting routing;
};

class Progress {
 public:
  Progress(int64_t steps_per_print, bool quiet);
  ~Progress() { clear_live_line(); }  // what is printed next, an error perhaps, begins a line

  // After each step. Every steps_per_print-th line stays; a terminal shows the others in passing.
  void show(const ProgressState& state, double seconds_left);
  // A line of its own, above the live one.
  void note(const std::string& text);
  // The same, even when quiet.
  void warn(const std::string& text);

 private:
  void clear_live_line();

  const int64_t steps_per_print_;
  const bool quiet_;
  const bool terminal_;
  bool live_ = false;
  double last_drawn_ = 0;
};

}  // namespace onefold
