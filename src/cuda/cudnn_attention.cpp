// Attention as graphs of cuDNN 9, which are made through its frontend's headers, once for each
// shape.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/plugin.h"
#include "base/say.h"
#include "cuda/attention_sums.h"
#include "cuda/check.h"
#include "cuda/library_attention.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#include <cudnn_frontend.h>
#pragma GCC diagnostic pop

// The frontend calls the library through this.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace onefold::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;

// Of a graph's tensors.
enum Name : int64_t { kQ = 1, kK, kV, kOut, kLse, kDout, kDq, kDk, kDv };

// A part of a micro-batch: what a graph follows from.
struct Shape {
  int64_t batch, queries, keys, heads, kv_heads, head_dim;
  Type type;
  bool causal;
};
using Key = std::array<int64_t, 18>;

struct Entry {
  std::shared_ptr<Graph> graph;  // null: the library has nothing for this shape
};

// Elements of 16 bits from row `row` on.
void* rows_from(const Matrix& m, int64_t row) {
  return static_cast<char*>(m.data) + row * m.stride * 2;
}

// Rows of whole vectors, which the library's kernels load.
bool takes(const Matrix& m) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.stride % 8 == 0;
}

class CudnnAttention final : public LibraryAttention {
 public:
  CudnnAttention() {
    if (fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS)
      internal_error("cuDNN could not start");
  }
  ~CudnnAttention() override {
    graphs_.clear();
    (void)fe::detail::destroy_handle(handle_);
  }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  bool forward(const AttentionArgs& a, void* scratch, int64_t bytes, cudaStream_t stream) override {
    if (!fits(a)) return false;
    const Shape shape = shape_of(a, a.batch);
    const Key key = key_of(shape, a);
    const Graph* graph =
        find(key, shape, bytes, [&](Graph& to) { describe_forward(to, shape, a); });
    if (!graph) return false;
    run(*graph, {{kQ, a.q.data}, {kK, a.k.data}, {kV, a.v.data}, {kOut, a.out.data}, {kLse, a.lse}},
        scratch, stream);
    return true;
  }

  bool backward(const AttentionArgs& a, const AttentionGradients& g, int64_t slice,
                const AttentionParts& parts, cudaStream_t stream) override {
    if (!fits(a) || !takes(g.dout) || !takes(g.dq) || !takes(g.dk) || !takes(g.dv)) return false;
    if (parts.rows > 0) return backward_in_parts(a, g, parts, stream);
    for (int64_t first = 0; first < a.batch; first += slice) {
      Part part = part_from(a, g, first, 0, 0);
      part.args.batch = std::min(slice, a.batch - first);
      const float* const lse = part.args.lse;
      if (a.lse_stride != a.query_length) lay_lse_together(part, parts);
      const Graph* graph = graph_of(part, parts.lse);
      if (!graph) return false;  // before anything of it was computed: other slices are smaller
      if (a.lse_stride != a.query_length) copy_lse(part, lse, a.lse_stride, stream);
      run_backward(*graph, part, stream);
    }
    return true;
  }

 private:
  // Runs of queries, and of keys, of a sequence.
  struct Runs {
    int64_t rows, length;
    int64_t count() const { return (length + rows - 1) / rows; }
    int64_t first(int64_t i) const { return i * rows; }
    int64_t size(int64_t i) const { return std::min(rows, length - first(i)); }
  };

