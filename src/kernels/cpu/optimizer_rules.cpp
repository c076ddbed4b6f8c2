// Lion, and the two halves of steps that have to know whole tensors: the direction and the move.
// What clipping by value does to gradients.
#include <cmath>

#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/stepping.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer_rules.cpp"
#include "kernels/cpu/targets.h"
// Compiles this file again for each target.
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/stepping-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onefold::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class P, class G, class M>
HWY_INLINE void LionBlock(const Lion& hyper, float factor, size_t n, const Parameters<P>& p,
                          const G* g, M* m) {
  const DF d;
  const VF scale = hn::Set(d, factor), one = hn::Set(d, 1.0f), zero = hn::Zero(d);
  const VF beta1 = hn::Set(d, hyper.beta1), rest1 = hn::Set(d, 1.0f - hyper.beta1);
  const VF beta2 = hn::Set(d, hyper.beta2), rest2 = hn::Set(d, 1.0f - hyper.beta2);
  const VF keep = hn::Set(d, 1.0f - hyper.learning_rate * hyper.weight_decay);
  const VF rate = hn::Set(d, hyper.learning_rate);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    p.Prefetch(i + kPrefetch);
    hwy::Prefetch(g + i + kPrefetch);
    hwy::Prefetch(m + i + kPrefetch);
    const VF old = p.Load(io, i), moment = io.Load(d, m + i);
    const VF gradient = hn::Mul(io.Load(d, g + i), scale);
    const VF mixed = hn::MulAdd(beta1, moment, hn::Mul(rest1, gradient));
    const VF sign = hn::IfThenElse(hn::Eq(mixed, zero), zero, hn::CopySign(one, mixed));
    p.StoreMoment(io, hn::MulAdd(beta2, moment, hn::Mul(rest2, gradient)), m, FirstMomentWord, i);
    p.Store(io, hn::NegMulAdd(rate, sign, hn::Mul(old, keep)), i);
  });
}

void LionPiece(const Lion& hyper, float factor, const Stepped& stepped, Tensor momentum) {
  WithPieces(stepped, [&](const auto& p, const auto* g, size_t begin, size_t n) HWY_ATTR {
    if (momentum.dtype == DType::bf16)
      LionBlock(hyper, factor, n, p, g, momentum.as<Bf16>() + begin);
    else
      LionBlock(hyper, factor, n, p, g, momentum.f32() + begin);
  });
}

template <class P, class G, class M>
HWY_INLINE void LambBlock(const Direction& hyper, float factor, size_t n, const Parameters<P>& p,
                          const G* g, M* m, M* v, float* dst) {
  const DF d;
  const VF scale = hn::Set(d, factor), eps = hn::Set(d, hyper.eps);
  const VF beta1 = hn::Set(d, hyper.beta1), rest1 = hn::Set(d, 1.0f - hyper.beta1);
  const VF beta2 = hn::Set(d, hyper.beta2), rest2 = hn::Set(d, 1.0f - hyper.beta2);
  const VF decay = hn::Set(d, hyper.weight_decay);
  const VF most = hn::Set(d, kLargestGradient), least = hn::Set(d, -kLargestGradient);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF gradient = hn::Clamp(hn::Mul(io.Load(d, g + i), scale), least, most);
    const VF mean = hn::MulAdd(beta1, io.Load(d, m + i), hn::Mul(rest1, gradient));
    const VF square =
        hn::MulAdd(beta2, io.Load(d, v + i), hn::Mul(rest2, hn::Mul(gradient, gradient)));
    const VF root =
        hyper.eps_inside ? hn::Sqrt(hn::Add(square, eps)) : hn::Add(hn::Sqrt(square), eps);
    p.StoreMoment(io, mean, m, FirstMomentWord, i);
    p.StoreMoment(io, square, v, SecondMomentWord, i);
    io.Store(hn::MulAdd(decay, p.Load(io, i), hn::Div(mean, root)), d, dst + i);
  });
}

