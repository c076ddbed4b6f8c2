// The one list of operations. A device implements this interface; nothing above this layer knows
// which one runs. Kernels know no rank, allocate nothing and keep no state between calls: scratch
// comes from the caller, who asks for its size with the *_scratch_bytes() twin. No kernel returns a
// value: numbers that follow from data stay in the device's memory, where other kernels read them.
//
// Shapes are written [rows, cols]; each tensor carries its type. "tokens" counts the rows of one
// micro-batch: batch * sequence, sequence innermost. `accumulate` says whether a result is added to
// dst or overwrites it (first use of a gradient needs no zeroing pass). All sums have an order that
// depends on shapes alone, never on the number of threads.
//
// Types. Activations and parameters of one call are of one type, f32, bf16 or f16; so are gradients
// by activations. Gradients of parameters (a product's dst with a_transposed, dweight, dbias,
// dtable, dpositions, column_sum's dst) are of that type or f32. Rope's table, lse, losses and
// factors are f32, an optimizer's moments f32, bf16 or of 8 bits, logits of the activations' type.
// Everything is computed in f32, products of 16-bit values are summed in f32, and a result is
// rounded once, to the nearest even, where it is stored; what is added to is read as f32 first.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/philox.h"
#include "tensor/tensor.h"

namespace onefold {

// rmsnorm1p: RMSNorm whose weight is stored less one (Gemma's).
enum class Norm : uint8_t { layernorm, rmsnorm, rmsnorm1p };
enum class Activation : uint8_t { relu, gelu, gelu_tanh, silu, sigmoid, identity };

// dst = op(a) · op(b) [+ dst if accumulate] [+ bias on each row] [+ residual]
struct Gemm {
  Tensor a;    // [m, k], or [k, m] if a_transposed
  Tensor b;    // [k, n], or [n, k] if b_transposed
  Tensor dst;  // [m, n]
  bool a_transposed = false;
  bool b_transposed = false;
  bool accumulate = false;
  Tensor bias = {};      // [1, n] or empty
  Tensor residual = {};  // [m, n] or empty; may be dst's own memory only through accumulate
  Tensor scratch = {};   // gemm_scratch_bytes(); empty where that is 0
  // How much lies beyond the vocabulary, for devices that make an odd one even with it. Of logits =
  // x · table': further rows of b (zeros) and columns of dst (may be written). Of logits · table:
  // columns of a (zeros, if the first product wrote them) and rows of b. Of logits' · x: columns of
  // a, and rows of dst (may be written).
  int64_t slack = 0;
  // Where dst is a run of the rows of a product of so many, from a multiple of row_unit() on (and
  // to one, or to the end): the bits are those of the whole product. 0: it is all of them.
  int64_t of_rows = 0;
};

// Of a kernel that has at hand what is to be summed over rows: the gradient of a bias without a
// pass of its own.
struct BiasGradient {
  Tensor dst = {};  // [1, cols], written or added to; empty: not wanted
  bool accumulate = false;
  Tensor scratch = {};  // column_sum_scratch_bytes() of what is summed
};

// Which elements a dropout keeps is a function of the key (seed, step, unit, site), the sample and
// the position in it.
struct Dropout {
  float rate = 0;  // 0 switches it off
  PhiloxKey key;
  Tensor samples = {};  // [1, batch] i64: ids of the sequences in this micro-batch
  // [1, rows] i32, or empty: the place of each row in its sample, where rows are a part of it.
  Tensor places = {};
  // Where columns are a part of a row: the first of them, and how many the row has; 0: all are
  // here.
  int64_t first_col = 0, all_cols = 0;

