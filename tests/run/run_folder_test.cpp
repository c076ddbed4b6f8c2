#include "run/run_folder.h"

#include "base/broken_files.h"
#include "base/file.h"
#include "engine/support.h"
#include "inspect/saved_run.h"
#include "run/session.h"
#include "run/support.h"
#include "run/weights.h"

namespace onefold {
namespace {

class RunFolderTest : public RunTest {
 protected:
  std::string path() const { return folder_.path("run"); }
  RunFolder create(const Config& c, bool overwrite = false) const {
    const Tokenizer tokenizer = Tokenizer::bytes();
    return RunFolder::create(path(), c, c.model, &tokenizer, overwrite);
  }
  static std::vector<float> weights_of(Engine& engine) {
    std::vector<float> all;
    test::for_each_parameter(engine, [&](const ParamSpec&, std::span<const float> values) {
      all.insert(all.end(), values.begin(), values.end());
    });
    return all;
  }
  static EngineOptions options(uint64_t seed) {
    return {.threads = 1, .seed = seed, .sequence = 8};
  }
};

TEST_F(RunFolderTest, GivesBackWhatWasPutIn) {
  const Config c = config({"run.seed=5"});
  const RunFolder created = create(c);
  Engine saved(c.model, options(1));
  created.save_weights(saved);

  const SavedRun opened(path());
  EXPECT_EQ(opened.model().to_json(), c.model.to_json());
  EXPECT_EQ(opened.tokenizer()->hash(), Tokenizer::bytes().hash());
  EXPECT_EQ(load_config(opened.file("config.json"), {}).effective(), c.effective());
  Engine loaded(c.model, options(2));
  EXPECT_NE(weights_of(loaded), weights_of(saved));
  loaded.state().write_parameters(reader_of(opened.weights()));
  EXPECT_EQ(weights_of(loaded), weights_of(saved));
}

TEST_F(RunFolderTest, ParentsAreMade) {
  const Config c = config();
  RunFolder::create(folder_.path("a/b/c"), c, c.model, nullptr, false);
  EXPECT_TRUE(std::filesystem::exists(folder_.path("a/b/c/config.json")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("a/b/c/tokenizer.json")));
}

TEST_F(RunFolderTest, IsFreeUntilItHasWeights) {
  const Config c = config();
  create(c);
  create(c);  // a run that was killed before it saved left nothing to lose
  Engine engine(c.model, options(1));
  RunFolder run = create(c);
  run.save_weights(engine);
  EXPECT_ERROR(create(c), path(), "already holds a trained model", "--resume");
  EXPECT_EQ(error_text([&] { create(c); }).find("--overwrite"), std::string::npos)
      << "nobody is to lose a model by following a message";
  EXPECT_ERROR(RunFolder::require_free(path(), false), "--resume");
  RunFolder::require_free(path(), true);
  create(c, true);
  EXPECT_ERROR(SavedRun(path()), "has no weights yet");  // not the old run's
}

TEST_F(RunFolderTest, FilesThatAreNotARunsStay) {
  const Config c = config();
  make_folders(folder_.path("run/tensorboard"));
  folder_.write("run/notes.txt", "mine");
  folder_.write("run/tensorboard/notes.txt", "mine");
  folder_.write("run/tensorboard/events.out.tfevents.1.host", "the run's");
  create(c, true);
  EXPECT_EQ(read_file(folder_.path("run/notes.txt")), "mine");
  EXPECT_EQ(read_file(folder_.path("run/tensorboard/notes.txt")), "mine");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("run/tensorboard/events.out.tfevents.1.host")));
}

TEST_F(RunFolderTest, AModelOfAnotherProgramIsNotOverwritten) {
  for (const std::string name : {"config.json", "tokenizer.json"}) {
    std::filesystem::remove_all(path());
    make_folders(path());
    folder_.write("run/" + name, "other");
    EXPECT_ERROR(create(config(), true), name + " that no run has written");
    EXPECT_EQ(read_file(folder_.path("run/" + name)), "other");
  }
}

TEST_F(RunFolderTest, AFullDiskKeepsTheWeightsThatWereThere) {
  const Config c = config();
  const RunFolder run = create(c);
  Engine first(c.model, options(1)), second(c.model, options(2)), loaded(c.model, options(3));
  run.save_weights(first);
  {
    test::BrokenFiles files;
    files.fill_up_after(100'000);
    EXPECT_ERROR(run.save_weights(second), "cannot write", run.file("weights.safetensors"),
                 "No space left on device");
  }
  EXPECT_FALSE(path_exists(run.file("weights.safetensors.onefold-tmp")));
  loaded.state().write_parameters(reader_of(SavedRun(path()).weights()));
  EXPECT_EQ(weights_of(loaded), weights_of(first));
}

// What stayed would be taken for the new run's.
TEST_F(RunFolderTest, AnOldRunThatCannotBeSetAsideIsAnError) {
  const Config c = config();
  const RunFolder run = create(c);
  Engine engine(c.model, options(1));
  run.save_weights(engine);
  make_folders(run.file("checkpoints/step-00000002"));
  write_file(run.file("checkpoints/step-00000002/manifest.json"), "{}");
  for (const char* name : {"weights.safetensors", "step-00000002"}) {
    test::BrokenFiles files;
    files.fail(test::Call::rename, std::errc::operation_not_permitted, name);
    EXPECT_ERROR(create(c, true), "cannot rename", name, "Operation not permitted");
  }
  create(c, true);
  test::BrokenFiles files;
  files.fail(test::Call::remove, std::errc::operation_not_permitted);
  const std::vector<std::string> problems = run.drop_replaced();
  ASSERT_FALSE(problems.empty());
  expect_in(problems.front(), {"cannot remove", "replaced-step-00000002"});
}

TEST_F(RunFolderTest, AReplacedRunIsThereUntilTheNewOneHasSaved) {
  const Config c = config();
  const RunFolder old = create(c);
  Engine first(c.model, options(1)), loaded(c.model, options(3));
  old.save_weights(first);
  write_file(old.file("metrics.jsonl"), "{}\n");
  make_folders(old.file("checkpoints/step-00000002"));
  write_file(old.file("checkpoints/step-00000002/manifest.json"), "{}");
  for (int started = 0; started < 3; ++started) {  // runs that are killed before they save
    create(c, true);
    load_weights(loaded, old.file("replaced-weights.safetensors"));
    EXPECT_EQ(weights_of(loaded), weights_of(first));
    EXPECT_EQ(read_file(old.file("replaced-metrics.jsonl")), "{}\n");
    EXPECT_EQ(read_file(old.file("checkpoints/replaced-step-00000002/manifest.json")), "{}");
  }
  EXPECT_EQ(create(c).drop_replaced(), std::vector<std::string>());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path()))
    EXPECT_EQ(entry.path().string().find("replaced"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace onefold
