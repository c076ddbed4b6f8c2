// Every kind of compression, for tests of stages, transports and checkpoints.
#pragma once

#include <ostream>
#include <vector>

#include "engine/options.h"

namespace onefold::test {

struct NamedCompression {
  const char* name;
  CompressionOptions options;
};
inline void PrintTo(const NamedCompression& one, std::ostream* out) { *out << one.name; }

inline std::vector<NamedCompression> all_compressions() {
  using Type = WireFormat::Type;
  const auto gradients = [](const WireFormat& format, bool feedback = true) {
    CompressionOptions options;
    options.gradients = format;
    options.feedback = feedback;
    return options;
  };
  CompressionOptions warm = gradients({.type = Type::topk, .density = 0.02});
  warm.whole_steps = 1;
  warm.density_steps = 8;
  CompressionOptions dgc = gradients({.type = Type::topk, .density = 0.02});
  dgc.corrects_momentum = true;
  dgc.correction = {.momentum = 0.9f, .masks = true, .limit = 0.5f};
  CompressionOptions one_bit = gradients({.type = Type::sign});
  one_bit.whole_steps = 1;
  one_bit.corrects_momentum = true;
  one_bit.correction = {.momentum = 0.9f, .share = 0.1f, .masks = false};
  CompressionOptions adaptive = gradients({.type = Type::topk, .density = 0.05});
  adaptive.adaptive = true;
  return {
      {"bf16", gradients({.type = Type::bf16})},
      {"int8", gradients({.type = Type::int8})},
      {"int8_lost", gradients({.type = Type::int8}, false)},
      {"int8_drawn", gradients({.type = Type::int8, .stochastic = true})},
      {"int4_drawn_lost", gradients({.type = Type::int4, .block = 64, .stochastic = true}, false)},
      {"sign", gradients({.type = Type::sign})},
      {"topk", gradients({.type = Type::topk, .density = 0.01})},
      {"sampled", gradients({.type = Type::sampled, .density = 0.01})},
      {"threshold", gradients({.type = Type::threshold, .density = 0.05, .least = 1e-4})},
      {"randomk", gradients({.type = Type::randomk, .density = 0.05})},
      {"blocks", gradients({.type = Type::blocks, .block = 16, .density = 0.1})},
      {"rows", gradients({.type = Type::rows, .density = 0.1})},
      {"importance", gradients({.type = Type::importance, .density = 0.05})},
      {"importance_lost", gradients({.type = Type::importance, .density = 0.05}, false)},
      {"adaptive", adaptive},
      {"warm_topk", warm},
      {"dgc", dgc},
      {"one_bit", one_bit}};
}

}  // namespace onefold::test
