// A unit is the piece of a model that is gathered, computed and released as a whole: the embedding,
// each block's attention, each block's MLP, the head. It knows its parameters, how much it must
// keep between forward and backward, and how to do both; it knows nothing of ranks, slabs, programs
// or devices. Everything it works on arrives in a UnitCall.
//
// Forward and backward are lists of phases. Between two phases a unit names a tensor and a role
// (sum, gather, exchange, shift, dispatch), never a rank: there a program may put what tensor,
// sequence, context and expert parallelism exchange. On one rank nothing travels.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/share.h"
#include "model/spec.h"
#include "tensor/ledger.h"

namespace onefold {

enum class Init : uint8_t {
  normal,
  residual,
  zeros,
  ones,
  fan_in
};  // residual: normal, scaled down with depth as GPT-2's; fan_in: uniform within 1 / sqrt(cols)

struct ParamSpec {
  std::string name;  // "block.3.mlp.up.weight"
  int64_t rows = 0;
  int64_t cols = 0;
  Init init = Init::normal;
  bool decay = false;  // whether weight decay applies: matrices and tables, not norms and biases
  // What its random numbers are keyed by: the layer (0: embedding, then the blocks, then the head)
  // and the parameter's place in it, however a layer is divided into units.
  uint32_t layer_key = 0, place_key = 0;
  // Rows of zeros that follow it in memory (Gemm::slack): no part of the parameter.
  int64_t slack_rows = 0;
  bool adapter = false;  // LoRA's: trained in the place of the others

  // Of a share of a model. The boxes of the whole parameter that are here, one after the other,
  // each row by row; none: all of it.
  std::vector<Box> boxes = {};
  // Its first so many elements are this share's own, to be counted and saved here; the rest an
  // earlier share has too. -1: all are its own.
  int64_t own = -1;
  // From the element `summed_from` on, the gradient here is a part of that of the parameter: the
  // whole is the sum over all shares, over those that hold the same key and value heads, or over
  // those that divide experts.
  struct SummedOver {
    bool shares = false, replicas = false, holders = false;
    bool any() const { return shares || replicas || holders; }
  };
  int64_t summed_from = 0;
  SummedOver summed_over = {};

  int64_t elems() const { return rows * cols; }
  int64_t own_elems() const { return own < 0 ? elems() : own; }
};

// Calls visit(first, whole_first, elems) for elements [begin, end) of a parameter that are
// successive in the whole parameter too, of `whole_cols` columns.
template <class Visit>
void for_each_run(const ParamSpec& param, int64_t whole_cols, int64_t begin, int64_t end,
                  const Visit& visit) {
  if (param.boxes.empty()) {
    if (begin < end) visit(begin, begin, end - begin);
    return;
  }
  int64_t box_begin = 0;
  for (const Box& box : param.boxes) {
    const int64_t box_end = box_begin + box.elems();
    // Rows that are whole lie together.
    const int64_t step = box.cols == whole_cols ? box.elems() : box.cols;
    for (int64_t at = std::max(begin, box_begin); at < std::min(end, box_end);) {
      const int64_t inside = at - box_begin, row = inside / box.cols, col = inside % box.cols;
      const int64_t elems = std::min({end, box_end, box_begin + (inside / step + 1) * step}) - at;
      visit(at, (box.row + row) * whole_cols + box.col + col, elems);
      at += elems;
    }
    box_begin = box_end;
  }
}

// Elements [begin, end) of a parameter as boxes of the whole one, in their order.
std::vector<Box> boxes_of(const ParamSpec& param, int64_t begin, int64_t end);

// A micro-batch on the host, as the engine is given it.
struct BatchView {
  std::span<const int32_t> tokens;   // [batch*sequence]
  std::span<const int32_t> targets;  // likewise; negative: ignored. Empty in generation
  std::span<const int64_t> samples;  // [batch] global ids, keys of dropout; may be empty without it
  // [batch*sequence], or empty: where in its sequence each token's document begins. Tokens see only
  // their own document, and positions count from its beginning.
  std::span<const int32_t> starts;
  int64_t batch = 0;
  int64_t sequence = 0;

