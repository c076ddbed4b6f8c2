// run.recompute from the command line.
#include "cli/support.h"

namespace onefold {
namespace {

using CliRecompute = Cli;

TEST_F(CliRecompute, PoliciesHaveTheSameBitsAndThePlanSaysWhich) {
  ASSERT_EQ(train({"run.output=plain"}).code, 0);
  const std::pair<const char*, const char*> policies[] = {
      {"true", "backward recomputes all but the inputs of all blocks"},
      {"mlp", "backward recomputes the MLP of all blocks"},
      {R"({"attention":1,"mlp":2})",
       "backward recomputes the attention of 1 of 3 blocks, the MLP of 2 of 3 blocks"},
      {"sqrt", "backward recomputes all units, in segments of 3"},
      {"selective", "backward recomputes the "}};
  for (const auto& [value, said] : policies) {
    const Outcome outcome =
        train({fmt::format("run.recompute={}", value), "run.output=" + std::string(said, 9, 9)},
              {"--overwrite"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_in(outcome.err, {said});
    EXPECT_TRUE(read(std::string(said, 9, 9) + "/weights.safetensors") ==
                read("plain/weights.safetensors"))
        << value;
  }
}

TEST_F(CliRecompute, AutoFitsALimitThatNothingElseFits) {
  const auto peak = [&](const Arguments& keys) {
    const Outcome outcome = train(keys, {"--plan-only", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["planned_peak_bytes"].get<int64_t>();
  };
  const int64_t all = peak({}), none = peak({"run.recompute=true"});
  ASSERT_LT(none, all);
  const std::string limit = fmt::format("run.memory={}", (none + all) / 2);
  expect_error(train({limit}), 1, {"run.memory allows", "what would fit", "run.recompute"});
  const Outcome outcome = train({limit, "run.recompute=auto"}, {});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.err, {"backward recomputes the "});
  EXPECT_EQ(train({"run.recompute=auto", "run.output=free"}, {}).err.find("recomputes"),
            std::string::npos)
      << "nothing is recomputed where all fits";
}

}  // namespace
}  // namespace onefold
