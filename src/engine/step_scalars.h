// The numbers of a step that live in the device's memory: squares of each parameter's gradient,
// losses of each micro-batch, the finite flag, the norm, the clipping factor, the loss's scale.
// Kernels write and read them; the host reads them once, after the step.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "engine/options.h"
#include "model/unit.h"

namespace onefold {

class StepScalars {
 public:
  StepScalars(Device& device, Ledger& ledger, const Model& model, const EngineOptions& options,
              int ranks);

  // f64, of this rank: the sum of squares of the elements of a parameter's gradient that it owns (0
  // where it owns none), those of all of a unit's parameters in order, and the sum of a
  // micro-batch's losses.
  Tensor squares(int unit, int param) const;
  Tensor squares(int unit) const;
  Tensor loss(int micro) const { return losses_.col_range(micro, 1); }
  Tensor losses() const { return losses_; }
  // f64, of this rank and then of all: the squares of each unit, and after them the loss.
  Tensor sums() const { return sums_.col_range(0, units() + 1); }
  Tensor sum_of(int unit) const { return sums_.col_range(unit, 1); }
  Tensor sum_of_losses() const { return sums_.col_range(units(), 1); }
  Message sums_message(int rank) const;

  // Where ranks exchange numbers of each tensor (ClipRule): f64, of this rank and as squares(), the
  // sum of squares of the parameter itself, and how many elements of its gradient were clamped.
  Tensor weights(int unit, int param) const;
  Tensor weights(int unit) const;
  Tensor clamped(int unit, int param) const;
  // The same of all ranks, of all parameters in order, once they have been put together and summed.
  void collect(Kernels& kernels) const;
  Message collected_message(int rank) const;
  Tensor all_squares() const { return all_.col_range(0, parameters()); }
  Tensor all_weights() const { return all_.col_range(parameters(), parameters()); }
  // f32, where factors differ: of each unit or of each parameter.
  Tensor factors() const { return factors_; }
  int64_t place(int unit, int param) const;  // of a parameter's factor among them

  Tensor norm() const { return norm_; }              // f64
  Tensor factor() const { return factor_; }          // f32: clipping
  Tensor loss_scale() const { return loss_scale_; }  // f32
  Tensor finite() const { return finite_; }          // i32: whether every sum is
  Tensor one() const { return one_; }                // f32: 1
  StepControl control() const { return {factor_, finite_}; }

  struct Values {
    double loss_sum = 0, norm = 0;
    bool finite = true;
  };
  Values read() const;
  std::vector<double> read_losses() const;
  std::vector<float> read_factors() const;
  std::vector<double> read_clamped() const;  // of all ranks, by parameter

 private:
  int64_t units() const { return static_cast<int64_t>(first_.size()) - 1; }
  int64_t parameters() const { return first_.back(); }
  Tensor of_unit(Tensor numbers, int unit) const;

  Device& device_;
  const int ranks_;
  std::vector<int64_t> first_;  // by unit: the place of its first parameter in squares_
  Buffer memory_;
  Tensor squares_, losses_, sums_, norm_, factor_, loss_scale_, finite_, one_;
  const ClipRule rule_;
  Buffer each_memory_;
  Tensor weights_, clamped_, all_, factors_;
  int64_t shard_elems_;
};

}  // namespace onefold
