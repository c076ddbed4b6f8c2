#include "kernels/cpu/convert.h"

#include "kernels/cpu/types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/convert.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class From, class To>
HWY_INLINE void ConvertRows(const From* src, int64_t src_stride, To* dst, int64_t dst_stride,
                            int64_t rows, int64_t cols) {
  const DF d;
  for (int64_t row = 0; row < rows; ++row) {
    const From* from = src + row * src_stride;
    To* to = dst + row * dst_stride;
    Sweep(static_cast<size_t>(cols),
          [&](size_t i, auto io) HWY_ATTR { io.Store(io.Load(d, from + i), d, to + i); });
  }
}

void WidenRows(const Tensor& src, float* dst, int64_t stride) {
  with_type(src.dtype, "widen_rows", [&](auto type) HWY_ATTR {
    ConvertRows(src.as<decltype(type)>(), src.stride, dst, stride, src.rows, src.cols);
  });
}

void NarrowRows(const float* src, int64_t stride, const Tensor& dst) {
  with_type(dst.dtype, "narrow_rows", [&](auto type) HWY_ATTR {
    ConvertRows(src, stride, dst.as<decltype(type)>(), dst.stride, dst.rows, dst.cols);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(WidenRows);
HWY_EXPORT(NarrowRows);
}  // namespace

void widen_rows(const Tensor& src, float* dst, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(WidenRows)(src, dst, stride);
}

void narrow_rows(const float* src, int64_t stride, const Tensor& dst) {
  HWY_DYNAMIC_DISPATCH(NarrowRows)(src, stride, dst);
}

}  // namespace onefold::cpu
#endif
