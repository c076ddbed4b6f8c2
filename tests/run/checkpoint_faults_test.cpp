// Saving on a system that fails: whatever happens, the checkpoint before stays whole, the error
// names path and reason, and nothing of the failed one is left.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/broken_files.h"
#include "data/scratch.h"
#include "error_text.h"
#include "run/saved_state.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;
using test::BrokenFiles;
using test::Call;
using test::expect_same_state;
using test::on_ranks;
using test::options_of;
using test::State;
using test::StateCollector;

constexpr int kRanks = 2;
using Errors = std::vector<std::string>;

class CheckpointFaults : public ::testing::Test {
 protected:
  CheckpointFaults() : model_(test::small_model()) {
    model_.vocab_size = 20011;  // so that a file takes several writes
    EXPECT_EQ(save(2), Errors());
    before_ = load();
    EXPECT_EQ(load_step(), 2);
  }

  // Saves a state that is a function of the step; the errors that all ranks agree on.
  Errors save(int64_t step) const {
    Errors errors;
    on_ranks(kRanks, [&](int rank, std::shared_ptr<Communicator> communicator) {
      EngineOptions options = options_of(1);
      options.seed = static_cast<uint64_t>(step);
      Engine engine(model_, options, std::move(communicator));
      engine.resume_after(step);
      CheckpointWriter writer(engine, folder_);
      writer.begin();
      writer.wait();
      const Errors found = writer.finish({{"position", step}});
      if (rank == 0) errors = found;
    });
    return errors;
  }
  State load() const {
    StateCollector collector;
    Engine engine(model_, options_of(0));
    resume(engine, folder_.list());
    collector.add(engine);
    return collector.state();
  }
  int64_t load_step() const { return Checkpoint(folder_.list().at(0).path).manifest().step; }
  int64_t bytes_of(int64_t step) const {
    int64_t bytes = 0;
    for (const auto& file : fs::directory_iterator(path(step)))
      bytes += static_cast<int64_t>(file.file_size());
    return bytes;
  }
  std::string path(int64_t step) const {
    return fmt::format("{}/step-{:08}", folder_.path(), step);
  }
  // Nothing but the checkpoint of step 2, which is what it was.
  void expect_only_the_one_before() const {
    const std::vector<Files::Entry> entries = list_folder(folder_.path());
    ASSERT_EQ(entries.size(), 1);
    EXPECT_EQ(entries[0].name, "step-00000002");
    expect_same_state(load(), before_);
  }
  // Tries to save step 4 on a system with one fault.
  void expect_failure(Call call, const std::string& part, int skip,
                      std::initializer_list<std::string> words) const {
    SCOPED_TRACE(fmt::format("call {} of {}, after {}", static_cast<int>(call), part, skip));
    Errors errors;
    {
      BrokenFiles files;
      files.fail(call, std::errc::io_error, part, skip);
      errors = save(4);
      EXPECT_GE(files.failed(), 1);
    }
    ASSERT_EQ(errors.size(), 1);
    for (const std::string& word : words) expect_in(errors[0], {word});
    expect_in(errors[0], {part, "Input/output error"});
    expect_only_the_one_before();
  }

  const ScratchFolder scratch_;
  const CheckpointFolder folder_{scratch_.path("checkpoints")};
  ModelSpec model_;
  State before_;
};

TEST_F(CheckpointFaults, ACallThatFailsLeavesTheOneBefore) {
  const std::string file = "rank-00001.safetensors";
  expect_failure(Call::open_output, file, 0, {"rank 1: cannot create", folder_.path()});
  for (const int skip : {0, 1, 3})
    expect_failure(Call::write, file, skip, {"rank 1: cannot write"});
  expect_failure(Call::flush, file, 0, {"rank 1: cannot flush"});
  expect_failure(Call::rename, file, 0, {"rank 1: cannot rename into place"});
  for (const Call call : {Call::open_output, Call::write, Call::flush, Call::rename})
    expect_failure(call, "manifest.json", 0, {folder_.path()});
  // The folder itself: the names of its files (the manifest's is the third), and its own.
  expect_failure(Call::flush_folder, ".writing-step-00000004", 2, {"cannot flush the folder"});
  expect_failure(Call::rename, "checkpoints/step-00000004", 0, {"cannot rename"});
}

