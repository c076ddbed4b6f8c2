#include "kernels/cpu/attention_tiles.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_tiles.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/dropout-inl.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE float RowMax(const float* row, size_t n) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF top[4] = {lowest, lowest, lowest, lowest};
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes)
    for (size_t k = 0; k < 4; ++k) top[k] = hn::Max(top[k], hn::LoadU(d, row + i + k * lanes));
  for (; i + lanes <= n; i += lanes) top[0] = hn::Max(top[0], hn::LoadU(d, row + i));
  float best =
      hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(top[0], top[1]), hn::Max(top[2], top[3]))));
  for (; i < n; ++i) best = std::max(best, row[i]);
  return best;
}

// row[i] = exp(row[i] * scale - shift); returns the sum.
HWY_INLINE float ExpRow(float* HWY_RESTRICT row, size_t n, float scale, float shift) {
  const DF d;
  VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  const VF factor = hn::Set(d, scale), minus = hn::Set(d, shift);
  SweepBy4(n, [&](size_t i, auto io, auto k) HWY_ATTR {
    const VF e = Exp<kNoOverflow>(d, hn::MulSub(io.Load(d, row + i), factor, minus));
    io.Store(e, d, row + i);
    sums[k] = hn::Add(sums[k], io.OnlyValid(d, e));
  });
  return Total(sums);
}

HWY_INLINE void ScaleRow(float* HWY_RESTRICT row, size_t n, float factor) {
  const DF d;
  const VF f = hn::Set(d, factor);
  Sweep(n,
        [&](size_t i, auto io) HWY_ATTR { io.Store(hn::Mul(io.Load(d, row + i), f), d, row + i); });
}

// One row of a tile.
HWY_INLINE void SoftmaxOfRow(const ScoreTile& tile, int64_t r, float scale, bool first,
                             float* maxima, float* sums, float& shrink) {
  float* row = tile.data + r * kTile;
  const auto hidden = static_cast<size_t>(tile.hidden(r)),
             seen = static_cast<size_t>(tile.visible(r));
  std::fill(row, row + hidden, 0.0f);
  std::fill(row + seen, row + tile.cols, 0.0f);
  shrink = 1;
  if (seen == hidden) return;
  const float top = std::max(maxima[r], scale * RowMax(row + hidden, seen - hidden));
  // A maximum that stays is the usual case, and e^0 takes as long as any other.
  shrink = first ? 0.0f : maxima[r] == top ? 1.0f : std::exp(maxima[r] - top);
  sums[r] = sums[r] * shrink + ExpRow(row + hidden, seen - hidden, scale, top);
  maxima[r] = top;
}

// Four vectors' lanes, each taken together by `op`: four results, in every block of 128 bits.
template <class Op>
HWY_INLINE VF TakenTogether(const VF (&v)[4], const Op& op) {
  const DF d;
  const hn::RepartitionToWide<hn::RebindToUnsigned<DF>> pairs;
  const auto halved = [&](VF a, VF b) HWY_ATTR {
    return hn::BitCast(pairs, op(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b)));
  };
  const auto low = halved(v[0], v[1]), high = halved(v[2], v[3]);
  VF all = op(hn::BitCast(d, hn::InterleaveLower(pairs, low, high)),
              hn::BitCast(d, hn::InterleaveUpper(pairs, low, high)));
  if constexpr (hn::MaxLanes(d) >= 8) all = op(all, hn::SwapAdjacentBlocks(all));
  if constexpr (hn::MaxLanes(d) >= 16) all = op(all, hn::ConcatLowerUpper(d, all, all));
  return all;
}

