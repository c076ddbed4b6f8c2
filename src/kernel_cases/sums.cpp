// Sums over rows and over everything, and the clipping factor that is made of them.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kDoubleUnit = 0x1p-53;

HostTensor empty_double() { return HostTensor(1, 1, 0, DType::f64).clear(); }

struct Types {
  DType x = DType::f32, dst = DType::f32;
};

Case column_sum_case(int64_t rows, int64_t cols, int64_t gap, bool accumulate, Types types = {},
                     float scale = 1) {
  Case c;
  const int x = c.input("x", normals(rows, cols, 1, gap, scale).as(types.x));
  HostTensor old = normals(1, cols, 2, 0, scale).as(types.dst);
  const int dst = c.output("dst", accumulate ? old : old.clear());
  c.run = [=](Call& call) {
    call.kernels().column_sum(call[x], call[dst], accumulate,
                              call.scratch(call.kernels().column_sum_scratch_bytes(rows, cols)));
  };
  c.expected = [=](const Case& in) {
    Doubles sums = accumulate ? in[dst].doubles() : Doubles(static_cast<size_t>(cols));
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t col = 0; col < cols; ++col) sums[static_cast<size_t>(col)] += in[x].at(row, col);
    // Chunks of max(16, rows / 64) rows four at a time, then at most 64 partials: chains of max(4,
    // rows / 256) + 2 + 64 additions over values whose magnitudes sum to about 0.8 rows + 1.
    const auto terms = static_cast<double>(rows);
    const double chain = std::max(4.0, terms / 256) + 3 + std::min(64.0, terms / 16 + 1);
    return std::vector{
        stored(types.dst, close(dst, sums, rows == 0 ? 0 : chain * (terms + 4) * kUnit * scale))};
  };
  return c;
}

