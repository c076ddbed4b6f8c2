#include "inspect/saved_run.h"

#include "base/file.h"
#include "base/json_text.h"
#include "run/run_folder.h"
#include "run/support.h"

namespace onefold {
namespace {

class SavedRunTest : public RunTest {
 protected:
  std::string path() const { return folder_.path("run"); }
  // A run of this model that has ended.
  void save(const ModelSpec& spec) const {
    const RunFolder run = RunFolder::create(path(), config(), spec, nullptr, false);
    Engine engine(spec, {.threads = 1, .sequence = 8});
    run.save_weights(engine);
  }
  void describe(const ModelSpec& spec) const {
    folder_.write("run/model.json", json_text(spec.to_json()));
  }
};

TEST_F(SavedRunTest, WhatIsMissingIsNamed) {
  EXPECT_ERROR(SavedRun(path()), path(), "there is no such folder");
  EXPECT_ERROR(SavedRun(folder_.path("book.txt")), "book.txt is a file");
  make_folders(path());
  EXPECT_ERROR(SavedRun(path()), "it has no model.json");
  describe(config().model);
  EXPECT_ERROR(SavedRun(path()), "has no weights yet");
}

TEST_F(SavedRunTest, WeightsMustBeTheModels) {
  const ModelSpec whole = config().model;
  save(whole);
  const SavedRun run(path());
  EXPECT_EQ(run.weights()->model().to_json(), whole.to_json());
  ModelSpec narrow = whole, shallow = whole, deep = whole;
  narrow.vocab_size = 257;
  shallow.num_layers = 1;
  deep.num_layers = 9;
  describe(narrow);
  EXPECT_ERROR(run.weights(), "weights.safetensors", "[263, 39]", "[257, 39]");
  describe(shallow);
  EXPECT_ERROR(run.weights(), "belongs to another model");
  describe(deep);
  EXPECT_ERROR(run.weights(), "has no tensor");
}

TEST_F(SavedRunTest, AModelThatCannotBeReadIsNamed) {
  save(config().model);
  const SavedRun run(path());
  folder_.write("run/model.json", "{\"num_layers\": \"two\"}");
  EXPECT_ERROR(run.model(), "model.json: model.num_layers must be an integer");
  folder_.write("run/model.json", "{");
  EXPECT_ERROR(run.model(), "model.json:1:2", "not valid JSON");
}

}  // namespace
}  // namespace onefold
