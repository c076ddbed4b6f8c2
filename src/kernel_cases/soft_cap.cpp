// Soft caps of logits, forward and backward, with numbers near the cap and far beyond it.
#include <cmath>
#include <limits>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Params {
  int64_t rows, cols, gap;
  float cap;
  float scale = 1;  // of what is capped
  bool in_place = false;
  DType dtype = DType::f32;
};

double capped(double x, double cap) { return cap * std::tanh(x / cap); }

Case forward_case(const Params& p) {
  Case c;
  const HostTensor values = normals(p.rows, p.cols, 1, p.gap, p.scale).as(p.dtype);
  const int x = p.in_place ? c.output("dst", values) : c.input("x", values);
  const int dst =
      p.in_place ? x : c.output("dst", HostTensor(p.rows, p.cols, p.gap + 1, p.dtype).clear());
  c.run = [=](Call& call) { call.kernels().soft_cap(call[x], p.cap, call[dst]); };
  c.expected = [=](const Case& in) {
    Doubles values = in[x].doubles();
    for (double& value : values) value = capped(value, static_cast<double>(p.cap));
    // 5 ulp of tanh; the quotient's two roundings, of 1 / cap and of the product, move it by no
    // more than they are themselves, and one is the last product's.
    return std::vector{stored(p.dtype, close(dst, values, 0, 14 * kUnit))};
  };
  return c;
}

Case backward_case(const Params& p) {
  Case c;
  // What forward leaves: numbers up to the cap.
  HostTensor results = normals(p.rows, p.cols, 1, p.gap, p.scale);
  for (int64_t row = 0; row < p.rows; ++row)
    for (int64_t col = 0; col < p.cols; ++col)
      results.set(row, col,
                  static_cast<float>(capped(static_cast<double>(results.at(row, col)),
                                            static_cast<double>(p.cap))));
  const HostTensor gradient = normals(p.rows, p.cols, 2, p.gap).as(p.dtype);
  const int y = c.input("y", results.as(p.dtype));
  const int dy = p.in_place ? c.output("dx", gradient) : c.input("dy", gradient);
  const int dx =
      p.in_place ? dy : c.output("dx", HostTensor(p.rows, p.cols, p.gap + 2, p.dtype).clear());
  c.run = [=](Call& call) { call.kernels().soft_cap_backward(call[y], p.cap, call[dy], call[dx]); };
  c.expected = [=](const Case& in) {
    const Doubles results = in[y].doubles(), gradients = in[dy].doubles();
    Doubles values(results.size()), sizes(results.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const double share = results[i] / static_cast<double>(p.cap);
      values[i] = gradients[i] * (1 - share * share);
      sizes[i] = std::abs(gradients[i]);
    }
    // The square has 5 roundings, the difference one; near the cap little is left of it.
    return std::vector{stored(p.dtype, within(dx, values, sizes, 7 * kUnit))};
  };
  return c;
}

// What lies beyond every number is the cap, and no number stays none.
Case extremes_case(DType dtype) {
  Case c;
  const float most = dtype == DType::f16 ? 65504.0f : 3e38f, least = 0x1p-24f;
  const std::vector<float> values = {kInf,  -kInf, most,   -most,        0.0f,
                                     -0.0f, least, -least, std::nanf("")};
  const int x = c.output("dst", row_of(values).as(dtype));
  c.run = [=](Call& call) { call.kernels().soft_cap(call[x], 32.0f, call[x]); };
  c.expected = [=](const Case&) {
    return std::vector{close(x,
                             {32, -32, 32, -32, 0, -0.0, static_cast<double>(least),
                              -static_cast<double>(least), std::nan("")},
                             0, dtype == DType::f32 ? 14 * kUnit : 0)};
  };
  return c;
}

void add(CaseList& list, const Params& p) {
  const std::string name = fmt::format("{}x{} at {}{}{}{}", p.rows, p.cols, p.cap,
                                       p.scale == 1 ? "" : fmt::format(" times {}", p.scale),
                                       p.in_place ? " in place" : "", type_suffix(p.dtype));
  list.push_back({"soft_cap", name + " forward", [=] { return forward_case(p); }});
  list.push_back({"soft_cap", name + " backward", [=] { return backward_case(p); }});
}

}  // namespace

void add_soft_cap_cases(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const float scale : {1.0f, 0.01f, 30.0f, 1000.0f})
      for (const bool in_place : {false, true}) add(list, {7, 37, 3, 30, scale, in_place, dtype});
    add(list, {3, 40009, 0, 2.5f, 5, true, dtype});
    add(list, {0, 5, 0, 30, 1, false, dtype});
    list.push_back(
        {"soft_cap", "extremes" + type_suffix(dtype), [=] { return extremes_case(dtype); }});
  }
}

void add_soft_cap_benchmarks(CaseList& list) {
  list.push_back({"soft_cap", "forward 512x50257", [] {
                    return forward_case({512, 50257, 0, 30, 10, true});
                  }});
}

}  // namespace onefold::cases
