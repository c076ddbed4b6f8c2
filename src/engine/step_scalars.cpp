#include "engine/step_scalars.h"

namespace onefold {

StepScalars::StepScalars(Device& device, Ledger& ledger, const Model& model,
                         const EngineOptions& options, int ranks)
    : device_(device), ranks_(ranks), rule_(options.clip_rule) {
  const int micros = options.micros;
  first_.push_back(0);
  for (const auto& unit : model.units)
    first_.push_back(first_.back() + static_cast<int64_t>(unit->params().size()));
  shard_elems_ = (units() + 1 + ranks - 1) / ranks;
  const int64_t parameters = first_.back(), summed = shard_elems_ * ranks;
  const int64_t wide = parameters + micros + summed + 1;  // f64, then four of four bytes
  memory_ = ledger.allocate(Kind::workspace, wide * dtype_bytes(DType::f64) + 16, "step scalars");
  const Tensor doubles = memory_.as(1, wide, DType::f64);
  squares_ = doubles.col_range(0, parameters);
  losses_ = doubles.col_range(parameters, micros);
  sums_ = doubles.col_range(parameters + micros, summed);
  norm_ = doubles.col_range(wide - 1, 1);
  const auto narrow = [&](int64_t place, DType dtype) {
    void* at = memory_.data() ? static_cast<std::byte*>(memory_.data()) +
                                    wide * dtype_bytes(DType::f64) + place * 4
                              : nullptr;
    return matrix(at, 1, 1, dtype);
  };
  factor_ = narrow(0, DType::f32);
  loss_scale_ = narrow(1, DType::f32);
  finite_ = narrow(2, DType::i32);
  one_ = narrow(3, DType::f32);
  // Parameters of which this rank owns nothing, and frozen units, are never written.
  const auto clear = [](int64_t, std::span<std::byte> piece) {
    std::fill(piece.begin(), piece.end(), std::byte{0});
  };
  device_.write(doubles, clear);
  const float one = 1;
  upload(device_, std::span<const float>(&one, 1), one_);
  if (!rule_.each() && !rule_.counts_tensors()) return;
  // Weights, clamped, and the sums of three of each over ranks; then factors.
  const int64_t collected = (3 * parameters + ranks - 1) / ranks * ranks;
  const int64_t numbers = 2 * parameters + collected;
  const int64_t factors = rule_.by_tensor() ? parameters : units();
  each_memory_ = ledger.allocate(
      Kind::workspace, numbers * dtype_bytes(DType::f64) + factors * dtype_bytes(DType::f32),
      "clipping");
  const Tensor each = each_memory_.as(1, numbers, DType::f64);
  weights_ = each.col_range(0, parameters);
  clamped_ = each.col_range(parameters, parameters);
  all_ = each.col_range(2 * parameters, collected);
  factors_ = matrix(
      each_memory_.data() ? static_cast<std::byte*>(each_memory_.data()) + numbers * 8 : nullptr, 1,
      factors);
  device_.write(each, clear);
}

Tensor StepScalars::of_unit(Tensor numbers, int unit) const {
  const auto u = static_cast<size_t>(unit);
  return numbers.col_range(first_[u], first_[u + 1] - first_[u]);
}

Tensor StepScalars::weights(int unit) const { return of_unit(weights_, unit); }

Tensor StepScalars::weights(int unit, int param) const {
  return of_unit(weights_, unit).col_range(param, 1);
}

Tensor StepScalars::clamped(int unit, int param) const {
  return of_unit(clamped_, unit).col_range(param, 1);
}

// As pairs of f32, which copies take everywhere.
void StepScalars::collect(Kernels& kernels) const {
  const auto words = [](Tensor x) { return matrix(x.data, 1, 2 * x.cols); };
  int64_t at = 0;
  for (const Tensor& part : {squares_, weights_, clamped_}) {
    kernels.copy(words(part), words(all_.col_range(at, part.cols)));
    at += part.cols;
  }
}

Message StepScalars::collected_message(int rank) const {
  const int64_t shard = all_.cols / ranks_;
  return {all_.data, all_.col_range(rank * shard, shard).data, shard, DType::f64};
}

int64_t StepScalars::place(int unit, int param) const {
  return rule_.by_tensor() ? first_[static_cast<size_t>(unit)] + param : unit;
}

Tensor StepScalars::squares(int unit, int param) const {
  return squares_.col_range(first_[static_cast<size_t>(unit)] + param, 1);
}

Tensor StepScalars::squares(int unit) const { return of_unit(squares_, unit); }

Message StepScalars::sums_message(int rank) const {
  return {sums_.data, sums_.col_range(rank * shard_elems_, shard_elems_).data, shard_elems_,
          DType::f64};
}

StepScalars::Values StepScalars::read() const {
  Values values;
  int32_t finite = 1;
  download(device_, norm_, std::span(&values.norm, 1));
  download(device_, sum_of_losses(), std::span(&values.loss_sum, 1));
  download(device_, finite_, std::span(&finite, 1));
  values.finite = finite != 0;
  return values;
}

std::vector<float> StepScalars::read_factors() const {
  std::vector<float> values(static_cast<size_t>(factors_.cols));
  download(device_, factors_, std::span(values));
  return values;
}

std::vector<double> StepScalars::read_clamped() const {
  std::vector<double> values(static_cast<size_t>(parameters()));
  download(device_, all_.col_range(2 * parameters(), parameters()), std::span(values));
  return values;
}

std::vector<double> StepScalars::read_losses() const {
  std::vector<double> values(static_cast<size_t>(losses_.cols));
  download(device_, losses_, std::span(values));
  return values;
}

}  // namespace onefold