  // What one call of the library computes.
  struct Part {
    AttentionArgs args;
    AttentionGradients gradients;
  };
  // All rows of a sequence and those after it, from these queries and keys on.
  static Part part_from(const AttentionArgs& a, const AttentionGradients& g, int64_t sequence,
                        int64_t query, int64_t key) {
    const int64_t row = sequence * a.query_length + query, key_row = sequence * a.key_length + key;
    Part part{a, g};
    for (Matrix* m : {&part.args.q, &part.args.out, &part.gradients.dout, &part.gradients.dq})
      m->data = rows_from(*m, row);
    for (Matrix* m : {&part.args.k, &part.args.v, &part.gradients.dk, &part.gradients.dv})
      m->data = rows_from(*m, key_row);
    part.args.lse += sequence * a.heads * a.lse_stride + query;
    return part;
  }
  // One run of queries over one of keys, with gradients of its own. lse and out are those of all
  // keys, so that these are terms of the whole's.
  static Part part_of(const AttentionArgs& a, const AttentionGradients& g,
                      const AttentionParts& parts, int64_t b, int64_t i, int64_t j) {
    const Runs queries{parts.rows, a.query_length}, keys{parts.rows, a.key_length};
    Part part = part_from(a, g, b, queries.first(i), keys.first(j));
    part.args.batch = 1;
    part.args.query_length = queries.size(i);
    part.args.key_length = keys.size(j);
    part.args.causal = a.causal && i == j;
    lay_lse_together(part, parts);
    char* const scratch = reinterpret_cast<char*>(g.scratch);
    const int64_t cols = a.heads * a.head_dim, kv_cols = a.kv_heads * a.head_dim;
    part.gradients.dq = {scratch + parts.dq, queries.size(i), cols, cols, a.q.type};
    part.gradients.dk = {scratch + parts.dk, keys.size(j), kv_cols, kv_cols, a.q.type};
    part.gradients.dv = {scratch + parts.dv, keys.size(j), kv_cols, kv_cols, a.q.type};
    return part;
  }

  // A graph's lse must be one block: a part of a longer one's rows is read from the scratch.
  static void lay_lse_together(Part& part, const AttentionParts& parts) {
    part.args.lse =
        reinterpret_cast<float*>(reinterpret_cast<char*>(part.gradients.scratch) + parts.lse);
    part.args.lse_stride = part.args.query_length;
  }
  static void copy_lse(const Part& part, const float* src, int64_t stride, cudaStream_t stream) {
    const AttentionArgs& a = part.args;
    const auto bytes = [](int64_t elems) { return static_cast<size_t>(elems) * sizeof(float); };
    check(
        cudaMemcpy2DAsync(a.lse, bytes(a.lse_stride), src, bytes(stride), bytes(a.query_length),
                          static_cast<size_t>(a.batch * a.heads), cudaMemcpyDeviceToDevice, stream),
        "copy sums of attention");
  }

  const Graph* graph_of(const Part& part, int64_t bytes) {
    const Shape shape = shape_of(part.args, part.args.batch);
    return find(key_of(shape, part.args, &part.gradients), shape, bytes,
                [&](Graph& to) { describe_backward(to, shape, part.args, part.gradients); });
  }

  bool backward_in_parts(const AttentionArgs& a, const AttentionGradients& g,
                         const AttentionParts& parts, cudaStream_t stream) {
    const Runs queries{parts.rows, a.query_length}, keys{parts.rows, a.key_length};
    const int64_t last_query = queries.count() - 1;
    const auto end_key = [&](int64_t i) { return a.causal ? i + 1 : keys.count(); };
    const auto each = [&](const auto& call) {
      for (int64_t b = 0; b < a.batch; ++b)
        for (int64_t i = 0; i <= last_query; ++i)
          for (int64_t j = 0; j < end_key(i); ++j)
            if (!call(b, i, j)) return false;
      return true;
    };
    // Before anything is computed: whether the library has all of them.
    const bool has_all = each([&](int64_t b, int64_t i, int64_t j) {
      const Part part = part_of(a, g, parts, b, i, j);
      return part.args.query_length > 1 && part.args.key_length > 1 &&
             graph_of(part, parts.lse) != nullptr;
    });
    if (!has_all) return false;
    char* const scratch = reinterpret_cast<char*>(g.scratch);
    const auto add = [&](const Matrix& part, bool first, bool last, int64_t sums,
                         const Matrix& to) {
      add_attention_part(part, first, reinterpret_cast<float*>(scratch + sums),
                         last ? &to : nullptr, stream);
    };
    return each([&](int64_t b, int64_t i, int64_t j) {
      const Part part = part_of(a, g, parts, b, i, j);
      const Part at = part_from(a, g, b, queries.first(i), keys.first(j));
      const AttentionGradients& to = at.gradients;
      if (j == 0) copy_lse(part, at.args.lse, a.lse_stride, stream);
      run_backward(*graph_of(part, parts.lse), part, stream);
      add(part.gradients.dq, j == 0, j + 1 == end_key(i), parts.dq_sums, to.dq);
      const bool first = i == (a.causal ? j : 0), last = i == last_query;
      const int64_t of_keys =
          keys.first(j) * a.kv_heads * a.head_dim * static_cast<int64_t>(sizeof(float));
      add(part.gradients.dk, first, last, parts.dk_sums + of_keys, to.dk);
      add(part.gradients.dv, first, last, parts.dv_sums + of_keys, to.dv);
      return true;
    });
  }