TEST_F(CheckpointFaults, AFolderThatCannotBeMadeFailsOnEveryRank) {
  BrokenFiles files;
  files.fail(Call::make_folders, std::errc::no_space_on_device);
  const Errors errors = save(4);
  ASSERT_EQ(errors.size(), 2);
  for (const int rank : {0, 1})
    expect_in(errors[static_cast<size_t>(rank)],
              {fmt::format("rank {}: cannot create the folder", rank), folder_.path(), "No space"});
  expect_only_the_one_before();
}

TEST_F(CheckpointFaults, AFullDiskLeavesTheOneBeforeWhereverItEnds) {
  const int64_t all = bytes_of(2);
  for (const int64_t room : {int64_t{0}, int64_t{1}, int64_t{7}, all / 7, all / 3, all / 2,
                             all - all / 5, all - 5000, all - 1}) {
    SCOPED_TRACE(room);
    Errors errors;
    {
      BrokenFiles files;
      files.fill_up_after(room);
      errors = save(4);
    }
    ASSERT_GE(errors.size(), 1);
    for (const std::string& error : errors)
      expect_in(error, {"cannot write", folder_.path(), "No space left on device"});
    expect_only_the_one_before();
  }
  BrokenFiles files;  // and with room for the last byte it is there
  files.fill_up_after(all);
  EXPECT_EQ(save(4), Errors());
  EXPECT_EQ(load_step(), 4);
}

TEST_F(CheckpointFaults, ShortWritesAreNoFault) {
  EXPECT_EQ(save(4), Errors());
  const State whole = load();
  fs::remove_all(path(4));
  BrokenFiles files;
  files.cut_writes(997);
  EXPECT_EQ(save(4), Errors());
  EXPECT_GT(files.calls(Call::write), bytes_of(4) / 997);
  EXPECT_EQ(load_step(), 4);
  expect_same_state(load(), whole);
}

TEST_F(CheckpointFaults, ASystemThatTakesNoBytesIsAnError) {
  BrokenFiles files;
  files.cut_writes(0);
  const Errors errors = save(4);
  ASSERT_EQ(errors.size(), 2);
  expect_in(errors[0], {"cannot write", "rank-00000.safetensors", "accepts no more bytes"});
  expect_only_the_one_before();
}

// The name of the new one may be lost with the power, so it does not count as saved; but it is
// whole.
TEST_F(CheckpointFaults, ANameThatMayNotBeOnDiskIsAnError) {
  BrokenFiles files;
  files.fail(Call::flush_folder, std::errc::io_error, folder_.path(), 3);
  const Errors errors = save(4);
  ASSERT_EQ(errors.size(), 1);
  expect_in(errors[0], {"cannot flush the folder " + folder_.path(), "Input/output error"});
  EXPECT_EQ(folder_.list().size(), 2);
  EXPECT_EQ(load_step(), 4);
  Checkpoint(path(2)).verify(0);
}

TEST_F(CheckpointFaults, WhatCannotBeRemovedIsNotTakenForACheckpoint) {
  {
    BrokenFiles files;
    files.fail(Call::flush, std::errc::io_error, "rank-00000");
    files.fail(Call::remove, std::errc::io_error);
    const Errors errors = save(4);
    ASSERT_EQ(errors.size(), 1);
    expect_in(errors[0], {"rank 0: cannot flush", "Input/output error"});
  }
  EXPECT_EQ(list_folder(folder_.path()).size(), 2);
  ASSERT_EQ(folder_.list().size(), 1);
  expect_same_state(load(), before_);
  EXPECT_EQ(save(4), Errors());  // over what was left
  EXPECT_EQ(load_step(), 4);
  EXPECT_EQ(list_folder(folder_.path()).size(), 2);
}

