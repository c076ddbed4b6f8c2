// Checkpoints of a run: how engines save and load them. Any number of ranks at any stage loads what
// any other has saved.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "data/scratch.h"
#include "error_text.h"
#include "inspect/checkpoint_source.h"
#include "run/saved_state.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;
using test::expect_same_state;
using test::on_ranks;
using test::options_of;
using test::small_model;
using test::State;
using test::StateCollector;

// Trains two steps on this many ranks, so that moments are no zeros, and saves.
State save_on(const CheckpointFolder& folder, int ranks, int stage) {
  StateCollector collector;
  const ModelSpec spec = small_model();
  const EngineOptions options = options_of(stage);
  on_ranks(ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
    Engine engine(spec, options, std::move(communicator));
    for (int step = 0; step < 2; ++step) {
      test::OwnedBatch batch = test::random_rows(step * ranks + rank, options, spec.vocab_size);
      const BatchView view = batch.view();
      engine.train_step({&view, 1}, 1e-2);
    }
    CheckpointWriter writer(engine, folder);
    writer.begin();
    writer.wait();
    EXPECT_EQ(writer.finish({{"position", 2 * ranks}, {"model", spec.to_json()}}),
              std::vector<std::string>());
    collector.add(engine);
  });
  return collector.state();
}

struct Loaded {
  State state;
  std::vector<int64_t> bytes_read, bytes_held;  // by rank
};

Loaded load_on(const CheckpointFolder& folder, int ranks, int stage) {
  Loaded loaded;
  loaded.bytes_read.resize(static_cast<size_t>(ranks));
  loaded.bytes_held.resize(static_cast<size_t>(ranks));
  StateCollector collector;
  on_ranks(ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
    EngineOptions options = options_of(stage);
    options.initial = [](const ParamSpec&, int64_t, std::span<float>) {};
    Engine engine(small_model(), options, std::move(communicator));
    const Resumed resumed = resume(engine, folder.list());
    EXPECT_EQ(resumed.step, 2);
    EXPECT_EQ(engine.steps_done(), 2);
    const auto r = static_cast<size_t>(rank);
    loaded.bytes_read[r] = resumed.bytes_read;
    const auto held = [&](const Tensor& slab, const std::vector<SlabPiece>& pieces) {
      for (const SlabPiece& piece : pieces)
        loaded.bytes_held[r] += piece.elems * dtype_bytes(slab.dtype);
    };
    for (int u = 0; u < engine.state().units(); ++u) {
      const UnitState& unit = engine.state().unit(u);
      for (const UnitState::Part& part : unit.parameter_parts()) held(part.slab, part.pieces);
      for (int i = 0; i < unit.states(); ++i) held(unit.stepped_state(i), unit.stepped_pieces());
    }
    collector.add(engine);
  });
  loaded.state = collector.state();
  return loaded;
}

struct RanksAndStage {
  int ranks, stage;
};

void reshard(const std::vector<RanksAndStage>& from, const std::vector<RanksAndStage>& to) {
  for (const RanksAndStage& saving : from) {
    const ScratchFolder scratch;
    const CheckpointFolder folder(scratch.path("checkpoints"));
    const State saved = save_on(folder, saving.ranks, saving.stage);
    EXPECT_EQ(saved.size(), 3 * parameters_of(small_model()).size());
    for (const RanksAndStage& loading : to) {
      SCOPED_TRACE(fmt::format("{} ranks at stage {} to {} at stage {}", saving.ranks, saving.stage,
                               loading.ranks, loading.stage));
      const Loaded loaded = load_on(folder, loading.ranks, loading.stage);
      expect_same_state(saved, loaded.state);
      // What a rank reads is what it holds, wherever that lies.
      EXPECT_EQ(loaded.bytes_read, loaded.bytes_held);
    }
  }
}

TEST(Reshard, AnyLayoutLoadsWhatAnotherSaved) {
  reshard({{1, 0}, {3, 3}, {4, 1}, {2, 2}}, {{1, 0}, {2, 1}, {3, 2}, {4, 3}});
}