  void run_backward(const Graph& graph, const Part& part, cudaStream_t stream) {
    const AttentionArgs& a = part.args;
    const AttentionGradients& g = part.gradients;
    run(graph,
        {{kQ, a.q.data},
         {kK, a.k.data},
         {kV, a.v.data},
         {kOut, a.out.data},
         {kLse, a.lse},
         {kDout, g.dout.data},
         {kDq, g.dq.data},
         {kDk, g.dk.data},
         {kDv, g.dv.data}},
        g.scratch, stream);
  }

  // Dropout's masks must be ours, a query's first key and slopes are not things that the library
  // knows, and graphs have one scale: that of most models.
  static bool fits(const AttentionArgs& a) {
    return a.q.type != Type::f32 && a.mask.threshold == 0 && !a.starts && a.window == 0 &&
           a.soft_cap == 0 && a.alibi == 0 &&
           a.scale == 1.0f / std::sqrt(static_cast<float>(a.head_dim)) &&
           (a.causal ? a.query_length == a.key_length : takes_parts(a)) && a.head_dim % 8 == 0 &&
           a.head_dim <= 128 && a.batch > 0 && a.query_length > 1 && takes(a.q) && takes(a.k) &&
           takes(a.v) && takes(a.out);
  }

  // Forward, rows of lse may be some of a longer one's.
  static bool takes_parts(const AttentionArgs& a) {
    return a.key_length > 1 && reinterpret_cast<uintptr_t>(a.lse) % 16 == 0;
  }

  static Shape shape_of(const AttentionArgs& a, int64_t batch) {
    return {batch,      a.query_length, a.key_length, a.heads,
            a.kv_heads, a.head_dim,     a.q.type,     a.causal};
  }

  // Everything that a graph is made from; without gradients, forward's.
  static Key key_of(const Shape& s, const AttentionArgs& a, const AttentionGradients* g = nullptr) {
    const auto type = static_cast<int64_t>(s.type);
    Key key = {s.batch,    s.queries,  s.keys,     s.heads,      s.kv_heads,   s.head_dim, type,
               a.q.stride, a.k.stride, a.v.stride, a.out.stride, a.lse_stride, s.causal};
    if (g) {
      const int64_t strides[] = {1, g->dout.stride, g->dq.stride, g->dk.stride, g->dv.stride};
      std::copy(std::begin(strides), std::end(strides), key.end() - std::size(strides));
    }
    return key;
  }

