// Where Onefold's parameters are among a Hugging Face model's tensors. Ours are fused: queries,
// keys and values are one matrix, and so are gate and up; Hugging Face's are apart, except GPT-2's.
// Rows mostly follow each other in both, and rotary pairs are the same (i, i + head_dim / 2), so
// each tensor is one run of consecutive elements of one parameter, or that run transposed, or its
// rows in another order: where queries, keys and values lie head by head (GPT-NeoX, Falcon), or
// rotary pairs are neighbours (GPT-J, Cohere), which the same order of queries and of keys makes
// ours.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/hf_config.h"
#include "model/unit.h"

namespace onefold {

struct HfTensor {
  std::string name;  // with its prefix: "model.layers.0.self_attn.q_proj.weight"
  std::vector<int64_t> shape;
  int64_t first = 0;  // of its elements in the parameter
  // GPT-2's Conv1D keeps [in, out]: element (i, o) is (o, i) of the parameter's rows.
  bool transposed = false;
  // Row r of the parameter, counted from `first` on, is row order[r] of the tensor; empty: row r.
  // Elements of a vector are rows.
  std::vector<int64_t> order = {};

  float more = 0;  // what its values are more than the parameter's

  // The inverse: which row of the parameter each row of the tensor is.
  std::vector<int64_t> rows_in_parameter() const {
    std::vector<int64_t> ours(order.size());
    for (size_t row = 0; row < order.size(); ++row)
      ours[static_cast<size_t>(order[row])] = static_cast<int64_t>(row);
    return ours;
  }
  int64_t row_elems() const { return shape.size() == 2 ? shape[1] : 1; }

  int64_t elems() const { return shape.size() == 2 ? shape[0] * shape[1] : shape[0]; }
};

struct HfParameter {
  ParamSpec param;
  std::vector<HfTensor> tensors;  // by `first`; together they are the whole parameter
};

// HfTensor::order of queries or keys whose rotary pairs are neighbours.
std::vector<int64_t> paired_order(const ModelSpec& spec, int64_t heads);

// Every parameter of the model, in the order of parameters_of().
std::vector<HfParameter> hf_parameters(const ModelSpec& spec, HfFamily family);

// A tensor of a block's matrix or vector, in its block, without "model.layers.0.".
struct HfPart {
  std::string name;
  int64_t rows;
  std::vector<int64_t> order = {};  // HfTensor's
};
// Those of one of a block's parameters ("attention.qkv.weight"), which has so many rows.
std::vector<HfPart> hf_block_parts(const ModelSpec& spec, HfFamily family, const std::string& ours,
                                   int64_t rows);
// "model.layers": what the number of a block comes after.
std::string_view hf_layers(HfFamily family);

// "model." or "transformer.": what the names of a bare model (AutoModel, without its head) lack.
std::string_view hf_prefix(HfFamily family);

// Tensors that files of the family may have besides the parameters and that hold no weights: masks
// and rotary frequencies, which older versions stored.
bool is_hf_buffer(const std::string& name);

}  // namespace onefold
