// Configurations and the search for the fastest layout (plan/search.h): which keys it may choose,
// and what becomes of them.
#pragma once

#include "config/config.h"
#include "config/layout_keys.h"
#include "plan/search.h"

namespace onefold {

// The model of a plan, which needs no data but a vocabulary: the model's, or else the tokenizer's.
ModelSpec planned_model(const Config& config);

// What a configuration begins the search with.
EngineOptions search_options(const Config& config, const FitContext& context);

// The configuration with a layout in place of what was free. `root` is its document.
Config with_layout(const Json& root, const Layout& layout, const Freedom& freedom, int ranks);

// With what the document hands to the search ("auto") found. Where nothing fits, as it was.
Config settle_layout(const Config& config, const Json& root, const FitContext& context,
                     const TierLimits& limits);

// A layout in words: "stage 2, 4 x 2 sequences, the MLP of all blocks again".
std::string layout_text(const EngineOptions& options, const ModelSpec& model, int ranks);

}  // namespace onefold
