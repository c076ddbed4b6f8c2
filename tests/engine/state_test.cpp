// A rank's state as others see it: gradients and weights of sharded units, documents in a batch,
// and what memory depends on.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/ranks.h"
#include "error_text.h"

namespace onefold {
namespace {

using test::expect_same_bits;
using test::Weights;

ModelSpec tiny(const std::string& preset = "gpt2-tiny") {
  ModelSpec spec = spec_from_preset(preset, "test");
  if (spec.vocab_size == 0) spec.vocab_size = 101;
  return spec;
}

EngineOptions options_for(int stage) {
  EngineOptions options{.threads = 1, .micro_batch = 1, .sequence = 11, .clipping = 1.0};
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  return options;
}

Weights gradients_on(int ranks, int stage) {
  Weights gradients;
  test::on_ranks(ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
    EngineOptions options = options_for(stage);
    options.keep_gradients = true;
    Engine engine(tiny(), options, std::move(communicator));
    test::train_step(engine);
    test::train_step(engine);
    test::for_each_gradient(engine, [&](const ParamSpec& param, std::span<const float> values) {
      if (rank == 0) gradients[param.name].assign(values.begin(), values.end());
    });
  });
  return gradients;
}

TEST(Gradients, AreVisitedWholeAtEveryStage) {
  const Weights whole = gradients_on(2, 0);
  double size = 0;
  for (const float value : whole.at("block.0.mlp.up.weight")) size += std::abs(value);
  EXPECT_GT(size, 0);
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    expect_same_bits(whole, gradients_on(2, stage));
  }
}

TEST(Weights, ThatAreWrittenStayWhereParametersAreSharded) {
  test::on_ranks(2, [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(tiny(), options_for(3), std::move(communicator));
    test::change_weights(engine, [](const ParamSpec&, std::span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7);
    });
    const Weights written = test::weights_of(engine);
    EXPECT_EQ(written.at("block.1.attention.out.weight")[5], 5);
    EXPECT_EQ(written.at("head.norm.weight")[6], 6);
  });
}

// All but the head frozen: what lies below keeps nothing, however many micro-batches there are.
TEST(FrozenMemory, DoesNotGrowWithAccumulation) {
  ModelSpec spec = tiny();
  spec.tie_embeddings = false;
  EngineOptions options{.threads = 1, .micro_batch = 2, .sequence = 32};
  options.frozen = {"embedding", "block.*"};
  for (const Order order : {Order::micro_first, Order::unit_first}) {
    options.order = order;
    options.micros = 1;
    const int64_t one = Engine::plan(spec, options)->ledger().peak_bytes(Kind::activations);
    options.micros = 16;
    const int64_t many = Engine::plan(spec, options)->ledger().peak_bytes(Kind::activations);
    // Where units go first, each micro-batch's input of the head waits for its backward.
    const int64_t input_bytes = 2 * 32 * spec.hidden_size * 4;
    EXPECT_LE(many, one + (order == Order::unit_first ? 15 * 2 * input_bytes : 0));
  }
}

TEST(RopeTable, SpansThePositionsOfTheRun) {
  ModelSpec spec = tiny("llama-tiny");
  EngineOptions options{.threads = 1, .micro_batch = 1, .sequence = 8};
  spec.max_sequence_length = 8;
  const int64_t small = Engine::plan(spec, options)->ledger().peak_bytes(Kind::workspace);
  spec.max_sequence_length = 1 << 20;
  EXPECT_EQ(Engine::plan(spec, options)->ledger().peak_bytes(Kind::workspace), small);
}

// What is planned for a card is what its kernels ask for, whatever device the options name.
TEST(Logits, ArePlannedInTheChunksOfTheDescribedDevice) {
  ModelSpec spec = tiny();
  spec.vocab_size = 50257;
  const EngineOptions options{.threads = 1, .micro_batch = 1, .sequence = 4096};
  const auto workspace = [&](const char* hardware) {
    return Engine::plan(spec, options, 1, 0, hardware_named(hardware))
        ->ledger()
        .peak_bytes(Kind::workspace);
  };
  const int64_t all_logits = options.sequence * spec.vocab_size * 4;
  EXPECT_LT(workspace("laptop"), all_logits / 2);
  EXPECT_GT(workspace("h200"), all_logits);
}

