// Causal attention: whole sequences, queries over a cache, grouped heads, dropout, documents.
#include <cmath>

#include "kernel_cases/attention_oracle.h"
#include "kernel_cases/families.h"

namespace onefold::cases {
namespace {

using Params = AttentionParams;

// Multiples of 1/16 (times a power of two): every product of two heads, a sum of up to 256 products
// of such numbers below 6, is exact in float, so that bounds need to allow for the softmax and what
// follows alone; types of 16 bits hold them. Products of any numbers are gemm's cases.
HostTensor coarse(DType dtype, int64_t rows, int64_t cols, uint64_t seed, int64_t gap,
                  float scale = 1) {
  HostTensor tensor = normals(rows, cols, seed, gap);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t col = 0; col < cols; ++col)
      tensor.set(row, col, scale * std::round(16 * tensor.at(row, col)) / 16);
  return tensor.as(dtype);
}

struct Tensors {
  int q, k, v, out, lse, samples, starts;
};

Tensors add_tensors(Case& c, const Params& p) {
  const int64_t cols = p.heads * p.head_dim, kv_cols = p.kv_heads * p.head_dim;
  // Strides as in one buffer of queries, keys and values.
  const int64_t q_gap = 2 * kv_cols + p.gap, kv_gap = cols + kv_cols + p.gap;
  Tensors t;
  t.q = c.input("q", coarse(p.dtype, p.batch * p.queries, cols, 1, q_gap, p.scale));
  t.k = c.input("k", coarse(p.dtype, p.batch * p.keys, kv_cols, 2, kv_gap, p.scale));
  t.v = c.input("v", coarse(p.dtype, p.batch * p.keys, kv_cols, 3, kv_gap, p.scale));
  t.out = c.output("out", HostTensor(p.batch * p.queries, cols, p.gap, p.dtype).clear());
  t.lse = c.output("lse", HostTensor(p.batch * p.heads, p.queries, p.gap).clear());
  t.samples =
      p.rate == 0
          ? -1
          : c.input("samples",
                    row_of(std::vector<int64_t>(kAttentionSamples, kAttentionSamples + p.batch)));
  t.starts = p.documents.empty() ? -1 : c.input("starts", row_of(p.starts()));
  return t;
}

AttentionShape shape_of(const Params& p, const Tensors& t, const Call& call) {
  return {.batch = p.batch,
          .query_length = p.queries,
          .key_length = p.keys,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .head_dim = p.head_dim,
          .starts = t.starts < 0 ? Tensor{} : call[t.starts],
          .dtype = p.dtype,
          .first_head = p.first_head,
          .window = p.window,
          .scale = p.score_scale,
          .soft_cap = p.soft_cap,
          .alibi = p.alibi,
          .alibi_heads = p.alibi_heads,
          .causal = p.causal};
}

Dropout dropout_of(const Params& p, const Tensors& t, const Call& call) {
  return {p.rate, kAttentionKey, t.samples < 0 ? Tensor{} : call[t.samples]};
}

void run_forward(Call& call, const Params& p, const Tensors& t) {
  const AttentionShape shape = shape_of(p, t, call);
  call.kernels().attention_forward(
      shape, call[t.q], call[t.k], call[t.v], call[t.out], call[t.lse], dropout_of(p, t, call),
      call.scratch(call.kernels().attention_forward_scratch_bytes(shape)));
}

// 1e-30: exponentials below e^-86.9 are 0.
constexpr double kSmallest = 1e-30;

// The relative error of a number above 2^-14 that is stored in a type of 16 bits.
double rounding_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
}

// What happens to probabilities and scores' gradients between two products: ours stay in fp32, a
// library's are rounded to the type.
struct Between {
  DType dtype;
  bool rounded;

  double rounding() const { return rounded ? rounding_of(dtype) : 0; }
  // The absolute error of a sum of `terms` products with `most` at most, where the other factor was
  // stored in between: fp16 has multiples of 2^-24 below 2^-14.
  double underflow(int64_t terms, double most) const {
    const bool in_steps = rounded && dtype == DType::f16;
    return kSmallest + (in_steps ? 0x1p-25 * static_cast<double>(terms) * most : 0);
  }
};

// Both oracles of a case, from oracle(in, between).
template <class Oracle>
void set_expected(Case& c, DType dtype, const Oracle& oracle) {
  c.expected = [=](const Case& in) { return oracle(in, Between{dtype, false}); };
  if (dtype != DType::f32)
    c.expected_of_library = [=](const Case& in) { return oracle(in, Between{dtype, true}); };
}

