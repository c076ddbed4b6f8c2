#include "run/weights.h"

#include "run/support.h"

namespace onefold {
namespace {

class SavedWeights : public RunTest {};

TEST_F(SavedWeights, OfAnotherModelAreRefused) {
  const EngineOptions options{.threads = 1, .sequence = 8};
  const ModelSpec whole = config().model;
  ModelSpec narrow = whole, shallow = whole, deep = whole;
  narrow.vocab_size = 257;
  shallow.num_layers = 1;
  deep.num_layers = 9;
  const std::string path = folder_.path("weights.safetensors");
  Engine saved(whole, options), narrow_engine(narrow, options), shallow_engine(shallow, options),
      deep_engine(deep, options);
  save_weights(saved, path);
  load_weights(saved, path);
  EXPECT_ERROR(load_weights(narrow_engine, path), "weights.safetensors", "[263, 39]", "[257, 39]");
  EXPECT_ERROR(load_weights(shallow_engine, path), "belongs to another model");
  EXPECT_ERROR(load_weights(deep_engine, path), "has no tensor");
}

}  // namespace
}  // namespace onefold
