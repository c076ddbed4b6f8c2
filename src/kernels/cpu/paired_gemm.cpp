// Matrix products with a third fewer multiplications, for processors that add beside multiplying.
//
// Zen 4 and 5 have two pipes for multiply-adds and two more for additions, which stand still in an
// ordinary product. Winograd's identity of 1968 trades one for the other. For two terms of a sum,
//
//   (a0 + b1) (a1 + b0) = a0 b0 + a1 b1 + a0 a1 + b0 b1
//   (a0 - b1) (b0 - a1) = a0 b0 + a1 b1 - a0 a1 - b0 b1
//
// one multiplication and two additions do the work of two multiplications. The sums of a0 a1 along
// a row of a, and of b0 b1 along a column of b, are computed once, while packing, and taken off at
// the end. Of three terms the first two are such a pair and the third is an ordinary one: two
// multiply-adds and two additions, which fill all four pipes, at 1.5 times the rate of
// multiply-adds alone.
//
// What that costs in accuracy, and what is done about it (measured in docs/numerics.md):
// - a + b loses digits of the smaller. So each row of a and each column of b is scaled to a mean
//   square near 1, by a power of two, which is exact and taken back at the end. The error is then
//   of the order of rounding times |row| |column|.
// - a0 a1 is large where two terms are large in a and small in b, as outlying channels of
//   activations are. So each term is multiplied by a power of two in a, and divided by it in b,
//   that makes it about equal in both, as a sample of lines tells.
// - The two forms alternate, so that corrections cancel where values share a sign.
// - Corrections are summed in the kernel's own order and roundings: what is multiplied by a row or
//   column of zeros is exactly zero.
//
// The operand with fewer lines (rows of a, columns of b) is packed as a whole, by all threads; then
// each thread packs some of the other into its own cache and multiplies the two. An element of dst
// is a sum along k in one order, whoever computes it: the bits depend neither on threads nor on how
// dst is shared out.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paired_gemm.cpp"
#include "kernels/cpu/targets.h"
// clang-format off: foreach_target must come before highway.h
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/vector-inl.h"

#ifndef ONEFOLD_PAIRED_GEMM_
#define ONEFOLD_PAIRED_GEMM_
namespace onefold::cpu {

constexpr int64_t kRows = 8;       // of a tile; its columns are two vectors
constexpr int64_t kMaxStrip = 32;  // two vectors of the widest target
constexpr int64_t kRound = 6;      // terms: three with either form
// Rounds that are summed by themselves before they are added to the others: the error of a sum
// grows with the square root of its length, so short ones make good for what pairing loses.
constexpr int64_t kSegment = 16;
// Terms of one pass: b's share of a tile (128 KiB on AVX-512) stays in L2 while all rows pass.
constexpr int64_t kMaxDepth = 1024;

inline int64_t rounds(int64_t depth) { return ceil_div(depth, kRound); }
inline int64_t padded(int64_t depth) { return rounds(depth) * kRound; }

// Rows of a or columns of b, alike: lines of terms.
struct Lines {
  const float* data;
  int64_t stride;   // from a line to the next if contiguous, else from a term to the next
  bool contiguous;  // the terms of a line
  int64_t count;
  const float* balance;  // powers of two, for each term of a pass