  int64_t tokens_count() const { return batch * sequence; }
};

// The same in the device's memory, as units see it. In training and evaluation positions start at
// 0; in generation they follow the cache.
struct UnitBatch {
  // [1, batch*sequence] i32. Of a share of the vocabulary: places in it, and the first place behind
  // it for tokens and targets of other shares.
  Tensor tokens, targets;
  Tensor samples;  // [1, batch] i64
  Tensor starts;   // [1, batch*sequence] i32, or empty
  // Of a part of each sequence (Share::parts), of whose tokens all of this is: the place of each in
  // its sequence, [1, batch*sequence] i32, and the starts of all tokens of the sequences, if there
  // are starts. Else empty.
  Tensor places, all_starts;
  int64_t batch = 0;
  int64_t sequence = 0;  // tokens of one that are here

  int64_t tokens_count() const { return batch * sequence; }
};

// Keys and values of the positions already seen by one block, for generation. Rows are [batch,
// capacity].
struct KvCache {
  Tensor keys;    // [batch*capacity, kv_size]
  Tensor values;  // [batch*capacity, kv_size]
  int64_t capacity = 0;
  int64_t length = 0;    // positions filled before this call
  bool in_long = false;  // keys are turned as those of long sequences (RopeScaling)
};

// What happens to a unit's tensor between two phases where the unit is split over ranks: shares sum
// and gather, parts of sequences exchange and shift, holders of experts dispatch rows and return
// them.
enum class Role : uint8_t { none, sum, gather, exchange, shift, dispatch };

struct Phase {
  const char* name;
  Role role = Role::none;   // of Unit::boundary(), after this phase
  bool by_weights = false;  // backward: makes gradients of parameters alone, and may come later
  // May be called for runs of rows (UnitCall::rows) one after the other; what travels after it is
  // of these rows.
  bool by_rows = false;
  // Reads nothing of what travels after the phase before it, and so may be computed meanwhile. What
  // travels before that has come.
  bool beside = false;
};

struct UnitCall {
  Kernels& kernels;
  Arena& arena;
  const UnitBatch& batch;
  std::span<const Tensor> params;  // in the order of Unit::params(), then Unit::shared()
  std::span<const Tensor> grads;   // the same; empty in forward. An empty tensor is not wanted: it
                                   // belongs to a frozen unit
  bool accumulate = false;  // grads hold a sum of earlier micro-batches (else: undefined memory)
  Tensor input;             // [tokens, hidden]; kept by the engine until backward
  Tensor saved;             // [1, saved_bytes()] u8; likewise
  Tensor output;            // [tokens, hidden]: the next unit's input; empty where it is not wanted
  // Backward: the loss's gradient by output, and by input. They may be the same memory if the
  // phases run in their order.
  Tensor doutput, dinput;
  Tensor rope;        // [positions, rope_cols()] cosines and sines, or empty
  Tensor losses;      // head: [1, tokens] loss of each token
  Tensor loss_scale;  // head, backward: [1, 1] 1 / valid targets of the whole global batch
  // Experts, backward: [1, 1] f32, what the gradients of a router's losses are multiplied by; and
  // [1, load_elems()] f64, to which their load is added. Empty where there is none.
  Tensor router_scale, load;
  float dropout = 0;  // 0 outside training
  bool training = false;
  uint64_t seed = 0;
  int64_t step = 0;
  KvCache* cache = nullptr;  // generation only

  // Temporaries from the arena that one phase leaves to a later one; the unit numbers them.
  std::array<Tensor, 14> temps = {};
  int64_t arena_mark = 0;

  Tensor rows_needed = {};  // experts that are divided: SpreadRows::needed

