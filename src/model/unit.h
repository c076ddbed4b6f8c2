// A unit is the piece of a model that is gathered, computed and released as a whole: the embedding,
// each block, the head. It knows its parameters, how much it must keep between forward and
// backward, and how to do both; it knows nothing of ranks, slabs, programs or devices. Everything
// it works on arrives in a UnitCall.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/spec.h"
#include "tensor/ledger.h"

namespace onefold {

enum class Init : uint8_t {
  normal,
  residual,
  zeros,
  ones
};  // residual: normal, scaled down with depth as GPT-2's

struct ParamSpec {
  std::string name;  // "block.3.mlp.up.weight"
  int64_t rows = 0;
  int64_t cols = 0;
  Init init = Init::normal;
  bool decay = false;  // whether weight decay applies: matrices and tables, not norms and biases

  int64_t elems() const { return rows * cols; }
};

// A micro-batch as units see it. In training and evaluation positions start at 0; in generation
// they follow the cache.
struct BatchView {
  Tensor tokens;                     // [1, batch*sequence] i32
  Tensor targets;                    // same shape; negative: ignored
  const int64_t* samples = nullptr;  // [batch] global ids, keys of dropout
  int64_t batch = 0;
  int64_t sequence = 0;

  int64_t tokens_count() const { return batch * sequence; }
};

// Keys and values of the positions already seen by one block, for generation. Rows are [batch,
// capacity].
struct KvCache {
  Tensor keys;    // [batch*capacity, kv_size]
  Tensor values;  // [batch*capacity, kv_size]
  int64_t capacity = 0;
  int64_t length = 0;  // positions filled before this call
};

struct UnitCall {
  Kernels& kernels;
  Arena& arena;
  const BatchView& batch;
  std::span<const Tensor> params;  // in the order of Unit::params(), then Unit::shared()
  std::span<const Tensor> grads;   // the same; empty in forward. An empty tensor is not wanted: it
                                   // belongs to a frozen unit
  bool accumulate = false;  // grads hold a sum of earlier micro-batches (else: undefined memory)
  Tensor input;             // [tokens, hidden]; kept by the engine until backward
  Tensor saved;             // [1, saved_elems()]; likewise
  Tensor output;            // [tokens, hidden]: the next unit's input; empty where it is not wanted
  Tensor stream;  // backward: the loss's gradient by output; becomes the one by input, in place
  Tensor rope;    // [positions, head_dim] cosines and sines, or empty
  Tensor losses;  // head: [1, tokens] loss of each token
  float loss_scale = 0;  // head, backward: 1 / valid targets of the whole global batch
  float dropout = 0;     // 0 outside training
  uint64_t seed = 0;
  int64_t step = 0;
  KvCache* cache = nullptr;  // generation only

  Dropout dropout_at(uint32_t unit, uint32_t site) const;
  // A product, with scratch from the arena where the device wants some.
  void gemm(Gemm product) const;
};

class Unit {
 public:
  virtual ~Unit() = default;

  const std::string& name() const { return name_; }
  const std::vector<ParamSpec>& params() const { return params_; }
  // Parameters of another unit that this one also reads and adds gradients to (the tied head: the
  // token table).
  struct Shared {
    int unit, param;
  };
  const std::vector<Shared>& shared() const { return shared_; }

  // False where backward needs gradients alone (the embedding): nothing is gathered for it.
  virtual bool backward_reads_parameters() const { return true; }

  virtual int64_t saved_elems(int64_t batch, int64_t sequence) const = 0;
  virtual void forward(const UnitCall& call) const = 0;
  virtual void backward(const UnitCall& call) const = 0;

 protected:
  Unit(const ModelSpec& spec, std::string name, int index)
      : spec_(spec), name_(std::move(name)), index_(index) {}
  // Adds a parameter and returns its place in call.params; -1 if `present` is false.
  int add(bool present, const std::string& name, int64_t rows, int64_t cols, Init init, bool decay);

  // The tensor at a place that add() returned; empty for -1.
  static Tensor at(std::span<const Tensor> list, int place) {
    return place < 0 ? Tensor{} : list[static_cast<size_t>(place)];
  }

  const ModelSpec spec_;
  const std::string name_;
  const int index_;
  std::vector<ParamSpec> params_;
  std::vector<Shared> shared_;
};

// A model is its units in order: embedding, blocks, head. The head is entered backwards only: its
// forward, the loss and its backward are one pass over chunks of tokens, so that logits exist for
// one chunk at a time and are computed once.
struct Model {
  ModelSpec spec;
  std::vector<std::unique_ptr<Unit>> units;

  explicit Model(const ModelSpec& spec);
  int head() const { return static_cast<int>(units.size()) - 1; }
};

// Every parameter of a model, unit after unit: the order in which an engine visits them.
std::vector<ParamSpec> parameters_of(const ModelSpec& spec);

std::unique_ptr<Unit> make_embedding(const ModelSpec& spec);
std::unique_ptr<Unit> make_block(const ModelSpec& spec, int layer);
std::unique_ptr<Unit> make_head(const ModelSpec& spec);

// How many of a micro-batch's tokens the head takes at a time.
int64_t head_chunk_tokens(int64_t tokens, int64_t vocabulary);

// The head's logits for given rows of its input (generation): logits [rows, vocab].
void head_logits(const UnitCall& call, const Unit& head, Tensor rows, Tensor logits);

// Rope's table for `positions` positions, computed in double: [positions, head_dim].
void fill_rope_table(const ModelSpec& spec, Tensor table);

}  // namespace onefold
