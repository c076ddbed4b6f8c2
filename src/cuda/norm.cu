#include "cuda/norm.cuh"

namespace onefold::cuda {
namespace {

// x and dst may be the same memory: a team has read its piece before it writes.
template <class T, int kTeam, int kHeld>
__global__ void __launch_bounds__(kTeamBlock<kTeam>)
    forward_kernel(bool centered, View<T> x, Pieces pieces, const T* weight, const T* bias,
                   float eps, View<T> dst, bool is_aligned) {
  const int64_t index = my_piece<kTeam>();
  if (index >= pieces.count) return;
  using P = Part<T, kTeam, kHeld>;
  constexpr int kElems = P::kElems;
  const P part(piece_of(x, pieces, index), pieces.size, is_aligned);
  T* out = piece_of(dst, pieces, index);
  const Stats stats = stats_of<kTeam>(centered, part, pieces.size, eps);
  part.each([&](int64_t first, const float(&src)[kElems], int) {
    float w[kElems], b[kElems], values[kElems];
    load_pack<typename P::Unit>(weight, first, pieces.size, is_aligned).to(w);
    if (bias) load_pack<typename P::Unit>(bias, first, pieces.size, is_aligned).to(b);
#pragma unroll
    for (int k = 0; k < kElems; ++k) {
      const float xhat = normalized(src[k], stats);
      values[k] = bias ? fmaf(xhat, w[k], b[k]) : xhat * w[k];
    }
    store_pack<T>(values, out, first, pieces.size, is_aligned);
  });
}

}  // namespace

void norm_forward(bool centered, Matrix x, int64_t groups, Vector weight, Vector bias, float eps,
                  Matrix dst, cudaStream_t stream) {
  const Pieces pieces(x, groups);
  const bool is_aligned = all_aligned(x, weight, bias, dst) && pieces_aligned(pieces, x.type);
  with_type(x.type, [&](auto element) {
    using T = decltype(element);
    with_team<T>(pieces, [&](auto team, auto held) {
      constexpr int kTeam = decltype(team)::value;
      launch(forward_kernel<T, kTeam, decltype(held)::value>, teams_grid<kTeam>(pieces),
             kTeamBlock<kTeam>, 0, stream, centered, view<T>(x), pieces,
             static_cast<const T*>(weight.data), static_cast<const T*>(bias.data), eps,
             view<T>(dst), is_aligned);
    });
  });
}

}  // namespace onefold::cuda