// A step that diverges changes neither weights nor moments, on any rank.
TEST(Diverging, LeavesTheMomentsToo) {
  for (const int stage : {0, 2, 3}) {
    test::on_ranks(2, [&](int, std::shared_ptr<Communicator> communicator) {
      Engine engine(tiny(), options_for(stage), std::move(communicator));
      test::train_step(engine);
      test::change_weights(engine, [](const ParamSpec& param, std::span<float> values) {
        if (param.name == "head.norm.weight") values[0] = INFINITY;
      });
      const auto states = [&] {
        std::vector<float> all;
        for (int u = 0; u < engine.state().units(); ++u)
          for (const RankState::SavedPiece& piece : engine.state().saved_pieces(u))
            all.insert(all.end(), piece.data.f32(), piece.data.f32() + piece.data.elems());
        return all;
      };
      const std::vector<float> before = states();
      EXPECT_THROW(test::train_step(engine), DivergedError);
      EXPECT_EQ(states(), before);
      EXPECT_EQ(engine.steps_done(), 1);
    });
  }
}

// ---- Documents

// Two documents packed into one sequence, isolated from each other, learn what two sequences of
// one document each do.
TEST(Documents, PackedAndIsolatedGiveTheGradientsOfSeparateSequences) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny", "qwen3-tiny", "mixtral-tiny"}) {
    SCOPED_TRACE(preset);
    const ModelSpec spec = tiny(preset);
    const int64_t first = 7, second = 9, length = first + second;
    const test::OwnedBatch a = test::random_batch(1, first, spec.vocab_size, 1),
                           b = test::random_batch(1, second, spec.vocab_size, 2);
    const auto gradients = [&](const std::vector<test::OwnedBatch>& batches, bool documents) {
      EngineOptions options{.threads = 2,
                            .micro_batch = batches[0].batch,
                            .sequence = batches[0].sequence,
                            .documents = documents,
                            .keep_gradients = true};
      Engine engine(spec, options);
      const BatchView view = batches[0].view();
      engine.train_step({&view, 1}, 0);
      Weights found;
      test::for_each_gradient(engine, [&](const ParamSpec& param, std::span<const float> values) {
        found[param.name].assign(values.begin(), values.end());
      });
      return found;
    };
    test::OwnedBatch packed{.batch = 1, .sequence = length};
    packed.tokens = a.tokens;
    packed.targets = a.targets;
    packed.tokens.insert(packed.tokens.end(), b.tokens.begin(), b.tokens.end());
    packed.targets.insert(packed.targets.end(), b.targets.begin(), b.targets.end());
    packed.samples = {0};
    packed.starts.assign(static_cast<size_t>(first), 0);
    packed.starts.resize(static_cast<size_t>(length), static_cast<int32_t>(first));
    // Two rows of the longer length, the rest of the shorter one is padding.
    test::OwnedBatch apart{.batch = 2, .sequence = second};
    apart.tokens = a.tokens;
    apart.targets = a.targets;
    apart.tokens.resize(static_cast<size_t>(second), 0);
    apart.targets.resize(static_cast<size_t>(second), -1);
    apart.tokens.insert(apart.tokens.end(), b.tokens.begin(), b.tokens.end());
    apart.targets.insert(apart.targets.end(), b.targets.begin(), b.targets.end());
    apart.samples = {0, 1};
    const Weights one = gradients({packed}, true), two = gradients({apart}, false);
    for (const auto& [name, values] : one) {
      double difference = 0, size = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        difference += std::pow(double{values[i]} - two.at(name)[i], 2);
        size += std::pow(double{values[i]}, 2);
      }
      if (name.ends_with("qkv.bias")) continue;  // a key bias without rope has no gradient
      EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(size) + 1e-9) << name;
    }
    // Without isolation the second document sees the first.
    packed.starts.assign(static_cast<size_t>(length), 0);
    const Weights seen = gradients({packed}, true);
    EXPECT_NE(seen.at("block.0.mlp_norm.weight"), one.at("block.0.mlp_norm.weight"));
  }
}

TEST(Documents, ThePlanCountsTheirStarts) {
  EngineOptions options{.threads = 1, .micro_batch = 2, .sequence = 16};
  options.documents = true;
  Engine engine(tiny("llama-tiny"), options);
  test::OwnedBatch batch = test::random_batch(2, 16, 101, 3);
  batch.starts.assign(32, 0);
  const BatchView view = batch.view();
  engine.train_step({&view, 1}, 1e-3);
  EXPECT_EQ(Engine::plan(tiny("llama-tiny"), options, 1, 0, test::this_processor())
                ->ledger()
                .peak_bytes(),
            engine.ledger().peak_bytes());
}

}  // namespace
}  // namespace onefold