  int64_t place_of(int64_t row, int64_t length) const {
    return places.empty() ? row % length : places.i32()[row];
  }
  // Of a row's first element of `cols`, in its sample.
  int64_t element_of(int64_t row, int64_t length, int64_t cols) const {
    return place_of(row, length) * (all_cols > 0 ? all_cols : cols) + first_col;
  }
};

// The position of each row of a micro-batch: first + row % length, or its place in its sequence if
// rows are a part of one (`places`); less the start of the row's document if there are `starts`.
// With either of these, first is 0.
struct RowPositions {
  int64_t first = 0;
  int64_t length = 0;  // of a sequence, or of the part
  Tensor starts = {};  // [1, rows] i32: where in its sequence the row's document begins; or empty
  Tensor places = {};  // [1, rows] i32, or empty
};

struct AttentionShape {
  int64_t batch = 0;
  int64_t query_length = 0;
  int64_t key_length = 0;  // >= query_length: query i sees keys up to i + key_length - query_length
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads; query head h reads key head h / (heads / kv_heads)
  int64_t head_dim = 0;
  // [1, batch*query_length] i32, or empty: the first key that each query sees, so that documents
  // packed into one sequence do not see each other. Only where query_length == key_length.
  Tensor starts = {};
  DType dtype = DType::f32;  // of queries, keys, values and results: scratch depends on it
  // The number of the first of these heads in the whole model, by which dropout counts them.
  int64_t first_head = 0;
  // A query sees itself and so many keys less one before it; 0: all of them.
  int64_t window = 0;
  float scale = 0;     // of scores; 0: 1/sqrt(head_dim)
  float soft_cap = 0;  // scaled scores become soft_cap · tanh(score / soft_cap); 0: they stay
  // ALiBi: what a scaled score loses for each position that its key lies before the query is the
  // slope of the head, times this; 0: nothing. Not beside a cap.
  float alibi = 0;
  int64_t alibi_heads = 0;  // of the whole model: slopes depend on their number
  // Else every query sees every key, of which there may be fewer; without starts, a window and
  // dropout.
  bool causal = true;

  float score_scale() const {
    return scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(head_dim));
  }
  // Of a head in this call. Of n heads, a power of two, those of the whole model's head h are
  // 2^(-8 (h + 1) / n); of other numbers, the heads beyond the last power n have those of 2n heads
  // that come between.
  float alibi_slope(int64_t head) const {
    const auto n = static_cast<double>(std::bit_floor(static_cast<uint64_t>(alibi_heads)));
    const auto h = static_cast<double>(first_head + head);
    const double exponent = h < n ? 8 * (h + 1) / n : 4 * (2 * (h - n) + 1) / n;
    return static_cast<float>(static_cast<double>(alibi) * std::exp2(-exponent));
  }
  // The first key that a query (of those in this call) sees by the window alone.
  int64_t first_in_window(int64_t query) const {
    return window == 0 ? 0 : std::max<int64_t>(0, query + key_length - query_length - window + 1);
  }
};

// How a router's logits become scores: by a softmax over all experts, or each by its sigmoid.
enum class RouterScores : uint8_t { softmax, sigmoid };

// Where a router sends the rows of a micro-batch. Each token has k choices, best first, and a
// choice is number token * k + j. Those that are kept are sorted by expert, of one expert in their
// order; their places are rows of what experts compute with. All of it stays in the device's
// memory.
struct Routing {
  Tensor experts;  // [tokens, k] i32: of each choice; of equal logits the lower expert comes first
  Tensor weights;  // [tokens, k] f32: what the result of each is multiplied by
  Tensor places;   // [tokens, k] i32: the row of each; -1: it was dropped
  Tensor sources;  // [1, tokens * k] i32: the choice of each row; -1 behind the last
  Tensor offsets;  // [1, experts + 1] i32: the first row of each expert, and the number of rows
  Tensor counts;   // [1, experts] i32: choices of each expert, with those that were dropped

  int64_t choices() const { return experts.cols; }
  int64_t count() const { return counts.cols; }  // of experts
};

// Chooses the k experts of the largest logits for each token. A weight is the expert's score; if
// normalised, its share in the scores of the k (their sum + 1e-20). An expert takes the first
// `capacity` of its choices and drops the others.
struct Route {
  Tensor logits;  // [tokens, experts] f32
  RouterScores scores = RouterScores::softmax;
  bool normalised = true;
  int64_t capacity = 0;  // 0: nothing is dropped
  Routing routing;       // written
};

// Gradients by a router's logits: through the weights, and of two losses of its own, multiplied by
// `balance` and `z` (0: none) as they are and by `scale` too in gradients:
//   balance: experts · the sum over experts of (choices / tokens) · (mean of the score's share),
//            where choices and tokens are of all parts of the sequences
//   z: the mean over tokens of the square of the log-sum-exp of logits
// A score's share is the softmax, or the sigmoid over the sum of all (+ 1e-20).
struct RouteBackward {
  Route forward;    // with what it has written
  Tensor dweights;  // [tokens, k] f32; of dropped choices not read
  float balance = 0, z = 0;
  // Where these tokens are one of equal parts: the choices of each expert in each part, [parts,
  // experts] i32. Empty: there is no other.
  Tensor of_parts = {};
  Tensor scale = {};    // [1, 1] f32; may be empty where both are 0
  Tensor dlogits;       // [tokens, experts], of the activations' type
  Tensor load = {};     // [1, load_elems(experts)] f64, or empty: load_* below are added to it
  Tensor scratch = {};  // route_backward_scratch_bytes()
};