// Four rows that see at least one column each, from the first on, and each no less than the one
// before. Their chains of operations run beside each other, and what a row has beside its columns
// is done once.
void SoftmaxOfFour(const ScoreTile& tile, int64_t r, float scale, bool first, float* maxima,
                   float* sums, float* shrinks) {
  const DF d;
  const size_t lanes = hn::Lanes(d), cols = static_cast<size_t>(tile.cols),
               whole = static_cast<size_t>(tile.visible(r)) / lanes * lanes;
  float* const rows[4] = {tile.data + r * kTile, tile.data + (r + 1) * kTile,
                          tile.data + (r + 2) * kTile, tile.data + (r + 3) * kTile};
  // A tile's rows are as long as whole vectors, so more than `cols` may be loaded and stored.
  const auto seen_at = [&](int k, size_t i) HWY_ATTR {
    const auto seen = static_cast<size_t>(tile.visible(r + k));
    return hn::FirstN(d, seen > i ? std::min(lanes, seen - i) : 0);
  };
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF top[4] = {lowest, lowest, lowest, lowest};
  size_t i = 0;
  for (; i < whole; i += lanes)
    for (int k = 0; k < 4; ++k) top[k] = hn::Max(top[k], hn::LoadU(d, rows[k] + i));
  for (; i < cols; i += lanes)
    for (int k = 0; k < 4; ++k)
      top[k] = hn::IfThenElse(seen_at(k, i), hn::Max(top[k], hn::LoadU(d, rows[k] + i)), top[k]);
  const VF factor = hn::Set(d, scale), before = hn::LoadDup128(d, maxima + r);
  const auto larger = [](VF a, VF b) HWY_ATTR { return hn::Max(a, b); };
  const VF tops = hn::Max(before, hn::Mul(factor, TakenTogether(top, larger)));
  const VF minus[4] = {hn::Broadcast<0>(tops), hn::Broadcast<1>(tops), hn::Broadcast<2>(tops),
                       hn::Broadcast<3>(tops)};
  VF parts[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  const auto exp_at = [&](int k, size_t at) HWY_ATTR {
    return Exp<kNoOverflow>(d, hn::MulSub(hn::LoadU(d, rows[k] + at), factor, minus[k]));
  };
  for (i = 0; i < whole; i += lanes)
    for (int k = 0; k < 4; ++k) {
      const VF e = exp_at(k, i);
      hn::StoreU(e, d, rows[k] + i);
      parts[k] = hn::Add(parts[k], e);
    }
  for (; i < cols; i += lanes)
    for (int k = 0; k < 4; ++k) {
      const VF e = hn::IfThenElseZero(seen_at(k, i), exp_at(k, i));
      hn::StoreU(e, d, rows[k] + i);
      parts[k] = hn::Add(parts[k], e);
    }
  const VF shrink = first ? hn::Zero(d) : Exp<kNoOverflow>(d, hn::Sub(before, tops));
  const auto sum = [](VF a, VF b) HWY_ATTR { return hn::Add(a, b); };
  const hn::CappedTag<float, 4> four;
  const auto store = [&](VF v, float* to) HWY_ATTR {
    HWY_ALIGN float all[hn::MaxLanes(d)];
    hn::Store(v, d, all);
    hn::StoreU(hn::Load(four, all), four, to);
  };
  store(hn::MulAdd(hn::LoadDup128(d, sums + r), shrink, TakenTogether(parts, sum)), sums + r);
  store(tops, maxima + r);
  store(shrink, shrinks);
}

void OnlineSoftmax(const ScoreTile& tile, float scale, bool first, const TileDropout& dropout,
                   float* maxima, float* sums, float* out, int64_t out_stride, int64_t head_dim) {
  HWY_ALIGN float multipliers[kTile];
  for (int64_t begin = 0; begin < tile.rows;) {
    // Rows of a document or a window begin no earlier than those before them.
    const bool four =
        begin + 4 <= tile.rows && tile.visible(begin) > 0 && tile.hidden(begin + 3) == 0;
    const int64_t end = begin + (four ? 4 : 1);
    float shrinks[4];
    if (four)
      SoftmaxOfFour(tile, begin, scale, first, maxima, sums, shrinks);
    else
      SoftmaxOfRow(tile, begin, scale, first, maxima, sums, shrinks[0]);
    for (int64_t r = begin; r < end; ++r) {
      if (!first && shrinks[r - begin] != 1.0f)
        ScaleRow(out + r * out_stride, static_cast<size_t>(head_dim), shrinks[r - begin]);
      if (dropout.rate > 0) {
        const auto seen = static_cast<size_t>(tile.visible(r));
        KeepMask(dropout.key, dropout.sample, dropout.rate)
            .FillMultipliers(dropout.first + static_cast<uint64_t>(r) * dropout.row_step, seen,
                             multipliers);
        float* row = tile.data + r * kTile;
        for (auto i = static_cast<size_t>(tile.hidden(r)); i < seen; ++i) row[i] *= multipliers[i];
      }
    }
    begin = end;
  }
}

void FinishRows(int64_t rows, const float* maxima, const float* sums, float* out,
                int64_t out_stride, int64_t head_dim, float* lse) {
  for (int64_t r = 0; r < rows; ++r) {
    ScaleRow(out + r * out_stride, static_cast<size_t>(head_dim), 1.0f / sums[r]);
    lse[r] = maxima[r] + std::log(sums[r]);
  }
}

void ScaleTile(float* tile, int64_t rows, int64_t cols, float factor) {
  for (int64_t r = 0; r < rows; ++r) ScaleRow(tile + r * kTile, static_cast<size_t>(cols), factor);
}

void CapTile(float* tile, int64_t rows, int64_t cols, float cap) {
  const DF d;
  const VF times = hn::Set(d, cap), inverse = hn::Set(d, 1.0f / cap);
  for (int64_t r = 0; r < rows; ++r)
    Sweep(static_cast<size_t>(cols), [&](size_t i, auto io) HWY_ATTR {
      const VF x = io.Load(d, tile + r * kTile + i);
      io.Store(hn::Mul(times, Tanh(d, hn::Mul(x, inverse))), d, tile + r * kTile + i);
    });
}

void BiasTile(const ScoreTile& tile, float slope) {
  const DF d;
  const VF factor = hn::Set(d, slope);
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* row = tile.data + r * kTile;
    const int64_t own = tile.visible_in_row0 + r - 1;
    Sweep(static_cast<size_t>(tile.cols), [&](size_t i, auto io) HWY_ATTR {
      const VF behind = hn::Iota(d, static_cast<float>(static_cast<int64_t>(i) - own));
      io.Store(hn::MulAdd(factor, behind, io.Load(d, row + i)), d, row + i);
    });
  }
}