// In double and in the order of the contract: the same bits wherever it is done.
Case sum_case(const HostTensor& values) {
  Case c;
  const int x = c.input("x", values), dst = c.output("dst", empty_double());
  c.run = [=](Call& call) { call.kernels().sum(call[x], call[dst]); };
  c.expected = [=](const Case& in) {
    Doubles lanes(static_cast<size_t>(kSumLanes));
    size_t i = 0;
    for (const double value : in[x].doubles()) lanes[i++ % lanes.size()] += value;
    for (size_t half = lanes.size() / 2; half > 0; half /= 2)
      for (size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return std::vector{exactly(dst, {lanes[0]})};
  };
  return c;
}

// Both sums are in double, where squares of floats are exact; each rounds at most n - 1 times.
double squares_error(int64_t n) {
  return 2 * std::max(0.0, static_cast<double>(n) - 1) * kDoubleUnit;
}

void run_squares(Call& call, std::span<const Squares> list, Tensor all, Tensor total) {
  int64_t bytes = 0;
  for (const Squares& one : list) bytes += call.kernels().sum_squares_scratch_bytes(one.x.elems());
  call.kernels().sum_squares(list, all, total, call.scratch(bytes));
}

Case sum_squares_case(const HostTensor& values) {
  Case c;
  const int x = c.input("x", values), dst = c.output("dst", empty_double()),
            total = c.output("total", empty_double());
  c.run = [=](Call& call) {
    const Squares one{call[x], call[dst]};
    run_squares(call, {&one, 1}, call[dst], call[total]);
  };
  c.expected = [=](const Case& in) {
    double sum = 0;
    for (const double value : in[x].doubles()) sum += value * value;
    const double error = squares_error(in[x].elems());
    return std::vector{close(dst, {sum}, 0, error), close(total, {sum}, 0, error)};
  };
  return c;
}

// Of successive parts of one tensor, of these sizes, with an element between them that is nobody's.
// Twice as many sums as there are parts: every other one is 7, and left alone.
Case sum_squares_list_case(const std::vector<int64_t>& sizes, DType dtype, bool together = true) {
  int64_t elems = 0;
  for (const int64_t size : sizes) elems += size + 1;
  Case c;
  const auto count = static_cast<int64_t>(sizes.size());
  const int x = c.input("x", normals(1, elems, 1).as(dtype)),
            dst = c.output("dst", row_of(Doubles(2 * sizes.size(), 7.0))),
            total = c.output("total", empty_double());
  c.run = [=](Call& call) {
    std::vector<Squares> list;
    int64_t begin = 0;
    for (int64_t i = 0; i < count; begin += sizes[static_cast<size_t>(i++)] + 1)
      list.push_back(
          {call[x].col_range(begin, sizes[static_cast<size_t>(i)]), call[dst].col_range(2 * i, 1)});
    if (together) return run_squares(call, list, call[dst], call[total]);
    for (const Squares& one : list) run_squares(call, {&one, 1}, call[dst], call[total]);
  };
  c.expected = [=](const Case& in) {
    const Doubles values = in[x].doubles();
    Doubles sums, errors;
    double sum_of_all = 0;
    size_t i = 0;
    for (const int64_t size : sizes) {
      double sum = 0;
      for (const size_t end = i + static_cast<size_t>(size); i < end; ++i)
        sum += values[i] * values[i];
      ++i;
      sums.insert(sums.end(), {sum, 7});
      errors.insert(errors.end(), {sum * squares_error(size), 0});
      sum_of_all += sum + 7;
    }
    return std::vector{Expected{dst, sums, errors},
                       close(total, {sum_of_all}, 0, squares_error(elems))};
  };
  if (together && count > 0)
    c.twin = Twin{[=] { return sum_squares_list_case(sizes, dtype, false); }, {{"dst"}, {"total"}}};
  return c;
}

// More than a device takes at a time, a few of several chunks among them, one that is empty.
std::vector<int64_t> many_sizes() {
  std::vector<int64_t> sizes = {0, 100003, 8192, 8193};
  for (int64_t i = 0; i < 45; ++i) sizes.push_back(i % 11 == 10 ? 30011 : 7 * i + 1);
  return sizes;
}

struct ClipParams {
  std::vector<double> sums;
  int64_t squares;
  double limit, eps;
};

Case clip_case(const ClipParams& p) {
  Case c;
  const int sums = c.input("sums", row_of(p.sums)), norm = c.output("norm", empty_double()),
            factor = c.output("factor", HostTensor(1, 1).clear()),
            finite = c.output("finite", HostTensor(1, 1, 0, DType::i32).clear());
  c.run = [=](Call& call) {
    call.kernels().clip({.sums = call[sums],
                         .squares = p.squares,
                         .limit = p.limit,
                         .eps = p.eps,
                         .norm = call[norm],
                         .control = {call[factor], call[finite]}});
  };
  c.expected = [=](const Case&) {
    double squares = 0;
    bool all_finite = true;
    for (size_t i = 0; i < p.sums.size(); ++i) {
      if (i < static_cast<size_t>(p.squares)) squares += p.sums[i];
      all_finite = all_finite && std::isfinite(p.sums[i]);
    }
    const double root = std::sqrt(squares);
    std::vector<Expected> all = {exactly(finite, {all_finite ? 1.0 : 0.0}),
                                 close(norm, {root}, 0, 2 * kDoubleUnit)};
    // Where a sum is not finite, the factor is unspecified.
    const double scale = p.limit > 0 ? std::min(1.0, p.limit / (root + p.eps)) : 1.0;
    if (all_finite)
      all.push_back(scale == 1 ? exactly(factor, {1}) : close(factor, {scale}, 0, 2 * kUnit));
    return all;
  };
  return c;
}

void add_clip(CaseList& list, const char* what, const ClipParams& p) {
  list.push_back({"sums", fmt::format("clip {}", what), [=] { return clip_case(p); }});
}

HostTensor with(HostTensor x, int64_t col, float value) {
  x.set(0, col, value);
  return x;
}

void add_half_cases(CaseList& list, DType dtype) {
  const std::string suffix = type_suffix(dtype);
  struct Shape {
    int64_t rows, cols, gap;
  };
  const float large = dtype == DType::f16 ? 0x1p10f : 0x1p118f;
  for (const DType dst : {dtype, DType::f32})
    for (const bool accumulate : {false, true}) {
      const auto add = [&](const Shape& s, float scale) {
        list.push_back(
            {"sums",
             fmt::format("column_sum {}x{}{} to {} times {}{}", s.rows, s.cols, suffix,
                         dtype_name(dst), scale, accumulate ? " accumulate" : ""),
             [=] {
               return column_sum_case(s.rows, s.cols, s.gap, accumulate, {dtype, dst}, scale);
             }});
      };
      for (const Shape& s : {Shape{1, 1, 0}, Shape{3, 17, 3}, Shape{37, 131, 0}, Shape{1031, 7, 2},
                             Shape{2057, 103, 0}, Shape{0, 5, 0}})
        add(s, 1);
      add({1031, 17, 2}, 0x1p-20f);
      add({1031, 17, 2}, large);  // some sums are infinite in f16
    }
  for (const int64_t n : {0, 1, 7, 33, 1031, 100003})
    list.push_back({"sums", fmt::format("sum_squares of {}{}", n, suffix),
                    [=] { return sum_squares_case(normals(1, n, 1).as(dtype)); }});
  list.push_back({"sums", "sum_squares of a list" + suffix,
                  [=] { return sum_squares_list_case(many_sizes(), dtype); }});
  list.push_back({"sums", "sum_squares of large values does not overflow" + suffix, [=] {
                    const float most = dtype == DType::f16 ? 65504.0f : 1e38f;
                    return sum_squares_case(row_of(std::vector<float>(70, most)).as(dtype));
                  }});
  list.push_back({"sums", "sum_squares of small values is not lost" + suffix,
                  [=] { return sum_squares_case(normals(1, 1031, 1, 0, 0x1p-22f).as(dtype)); }});
  for (const float bad : {kInf, kNan})
    list.push_back({"sums", fmt::format("sum_squares of {}{}", bad, suffix), [=] {
                      return sum_squares_case(with(normals(1, 5021, 1).as(dtype), 5020, bad));
                    }});
}

// Of elements [first, first + n) of a matrix. What it has nothing of keeps its number.
Case factor_squares_case(int64_t rows, int64_t cols, int64_t first, int64_t n, DType dtype) {
  Case c;
  const int x = c.input("x", normals(1, n, 1).as(dtype));
  const int r = c.output("rows", row_of(std::vector<double>(static_cast<size_t>(rows), -1.0))),
            k = c.output("columns", row_of(std::vector<double>(static_cast<size_t>(cols), -1.0)));
  c.run = [=](Call& call) {
    const FactorSquares one{call[x], first, call[r], call[k]};
    call.kernels().factor_squares({&one, 1});
  };
  c.expected = [=](const Case& in) {
    Doubles of_rows(static_cast<size_t>(rows), -1.0), of_columns(static_cast<size_t>(cols), 0.0);
    for (int64_t i = 0; i < n; ++i) {
      double& row = of_rows[static_cast<size_t>((first + i) / cols)];
      if (i == 0 || (first + i) % cols == 0) row = 0;
      const double square = std::pow(double{in[x].at(0, i)}, 2);
      row += square;
      of_columns[static_cast<size_t>((first + i) % cols)] += square;
    }
    return std::vector<Expected>{close(r, of_rows, 1e-12, 1e-12),
                                 close(k, of_columns, 1e-12, 1e-12)};
  };
  return c;
}

}  // namespace