// How rows travel where the experts of a routing are divided among several holders, an equal run of
// them each: block b of the rows is for the b-th. A block has a fixed number of rows, and what its
// experts leave over is empty. Where they have taken more, the choices without room get the weight
// NaN and the place of a row of the block, so that their tokens' results are no numbers, and
// `needed` says so: nothing returns to the host inside a step.
struct SpreadRows {
  Routing from;        // by all experts
  int64_t blocks = 1;  // divides the experts
  Tensor places;       // [tokens, k] i32: the row of each choice; -1: it was dropped
  Tensor sources;      // [1, blocks * rows] i32: the choice of each row; -1: it is empty
  Tensor numbers;      // [blocks * rows, 1] i32, rows strided: the expert of each, counted from the
                       // first of its block; -1: it is empty
  Tensor needed = {};  // [1, 2] i32, or empty: where a block has too few rows, becomes the larger
                       // of itself and of {what its experts have taken, its rows}
};

// The numbers that RouteBackward::load sums: the two losses with their factors, then choices and
// dropped choices of each expert.
inline constexpr int64_t load_elems(int64_t experts) { return 2 + 2 * experts; }

// Products of groups of rows, each group with a matrix of its own: rows [offsets[g], offsets[g+1]).
// Rows behind the last group's become zeros in dst. Matrices of groups lie below each other.
//   dst[rows of g] = a[rows of g] · op(b of g)
//   a_transposed: dst of g (+)= a[rows of g]' · b[rows of g]; of no rows that is 0
struct GroupedGemm {
  Tensor a;        // [rows, k]; a_transposed: [rows, m]
  Tensor b;        // [groups * k, n], or [groups * n, k] if b_transposed; a_transposed: [rows, n]
  Tensor dst;      // [rows, n]; a_transposed: [groups * m, n]
  Tensor offsets;  // [1, groups + 1] i32, at most `rows`
  bool a_transposed = false;
  bool b_transposed = false;
  bool accumulate = false;  // with a_transposed alone
  Tensor scratch = {};      // grouped_gemm_scratch_bytes()

  int64_t groups() const { return offsets.cols - 1; }
};

// What a step's clipping leaves for optimizers, in the device's memory.
struct StepControl {
  Tensor factor;  // [1, 1] f32: gradients are multiplied by it as they are read
  Tensor finite;  // [1, 1] i32: 0 means that nothing may be changed
};

struct Clip {
  Tensor sums;          // [1, n] f64: sums of squares first, then other sums that must be finite
  int64_t squares = 0;  // how many of them are squares
  double limit = 0;     // of the norm; 0: no limit
  double eps = 0;       // added to the norm before dividing
  double scale = 1;     // of the loss: what gradients are divided by before anything else
  Tensor norm;  // [1, 1] f64, written: the square root of all squares, summed in order, / scale
  StepControl control;  // written: min(1, limit / (norm + eps)) / scale; whether all are finite
};

// How an optimizer stores what has 16 bits and is carried from step to step (parameters without a
// master, moments): as one of the two neighbours, the nearer one with the greater probability, so
// that changes smaller than half a unit are not lost. Element i is rounded by f32_to_*_drawn
// (base/half.h) with philox_word(key, first + i) if it is a parameter, with first_ and
// second_moment_word of that if it is a moment.
struct StochasticRounding {
  PhiloxKey key;
  int64_t first = 0;
};

// What an optimizer changes, and by which gradients.
struct Stepped {
  Tensor params;       // f32, bf16 or f16
  Tensor grads;        // f32 or params' type
  Tensor master = {};  // f32: what is stepped, then rounded into params; empty: params themselves
  // Of moments of 16 bits, which need it, and of parameters of 16 bits without a master, which are
  // rounded to the nearest without it.
  std::optional<StochasticRounding> rounding = {};
  Tensor factor = {};  // [1, 1] f32, or empty: in the place of StepControl's
};