TEST(Reshard, EveryLayoutLoadsWhatEveryOtherSaved) {
  if (!std::getenv("ONEFOLD_SLOW_TESTS")) GTEST_SKIP() << "ctest -L slow runs it";
  std::vector<RanksAndStage> all;
  for (const int ranks : {1, 2, 3, 4, 8})
    for (const int stage : {0, 1, 2, 3}) all.push_back({ranks, stage});
  reshard(all, all);
}

TEST(Reshard, ARankReadsItsShareOfAShardedState) {
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path("checkpoints"));
  save_on(folder, 2, 1);
  const int64_t whole = 3 * small_model().parameter_count() * 4;
  const Loaded all = load_on(folder, 1, 0), shared = load_on(folder, 4, 3);
  EXPECT_EQ(all.bytes_read[0], whole);
  int64_t sum = 0;
  for (const int64_t bytes : shared.bytes_read) {
    EXPECT_LT(bytes, whole / 3);  // a quarter, but for padding
    sum += bytes;
  }
  EXPECT_EQ(sum, whole);
}

// ---- damage

class DamageTest : public ::testing::Test {
 protected:
  DamageTest() {
    for (const int64_t step : {2, 4}) save(step);
  }

  void save(int64_t step) {
    on_ranks(2, [&](int, std::shared_ptr<Communicator> communicator) {
      Engine engine(small_model(), options_of(3), std::move(communicator));
      engine.resume_after(step);
      CheckpointWriter writer(engine, folder_);
      writer.begin();
      writer.wait();
      EXPECT_TRUE(writer.finish({{"position", step}, {"model", small_model().to_json()}}).empty());
    });
  }
  std::string file(int64_t step, const std::string& name) const {
    return fmt::format("{}/step-{:08}/{}", folder_.path(), step, name);
  }
  static void flip(const std::string& path, size_t from_end) {
    std::string bytes = read_file(path);
    bytes[bytes.size() - from_end] = static_cast<char>(bytes[bytes.size() - from_end] ^ 4);
    write_file(path, bytes);
  }

  // Resumes on two ranks; both must take the older one, and know why.
  void expect_passed_over(std::initializer_list<std::string> words) const {
    on_ranks(2, [&](int, std::shared_ptr<Communicator> communicator) {
      Engine engine(small_model(), options_of(2), std::move(communicator));
      const Resumed resumed = resume(engine, folder_.list());
      EXPECT_EQ(resumed.step, 2);
      EXPECT_EQ(resumed.position, 2);
      ASSERT_EQ(resumed.remarks.size(), 1);
      for (const std::string& word : words) expect_in(resumed.remarks[0], {word});
    });
    std::vector<std::string> remarks;
    EXPECT_EQ(newest_whole(folder_, remarks)->checkpoint().manifest().step, 2);
    EXPECT_EQ(remarks.size(), 1);
  }

  const ScratchFolder scratch_;
  const CheckpointFolder folder_{scratch_.path("checkpoints")};
};

TEST_F(DamageTest, AWholeOneIsTaken) {
  std::vector<std::string> remarks;
  EXPECT_EQ(newest_whole(folder_, remarks)->checkpoint().manifest().step, 4);
  EXPECT_TRUE(remarks.empty());
}

TEST_F(DamageTest, AFlippedBitInAnyRanksFile) {
  flip(file(4, "rank-00001.safetensors"), 9);
  expect_passed_over({file(4, "rank-00001.safetensors"), "checksum"});
}

TEST_F(DamageTest, AFileCutShort) {
  const std::string path = file(4, "rank-00000.safetensors");
  fs::resize_file(path, fs::file_size(path) / 2);
  expect_passed_over({path, "cut short"});
}

TEST_F(DamageTest, AMissingFile) {
  fs::remove(file(4, "rank-00001.safetensors"));
  expect_passed_over({file(4, "rank-00001.safetensors")});
}

TEST_F(DamageTest, AnotherCheckpointsFile) {
  fs::copy_file(file(2, "rank-00001.safetensors"), file(4, "rank-00000.safetensors"),
                fs::copy_options::overwrite_existing);
  expect_passed_over({"rank-00000.safetensors"});
}