void add_sums_cases(CaseList& list) {
  struct Shape {
    int64_t rows, cols, gap;
  };
  for (const Shape& s : {Shape{1, 1, 0}, Shape{3, 17, 3}, Shape{37, 131, 0}, Shape{1031, 7, 2},
                         Shape{2057, 1033, 0}, Shape{0, 5, 0}})
    for (const bool accumulate : {false, true})
      list.push_back({"sums",
                      fmt::format("column_sum {}x{}{}{}", s.rows, s.cols,
                                  s.gap > 0 ? " strided" : "", accumulate ? " accumulate" : ""),
                      [=] { return column_sum_case(s.rows, s.cols, s.gap, accumulate); }});
  for (const int64_t n : {0, 1, 7, 1031, 100003}) {
    list.push_back(
        {"sums", fmt::format("sum of {} f32", n), [=] { return sum_case(normals(1, n, 1)); }});
    list.push_back({"sums", fmt::format("sum of {} f64", n),
                    [=] { return sum_case(row_of(normals(1, n, 1).doubles())); }});
  }
  list.push_back({"sums", "sum of 7x13", [] { return sum_case(normals(7, 13, 1)); }});
  // Most other orders, and float, give another number.
  list.push_back({"sums", "sum in its order and in double", [] {
                    return sum_case(row_of(std::vector<float>{1, 0x1p60f, -0x1p60f, 0x1p-40f, 3}));
                  }});
  for (const int64_t n : {0, 1, 7, 33, 1031, 100003, 300007})
    list.push_back({"sums", fmt::format("sum_squares of {}", n),
                    [=] { return sum_squares_case(normals(1, n, 1)); }});
  list.push_back(
      {"sums", "sum_squares of 7x13", [] { return sum_squares_case(normals(7, 13, 1)); }});
  list.push_back({"sums", "sum_squares of a list",
                  [] { return sum_squares_list_case(many_sizes(), DType::f32); }});
  list.push_back(
      {"sums", "sum_squares of no list", [] { return sum_squares_list_case({}, DType::f32); }});
  list.push_back({"sums", "sum_squares of large values does not overflow",
                  [] { return sum_squares_case(row_of(std::vector<float>(3, 1e38f))); }});
  list.push_back({"sums", "sum_squares of infinity",
                  [] { return sum_squares_case(with(normals(1, 50021, 1), 50020, kInf)); }});
  list.push_back({"sums", "sum_squares of NaN", [] {
                    return sum_squares_case(with(with(normals(1, 50021, 1), 50020, kInf), 3, kNan));
                  }});
  add_clip(list, "without a limit", {{9, 16, 5}, 2, 0, 1e-6});
  add_clip(list, "below the limit", {{9, 16, 5}, 2, 7, 1e-6});
  add_clip(list, "at the limit", {{9, 16}, 2, 5, 0});
  add_clip(list, "above the limit", {{9, 16, 5}, 2, 1, 1e-6});
  add_clip(list, "with a large eps", {{9, 16, 1e30}, 2, 1, 5});
  add_clip(list, "of no gradient", {{0, 0}, 2, 1, 0});
  add_clip(list, "of no squares at all", {{3}, 0, 1, 1e-6});
  add_clip(list, "of many squares", {std::vector<double>(1000, 0.3), 1000, 1, 1e-6});
  add_clip(list, "of squares beyond float", {{1e70, 1e68}, 2, 1, 0});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  add_clip(list, "of a square that is NaN", {{9, nan, 5}, 2, 1, 0});
  add_clip(list, "of a square that is infinite", {{inf, 4, 5}, 2, 1, 0});
  add_clip(list, "of another sum that is NaN", {{9, 16, nan}, 2, 1, 0});
  add_clip(list, "of another sum that is infinite", {{9, 16, -inf}, 2, 0, 0});
  for (const DType dtype : kHalfTypes) add_half_cases(list, dtype);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto add = [&](int64_t rows, int64_t cols, int64_t first, int64_t n) {
      list.push_back({"sums",
                      fmt::format("factor_squares {}x{} from {} to {}{}", rows, cols, first,
                                  first + n, type_suffix(dtype)),
                      [=] { return factor_squares_case(rows, cols, first, n, dtype); }});
    };
    add(37, 53, 0, 37 * 53);
    add(37, 53, 60, 1000);
    add(7, 901, 905, 300);  // in a row
    add(7, 901, 800, 300);  // over the end of one
    add(1031, 3, 4, 3001);
  }
}

void add_sums_benchmarks(CaseList& list) {
  constexpr int64_t kElems = int64_t{8} << 20;
  list.push_back(
      {"sums", "column_sum 1024x3072", [] { return column_sum_case(1024, 3072, 0, true); }});
  list.push_back(
      {"sums", "sum_squares 32 MiB", [] { return sum_squares_case(normals(1, kElems, 1)); }});
  list.push_back({"sums", "column_sum 1024x3072 bf16",
                  [] { return column_sum_case(1024, 3072, 0, true, {DType::bf16}); }});
  list.push_back({"sums", "sum_squares 16 MiB bf16",
                  [] { return sum_squares_case(normals(1, kElems, 1).as(DType::bf16)); }});
  list.push_back({"sums", "sum of 1024 losses", [] { return sum_case(normals(1, 1024, 1)); }});
}

}  // namespace onefold::cases