TEST_F(CheckpointFaults, TheSameStepIsReplacedOrStaysAsItWas) {
  for (const std::errc error : {std::errc::io_error, std::errc::no_space_on_device}) {
    BrokenFiles files;
    files.fail(Call::exchange, error);
    const Errors errors = save(2);
    ASSERT_EQ(errors.size(), 1);
    expect_in(errors[0], {"cannot exchange", path(2)});
    expect_only_the_one_before();
  }
  BrokenFiles files;
  files.fail(Call::exchange, std::errc::invalid_argument);  // as a network's file system says
  EXPECT_EQ(save(2), Errors());
  expect_only_the_one_before();
}

TEST_F(CheckpointFaults, AFaultThatPassesLeavesNoTrace) {
  BrokenFiles files;
  files.fail(Call::write, std::errc::io_error, "rank-00000", 1, 1);
  EXPECT_EQ(save(4).size(), 1);
  EXPECT_EQ(save(4), Errors());
  EXPECT_EQ(load_step(), 4);
  EXPECT_EQ(list_folder(folder_.path()).size(), 2);
}

// What a slow disk delays is the optimizer's step, and not what is saved.
TEST_F(CheckpointFaults, ASlowDiskSavesTheStateOfItsStep) {
  std::optional<CheckpointWriter> writer;
  EngineOptions options = options_of(0);
  options.before_action = [&](const Action& action) {
    if (writer) writer->before(action);
  };
  Engine engine(model_, options);
  test::train(engine, 1);
  StateCollector collector;
  collector.add(engine);
  writer.emplace(engine, folder_);
  BrokenFiles files;
  files.delay(Call::write, std::chrono::milliseconds(20));
  writer->begin();
  test::train(engine, 2);
  writer->wait();
  EXPECT_EQ(writer->finish({{"position", 1}}), Errors());
  EXPECT_GT(files.calls(Call::write), 4);
  EXPECT_GT(writer->stalled_seconds(), 0);
  fs::remove_all(path(2));
  expect_same_state(load(), collector.state());
}

TEST_F(CheckpointFaults, ReadingAFailingDiskPassesTheCheckpointOver) {
  EXPECT_EQ(save(4), Errors());
  for (const Call call : {Call::read, Call::open_input, Call::map}) {
    BrokenFiles files;
    files.fail(call, std::errc::io_error, path(4) + "/rank-00001");
    Engine engine(model_, options_of(0));
    const Resumed resumed = resume(engine, folder_.list());
    EXPECT_EQ(resumed.step, 2);
    ASSERT_EQ(resumed.remarks.size(), 1);
    expect_in(resumed.remarks[0], {path(4) + "/rank-00001", "Input/output error"});
  }
}

// A run that was told there is none would begin anew.
TEST_F(CheckpointFaults, AFolderThatCannotBeListedIsNotAnEmptyOne) {
  BrokenFiles files;
  files.fail(Call::list, std::errc::io_error);
  EXPECT_ERROR(folder_.list(), "cannot list", folder_.path(), "Input/output error");
  const Errors problems = folder_.prune(2, 1, 0);
  ASSERT_EQ(problems.size(), 1);
  expect_in(problems[0], {"cannot list", folder_.path()});
  folder_.discard_all();  // leaves it for the next run
}

TEST_F(CheckpointFaults, AnOldOneThatCannotBeRemovedIsNamed) {
  EXPECT_EQ(save(4), Errors());
  {
    BrokenFiles files;
    files.fail(Call::remove, std::errc::io_error, "rank-00000");
    const Errors problems = folder_.prune(4, 1, 0);
    ASSERT_EQ(problems.size(), 1);
    expect_in(problems[0], {"cannot remove", "step-00000002/rank-00000", "Input/output error"});
  }
  ASSERT_EQ(folder_.list().size(), 1);  // it has lost its name, and the next run removes it
  folder_.discard_all();
  EXPECT_EQ(list_folder(folder_.path()).size(), 1);
}

}  // namespace
}  // namespace onefold