  const float* at(int64_t line, int64_t term) const {
    return contiguous ? data + line * stride + term : data + term * stride + line;
  }
};

// As many lines as a tile has columns, packed: panels of `width` lines, [padded(depth), width]
// each.
struct Strip {
  float* panels;
  float* corrections;  // of each line: the sum of its pairs' own products
  float* unscale;      // of each line: takes its scale back
};

// Where a tile's sums go, and what is added to them.
struct Destination {
  float* dst;
  int64_t stride;
  bool accumulate;
  const float* bias;  // may be null, as may residual
  const float* residual;
  int64_t residual_stride;
};

// The power of two that brings a line to a mean square near 1. It is bounded, so that taking back
// the scales of a row and of a column one after the other cannot leave the range in between.
inline float scale_for(float sum_squares, const Lines& lines, int64_t line, int64_t term,
                       int64_t depth) {
  int exponent = 0;
  if (sum_squares > 0x1p-100f && sum_squares < 0x1p100f) {
    exponent = std::ilogb(sum_squares / static_cast<float>(depth)) >> 1;
  } else {  // squares may have left the range
    float largest = 0;
    for (int64_t k = 0; k < depth; ++k)
      largest = std::max(largest, std::abs(*lines.at(line, term + k) * lines.balance[k]));
    if (largest > 0 && std::isfinite(largest)) exponent = std::ilogb(largest);
  }
  return std::ldexp(1.0f, std::clamp(-exponent, -100, 100));
}

}  // namespace onefold::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {

int64_t StripLines() { return 2 * static_cast<int64_t>(hn::Lanes(DF())); }

// As an integer: Zen 4 executes a floating-point broadcast from memory in a pipe that additions
// need, and an integer one in none.
HWY_INLINE VF Broadcast(const float* from) {
  int32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return hn::BitCast(DF(), hn::Set(hn::RebindToSigned<DF>(), bits));
}

// Three terms of a tile's sums, the first two as a pair.
template <bool kPlus>
HWY_INLINE void AddTerms(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b,
                         VF (&sums)[kRows][2]) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF b0[2], b1[2], b2[2];
#pragma GCC unroll 2
  for (size_t v = 0; v < 2; ++v) {
    b0[v] = hn::LoadU(d, b + v * lanes);
    b1[v] = hn::LoadU(d, b + (2 + v) * lanes);
    b2[v] = hn::LoadU(d, b + (4 + v) * lanes);
  }
#pragma GCC unroll 8
  for (int64_t row = 0; row < kRows; ++row) {
    const VF a0 = Broadcast(a + row), a1 = Broadcast(a + kRows + row),
             a2 = Broadcast(a + 2 * kRows + row);
#pragma GCC unroll 2
    for (size_t v = 0; v < 2; ++v) {
      VF& sum = sums[row][v];
      sum = hn::MulAdd(a2, b2[v], sum);
      sum = kPlus ? hn::MulAdd(hn::Add(a0, b1[v]), hn::Add(a1, b0[v]), sum)
                  : hn::MulAdd(hn::Sub(a0, b1[v]), hn::Sub(b0[v], a1), sum);
    }
  }
}