  // [batch, heads, length, head_dim], rows of `stride` elements.
  static std::vector<int64_t> dims(const Shape& s, Name name) {
    return {s.batch, of_keys(name) ? s.kv_heads : s.heads, length(s, name), s.head_dim};
  }
  static std::vector<int64_t> strides(const Shape& s, Name name, const Matrix& m) {
    return {length(s, name) * m.stride, s.head_dim, m.stride, 1};
  }
  static bool of_keys(Name name) { return name == kK || name == kV || name == kDk || name == kDv; }
  static int64_t length(const Shape& s, Name name) { return of_keys(name) ? s.keys : s.queries; }
  static std::shared_ptr<Tensor_attributes> input(Graph& graph, Name name, const Shape& s,
                                                  const Matrix& m) {
    return graph.tensor(
        Tensor_attributes().set_uid(name).set_dim(dims(s, name)).set_stride(strides(s, name, m)));
  }
  static void output(const std::shared_ptr<Tensor_attributes>& tensor, Name name, const Shape& s,
                     const Matrix& m) {
    tensor->set_output(true).set_uid(name).set_dim(dims(s, name)).set_stride(strides(s, name, m));
  }
  // The natural logarithm of each row's sum.
  static void describe_lse(Tensor_attributes& lse, const Shape& s, const AttentionArgs& a) {
    lse.set_uid(kLse)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({s.batch, s.heads, s.queries, 1})
        .set_stride({s.heads * a.lse_stride, a.lse_stride, 1, 1});
  }
  static void set_types(Graph& graph, const Shape& s) {
    graph.set_io_data_type(s.type == Type::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  static void describe_forward(Graph& graph, const Shape& s, const AttentionArgs& a) {
    set_types(graph, s);
    const auto q = input(graph, kQ, s, a.q), k = input(graph, kK, s, a.k),
               v = input(graph, kV, s, a.v);
    auto options = fe::graph::SDPA_attributes();
    options.set_name("forward").set_generate_stats(true).set_causal_mask(s.causal);
    options.set_attn_scale(a.scale);
    const auto results = graph.sdpa(q, k, v, options);
    output(results[0], kOut, s, a.out);
    results[1]->set_output(true);
    describe_lse(*results[1], s, a);
  }

  static void describe_backward(Graph& graph, const Shape& s, const AttentionArgs& a,
                                const AttentionGradients& g) {
    set_types(graph, s);
    const auto q = input(graph, kQ, s, a.q), k = input(graph, kK, s, a.k),
               v = input(graph, kV, s, a.v), out = input(graph, kOut, s, a.out),
               dout = input(graph, kDout, s, g.dout);
    Tensor_attributes of_lse;
    describe_lse(of_lse, s, a);
    const auto lse = graph.tensor(of_lse);
    auto options = fe::graph::SDPA_backward_attributes();
    options.set_name("backward").set_causal_mask(s.causal).set_deterministic_algorithm(true);
    options.set_attn_scale(a.scale);
    const auto results = graph.sdpa_backward(q, k, v, out, dout, lse, options);
    output(results[0], kDq, s, g.dq);
    output(results[1], kDk, s, g.dk);
    output(results[2], kDv, s, g.dv);
  }

  // The graph of this shape, made by `describe` where it is new. What the library declines, though
  // it should take it, is said: slower kernels are many times as slow.
  template <class Describe>
  const Graph* find(const Key& key, const Shape& s, int64_t bytes, const Describe& describe) {
    const auto [place, is_new] = graphs_.try_emplace(key);
    if (is_new) {
      auto graph = std::make_shared<Graph>();
      describe(*graph);
      if (const std::string problem = plan(*graph, bytes); problem.empty())
        place->second.graph = std::move(graph);
      else
        say("onefold: warning: attention of {} x {} queries over {} keys, {} heads over {} of {} "
            "elements, runs "
            "on slower kernels: cuDNN {}: {}\n",
            s.batch, s.queries, s.keys, s.heads, s.kv_heads, s.head_dim,
            fe::detail::get_backend_version(), problem);
    }
    return place->second.graph.get();
  }

  // Why there is no plan that does with so much scratch; empty: there is one.
  std::string plan(Graph& graph, int64_t bytes) {
    int64_t asked = 0;
    auto status = graph.validate();
    if (status.is_good()) status = graph.build_operation_graph(handle_);
    if (status.is_good()) status = graph.create_execution_plans({fe::HeurMode_t::A});
    graph.deselect_workspace_greater_than(bytes);
    if (status.is_good()) status = graph.check_support(handle_);
    if (status.is_good()) status = graph.build_plans(handle_);
    if (status.is_good()) status = graph.get_workspace_size(asked);
    if (status.is_bad()) return status.get_message();
    return asked <= bytes ? "" : fmt::format("it asks for {} bytes, and has {}", asked, bytes);
  }

  void run(const Graph& graph, std::unordered_map<int64_t, void*> tensors, void* scratch,
           cudaStream_t stream) {
    if (stream != stream_ && fe::detail::set_stream(handle_, stream) != CUDNN_STATUS_SUCCESS)
      internal_error("cuDNN could not take a stream");
    stream_ = stream;
    if (auto status = graph.execute(handle_, tensors, scratch); status.is_bad())
      internal_error("cuDNN could not compute attention: {}", status.get_message());
  }

  cudnnHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;  // that the handle has
  std::map<Key, Entry> graphs_;
};

}  // namespace

std::unique_ptr<LibraryAttention> open_library_attention(std::string& problem) {
  if (!fe::cudnn_dlhandle)
    fe::cudnn_dlhandle = open_library("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  if (!fe::cudnn_dlhandle) {
    problem = fmt::format("cuDNN 9 does not load ({})", dlerror());
    return nullptr;
  }
  return std::make_unique<CudnnAttention>();
}

}  // namespace onefold::cuda