TEST_F(DamageTest, AManifestWithAnotherStepOrCutShort) {
  std::string text = read_file(file(4, "manifest.json"));
  const std::string whole = text;
  text.replace(text.find("\"position\": 4"), 13, "\"position\": 5");
  write_file(file(4, "manifest.json"), text);
  expect_passed_over({file(4, "manifest.json"), "damaged"});
  write_file(file(4, "manifest.json"), whole.substr(0, whole.size() / 2));
  expect_passed_over({file(4, "manifest.json")});
}

TEST_F(DamageTest, NothingWholeIsAnErrorThatNamesAll) {
  for (const int64_t step : {2, 4}) flip(file(step, "rank-00000.safetensors"), 5);
  Engine engine(small_model(), options_of(0));
  EXPECT_ERROR(resume(engine, folder_.list()), "no checkpoint can be resumed from",
               file(2, "rank-00000.safetensors"), file(4, "rank-00000.safetensors"));
  std::vector<std::string> remarks;
  EXPECT_ERROR(newest_whole(folder_, remarks), "is whole", file(2, ""), file(4, ""));
}

TEST_F(DamageTest, AnotherModelsCheckpointIsRefused) {
  ModelSpec other = small_model();
  other.vocab_size = 19;  // its table would fit into what is there
  Engine narrow(other, options_of(0));
  EXPECT_ERROR(resume(narrow, folder_.list()), "the shape [23, 12], the model needs [19, 12]");
  other = small_model();
  other.num_layers = 3;
  Engine deep(other, options_of(0));
  EXPECT_ERROR(resume(deep, folder_.list()), "no tensor", "another model");
}

// ---- writing behind training

TEST(CheckpointWriterTest, NoUnitStepsBeforeItIsWritten) {
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path("checkpoints"));
  // In the place of the file there is a pipe that is not read from yet. The token table fills it
  // and the buffer before it, and the writer blocks.
  const std::string pipe = folder.begin(1) + "/rank-00000.safetensors.onefold-tmp";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int held = ::open(pipe.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(held, 0);
  ModelSpec spec = small_model();
  spec.vocab_size = 50021;
  std::optional<CheckpointWriter> writer;
  EngineOptions options = options_of(0);
  std::atomic<int> stepped = 0;
  std::atomic<bool> reached = false;
  options.before_action = [&](const Action& action) {
    if (!writer || action.verb != Verb::step) return;
    reached = true;
    writer->before(action);
    ++stepped;
  };
  Engine engine(spec, options);
  test::train(engine, 1);
  writer.emplace(engine, folder);
  writer->begin();
  std::thread training([&] { test::train(engine, 1); });
  while (!reached) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(stepped, 0);
  std::thread drain([&] {
    std::vector<char> block(1 << 16);
    while (!writer->done() && ::read(held, block.data(), block.size()) > 0) {
    }
  });
  training.join();
  writer->wait();
  const char last = 0;
  ASSERT_EQ(::write(held, &last, 1), 1);  // the reader may be waiting for more
  drain.join();
  ::close(held);
  EXPECT_EQ(stepped, 6);
  EXPECT_GT(writer->stalled_seconds(), 0.04);
  // A pipe cannot be flushed to disk.
  expect_in(writer->error(), {"cannot flush", "rank-00000.safetensors"});
  EXPECT_EQ(writer->finish({{"position", 1}}).size(), 1);
  EXPECT_TRUE(folder.list().empty());
}

TEST(CheckpointWriterTest, ARankThatCannotWriteIsNamedAndNothingIsLeft) {
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path("checkpoints"));
  fs::create_directories(folder.begin(0) + "/rank-00001.safetensors.onefold-tmp");  // in its place
  on_ranks(2, [&](int, std::shared_ptr<Communicator> communicator) {
    Engine engine(small_model(), options_of(1), std::move(communicator));
    CheckpointWriter writer(engine, folder);
    writer.begin();
    writer.wait();
    const std::vector<std::string> errors = writer.finish({{"position", 0}});
    ASSERT_EQ(errors.size(), 1);
    expect_in(errors[0], {"rank 1: cannot create", "rank-00001.safetensors"});
    EXPECT_FALSE(writer.active());
    writer.begin();  // and again: now it can
    writer.wait();
    EXPECT_TRUE(writer.finish({{"position", 0}}).empty());
  });
  ASSERT_EQ(folder.list().size(), 1);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace onefold