  // Of a phase by rows, those of this time; none: all.
  Span rows = {};
  Tensor of_rows(Tensor all) const {
    return rows.size > 0 ? all.row_range(rows.first, rows.size) : all;
  }

  // All that a unit is given, as bytes, but for what random numbers are made of (seed and step) and
  // the cache: addresses, shapes and flags. Calls with equal ones enqueue the same work.
  std::string identity() const;

  // Of activations: as of parameters.
  DType type() const { return params[0].dtype; }
  Dropout dropout_at(uint32_t layer, uint32_t site) const;
  // A product, with scratch from the arena where the device wants some.
  void gemm(Gemm product) const;
  // Temporaries of the activations' type: from the arena; and temps[index], taken from it at first
  // use.
  Tensor take(int64_t rows, int64_t cols) const { return arena.take(rows, cols, type()); }
  Tensor temp(size_t index, int64_t rows, int64_t cols);
};

enum class BlockPart : uint8_t { none, attention, mlp, both };

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

  // What programs need to know of it.
  virtual bool is_first() const { return false; }  // reads tokens, has no input
  virtual bool has_loss() const { return false; }  // entered backwards only; nothing follows it
  // What it is a part of; -1: of no block, and keeps nothing that could be computed again.
  virtual int block() const { return -1; }
  virtual BlockPart part() const { return BlockPart::none; }
  // Of a mixture: how many, whose load a training measures.
  virtual int64_t experts() const { return 0; }
  // False where backward needs gradients alone (the embedding): nothing is gathered for it.
  virtual bool backward_reads_parameters() const { return true; }

  // With activations of this type.
  virtual int64_t saved_bytes(int64_t batch, int64_t sequence, DType type) const = 0;

  virtual int phases(bool backward, int64_t tokens) const = 0;
  virtual Phase phase(bool backward, int index, int64_t tokens) const = 0;
  virtual void run(bool backward, int index, UnitCall& call) const = 0;
  // What travels after a phase whose role is not none. Of an exchange (or dispatch): equal blocks,
  // one for each part (or holder) in order, and where those of the others arrive, which is other
  // memory. Of a shift:
  // what the next part gets, and where that of the part before arrives.
  virtual Tensor boundary(bool backward, int index, const UnitCall& call) const;
  virtual Tensor arrival(bool backward, int index, const UnitCall& call) const;

  // All phases in order, which is how a unit that is not split runs.
  void forward(UnitCall& call) const { run_all(false, call); }
  void backward(UnitCall& call) const { run_all(true, call); }

 protected:
  Unit(const ModelSpec& spec, const Share& share, std::string name, int layer, int first_place = 0)
      : whole_(spec),
        share_(share),
        spec_(spec_of(spec, share)),
        name_(std::move(name)),
        layer_(static_cast<uint32_t>(layer)),
        first_place_(first_place) {}
  // Adds a parameter and returns its place in call.params; -1 if `present` is false.
  int add(bool present, const std::string& name, int64_t rows, int64_t cols, Init init, bool decay);
  // The same of a parameter that shares divide: what is here of one of so many rows and columns.
  int add_divided(bool present, const std::string& name, int64_t rows, int64_t cols, Init init,
                  bool decay, std::vector<Box> boxes);
  // The same, whatever divides it: boxes of the whole parameter, each `wide` columns.
  int add_boxes(const std::string& name, int64_t wide, Init init, bool decay,
                std::vector<Box> boxes);
  void run_all(bool backward, UnitCall& call) const;

  // A table with a row for each token of the vocabulary, with slack up to an even size.
  int add_vocabulary(bool present, const std::string& name);

  // The tensor at a place that add() returned; empty for -1.
  static Tensor at(std::span<const Tensor> list, int place) {
    return place < 0 ? Tensor{} : list[static_cast<size_t>(place)];
  }