// dst[kRows][two vectors] (+)= a tile's sums over some rounds.
template <bool kAccumulate>
HWY_INLINE void AddRounds(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t rounds,
                          float* HWY_RESTRICT dst) {
  const DF d;
  const size_t lanes = hn::Lanes(d);
  VF sums[kRows][2];
#pragma GCC unroll 8
  for (int64_t row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = hn::Zero(d);
  for (int64_t i = 0; i < rounds; ++i, a += kRound * kRows, b += kRound * 2 * lanes) {
    AddTerms<true>(a, b, sums);
    AddTerms<false>(a + 3 * kRows, b + 6 * lanes, sums);
  }
#pragma GCC unroll 8
  for (size_t row = 0; row < kRows; ++row)
#pragma GCC unroll 2
    for (size_t v = 0; v < 2; ++v) {
      float* to = dst + (2 * row + v) * lanes;
      hn::StoreU(kAccumulate ? hn::Add(hn::LoadU(d, to), sums[row][v]) : sums[row][v], d, to);
    }
}

// dst = the sums of a tile, segment by segment.
HWY_NOINLINE void TileSums(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t rounds,
                           float* HWY_RESTRICT dst) {
  const int64_t a_step = kRound * kRows, b_step = kRound * StripLines();
  AddRounds<false>(a, b, std::min(rounds, kSegment), dst);
  for (int64_t i = kSegment; i < rounds; i += kSegment)
    AddRounds<true>(a + i * a_step, b + i * b_step, std::min(rounds - i, kSegment), dst);
}

// The weight that makes a sampled line's mean square 1; 0 if it tells nothing.
HWY_INLINE VF SampleWeight(VF sum_squares, int64_t depth) {
  const DF d;
  const auto usable = hn::And(hn::Gt(sum_squares, hn::Set(d, 0x1p-100f)),
                              hn::Lt(sum_squares, hn::Set(d, 0x1p100f)));
  return hn::IfThenElseZero(usable, hn::Div(hn::Set(d, static_cast<float>(depth)), sum_squares));
}

// magnitudes[term]: its squares, summed over a sample of lines that count alike.
void SampleTerms(const Lines& lines, int64_t term, int64_t depth, float* magnitudes) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  std::fill_n(magnitudes, depth, 0.0f);
  if (lines.contiguous) {
    const int64_t samples = std::min<int64_t>(16, lines.count);
    for (int64_t s = 0; s < samples; ++s) {
      const float* x = lines.at(s * lines.count / samples, term);
      VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      SweepBy4(static_cast<size_t>(depth), [&](size_t k, auto io, auto which) HWY_ATTR {
        const VF v = io.Load(d, x + k);
        sums[which] = hn::MulAdd(v, v, sums[which]);
      });
      const VF weight = SampleWeight(hn::Set(d, Total(sums)), depth);
      Sweep(static_cast<size_t>(depth), [&](size_t k, auto io) HWY_ATTR {
        const VF v = io.Load(d, x + k), sum = io.Load(d, magnitudes + k);
        io.Store(hn::MulAdd(hn::Mul(v, v), weight, sum), d, magnitudes + k);
      });
    }
    return;
  }
  // Lines next to each other share a cache line: a vector of them at either end.
  const int64_t last = std::max<int64_t>(0, lines.count - lanes);
  for (const int64_t first : {int64_t{0}, last}) {
    const Part io{static_cast<size_t>(std::min(lanes, lines.count))};
    VF sum = hn::Zero(d);
    for (int64_t k = 0; k < depth; ++k) {
      const VF v = io.Load(d, lines.at(first, term + k));
      sum = hn::MulAdd(v, v, sum);
    }
    const VF weight = SampleWeight(sum, depth);
    for (int64_t k = 0; k < depth; ++k) {
      const VF v = io.Load(d, lines.at(first, term + k));
      magnitudes[k] += hn::GetLane(hn::SumOfLanes(d, hn::Mul(hn::Mul(v, v), weight)));
    }
    if (last == 0) break;
  }
}

// Scales of the first `count` lines of a strip. Contiguous lines are read one after the other here,
// as memory likes it; packing then finds them in the cache.
void MeasureScales(const Lines& lines, int64_t line, int64_t count, int64_t term, int64_t depth,
                   float* scales) {
  constexpr int64_t kAhead = 16;  // terms
  const DF d;
  HWY_ALIGN float sum_squares[kMaxStrip];
  if (lines.contiguous) {
    for (int64_t i = 0; i < count; ++i) {
      const float* x = lines.at(line + i, term);
      const float* next = lines.at(std::min(line + i + 1, lines.count - 1), term);
      VF sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      SweepBy4(static_cast<size_t>(depth), [&](size_t k, auto io, auto which) HWY_ATTR {
        hwy::Prefetch(next + k);
        const VF v = hn::Mul(io.Load(d, x + k), io.Load(d, lines.balance + k));
        sums[which] = hn::MulAdd(v, v, sums[which]);
      });
      sum_squares[i] = Total(sums);
    }
  } else {
    Sweep(static_cast<size_t>(count), [&](size_t i, auto io) HWY_ATTR {
      VF even = hn::Zero(d), odd = hn::Zero(d);
      const auto add = [&](int64_t k, VF& sum) HWY_ATTR {
        const float* x = lines.at(line, term + k) + i;
        hwy::Prefetch(x + kAhead * lines.stride);
        const VF v = hn::Mul(io.Load(d, x), Broadcast(lines.balance + k));
        sum = hn::MulAdd(v, v, sum);
      };
      int64_t k = 0;
      for (; k + 2 <= depth; k += 2) {
        add(k, even);
        add(k + 1, odd);
      }
      if (k < depth) add(k, even);
      io.Store(hn::Add(even, odd), d, sum_squares + i);
    });
  }
  for (int64_t i = 0; i < count; ++i)
    scales[i] = scale_for(sum_squares[i], lines, line + i, term, depth);
}