// m = keep m + take (g + wd p), and that; or with Nesterov's momentum keep m + take g.
template <class P, class G, class M>
HWY_INLINE void MomentumBlock(const Direction& hyper, float factor, float take_of, size_t n,
                              const Parameters<P>& p, const G* g, M* m, float* dst) {
  const DF d;
  const VF scale = hn::Set(d, factor), keep = hn::Set(d, hyper.beta1), take = hn::Set(d, take_of);
  const VF decay = hn::Set(d, hyper.weight_decay);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    VF gradient = hn::Mul(io.Load(d, g + i), scale);
    if (hyper.rule == Direction::Rule::lars) gradient = hn::MulAdd(decay, p.Load(io, i), gradient);
    const VF taken = hn::Mul(take, gradient);
    const VF moved = hn::MulAdd(keep, io.Load(d, m + i), taken);
    p.StoreMoment(io, moved, m, FirstMomentWord, i);
    io.Store(hyper.nesterov ? hn::MulAdd(keep, moved, taken) : moved, d, dst + i);
  });
}

// A second moment in the place of a momentum.
template <class P, class G, class M>
HWY_INLINE void RootBlock(const Direction& hyper, float factor, size_t n, const Parameters<P>& p,
                          const G* g, M* v, float* dst) {
  const DF d;
  const VF scale = hn::Set(d, factor), eps = hn::Set(d, hyper.eps);
  const VF keep = hn::Set(d, hyper.beta1), take = hn::Set(d, 1.0f - hyper.beta1);
  const VF most = hn::Set(d, kLargestGradient), least = hn::Set(d, -kLargestGradient);
  Sweep(n, [&](size_t i, auto io) HWY_ATTR {
    const VF gradient = hn::Clamp(hn::Mul(io.Load(d, g + i), scale), least, most);
    const VF square =
        hn::MulAdd(keep, io.Load(d, v + i), hn::Mul(take, hn::Mul(gradient, gradient)));
    p.StoreMoment(io, square, v, FirstMomentWord, i);
    io.Store(hn::Div(gradient, hn::Max(hn::Sqrt(square), eps)), d, dst + i);
  });
}

// `take`: of lars and muon.
void DirectionPiece(const Direction& hyper, float factor, float take, const Stepped& stepped,
                    Tensor moment1, Tensor moment2, Tensor dst) {
  WithPieces(stepped, [&](const auto& p, const auto* g, size_t begin, size_t n) HWY_ATTR {
    const auto with = [&](auto type) HWY_ATTR {
      using M = decltype(type);
      M* const m = moment1.as<M>() + begin;
      if (hyper.rule == Direction::Rule::lamb)
        LambBlock(hyper, factor, n, p, g, m, moment2.as<M>() + begin, dst.f32() + begin);
      else if (hyper.rule == Direction::Rule::adafactor)
        RootBlock(hyper, factor, n, p, g, m, dst.f32() + begin);
      else
        MomentumBlock(hyper, factor, take, n, p, g, m, dst.f32() + begin);
    };
    if (moment1.dtype == DType::bf16)
      with(Bf16());
    else
      with(float());
  });
}

void MovePiece(float keep_of, float rate_of, const Stepped& stepped) {
  WithPieces(stepped, [&](const auto& p, const auto* g, size_t, size_t n) HWY_ATTR {
    const DF d;
    const VF keep = hn::Set(d, keep_of), rate = hn::Set(d, rate_of);
    Sweep(n, [&](size_t i, auto io) HWY_ATTR {
      p.Store(io, hn::NegMulAdd(rate, io.Load(d, g + i), hn::Mul(p.Load(io, i), keep)), i);
    });
  });
}

