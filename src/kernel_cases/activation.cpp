// Activation functions, plain and gated.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

constexpr Activation kAll[] = {Activation::relu, Activation::gelu,    Activation::gelu_tanh,
                               Activation::silu, Activation::sigmoid, Activation::identity};

const char* name_of(Activation act) {
  switch (act) {
    case Activation::relu:
      return "relu";
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return "gelu_tanh";
    case Activation::silu:
      return "silu";
    case Activation::sigmoid:
      return "sigmoid";
    case Activation::identity:
      return "identity";
  }
  return "?";
}

double value(Activation act, double x) {
  switch (act) {
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::gelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::gelu_tanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
    case Activation::identity:
      return x;
  }
  return 0;
}

double slope(Activation act, double x) {
  switch (act) {
    case Activation::relu:
      return x > 0 ? 1 : 0;
    case Activation::gelu:
      return 0.5 * std::erfc(-x / std::numbers::sqrt2) +
             x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    case Activation::gelu_tanh: {
      const double a = std::sqrt(2 / std::numbers::pi);
      const double t = std::tanh(a * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * a * (1 + 3 * 0.044715 * x * x);
    }
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return s * (1 + x * (1 - s));
    }
    case Activation::sigmoid: {
      const double s = 1 / (1 + std::exp(-x));
      return s * (1 - s);
    }
    case Activation::identity:
      return 1;
  }
  return 0;
}

// x is [rows, n] or, gated, [rows, 2n] with the gate first.
Doubles forward_of(Activation act, bool gated, int64_t n, const Doubles& x) {
  const auto step = static_cast<size_t>(gated ? 2 * n : n);
  Doubles y;
  for (size_t row = 0; row < x.size(); row += step)
    for (size_t i = row; i < row + static_cast<size_t>(n); ++i)
      y.push_back(value(act, x[i]) * (gated ? x[i + static_cast<size_t>(n)] : 1));
  return y;
}

Doubles backward_of(Activation act, bool gated, int64_t n, const Doubles& x, const Doubles& dy) {
  const auto step = static_cast<size_t>(gated ? 2 * n : n), half = static_cast<size_t>(n);
  Doubles dx(x.size());
  size_t next = 0;
  for (size_t row = 0; row < x.size(); row += step)
    for (size_t i = row; i < row + half; ++i, ++next) {
      dx[i] = dy[next] * slope(act, x[i]) * (gated ? x[i + half] : 1);
      if (gated) dx[i + half] = dy[next] * value(act, x[i]);
    }
  return dx;
}

struct Params {
  Activation act;
  bool gated;
  int64_t rows, n;
  float scale;
  DType dtype = DType::f32;
  int64_t x_cols() const { return gated ? 2 * n : n; }
};

Case forward_case(Params p) {
  Case c;
  const int x =
      c.input("x", normals(p.rows, p.x_cols(), 1, 3 + (p.gated ? 0 : p.n), p.scale).as(p.dtype));
  const int y = c.output("y", HostTensor(p.rows, p.n, 2, p.dtype).clear());
  c.run = [=](Call& call) { call.kernels().activation_forward(p.act, p.gated, call[x], call[y]); };
  c.expected = [=](const Case& in) {
    // 6 ulp of the function; arguments of tanh and of exp(x²) err by up to 12 units of |x|² / 2 <=
    // 72, which matters only where the value has decayed: below 0.1 in all.
    return std::vector{stored(p.dtype, close(y, forward_of(p.act, p.gated, p.n, in[x].doubles()),
                                             16 * kUnit, 16 * kUnit))};
  };
  return c;
}

Case backward_case(Params p, bool with_y) {
  Case c;
  const int x = c.input("x", normals(p.rows, p.x_cols(), 1, 5, p.scale).as(p.dtype));
  const int dy = c.input("dy", normals(p.rows, p.n, 2, 1).as(p.dtype));
  const int dx = c.output("dx", HostTensor(p.rows, p.x_cols(), 3, p.dtype).clear());
  const int y = with_y ? c.output("y", HostTensor(p.rows, p.n, 2, p.dtype).clear()) : -1;
  c.run = [=](Call& call) {
    call.kernels().activation_backward(p.act, p.gated, call[x], call[dy], call[dx],
                                       with_y ? call[y] : Tensor{}, {});
  };
  c.expected = [=](const Case& in) {
    const Doubles xs = in[x].doubles(), dys = in[dy].doubles();
    // Slopes are below 1.2 and values up to |x| <= 8, times dy and up of at most 4 and 8; their
    // terms cancel to 16 ulp.
    std::vector<Expected> all = {
        stored(p.dtype,
               close(dx, backward_of(p.act, p.gated, p.n, xs, dys), 16 * 32 * kUnit, 16 * kUnit))};
    if (xs.size() <= 1000) {
      const auto loss = [&](const Doubles& v) {
        return dot(dys, forward_of(p.act, p.gated, p.n, v));
      };
      const double error = 16 * 32 * kUnit + 10 * kDifferenceError;
      all.push_back(stored(p.dtype, close(dx, gradient_of(loss, xs), error, 16 * kUnit)));
    }
    return all;
  };
  // Backward rewrites y with forward's bits, and dx does not depend on whether y is wanted.
  if (with_y)
    c.twin = Twin{[=] {
                    Case both = backward_case(p, false);
                    const int again = both.output("y", HostTensor(p.rows, p.n, 2, p.dtype).clear());
                    const auto backward = both.run;
                    both.run = [=](Call& call) {
                      backward(call);
                      call.kernels().activation_forward(p.act, p.gated, call[x], call[again]);
                    };
                    return both;
                  },
                  {{"dx"}, {"y"}}};
  return c;
}

