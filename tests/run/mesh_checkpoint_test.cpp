// Checkpoints of meshes: what one has saved any other loads, whole and to the bit.
#include "data/scratch.h"
#include "inspect/parameter_source.h"
#include "run/saved_state.h"

namespace onefold {
namespace {

using test::State;

struct MeshLayout {
  int data, tensor, stage, pipeline = 1, interleave = 1, context = 1, expert = 1;

  int ranks() const { return data * tensor * pipeline * context * expert; }
};

// Copies of key heads at four ranks, a vocabulary and an inner width that nothing divides.
ModelSpec divided_model(bool tied = false) {
  ModelSpec spec = spec_from_preset("qwen3-tiny", "test");
  spec.num_layers = 2;
  spec.hidden_size = 12;
  spec.num_heads = 4;
  spec.num_kv_heads = 2;
  spec.head_dim = 6;
  spec.intermediate_size = 17;
  spec.vocab_size = 23;
  spec.max_sequence_length = 11;
  spec.tie_embeddings = tied;
  return spec;
}

// Four experts beside a shared one, and a dense block.
ModelSpec mixed_model() {
  ModelSpec spec = divided_model();
  spec.experts = {.count = 4,
                  .intermediate_size = 7,
                  .shared_intermediate_size = 5,
                  .shared_gate = true,
                  .every = 2};
  return spec;
}

EngineOptions options_for(const MeshLayout& layout) {
  EngineOptions options{.tensor = layout.tensor,
                        .context = layout.context,
                        .expert = layout.expert,
                        .threads = 1,
                        .micro_batch = 1,
                        .sequence = 6};
  options.pipeline.ranks = layout.pipeline;
  options.pipeline.interleave = layout.interleave;
  options.micros = 2;
  options.zero.stage = layout.stage;
  options.zero.persistence_elems = 0;
  return options;
}

// Every state of every parameter that a checkpoint has.
State read_all(const std::string& path) {
  const Checkpoint checkpoint(path);
  State state;
  for (const auto& [name, tensor] : checkpoint.manifest().tensors)
    for (const CheckpointState& one : tensor.states) {
      std::vector<float>& values = state[piece_name(one.name, name)];
      values.resize(static_cast<size_t>(tensor.elems()));
      checkpoint.read(one.name, name, 0, values);
    }
  return state;
}

void save(Engine& engine, const CheckpointFolder& folder) {
  CheckpointWriter writer(engine, folder);
  writer.begin();
  writer.wait();
  EXPECT_EQ(writer.finish({{"position", 2}, {"model", engine.model().spec.to_json()}}),
            std::vector<std::string>());
}

test::Weights train_and_save(const MeshLayout& layout, const CheckpointFolder& folder,
                             const ModelSpec& spec) {
  test::Weights weights;
  test::on_ranks(layout.ranks(), [&](int rank, std::shared_ptr<Communicator> communicator) {
    Engine engine(spec, options_for(layout), std::move(communicator));
    for (int step = 0; step < 2; ++step) test::train_step(engine);
    save(engine, folder);
    const test::Weights all = test::weights_of(engine);
    if (rank == 0) weights = all;
  });
  return weights;
}

void load_and_save(const MeshLayout& layout, const CheckpointFolder& from,
                   const CheckpointFolder& to, const ModelSpec& spec) {
  test::on_ranks(layout.ranks(), [&](int, std::shared_ptr<Communicator> communicator) {
    EngineOptions options = options_for(layout);
    options.initial = [](const ParamSpec&, int64_t, std::span<float>) {};
    Engine engine(spec, options, std::move(communicator));
    EXPECT_EQ(resume(engine, from.list()).step, 2);
    save(engine, to);
  });
}

std::string text_of(const MeshLayout& mesh) {
  return fmt::format("data {} x tensor {} x context {} x expert {} x pipeline {}", mesh.data,
                     mesh.tensor, mesh.context, mesh.expert, mesh.pipeline);
}

// What is saved is what the ranks hold together, and what is loaded and saved again is the same.
void expect_each_loads_what_any_saved(const std::vector<MeshLayout>& layouts,
                                      const ModelSpec& spec) {
  for (const MeshLayout& saving : layouts) {
    const ScratchFolder scratch;
    const CheckpointFolder first(scratch.path("first"));
    const test::Weights weights = train_and_save(saving, first, spec);
    const State saved = read_all(first.list().front().path);
    size_t kept = 0;
    for (const ParamSpec& param : parameters_of(spec)) {
      if (!is_saved(spec, param)) continue;
      ++kept;
      EXPECT_EQ(saved.at(piece_name("parameters", param.name)), weights.at(param.name));
    }
    EXPECT_EQ(saved.size(), 3 * kept);
    int number = 0;
    for (const MeshLayout& loading : layouts) {
      SCOPED_TRACE(text_of(saving) + " to " + text_of(loading));
      const CheckpointFolder second(scratch.path(fmt::format("to-{}", number++)));
      load_and_save(loading, first, second, spec);
      test::expect_same_state(saved, read_all(second.list().front().path));
    }
  }
}

TEST(MeshReshard, AnyMeshLoadsWhatAnotherSaved) {
  expect_each_loads_what_any_saved({{1, 1, 0}, {1, 2, 0}, {2, 2, 3}, {1, 4, 0}, {2, 4, 1}},
                                   divided_model());
}

TEST(MeshReshard, AnyMeshLoadsAdaptersThatAnotherSaved) {
  ModelSpec spec = divided_model();
  spec.lora = {.rank = 3, .alpha = 5, .targets = {"all-linear"}};
  expect_each_loads_what_any_saved({{1, 1, 0}, {1, 2, 0}, {2, 2, 3}, {1, 4, 0}, {1, 2, 1, 2}},
                                   spec);
}

EngineOptions coded_options(const MeshLayout& layout) {
  EngineOptions options = options_for(layout);
  options.precision.moments = DType::u8;
  if (layout.stage == 1) options.offload.optimizer = Tier::host;
  return options;
}

// Moments of 8 bits are saved as values where parameters are divided: on the same mesh a run goes
// on with its bits, and on any other with moments that codes of other blocks are near to.
TEST(MeshReshard, CodedMomentsGoOnWithTheirBitsAndOnOtherMeshes) {
  ModelSpec spec = divided_model();
  spec.num_kv_heads = 4;
  const auto train = [&](const MeshLayout& layout, const CheckpointFolder* from, int steps,
                         const CheckpointFolder* to) {
    test::Weights weights;
    test::on_ranks(layout.ranks(), [&](int rank, std::shared_ptr<Communicator> communicator) {
      Engine engine(spec, coded_options(layout), std::move(communicator));
      if (from != nullptr) {
        EXPECT_EQ(resume(engine, from->list()).step, 2);
      }
      for (int step = 0; step < steps; ++step) test::train_step(engine);
      if (to != nullptr) save(engine, *to);
      const test::Weights all = test::weights_of(engine);
      if (rank == 0) weights = all;
    });
    return weights;
  };
  const std::vector<MeshLayout> layouts = {
      {1, 1, 0}, {1, 2, 0}, {2, 2, 3}, {1, 4, 1}, {1, 2, 0, 2}};
  for (const MeshLayout& saving : layouts) {
    const ScratchFolder scratch;
    const CheckpointFolder first(scratch.path("first"));
    const test::Weights weights = train(saving, nullptr, 2, &first);
    test::expect_same_bits(train(saving, &first, 2, nullptr), train(saving, nullptr, 4, nullptr));
    const Checkpoint saved(first.list().front().path);
    int number = 0;
    for (const MeshLayout& loading : layouts) {
      SCOPED_TRACE(text_of(saving) + " to " + text_of(loading));
      const CheckpointFolder second(scratch.path(fmt::format("to-{}", number++)));
      test::expect_same_bits(train(loading, &first, 0, &second), weights);
      const Checkpoint again(second.list().front().path);
      for (const auto& [name, tensor] : saved.manifest().tensors)
        for (const std::string state : {"moment1", "moment2"}) {
          std::vector<float> was(static_cast<size_t>(tensor.elems())), is(was.size());
          saved.read(state, name, 0, was);
          again.read(state, name, 0, is);
          const float largest = std::abs(*std::max_element(
              was.begin(), was.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
          // Half the step between the two outermost levels: 2 / 127 and 4 / 255 of the scale.
          for (size_t i = 0; i < was.size(); ++i)
            ASSERT_NEAR(is[i], was[i], 0.008f * largest) << state << " of " << name;
        }
    }
  }
}

TEST(MeshReshard, AnyPipelineLoadsWhatAnotherSaved) {
  for (const bool tied : {false, true})
    expect_each_loads_what_any_saved({{1, 1, 0},
                                      {1, 1, 0, 2},
                                      {2, 1, 3, 3},
                                      {1, 2, 0, 2},
                                      {2, 2, 1, 2},
                                      {1, 1, 0, 2, 3},
                                      {3, 1, 2}},
                                     divided_model(tied));
}

// What is saved does not depend on how sequences were divided, and a part goes on with it as the
// whole would, within rounding.
TEST(MeshReshard, PartsOfSequencesLoadAndSaveWhatOthersDo) {
  expect_each_loads_what_any_saved(
      {{1, 1, 0}, {1, 1, 3, 1, 1, 2}, {2, 1, 2, 1, 1, 2}, {1, 2, 1, 1, 1, 2}, {1, 1, 1, 2, 1, 2}},
      divided_model());
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path("first"));
  train_and_save({1, 1, 3, 1, 1, 2}, folder, divided_model());
  test::Weights resumed;
  test::on_ranks(1, [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(divided_model(), options_for({1, 1, 0}), std::move(communicator));
    EXPECT_EQ(resume(engine, folder.list()).step, 2);
    for (int step = 0; step < 2; ++step) test::train_step(engine);
    resumed = test::weights_of(engine);
  });
  const test::RankRun one = test::train_on_ranks(divided_model(), options_for({1, 1, 0}), 1, 4);
  EXPECT_LT(test::distance(resumed, one.weights), 1e-5);
}

// One rank, the data axis, and ranks that divide experts, alone and beside other axes.
TEST(MeshReshard, AnyMeshLoadsExpertsThatAnotherSaved) {
  expect_each_loads_what_any_saved(
      {{1, 1, 0}, {2, 1, 3}, {1, 1, 0, 1, 1, 1, 2}, {2, 1, 3, 1, 1, 1, 2}, {1, 1, 2, 1, 1, 1, 4}},
      mixed_model());
  expect_each_loads_what_any_saved({{1, 1, 0},
                                    {1, 2, 1},
                                    {1, 2, 2, 1, 1, 1, 2},
                                    {1, 1, 1, 2, 1, 1, 4},
                                    {2, 1, 3, 2, 1, 1, 2},
                                    {1, 2, 3, 2, 1, 2, 2}},
                                   mixed_model());
}

// On the same mesh with the bits of a run that was never stopped.
TEST(MeshReshard, ResumedExpertsHaveTheBitsOfARunThatWentOn) {
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path("first"));
  const MeshLayout layout{2, 1, 3, 1, 1, 1, 2};
  train_and_save(layout, folder, mixed_model());
  test::Weights resumed;
  test::on_ranks(4, [&](int rank, std::shared_ptr<Communicator> communicator) {
    Engine engine(mixed_model(), options_for(layout), std::move(communicator));
    EXPECT_EQ(resume(engine, folder.list()).step, 2);
    for (int step = 0; step < 2; ++step) test::train_step(engine);
    const test::Weights all = test::weights_of(engine);
    if (rank == 0) resumed = all;
  });
  test::expect_same_bits(resumed,
                         test::train_on_ranks(mixed_model(), options_for(layout), 4, 4).weights);
}

// With what it has saved, a pipeline goes on as one rank would that was never stopped.
TEST(MeshReshard, AResumedPipelineHasTheBitsOfOneRank) {
  for (const bool tied : {false, true}) {
    const ScratchFolder scratch;
    const CheckpointFolder folder(scratch.path("first"));
    const MeshLayout layout{1, 1, 0, 3};
    train_and_save(layout, folder, divided_model(tied));
    test::Weights resumed;
    test::on_ranks(3, [&](int rank, std::shared_ptr<Communicator> communicator) {
      Engine engine(divided_model(tied), options_for(layout), std::move(communicator));
      EXPECT_EQ(resume(engine, folder.list()).step, 2);
      for (int step = 0; step < 2; ++step) test::train_step(engine);
      const test::Weights all = test::weights_of(engine);
      if (rank == 0) resumed = all;
    });
    const test::RankRun one =
        test::train_on_ranks(divided_model(tied), options_for({1, 1, 0}), 1, 4);
    test::expect_same_bits(resumed, one.weights);
  }
}

}  // namespace
}  // namespace onefold
