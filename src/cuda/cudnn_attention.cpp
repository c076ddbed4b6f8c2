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
    const Graph* graph = find(key, bytes, [&](Graph& to) { describe_forward(to, shape, a); });
    if (!graph) return false;
    run(*graph, {{kQ, a.q.data}, {kK, a.k.data}, {kV, a.v.data}, {kOut, a.out.data}, {kLse, a.lse}},
        scratch, stream);
    return true;
  }

  bool backward(const AttentionArgs& a, const AttentionGradients& g, int64_t slice, int64_t bytes,
                cudaStream_t stream) override {
    if (!fits(a) || !takes(g.dout) || !takes(g.dq) || !takes(g.dk) || !takes(g.dv)) return false;
    for (int64_t first = 0; first < a.batch; first += slice) {
      const Shape shape = shape_of(a, std::min(slice, a.batch - first));
      const Key key = key_of(shape, a, &g);
      const Graph* graph = find(key, bytes, [&](Graph& to) { describe_backward(to, shape, a, g); });
      if (!graph) return false;  // before anything of it was computed: other slices are smaller
      const int64_t row = first * shape.queries, key_row = first * shape.keys;
      run(*graph,
          {{kQ, rows_from(a.q, row)},
           {kK, rows_from(a.k, key_row)},
           {kV, rows_from(a.v, key_row)},
           {kOut, rows_from(a.out, row)},
           {kLse, a.lse + first * shape.heads * a.lse_stride},
           {kDout, rows_from(g.dout, row)},
           {kDq, rows_from(g.dq, row)},
           {kDk, rows_from(g.dk, key_row)},
           {kDv, rows_from(g.dv, key_row)}},
          g.scratch, stream);
    }
    return true;
  }

 private:
  // Dropout's masks must be ours, a query's first key is not a thing that the library knows, and
  // graphs have one scale: that of most models.
  static bool fits(const AttentionArgs& a) {
    return a.q.type != Type::f32 && a.mask.threshold == 0 && !a.starts && a.window == 0 &&
           a.soft_cap == 0 && a.scale == 1.0f / std::sqrt(static_cast<float>(a.head_dim)) &&
           (a.causal ? a.query_length == a.key_length : takes_parts(a)) && a.head_dim % 8 == 0 &&
           a.head_dim <= 128 && a.batch > 0 && a.query_length > 1 && takes(a.q) && takes(a.k) &&
           takes(a.v) && takes(a.out);
  }

  // Rows of lse may be some of a longer one's.
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

  // The graph of this key, made by `describe` where it is new. Only plans that do with the scratch
  // are taken.
  template <class Describe>
  const Graph* find(const Key& key, int64_t bytes, const Describe& describe) {
    const auto [place, is_new] = graphs_.try_emplace(key);
    if (is_new) {
      auto graph = std::make_shared<Graph>();
      describe(*graph);
      if (plan(*graph, bytes)) place->second.graph = std::move(graph);
    }
    return place->second.graph.get();
  }

  bool plan(Graph& graph, int64_t bytes) {
    if (graph.validate().is_bad() || graph.build_operation_graph(handle_).is_bad() ||
        graph.create_execution_plans({fe::HeurMode_t::A}).is_bad())
      return false;
    graph.deselect_workspace_greater_than(bytes);
    int64_t asked = 0;
    return graph.check_support(handle_).is_good() && graph.build_plans(handle_).is_good() &&
           graph.get_workspace_size(asked).is_good() && asked <= bytes;
  }

  void run(const Graph& graph, std::unordered_map<int64_t, void*> tensors, void* scratch,
           cudaStream_t stream) {
    if (fe::detail::set_stream(handle_, stream) != CUDNN_STATUS_SUCCESS)
      internal_error("cuDNN could not take a stream");
    if (auto status = graph.execute(handle_, tensors, scratch); status.is_bad())
      internal_error("cuDNN could not compute attention: {}", status.get_message());
  }

  cudnnHandle_t handle_ = nullptr;
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