template <class T>
HWY_INLINE void RowDotsOf(const T* a, int64_t a_stride, const T* b, int64_t b_stride, int64_t rows,
                          size_t n, float* dots) {
  const DF d;
  for (int64_t r = 0; r < rows; ++r) {
    VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    SweepBy4(n, [&](size_t i, auto io, auto k) HWY_ATTR {
      sums[k] =
          hn::MulAdd(io.Load(d, a + r * a_stride + i), io.Load(d, b + r * b_stride + i), sums[k]);
    });
    dots[r] = Total(sums);
  }
}

void RowDots(const Tensor& a, const Tensor& b, float* dots) {
  with_type(a.dtype, "attention", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    RowDotsOf<T>(a.as<T>(), a.stride, b.as<T>(), b.stride, a.rows, static_cast<size_t>(a.cols),
                 dots);
  });
}

void BackwardTile(const ScoreTile& tile, float score_scale, float* gradient, const float* lse,
                  const float* delta, float scale, float cap, const TileDropout& dropout) {
  const DF d;
  HWY_ALIGN float multipliers[kTile];
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* HWY_RESTRICT p = tile.data + r * kTile;
    float* HWY_RESTRICT g = gradient + r * kTile;
    const auto hidden = static_cast<size_t>(tile.hidden(r)),
               seen = static_cast<size_t>(tile.visible(r));
    std::fill(p, p + hidden, 0.0f);
    std::fill(g, g + hidden, 0.0f);
    std::fill(p + seen, p + tile.cols, 0.0f);
    std::fill(g + seen, g + tile.cols, 0.0f);
    const VF shift = hn::Set(d, lse[r]), dot = hn::Set(d, delta[r]), factor = hn::Set(d, scale),
             score_factor = hn::Set(d, score_scale);
    if (dropout.rate > 0)
      KeepMask(dropout.key, dropout.sample, dropout.rate)
          .FillMultipliers(dropout.first + static_cast<uint64_t>(r) * dropout.row_step, seen,
                           multipliers);
    Sweep(seen - hidden, [&](size_t k, auto io) HWY_ATTR {
      const size_t i = hidden + k;
      const VF score = io.Load(d, p + i);
      VF probability = Exp<kNoOverflow>(d, hn::MulSub(score, score_factor, shift));
      VF dprobability = io.Load(d, g + i);
      VF weight = probability;
      if (dropout.rate > 0) {
        const VF multiplier = io.Load(d, multipliers + i);
        weight = hn::Mul(weight, multiplier);
        dprobability = hn::Mul(dprobability, multiplier);
      }
      io.Store(weight, d, p + i);
      VF dscore = hn::Mul(hn::Mul(probability, hn::Sub(dprobability, dot)), factor);
      if (cap > 0) {
        const VF share = hn::Mul(score, hn::Set(d, 1.0f / cap));
        dscore = hn::NegMulAdd(hn::Mul(share, share), dscore, dscore);
      }
      io.Store(dscore, d, g + i);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(OnlineSoftmax);
HWY_EXPORT(FinishRows);
HWY_EXPORT(ScaleTile);
HWY_EXPORT(CapTile);
HWY_EXPORT(BiasTile);
HWY_EXPORT(RowDots);
HWY_EXPORT(BackwardTile);
}  // namespace

void online_softmax(const ScoreTile& tile, float scale, bool first, const TileDropout& dropout,
                    float* maxima, float* sums, float* out, int64_t out_stride, int64_t head_dim) {
  HWY_DYNAMIC_DISPATCH(OnlineSoftmax)
  (tile, scale, first, dropout, maxima, sums, out, out_stride, head_dim);
}
void finish_rows(int64_t rows, const float* maxima, const float* sums, float* out,
                 int64_t out_stride, int64_t head_dim, float* lse) {
  HWY_DYNAMIC_DISPATCH(FinishRows)(rows, maxima, sums, out, out_stride, head_dim, lse);
}
void scale_tile(const ScoreTile& tile, float factor) {
  HWY_DYNAMIC_DISPATCH(ScaleTile)(tile.data, tile.rows, tile.cols, factor);
}
void cap_tile(const ScoreTile& tile, float cap) {
  HWY_DYNAMIC_DISPATCH(CapTile)(tile.data, tile.rows, tile.cols, cap);
}
void bias_tile(const ScoreTile& tile, float slope) { HWY_DYNAMIC_DISPATCH(BiasTile)(tile, slope); }
void row_dots(const Tensor& a, const Tensor& b, float* dots) {
  HWY_DYNAMIC_DISPATCH(RowDots)(a, b, dots);
}
void backward_tile(const ScoreTile& tile, float score_scale, float* gradient, const float* lse,
                   const float* delta, float scale, float cap, const TileDropout& dropout) {
  HWY_DYNAMIC_DISPATCH(BackwardTile)(tile, score_scale, gradient, lse, delta, scale, cap, dropout);
}

}  // namespace onefold::cpu
#endif