struct Inputs {
  Doubles q, k, v;
};
Inputs inputs_of(const Case& in, const Tensors& t) {
  return {in[t.q].doubles(), in[t.k].doubles(), in[t.v].doubles()};
}

Case forward_case(const Params& p) {
  Case c;
  const Tensors t = add_tensors(c, p);
  c.run = [=](Call& call) { run_forward(call, p, t); };
  set_expected(c, p.dtype, [=](const Case& in, const Between& between) {
    const auto [q, k, v] = inputs_of(in, t);
    const AttentionSoftmax softmax = attention_softmax(p, attention_scores(p, q, k));
    const Doubles multipliers = attention_multipliers(p);
    const double error = probability_error(p, q, k);
    // An absolute error of the logarithm is a relative one of the sum.
    return std::vector{
        stored(p.dtype, within(t.out, attention_out(p, softmax.probabilities, multipliers, v),
                               attention_out(p, softmax.probabilities, multipliers, magnitudes(v)),
                               error + chain_error(p.keys) + between.rounding(),
                               between.underflow(p.keys, largest(magnitudes(v))))),
        close(t.lse, softmax.lse, error + kSmallest)};
  });
  return c;
}

struct GradientTensors {
  int dout, dq, dk, dv;
};

GradientTensors add_gradients(Case& c, const Params& p) {
  const int64_t cols = p.heads * p.head_dim, kv_cols = p.kv_heads * p.head_dim;
  const auto result = [&](const char* name, int64_t rows, int64_t width) {
    const int64_t gap = cols + 2 * kv_cols - width + p.gap;
    return c.output(name, HostTensor(rows, width, gap, p.dtype).clear());
  };
  return {c.input("dout", coarse(p.dtype, p.batch * p.queries, cols, 4, p.gap)),
          result("dq", p.batch * p.queries, cols), result("dk", p.batch * p.keys, kv_cols),
          result("dv", p.batch * p.keys, kv_cols)};
}

void run_backward(Call& call, const Params& p, const Tensors& t, const GradientTensors& g) {
  const AttentionShape shape = shape_of(p, t, call);
  call.kernels().attention_backward(
      shape, call[t.q], call[t.k], call[t.v], call[t.out], call[g.dout], call[t.lse], call[g.dq],
      call[g.dk], call[g.dv], dropout_of(p, t, call),
      call.scratch(call.kernels().attention_backward_scratch_bytes(shape)));
}

// By differences, with what bounds the kernel's error on top of theirs: lengths are below 16.
void add_differences(std::vector<Expected>& all, const Params& p, const GradientTensors& g,
                     const Inputs& x, const Doubles& dout, const AttentionGradients& size) {
  const Doubles multipliers = attention_multipliers(p);
  const auto loss = [&](const Doubles& q, const Doubles& k, const Doubles& v) {
    const Doubles probabilities = attention_softmax(p, attention_scores(p, q, k)).probabilities;
    return dot(dout, attention_out(p, probabilities, multipliers, v));
  };
  const double relative = 3 * probability_error(p, x.q, x.k) + 2 * chain_error(16, 3) +
                          sum_error(p.head_dim) + rounding_of(p.dtype);
  // Third derivatives are up to 10 times those that kDifferenceError is for: scores move with
  // numbers up to 4, outputs too.
  const double error = relative * std::max({largest(size.dq), largest(size.dk), largest(size.dv)}) +
                       10 * kDifferenceError;
  const auto add = [&](int tensor, const Doubles& gradient) {
    all.push_back(stored(p.dtype, close(tensor, gradient, error)));
  };
  add(g.dq, gradient_of([&](const Doubles& z) { return loss(z, x.k, x.v); }, x.q));
  add(g.dk, gradient_of([&](const Doubles& z) { return loss(x.q, z, x.v); }, x.k));
  add(g.dv, gradient_of([&](const Doubles& z) { return loss(x.q, x.k, z); }, x.v));
}

