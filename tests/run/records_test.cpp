#include "run/records.h"

#include "run/support.h"

namespace onefold {
namespace {

class RecordsTest : public RunTest {
 protected:
  void write(const Config& c) const {
    Records records(c, RunFolder::create(folder_.path("run"), c, c.model, nullptr, false));
    records.step({.step = 1, .loss = 2}, 0.5, {.forward = 0.25});
    records.evaluation(1, 3);
  }
  std::string metrics() const { return read_file(folder_.path("run/metrics.jsonl")); }
};

TEST_F(RecordsTest, EveryEventIsALine) {
  write(config());
  EXPECT_EQ(metrics(),
            "{\"event\":\"step\",\"step\":1,\"loss\":2.0,\"gradient_norm\":0.0,\"learning_rate\":"
            "0.0,\"tokens_per_second\":0.0,\"gemm_fraction\":0.0,\"seconds\":0.5}\n"
            "{\"event\":\"evaluation\",\"step\":1,\"loss\":3.0}\n");
  EXPECT_FALSE(std::filesystem::exists(folder_.path("run/tensorboard")));
}

TEST_F(RecordsTest, TimesAndTensorBoardIfAskedFor) {
  write(config({"wall_clock_breakdown=true", "run.output=x", "run.tensorboard=true"}));
  expect_in(metrics(), {"\"wall_clock\":{\"forward\":0.25,\"backward\":0.0"});
  EXPECT_TRUE(std::filesystem::exists(folder_.path("run/tensorboard")));
}

TEST_F(RecordsTest, ANewRunBeginsANewFile) {
  write(config());
  const std::string first = metrics();
  write(config());
  EXPECT_EQ(metrics(), first);
}

TEST_F(RecordsTest, WithoutAFolderNothingIsWritten) {
  const int64_t before = folder_.files();
  Records records(config(), std::nullopt);
  records.step({.step = 1}, 1, {});
  records.evaluation(1, 1);
  EXPECT_EQ(folder_.files(), before);
}

}  // namespace
}  // namespace onefold
