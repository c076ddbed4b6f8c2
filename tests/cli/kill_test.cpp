// Runs that are killed without warning, over and over, most of them while they save: each goes on
// from its newest checkpoint, and ends as a run that was not killed.
#include <cstdlib>
#include <random>

#include "cli/support.h"
#include "io/checkpoint.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

class CliKill : public Cli {
 protected:
  struct Tally {
    int kills = 0, in_saves = 0, runs = 0, layouts = 0;
  };

  // Kills at least `wanted` times, over ranks 1 to 4 and stages 0 to 3 in turn.
  void kill_runs(int wanted, int steps, uint32_t seed) {
    std::mt19937 random(seed);
    Tally tally;
    // Neighbours differ in both: few runs see every number of ranks and every stage.
    for (int i = static_cast<int>(seed); tally.kills < wanted; ++i, ++tally.layouts)
      kill_layout(i % 4 + 1, (i + i / 4) % 4, steps, random, tally);
    fmt::print("{} kills, {} of them in a save, {} starts, {} runs\n", tally.kills, tally.in_saves,
               tally.runs, tally.layouts);
    if (wanted >= 100) {  // few are a matter of luck
      EXPECT_GT(tally.in_saves * 2, tally.kills);
    }
  }

 private:
  void kill_layout(int ranks, int stage, int steps, std::mt19937& random, Tally& tally) {
    SCOPED_TRACE(fmt::format("{} ranks at stage {}", ranks, stage));
    const Arguments keys = {"train_batch_size=12",
                            "gradient_accumulation_steps=1",
                            "data.sequence_length=8",
                            fmt::format("run.steps={}", steps),
                            "run.keep_last=" + std::to_string(1 + random() % 2),
                            fmt::format("zero_optimization.stage={}", stage)};
    const Arguments flags = {"--quiet", "--ranks", std::to_string(ranks)};
    for (const char* name : {"whole", "run"}) fs::remove_all(folder_.path(name));
    saved_ = false;
    Arguments whole = keys;
    whole.emplace_back("run.output=whole");
    ASSERT_EQ(train(whole, flags).code, 0);

    Arguments killed = keys;
    killed.push_back("run.save_every=" + std::to_string(1 + random() % 2));
    Arguments resume = flags;
    resume.emplace_back("--resume");
    for (int starts = 0; starts < 100; ++starts, ++tally.runs) {
      const Process process(folder_.path(""), train_arguments(killed, resume), {});
      wait_for_a_moment(process, random);
      process.send(SIGKILL);
      const Outcome outcome = process.wait();
      if (outcome.code == 0) break;
      ASSERT_EQ(outcome.code, 128 + SIGKILL) << outcome.err;
      ++tally.kills;
      tally.in_saves += under_way();
      check_what_is_left();
    }
    EXPECT_EQ(read("run/weights.safetensors"), read("whole/weights.safetensors"));
    EXPECT_EQ(losses("run"), losses("whole"));
  }

  // Three of four times a moment in a save, otherwise any.
  void wait_for_a_moment(const Process& process, std::mt19937& random) const {
    const auto pause = [](double ms) {
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
    };
    const auto uniform = [&](double most) {
      return most * static_cast<double>(random() % 1000) / 1000;
    };
    if (random() % 4 == 0) return pause(uniform(500));
    const auto over = [&] {
      siginfo_t info{};
      return ::waitid(P_PID, static_cast<id_t>(process.pid()), &info,
                      WEXITED | WNOHANG | WNOWAIT) == 0 &&
             info.si_pid != 0;
    };
    for (auto saves = random() % 4 + 1; saves > 0; --saves) {
      while (under_way() && !over()) pause(0.1);
      while (!under_way() && !over()) pause(0.1);
    }
    pause(uniform(4));
  }

  // Whether a checkpoint is being written, or an old one removed.
  bool under_way() const {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder_.path("run/checkpoints"), ignored))
      if (entry.path().filename().string().starts_with(".")) return true;
    return false;
  }

  // Whatever bears a checkpoint's name is one; and after the first there is always one.
  void check_what_is_left() {
    const auto left = CheckpointFolder(folder_.path("run/checkpoints")).list();
    for (const CheckpointFolder::Entry& entry : left) {
      const Checkpoint checkpoint(entry.path);
      EXPECT_EQ(checkpoint.manifest().step, entry.step);
      for (size_t file = 0; file < checkpoint.manifest().files.size(); ++file)
        checkpoint.verify(static_cast<int>(file));
    }
    EXPECT_FALSE(saved_ && left.empty());
    saved_ = !left.empty();
  }

  std::vector<double> losses(const std::string& run) const {
    std::vector<double> losses;
    for (const Json& line : lines(run + "/metrics.jsonl")) {
      EXPECT_EQ(line["step"], losses.size() + 1);
      losses.push_back(line["loss"]);
    }
    return losses;
  }

  bool saved_ = false;
};

TEST_F(CliKill, EveryKilledRunGoesOnWithTheSameBits) { kill_runs(5, 8, 5); }

TEST_F(CliKill, TwoHundredRuns) {
  if (!std::getenv("ONEFOLD_SLOW_TESTS")) GTEST_SKIP() << "ctest -L slow runs it";
  kill_runs(200, 14, 0);
}

}  // namespace
}  // namespace onefold