Case backward_case(const Params& p) {
  Case c;
  const Tensors t = add_tensors(c, p);
  const GradientTensors g = add_gradients(c, p);
  c.prepare = [=](Call& call) { run_forward(call, p, t); };
  c.run = [=](Call& call) { run_backward(call, p, t, g); };
  set_expected(c, p.dtype, [=](const Case& in, const Between& between) {
    const Inputs x = inputs_of(in, t);
    const Doubles dout = in[g.dout].doubles(), multipliers = attention_multipliers(p);
    const Doubles scores = attention_scores(p, x.q, x.k);
    const Doubles probabilities = attention_softmax(p, scores).probabilities;
    const AttentionGradients exact = attention_gradients(p, probabilities, multipliers, x.q, x.k,
                                                         x.v, dout, attention_slopes(p, scores));
    const AttentionGradients size =
        attention_gradients(p, probabilities, multipliers, magnitudes(x.q), magnitudes(x.k),
                            magnitudes(x.v), magnitudes(dout), {}, 1);
    // delta = dout · out has the forward's error, with the rounding that out was stored with, and
    // that of its own sum; then the probability's, 4 roundings of a score's gradient, and the sum
    // over keys, or over queries and the group's heads.
    const double p_error = probability_error(p, x.q, x.k);
    const double dscore_error = 2 * p_error + chain_error(p.keys) + sum_error(p.head_dim) +
                                4 * kUnit + rounding_of(p.dtype) + 2 * between.rounding() +
                                (p.soft_cap > 0 ? 20 * kUnit : 0);  // of the slope
    const double over_queries = chain_error(p.queries, p.heads / p.kv_heads);
    const double most =
        std::max({largest(magnitudes(x.q)), largest(magnitudes(x.k)), largest(magnitudes(dout))});
    const double underflow = between.underflow(p.keys * (p.heads / p.kv_heads), most);
    const auto result = [&](int tensor, const Doubles& values, const Doubles& sizes,
                            double relative) {
      return stored(p.dtype, within(tensor, values, sizes, relative, underflow));
    };
    std::vector<Expected> all = {
        result(g.dq, exact.dq, size.dq, dscore_error + chain_error(p.keys)),
        result(g.dk, exact.dk, size.dk, dscore_error + over_queries),
        result(g.dv, exact.dv, size.dv, p_error + over_queries + 2 * between.rounding())};
    if (p.queries < 16) add_differences(all, p, g, x, dout, size);
    return all;
  });
  return c;
}

// Without queries all weights of a row are equal, and with unit vectors for values and gradients
// out[query] holds the row of weights and dv[key] the column: the mask lies open.
Case mask_case(const std::vector<int64_t>& documents, DType dtype = DType::f32,
               int64_t window = 0) {
  constexpr int64_t kLength = 150, kHeads = 2;
  const Params p{.batch = 2,
                 .queries = kLength,
                 .keys = kLength,
                 .heads = kHeads,
                 .kv_heads = kHeads,
                 .head_dim = kLength,
                 .rate = 0.4f,
                 .documents = documents,
                 .dtype = dtype,
                 .window = window};
  Case c;
  const Tensors t = add_tensors(c, p);
  const GradientTensors g = add_gradients(c, p);
  for (const int tensor : {t.q, t.k, t.v, g.dout}) c[tensor].fill(0);
  for (int64_t row = 0; row < p.batch * kLength; ++row)
    for (int64_t h = 0; h < kHeads; ++h)
      for (const int tensor : {t.v, g.dout}) c[tensor].set(row, h * kLength + row % kLength, 1);
  c.prepare = [=](Call& call) { run_forward(call, p, t); };
  c.run = [=](Call& call) { run_backward(call, p, t, g); };
  c.expected = [=](const Case&) {
    const Doubles multipliers = attention_multipliers(p);
    const std::vector<int32_t> starts = p.starts();
    Doubles out(static_cast<size_t>(p.batch * kLength * kHeads * kLength)), dv = out;
    for (int64_t b = 0; b < p.batch; ++b)
      for (int64_t h = 0; h < kHeads; ++h)
        for (int64_t query = 0; query < kLength; ++query) {
          const int64_t document =
              starts.empty() ? 0 : starts[static_cast<size_t>(b * kLength + query)];
          const int64_t first = window == 0 ? document : std::max(document, query - window + 1);
          for (int64_t key = first; key <= query; ++key) {
            const int64_t element = ((b * kHeads + h) * kLength + query) * kLength + key;
            const double weight =
                multipliers[static_cast<size_t>(element)] / static_cast<double>(query - first + 1);
            const auto index = [&](int64_t row, int64_t col) {
              return static_cast<size_t>(((b * kLength + row) * kHeads + h) * kLength + col);
            };
            out[index(query, key)] = weight;
            dv[index(key, query)] = weight;
          }
        }
    // e^0 is exactly 1 and counts are exact: division, product and, backward, a logarithm and an
    // exponential (scores up to log 150 = 5) are left.
    return std::vector{stored(dtype, close(t.out, out, 0, 16 * kUnit)),
                       stored(dtype, close(g.dv, dv, 0, 16 * kUnit))};
  };
  return c;
}