// The relative error of a number that is stored.
double storing_error(DType dtype) {
  return dtype == DType::f32 ? kUnit : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

// With the gradient of a bias: the sums of dx over rows, as they are stored or before. dx itself
// has the bits that it has without. Some columns of `spiky` have one row that outweighs all others.
Case sums_case(Params p, DType gradients, bool accumulate, bool spiky = false) {
  Case c;
  HostTensor gradient = normals(p.rows, p.n, 2, 1);
  for (int64_t col = 0; spiky && col < p.n; col += 3)
    gradient.set((7 * col) % p.rows, col, 1000.0f);
  const int x = c.input("x", normals(p.rows, p.x_cols(), 1, 5, p.scale).as(p.dtype));
  const int dy = c.input("dy", gradient.as(p.dtype));
  const int dx = c.output("dx", HostTensor(p.rows, p.x_cols(), 3, p.dtype).clear());
  const int y = c.output("y", HostTensor(p.rows, p.n, 2, p.dtype).clear());
  HostTensor old = normals(1, p.x_cols(), 6).as(gradients);
  const int dbias = c.output("dbias", accumulate ? old : old.clear());
  c.run = [=](Call& call) {
    Kernels& k = call.kernels();
    k.activation_backward(
        p.act, p.gated, call[x], call[dy], call[dx], call[y],
        {call[dbias], accumulate, call.scratch(k.column_sum_scratch_bytes(p.rows, p.x_cols()))});
  };
  c.expected = [=](const Case& in) {
    const Doubles dxs = backward_of(p.act, p.gated, p.n, in[x].doubles(), in[dy].doubles());
    const auto cols = static_cast<size_t>(p.x_cols());
    Doubles sums = accumulate ? in[dbias].doubles() : Doubles(cols);
    // Each term errs as dx does (backward_case) and by being stored; none goes through more
    // additions than there are rows.
    Doubles bounds(cols,
                   (16 * 32 * kUnit * (spiky ? 300 : 1) + 0x1p-25) * static_cast<double>(p.rows));
    const double each =
        16 * kUnit + storing_error(p.dtype) + static_cast<double>(p.rows + 1) * kUnit;
    for (size_t i = 0; i < cols; ++i) bounds[i] += each * std::abs(sums[i]);
    for (size_t i = 0; i < dxs.size(); ++i) {
      sums[i % cols] += dxs[i];
      bounds[i % cols] += each * std::abs(dxs[i]);
    }
    return std::vector{stored(gradients, {dbias, sums, bounds})};
  };
  if (!spiky) c.twin = Twin{[=] { return backward_case(p, true); }, {{"dx"}, {"y"}}};
  return c;
}

// NaN comes through, and stays where it is.
Case nan_case(Activation act, bool gated, DType dtype = DType::f32) {
  Case c;
  HostTensor values(1, 6, 0, dtype);
  values.fill(1);
  values.set(0, 1, std::numeric_limits<float>::quiet_NaN());
  const int x = c.input("x", values);
  const int y = c.output("y", HostTensor(1, gated ? 3 : 6, 0, dtype).clear());
  c.run = [=](Call& call) { call.kernels().activation_forward(act, gated, call[x], call[y]); };
  c.expected = [=](const Case& in) {
    Doubles ys = forward_of(act, gated, in[y].cols(), in[x].doubles());
    ys[1] = std::numeric_limits<double>::quiet_NaN();  // also of relu
    return std::vector{stored(dtype, close(y, ys, 16 * kUnit, 16 * kUnit))};
  };
  return c;
}

// Where functions are flat, or straight: slopes are 0 and 1, values 0 and x.
Case large_case(Activation act, DType dtype = DType::f32) {
  Case c;
  const float most = dtype == DType::f16 ? 65504.0f : 1e30f;
  const std::vector<float> large = {-most, -200.0f, 200.0f, most};
  const int x = c.input("x", row_of(large).as(dtype)),
            dy = c.input("dy", row_of(std::vector<float>(4, 1)).as(dtype));
  const int dx = c.output("dx", HostTensor(1, 4, 0, dtype).clear()),
            y = c.output("y", HostTensor(1, 4, 0, dtype).clear());
  c.run = [=](Call& call) {
    call.kernels().activation_backward(act, false, call[x], call[dy], call[dx], call[y], {});
  };
  c.expected = [=](const Case& in) {
    Doubles slopes, values;
    for (const double at : in[x].doubles()) {
      const bool flat = act == Activation::sigmoid, straight = act == Activation::identity;
      slopes.push_back(straight ? 1 : flat ? 0 : at > 0);
      values.push_back(straight ? at : flat ? at > 0 : std::max(at, 0.0));
    }
    return std::vector{exactly(dx, slopes), exactly(y, values)};
  };
  return c;
}

void add(CaseList& list, const char* what, const Params& p, bool forward, bool with_y = true) {
  list.push_back({"activation",
                  fmt::format("{}{} {}x{} {}{}{}", name_of(p.act), p.gated ? " gated" : "", p.rows,
                              p.n, what, type_suffix(p.dtype), p.scale < 1 ? " small" : ""),
                  [=] { return forward ? forward_case(p) : backward_case(p, with_y); }});
}

void add_sums_cases(CaseList& list, DType dtype) {
  const auto add_case = [&](const Params& p, DType gradients, bool accumulate, bool spiky) {
    list.push_back(
        {"activation",
         fmt::format("{}{} {}x{} backward{} with the bias's gradient {}{}{}", name_of(p.act),
                     p.gated ? " gated" : "", p.rows, p.n, type_suffix(dtype),
                     dtype_name(gradients), accumulate ? " added" : "", spiky ? " of spikes" : ""),
         [=] { return sums_case(p, gradients, accumulate, spiky); }});
  };
  // One row, rows and columns that fill no block, and several chunks of rows.
  for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{1, 5}, {37, 131}, {300, 264}})
    for (const bool accumulate : {false, true}) {
      const Params p{Activation::gelu_tanh, false, rows, n, 2, dtype};
      add_case(p, DType::f32, accumulate, false);
      if (dtype != DType::f32) add_case(p, dtype, accumulate, false);
    }
  for (const Activation act : kAll) add_case({act, false, 70, 24, 2, dtype}, dtype, false, false);
  add_case({Activation::silu, true, 37, 33, 2, dtype}, dtype, true, false);
  add_case({Activation::gelu_tanh, false, 300, 136, 2, dtype}, dtype, true, true);
  add_case({Activation::gelu, false, 2100, 16, 2, dtype}, DType::f32, false, false);
}