// dst[term * width + line] of 4 lines and 4 terms.
HWY_INLINE void Transpose4(const float* const (&lines)[4], int64_t term, const float* scales,
                           const float* balance, float* dst, int64_t width) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> pairs;
  const auto terms = hn::LoadU(d, balance + term);
  const auto scaled = [&](int i) HWY_ATTR {
    return hn::Mul(hn::Mul(hn::LoadU(d, lines[i] + term), hn::Set(d, scales[i])), terms);
  };
  const auto x0 = scaled(0), x1 = scaled(1), x2 = scaled(2), x3 = scaled(3);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, x0, x1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, x2, x3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, x0, x1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, x2, x3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, dst);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, dst + width);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, dst + 2 * width);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, dst + 3 * width);
}

// Lines beyond the last have a scale of 0; they repeat the last one.
void PackContiguous(const Lines& lines, int64_t line, int64_t term, int64_t depth, int64_t width,
                    const float* scales, float* panels) {
  constexpr int64_t kBlock = 16;  // terms: a cache line of each line
  for (int64_t begin = 0; begin < depth; begin += kBlock)
    for (int64_t i = 0; i < StripLines(); i += 4) {
      const float* from[4];
      for (int64_t j = 0; j < 4; ++j)
        from[j] = lines.at(std::min(line + i + j, lines.count - 1), term);
      float* dst = panels + i / width * width * padded(depth) + i % width;
      const int64_t end = std::min(begin + kBlock, depth);
      int64_t k = begin;
      for (; k + 4 <= end; k += 4)
        Transpose4(from, k, scales + i, lines.balance, dst + k * width, width);
      for (; k < end; ++k)
        for (int64_t j = 0; j < 4; ++j)
          dst[k * width + j] = from[j][k] * scales[i + j] * lines.balance[k];
    }
}

// Terms [begin, end) of a panel whose terms are a stride apart; the first `count` of its lines
// exist.
template <class D>
HWY_INLINE void PackPanel(D d, const float* HWY_RESTRICT from, int64_t stride, int64_t count,
                          int64_t begin, int64_t end, const float* scales, const float* balance,
                          float* HWY_RESTRICT dst, int64_t width) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < width; i += lanes) {
    const auto scale = hn::LoadU(d, scales + i);
    const auto copy = [&](auto io) HWY_ATTR {
      for (int64_t k = begin; k < end; ++k)
        hn::StoreU(
            hn::Mul(hn::Mul(io.Load(d, from + k * stride + i), scale), hn::Set(d, balance[k])), d,
            dst + k * width + i);
    };
    if (i + lanes <= count)
      copy(Whole{});
    else
      copy(Part{static_cast<size_t>(std::max<int64_t>(0, count - i))});
  }
}

// Likewise, for lines next to each other.
void PackStrided(const Lines& lines, int64_t line, int64_t count, int64_t term, int64_t depth,
                 int64_t width, const float* scales, float* panels) {
  constexpr int64_t kBlock = 64;  // terms: all panels take theirs while they are in L1
  const Chunks blocks{depth, kBlock};
  for (int64_t n = 0; n < blocks.count(); ++n)
    for (int64_t i = 0; i < StripLines(); i += width) {
      const float* from = lines.at(line + i, term);
      float* dst = panels + i * padded(depth);
      if (width == kRows)
        PackPanel(hn::CappedTag<float, kRows>(), from, lines.stride, count - i, blocks[n].begin,
                  blocks[n].end, scales + i, lines.balance, dst, width);
      else
        PackPanel(DF(), from, lines.stride, count - i, blocks[n].begin, blocks[n].end, scales + i,
                  lines.balance, dst, width);
    }
}

