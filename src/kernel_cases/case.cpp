#include "kernel_cases/case.h"

#include <cmath>

#include "kernel_cases/families.h"

namespace onefold::cases {
namespace {

struct Family {
  const char* name;
  void (*add_cases)(CaseList&);
  void (*add_benchmarks)(CaseList&);
};

constexpr Family kFamilies[] = {
    {"gemm", add_gemm_cases, add_gemm_benchmarks},
    {"norm", add_norm_cases, add_norm_benchmarks},
    {"activation", add_activation_cases, add_activation_benchmarks},
    {"rope", add_rope_cases, add_rope_benchmarks},
    {"attention", add_attention_cases, add_attention_benchmarks},
    {"alibi", add_alibi_cases, add_alibi_benchmarks},
    {"dropout", add_dropout_cases, add_dropout_benchmarks},
    {"embedding", add_embedding_cases, add_embedding_benchmarks},
    {"parts", add_part_cases, add_part_benchmarks},
    {"cross_entropy", add_cross_entropy_cases, add_cross_entropy_benchmarks},
    {"experts", add_expert_cases, add_expert_benchmarks},
    {"soft_cap", add_soft_cap_cases, add_soft_cap_benchmarks},
    {"sums", add_sums_cases, add_sums_benchmarks},
    {"elementwise", add_elementwise_cases, add_elementwise_benchmarks},
    {"optimizer", add_optimizer_cases, add_optimizer_benchmarks},
};

const Family& family_named(const std::string& name) {
  for (const Family& family : kFamilies)
    if (family.name == name) return family;
  internal_error("there is no family of kernels \"{}\"", name);
}

}  // namespace

int Case::input(std::string name, HostTensor values) {
  tensors.push_back({std::move(name), std::move(values), false});
  return static_cast<int>(tensors.size()) - 1;
}

int Case::output(std::string name, HostTensor values) {
  tensors.push_back({std::move(name), std::move(values), true});
  return static_cast<int>(tensors.size()) - 1;
}

int Case::find(const std::string& name) const {
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].name == name) return static_cast<int>(i);
  return -1;
}

Expected exactly(int tensor, Doubles values) { return close(tensor, std::move(values), 0); }

Expected close(int tensor, Doubles values, double absolute, double relative) {
  Doubles bounds;
  for (const double value : values) bounds.push_back(absolute + relative * std::abs(value));
  return {tensor, std::move(values), std::move(bounds)};
}

Expected within(int tensor, Doubles values, const Doubles& magnitudes, double relative,
                double absolute) {
  Doubles bounds;
  for (const double magnitude : magnitudes) bounds.push_back(absolute + relative * magnitude);
  return {tensor, std::move(values), std::move(bounds)};
}

Expected stored(DType dtype, Expected expected) {
  if (dtype == DType::f32) return expected;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    double &value = expected.values[i], &bound = expected.bounds[i];
    if (!std::isfinite(value)) continue;
    // No float within the bounds lies beyond the floats that are nearest to them.
    const double low = rounded(dtype, static_cast<float>(value - bound)),
                 high = rounded(dtype, static_cast<float>(value + bound));
    require(std::isinf(low) == std::isinf(high) && (!std::isinf(low) || low == high),
            "a value of {} may be finite or not as {}", value, dtype_name(dtype));
    value = std::isinf(low) ? low : (low + high) / 2;
    bound = std::isinf(low) ? 0 : (high - low) / 2;
  }
  return expected;
}

std::string type_suffix(DType dtype) {
  return dtype == DType::f32 ? "" : fmt::format(" {}", dtype_name(dtype));
}

std::vector<std::string> case_families() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

CaseList cases_of(const std::string& family) {
  CaseList list;
  family_named(family).add_cases(list);
  return list;
}

CaseList benchmarks_of(const std::string& family) {
  CaseList list;
  family_named(family).add_benchmarks(list);
  return list;
}

}  // namespace onefold::cases
