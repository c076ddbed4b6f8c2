// Nothing is lost: what stands where a result should go, checkpoints on other disks, models that
// are replaced, logs that cannot be written, runs that meet in one folder.
#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "cli/support.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

class CliSafety : public Cli {
 protected:
  // Eight steps, all checkpoints kept.
  Outcome train_whole(const Arguments& flags = {"--quiet"}) const {
    return train({"run.steps=8", "run.save_every=2", "run.keep_last=9"}, flags);
  }
  static std::string step(int number) { return fmt::format("run/checkpoints/step-{:08}", number); }
  void link(const std::string& target, const std::string& name) const {
    fs::create_symlink(folder_.path(target), folder_.path(name));
  }
  // As if the run had been killed after the step.
  void kill_after(int number) const {
    fs::remove(folder_.path("run/weights.safetensors"));
    for (int later = number + 2; later <= 8; later += 2) fs::remove_all(folder_.path(step(later)));
  }
  // Every file below a folder, with what it holds.
  std::map<std::string, std::string> contents(const std::string& name) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path(name)))
      if (entry.is_regular_file() && entry.path().filename() != "run.lock")
        all[entry.path()] = read_file(entry.path());
    return all;
  }
  size_t lines_of(const std::string& name) const {
    const std::string text = exists(name) ? read(name) : "";
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
};

TEST_F(CliSafety, AResultDoesNotReplaceWhatIsThere) {
  const std::string book = read("book.txt");
  const Arguments encode = {"tokenize", "encode", "book.txt", "--output"};
  const Arguments learn = {"tokenize", "train", "book.txt", "--vocab-size", "270", "--output"};
  link("book.txt", "link.txt");
  for (Arguments command : {encode, learn}) {
    const auto to = [&](const std::string& path, const Arguments& flags = {}) {
      Arguments all = command;
      all.push_back(path);
      all.insert(all.end(), flags.begin(), flags.end());
      return onefold(all);
    };
    for (const char* input : {"book.txt", "link.txt", "./book.txt"})
      expect_error(to(input, {"--overwrite"}), 1, {"--output", input, "is the input"});
    EXPECT_EQ(read("book.txt"), book);
    folder_.write("mine", "years of work");
    expect_error(to("mine"), 1, {"mine already exists", "--overwrite"});
    EXPECT_EQ(read("mine"), "years of work");
    EXPECT_EQ(to("mine", {"--overwrite"}).code, 0);
    EXPECT_NE(read("mine"), "years of work");
    expect_error(to("nowhere/out"), 1, {"--output", "nowhere/out"});
    fs::create_directory(folder_.path("disk"));
    fs::create_symlink("disk/real", folder_.path("out"));
    EXPECT_EQ(to("out").code, 0);
    EXPECT_TRUE(fs::is_symlink(folder_.path("out")));
    EXPECT_TRUE(exists("disk/real"));
    fs::remove_all(folder_.path("disk"));
    fs::remove(folder_.path("out"));
  }
}

TEST_F(CliSafety, APipeIsWrittenToAndNeverReplaced) {
  const Outcome learnt = shell(
      "mkfifo pipe; cat pipe > got & $onefold tokenize train book.txt --vocab-size 270 --output "
      "pipe; code=$?; wait; exit $code");
  EXPECT_EQ(learnt.code, 0) << learnt.err;
  EXPECT_TRUE(fs::is_fifo(folder_.path("pipe")));
  EXPECT_EQ(onefold({"tokenize", "show", "fox", "--tokenizer", "got"}).code, 0);
  const Outcome encoded = shell(
      "cat pipe > got & $onefold tokenize encode book.txt --output pipe; code=$?; wait; exit "
      "$code");
  expect_error(encoded, 1, {"it is a pipe"});
  EXPECT_TRUE(fs::is_fifo(folder_.path("pipe")));
}

TEST_F(CliSafety, AModelIsExportedToWhereALinkLeads) {
  make_run("run");
  fs::create_directory(folder_.path("disk"));
  link("disk", "model");
  for (const Arguments& flags : {Arguments{}, {"--overwrite"}}) {
    Arguments all = {"export", "run", "model"};
    all.insert(all.end(), flags.begin(), flags.end());
    const Outcome outcome = onefold(all);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(fs::is_symlink(folder_.path("model")));
    EXPECT_TRUE(exists("disk/model.safetensors"));
  }
  fs::create_symlink("nowhere", folder_.path("lost"));
  expect_error(onefold({"export", "run", "lost"}), 1, {"lost is a link to what is not there"});
}

