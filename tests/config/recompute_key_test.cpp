// run.recompute in all its forms.
#include <gtest/gtest.h>

#include "base/text.h"
#include "config/config.h"
#include "error_text.h"

namespace onefold {
namespace {

constexpr int kAll = Recompute::kAll;

Config recomputing(const std::string& value) {
  Json root = {{"model", "gpt2"}, {"train_batch_size", 8}};  // 12 blocks
  root["run"]["recompute"] = Json::parse(value);
  const Config config = Config::from_json(root);
  EXPECT_EQ(Config::from_json(config.effective()).effective(), config.effective()) << value;
  return config;
}

TEST(RecomputeKey, NamesPolicies) {
  const auto policy = [](const std::string& value) { return recomputing(value).run.recompute; };
  for (const char* none : {"false", "\"none\"", "null"}) EXPECT_FALSE(policy(none).any()) << none;
  for (const char* blocks : {"true", "\"blocks\"", "\"full\""})
    EXPECT_EQ(policy(blocks), Recompute(true)) << blocks;
  EXPECT_EQ(policy("\"units\""), Recompute::in_segments(1));
  EXPECT_EQ(policy("\"attention\""), Recompute(kAll, 0));
  EXPECT_EQ(policy("\"mlp\""), Recompute(0, kAll));
  EXPECT_EQ(policy("\"sqrt\""), Recompute::in_segments(5)) << "of 24 units";
  EXPECT_EQ(policy(R"({"blocks": 3})"), Recompute::blocks(3));
  EXPECT_EQ(policy(R"({"attention": 2})"), Recompute(2, 0));
  EXPECT_EQ(policy(R"({"attention": 2, "mlp": 7})"), Recompute(2, 7));
  EXPECT_EQ(policy(R"({"every": 4})"), Recompute::in_segments(4));
  EXPECT_EQ(recomputing("\"auto\"").run.recompute_by, "auto");
  EXPECT_EQ(recomputing("\"selective\"").run.recompute_by, "selective");
}

TEST(RecomputeKey, RefusesTheRest) {
  for (const char* value : {"3", "\"some\"", "[]", R"({"blocks": 3, "every": 2})", "{}"})
    EXPECT_TRUE(
        contains(error_text([&] { recomputing(value); }), "run.recompute must be true, false"))
        << value;
  EXPECT_TRUE(contains(error_text([] { recomputing(R"({"blocks": 0})"); }),
                       "run.recompute.blocks must be at least 1"));
  EXPECT_TRUE(contains(error_text([] { recomputing(R"({"mlps": 1})"); }), "did you mean \"mlp\""));
}

}  // namespace
}  // namespace onefold
