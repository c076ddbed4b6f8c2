// Matrix products: every orientation, with every combination of what is added to them.
#include <cmath>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

struct Shape {
  int64_t m, n, k, gap;
};

struct Options {
  bool a_transposed = false, b_transposed = false;
  bool accumulate = false, bias = false, residual = false;
  DType type = DType::f32, dst = DType::f32;  // of operands; of the result
  float scale = 1;                            // of a and b
  bool spikes = false;                        // a few of a's elements 1024 times as large
};

// Sums, and the sums of the magnitudes of their terms, which roundings are relative to.
struct Sums {
  Doubles values, magnitudes;

  void add(size_t i, double term) {
    values[i] += term;
    magnitudes[i] += std::abs(term);
  }
};

Sums product(const Doubles& a, const Doubles& b, const Shape& s, const Options& o) {
  const auto size = static_cast<size_t>(s.m * s.n);
  Sums sums{Doubles(size), Doubles(size)};
  for (int64_t row = 0; row < s.m; ++row)
    for (int64_t i = 0; i < s.k; ++i) {
      const double left = a[static_cast<size_t>(o.a_transposed ? i * s.m + row : row * s.k + i)];
      for (int64_t col = 0; col < s.n; ++col)
        sums.add(static_cast<size_t>(row * s.n + col),
                 left * b[static_cast<size_t>(o.b_transposed ? col * s.k + i : i * s.n + col)]);
    }
  return sums;
}

HostTensor operand(int64_t rows, int64_t cols, uint64_t seed, int64_t gap, const Options& o,
                   bool spikes = false) {
  HostTensor values = normals(rows, cols, seed, gap, o.scale);
  for (int64_t i = 0; spikes && i < rows * cols; i += 17)
    values.set(i / cols, i % cols, 1024 * values.at(i / cols, i % cols));
  return values.as(o.type);
}

struct GemmTensors {
  int a, b, dst, bias, residual;
};

GemmTensors add_tensors(Case& c, const Shape& s, const Options& o) {
  GemmTensors t;
  t.a = c.input("a", o.a_transposed ? operand(s.k, s.m, 1, s.gap, o, o.spikes)
                                    : operand(s.m, s.k, 1, s.gap, o, o.spikes));
  t.b = c.input("b", o.b_transposed ? operand(s.n, s.k, 2, 3 * s.gap, o)
                                    : operand(s.k, s.n, 2, 3 * s.gap, o));
  // Without accumulate, what dst held must not reach the result.
  t.dst = c.output("dst", o.accumulate ? normals(s.m, s.n, 3, s.gap).as(o.dst)
                                       : HostTensor(s.m, s.n, s.gap, o.dst).clear());
  t.bias = o.bias ? c.input("bias", normals(1, s.n, 4).as(o.type)) : -1;
  t.residual = o.residual ? c.input("residual", normals(s.m, s.n, 5, 2 * s.gap).as(o.type)) : -1;
  return t;
}

void run_gemm(Call& call, const GemmTensors& t, const Options& o) {
  Gemm gemm{.a = call[t.a],
            .b = call[t.b],
            .dst = call[t.dst],
            .a_transposed = o.a_transposed,
            .b_transposed = o.b_transposed,
            .accumulate = o.accumulate};
  if (o.bias) gemm.bias = call[t.bias];
  if (o.residual) gemm.residual = call[t.residual];
  gemm.scratch = call.scratch(call.kernels().gemm_scratch_bytes(gemm));
  call.kernels().gemm(gemm);
}

Case gemm_case(Shape s, Options o) {
  Case c;
  const GemmTensors t = add_tensors(c, s, o);
  c.run = [=](Call& call) { run_gemm(call, t, o); };
  c.expected = [=](const Case& in) {
    Sums sums = product(in[t.a].doubles(), in[t.b].doubles(), s, o);
    for (int64_t row = 0; row < s.m; ++row)
      for (int64_t col = 0; col < s.n; ++col) {
        const auto i = static_cast<size_t>(row * s.n + col);
        if (o.accumulate) sums.add(i, in[t.dst].at(row, col));
        if (o.bias) sums.add(i, in[t.bias].at(0, col));
        if (o.residual) sums.add(i, in[t.residual].at(row, col));
      }
    // However the k terms are grouped, none goes through more than k roundings in the sum, and 4 on
    // the way: of the product itself, onto dst, onto the bias, onto the residual.
    const double relative = static_cast<double>(s.k + 4) * kUnit;
    return std::vector{
        stored(o.dst, within(t.dst, std::move(sums.values), sums.magnitudes, relative))};
  };
  return c;
}

