// Models in GGUF files: what llama.cpp calls an architecture, its sizes and its tensors. The
// families are Hugging Face's; a file of theirs becomes what config.json would say, and the other
// way round.
#pragma once

#include <string>
#include <vector>

#include "base/gguf.h"
#include "model/hf_names.h"

namespace onefold {

// What config.json of the file's model would be, with its token ids. UserError that names the value
// for an architecture or a value that cannot be computed exactly.
Json hf_config_of_gguf(const GgufFile& file);

// Why llama.cpp cannot compute this model of the family's, as half a sentence; "" if it can.
std::string gguf_obstacle(const ModelSpec& spec, HfFamily family);
// Every parameter of the model, under the names of GGUF.
std::vector<HfParameter> gguf_parameters(const ModelSpec& spec, HfFamily family);
// Sizes and constants of the model, general.architecture among them.
void add_gguf_model(const ModelSpec& spec, HfFamily family, GgufHeader& header);

// What rotary frequencies are divided by, one for each pair of a head: tensors of GGUF's. Llama
// 3's, or Phi-3's two lists; none if frequencies are not stretched so.
inline constexpr const char* kGgufRopeFactors = "rope_freqs.weight";
inline constexpr const char* kGgufLongFactors = "rope_factors_long.weight";
inline constexpr const char* kGgufShortFactors = "rope_factors_short.weight";
struct GgufFactors {
  std::string name;
  std::vector<float> values;
};
std::vector<GgufFactors> gguf_rope_factors(const ModelSpec& spec);
// What the frequency of a pair of a head is divided by.
double gguf_stretching(const RopeScaling& scaling, int64_t pair, int64_t head, double theta);

}  // namespace onefold