// What the pairs of each line contribute of themselves, in the order and roundings of TileSums.
void SumCorrections(const float* panels, int64_t depth, int64_t width, float* corrections) {
  const hn::CappedTag<float, kRows> d;
  for (int64_t i = 0; i < StripLines(); i += static_cast<int64_t>(hn::Lanes(d))) {
    const float* x = panels + i / width * width * padded(depth) + i % width;
    auto total = hn::Zero(d);
    for (int64_t begin = 0; begin < rounds(depth); begin += kSegment) {
      auto sum = hn::Zero(d);
      for (int64_t n = std::min(kSegment, rounds(depth) - begin); n > 0; --n, x += kRound * width) {
        sum = hn::MulAdd(hn::LoadU(d, x), hn::LoadU(d, x + width), sum);
        sum = hn::NegMulAdd(hn::LoadU(d, x + 3 * width), hn::LoadU(d, x + 4 * width), sum);
      }
      total = hn::Add(total, sum);
    }
    hn::StoreU(total, d, corrections + i);
  }
}

// Packs StripLines() lines from `line` on, and their terms [term, term + depth). What is beyond the
// last line, and beyond the last term of the last round, is zero.
void Pack(const Lines& lines, int64_t line, int64_t term, int64_t depth, int64_t width,
          const Strip& dst) {
  const int64_t count = std::min(StripLines(), lines.count - line);
  HWY_ALIGN float scales[kMaxStrip] = {};
  MeasureScales(lines, line, count, term, depth, scales);
  if (lines.contiguous)
    PackContiguous(lines, line, term, depth, width, scales, dst.panels);
  else
    PackStrided(lines, line, count, term, depth, width, scales, dst.panels);
  const int64_t tail = (padded(depth) - depth) * width;
  for (int64_t panel = 0; panel < StripLines() / width; ++panel)
    std::fill_n(dst.panels + (panel * padded(depth) + depth) * width, tail, 0.0f);
  SumCorrections(dst.panels, depth, width, dst.corrections);
  for (int64_t i = 0; i < StripLines(); ++i) dst.unscale[i] = i < count ? 1 / scales[i] : 0;
}

// dst = (sums - corrections) with the scales taken back, and what is added to it. `row` is the
// tile's first line in the strip of a.
HWY_INLINE void Finish(const float* HWY_RESTRICT sums, const Strip& a, int64_t row, const Strip& b,
                       int64_t rows, int64_t cols, const Destination& to) {
  const DF d;
  Sweep(static_cast<size_t>(cols), [&](size_t c, auto io) HWY_ATTR {
    const VF correction = hn::LoadU(d, b.corrections + c), unscale = hn::LoadU(d, b.unscale + c);
    for (int64_t r = row; r < row + rows; ++r) {
      float* dst = to.dst + r * to.stride + c;
      VF x = hn::LoadU(d, sums + (r - row) * StripLines() + static_cast<int64_t>(c));
      x = hn::Sub(hn::Sub(x, hn::Set(d, a.corrections[r])), correction);
      x = hn::Mul(hn::Mul(x, unscale), hn::Set(d, a.unscale[r]));
      if (to.accumulate) x = hn::Add(io.Load(d, dst), x);
      if (to.bias) x = hn::Add(x, io.Load(d, to.bias + c));
      if (to.residual) x = hn::Add(x, io.Load(d, to.residual + r * to.residual_stride + c));
      io.Store(x, d, dst);
    }
  });
}

