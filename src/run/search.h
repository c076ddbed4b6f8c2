// Configurations and the search for the fastest layout (plan/search.h): which keys it may choose,
// and what becomes of them.
#pragma once

#include "config/config.h"
#include "config/layout_keys.h"
#include "plan/search.h"

namespace onefold {

// The model of a plan, which needs no data but a vocabulary: the model's, or else the tokenizer's.
ModelSpec planned_model(const Config& config);

// A configuration as a search begins with it: of the first mesh that goes with all that it says,
// if it leaves the mesh to the search. And the options of each such mesh.
struct OpenConfig {
  Config config;
  std::vector<EngineOptions> meshes;
};
// Errors name the file. `host_ranks`: those that share a host (0: not known).
OpenConfig open_config(const Json& root, const std::string& path, int ranks, const Freedom& freedom,
                       int host_ranks);

// The best layouts of these.
SearchResult search(const OpenConfig& open, const FitContext& context, const Freedom& freedom,
                    const TierLimits& limits, size_t wanted = 6);

// The configuration with a layout in place of what was free. `root` is its document.
Config with_layout(const Json& root, const Layout& layout, const Freedom& freedom, int ranks);

// With what the document hands to the search ("auto") found. Where nothing fits, as it was, or on
// the mesh that takes the least.
Config settle_layout(const OpenConfig& open, const Json& root, const FitContext& context,
                     const TierLimits& limits);

// A layout in words: "stage 2, 4 x 2 sequences, the MLP of all blocks again".
std::string layout_text(const EngineOptions& options, const ModelSpec& model, int ranks);

}  // namespace onefold
