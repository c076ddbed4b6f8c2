#include "cuda/axis_kernels.h"

#include "base/error.h"
#include "cuda/tensor_view.h"

namespace onefold::cuda {
namespace {

void require_stats(const Tensor& logits, const Tensor& targets, const Tensor& stats) {
  require(targets.elems() == logits.rows && stats.cols == logits.rows && stats.rows > 0 &&
              stats.rows % kShareStats == 0 && stats.contiguous(),
          "share_softmax: {} targets and stats of {}x{} for {} rows", targets.elems(), stats.rows,
          stats.cols, logits.rows);
}

}  // namespace

void share_softmax(Tensor logits, Tensor targets, Tensor stats, cudaStream_t stream) {
  static_assert(kShareStats == 3);
  require_stats(logits, targets, stats);
  share_softmax(view(logits), targets.i32(), stats.f32(), stream);
}

void share_cross_entropy(Tensor logits, Tensor targets, Tensor stats, Tensor gradient_scale,
                         Tensor losses, cudaStream_t stream) {
  require_stats(logits, targets, stats);
  require(losses.elems() == logits.rows, "share_cross_entropy: {} losses for {} rows",
          losses.elems(), logits.rows);
  share_cross_entropy(view(logits), targets.i32(), stats.f32(), stats.rows / kShareStats,
                      gradient_scale.empty() ? nullptr : gradient_scale.f32(), losses.flat().f32(),
                      stream);
}

void merge_attention(Tensor out, Tensor lse, Tensor more, Tensor more_lse, cudaStream_t stream) {
  require(more.rows == out.rows && more.cols == out.cols && lse.cols == out.rows &&
              more_lse.rows == lse.rows && more_lse.cols == lse.cols && lse.rows > 0 &&
              out.cols % lse.rows == 0 && out.dtype == more.dtype,
          "attention: {}x{} by {}x{} and {}x{} by {}x{}", out.rows, out.cols, lse.rows, lse.cols,
          more.rows, more.cols, more_lse.rows, more_lse.cols);
  merge_attention(view(out), {lse.f32(), lse.rows, lse.stride}, view(more),
                  {more_lse.f32(), more_lse.rows, more_lse.stride}, stream);
}

void require_places(const Tensor& places, int64_t rows) {
  require(places.empty() || places.elems() == rows, "the places of {} rows for {}", places.elems(),
          rows);
}

}  // namespace onefold::cuda