// State that AdamW keeps of each parameter: f32; bf16, rounded stochastically; or codes of 8 bits
// (base/block8.h), u8, with a scale for each block of kBlock8 parameters, rounded stochastically by
// the upper 16 bits of the same words. A call with codes begins at a block's first parameter.
struct Moment {
  Tensor values;
  Tensor scales = {};  // [1, blocks] f32, of u8 values

  Moment(Tensor of_values, Tensor of_scales = {})  // NOLINT: mostly a tensor is all there is
      : values(of_values), scales(of_scales) {}
};

// A gradient further from zero than this counts as this to AdamW, so that its square is finite: an
// infinite second moment would keep its parameter where it is for ever and, in 8 bits, its whole
// block.
inline constexpr float kLargestGradient = 1e18f;

struct AdamW {
  float learning_rate, beta1, beta2, eps, weight_decay;
  float bias_correction1, bias_correction2;  // 1 - beta^t, or 1 for none
  bool l2 = false;  // Adam: the decay is added to the gradient, and so is part of both moments
};

struct Sgd {
  float learning_rate, momentum, weight_decay;
  bool nesterov;
  bool first;  // no momentum yet: it starts as the gradient
};

// Optimizers and sums of squares take lists: most parameters are small (biases, weights of norms),
// and a card would take longer to start a kernel for each than to run it. What a list does to a
// tensor has the bits of a list of that tensor alone.
struct AdamWStep {
  AdamW hyper;
  Stepped stepped;
  Moment moment1, moment2;
};

struct SgdStep {
  Sgd hyper;
  Stepped stepped;
  Tensor momentum = {};  // empty where hyper.momentum is 0
};

// p (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g), and then m = beta2 m + (1 - beta2) g.
struct Lion {
  float learning_rate, beta1, beta2, weight_decay;
};

struct LionStep {
  Lion hyper;
  Stepped stepped;
  Tensor momentum;  // f32 or bf16
};

// Where an optimizer is going that has to know whole tensors before it moves: states are updated
// and the direction is left in dst. Parameters are only read.
struct Direction {
  enum class Rule : uint8_t {
    lamb,  // m and v as AdamW's; m / (sqrt(v) + eps) + wd p
    lars,  // m = momentum m + lr l (g + wd p), and that; l = trust |p| / (|g| + wd |p|), or 1 where
           // one of the norms is 0
    muon,  // m = momentum m + (1 - momentum) g; that, or with Nesterov's momentum the same again
    adafactor  // of what is no matrix: m = beta1 m + (1 - beta1) g²; g / max(sqrt(m), eps)
  };
  Rule rule = Rule::lamb;
  float beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;  // beta1: the momentum too
  bool eps_inside = false;                                // lamb: sqrt(v + eps)
  bool nesterov = false;
  float learning_rate = 0, trust = 0;  // lars
};

struct DirectionStep {
  Direction hyper;
  Stepped stepped;
  Tensor dst;           // f32
  Tensor moment1;       // f32 or bf16
  Tensor moment2 = {};  // lamb: of the same type
  Tensor squares = {};  // lars: [1, 2] f64, of the whole parameter and of its whole gradient,
                        // before it is multiplied by the factor
};

// params = keep params - rate ratio direction. The direction, f32, is in the place of gradients,
// and no factor is applied to it. With squares ([1, 2] f64, of the whole parameter and of the whole
// direction) the ratio is that of their roots, within [least, most], and 1 where one of them is 0;
// without, it is 1. With `elems`, the number of both's elements, it is Adafactor's: max(least, the
// root mean square of the parameter) / max(1, that of the direction / most).
struct Move {
  float keep, rate;
  float least = 0, most = 0;
  int64_t elems = 0;
};

struct MoveStep {
  Move hyper;
  Stepped stepped;
  Tensor squares = {};
  Tensor ratio = {};  // [1, 1] f64, or empty: in the place of what follows from squares
};

// LAMB's direction where the second moment stays as it is: a fresh one goes on beside it, of
// gradients that follow from two moments in a row. With root(v) = sqrt(v) + eps:
//   m' = beta1 m + (1 - beta1) g, or g where momentum arrives
//   f' = beta2 f + (1 - beta2) ((m' - beta1 m) / (1 - beta1))²
//   dst = m' / root(v) + wd p
// f begins as v where the tensor has no last factor yet.
struct FrozenLamb {
  float beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  bool eps_inside = false;  // root(v) = sqrt(v + eps)
  bool arrives = false;
};

