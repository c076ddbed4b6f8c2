#include "cuda/cuda_experts.h"

#include <algorithm>

#include "base/error.h"
#include "cuda/axis_kernels.h"
#include "cuda/experts.h"
#include "cuda/grouped_wgmma.h"
#include "cuda/tensor_view.h"

namespace onefold::cuda {
namespace {

// What a kernel does not use may be empty.
RoutingArgs routing_args(const Routing& r) {
  const auto ints = [](const Tensor& t) { return t.empty() ? nullptr : t.i32(); };
  return {r.experts.rows,
          r.choices(),
          r.counts.elems(),
          r.sources.elems(),
          r.experts.data ? ints(r.experts) : nullptr,
          r.weights.empty() ? nullptr : r.weights.f32(),
          ints(r.places),
          ints(r.sources),
          ints(r.offsets),
          ints(r.counts)};
}

RouteArgs route_args(const Route& r) {
  const Routing& to = r.routing;
  const int64_t tokens = r.logits.rows, experts = r.logits.cols, k = to.choices();
  require(k >= 1 && k <= experts, "route: {} choices of {} experts", k, experts);
  for (const Tensor& each : {to.experts, to.weights, to.places})
    require(each.rows == tokens && each.cols == k && each.contiguous(), "route: {}x{} for {}x{}",
            each.rows, each.cols, tokens, k);
  require(to.sources.elems() == tokens * k && to.counts.elems() == experts &&
              to.offsets.elems() == experts + 1,
          "route: {} sources, {} counts and {} offsets for {}x{} choices of {} experts",
          to.sources.elems(), to.counts.elems(), to.offsets.elems(), tokens, k, experts);
  require(tokens * k <= INT32_MAX && r.capacity >= 0, "route: {} choices", tokens * k);
  return {r.logits.f32(),
          r.logits.stride,
          r.scores == RouterScores::sigmoid,
          r.normalised,
          static_cast<int32_t>(std::min<int64_t>(r.capacity, INT32_MAX)),
          routing_args(to)};
}

void require_rows(const char* kernel, const Routing& routing, const Tensor& rows) {
  require(rows.rows == routing.sources.elems(), "{}: {} rows for {} choices", kernel, rows.rows,
          routing.sources.elems());
}

void require_one_type(const char* kernel, const Tensor& a, const Tensor& b) {
  require(b.empty() || a.dtype == b.dtype, "{}: {} beside {}", kernel, dtype_name(b.dtype),
          dtype_name(a.dtype));
}

}  // namespace

void run_route(const Route& args, cudaStream_t stream) { route(route_args(args), stream); }

void run_route_backward(const RouteBackward& args, int64_t scratch_bytes, cudaStream_t stream) {
  const Tensor& logits = args.forward.logits;
  const RouteArgs forward = route_args(args.forward);
  require(args.dlogits.rows == logits.rows && args.dlogits.cols == logits.cols &&
              args.dweights.rows == logits.rows &&
              args.dweights.cols == args.forward.routing.choices(),
          "route: dlogits {}x{} and dweights {}x{} for {}x{}", args.dlogits.rows, args.dlogits.cols,
          args.dweights.rows, args.dweights.cols, logits.rows, logits.cols);
  require(args.load.empty() || args.load.elems() == load_elems(logits.cols),
          "route: a load of {} numbers for {} experts", args.load.elems(), logits.cols);
  require(args.scratch.elems() >= scratch_bytes, "route: scratch of {} bytes, {} needed",
          args.scratch.elems(), scratch_bytes);
  require(!args.scale.empty() || (args.balance == 0 && args.z == 0),
          "route: losses of its own without a scale");
  const Tensor& parts = args.of_parts;
  require(parts.empty() || (parts.cols == logits.cols && parts.contiguous()),
          "route: parts' choices of {} experts for {}", parts.cols, logits.cols);
  route_backward(
      {forward, args.dweights.f32(), args.dweights.stride, args.balance, args.z,
       parts.empty() ? nullptr : parts.i32(), parts.empty() ? 1 : parts.rows,
       args.scale.empty() ? nullptr : args.scale.f32(), view(args.dlogits),
       args.load.empty() ? nullptr : args.load.f64(), static_cast<double*>(args.scratch.data)},
      stream);
}

void run_gather_rows(Tensor x, const Routing& routing, Tensor dst, cudaStream_t stream) {
  require_rows("gather_rows", routing, dst);
  require(x.cols == dst.cols && x.dtype == dst.dtype && x.rows == routing.experts.rows,
          "gather_rows: {}x{} to {}x{}", x.rows, x.cols, dst.rows, dst.cols);
  gather_rows(view(x), routing_args(routing), view(dst), stream);
}

void run_combine_rows(Tensor rows, const Routing& routing, bool weighted, Tensor base, Tensor dst,
                      cudaStream_t stream) {
  require_rows("combine_rows", routing, rows);
  require(dst.rows == routing.experts.rows && dst.cols == rows.cols &&
              (base.empty() || (base.rows == dst.rows && base.cols == dst.cols)),
          "combine_rows: {}x{} to {}x{}", rows.rows, rows.cols, dst.rows, dst.cols);
  require_one_type("combine_rows", dst, rows);
  require_one_type("combine_rows", dst, base);
  Matrix added = view(dst);
  if (base.empty())
    added.data = nullptr;
  else
    added = view(base);
  combine_rows(view(rows), routing_args(routing), weighted, added, view(dst), stream);
}

void run_weigh_rows(const Routing& routing, Tensor dy, Tensor x, Tensor dweights,
                    cudaStream_t stream) {
  require_rows("weigh_rows", routing, x);
  require(dy.empty() == dweights.empty() &&
              (dy.empty() || (dy.rows == x.rows && dy.cols == x.cols && dweights.contiguous() &&
                              dweights.elems() == x.rows)),
          "weigh_rows: dy {}x{}, dweights {}x{} for {}x{}", dy.rows, dy.cols, dweights.rows,
          dweights.cols, x.rows, x.cols);
  require_one_type("weigh_rows", x, dy);
  Matrix gradient = view(x);
  if (dy.empty())
    gradient.data = nullptr;
  else
    gradient = view(dy);
  weigh_rows(routing_args(routing), gradient, view(x), dweights.empty() ? nullptr : dweights.f32(),
             stream);
}

void run_spread_rows(const SpreadRows& args, cudaStream_t stream) {
  const Routing& from = args.from;
  require(args.blocks >= 1, "spread_rows: {} blocks", args.blocks);
  const int64_t all = args.sources.elems(), rows = all / args.blocks;
  require(rows * args.blocks == all && from.count() % args.blocks == 0 &&
              args.numbers.rows == all && args.places.elems() == from.places.elems() &&
              args.places.contiguous() && (args.needed.empty() || args.needed.elems() == 2),
          "spread_rows: {} rows with {} numbers and {} places, of {} choices of {} experts, in {} "
          "blocks",
          all, args.numbers.rows, args.places.elems(), from.places.elems(), from.count(),
          args.blocks);
  spread_rows(
      {routing_args(from), args.blocks, rows, args.places.i32(), args.sources.i32(),
       args.numbers.i32(), args.numbers.stride, args.needed.empty() ? nullptr : args.needed.i32()},
      stream);
}

void run_sort_rows(Tensor numbers, const Routing& to, cudaStream_t stream) {
  require(numbers.cols == 1 && to.experts.elems() == numbers.rows && to.choices() == 1 &&
              to.places.elems() == numbers.rows && to.sources.elems() == numbers.rows &&
              to.offsets.elems() == to.count() + 1,
          "sort_rows: {} numbers for {} rows of {} experts", numbers.rows, to.sources.elems(),
          to.count());
  sort_rows(numbers.i32(), numbers.stride, routing_args(to), stream);
}

void run_grouped_gemm(const GroupedGemm& g, cudaStream_t stream) {
  const int64_t groups = g.groups();
  const bool fits =
      g.a_transposed
          ? g.b.rows == g.a.rows && g.dst.rows == groups * g.a.cols && g.dst.cols == g.b.cols
          : g.dst.rows == g.a.rows &&
                g.b.rows == groups * (g.b_transposed ? g.dst.cols : g.a.cols) &&
                g.b.cols == (g.b_transposed ? g.a.cols : g.dst.cols);
  require(groups > 0 && fits, "grouped_gemm: a {}x{}{}, b {}x{}{}, dst {}x{}, {} groups", g.a.rows,
          g.a.cols, g.a_transposed ? "'" : "", g.b.rows, g.b.cols, g.b_transposed ? "'" : "",
          g.dst.rows, g.dst.cols, groups);
  require(!(g.a_transposed && g.b_transposed) && (g.a_transposed || !g.accumulate),
          "grouped_gemm: no such product");
  require(g.a.dtype == g.b.dtype && (g.dst.dtype == g.a.dtype || g.dst.dtype == DType::f32),
          "grouped_gemm: {} and {} to {}", dtype_name(g.a.dtype), dtype_name(g.b.dtype),
          dtype_name(g.dst.dtype));
  if (g.dst.empty()) return;
  const GroupedArgs args{view(g.a), view(g.b),      view(g.dst),    g.offsets.i32(),
                         groups,    g.a_transposed, g.b_transposed, g.accumulate};
  if (!grouped_gemm_wgmma(args, stream)) grouped_gemm(args, stream);
  if (!g.a_transposed) clear_rows(args.dst, args.offsets + groups, stream);
}

void run_jitter(Tensor x, const Dropout& noise, int64_t length, Tensor dst, cudaStream_t stream) {
  require(dst.rows == x.rows && dst.cols == x.cols && dst.dtype == x.dtype,
          "jitter: {}x{} to {}x{}", x.rows, x.cols, dst.rows, dst.cols);
  require(length > 0, "jitter: sequences of {}", length);
  require_places(noise.places, x.rows);
  jitter(view(x), {noise.key, noise.samples.i64(), 0, 0},
         noise.places.empty() ? nullptr : noise.places.i32(), noise.rate, length, view(dst),
         stream);
}

}  // namespace onefold::cuda