// What is scaled beyond these rows of a sequence leaves the bits of the others.
Case unseen_case(const Params& p, int64_t begin, int64_t end,
                 const std::vector<Twin::Part>& parts) {
  Case c = forward_case(p);
  c.twin = Twin{[=] {
                  Case other = forward_case(p);
                  for (const char* name : {"q", "k", "v"}) {
                    HostTensor& tensor = other[other.find(name)];
                    for (int64_t row = begin; row < end; ++row)
                      for (int64_t col = 0; col < tensor.cols(); ++col)
                        tensor.set(row, col, 8192 * tensor.at(row, col));
                  }
                  return other;
                },
                parts};
  return c;
}

std::string name_of(const Params& p) {
  std::string name = fmt::format("{}x{} over {}, {} heads on {} of {}", p.batch, p.queries, p.keys,
                                 p.heads, p.kv_heads, p.head_dim);
  if (!p.causal) name += ", all of them seen";
  if (p.first_head > 0 && p.alibi == 0) name += fmt::format(" from {}", p.first_head);
  if (p.rate > 0) name += fmt::format(" dropout {}", p.rate);
  if (p.gap > 0) name += " strided";
  if (p.scale != 1) name += " large";
  if (!p.documents.empty()) name += fmt::format(" documents {}", fmt::join(p.documents, ","));
  if (p.window > 0) name += fmt::format(" window {}", p.window);
  if (p.score_scale != 0) name += fmt::format(" scaled by {}", p.score_scale);
  if (p.soft_cap > 0) name += fmt::format(" capped at {}", p.soft_cap);
  if (p.alibi > 0)
    name += fmt::format(" slopes of {} from {} times {}", p.alibi_heads, p.first_head, p.alibi);
  return name + type_suffix(p.dtype);
}

// What a case with one document for each sequence, or with a window that holds all keys, must agree
// with: no documents and no window at all.
std::function<Case()> made(Case (*make)(const Params&), const Params& p,
                           const std::vector<Twin::Part>& parts) {
  return [=] {
    Case c = make(p);
    if (p.documents == std::vector{p.queries} || p.window >= std::max<int64_t>(p.keys, 1)) {
      Params plain = p;
      plain.documents.clear();
      plain.window = 0;
      c.twin = Twin{[=] { return make(plain); }, parts};
    }
    return c;
  };
}

// A device may have no ALiBi.
const char* family_of(const Params& p) { return p.alibi > 0 ? "alibi" : "attention"; }

void add_forward(CaseList& list, const Params& p) {
  list.push_back(
      {family_of(p), name_of(p) + " forward", made(forward_case, p, {{"out"}, {"lse"}})});
}

void add_both(CaseList& list, const Params& p) {
  add_forward(list, p);
  list.push_back(
      {family_of(p), name_of(p) + " backward", made(backward_case, p, {{"dq"}, {"dk"}, {"dv"}})});
}

void add_document_cases(CaseList& list) {
  // A whole sequence as one document; many short ones; boundaries inside a tile of 128, on its
  // edge, one beside it; grouped heads and dropout.
  const Params plain[] = {{2, 13, 13, 6, 2, 7, 0.3f, 5, 1, {13}},
                          {1, 257, 257, 4, 2, 13, 0.1f, 7, 1, {257}},
                          {3, 11, 11, 2, 1, 4, 0, 1, 1, {1, 2, 4}},
                          {2, 9, 9, 6, 2, 3, 0.3f, 0, 1, {4}},
                          {2, 150, 150, 6, 2, 7, 0.3f, 3, 1, {1, 3, 2, 5}},
                          {1, 257, 257, 2, 1, 64, 0, 16, 1, {100, 57, 80}},
                          {1, 384, 384, 2, 2, 16, 0.1f, 0, 1, {128}},
                          {1, 300, 300, 2, 1, 16, 0, 3, 1, {127, 2, 128}},
                          {1, 400, 400, 4, 2, 16, 0.2f, 0, 1, {256, 144}},
                          {2, 400, 400, 1, 1, 4, 0, 1, 1, {390, 10, 129}},
                          {1, 150, 150, 2, 1, 64, 0, 0, 32, {70, 80}}};
  for (const Params& p : plain) add_both(list, p);
  list.push_back({"attention", "dropout mask of documents", [] { return mask_case({40, 60, 7}); }});
  // Another document may hold anything.
  list.push_back({"attention", "other documents leave the bits of a document", [] {
                    const Params p{1, 300, 300, 2, 1, 16, 0.2f, 0, 1, {140, 160}};
                    return unseen_case(p, 0, 140, {{"out", 140, 300}, {"lse", 0, -1, 140, 300}});
                  }});
}