TEST_F(CliSafety, ATraceThatCannotBeWrittenIsToldBeforeTheRun) {
  const std::string book = read("book.txt");
  folder_.write("old.json", "old");
  const std::pair<Arguments, const char*> cases[] = {
      {{"--trace", "nowhere/trace.json"}, "nowhere/trace.json"},
      {{"--trace", "old.json"}, "old.json already exists"},
      {{"--trace", "book.txt", "--overwrite"}, "is the input book.txt"},
      {{"--trace", "config.json", "--overwrite"}, "is the input config.json"}};
  for (const auto& [flags, words] : cases) {
    expect_error(train({}, flags), 1, {"--trace", words});
    EXPECT_FALSE(exists("run")) << words;
  }
  EXPECT_EQ(read("old.json"), "old");
  EXPECT_EQ(read("book.txt"), book);
  ASSERT_EQ(train_whole().code, 0);
  expect_error(train({}, {"--trace", "run/metrics.jsonl", "--overwrite"}), 1,
               {"a file that the run itself writes"});
  EXPECT_EQ(lines_of("run/metrics.jsonl"), 8);
}

TEST_F(CliSafety, CheckpointsOnAnotherDiskAreResumed) {
  ASSERT_EQ(train_whole().code, 0);
  const std::string weights = read("run/weights.safetensors");
  // The folder is a link; one of its checkpoints too; and the checkpoint is named where it lies.
  fs::rename(folder_.path("run/checkpoints"), folder_.path("disk"));
  link("disk", "run/checkpoints");
  for (const Arguments& resume :
       {Arguments{"--resume"}, {"--resume", "run"}, {"--resume", "disk/step-00000004"}}) {
    kill_after(4);
    Arguments flags = resume;
    flags.push_back("--quiet");
    const Outcome outcome = train_whole(flags);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(read("run/weights.safetensors"), weights);
    EXPECT_TRUE(fs::is_symlink(folder_.path("run/checkpoints")));
    EXPECT_TRUE(exists("disk/step-00000008/manifest.json"));
  }
  kill_after(4);
  fs::rename(folder_.path("disk/step-00000004"), folder_.path("third"));
  link("third", "disk/step-00000004");
  const Outcome outcome = train_whole({"--resume", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["resumed_from_step"], 4);
  EXPECT_EQ(read("run/weights.safetensors"), weights);
  // A disk that is not mounted is no reason to begin again.
  fs::rename(folder_.path("disk"), folder_.path("away"));
  fs::remove(folder_.path("run/weights.safetensors"));
  expect_error(train_whole({"--resume", "--quiet"}), 1, {"run/checkpoints is a link", "mounted"});
}

TEST_F(CliSafety, AReplacedModelIsThereUntilTheNewOneIs) {
  ASSERT_EQ(train_whole().code, 0);
  const std::string weights = read("run/weights.safetensors");
  const std::string saved = read(step(8) + "/rank-00000.safetensors");
  const Environment full{.out_path = "", .file_limit = 200'000};
  for (int tries = 0; tries < 2; ++tries) {
    const Outcome outcome = onefold(train_arguments({}, {"--overwrite", "--quiet"}), full);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(read("run/replaced-weights.safetensors"), weights);
    EXPECT_EQ(read("run/checkpoints/replaced-step-00000008/rank-00000.safetensors"), saved);
  }
  const Outcome back = train({"run.output=back", "run.steps=8"},
                             {"--resume", "run/checkpoints/replaced-step-00000008", "--quiet"});
  EXPECT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(read("back/weights.safetensors"), weights);
  ASSERT_EQ(train({}, {"--overwrite", "--quiet"}).code, 0);
  for (const auto& [path, content] : contents("run"))
    EXPECT_EQ(path.find("replaced"), std::string::npos) << path;
}

TEST_F(CliSafety, WhatCannotBeLoadedReplacesNothing) {
  ASSERT_EQ(train_whole().code, 0);
  ASSERT_EQ(train({"run.output=other"}).code, 0);
  std::string bytes = read(step(8) + "/rank-00000.safetensors");
  bytes[bytes.size() - 10] ^= 1;
  folder_.write(step(8) + "/rank-00000.safetensors", bytes);
  const auto before = contents("other");
  const Outcome outcome =
      train({"run.output=other", "run.steps=8"}, {"--resume", step(8), "--overwrite", "--quiet"});
  expect_error(outcome, 1, {"no checkpoint can be resumed from"});
  EXPECT_EQ(contents("other"), before);
}

TEST_F(CliSafety, ThePlanSaysWhereWeightsComeFrom) {
  expect_in(train({}, {"--plan-only"}).out, {"; random weights (run.seed 1)\n"});
  ASSERT_EQ(train_whole().code, 0);
  ASSERT_EQ(onefold({"export", "run", "hf"}).code, 0);
  const Arguments fields = {"model=hf", "run.output=tuned"};
  expect_in(train(fields, {"--plan-only"}).out, {"; weights of hf\n"});
  expect_in(train({"run.steps=8"}, {"--resume", "--plan-only"}).out,
            {"; weights of run/checkpoints/step-00000008\n"});
  fs::rename(folder_.path("hf/model.safetensors"), folder_.path("hf/model.gguf"));
  expect_error(train(fields, {"--quiet"}), 1, {"model.gguf", "hf/config.json"});
  expect_in(
      train({"model=hf/config.json", "data.tokenizer=hf/tokenizer.json"}, {"--plan-only"}).out,
      {"; random weights (run.seed 1): hf/config.json is a configuration alone\n"});
}

TEST_F(CliSafety, ATerminalThatIsGoneLosesNoTraining) {
  ASSERT_EQ(train({"run.output=whole"}).code, 0);
  Environment full;
  full.err_path = "/dev/full";
  EXPECT_EQ(onefold(train_arguments({}, {}), full).code, 0);
  EXPECT_EQ(read("run/weights.safetensors"), read("whole/weights.safetensors"));
  EXPECT_EQ(lines_of("run/metrics.jsonl"), 3);
  const Outcome closed = shell("$onefold train config.json --set run.output=closed 2>&-");
  EXPECT_EQ(closed.code, 0);
  EXPECT_EQ(read("closed/weights.safetensors"), read("whole/weights.safetensors"));
  EXPECT_EQ(lines_of("closed/metrics.jsonl"), 3);
}

TEST_F(CliSafety, AResultThatNobodyGetsIsAnError) {
  EXPECT_EQ(shell("$onefold info --json >&-").code, 1);
  for (const char* words : {"--help", "--version", "tokenize show fox"})
    EXPECT_EQ(shell(fmt::format("$onefold {} > /dev/full", words)).code, 1) << words;
}

TEST_F(CliSafety, MetricsThatCannotBeWrittenAreAWarning) {
  fs::create_directory(folder_.path("run"));
  fs::create_symlink("/dev/full", folder_.path("run/metrics.jsonl"));
  const Outcome outcome = train({"run.steps=5"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(exists("run/weights.safetensors"));
  expect_in(outcome.err, {"warning: cannot write run/metrics.jsonl: No space left", "goes on"});
  const size_t first = outcome.err.find("goes on");
  EXPECT_EQ(outcome.err.find("goes on", first + 1), std::string::npos) << "once";
}

TEST_F(CliSafety, TwoRunsDoNotShareAFolder) {
  const Arguments keys = {"run.steps=100000", "run.save_every=1"};
  const Process first(folder_.path(""), train_arguments(keys, {"--quiet"}), {});
  ASSERT_TRUE(eventually([&] { return lines_of("run/metrics.jsonl") > 2; }));
  for (const Arguments& flags : {Arguments{"--overwrite"}, {"--resume"}})
    expect_error(train(keys, flags), 1,
                 {"another run is writing to run", fmt::format("process {} on", first.pid())});
  EXPECT_EQ(train(keys, {"--plan-only"}).code, 0) << "which writes nothing";
  first.send(SIGKILL);
  first.wait();
  const Outcome again = train({"run.steps=3"}, {"--overwrite", "--quiet"});
  EXPECT_EQ(again.code, 0) << again.err;
}

TEST_F(CliSafety, AReaderThatLeavesStopsTheRunAndItIsSaved) {
  const Outcome outcome = shell(
      "($onefold train config.json --set run.steps=100000 --set steps_per_print=1 2>&1; echo $? > "
      "code) | head -n 40 > /dev/null");
  EXPECT_EQ(read("code"), "130\n") << outcome.err;
  EXPECT_TRUE(exists("run/weights.safetensors"));
}

TEST_F(CliSafety, ATokenFileThatIsCutShortIsNamed) {
  ASSERT_EQ(onefold({"tokenize", "encode", "book.txt", "--output", "book.tokens"}).code, 0);
  const Process process(
      folder_.path(""),
      train_arguments({"run.steps=100000", "data.train=book.tokens"}, {"--quiet"}), {});
  ASSERT_TRUE(eventually([&] { return lines_of("run/metrics.jsonl") > 2; }));
  fs::resize_file(folder_.path("book.tokens"), 0);
  expect_error(process.wait(), 1, {"book.tokens was cut short"});
}

TEST_F(CliSafety, ARunThatWentBackGoesOnFromWhereItIs) {
  ASSERT_EQ(train_whole().code, 0);
  const std::string weights = read("run/weights.safetensors");
  const Outcome back = train({"run.steps=3"}, {"--resume", step(2), "--allow-changes", "--quiet"});
  ASSERT_EQ(back.code, 0) << back.err;
  const Outcome on = train_whole({"--resume", "--allow-changes", "--json"});
  ASSERT_EQ(on.code, 0) << on.err;
  EXPECT_EQ(Json::parse(on.out)["resumed_from_step"], 3);
  EXPECT_EQ(read("run/weights.safetensors"), weights);
  for (const int later : {4, 6, 8})  // nothing of the other future is lost
    EXPECT_TRUE(exists(fmt::format("run/checkpoints/abandoned-step-{:08}/manifest.json", later)));
}

TEST_F(CliSafety, APassedOverCheckpointIsToldEvenWhenQuiet) {
  ASSERT_EQ(train_whole().code, 0);
  std::string bytes = read(step(8) + "/rank-00000.safetensors");
  bytes[bytes.size() - 10] ^= 1;
  folder_.write(step(8) + "/rank-00000.safetensors", bytes);
  fs::rename(folder_.path(step(2)), folder_.path(step(999)));
  const auto expect_named = [&](const Outcome& outcome, size_t count) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_in(outcome.err, {"passed over: " + step(8), "passed over: " + step(999)});
    EXPECT_EQ(Json::parse(outcome.out)["passed_over"].size(), count) << outcome.out;
  };
  fs::remove(folder_.path("run/weights.safetensors"));
  expect_named(onefold({"generate", "run", "--prompt", "a", "--tokens", "2", "--json"}), 2);
  expect_named(onefold({"export", "run", "hf", "--json"}), 2);
  const Outcome outcome = train_whole({"--resume", "--json"});
  expect_named(outcome, 2);
  EXPECT_EQ(Json::parse(outcome.out)["resumed_from_step"], 6);
  const Outcome quiet = train_whole({"--resume", "--quiet"});
  expect_in(quiet.err, {"passed over: " + step(999), "named after step 999"});
}

TEST_F(CliSafety, WeightsThatAreNoNumbersMakeNoText) {
  const RunFolder run = make_run("run");
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::vector<float>> values;
  {
    const SafetensorsFile file(run.file("weights.safetensors"));
    entries = file.entries();
    for (const SafetensorsEntry& entry : entries) {
      values[entry.name].resize(static_cast<size_t>(entry.elems()));
      file.read(entry.name, std::span<float>(values[entry.name]));
    }
  }
  values.begin()->second[0] = std::numeric_limits<float>::quiet_NaN();
  for (auto& [name, elements] : values)
    std::fill(elements.begin(), elements.end(), values.begin()->second[0]);
  SafetensorsWriter writer(run.file("weights.safetensors"), entries, {{"format", "onefold"}});
  for (const SafetensorsEntry& entry : entries)
    writer.write(entry.name, std::span<const float>(values[entry.name]));
  writer.commit();
  for (const Arguments& how : {Arguments{}, {"--greedy"}, {"--beams", "2"}, {"--json"}}) {
    Arguments all = {"generate", "run", "--prompt", "fox", "--tokens", "4"};
    all.insert(all.end(), how.begin(), how.end());
    expect_error(onefold(all), 1, {"not finite"});
  }
}

TEST_F(CliSafety, SmallMistakesAreNamed) {
  make_run("run");
  expect_error(onefold({"generate", "run", "--beams", "2", "--length-penalty", "nan"}), 1,
               {"length penalty is nan"});
  expect_error(train({}, {"--allow-changes"}), 2, {"--allow-changes", "--resume"});
  expect_error(train({"run.steps=1e18"}), 1, {"run.steps is 1e+18"});
  expect_error(train({"run.steps=", "run.epochs=1e300"}), 1, {"run"});
  expect_error(train({"optimizer.params.lr=1e300"}), 1, {"optimizer.params.lr is 1e+300"});
}

TEST_F(CliSafety, ALowStackLimitEndsNoRunWithoutAWord) {
  const Outcome outcome = shell("ulimit -s 64; $onefold train config.json --quiet");
  EXPECT_TRUE(outcome.code == 0 || outcome.err.find("ulimit -s") != std::string::npos)
      << outcome.code << outcome.err;
}

TEST_F(CliSafety, ALimitOfFileSizesIsAWriteThatFailsByName) {
  make_run("run");
  const std::string weights = read("run/weights.safetensors");
  const Outcome outcome = shell("ulimit -f 20; $onefold train config.json --quiet --overwrite");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("File too large"), std::string::npos) << outcome.err;
  EXPECT_EQ(read("run/replaced-weights.safetensors"), weights);
}

TEST_F(CliSafety, BenchmarksLeaveNoFolders) {
  const Outcome outcome =
      onefold({"bench", "checkpoint", "a/b", "--model", "gpt2-tiny", "--repeats", "1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_FALSE(exists("a"));
  fs::create_directory(folder_.path("a"));
  EXPECT_EQ(onefold({"bench", "checkpoint", "a", "--model", "gpt2-tiny", "--repeats", "1"}).code,
            0);
  EXPECT_TRUE(exists("a"));
  EXPECT_TRUE(fs::is_empty(folder_.path("a")));
}

}  // namespace
}  // namespace onefold
