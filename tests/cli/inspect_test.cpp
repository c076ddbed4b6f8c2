#include "cli/support.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

TEST_F(Cli, InspectDescribesARunAsATreeAndAsJson) {
  make_run("run");
  const Outcome text = onefold({"inspect", "run"});
  EXPECT_EQ(text.code, 0) << text.err;
  expect_in(text.out, {"run: a run of Onefold's\n", "model    3 layers, hidden 39, 3 heads",
                       "all values are finite", "\nembedding\n  tokens ", "\nblock.2\n",
                       "attention.qkv.weight", "F32 [117, 39]", "norm", "\nhead.norm\n"});
  const Outcome json = onefold({"inspect", "run", "--json", "--threads", "1"});
  ASSERT_EQ(json.code, 0);
  const Json result = parse_json(json.out, "out");
  EXPECT_EQ(result["kind"], "run");
  EXPECT_EQ(result["finite"], true);
  EXPECT_EQ(result["model"]["hidden_size"], 39);
  EXPECT_EQ(result["bytes"], result["parameters"].get<int64_t>() * 4);
  EXPECT_EQ(result["tensors"][0]["name"], "embedding.tokens");
  EXPECT_EQ(result["tensors"][0]["shape"], Json({263, 39}));
  EXPECT_GT(result["tensors"][0]["norm"], 0);
}

TEST_F(Cli, InspectShowsWhatIsNotFinite) {
  const std::vector<float> values = {1, NAN};
  SafetensorsWriter writer(folder_.path("x.safetensors"), {{"w", "F32", {2}, 0, 0}});
  writer.write("w", std::span<const float>(values));
  writer.commit();
  const Outcome outcome = onefold({"inspect", "x.safetensors"});
  EXPECT_EQ(outcome.code, 0);
  expect_in(outcome.out, {"1 value is not finite", "1 NaN"});
  const Outcome headers = onefold({"inspect", "x.safetensors", "--headers"});
  EXPECT_EQ(headers.out.find("NaN"), std::string::npos);
  expect_in(headers.out, {"F32 [2]"});
}

TEST_F(Cli, InspectShowsNamesThatSteerNoTerminal) {
  const auto write = [&](const char* file, float value) {
    SafetensorsWriter writer(folder_.path(file), {{"w\x1b[2J\n", "F32", {1}, 0, 0}});
    writer.write("w\x1b[2J\n", std::span(&value, 1));
    writer.commit();
  };
  write("x.safetensors", 1);
  write("y.safetensors", 2);
  expect_in(onefold({"inspect", "x.safetensors"}).out, {"  w\\x1b[2J\\x0a  F32 [1]"});
  expect_in(onefold({"diff", "x.safetensors", "y.safetensors"}).out, {"  w\\x1b[2J\\x0a  F32"});
}

TEST_F(Cli, InspectSaysWhatItLookedFor) {
  expect_error(onefold({"inspect", "nowhere"}), 1, {"nowhere is not there"});
  expect_error(onefold({"inspect", "."}), 1, {"has no weights"});
  expect_error(onefold({"inspect", "book.txt"}), 1, {"book.txt is not a valid safetensors file"});
}

}  // namespace
}  // namespace onefold
