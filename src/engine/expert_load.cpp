#include "engine/expert_load.h"

namespace onefold {

ExpertLoad::ExpertLoad(Device& device, Ledger& ledger, const Model& model, int ranks)
    : device_(device), ranks_(ranks) {
  for (const auto& unit : model.units) {
    experts_.push_back(unit->experts());
    if (unit->experts() > 0) elems_ += load_elems(unit->experts());
  }
  if (!any()) return;
  const int64_t padded = (elems_ + ranks - 1) / ranks * ranks, bytes = padded * 8;
  const auto units = static_cast<int64_t>(experts_.size());
  memory_ = ledger.allocate(Kind::workspace, bytes + 8 + units * 8, "load of experts");
  numbers_ = memory_.as(1, padded, DType::f64);
  scale_ = matrix(memory_.data() ? static_cast<std::byte*>(memory_.data()) + bytes : nullptr, 1, 1);
}

// Behind the scale.
Tensor ExpertLoad::all_rows_needed() const {
  const auto units = static_cast<int64_t>(experts_.size());
  return matrix(scale_.data ? static_cast<std::byte*>(scale_.data) + 8 : nullptr, 1, 2 * units,
                DType::i32);
}

void ExpertLoad::begin(float scale) {
  if (!any()) return;
  for (const Tensor& counted : {numbers_, all_rows_needed()})
    device_.write(counted, [](int64_t, std::span<std::byte> piece) {
      std::fill(piece.begin(), piece.end(), std::byte{0});
    });
  upload(device_, std::span<const float>(&scale, 1), scale_);
}

Tensor ExpertLoad::of(int unit) const {
  const int64_t experts = experts_[static_cast<size_t>(unit)];
  if (experts == 0) return {};
  int64_t first = 0;
  for (int u = 0; u < unit; ++u)
    if (const int64_t others = experts_[static_cast<size_t>(u)]; others > 0)
      first += load_elems(others);
  return numbers_.col_range(first, load_elems(experts));
}

Tensor ExpertLoad::rows_needed(int unit) const {
  return experts_[static_cast<size_t>(unit)] == 0 ? Tensor{}
                                                  : all_rows_needed().col_range(2 * unit, 2);
}

void ExpertLoad::require_room(const Model& model, int64_t step, double bound) const {
  if (!any() || bound == 0) return;
  std::vector<int32_t> needed(2 * experts_.size());
  download(device_, all_rows_needed(), std::span(needed));
  for (size_t unit = 0; unit < experts_.size(); ++unit)
    if (needed[2 * unit] > 0)
      user_error(
          "step {}, {}: {} rows are for one holder of experts, and there is room for {}. "
          "mesh.expert_bound is {:g} times an even share: raise it, or leave it out and have room "
          "for all rows. The weights are those before this step",
          step + 1, model.units[unit]->name(), needed[2 * unit], needed[2 * unit + 1], bound);
}

Message ExpertLoad::message(int rank) const {
  const int64_t shard = numbers_.cols / ranks_;
  return {numbers_.data, numbers_.col_range(rank * shard, shard).data, shard, DType::f64};
}

StepExperts ExpertLoad::read(double parts) const {
  StepExperts result;
  if (!any()) return result;
  std::vector<double> all(static_cast<size_t>(numbers_.cols));
  download(device_, numbers_, std::span(all));
  const double* at = all.data();
  for (size_t unit = 0; unit < experts_.size(); ++unit) {
    const int64_t experts = experts_[unit];
    if (experts == 0) continue;
    result.balance_loss += at[0] / parts;
    result.z_loss += at[1] / parts;
    StepExperts::Layer layer{.unit = static_cast<int>(unit)};
    double choices = 0, dropped = 0;
    for (int64_t e = 0; e < experts; ++e) {
      choices += at[2 + e];
      dropped += at[2 + experts + e];
    }
    for (int64_t e = 0; e < experts; ++e)
      layer.shares.push_back(choices > 0 ? at[2 + e] / choices : 0);
    layer.dropped = choices > 0 ? dropped / choices : 0;
    result.layers.push_back(std::move(layer));
    at += load_elems(experts);
  }
  return result;
}

}  // namespace onefold