// Elements of one row: `row` is its factor over the mean of all.
void FactoredPiece(const Tensor& grads, float factor, float row, const float* columns, float eps_of,
                   float* dst) {
  with_type(grads.dtype, "factored", [&](auto type) HWY_ATTR {
    const DF d;
    const VF scale = hn::Set(d, factor), of_row = hn::Set(d, row), eps = hn::Set(d, eps_of);
    const VF most = hn::Set(d, kLargestGradient), least = hn::Set(d, -kLargestGradient);
    const auto* g = grads.as<decltype(type)>();
    Sweep(static_cast<size_t>(grads.cols), [&](size_t i, auto io) HWY_ATTR {
      const VF gradient = hn::Clamp(hn::Mul(io.Load(d, g + i), scale), least, most);
      const VF root = hn::Sqrt(hn::Mul(of_row, io.Load(d, columns + i)));
      io.Store(hn::Div(gradient, hn::Max(root, eps)), d, dst + i);
    });
  });
}

int64_t ClampPiece(const Tensor& x, float limit) {
  return with_type(x.dtype, "clamp", [&](auto type) HWY_ATTR {
    using T = decltype(type);
    const DF d;
    const VF most = hn::Set(d, limit), none = hn::Set(d, HUGE_VALF);
    T* const values = x.as<T>();
    int64_t count = 0;
    Sweep(static_cast<size_t>(x.cols), [&](size_t i, auto io) HWY_ATTR {
      const VF value = io.Load(d, values + i), size = hn::Abs(value);
      const auto clamped = hn::And(hn::Gt(size, most), hn::Lt(size, none));
      count += static_cast<int64_t>(hn::CountTrue(d, clamped));
      io.Store(hn::IfThenElse(clamped, hn::CopySign(most, value), value), d, values + i);
    });
    return count;
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace onefold::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onefold::cpu {
namespace {
HWY_EXPORT(LionPiece);
HWY_EXPORT(DirectionPiece);
HWY_EXPORT(MovePiece);
HWY_EXPORT(ClampPiece);
HWY_EXPORT(FactoredPiece);

void check_wide_moment(const char* what, const Stepped& stepped, Tensor moment) {
  check_moment(what, stepped, moment);
  require(moment.dtype != DType::u8, "{}: a moment of 8 bits", what);
}

void check_squares(const char* what, Tensor squares) {
  require(squares.elems() == 2 && squares.dtype == DType::f64, "{}: {} squares", what,
          squares.elems());
}

// How much of a gradient a momentum takes in.
float taken(const DirectionStep& step, float factor) {
  const Direction& hyper = step.hyper;
  if (hyper.rule == Direction::Rule::muon) return 1.0f - hyper.beta1;
  const double weight = std::sqrt(step.squares.f64()[0]),
               gradient = std::sqrt(step.squares.f64()[1]) * static_cast<double>(factor);
  if (!(weight > 0 && gradient > 0)) return hyper.learning_rate;
  const double local = static_cast<double>(hyper.trust) * weight /
                       (gradient + static_cast<double>(hyper.weight_decay) * weight);
  return static_cast<float>(static_cast<double>(hyper.learning_rate) * local);
}

float rate_of(const MoveStep& step) {
  const Move& hyper = step.hyper;
  if (!step.ratio.empty())
    return static_cast<float>(static_cast<double>(hyper.rate) * *step.ratio.f64());
  if (step.squares.empty()) return hyper.rate;
  const double weight = std::sqrt(step.squares.f64()[0]),
               direction = std::sqrt(step.squares.f64()[1]);
  if (hyper.elems > 0) {
    const double root = std::sqrt(static_cast<double>(hyper.elems));
    const double longer = direction / (root * static_cast<double>(hyper.most));
    const double ratio =
        std::max(weight / root, static_cast<double>(hyper.least)) / (longer > 1 ? longer : 1.0);
    return static_cast<float>(static_cast<double>(hyper.rate) * ratio);
  }
  if (!(weight > 0 && direction > 0)) return hyper.rate;
  const double ratio = std::min(std::max(weight / direction, static_cast<double>(hyper.least)),
                                static_cast<double>(hyper.most));
  return static_cast<float>(static_cast<double>(hyper.rate) * ratio);
}

}  // namespace

void lion(ThreadPool& pool, const StepControl& control, const LionStep& step) {
  check_stepped(step.stepped);
  check_wide_moment("lion", step.stepped, step.momentum);
  if (*control.finite.i32() == 0) return;
  const float factor = factor_of(control, step.stepped);
  const auto piece = HWY_DYNAMIC_DISPATCH(LionPiece);
  for_each_piece(pool, 1, step.stepped.params.elems(), [&](int64_t, int64_t begin, int64_t end) {
    piece(step.hyper, factor, range_of(step.stepped, begin, end),
          piece_of(step.momentum.flat(), 0, begin, end));
  });
}

void direction(ThreadPool& pool, const StepControl& control, const DirectionStep& step) {
  const bool lamb = step.hyper.rule == Direction::Rule::lamb;
  check_stepped(step.stepped);
  check_wide_moment("direction", step.stepped, step.moment1);
  if (lamb) {
    check_wide_moment("direction", step.stepped, step.moment2);
    require(step.moment1.dtype == step.moment2.dtype, "direction: moments of two types");
  }
  if (step.hyper.rule == Direction::Rule::lars) check_squares("direction", step.squares);
  require(step.dst.elems() == step.stepped.params.elems(), "direction: {} of {} elements",
          step.dst.elems(), step.stepped.params.elems());
  if (*control.finite.i32() == 0) return;
  const bool takes =
      step.hyper.rule == Direction::Rule::lars || step.hyper.rule == Direction::Rule::muon;
  const float factor = factor_of(control, step.stepped), take = takes ? taken(step, factor) : 0;
  const auto piece = HWY_DYNAMIC_DISPATCH(DirectionPiece);
  for_each_piece(pool, 1, step.stepped.params.elems(), [&](int64_t, int64_t begin, int64_t end) {
    piece(step.hyper, factor, take, range_of(step.stepped, begin, end),
          piece_of(step.moment1.flat(), 0, begin, end),
          lamb ? piece_of(step.moment2.flat(), 0, begin, end) : Tensor{},
          piece_of(step.dst.flat(), 0, begin, end));
  });
}

void move(ThreadPool& pool, const StepControl& control, const MoveStep& step) {
  check_stepped(step.stepped);
  if (!step.squares.empty()) check_squares("move", step.squares);
  if (*control.finite.i32() == 0) return;
  const float rate = rate_of(step);
  const auto piece = HWY_DYNAMIC_DISPATCH(MovePiece);
  for_each_piece(pool, 1, step.stepped.params.elems(), [&](int64_t, int64_t begin, int64_t end) {
    piece(step.hyper.keep, rate, range_of(step.stepped, begin, end));
  });
}

namespace {

// work(row, begin, end, at): elements [begin, end) of a row, the first of which is element `at` of
// the part of a matrix that begins at its element `first`.
template <class Work>
void each_row(ThreadPool& pool, int64_t first, int64_t elems, int64_t cols, const Work& work) {
  if (elems == 0) return;
  const int64_t top = first / cols, bottom = (first + elems - 1) / cols;
  const Chunks chunks = row_chunks(pool, bottom - top + 1, cols);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    for (int64_t row = top + chunks[chunk].begin; row < top + chunks[chunk].end; ++row) {
      const int64_t begin = std::max(first, row * cols),
                    end = std::min(first + elems, (row + 1) * cols);
      work(row, begin - row * cols, end - row * cols, begin - first);
    }
  });
}

double square_of(float value) { return static_cast<double>(value) * static_cast<double>(value); }

}  // namespace

void factored(ThreadPool& pool, const StepControl& control, const Factored& one) {
  const int64_t elems = one.stepped.grads.elems(), cols = one.columns.elems();
  require(one.dst.elems() == elems && one.first + elems <= cols * one.rows.elems(),
          "factored: {} directions of {} gradients", one.dst.elems(), elems);
  if (*control.finite.i32() == 0) return;
  const float factor = factor_of(control, one.stepped);
  const auto mean = static_cast<float>(*one.sum.f64() / static_cast<double>(one.rows.elems()));
  const float floor = std::max(mean, one.eps);
  const auto piece = HWY_DYNAMIC_DISPATCH(FactoredPiece);
  each_row(pool, one.first, elems, cols, [&](int64_t row, int64_t begin, int64_t end, int64_t at) {
    piece(one.stepped.grads.flat().col_range(at, end - begin), factor, one.rows.f32()[row] / floor,
          one.columns.f32() + begin, one.eps, one.dst.flat().f32() + at);
  });
}

// Rows by themselves; then columns, a few hundred at a time, from the first row on.
void factor_squares(ThreadPool& pool, const FactorSquares& one) {
  const Tensor x = one.x.flat();
  const int64_t elems = x.elems(), cols = one.columns.elems();
  if (elems == 0) return;
  require(one.first + elems <= cols * one.rows.elems(), "factor_squares: {} elements from {} on",
          elems, one.first);
  with_type(x.dtype, "factor_squares", [&](auto type) {
    const auto* values = x.as<decltype(type)>();
    each_row(pool, one.first, elems, cols,
             [&](int64_t row, int64_t begin, int64_t end, int64_t at) {
               double sum = 0;
               for (int64_t i = 0; i < end - begin; ++i) sum += square_of(widened(values[at + i]));
               one.rows.f64()[row] = sum;
             });
    constexpr int64_t kColumns = 256;
    const Chunks columns{cols, kColumns};
    const int64_t top = one.first / cols, bottom = (one.first + elems - 1) / cols;
    pool.run(columns.count(), [&](int64_t chunk, int) {
      const Range range = columns[chunk];
      double sums[kColumns] = {};
      for (int64_t row = top; row <= bottom; ++row) {
        const int64_t begin = std::max(one.first, row * cols + range.begin),
                      end = std::min(one.first + elems, row * cols + range.end);
        for (int64_t i = begin; i < end; ++i)
          sums[i - row * cols - range.begin] += square_of(widened(values[i - one.first]));
      }
      for (int64_t i = 0; i < range.size(); ++i) one.columns.f64()[range.begin + i] = sums[i];
    });
  });
}

void blend(const StepControl& control, const Blend& one) {
  require(one.x.elems() == one.dst.elems(), "blend: {} into {}", one.x.elems(), one.dst.elems());
  if (*control.finite.i32() == 0) return;
  const double factor = *(one.factor.empty() ? control.factor : one.factor).f32();
  const double times = one.times * factor * factor;
  for (int64_t i = 0; i < one.x.elems(); ++i) {
    const double before = one.dst.f32()[i];
    one.dst.f32()[i] = static_cast<float>(before + one.share * (times * one.x.f64()[i] - before));
  }
}

void clamp(ThreadPool& pool, const Clamp& one, float limit) {
  const auto piece = HWY_DYNAMIC_DISPATCH(ClampPiece);
  const Tensor x = one.x.flat();
  const Chunks chunks{x.elems(), kChunkElems};
  std::vector<int64_t> counts(static_cast<size_t>(chunks.count()));
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Range range = chunks[chunk];
    counts[static_cast<size_t>(chunk)] = piece(x.col_range(range.begin, range.size()), limit);
  });
  int64_t count = 0;
  for (const int64_t of_chunk : counts) count += of_chunk;
  *one.dst.f64() = static_cast<double>(count);
}

void normalise(ThreadPool& pool, Tensor x, Tensor squares, float eps, Tensor dst) {
  scale(pool, x, 1.0f / (static_cast<float>(std::sqrt(*squares.f64())) + eps), dst);
}

}  // namespace onefold::cpu
#endif