// Windows, caps and other scales.
void add_option_cases(CaseList& list, DType dtype) {
  const auto with = [&](Params p, int64_t window, float scale = 0, float cap = 0) {
    p.dtype = dtype;
    p.window = window;
    p.score_scale = scale;
    p.soft_cap = cap;
    return p;
  };
  // Windows of one key, inside a tile of 128, of its size and one beside it, of several tiles, and
  // of all keys; grouped heads, dropout, documents.
  for (const auto& [shape, window] : {std::pair<Params, int64_t>{{2, 5, 5, 2, 1, 4, 0.3f, 1}, 1},
                                      {{2, 13, 13, 6, 2, 7, 0, 5}, 4},
                                      {{1, 11, 11, 2, 2, 3}, 11},
                                      {{1, 257, 257, 2, 1, 16, 0.1f, 3}, 20},
                                      {{1, 400, 400, 2, 1, 4}, 127},
                                      {{1, 400, 400, 2, 2, 4}, 128},
                                      {{1, 400, 400, 1, 1, 16}, 129},
                                      {{1, 400, 400, 2, 1, 4}, 260},
                                      {{1, 300, 300, 2, 1, 8}, 500},
                                      {{1, 300, 300, 2, 1, 16, 0, 3, 1, {127, 2, 128}}, 50},
                                      {{1, 150, 150, 2, 1, 64, 0, 0, 32}, 33}})
    add_both(list, with(shape, window));
  for (const auto& [shape, window] : {std::pair<Params, int64_t>{{2, 1, 131, 6, 2, 16, 0, 3}, 1},
                                      {{1, 1, 385, 6, 2, 64}, 100},
                                      {{2, 100, 180, 3, 1, 7, 0, 2}, 30},
                                      {{1, 150, 280, 2, 2, 16}, 128},
                                      {{1, 3, 140, 2, 1, 96}, 139}})
    add_forward(list, with(shape, window));
  add_both(list, with({2, 13, 13, 6, 2, 7, 0.3f, 5}, 0, 0.25f));
  add_both(list, with({1, 150, 150, 2, 1, 16}, 0, 0.07f));
  add_both(list, with({2, 13, 13, 6, 2, 7, 0.3f, 5}, 0, 0, 2));
  add_both(list, with({1, 150, 150, 2, 1, 16}, 40, 0.3f, 5));
  add_forward(list, with({1, 40, 77, 1, 1, 130}, 0, 0, 50));
  // Scores of several thousand, all of them at the cap.
  add_both(list, with({1, 150, 150, 2, 1, 64, 0, 0, 32}, 0, 0, 30));
  list.push_back({"attention", "dropout mask within a window" + type_suffix(dtype), [=] {
                    return mask_case({40, 60, 7}, dtype, 9);
                  }});
  const Params narrow = with({1, 300, 300, 2, 1, 16, 0.2f}, 20);
  list.push_back(
      {"attention", "keys before the window leave the bits" + type_suffix(dtype), [=] {
         return unseen_case(narrow, 0, 131, {{"out", 150, 300}, {"lse", 0, -1, 150, 300}});
       }});
}