struct FrozenLambStep {
  FrozenLamb hyper;
  Stepped stepped;          // parameters are only read
  Tensor dst;               // f32
  Tensor plain;             // f32: the direction without the decay; empty: nobody asks
  Tensor moment1, moment2;  // f32 or bf16, of one type; the second is only read
  Tensor fresh;             // of the same type
  Tensor ratios;            // [1, kTensorRatios] f32: only read
  Tensor largest;           // [1, 1] f64: becomes the largest root(v) / root(f') if that is more
};

// What LAMB keeps of the ratios of each tensor, in this order: the running mean of its steps'
// ratios; the last factor that this was multiplied by, 0: none yet; and what its momentum is
// multiplied by where it travels, 0: nothing yet.
enum TensorRatio : int { kMeanRatio, kLastFactor, kMomentumScale };
inline constexpr int64_t kTensorRatios = 3;

// The ratio that a tensor's step is multiplied by, and what is kept of it. Without `largest` it is
// that of the roots of `squares` (of the parameter and the direction) within [least, most], 1 where
// one of them is 0, and the mean follows every ratio but 1. With it (one of each rank, of
// FrozenLamb) it is the mean times a factor: s times the largest of all + 1 - s, where s is the
// ratio of the roots of `squares` (of the direction without the decay and with it) and at most 1;
// within [least_factor, most_factor], and then within `threshold` of the last one, times that.
struct TensorTrust {
  Tensor squares;       // [1, 2] f64
  Tensor largest = {};  // [1, ranks] f64, or empty
  Tensor ratios;        // [1, kTensorRatios] f32
  Tensor dst;           // [1, 1] f64
  double least = 0, most = 0, beta = 0;
  double least_factor = 0, most_factor = 0, threshold = 0;
};

// Adafactor's direction of a part of a matrix, whose second moment is the product of a column and a
// row of factors: g / max(sqrt(rows[r] columns[c] / max(mean of rows, eps)), eps).
struct Factored {
  Stepped stepped;    // parameters are not read
  int64_t first = 0;  // the part's first element of the matrix, row after row
  Tensor rows;        // [1, rows of the matrix] f32
  Tensor columns;     // [1, its columns] f32
  Tensor sum;         // [1, 1] f64: of rows
  float eps = 0;
  Tensor dst;  // f32
};

// What a part of a matrix adds to the sums of squares of rows and columns. Rows of which it has
// nothing are not written; columns all are.
struct FactorSquares {
  Tensor x;           // flat
  int64_t first = 0;  // its first element of the matrix, row after row
  Tensor rows;        // [1, rows of the matrix] f64
  Tensor columns;     // [1, its columns] f64
};

// dst += share (times factor² x - dst), where the factor is the gradient's.
struct Blend {
  Tensor x;    // f64
  Tensor dst;  // f32
  double times = 1, share = 0;
  Tensor factor = {};  // as Stepped's
};

struct Squares {
  Tensor x;    // flat
  Tensor dst;  // [1, 1] f64
};

// Numbers further from zero than a limit become it, and dst is their number. What is not finite
// stays so.
struct Clamp {
  Tensor x;    // flat
  Tensor dst;  // [1, 1] f64
};

// A factor for each of n gradients, beside the one for all of them (Clip).
struct ClipEach {
  Tensor squares;       // [1, n] f64: their sums of squares
  Tensor weights = {};  // [1, n] f64, or empty: sums of squares of what they are gradients of
  double limit = 0;     // of the norm; with weights, of its ratio to max(their norm, least)
  double least = 0;
  double eps = 0;    // added to the norm before dividing
  double scale = 1;  // as Clip's
  Tensor factors;    // [1, n] f32, written: min(1, limit / (norm + eps)) / scale
};

// Near which a processor wants the head's logits: larger chunks feed its matrix products better
// (512 rows run 6 % faster than 256 on GPT-2's vocabulary), smaller ones save memory.
inline constexpr int64_t kLogitsBytes = int64_t{100} << 20;

// Numbers of each row that shares of a softmax tell each other (share_softmax).
inline constexpr int64_t kShareStats = 3;

