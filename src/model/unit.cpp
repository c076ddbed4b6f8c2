#include "model/unit.h"

#include <cmath>

namespace onefold {

int Unit::add(bool present, const std::string& name, int64_t rows, int64_t cols, Init init,
              bool decay) {
  if (!present) return -1;
  params_.push_back({name_ + "." + name, rows, cols, init, decay});
  return static_cast<int>(params_.size()) - 1;
}

void UnitCall::gemm(Gemm product) const {
  const Arena::Scope scope(arena);
  if (const int64_t elems = kernels.gemm_scratch(product); elems > 0)
    product.scratch = arena.take(1, elems);
  kernels.gemm(product);
}

Dropout UnitCall::dropout_at(uint32_t unit, uint32_t site) const {
  // Steps beyond 2^32 wrap: a mask may come back after four billion steps.
  return {dropout, philox_key(seed, Draw::dropout, static_cast<uint32_t>(step), unit, site),
          batch.samples};
}

Model::Model(const ModelSpec& s) : spec(s) {
  units.push_back(make_embedding(spec));
  for (int layer = 0; layer < spec.num_layers; ++layer) units.push_back(make_block(spec, layer));
  units.push_back(make_head(spec));
}

std::vector<ParamSpec> parameters_of(const ModelSpec& spec) {
  std::vector<ParamSpec> all;
  for (const std::unique_ptr<Unit>& unit : Model(spec).units)
    all.insert(all.end(), unit->params().begin(), unit->params().end());
  return all;
}

void fill_rope_table(const ModelSpec& spec, Tensor table) {
  const int64_t half = spec.head_dim / 2;
  for (int64_t position = 0; position < table.rows; ++position) {
    float* row = table.f32() + position * table.stride;
    for (int64_t i = 0; i < half; ++i) {
      const double frequency = spec.rope_scaling.scaled(
          std::pow(static_cast<double>(spec.rope_theta), -static_cast<double>(i) / half));
      row[i] = static_cast<float>(std::cos(position * frequency));
      row[half + i] = static_cast<float>(std::sin(position * frequency));
    }
  }
}

}  // namespace onefold
