// LayerNorm and RMSNorm, of whole rows and of groups.
#include <cmath>

#include "kernel_cases/families.h"
#include "kernel_cases/oracle.h"

namespace onefold::cases {
namespace {

constexpr float kEps = 1e-5f;

struct Params {
  Norm norm;
  int64_t rows, cols, groups, gap;
  bool bias;
  float mean = 0;                                   // of x
  DType type = DType::f32, gradients = DType::f32;  // of gradients: those of parameters
  float scale = 1;                                  // of x
  bool spikes = false;                              // one element of a piece outweighs the others

  int64_t piece() const { return cols / groups; }
  // Of weights: what they are multiplied as is around 1.
  float weight_mean() const { return norm == Norm::rmsnorm1p ? 0.0f : 1.0f; }
};

// What norm(x) is multiplied by.
double times_of(Norm norm, double weight) { return norm == Norm::rmsnorm1p ? 1 + weight : weight; }

struct Stats {
  double mean = 0, rstd = 0;
};

Stats stats_of(Norm norm, const double* x, size_t n) {
  Stats stats;
  if (norm == Norm::layernorm) {
    for (size_t i = 0; i < n; ++i) stats.mean += x[i];
    stats.mean /= static_cast<double>(n);
  }
  double variance = 0;
  for (size_t i = 0; i < n; ++i) variance += (x[i] - stats.mean) * (x[i] - stats.mean);
  stats.rstd = 1 / std::sqrt(variance / static_cast<double>(n) + static_cast<double>(kEps));
  return stats;
}

// norm(x) * weight + bias for pieces of weight.size() elements; bias may be empty.
Doubles forward_of(Norm norm, const Doubles& x, const Doubles& weight, const Doubles& bias) {
  const size_t n = weight.size();
  Doubles y(x.size());
  for (size_t begin = 0; begin < x.size(); begin += n) {
    const Stats stats = stats_of(norm, x.data() + begin, n);
    for (size_t i = 0; i < n; ++i)
      y[begin + i] = (x[begin + i] - stats.mean) * stats.rstd * times_of(norm, weight[i]) +
                     (bias.empty() ? 0 : bias[i]);
  }
  return y;
}

// By the chain rule through mean and variance. Sums over pieces come with those of magnitudes.
struct Gradients {
  Doubles dx, dweight, dbias, dweight_magnitude, dbias_magnitude;
};
Gradients backward_of(Norm norm, const Doubles& x, const Doubles& weight, const Doubles& dy) {
  const size_t n = weight.size();
  const auto count = static_cast<double>(n);
  Gradients g{Doubles(x.size()), Doubles(n), Doubles(n), Doubles(n), Doubles(n)};
  for (size_t begin = 0; begin < x.size(); begin += n) {
    const Stats stats = stats_of(norm, x.data() + begin, n);
    double drstd = 0, dmean = 0;
    for (size_t i = 0; i < n; ++i) {
      const double centered = x[begin + i] - stats.mean,
                   dxhat = dy[begin + i] * times_of(norm, weight[i]);
      drstd += dxhat * centered;
      dmean -= dxhat * stats.rstd;
      g.dweight[i] += dy[begin + i] * centered * stats.rstd;
      g.dbias[i] += dy[begin + i];
      g.dweight_magnitude[i] += std::abs(dy[begin + i] * centered * stats.rstd);
      g.dbias_magnitude[i] += std::abs(dy[begin + i]);
    }
    // rstd = (variance + eps)^-1/2; the mean of deviations is 0, so variance passes nothing on to
    // the mean. RMSNorm's mean is a constant.
    const double dvariance = -0.5 * drstd * stats.rstd * stats.rstd * stats.rstd;
    for (size_t i = 0; i < n; ++i) {
      const double centered = x[begin + i] - stats.mean,
                   dxhat = dy[begin + i] * times_of(norm, weight[i]);
      g.dx[begin + i] = dxhat * stats.rstd + dvariance * 2 * centered / count +
                        (norm == Norm::layernorm ? dmean / count : 0);
    }
  }
  return g;
}

HostTensor input_of(const Params& p) {
  HostTensor values = normals(p.rows, p.cols, 1, p.gap, p.scale, p.mean);
  for (int64_t row = 0; p.spikes && row < p.rows; ++row)
    for (int64_t begin = 0; begin < p.cols; begin += p.piece())
      values.set(row, begin + row % p.piece(), 1000 * p.scale);
  return values.as(p.type);
}

Case forward_case(Params p, bool in_place) {
  Case c;
  const HostTensor values = input_of(p);
  HostTensor weights = normals(1, p.piece(), 2, 0, 0.5f, p.weight_mean()).as(p.type);
  if (p.mean > 0) weights.fill(1);
  const int weight = c.input("weight", weights);
  const int bias = p.bias ? c.input("bias", normals(1, p.piece(), 3).as(p.type)) : -1;
  const int x = in_place ? c.output("y", values) : c.input("x", values);
  const int64_t y_gap = p.gap == 0 ? 0 : p.gap + 2;
  const int y = in_place ? x : c.output("y", HostTensor(p.rows, p.cols, y_gap, p.type).clear());
  c.run = [=](Call& call) {
    call.kernels().norm_forward(p.norm, call[x], p.groups, call[weight],
                                p.bias ? call[bias] : Tensor{}, kEps, call[y]);
  };
  c.expected = [=](const Case& in) {
    // Mean and variance err by sum_error of values of order 1; |xhat| <= 5, |weight| <= 3. The mean
    // of large values errs by as many sum_errors, and so does each deviation from it.
    // A spike's xhat is as large as the root of their number.
    const double steep = p.spikes ? std::sqrt(static_cast<double>(p.piece())) / 5 + 1 : 1;
    const double error = steep * (p.mean > 0 ? p.mean : 15) * sum_error(p.piece());
    const double relative = (p.mean > 0 ? p.mean : 4) * sum_error(p.piece());
    return std::vector{
        stored(p.type, close(y,
                             forward_of(p.norm, in[x].doubles(), in[weight].doubles(),
                                        p.bias ? in[bias].doubles() : Doubles()),
                             error, relative))};
  };
  if (in_place) c.twin = Twin{[=] { return forward_case(p, false); }, {{"y"}}};
  return c;
}

enum class Dx { overwrite, accumulate, onto_dy };

// `before`: with the sums of dx as it was.
Case backward_case(Params p, Dx mode, bool weights, bool before = false) {
  const bool accumulate = mode == Dx::accumulate, in_place = mode == Dx::onto_dy;
  const int64_t n = p.piece();
  Case c;
  const HostTensor gradient = normals(p.rows, p.cols, 4, p.gap == 0 ? 0 : p.gap + 1).as(p.type);
  const int x = c.input("x", input_of(p));
  const int weight = c.input("weight", normals(1, n, 2, 0, 0.5f, p.weight_mean()).as(p.type));
  const int dy = in_place ? c.output("dx", gradient) : c.input("dy", gradient);
  HostTensor old = normals(p.rows, p.cols, 5, p.gap).as(p.type);
  if (!accumulate) old.clear();
  const int dx = in_place ? dy : c.output("dx", old);
  const auto parameter = [&](const char* name, uint64_t seed) {
    HostTensor values = normals(1, n, seed).as(p.gradients);
    return c.output(name, accumulate ? values : values.clear());
  };
  const int dweight = weights ? parameter("dweight", 6) : -1;
  const int dbias = weights && p.bias ? parameter("dbias", 7) : -1;
  const int dbefore = before ? parameter("dbefore", 8) : -1;
  c.run = [=](Call& call) {
    Kernels& k = call.kernels();
    k.norm_backward(p.norm, call[x], p.groups, call[weight], kEps, call[dy], call[dx], accumulate,
                    dweight < 0 ? Tensor{} : call[dweight], dbias < 0 ? Tensor{} : call[dbias],
                    dbefore < 0 ? Tensor{} : call[dbefore], accumulate,
                    call.scratch(k.norm_backward_scratch_bytes(p.rows, p.cols, p.groups)));
  };
  c.expected = [=](const Case& in) {
    const Doubles xs = in[x].doubles(), ws = in[weight].doubles(), dys = in[dy].doubles();
    const Gradients g = backward_of(p.norm, xs, ws, dys);
    const auto with_old = [&](const Doubles& values, int tensor) {
      return accumulate ? plus(values, in[tensor].doubles()) : values;
    };
    // A single element has no variance: rstd is 1/sqrt(eps) and multiplies every rounding by 300.
    // The same curvature is in the differences' error.
    const double steep = n == 1 ? 1 / std::sqrt(kEps) : 3;
    const double dx_error = 15 * steep * sum_error(n);
    std::vector<Expected> all = {
        stored(p.type, close(dx, with_old(g.dx, dx), dx_error / p.scale, dx_error))};
    if (xs.size() <= 1500 && p.scale == 1) {
      const auto loss = [&](const Doubles& v) { return dot(dys, forward_of(p.norm, v, ws, {})); };
      const double error = dx_error + kDifferenceError * steep * steep;
      all.push_back(stored(p.type, close(dx, with_old(gradient_of(loss, xs), dx), error, error)));
    }
    // Sums over rows and groups: none of their terms goes through more roundings than there are
    // terms, and 4 besides; an error of |xhat| <= 5 is that of a sum of n.
    const double chain = static_cast<double>(p.rows * p.groups + 4) * kUnit;
    const auto parameter_bounds = [&](const Doubles& terms, int tensor, double of_xhat) {
      Doubles bounds = accumulate ? plus(magnitudes(in[tensor].doubles()), terms) : terms;
      for (size_t i = 0; i < terms.size(); ++i)
        bounds[i] = chain * bounds[i] + of_xhat * 5 * sum_error(n) * g.dbias_magnitude[i];
      return bounds;
    };
    if (dweight >= 0)
      all.push_back(stored(p.gradients, {dweight, with_old(g.dweight, dweight),
                                         parameter_bounds(g.dweight_magnitude, dweight, 1)}));
    if (dbias >= 0)
      all.push_back(stored(p.gradients, {dbias, with_old(g.dbias, dbias),
                                         parameter_bounds(g.dbias_magnitude, dbias, 0)}));
    if (dbefore >= 0) {
      Doubles sums = in[dbefore].doubles(), bounds = magnitudes(sums);
      const Doubles old_dx = in[dx].doubles();
      for (size_t i = 0; i < old_dx.size(); ++i) {
        sums[i % sums.size()] += old_dx[i];
        bounds[i % sums.size()] += std::abs(old_dx[i]);
      }
      for (double& bound : bounds) bound *= chain;
      all.push_back(stored(p.gradients, {dbefore, sums, bounds}));
    }
    return all;
  };
  if (in_place) c.twin = Twin{[=] { return backward_case(p, Dx::overwrite, weights); }, {{"dx"}}};
  if (before) c.twin = Twin{[=] { return backward_case(p, mode, weights); }, {{"dx"}}};
  return c;
}

void add(CaseList& list, const Params& p) {
  std::string shape = fmt::format("{} {}x{} in {} group{}{}{}",
                                  p.norm == Norm::layernorm ? "layernorm"
                                  : p.norm == Norm::rmsnorm ? "rmsnorm"
                                                            : "rmsnorm1p",
                                  p.rows, p.cols, p.groups, p.groups == 1 ? "" : "s",
                                  p.gap > 0 ? " strided" : "", p.bias ? " bias" : "");
  shape += type_suffix(p.type);
  if (p.scale != 1) shape += fmt::format(" times {}", p.scale);
  if (p.type != DType::f32)
    shape += fmt::format(", gradients of parameters {},", dtype_name(p.gradients));
  list.push_back({"norm", shape + " forward", [=] { return forward_case(p, false); }});
  list.push_back({"norm", shape + " forward in place", [=] { return forward_case(p, true); }});
  list.push_back(
      {"norm", shape + " backward", [=] { return backward_case(p, Dx::overwrite, true); }});
  list.push_back({"norm", shape + " backward accumulate",
                  [=] { return backward_case(p, Dx::accumulate, true); }});
  if (p.groups == 1)
    list.push_back({"norm", shape + " backward accumulate with sums of dx",
                    [=] { return backward_case(p, Dx::accumulate, true, true); }});
  list.push_back(
      {"norm", shape + " backward onto dy", [=] { return backward_case(p, Dx::onto_dy, true); }});
  list.push_back({"norm", shape + " backward of x alone",
                  [=] { return backward_case(p, Dx::overwrite, false); }});
}

void add_half_cases(CaseList& list, DType type) {
  for (const DType gradients : {type, DType::f32}) {
    const auto with = [&](Params p) {
      p.type = type;
      p.gradients = gradients;
      add(list, p);
    };
    with({Norm::layernorm, 5, 13, 1, 4, true});
    with({Norm::layernorm, 37, 131, 1, 0, true});
    with({Norm::rmsnorm, 19, 3 * 7, 3, 19, false});
    with({Norm::layernorm, 301, 5 * 103, 5, 0, true});
    with({Norm::rmsnorm, 1, 2 * 7001, 2, 0, false});
    with({Norm::rmsnorm1p, 37, 131, 1, 2, false});
    with({Norm::rmsnorm1p, 9, 1032, 1, 0, false});
    with({Norm::rmsnorm1p, 19, 3 * 7, 3, 19, false});
    with({Norm::layernorm, 37, 1032, 1, 0, false});
    with({Norm::layernorm, 0, 7, 1, 0, true});
  }
  // Every size of team, with several rows for each.
  for (const int64_t cols : {768, 800, 1600, 2056, 4104}) {
    Params p{Norm::layernorm, 67, cols, 1, 0, true};
    p.type = type;
    add(list, p);
  }
  // Up to f16's largest numbers, whose squares are beyond them; and spikes as activations have.
  Params large{Norm::layernorm, 7, 131, 1, 3, true};
  large.type = large.gradients = type;
  large.scale = 8192;
  add(list, large);
  Params spikes{Norm::rmsnorm, 5, 1031, 1, 0, false};
  spikes.type = type;
  spikes.spikes = true;
  spikes.scale = 32;
  list.push_back({"norm", "rmsnorm 5x1031 of spikes" + type_suffix(type),
                  [=] { return forward_case(spikes, false); }});
}

}  // namespace

void add_norm_cases(CaseList& list) {
  add(list, {Norm::layernorm, 3, 1, 1, 0, true});
  add(list, {Norm::layernorm, 5, 13, 1, 4, true});
  add(list, {Norm::layernorm, 37, 31, 1, 0, false});
  add(list, {Norm::layernorm, 2, 131, 1, 9, true});
  add(list, {Norm::rmsnorm, 7, 67, 1, 0, false});
  add(list, {Norm::rmsnorm, 4, 16, 1, 0, false});
  add(list, {Norm::rmsnorm, 19, 3 * 7, 3, 19, false});
  add(list, {Norm::layernorm, 3, 4 * 16, 4, 0, true});
  add(list, {Norm::layernorm, 301, 5 * 103, 5, 0, true});  // many chunks
  add(list, {Norm::rmsnorm, 1, 2 * 70001, 2, 0, false});   // long rows
  add(list, {Norm::rmsnorm1p, 7, 67, 1, 0, false});
  add(list, {Norm::rmsnorm1p, 19, 3 * 7, 3, 19, false});
  add(list, {Norm::rmsnorm1p, 301, 5 * 103, 5, 0, false});
  add(list, {Norm::layernorm, 0, 7, 1, 0, true});
  // A large mean does not drown the variance.
  list.push_back({"norm", "layernorm 3x257 around 1000", [] {
                    return forward_case({Norm::layernorm, 3, 257, 1, 0, false, 1000}, false);
                  }});
  for (const DType type : kHalfTypes) add_half_cases(list, type);
}

void add_norm_benchmarks(CaseList& list) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const Norm norm : {Norm::layernorm, Norm::rmsnorm}) {
      const Params p{norm, 1024, 768, 1, 0, norm == Norm::layernorm, 0, type};
      const char* name = norm == Norm::layernorm ? "layernorm" : "rmsnorm";
      list.push_back({"norm", fmt::format("{} forward 1024x768{}", name, type_suffix(type)),
                      [=] { return forward_case(p, false); }});
      list.push_back({"norm", fmt::format("{} backward 1024x768{}", name, type_suffix(type)),
                      [=] { return backward_case(p, Dx::accumulate, true); }});
    }
}

}  // namespace onefold::cases
