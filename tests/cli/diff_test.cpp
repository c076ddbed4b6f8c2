#include "cli/support.h"

namespace onefold {
namespace {

TEST_F(Cli, DiffSaysEqualWithItsExitCode) {
  make_run("a");
  make_run("b");
  const Outcome outcome = onefold({"diff", "a", "b"});
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  expect_in(outcome.out, {"equal: all", "bit by bit"});
  EXPECT_EQ(onefold({"export", "a", "hf"}).code, 0);
  expect_in(onefold({"diff", "a", "hf"}).out, {"equal: all", "parameters"});
}

TEST_F(Cli, DiffSaysWhatIsDifferent) {
  make_run("a");
  EXPECT_EQ(train({"run.output=b"}).code, 0);
  const Outcome text = onefold({"diff", "a", "b"});
  EXPECT_EQ(text.code, 4);
  EXPECT_EQ(text.err, "");
  expect_in(text.out, {"different: ", "embedding.tokens  F32 [263, 39]  ", "by at most"});
  const Outcome json = onefold({"diff", "a", "b", "--json", "--threads", "1"});
  EXPECT_EQ(json.code, 4);
  const Json result = parse_json(json.out, "out");
  EXPECT_EQ(result["equal"], false);
  EXPECT_EQ(result["different"][0]["name"], "embedding.tokens");
  EXPECT_LT(result["different"][0]["max_absolute"], 0.01) << "three steps of 1e-3";
  EXPECT_TRUE(result["only_a"].empty());
}

TEST_F(Cli, DiffOfWhatIsMissingIsAnError) {
  make_run("a");
  expect_error(onefold({"diff", "a", "nowhere"}), 1, {"nowhere is not there"});
  expect_error(onefold({"diff", "a"}), 2, {"b is required"});
}

}  // namespace
}  // namespace onefold
