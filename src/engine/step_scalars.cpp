#include "engine/step_scalars.h"

namespace onefold {

StepScalars::StepScalars(Device& device, Ledger& ledger, const Model& model, int micros, int ranks)
    : device_(device) {
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
  // Parameters of which this rank owns nothing, and frozen units, are never written.
  device_.write(doubles, [](int64_t, std::span<std::byte> piece) {
    std::fill(piece.begin(), piece.end(), std::byte{0});
  });
}

Tensor StepScalars::squares(int unit, int param) const {
  return squares_.col_range(first_[static_cast<size_t>(unit)] + param, 1);
}

Tensor StepScalars::squares(int unit) const {
  const auto u = static_cast<size_t>(unit);
  return squares_.col_range(first_[u], first_[u + 1] - first_[u]);
}

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

std::vector<double> StepScalars::read_losses() const {
  std::vector<double> values(static_cast<size_t>(losses_.cols));
  download(device_, losses_, std::span(values));
  return values;
}

}  // namespace onefold
