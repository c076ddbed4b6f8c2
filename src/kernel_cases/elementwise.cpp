// Copies, fills, sums of two and multiples.
#include <cmath>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

HostTensor random_of(DType dtype, int64_t rows, int64_t cols, int64_t gap) {
  if (dtype == DType::f32) return normals(rows, cols, 1, gap);
  HostTensor tensor(rows, cols, gap, dtype);
  const auto row_bytes = static_cast<size_t>(cols * dtype_bytes(dtype));
  const auto row_step = static_cast<size_t>((cols + gap) * dtype_bytes(dtype));
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
    for (size_t i = 0; i < row_bytes; ++i)
      tensor.bytes()[row * row_step + i] = static_cast<std::byte>((row * row_bytes + i) * 37 % 251);
  return tensor;
}

Case copy_case(DType dtype, int64_t rows, int64_t cols, int64_t src_gap, int64_t dst_gap) {
  Case c;
  const int src = c.input("src", random_of(dtype, rows, cols, src_gap));
  const int dst = c.output("dst", HostTensor(rows, cols, dst_gap, dtype).clear());
  c.run = [=](Call& call) { call.kernels().copy(call[src], call[dst]); };
  c.expected = [=](const Case& in) { return std::vector{exactly(dst, in[src].doubles())}; };
  return c;
}

Case fill_case(int64_t rows, int64_t cols, int64_t gap, DType dtype = DType::f32,
               float value = 2.5f) {
  Case c;
  const int dst = c.output("dst", HostTensor(rows, cols, gap, dtype).clear());
  c.run = [=](Call& call) { call.kernels().fill(call[dst], value); };
  c.expected = [=](const Case& in) {
    return std::vector{
        stored(dtype, exactly(dst, Doubles(static_cast<size_t>(in[dst].elems()), value)))};
  };
  return c;
}

enum class Onto { another, a, b };

Case add_case(int64_t rows, int64_t cols, int64_t gap, Onto onto, DType dtype = DType::f32,
              float scale = 1) {
  Case c;
  const auto operand = [&](const char* name, uint64_t seed, bool is_dst) {
    const HostTensor values = normals(rows, cols, seed, gap, scale).as(dtype);
    return is_dst ? c.output("dst", values) : c.input(name, values);
  };
  const int a = operand("a", 1, onto == Onto::a), b = operand("b", 2, onto == Onto::b);
  const int dst = onto == Onto::a ? a
                  : onto == Onto::b
                      ? b
                      : c.output("dst", HostTensor(rows, cols, gap + 1, dtype).clear());
  c.run = [=](Call& call) { call.kernels().add(call[a], call[b], call[dst]); };
  c.expected = [=](const Case& in) {
    Doubles sums;  // rounded once, as float
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t col = 0; col < cols; ++col)
        sums.push_back(in[a].at(row, col) + in[b].at(row, col));
    return std::vector{stored(dtype, exactly(dst, sums))};
  };
  return c;
}

Case scale_case(int64_t rows, int64_t cols, int64_t gap, float factor, bool in_place,
                DType dtype = DType::f32) {
  Case c;
  const HostTensor values = normals(rows, cols, 1, gap).as(dtype);
  const int x = in_place ? c.output("dst", values) : c.input("x", values);
  const int dst = in_place ? x : c.output("dst", HostTensor(rows, cols, gap + 1, dtype).clear());
  c.run = [=](Call& call) { call.kernels().scale(call[x], factor, call[dst]); };
  c.expected = [=](const Case& in) {
    Doubles products;  // rounded to float, then to the type
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t col = 0; col < cols; ++col)
        products.push_back(static_cast<float>(in[x].at(row, col) * factor));
    return std::vector{stored(dtype, exactly(dst, products))};
  };
  return c;
}

void add_scale_cases(CaseList& list, DType dtype) {
  for (const float factor : {2.0f, 0.3f, -1e-3f})
    for (const bool in_place : {false, true})
      for (const auto& [rows, cols] : {std::pair{7, 37}, {3, 40009}, {0, 5}})
        list.push_back({"elementwise",
                        fmt::format("scale {}x{}{} by {}{}", rows, cols, type_suffix(dtype), factor,
                                    in_place ? " in place" : ""),
                        [=, rows = rows, cols = cols] {
                          return scale_case(rows, cols, 3, factor, in_place, dtype);
                        }});
}