// The bits of the product, to which first the bias is added and then the residual.
Case epilogue_case() {
  const Shape s{131, 67, 19, 0};
  const Options o{.b_transposed = true, .bias = true, .residual = true};
  Case c = gemm_case(s, o);
  c.twin =
      Twin{.make =
               [=] {
                 Case steps;
                 const GemmTensors t = add_tensors(steps, s, o);
                 steps.run = [=](Call& call) {
                   run_gemm(call, t, {.b_transposed = true});
                   const Tensor dst = call[t.dst];
                   for (int64_t row = 0; row < s.m; ++row)
                     call.kernels().add(dst.row_range(row, 1), call[t.bias], dst.row_range(row, 1));
                   call.kernels().add(dst, call[t.residual], dst);
                 };
                 return steps;
               },
           .parts = {{"dst"}},
           .every_device = false};
  return c;
}

// Small integers: sums of a few hundred products of them are exact, in fp32.
HostTensor integers(int64_t rows, int64_t cols, uint64_t seed, DType type) {
  HostTensor values = normals(rows, cols, seed);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col) values.set(row, col, std::round(values.at(row, col)));
  return values.as(type);
}

// The three products over a vocabulary that is not even, as the head makes them: what lies beyond
// it may be written, and must not be seen in what is within.
Case slack_case(DType type, DType gradients) {
  constexpr int64_t kRows = 24, kHidden = 16, kVocabulary = 101, kSlack = 27;
  Case c;
  HostTensor padded = integers(kVocabulary + kSlack, kHidden, 1, type);
  for (int64_t row = kVocabulary; row < padded.rows(); ++row)
    for (int64_t col = 0; col < kHidden; ++col) padded.set(row, col, 0);
  const int table = c.input("table", std::move(padded));
  const int x = c.input("x", integers(kRows, kHidden, 2, type));
  const auto cleared = [&](const char* name, int64_t rows, int64_t cols, DType dtype) {
    return c.output(name, HostTensor(rows, cols, 0, dtype).clear());
  };
  const int wide = cleared("wide logits", kRows, kVocabulary + kSlack, type);
  const int tall = cleared("tall gradient", kVocabulary + kSlack, kHidden, gradients);
  const int logits = cleared("logits", kRows, kVocabulary, type);
  const int dx = cleared("dx", kRows, kHidden, type);
  const int dtable = cleared("dtable", kVocabulary, kHidden, gradients);
  c.run = [=](Call& call) {
    const auto multiply = [&](Gemm gemm) {
      gemm.slack = kSlack;
      gemm.scratch = call.scratch(call.kernels().gemm_scratch_bytes(gemm));
      call.kernels().gemm(gemm);
    };
    const Tensor within = call[wide].col_range(0, kVocabulary);
    const Tensor rows = call[table].row_range(0, kVocabulary);
    const Tensor gradient = call[tall].row_range(0, kVocabulary);
    multiply({.a = call[x], .b = rows, .dst = within, .b_transposed = true});
    multiply({.a = within, .b = rows, .dst = call[dx]});
    multiply({.a = within, .b = call[x], .dst = gradient, .a_transposed = true});
    call.kernels().copy(within, call[logits]);
    call.kernels().copy(gradient, call[dtable]);
  };
  c.expected = [=](const Case& in) {
    const Doubles tables = in[table].doubles(), xs = in[x].doubles();
    const Shape forward{kRows, kVocabulary, kHidden, 0};
    Expected values =
        stored(type, exactly(logits, product(xs, tables, forward, {.b_transposed = true}).values));
    Doubles held;  // as they were stored
    for (const double value : values.values)
      held.push_back(static_cast<double>(rounded(type, static_cast<float>(value))));
    values.bounds.assign(values.bounds.size(), 0);
    values.values = held;
    return std::vector{
        values,
        stored(type,
               exactly(dx, product(held, tables, {kRows, kHidden, kVocabulary, 0}, {}).values)),
        stored(gradients, exactly(dtable, product(held, xs, {kVocabulary, kHidden, kRows, 0},
                                                  {.a_transposed = true})
                                              .values))};
  };
  return c;
}

std::string orientation(const Options& o) {
  return std::string(o.a_transposed ? "T" : "N") + (o.b_transposed ? "T" : "N");
}

void add_case(CaseList& list, const Shape& s, const Options& o) {
  std::string name = fmt::format("{}x{}x{} {}", s.m, s.n, s.k, orientation(o));
  name += type_suffix(o.type);
  if (o.dst != o.type) name += fmt::format(" to {}", dtype_name(o.dst));
  if (o.scale != 1) name += fmt::format(" times {}", o.scale);
  if (o.spikes) name += " spikes";
  if (s.gap > 0) name += " strided";
  if (o.accumulate) name += " accumulate";
  if (o.bias) name += " bias";
  if (o.residual) name += " residual";
  list.push_back({"gemm", name, [=] { return gemm_case(s, o); }});
}

void add_slack_cases(CaseList& list, DType type) {
  for (const DType gradients : {type, DType::f32}) {
    std::string name = "a vocabulary with slack" + type_suffix(type);
    if (gradients != type) name += fmt::format(", gradients of {}", dtype_name(gradients));
    list.push_back({"gemm", name, [=] { return slack_case(type, gradients); }});
    if (type == DType::f32) return;
  }
}