void add_half_cases(CaseList& list, DType dtype) {
  const Params whole[] = {
      {1, 1, 1, 1, 1, 1},
      {0, 5, 5, 2, 1, 4},
      {2, 6, 6, 3, 1, 4, 0.3f, 0},
      {2, 13, 13, 6, 2, 7, 0.3f, 5},
      {1, 129, 129, 2, 2, 64, 0.5f, 1},
      {2, 150, 150, 6, 2, 7, 0, 3},
      {1, 257, 257, 4, 2, 13, 0.1f, 7},
      {1, 150, 150, 2, 1, 128, 0, 0},
      {1, 150, 150, 2, 1, 64, 0, 0, 32},
      {3, 11, 11, 2, 1, 4, 0, 1, 1, {1, 2, 4}},
      {1, 300, 300, 2, 1, 16, 0, 3, 1, {127, 2, 128}},
      {2, 13, 13, 6, 2, 7, 0.3f, 5, 1, {13}},
      {16, 9, 9, 8, 4, 8, 0, 1},
      {6, 140, 140, 14, 2, 8, 0, 3},
  };
  for (Params p : whole) {
    p.dtype = dtype;
    add_both(list, p);
  }
  const Params cached[] = {{2, 1, 131, 6, 2, 16, 0, 3},
                           {1, 1, 385, 6, 2, 64, 0.2f},
                           {2, 100, 180, 3, 1, 7, 0, 2},
                           {1, 150, 280, 2, 2, 64, 0.2f}};
  for (Params p : cached) {
    p.dtype = dtype;
    add_forward(list, p);
  }
  list.push_back({"attention", "dropout mask" + type_suffix(dtype), [=] {
                    return mask_case({40, 60, 7}, dtype);
                  }});
  list.push_back(
      {"attention", "later tokens leave the bits of earlier ones" + type_suffix(dtype), [=] {
         Params p{1, 150, 150, 2, 1, 16, 0.2f};
         p.dtype = dtype;
         return unseen_case(p, 131, 150, {{"out", 0, 131}, {"lse", 0, -1, 0, 131}});
       }});
}

}  // namespace

// Of the family of parts, whose queries see all keys of another part.
void add_full_attention_cases(CaseList& list) {
  const Params shapes[] = {
      {1, 1, 1, 1, 1, 1},     {2, 5, 9, 6, 2, 7, 0, 3},      {2, 9, 5, 3, 1, 4, 0, 1},
      {1, 12, 12, 4, 4, 16},  {1, 150, 300, 4, 2, 13, 0, 5}, {1, 300, 150, 2, 2, 64},
      {1, 129, 257, 6, 2, 16}};
  for (Params p : shapes)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      p.causal = false;
      p.dtype = dtype;
      list.push_back({"parts", name_of(p) + " forward", [=] { return forward_case(p); }});
      list.push_back({"parts", name_of(p) + " backward", [=] { return backward_case(p); }});
    }
  Params capped{2, 9, 13, 4, 2, 8};
  capped.causal = false;
  capped.soft_cap = 2;
  list.push_back({"parts", name_of(capped) + " forward", [=] { return forward_case(capped); }});
  list.push_back({"parts", name_of(capped) + " backward", [=] { return backward_case(capped); }});
}

