// Dropout, with and without a residual.
#include <cmath>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

constexpr PhiloxKey kKey = {0x12345678u, 0x9abcdef0u};

struct Params {
  std::vector<int64_t> samples;
  int64_t length, cols;  // rows of a sample, and columns
  float rate;
  bool residual = false, in_place = false;  // in place: dst is the residual
  bool ones = false;                        // x of ones: the mask itself comes out
  DType dtype = DType::f32;
  float scale = 1;  // of x and the residual

  int64_t rows() const { return static_cast<int64_t>(samples.size()) * length; }
};

Case dropout_case(Params p) {
  Case c;
  HostTensor values = normals(p.rows(), p.cols, 1, 3, p.scale).as(p.dtype);
  if (p.ones) values.fill(1);
  const int x = c.input("x", values), samples = c.input("samples", row_of(p.samples));
  const HostTensor added = normals(p.rows(), p.cols, 2, 4, p.scale).as(p.dtype);
  const int residual = !p.residual  ? -1
                       : p.in_place ? c.output("dst", added)
                                    : c.input("residual", added);
  const int dst =
      p.in_place ? residual : c.output("dst", HostTensor(p.rows(), p.cols, 1, p.dtype).clear());
  c.run = [=](Call& call) {
    call.kernels().dropout(call[x], {p.rate, kKey, p.rate == 0 ? Tensor{} : call[samples]},
                           p.length, p.residual ? call[residual] : Tensor{}, call[dst]);
  };
  c.expected = [=](const Case& in) {
    Doubles values;
    for (int64_t row = 0; row < p.rows(); ++row)
      for (int64_t col = 0; col < p.cols; ++col) {
        const auto sample = static_cast<uint64_t>(p.samples[static_cast<size_t>(row / p.length)]);
        const auto element = static_cast<uint64_t>(row % p.length * p.cols + col);
        values.push_back((p.residual ? in[residual].at(row, col) : 0.0) +
                         static_cast<double>(in[x].at(row, col)) *
                             dropout_multiplier(kKey, sample, element, p.rate));
      }
    if (p.rate == 0)  // a copy, or a sum that is rounded once
      for (double& value : values) value = static_cast<float>(value);
    // The mask is exact too; else a product and a sum of values up to 8.
    return std::vector{stored(p.dtype, p.ones || p.rate == 0
                                           ? exactly(dst, values)
                                           : close(dst, values, 2 * 8 * kUnit * p.scale))};
  };
  if (p.in_place)
    c.twin = Twin{[=] {
                    Params apart = p;
                    apart.in_place = false;
                    return dropout_case(apart);
                  },
                  {{"dst"}}};
  return c;
}

void add(CaseList& list, const Params& p) {
  list.push_back({"dropout",
                  fmt::format("{}x{}x{} at {}{}{}{}{}{}", p.samples.size(), p.length, p.cols,
                              p.rate, p.ones ? " of ones" : "", p.residual ? " residual" : "",
                              p.in_place ? " in place" : "", type_suffix(p.dtype),
                              p.scale == 1 ? "" : fmt::format(" times {}", p.scale)),
                  [=] { return dropout_case(p); }});
}

void add_half_cases(CaseList& list, DType dtype) {
  for (const int64_t cols : {1, 7, 101})
    add(list, {.samples = {3, 0x100000007, 0},
               .length = 2,
               .cols = cols,
               .rate = 0.3f,
               .ones = true,
               .dtype = dtype});
  // Up to where what is kept becomes infinite.
  for (const float scale : {1.0f, 0x1p-20f, dtype == DType::f16 ? 15000.0f : 0x1p125f})
    for (const float rate : {0.0f, 0.5f})
      for (const bool residual : {false, true})
        for (const bool in_place : {false, true})
          if (residual || !in_place)
            add(list, {.samples = {11, 12},
                       .length = 3,
                       .cols = 1031,
                       .rate = rate,
                       .residual = residual,
                       .in_place = in_place,
                       .dtype = dtype,
                       .scale = scale});
}

}  // namespace

void add_dropout_cases(CaseList& list) {
  // At any alignment of rows to the blocks of four that words are drawn for.
  for (const int64_t cols : {1, 3, 7, 64, 101, 1031})
    add(list,
        {.samples = {3, 0x100000007, 0}, .length = 2, .cols = cols, .rate = 0.3f, .ones = true});
  // A rate that is exactly some word's uniform keeps that word: the comparison is >=.
  const float exact = philox_uniform(philox(kKey, {0, 0, 0, 0})[0]);
  for (const float rate : {exact, std::nextafter(exact, 1.0f), std::nextafter(exact, 0.0f),
                           0x1p-24f, 0x1p-30f, 1 - 0x1p-24f})
    add(list, {.samples = {0}, .length = 1, .cols = 997, .rate = rate, .ones = true});
  for (const float rate : {0.0f, 0.25f}) {
    add(list, {.samples = {11}, .length = 3, .cols = 37, .rate = rate});
    add(list, {.samples = {11}, .length = 3, .cols = 37, .rate = rate, .residual = true});
    add(list, {.samples = {11},
               .length = 3,
               .cols = 37,
               .rate = rate,
               .residual = true,
               .in_place = true});
  }
  add(list, {.samples = {1, 2, 3}, .length = 3, .cols = 40009, .rate = 0.5f});  // many chunks
  add(list, {.samples = {}, .length = 3, .cols = 5, .rate = 0.5f});
  for (const DType dtype : kHalfTypes) add_half_cases(list, dtype);
}

void add_dropout_benchmarks(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16})
    add(list, {.samples = {1},
               .length = 1024,
               .cols = 768,
               .rate = 0.1f,
               .residual = true,
               .dtype = dtype});
}

}  // namespace onefold::cases
