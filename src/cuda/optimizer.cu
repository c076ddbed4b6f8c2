// Clipping's factor, and optimizer steps: one pass over flat tensors, bound by memory.
#include "cuda/launch.cuh"
#include "cuda/ops.h"

namespace onefold::cuda {
namespace {

__global__ void clip_kernel(ClipArgs args) {
  double squares = 0;
  bool finite = true;
  for (int64_t i = 0; i < args.count; ++i) {
    const double sum = args.sums[i];
    if (i < args.squares) squares += sum;
    finite = finite && isfinite(sum);
  }
  const double norm = sqrt(squares);
  const double factor = args.limit / (norm + args.eps);
  *args.norm = norm;
  // As std::min(1.0, factor): 1 where factor is NaN.
  *args.factor = args.limit > 0 ? static_cast<float>(factor < 1.0 ? factor : 1.0) : 1.0f;
  *args.finite = finite && isfinite(norm) ? 1 : 0;
}

// p = p (1 - lr wd) - lr/bc1 * m / (sqrt(v / bc2) + eps). With l2, g + wd p takes the gradient's
// place, and p is not shrunk.
__global__ void adamw_kernel(AdamWFactors f, ControlFlags control, int64_t elems, float* p,
                             const float* g, float* m, float* v) {
  if (*control.finite == 0) return;
  const float scale = *control.factor;
  const Piece piece(elems);
  float params[kEach], means[kEach], squares[kEach];
  piece.each([&](int i, int64_t at) {
    float gradient = g[at] * scale;
    if (f.l2 != 0) gradient = fmaf(f.l2, p[at], gradient);
    means[i] = fmaf(f.beta1, m[at], f.rest1 * gradient);
    squares[i] = fmaf(f.beta2, v[at], f.rest2 * (gradient * gradient));
    const float denominator = sqrtf(squares[i] * f.inv_bc2) + f.eps;
    params[i] = fmaf(-f.step, means[i] / denominator, p[at] * f.keep);
  });
  piece.each([&](int i, int64_t at) {
    m[at] = means[i];
    v[at] = squares[i];
    p[at] = params[i];
  });
}

__global__ void sgd_kernel(SgdFactors f, ControlFlags control, int64_t elems, float* p,
                           const float* g, float* momentum) {
  if (*control.finite == 0) return;
  const float scale = *control.factor;
  const Piece piece(elems);
  float params[kEach], moved[kEach];
  piece.each([&](int i, int64_t at) {
    const float old = p[at];
    float direction = fmaf(f.decay, old, g[at] * scale);
    if (momentum) {
      moved[i] = f.first ? direction : fmaf(f.momentum, momentum[at], direction);
      direction = f.nesterov ? fmaf(f.momentum, moved[i], direction) : moved[i];
    }
    params[i] = fmaf(-f.rate, direction, old);
  });
  piece.each([&](int i, int64_t at) {
    if (momentum) momentum[at] = moved[i];
    p[at] = params[i];
  });
}

}  // namespace

void clip(const ClipArgs& args, cudaStream_t stream) {
  launch(clip_kernel, grid_of(1), 1, 0, stream, args);
}

void adamw(const AdamWFactors& factors, const ControlFlags& control, int64_t elems, float* params,
           const float* grads, float* moment1, float* moment2, cudaStream_t stream) {
  launch(adamw_kernel, pieces_grid(1, elems), kThreads, 0, stream, factors, control, elems, params,
         grads, moment1, moment2);
}

void sgd(const SgdFactors& factors, const ControlFlags& control, int64_t elems, float* params,
         const float* grads, float* momentum, cudaStream_t stream) {
  launch(sgd_kernel, pieces_grid(1, elems), kThreads, 0, stream, factors, control, elems, params,
         grads, momentum);
}

}  // namespace onefold::cuda
