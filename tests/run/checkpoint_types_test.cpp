// Checkpoints of other versions and types than those that are written now.
#include <gtest/gtest.h>

#include "data/scratch.h"
#include "error_text.h"
#include "inspect/describe.h"
#include "io/half.h"
#include "run/saved_state.h"

namespace onefold {
namespace {

using test::expect_same_state;
using test::on_ranks;
using test::options_of;
using test::small_model;
using test::State;
using test::StateCollector;

// Every state of every tensor, straight from the files.
State state_in(const Checkpoint& checkpoint) {
  State state;
  for (const auto& [name, tensor] : checkpoint.manifest().tensors)
    for (const CheckpointState& saved : tensor.states) {
      std::vector<float>& values = state[piece_name(saved.name, name)];
      values.resize(static_cast<size_t>(tensor.elems()));
      checkpoint.read(saved.name, name, 0, values);
    }
  return state;
}

State load_on(const std::string& checkpoint, const ModelSpec& model, int ranks, int stage) {
  StateCollector collector;
  on_ranks(ranks, [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(model, options_of(stage), std::move(communicator));
    const Resumed resumed = resume(engine, {{2, checkpoint}});
    EXPECT_EQ(resumed.step, 2);
    collector.add(engine);
  });
  return collector.state();
}

TEST(FirstVersionTest, IsResumedOnAnyRanks) {
  const std::string folder = std::string(ONEFOLD_GOLDEN_DIR) + "/checkpoint_v1";
  const CheckpointSource source(folder);
  const State saved = state_in(source.checkpoint());
  EXPECT_EQ(saved.size(), 3 * 8);
  for (const int ranks : {1, 2, 3, 5})
    expect_same_state(load_on(folder, source.model(), ranks, ranks % 4), saved);
}

TEST(FirstVersionTest, IsDescribed) {
  ThreadPool pool(1);
  const Description d = describe(std::string(ONEFOLD_GOLDEN_DIR) + "/checkpoint_v1", true, pool);
  EXPECT_EQ(d.kind, PathKind::checkpoint);
  EXPECT_EQ(d.not_finite(), 0);
  ASSERT_TRUE(d.checkpoint);
  EXPECT_EQ(d.checkpoint->states, (std::vector<std::string>{"moment1", "moment2"}));
  EXPECT_EQ(d.checkpoint->state_bytes, 2 * d.elems() * 4);
}

// A checkpoint of one rank, of which a state is then put into another type.
class CheckpointTypes : public ::testing::Test {
 protected:
  CheckpointTypes() {
    Engine engine(small_model(), options_of(0));
    test::train(engine, 2);
    CheckpointWriter writer(engine, CheckpointFolder(scratch_.path("checkpoints")));
    writer.begin();
    EXPECT_TRUE(writer.finish({{"position", 2}, {"model", small_model().to_json()}}).empty());
  }

  void convert(const std::string& state, const std::string& dtype) const {
    const std::string file = path_ + "/" + checkpoint_file_name(0);
    std::vector<SafetensorsEntry> entries;
    std::map<std::string, std::vector<std::byte>> contents;
    {
      const SafetensorsFile old(file);
      for (SafetensorsEntry entry : old.entries()) {
        const std::span<const std::byte> bytes = old.bytes(entry);
        std::vector<std::byte>& content = contents[entry.name];
        content.assign(bytes.begin(), bytes.end());
        if (entry.name.starts_with(state + "/")) {
          std::vector<float> values(static_cast<size_t>(entry.elems()));
          to_f32("F32", bytes, values);
          content.resize(values.size() * static_cast<size_t>(safetensors_dtype_bytes(dtype)));
          if (is_model_dtype(dtype)) from_f32(dtype, values, content);
          entry.dtype = dtype;
        }
        entries.push_back(std::move(entry));
      }
    }
    SafetensorsWriter writer(file, entries);
    for (const SafetensorsEntry& entry : entries)
      writer.write(entry.name, std::span<const std::byte>(contents[entry.name]));
    writer.commit();
    Json json = read_json(path_ + "/" + kManifest);
    json["files"][0]["bytes"] = writer.bytes();
    json["files"][0]["xxh3"] = writer.checksum();
    for (auto& [name, tensor] : json["tensors"].items())
      for (Json& saved : tensor["states"])
        if (saved["name"] == state) saved["dtype"] = dtype;
    json["xxh3"] = manifest_checksum(json);
    write_file(path_ + "/" + kManifest, json.dump());
  }

  const ScratchFolder scratch_;
  const std::string path_ = scratch_.path("checkpoints/step-00000002");
};

TEST_F(CheckpointTypes, ParametersOfHalfTheWidthAreConverted) {
  const State before = state_in(Checkpoint(path_));
  convert("parameters", "BF16");
  State expected = before;
  for (auto& [name, values] : expected)
    if (name.starts_with("parameters/"))
      for (float& value : values) value = bf16_to_f32(f32_to_bf16(value));
  expect_same_state(load_on(path_, small_model(), 2, 3), expected);
  EXPECT_EQ(CheckpointSource(path_).dtype(), "BF16");
  ThreadPool pool(1);
  const Description d = describe(path_, true, pool);
  EXPECT_EQ(d.tensors[0].dtype, "BF16");
  EXPECT_EQ(d.bytes(), 2 * small_model().parameter_count());
  EXPECT_EQ(d.checkpoint->state_bytes, 2 * 4 * small_model().parameter_count());
  expect_in(description_text(d), {"BF16"});
}

TEST_F(CheckpointTypes, AStateThatCannotBeReadIsNamedAndTheWeightsAreStillThere) {
  convert("moment2", "U8");
  Engine engine(small_model(), options_of(0));
  EXPECT_ERROR(resume(engine, {{2, path_}}), path_, "is in codes", "has no moment2.scale");
  ThreadPool pool(1);
  const Description d = describe(path_, true, pool);
  EXPECT_EQ(d.not_finite(), 0);
  EXPECT_EQ(d.checkpoint->state_elems, 2 * small_model().parameter_count());
  EXPECT_EQ(d.checkpoint->state_bytes, 5 * small_model().parameter_count());
}

TEST_F(CheckpointTypes, ParametersThatCannotBeReadAreNamed) {
  convert("parameters", "I8");
  EXPECT_ERROR(CheckpointSource{path_}, path_, "parameters is I8");
}

}  // namespace
}  // namespace onefold