void add_half_cases(CaseList& list, DType type) {
  // The last two have more terms than are converted at a time on the CPU.
  for (const Shape& s : {Shape{1, 211, 67, 0}, Shape{31, 37, 41, 7}, Shape{5, 7, 0, 0},
                         Shape{1, 3, 1031, 0}, Shape{67, 131, 600, 3}})
    for (int bits = 0; bits < 32; ++bits) {
      Options o{(bits & 1) != 0,
                (bits & 2) != 0,
                (bits & 4) != 0,
                (bits & 8) != 0,
                (bits & 16) != 0,
                type,
                type};
      add_case(list, s, o);
      // A weight's gradient may be kept in f32.
      o.dst = DType::f32;
      if (o.a_transposed && !o.bias && !o.residual) add_case(list, s, o);
    }
  // Every combination of what the tiles are cut by, once.
  for (const Shape& s : {Shape{3585, 5, 7, 1}, Shape{3, 2689, 11, 0}, Shape{513, 1153, 2, 1}})
    for (int bits = 0; bits < 4; ++bits)
      add_case(list, s, {(bits & 1) != 0, (bits & 2) != 0, true, true, true, type, type});
  // More rows, columns and terms than a matrix unit's operands are packed of at a time on the CPU.
  for (const Shape& s : {Shape{8211, 3, 5, 1}, Shape{3, 8211, 5, 0}, Shape{7, 35, 6211, 1}})
    for (int bits = 0; bits < 4; ++bits)
      add_case(list, s, {(bits & 1) != 0, (bits & 2) != 0, true, true, true, type, type});
  add_case(list, {0, 7, 5, 0}, {.type = type, .dst = type});
  add_slack_cases(list, type);
  // Down to where operands are subnormal in f16, and results vanish; up to where results of f16
  // are infinite, and those of bf16 nearly so.
  const Shape s{31, 37, 41, 1};
  for (const float scale : {0x1p-22f, 0x1p-10f, type == DType::f16 ? 200.0f : 0x1p57f})
    for (const DType dst : {type, DType::f32})
      add_case(list, s, {.a_transposed = true, .type = type, .dst = dst, .scale = scale});
  for (const DType dst : {type, DType::f32})
    add_case(list, s, {.a_transposed = true, .type = type, .dst = dst, .spikes = true});
}

}  // namespace

void add_gemm_cases(CaseList& list) {
  const Shape shapes[] = {
      // Smaller than a tile of the CPU's kernel.
      {1, 1, 1, 0},
      {1, 7, 13, 3},
      {1, 211, 67, 0},
      {7, 1, 5, 1},
      {13, 17, 1, 2},
      {2, 3, 1031, 0},
      {31, 37, 41, 7},
      {67, 131, 29, 5},
      {64, 48, 16, 0},
      // From eight tiles on they are 512x384: one more row or column than whole tiles; more rows
      // than columns, and the reverse, hand out tiles in another order.
      {3585, 5, 7, 1},
      {3, 2689, 11, 0},
      {1031, 389, 3, 2},
      {513, 1153, 2, 1},
      // No terms: an expert that no token chose.
      {5, 7, 0, 0},
  };
  for (const Shape& s : shapes)
    for (int bits = 0; bits < 32; ++bits)
      add_case(
          list, s,
          {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0});
  // Many small tiles, then several of the largest, with sums long enough to be cut.
  for (const Shape& s : {Shape{389, 211, 97, 0}, Shape{1031, 1153, 31, 0}})
    for (int bits = 0; bits < 4; ++bits)
      add_case(list, s, {(bits & 1) != 0, (bits & 2) != 0, true, true, true});
  add_case(list, {0, 7, 5, 0}, {});  // no rows
  list.push_back({"gemm", "bias, then residual", epilogue_case});
  add_slack_cases(list, DType::f32);
  for (const DType type : kHalfTypes) add_half_cases(list, type);
}

void add_gemm_benchmarks(CaseList& list) {
  const auto add = [&](const char* what, Shape s, Options o) {
    list.push_back(
        {"gemm",
         fmt::format("{} {}x{}x{} {}{}", what, s.m, s.n, s.k, orientation(o), type_suffix(o.type)),
         [=] { return gemm_case(s, o); }});
  };
  for (const DType type : {DType::f32, DType::bf16}) {
    add("forward", {1024, 3072, 768, 0},
        {.b_transposed = true, .bias = true, .type = type, .dst = type});
    add("input gradient", {1024, 768, 3072, 0}, {.type = type, .dst = type});
    add("weight gradient", {3072, 768, 1024, 0},
        {.a_transposed = true, .accumulate = true, .type = type});
    add("one token", {1, 3072, 768, 0},
        {.b_transposed = true, .bias = true, .type = type, .dst = type});
  }
}

}  // namespace onefold::cases
