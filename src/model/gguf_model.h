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

// What Llama 3's stretched rotary frequencies are divided by, one for each pair of a head: a tensor
// of GGUF's. Empty if they are not stretched so.
inline constexpr const char* kGgufRopeFactors = "rope_freqs.weight";
std::vector<float> gguf_rope_factors(const ModelSpec& spec);

}  // namespace onefold