void add_attention_cases(CaseList& list) {
  const Params whole[] = {
      {1, 1, 1, 1, 1, 1},
      {1, 1, 1, 1, 1, 2},
      {0, 5, 5, 2, 1, 4},
      {3, 2, 2, 2, 2, 3, 0, 1},
      {2, 5, 5, 6, 2, 7, 0, 3},
      {2, 6, 6, 3, 1, 4, 0.3f, 0},
      {1, 11, 11, 2, 2, 3, 0.1f, 1},
      {2, 13, 13, 6, 2, 7, 0.3f, 5},
      {1, 37, 37, 3, 1, 5, 0, 0},
      {1, 127, 127, 2, 1, 64, 0.1f, 0},
      {1, 128, 128, 1, 1, 16, 0, 3},
      {1, 129, 129, 2, 2, 64, 0.5f, 1},
      {2, 150, 150, 6, 2, 7, 0, 3},
      {2, 150, 150, 6, 2, 7, 0.3f, 0},
      {1, 257, 257, 2, 1, 64, 0, 16},
      {1, 257, 257, 4, 2, 13, 0.1f, 7},
      {1, 257, 257, 4, 4, 64, 0, 0},
      {2, 70, 70, 4, 2, 80, 0.2f, 3},
      {1, 150, 150, 2, 1, 128, 0, 0},
      {1, 67, 67, 2, 1, 200, 0.1f, 1},
      // Numbers up to 32 * 5 make scores of several thousand; e^89 is infinite in float.
      {1, 150, 150, 2, 1, 64, 0, 0, 32},
      // Groups that are one part, and groups of four parts of which the last is shorter.
      {16, 9, 9, 8, 4, 8, 0, 1},
      {6, 140, 140, 14, 2, 8, 0, 3},
  };
  for (const Params& p : whole) add_both(list, p);
  // 100 queries over 180 keys: some see no key of the last tile.
  const Params cached[] = {{1, 1, 2, 1, 1, 1},           {1, 1, 128, 2, 2, 7, 0, 0},
                           {2, 1, 131, 6, 2, 16, 0, 3},  {2, 1, 300, 6, 2, 16},
                           {1, 1, 385, 6, 2, 64, 0.2f},  {3, 7, 300, 2, 1, 9, 0, 1},
                           {2, 100, 180, 3, 1, 7, 0, 2}, {1, 150, 280, 2, 2, 64, 0.2f},
                           {1, 3, 140, 2, 1, 96},        {1, 40, 77, 1, 1, 130}};
  for (const Params& p : cached) add_forward(list, p);
  for (Params p : {Params{2, 13, 13, 6, 2, 7, 0.3f, 5}, Params{1, 129, 129, 2, 2, 64, 0.5f, 1}}) {
    p.first_head = 3;
    add_both(list, p);
  }
  add_document_cases(list);
  list.push_back({"attention", "dropout mask", [] { return mask_case({}); }});
  list.push_back({"attention", "later tokens leave the bits of earlier ones", [] {
                    const Params p{1, 150, 150, 2, 1, 16, 0.2f};
                    return unseen_case(p, 131, 150, {{"out", 0, 131}, {"lse", 0, -1, 0, 131}});
                  }});
  add_option_cases(list, DType::f32);
  for (const DType dtype : kHalfTypes) {
    add_half_cases(list, dtype);
    add_option_cases(list, dtype);
  }
}

// Powers of two and other numbers of heads, all of them or a share; over a cache, in documents and
// windows.
void add_alibi_cases(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const auto with = [&](Params p, int64_t heads, int64_t first = 0, float alibi = 1,
                          int64_t window = 0) {
      p.dtype = dtype;
      p.window = window;
      p.alibi = alibi;
      p.alibi_heads = heads;
      p.first_head = first;
      return p;
    };
    add_both(list, with({1, 1, 1, 1, 1, 1}, 1));
    add_both(list, with({0, 5, 5, 2, 1, 4}, 2));
    add_both(list, with({2, 13, 13, 6, 2, 7, 0.3f, 5}, 6));
    add_both(list, with({2, 11, 11, 3, 1, 4, 0, 1}, 12, 7, 0.5f));
    add_both(list, with({1, 300, 300, 4, 4, 16}, 4));
    add_both(list, with({1, 150, 150, 2, 1, 64, 0, 0, 32}, 2));
    add_both(list, with({1, 300, 300, 2, 1, 16, 0, 3, 1, {127, 2, 128}}, 3, 1));
    add_both(list, with({1, 257, 257, 2, 2, 13, 0, 7}, 8, 0, 0.25f, 40));
    add_forward(list, with({2, 1, 131, 6, 2, 16, 0, 3}, 6));
    add_forward(list, with({2, 100, 180, 3, 1, 7, 0, 2}, 5, 2));
  }
}

void add_alibi_benchmarks(CaseList& list) {
  Params p{1, 1024, 1024, 12, 12, 64};
  p.alibi = 1;
  p.alibi_heads = 12;
  list.push_back({"alibi", "forward 1024, 12 heads of 64", [=] { return forward_case(p); }});
  list.push_back({"alibi", "backward 1024, 12 heads of 64", [=] { return backward_case(p); }});
}

void add_attention_benchmarks(CaseList& list) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Params p{1, 1024, 1024, 12, 12, 64};
    p.dtype = dtype;
    Params one{1, 1, 1024, 12, 12, 64};
    one.dtype = dtype;
    const std::string suffix = type_suffix(dtype);
    list.push_back(
        {"attention", "forward 1024, 12 heads of 64" + suffix, [=] { return forward_case(p); }});
    list.push_back(
        {"attention", "backward 1024, 12 heads of 64" + suffix, [=] { return backward_case(p); }});
    list.push_back({"attention", "forward of 1 over 1024, 12 heads of 64" + suffix,
                    [=] { return forward_case(one); }});
  }
}

}  // namespace onefold::cases