// Interleaved sums that sum() makes of a tensor: so many threads of a card have one each.
inline constexpr int64_t kSumLanes = 256;

// How much scratch a device's kernels take: functions of shapes and of the device alone, so that
// they can be asked where the device is not.
class KernelScratch {
 public:
  virtual ~KernelScratch() = default;
  virtual int64_t gemm_scratch_bytes(const Gemm& args) const = 0;
  virtual int64_t norm_backward_scratch_bytes(int64_t rows, int64_t cols, int64_t groups) const = 0;
  virtual int64_t attention_forward_scratch_bytes(const AttentionShape& shape) const = 0;
  virtual int64_t attention_backward_scratch_bytes(const AttentionShape& shape) const = 0;
  virtual int64_t embedding_backward_scratch_bytes(int64_t rows, int64_t vocabulary) const = 0;
  virtual int64_t column_sum_scratch_bytes(int64_t rows, int64_t cols) const = 0;
  virtual int64_t sum_squares_scratch_bytes(int64_t elems) const = 0;
  // Of devices without mixtures of experts, 0.
  virtual int64_t grouped_gemm_scratch_bytes(const GroupedGemm& /*args*/) const { return 0; }
  virtual int64_t route_backward_scratch_bytes(int64_t /*tokens*/, int64_t /*experts*/) const {
    return 0;
  }
  // The head computes its logits for as many tokens at a time as keep them near this size in fp32.
  virtual int64_t logits_bytes() const = 0;
  // A product of so many rows and columns may be computed in runs of rows that begin at multiples
  // of this (Gemm::of_rows). By its shape alone, so that all ranks cut it alike.
  virtual int64_t row_unit(int64_t /*rows*/, int64_t /*cols*/) const { return 64; }
};

class Kernels : public KernelScratch {
 public:
  virtual void gemm(const Gemm& args) = 0;

  // y = norm(x) * weight (+ bias), with rmsnorm1p norm(x) * (1 + weight), for each of `groups`
  // equal pieces of each row on its own (1: the whole row; heads: QK-norm, where weight has cols /
  // groups elements). x and dst may be the same memory.
  virtual void norm_forward(Norm norm, Tensor x, int64_t groups, Tensor weight, Tensor bias,
                            float eps, Tensor dst) = 0;
  // dx (+)= dy · dy/dx; dweight, dbias (+)= their sums over rows, where wanted. Statistics are
  // taken from x again: cheaper than keeping them. dy and dx may be the same memory when dx is
  // overwritten. dbefore [1, cols], where wanted, (+)= the sums over rows of dx as it was, which is
  // read anyway: with accumulate_dx and one group alone.
  virtual void norm_backward(Norm norm, Tensor x, int64_t groups, Tensor weight, float eps,
                             Tensor dy, Tensor dx, bool accumulate_dx, Tensor dweight, Tensor dbias,
                             Tensor dbefore, bool accumulate_weights, Tensor scratch) = 0;

  // Plain: x is [rows, n]. Gated: x is [rows, 2n] with the gate first, dst = act(gate) * up.
  virtual void activation_forward(Activation act, bool gated, Tensor x, Tensor dst) = 0;
  // dx from dy; also rewrites y = the forward's result if y is not empty (backward needs it, and it
  // was not kept). dbias: of the sums of dx over rows.
  virtual void activation_backward(Activation act, bool gated, Tensor x, Tensor dy, Tensor dx,
                                   Tensor y, const BiasGradient& dbias) = 0;

  // Rotates pairs (i, i + turned/2) of the first `turned` elements of each head in place, by the
  // angle of the row's position. table: [positions, turned], cosines then sines. `inverse` is the
  // backward.
  virtual void rope(Tensor x, int64_t heads, Tensor table, const RowPositions& positions,
                    bool inverse) = 0;

