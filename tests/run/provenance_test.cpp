#include "run/provenance.h"

#include "base/broken_files.h"
#include "inspect/model_card.h"
#include "io/checksum.h"
#include "run/support.h"

namespace onefold {
namespace {

class ProvenanceTest : public RunTest {
 protected:
  // Begins a part of a run in a folder that is new, or goes on.
  Provenance begin(bool goes_on = false) {
    config_ = config({"run.output=" + folder_.path("run"), "data.validation_fraction=0.2"});
    Ranks ranks(1, {});
    plan_ = plan_run(config_, ranks);
    const Tokenizer* tokenizer = &*plan_.data.tokenizer;
    const RunFolder folder =
        goes_on ? RunFolder::reopen(config_.run.output, config_, plan_.model, tokenizer)
                : RunFolder::create(config_.run.output, config_, plan_.model, tokenizer, true);
    Provenance provenance(config_, plan_);
    provenance.begin(folder);
    return provenance;
  }
  static Json summary(int64_t from, int64_t steps, bool interrupted) {
    return {{"resumed_from_step", from},
            {"steps", steps},
            {"interrupted", interrupted},
            {"loss", 2.5},
            {"validation_loss", 2.75},
            {"seconds", 4.0},
            {"tokens", 128},
            {"tokens_per_second", 32.0},
            {"peak_rss_bytes", 1 << 20}};
  }
  std::string file(const char* name) const { return folder_.path("run") + "/" + name; }
  Json record() const { return read_json(file("run.json")); }
  // What a checkpoint leaves behind, for the folder to count as a run that went on.
  void leave_checkpoint() const {
    const std::string path = CheckpointFolder(file("checkpoints")).path() + "/step-000000002";
    make_folders(path);
    write_file(path + "/" + kManifest, "{}");
  }

  Config config_;
  RunPlan plan_;
};

TEST_F(ProvenanceTest, ARunUnderWayIsOnRecord) {
  begin();
  const Json run = record();
  EXPECT_EQ(run["configuration"], config_.effective());
  EXPECT_EQ(run["parameters"], plan_.model.parameter_count());
  EXPECT_EQ(run["data"]["train_tokens"], plan_.data.train_tokens);
  const std::string book = read_file(folder_.path("book.txt"));
  ASSERT_EQ(run["data"]["files"].size(), 1u);
  EXPECT_EQ(run["data"]["files"][0]["xxh3"], checksum_of(std::as_bytes(std::span(book))));
  EXPECT_EQ(run["data"]["files"][0]["bytes"], book.size());
  EXPECT_EQ(run["tokenizer"]["hash"], fmt::format("{:016x}", Tokenizer::bytes().hash()));
  ASSERT_EQ(run["parts"].size(), 1u);
  EXPECT_TRUE(run["parts"][0]["ended"].is_null());
  EXPECT_GE(run["parts"][0]["machine"]["cores"], 1);
  EXPECT_EQ(run["parts"][0]["started"].get<std::string>().size(), 20u);  // 2026-01-31T12:00:00Z
}

TEST_F(ProvenanceTest, TheEndCompletesIt) {
  begin().finish(summary(0, 3, false));
  const Json run = record();
  EXPECT_EQ(run["steps"], 3);
  EXPECT_TRUE(run["parts"][0]["ended"].is_string());
  EXPECT_EQ(run["parts"][0]["validation_loss"], 2.75);
  EXPECT_EQ(run["parts"][0]["interrupted"], false);
}

TEST_F(ProvenanceTest, AFullDiskKeepsTheRecord) {
  Provenance provenance = begin();
  const Json before = record();
  {
    test::BrokenFiles files;
    files.fill_up_after(200);
    EXPECT_ERROR(provenance.finish(summary(0, 3, false)), "cannot write", file("run.json"),
                 "No space left on device");
  }
  EXPECT_EQ(record(), before);
  test::BrokenFiles files;
  files.fail(test::Call::read, std::errc::io_error, "book.txt");
  EXPECT_ERROR(begin(), "cannot read", "book.txt", "Input/output error");
}

TEST_F(ProvenanceTest, AResumedRunAddsAPart) {
  begin().finish(summary(0, 2, true));
  leave_checkpoint();
  begin(true).finish(summary(2, 3, false));
  const Json parts = record()["parts"];
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0]["interrupted"], true);
  EXPECT_EQ(parts[1]["resumed_from_step"], 2);
}

TEST_F(ProvenanceTest, ANewRunForgetsTheOldOne) {
  begin().finish(summary(0, 2, true));
  leave_checkpoint();
  begin();
  EXPECT_EQ(record()["parts"].size(), 1u);
}

TEST_F(ProvenanceTest, ADamagedRecordDoesNotStopARun) {
  begin();
  leave_checkpoint();
  write_file(file("run.json"), "{\"parts\": [");
  begin(true);
  EXPECT_EQ(record()["parts"].size(), 1u);
}

TEST_F(ProvenanceTest, TheCardStatesTheFacts) {
  begin().finish(summary(0, 3, false));
  const std::string card = read_file(file("README.md"));
  expect_in(card, {"# run", "validation loss 2.7500 (perplexity 15.64", "after 3 steps", "book.txt",
                   "onefold generate", "onefold export", "train_batch_size"});
  expect_in(card, {record()["data"]["files"][0]["xxh3"].get<std::string>()});
}

TEST_F(ProvenanceTest, AReadmeOfSomeoneElseStays) {
  make_folders(folder_.path("run"));
  write_file(file("README.md"), "# My notes\n");
  begin().finish(summary(0, 3, false));
  EXPECT_EQ(read_file(file("README.md")), "# My notes\n");
}

}  // namespace
}  // namespace onefold