void add_half_cases(CaseList& list, DType dtype) {
  // The last two are beyond the largest number of f16, and no number.
  for (const float value : {2.5f, 0.1f, -0.0f, 1e-7f, 70000.0f, std::nanf("")})
    list.push_back({"elementwise", fmt::format("fill 3x1031 with {}{}", value, type_suffix(dtype)),
                    [=] { return fill_case(3, 1031, 2, dtype, value); }});
  const float large = dtype == DType::f16 ? 0x1p14f : 0x1p125f;  // with sums that are infinite
  for (const float scale : {1.0f, 0x1p-20f, large})
    for (const Onto onto : {Onto::another, Onto::a, Onto::b})
      for (const auto& [rows, cols] : {std::pair{7, 37}, {3, 40009}, {0, 5}})
        list.push_back({"elementwise",
                        fmt::format("add {}x{}{} times {}{}", rows, cols, type_suffix(dtype), scale,
                                    onto == Onto::another ? ""
                                    : onto == Onto::a     ? " onto a"
                                                          : " onto b"),
                        [=, rows = rows, cols = cols] {
                          return add_case(rows, cols, 3, onto, dtype, scale);
                        }});
}

}  // namespace

void add_elementwise_cases(CaseList& list) {
  const auto copy = [&](DType dtype, int64_t rows, int64_t cols, int64_t from, int64_t to) {
    list.push_back(
        {"elementwise",
         fmt::format("copy {} {}x{}, gaps {} to {}", dtype_name(dtype), rows, cols, from, to),
         [=] { return copy_case(dtype, rows, cols, from, to); }});
  };
  for (const DType dtype :
       {DType::f32, DType::i32, DType::f64, DType::i64, DType::bf16, DType::f16, DType::u8}) {
    copy(dtype, 1, 1000, 0, 0);
    copy(dtype, 7, 37, 3, 5);
  }
  copy(DType::f32, 5, 40009, 2, 1);  // rows that are cut
  copy(DType::f32, 5, 40009, 1, 0);
  copy(DType::f32, 5, 40009, 0, 0);
  copy(DType::f32, 0, 5, 0, 0);
  for (const int64_t rows : {0, 3})
    for (const int64_t gap : {0, 2})
      list.push_back({"elementwise", fmt::format("fill {}x70001, gap {}", rows, gap),
                      [=] { return fill_case(rows, 70001, gap); }});
  for (const int64_t gap : {0, 3})
    for (const Onto onto : {Onto::another, Onto::a, Onto::b})
      for (const auto& [rows, cols] : {std::pair{7, 37}, {3, 40009}, {0, 5}})
        list.push_back({"elementwise",
                        fmt::format("add {}x{}, gap {}{}", rows, cols, gap,
                                    onto == Onto::another ? ""
                                    : onto == Onto::a     ? " onto a"
                                                          : " onto b"),
                        [=, rows = rows, cols = cols] { return add_case(rows, cols, gap, onto); }});
  for (const DType dtype : kHalfTypes) add_half_cases(list, dtype);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) add_scale_cases(list, dtype);
}

void add_elementwise_benchmarks(CaseList& list) {
  constexpr int64_t kElems = int64_t{8} << 20;
  list.push_back(
      {"elementwise", "copy 32 MiB", [] { return copy_case(DType::f32, 1, kElems, 0, 0); }});
  list.push_back({"elementwise", "fill 32 MiB", [] { return fill_case(1, kElems, 0); }});
  list.push_back(
      {"elementwise", "add 32 MiB", [] { return add_case(1, kElems, 0, Onto::another); }});
  // As many elements, in half the memory.
  list.push_back(
      {"elementwise", "fill 16 MiB bf16", [] { return fill_case(1, kElems, 0, DType::bf16); }});
  list.push_back({"elementwise", "add 16 MiB bf16",
                  [] { return add_case(1, kElems, 0, Onto::another, DType::bf16); }});
}

}  // namespace onefold::cases