void add_half_cases(CaseList& list, DType dtype) {
  for (const Activation act : kAll)
    for (const bool gated : {false, true}) {
      for (const int64_t n : {1, 17, 131}) add(list, "forward", {act, gated, 5, n, 3, dtype}, true);
      // Where values are subnormal in f16.
      add(list, "forward", {act, gated, 5, 131, 0x1p-18f, dtype}, true);
      for (const int64_t n : {1, 33}) add(list, "backward", {act, gated, 3, n, 2, dtype}, false);
      add(list, "backward without y", {act, gated, 3, 33, 2, dtype}, false, false);
      const std::string name =
          fmt::format("{}{}{}", name_of(act), gated ? " gated" : "", type_suffix(dtype));
      list.push_back({"activation", name + " of NaN", [=] { return nan_case(act, gated, dtype); }});
      if (!gated)
        list.push_back(
            {"activation", name + " of large numbers", [=] { return large_case(act, dtype); }});
    }
  add(list, "forward", {Activation::gelu, true, 2, 40009, 1, dtype}, true);
  add(list, "backward", {Activation::gelu, true, 2, 40009, 1, dtype}, false);
  add(list, "backward", {Activation::silu, true, 0, 5, 1, dtype}, false);
}

}  // namespace

void add_activation_cases(CaseList& list) {
  for (const Activation act : kAll)
    for (const bool gated : {false, true}) {
      for (const int64_t n : {1, 15, 17, 131}) add(list, "forward", {act, gated, 5, n, 3}, true);
      for (const int64_t n : {1, 7, 33}) add(list, "backward", {act, gated, 3, n, 2}, false);
      add(list, "backward without y", {act, gated, 3, 33, 2}, false, false);
      const std::string name = fmt::format("{}{}", name_of(act), gated ? " gated" : "");
      list.push_back({"activation", name + " of NaN", [=] { return nan_case(act, gated); }});
      if (!gated)
        list.push_back({"activation", name + " of large numbers", [=] { return large_case(act); }});
    }
  // Long rows, which are cut.
  add(list, "forward", {Activation::gelu, true, 2, 40009, 1}, true);
  add(list, "backward", {Activation::gelu, true, 2, 40009, 1}, false);
  add(list, "forward", {Activation::silu, false, 0, 5, 1}, true);
  add(list, "backward", {Activation::silu, true, 0, 5, 1}, false);
  for (const DType dtype : kHalfTypes) add_half_cases(list, dtype);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) add_sums_cases(list, dtype);
}

void add_activation_benchmarks(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Params& p : {Params{Activation::gelu_tanh, false, 1024, 3072, 1, dtype},
                            Params{Activation::silu, true, 1024, 2048, 1, dtype}}) {
      add(list, "forward", p, true);
      add(list, "backward", p, false);
    }
  list.push_back({"activation", "gelu_tanh 1024x3072 backward with the bias's gradient bf16", [] {
                    return sums_case({Activation::gelu_tanh, false, 1024, 3072, 1, DType::bf16},
                                     DType::bf16, true);
                  }});
}

}  // namespace onefold::cases