  // Causal attention in tiles. q [batch*query_length, heads*head_dim], k and v [batch*key_length,
  // kv_heads*head_dim], rows strided; out like q, contiguous or strided; lse [batch*heads,
  // query_length] the log-sum-exp of each row of scores. dropout acts on probabilities.
  virtual void attention_forward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v,
                                 Tensor out, Tensor lse, const Dropout& dropout,
                                 Tensor scratch) = 0;
  // query_length == key_length, if causal. dq, dk, dv are overwritten; they must not overlap q, k,
  // v. With out and lse of attention over more keys than these (merge_attention), the gradients are
  // what these keys add to those of all.
  virtual void attention_backward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v,
                                  Tensor out, Tensor dout, Tensor lse, Tensor dq, Tensor dk,
                                  Tensor dv, const Dropout& dropout, Tensor scratch) = 0;

  // Joins attention of the same queries over other keys: out [rows, heads*head_dim] and lse [heads,
  // rows] become those over the keys of both, from `more` and its lse likewise. Of devices that do
  // not have it, InternalError.
  virtual void merge_attention(Tensor /*out*/, Tensor /*lse*/, Tensor /*more*/,
                               Tensor /*more_lse*/) {
    internal_error("this device does not join attention over several sets of keys");
  }

  // dst = residual + x * mask / (1 - rate); residual may be empty, or dst. Forward and backward are
  // the same call. Element (row, col) is number place * cols + col of sample row / length, where
  // place is row % length, or one of dropout.places.
  virtual void dropout(Tensor x, const Dropout& dropout, int64_t length, Tensor residual,
                       Tensor dst) = 0;

  // dst[row] = table[tokens[row]] (+ position_table[the row's position], if not empty). tokens:
  // [1, rows] i32.
  virtual void embedding_forward(Tensor tokens, Tensor table, Tensor position_table,
                                 const RowPositions& positions, Tensor dst) = 0;
  // dtable[token] (+)= the sum of dx over its rows, in row order; dpositions likewise if not empty.
  // A token of `dtable.rows` is in another share's table, and adds nothing.
  // Scratch for a vocabulary of at least as many tokens as dpositions has rows, if there are
  // places.
  virtual void embedding_backward(Tensor tokens, Tensor dx, const RowPositions& positions,
                                  Tensor dtable, bool accumulate_table, Tensor dpositions,
                                  bool accumulate_positions, Tensor scratch) = 0;

  // losses[row] = -log softmax(logits[row])[targets[row]], 0 where the target is negative
  // (ignored). With a gradient_scale ([1, 1] f32), logits become (softmax - onehot) times it in
  // place (0 on ignored rows).
  virtual void cross_entropy(Tensor logits, Tensor targets, Tensor gradient_scale,
                             Tensor losses) = 0;

  // dst = cap · tanh(x / cap); may be x. Backward, from what it left: dx = dy · (1 - (y / cap)²);
  // may be dy.
  virtual void soft_cap(Tensor x, float cap, Tensor dst) = 0;
  virtual void soft_cap_backward(Tensor y, float cap, Tensor dy, Tensor dx) = 0;

  // The same of columns that are a share of all, in two steps. A target of `logits.cols` is in
  // another share's. First stats [kShareStats, rows] f32: of each row the largest logit, the sum of
  // e^(logit - largest), and the target's logit, 0 where it is not here.
  virtual void share_softmax(Tensor /*logits*/, Tensor /*targets*/, Tensor /*stats*/) {
    no_shares();
  }
  // Then, with the stats of all shares in order, [kShareStats * shares, rows], losses and gradients
  // as above. Of devices that do not have it, both throw InternalError.
  virtual void share_cross_entropy(Tensor /*logits*/, Tensor /*targets*/, Tensor /*stats*/,
                                   Tensor /*gradient_scale*/, Tensor /*losses*/) {
    no_shares();
  }

  // Mixtures of experts. Of devices that do not have them, all of these throw InternalError.
  virtual void route(const Route& /*args*/) { no_experts(); }
  virtual void route_backward(const RouteBackward& /*args*/) { no_experts(); }
  // dst [tokens * k, cols]: row r = x[the token of r's choice]; zeros behind the last row.
  virtual void gather_rows(Tensor /*x*/, const Routing& /*routing*/, Tensor /*dst*/) {
    no_experts();
  }
  // dst[token] = base[token] (if not empty; it may be dst) + the sum over its choices that were
  // kept, in their order, of rows[place], times the choice's weight if `weighted`.
  virtual void combine_rows(Tensor /*rows*/, const Routing& /*routing*/, bool /*weighted*/,
                            Tensor /*base*/, Tensor /*dst*/) {
    no_experts();
  }
  // Of y = weight · x, row by row, with dy [tokens * k, cols] and x of the same shape: dweights
  // [tokens, k] f32 of each choice that was kept = dy · x, 0 of the others; then dy and x are
  // multiplied by the weight, in place. Without dy and dweights, x alone. Rows behind the last
  // stay.
  virtual void weigh_rows(const Routing& /*routing*/, Tensor /*dy*/, Tensor /*x*/,
                          Tensor /*dweights*/) {
    no_experts();
  }
  virtual void spread_rows(const SpreadRows& /*args*/) { no_experts(); }
  // A routing of rows as they have come, each to the expert of its number [rows, 1] i32 (rows
  // strided), or to none (-1): of one choice each, all of it but the weights.
  virtual void sort_rows(Tensor /*numbers*/, const Routing& /*routing*/) { no_experts(); }
  virtual void grouped_gemm(const GroupedGemm& /*args*/) { no_experts(); }
  // dst = x · (1 + rate · u), u uniform in [-1, 1): 2 philox_uniform(word) - 1 of the word that
  // dropout() would draw for the element. dst may be x.
  virtual void jitter(Tensor /*x*/, const Dropout& /*noise*/, int64_t /*length*/, Tensor /*dst*/) {
    no_experts();
  }

  // dst (+)= the sum over rows of x: [rows, cols] -> [1, cols].
  virtual void column_sum(Tensor x, Tensor dst, bool accumulate, Tensor scratch) = 0;

  virtual void copy(Tensor src, Tensor dst) = 0;
  virtual void fill(Tensor dst, float value) = 0;
  virtual void add(Tensor a, Tensor b, Tensor dst) = 0;        // dst may be a or b
  virtual void scale(Tensor x, float factor, Tensor dst) = 0;  // dst = factor · x; may be x

  // dst [1, 1] f64 = the sum of a flat f32 or f64 tensor in double: of every kSumLanes-th element,
  // in order; then the upper half of these sums is added to the lower one, until one is left.
  virtual void sum(Tensor x, Tensor dst) = 0;
  // Each dst = the sum of squares of its x, in double, chunk by chunk in order; values that are not
  // finite come through as such. Then total [1, 1] f64 = sum() of `all`, f64, which has the dsts
  // among its elements. Scratch: sum_squares_scratch_bytes() of each x, together.
  virtual void sum_squares(std::span<const Squares> list, Tensor all, Tensor total,
                           Tensor scratch) = 0;
  virtual void clip(const Clip& args) = 0;
  virtual void clip_each(const ClipEach& args) = 0;
  virtual void clamp(std::span<const Clamp> list, float limit) = 0;
  // dst = x / (sqrt(squares) + eps), of f32; squares: [1, 1] f64. dst may be x.
  virtual void normalise(Tensor x, Tensor squares, float eps, Tensor dst) = 0;

  // One pass over flat tensors, equally long in each step of the list; nothing if control.finite
  // says so.
  virtual void adamw(const StepControl& control, std::span<const AdamWStep> list) = 0;
  virtual void sgd(const StepControl& control, std::span<const SgdStep> list) = 0;
  virtual void lion(const StepControl& control, std::span<const LionStep> list) = 0;
  virtual void direction(const StepControl& control, std::span<const DirectionStep> list) = 0;
  virtual void frozen_lamb(const StepControl& control, std::span<const FrozenLambStep> list) = 0;
  virtual void tensor_trust(const StepControl& control, std::span<const TensorTrust> list) = 0;
  virtual void move(const StepControl& control, std::span<const MoveStep> list) = 0;
  virtual void factored(const StepControl& control, std::span<const Factored> list) = 0;
  virtual void factor_squares(std::span<const FactorSquares> list) = 0;
  virtual void blend(const StepControl& control, std::span<const Blend> list) = 0;

 private:
  [[noreturn]] static void no_shares() {
    internal_error("this device has no softmax over shares of a vocabulary");
  }
  [[noreturn]] static void no_experts() {
    internal_error("this device has no mixtures of experts");
  }
};

class ThreadPool;
std::unique_ptr<Kernels> make_cpu_kernels(ThreadPool& pool);
// What make_cpu_kernels' would take on so many threads of a processor that multiplies bf16 by
// instructions of its own, or does not.
std::unique_ptr<KernelScratch> make_cpu_scratch(int threads, bool multiplies_bf16);
// Whether this machine's does.
bool cpu_multiplies_bf16();

// The SIMD instruction set the vector kernels dispatch to on this machine ("AVX2", "AVX3", "NEON",
// ...).
const char* cpu_simd_name();

}  // namespace onefold
