#include "engine/slab.h"

#include <algorithm>
#include <cmath>

namespace onefold {
namespace {

constexpr int64_t kAlignElems = Ledger::kAlignment / 4;

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

}  // namespace

SlabLayout::SlabLayout(std::span<const ParamSpec> params, int ranks)
    : params_(params.begin(), params.end()), ranks_(ranks) {
  for (const ParamSpec& param : params_) {
    offsets_.push_back(elems_);
    elems_ = round_up(elems_ + param.elems(), kAlignElems);
  }
  elems_ = round_up(elems_, kAlignElems * ranks);
}

Tensor SlabLayout::view(void* base, int param) const {
  const ParamSpec& spec = params_[static_cast<size_t>(param)];
  return matrix(base ? static_cast<float*>(base) + offset(param) : nullptr, spec.rows, spec.cols);
}

std::vector<Piece> SlabLayout::pieces(int64_t begin, int64_t end) const {
  std::vector<Piece> result;
  for (size_t p = 0; p < params_.size(); ++p) {
    const int64_t start = offsets_[p];
    const int64_t from = std::max(begin, start), to = std::min(end, start + params_[p].elems());
    if (from < to) result.push_back({static_cast<int>(p), from - start, to - from, from - begin});
  }
  return result;
}

void initialise(const ParamSpec& param, const ModelSpec& spec, uint64_t seed, int unit, int index,
                int64_t first, Tensor dst) {
  float* to = dst.f32();
  if (param.init == Init::zeros || param.init == Init::ones) {
    std::fill_n(to, dst.elems(), param.init == Init::ones ? 1.0f : 0.0f);
    return;
  }
  const PhiloxKey key = philox_key(seed, Draw::initialisation, static_cast<uint32_t>(unit),
                                   static_cast<uint32_t>(index));
  const double depth_scale = param.init == Init::residual
                                 ? 1.0 / std::sqrt(2.0 * static_cast<double>(spec.num_layers))
                                 : 1.0;
  const auto deviation = static_cast<float>(spec.init_std * depth_scale);
  for (int64_t i = 0; i < dst.elems(); ++i)
    to[i] = deviation * philox_normal(key, static_cast<uint64_t>(first + i));
}

}  // namespace onefold