// A strip of a times a strip of b.
void Multiply(const Strip& a, const Strip& b, int64_t rows, int64_t cols, int64_t depth,
              const Destination& to) {
  HWY_ALIGN float sums[kRows * kMaxStrip];
  for (int64_t row = 0; row < rows; row += kRows) {
    const int64_t count = std::min(kRows, rows - row);
    for (int64_t r = row; r < row + count; ++r)  // dst arrives while its sums are computed
      for (int64_t c = 0; c < cols + 15; c += 16)
        hwy::Prefetch(to.dst + r * to.stride + std::min(c, cols - 1));
    TileSums(a.panels + row * padded(depth), b.panels, rounds(depth), sums);
    Finish(sums, a, row, b, count, cols, to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/cpu/paired_gemm.h"

namespace onefold::cpu {
namespace {

HWY_EXPORT(StripLines);
HWY_EXPORT(SampleTerms);
HWY_EXPORT(Pack);
HWY_EXPORT(Multiply);

constexpr int64_t kShared = 1024;   // lines packed for all threads: 4 MiB at most, for L3
constexpr int64_t kOwnStrips = 2;   // packed by a thread for itself: 256 KiB at most, for L2
constexpr int64_t kSmallest = 128;  // of m, n and k
constexpr int64_t kSmallestResult = 96 * 1024;  // elements of dst

int64_t strip_lines() { return HWY_DYNAMIC_DISPATCH(StripLines)(); }

// Passes over k are equally deep.
int64_t pass_depth(int64_t k) { return ceil_div(k, ceil_div(k, kMaxDepth)); }

// How many of the shared strips a task takes: all, so that what a thread packs for itself is used
// the most; fewer where there are not enough tasks to keep all threads busy.
int64_t part_strips(int64_t strips, int64_t tasks, int threads) {
  const bool balanced = tasks >= 4 * threads || tasks % threads == 0;
  return balanced ? strips : std::max<int64_t>(1, strips * tasks / (2 * threads));
}

// Powers of two that make each term about as large in a as in b.
void balance(const Lines& a, const Lines& b, int64_t term, int64_t depth, float* of_a,
             float* of_b) {
  HWY_DYNAMIC_DISPATCH(SampleTerms)(a, term, depth, of_a);
  HWY_DYNAMIC_DISPATCH(SampleTerms)(b, term, depth, of_b);
  for (int64_t k = 0; k < depth; ++k) {
    // Squares, so the exponents' difference is four times that of the factor; rounded to nearest.
    const bool known = of_a[k] > 0 && of_b[k] > 0 && std::isfinite(of_a[k] * of_b[k]);
    const int exponent = known ? (std::ilogb(of_b[k]) - std::ilogb(of_a[k]) + 2) >> 2 : 0;
    of_a[k] = std::ldexp(1.0f, std::clamp(exponent, -20, 20));
    of_b[k] = 1 / of_a[k];
  }
}

// Strips of one operand, side by side in scratch.
struct Packed {
  const Lines& lines;
  int64_t width;  // of panels
  float* scratch;
  int64_t strip = strip_lines();

  static int64_t elems(int64_t strip, int64_t depth) { return strip * (padded(depth) + 2); }

  Strip at(int64_t index, int64_t depth) const {
    float* panels = scratch + index * elems(strip, depth);
    float* corrections = panels + strip * padded(depth);
    return {panels, corrections, corrections + strip};
  }
  void pack(int64_t index, int64_t line, int64_t term, int64_t depth) const {
    HWY_DYNAMIC_DISPATCH(Pack)(lines, line, term, depth, width, at(index, depth));
  }
};

// One pass over k.
struct Pass {
  const Gemm& g;
  int64_t term, depth;
  bool first, last;

  Destination destination(int64_t row, int64_t col) const {
    return {
        g.dst.f32() + row * g.dst.stride + col,
        g.dst.stride,
        g.accumulate || !first,
        last && !g.bias.empty() ? g.bias.f32() + col : nullptr,
        last && !g.residual.empty() ? g.residual.f32() + row * g.residual.stride + col : nullptr,
        g.residual.stride};
  }

  // A strip of a, which begins at line `row`, by one of b, which begins at line `col`.
  void multiply(const Packed& a, int64_t i, int64_t row, const Packed& b, int64_t j,
                int64_t col) const {
    HWY_DYNAMIC_DISPATCH(Multiply)
    (a.at(i, depth), b.at(j, depth), std::min(a.strip, a.lines.count - row),
     std::min(b.strip, b.lines.count - col), depth, destination(row, col));
  }
};

}  // namespace

bool pairing_gains(int64_t m, int64_t n, int64_t k) {
  return std::min({m, n, k}) >= kSmallest && m * n >= kSmallestResult;
}

int64_t paired_gemm_scratch(int64_t m, int64_t n, int64_t k, int threads) {
  const int64_t strips = ceil_div(std::min({m, n, kShared}), strip_lines()) + threads * kOwnStrips;
  return 2 * kMaxDepth + strips * Packed::elems(strip_lines(), pass_depth(k));
}

void paired_gemm(ThreadPool& pool, const Gemm& g) {
  const int64_t m = g.dst.rows, n = g.dst.cols, k = g.a_transposed ? g.a.rows : g.a.cols;
  require(g.scratch.elems() >= paired_gemm_scratch(m, n, k, pool.threads()),
          "gemm: {} elements of scratch", g.scratch.elems());
  float* balance_a = g.scratch.f32();
  float* balance_b = balance_a + kMaxDepth;
  float* strips_at = balance_b + kMaxDepth;
  const Lines a{g.a.f32(), g.a.stride, !g.a_transposed, m, balance_a};
  const Lines b{g.b.f32(), g.b.stride, g.b_transposed, n, balance_b};
  const int64_t strip = strip_lines(), depth = pass_depth(k);
  const bool share_a = m <= n;
  const Packed shared{share_a ? a : b, share_a ? kRows : strip, strips_at};
  const Lines& other = share_a ? b : a;
  float* own = strips_at +
               ceil_div(std::min(shared.lines.count, kShared), strip) * Packed::elems(strip, depth);
  const Chunks own_lines{other.count, kOwnStrips * strip};
  for (int64_t term = 0; term < k; term += depth) {
    const int64_t terms = std::min(depth, k - term);
    const Pass pass{g, term, terms, term == 0, term + terms == k};
    balance(a, b, term, terms, balance_a, balance_b);
    for (int64_t begin = 0; begin < shared.lines.count; begin += kShared) {
      const int64_t strips = ceil_div(std::min(kShared, shared.lines.count - begin), strip);
      pool.run(strips, [&](int64_t s, int) { shared.pack(s, begin + s * strip, term, terms); });
      const Chunks parts{strips, part_strips(strips, own_lines.count(), pool.threads())};
      pool.run(own_lines.count() * parts.count(), [&](int64_t task, int thread) {
        const Range mine = own_lines[task / parts.count()], part = parts[task % parts.count()];
        const Packed packed{other, share_a ? strip : kRows,
                            own + thread * kOwnStrips * Packed::elems(strip, depth)};
        const int64_t count = ceil_div(mine.size(), strip);
        for (int64_t i = 0; i < count; ++i) packed.pack(i, mine.begin + i * strip, term, terms);
        // A shared strip comes from L3 once for all own ones, which stay in L2.
        for (int64_t i = part.begin; i < part.end; ++i)
          for (int64_t j = 0; j < count; ++j) {
            const int64_t there = begin + i * strip, here = mine.begin + j * strip;
            if (share_a)
              pass.multiply(shared, i, there, packed, j, here);
            else
              pass.multiply(packed, j, here, shared, i, there);
          }
      });
    }
  }
}

}  // namespace onefold::cpu
#endif