  // Its gradient here is a part of the whole one: each share makes that of its own heads or
  // columns.
  void sum_over_shares(int place) {
    if (place >= 0 && !share_.whole())
      params_[static_cast<size_t>(place)].summed_over.shares = true;
  }
  // Of a norm before what shares divide: where nothing sums inside of units, each share has a part.
  void sum_of_norm(int weight, int bias) {
    if (!share_.scattered) return;
    sum_over_shares(weight);
    sum_over_shares(bias);
  }
  // Of shares whose results are summed, one adds what is to be added once.
  bool adds_once() const { return share_.first() || !share_.scattered; }

  Init norm_init() const { return spec_.norm == Norm::rmsnorm1p ? Init::zeros : Init::ones; }

  int64_t vocabulary_slack() const { return vocabulary_rows(whole_, share_) - spec_.vocab_size; }

  const ModelSpec whole_;  // of all shares
  const Share share_;
  const ModelSpec spec_;  // of this one
  const std::string name_;
  const uint32_t layer_;  // the key of random numbers: 0 is the embedding, then the blocks
  const int first_place_;
  std::vector<ParamSpec> params_;
  std::vector<Shared> shared_;
};

// What products over a vocabulary are padded to, where a device wants that.
inline constexpr int64_t kVocabularyAlign = 64;

// A model is its units in order: embedding, then attention and MLP of each block (one unit where
// they are parallel), head. The head is
// entered backwards only: its forward, the loss and its backward are one pass over chunks of
// tokens, so that logits exist for one chunk at a time and are computed once.
struct Model {
  ModelSpec spec;       // of the whole
  Share share;          // that the units compute
  ExpertShare experts;  // of each mixture's, those that are here
  std::vector<std::unique_ptr<Unit>> units;

  // `logits_bytes`: what the device's kernels ask for (KernelScratch).
  explicit Model(const ModelSpec& spec, int64_t logits_bytes = kLogitsBytes,
                 const Share& share = {}, const ExpertShare& experts = {});
  int head() const { return static_cast<int>(units.size()) - 1; }
};

// Every parameter of a model, unit after unit: the order in which an engine visits them.
std::vector<ParamSpec> parameters_of(const ModelSpec& spec);

// Whether a run keeps it: of a model with adapters they alone, for the rest lies where it came
// from.
inline bool is_saved(const ModelSpec& spec, const ParamSpec& param) {
  return !spec.lora.enabled() || param.adapter;
}

std::unique_ptr<Unit> make_embedding(const ModelSpec& spec, const Share& share = {});
std::unique_ptr<Unit> make_attention(const ModelSpec& spec, int block, const Share& share = {});
std::unique_ptr<Unit> make_mlp(const ModelSpec& spec, int block, const Share& share = {},
                               const ExpertShare& experts = {});
// The MLP of a block that has experts, of which a share is here.
std::unique_ptr<Unit> make_mixture(const ModelSpec& spec, int block, const Share& share = {},
                                   const ExpertShare& experts = {});
// The MLP of a block whose attention it is beside: the same input, and its result is added to what
// attention has left in the output. Its parameters are those of attention, and then its own.
std::unique_ptr<Unit> make_mlp_beside(const Unit& attention, const ModelSpec& spec, int block,
                                      const Share& share);
std::unique_ptr<Unit> make_parallel(const ModelSpec& spec, int block, const Share& share = {});
std::unique_ptr<Unit> make_head(const ModelSpec& spec, int64_t logits_bytes = kLogitsBytes,
                                const Share& share = {});

// The head's logits for given rows of its input (generation): logits [rows, vocab].
void head_logits(UnitCall& call, const Unit& head, Tensor rows, Tensor logits);

// One row of rope's table, computed in double: rotary_dim/2 cosines, then as many sines; and the
// same once more of local_rope_theta, if there is one.
void rope_row(const ModelSpec& spec, int64_t position, std::span<float> row);

}  // namespace onefold
