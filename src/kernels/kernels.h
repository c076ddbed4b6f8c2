// The one list of operations. A device implements this interface (cpu/, dry/, later cuda/), file by
// file under the same names; nothing above this layer knows which one runs. Kernels know no rank,
// allocate nothing and keep no state between calls: scratch comes from the caller, who asks for its
// size with the *_scratch() twin (in f32 elements).
//
// Shapes are written [rows, cols]. "tokens" counts the rows of one micro-batch: batch * sequence,
// sequence innermost. `accumulate` says whether a result is added to dst or overwrites it (first
// use of a gradient needs no zeroing pass). All sums have an order that depends on shapes alone,
// never on the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/philox.h"
#include "tensor/tensor.h"

namespace onefold {

enum class Norm : uint8_t { layernorm, rmsnorm };
enum class Activation : uint8_t { relu, gelu, gelu_tanh, silu };

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
  Tensor scratch = {};   // gemm_scratch() elements; empty where that is 0
};

// How matrix products are computed: all by the library, all with a third fewer multiplications (see
// cpu/paired_gemm.cpp), or each in the way that is faster for its size on this processor.
enum class Products : uint8_t { automatic, library, paired };

// Which elements a dropout keeps is a function of the key (seed, step, unit, site), the sample and
// the position in it.
struct Dropout {
  float rate = 0;  // 0 switches it off
  PhiloxKey key;
  const int64_t* samples = nullptr;  // [batch] ids of the sequences in this micro-batch
};

struct AttentionShape {
  int64_t batch = 0;
  int64_t query_length = 0;
  int64_t key_length = 0;  // >= query_length: query i sees keys up to i + key_length - query_length
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads; query head h reads key head h / (heads / kv_heads)
  int64_t head_dim = 0;
};

struct AdamW {
  float learning_rate, beta1, beta2, eps, weight_decay;
  float bias_correction1, bias_correction2;  // 1 - beta^t
  float gradient_scale;                      // clipping; applied to the gradient as it is read
};

struct Sgd {
  float learning_rate, momentum, weight_decay, gradient_scale;
  bool nesterov;
  bool first;  // no momentum yet: it starts as the gradient
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  virtual void gemm(const Gemm& args) = 0;
  virtual int64_t gemm_scratch(const Gemm& args) const = 0;

  // y = norm(x) * weight (+ bias), for each of `groups` equal pieces of each row on its own (1: the
  // whole row; heads: QK-norm, where weight has cols / groups elements). x and dst may be the same
  // memory.
  virtual void norm_forward(Norm norm, Tensor x, int64_t groups, Tensor weight, Tensor bias,
                            float eps, Tensor dst) = 0;
  // dx (+)= dy · dy/dx; dweight, dbias (+)= their sums over rows, where wanted. Statistics are
  // taken from x again: cheaper than keeping them. dy and dx may be the same memory when dx is
  // overwritten.
  virtual void norm_backward(Norm norm, Tensor x, int64_t groups, Tensor weight, float eps,
                             Tensor dy, Tensor dx, bool accumulate_dx, Tensor dweight, Tensor dbias,
                             bool accumulate_weights, Tensor scratch) = 0;
  virtual int64_t norm_backward_scratch(int64_t rows, int64_t cols, int64_t groups) const = 0;

  // Plain: x is [rows, n]. Gated: x is [rows, 2n] with the gate first, dst = act(gate) * up.
  virtual void activation_forward(Activation act, bool gated, Tensor x, Tensor dst) = 0;
  // dx from dy; also rewrites y = the forward's result if y is not empty (backward needs it, and it
  // was not kept).
  virtual void activation_backward(Activation act, bool gated, Tensor x, Tensor dy, Tensor dx,
                                   Tensor y) = 0;

  // Rotates pairs (i, i + head_dim/2) of each head in place, by the angle of position `first + row
  // % length`. table: [positions, head_dim], cosines then sines. `inverse` is the backward.
  virtual void rope(Tensor x, int64_t heads, Tensor table, int64_t first, int64_t length,
                    bool inverse) = 0;

  // Causal attention in tiles. q [batch*query_length, heads*head_dim], k and v [batch*key_length,
  // kv_heads*head_dim], rows strided; out like q, contiguous or strided; lse [batch*heads,
  // query_length] the log-sum-exp of each row of scores. Scores are scaled by 1/sqrt(head_dim).
  // dropout acts on probabilities.
  virtual void attention_forward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v,
                                 Tensor out, Tensor lse, const Dropout& dropout,
                                 Tensor scratch) = 0;
  virtual int64_t attention_forward_scratch(const AttentionShape& shape) const = 0;
  // query_length == key_length. dq, dk, dv are overwritten; they must not overlap q, k, v.
  virtual void attention_backward(const AttentionShape& shape, Tensor q, Tensor k, Tensor v,
                                  Tensor out, Tensor dout, Tensor lse, Tensor dq, Tensor dk,
                                  Tensor dv, const Dropout& dropout, Tensor scratch) = 0;
  virtual int64_t attention_backward_scratch(const AttentionShape& shape) const = 0;

  // dst = residual + x * mask / (1 - rate); residual may be empty, or dst. Forward and backward are
  // the same call. Element (row, col) is number (row % length) * cols + col of sample row / length.
  virtual void dropout(Tensor x, const Dropout& dropout, int64_t length, Tensor residual,
                       Tensor dst) = 0;

  // dst[row] = table[tokens[row]] (+ positions[first + row % length]). tokens: [1, rows] i32.
  virtual void embedding_forward(Tensor tokens, Tensor table, Tensor positions, int64_t first,
                                 int64_t length, Tensor dst) = 0;
  // dtable[token] (+)= the sum of dx over its rows, in row order; dpositions likewise if not empty.
  virtual void embedding_backward(Tensor tokens, Tensor dx, int64_t length, Tensor dtable,
                                  bool accumulate_table, Tensor dpositions,
                                  bool accumulate_positions, Tensor scratch) = 0;
  virtual int64_t embedding_backward_scratch(int64_t rows, int64_t vocabulary) const = 0;

  // losses[row] = -log softmax(logits[row])[targets[row]], 0 where the target is negative
  // (ignored). With gradient_scale != 0, logits become (softmax - onehot) * gradient_scale in place
  // (0 on ignored rows).
  virtual void cross_entropy(Tensor logits, Tensor targets, float gradient_scale,
                             Tensor losses) = 0;

  // dst (+)= the sum over rows of x: [rows, cols] -> [1, cols].
  virtual void column_sum(Tensor x, Tensor dst, bool accumulate, Tensor scratch) = 0;
  virtual int64_t column_sum_scratch(int64_t rows, int64_t cols) const = 0;

  virtual void copy(Tensor src, Tensor dst) = 0;
  virtual void fill(Tensor dst, float value) = 0;
  virtual void add(Tensor a, Tensor b, Tensor dst) = 0;  // dst may be a or b

  // The sum of squares of a flat tensor, in double, chunk by chunk in order. Non-finite values come
  // through as such.
  virtual double sum_squares(Tensor x, Tensor scratch) = 0;
  virtual int64_t sum_squares_scratch(int64_t elems) const = 0;

  // One pass over flat, equally long tensors.
  virtual void adamw(const AdamW& hyper, Tensor params, Tensor grads, Tensor moment1,
                     Tensor moment2) = 0;
  virtual void sgd(const Sgd& hyper, Tensor params, Tensor grads, Tensor momentum) = 0;
};

class ThreadPool;
std::unique_ptr<Kernels> make_cpu_kernels(ThreadPool& pool, Products products);

// Kernels that neither read nor write memory, with the scratch sizes of `like`.
std::unique_ptr<Kernels> make_dry_kernels(std::unique_ptr<Kernels> like);

// Whether large products are faster when paired. That is a matter of what this processor is, not of
// a measurement: the bits depend on it.
bool cpu_gains_by_pairing();

// The SIMD instruction set the vector kernels dispatch to on this machine ("AVX2", "AVX3", "NEON",
// ...).
const char* cpu_simd_name();

}  // namespace onefold
