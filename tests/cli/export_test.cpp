#include "cli/support.h"
#include "inspect/hf_source.h"

namespace onefold {
namespace {

TEST_F(Cli, ExportWritesAFolderAndSaysWhatItIs) {
  make_run("run");
  const Outcome text = onefold({"export", "run", "out"});
  EXPECT_EQ(text.code, 0) << text.err;
  expect_in(text.out, {"out: GPT2LMHeadModel", "parameters", "F32", "5 files"});
  for (const char* name : {"config.json", "model.safetensors", "generation_config.json",
                           "tokenizer.json", "tokenizer_config.json"})
    EXPECT_TRUE(exists(std::string("out/") + name)) << name;

  const Outcome json =
      onefold({"export", "run", "shards", "--dtype", "bf16", "--max-shard-size", "50KB", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json result = parse_json(json.out, "out");
  EXPECT_EQ(result["architecture"], "GPT2LMHeadModel");
  EXPECT_EQ(result["dtype"], "BF16");
  EXPECT_EQ(result["bytes"], result["parameters"].get<int64_t>() * 2);
  EXPECT_GT(result["files"].size(), 6u);
  EXPECT_TRUE(result["remarks"].empty());
  EXPECT_EQ(HfSource(folder_.path("shards")).model().to_json(),
            spec_from_preset("gpt2-tiny", "model").to_json());
}

TEST_F(Cli, ExportNotesWhatTheArchitectureHasNoPlaceFor) {
  make_run("run", "llama-tiny");
  Json model = Json::parse(read("run/model.json"));
  model["dropout"] = 0.25;
  folder_.write("run/model.json", model.dump());
  const Outcome outcome = onefold({"export", "run", "out", "--family", "mistral"});
  EXPECT_EQ(outcome.code, 0);
  expect_in(outcome.err, {"note: dropout 0.25 is not written"});
  expect_in(outcome.out, {"MistralForCausalLM"});
}

TEST_F(Cli, ExportRefusesWhatItCannotDo) {
  make_run("run");
  EXPECT_EQ(onefold({"export", "run", "out"}).code, 0);
  expect_error(onefold({"export", "run", "out"}), 1, {"out already exists", "--overwrite"});
  EXPECT_EQ(onefold({"export", "run", "out", "--overwrite"}).code, 0);
  expect_error(onefold({"export", "run", "run", "--overwrite"}), 1, {"the checkpoint itself"});
  expect_error(onefold({"export", "out", "out/"}), 1, {"the checkpoint itself"});
  expect_error(onefold({"export", "nowhere", "x"}), 1, {"nowhere"});
  expect_error(onefold({"export", ".", "x"}), 1, {"config.json has no model_type"});
  make_folders(folder_.path("empty"));
  expect_error(onefold({"export", "empty", "x"}), 1, {"neither the folder of a run"});
  expect_error(onefold({"export", "run", "x", "--family", "bert"}), 1, {"--family", "llama"});
  expect_error(onefold({"export", "run", "x", "--family", "llama"}), 1,
               {"llama cannot express this model: norm is layernorm"});
  expect_error(onefold({"export", "run", "x", "--max-shard-size", "big"}), 1,
               {"--max-shard-size", "big"});
  expect_error(onefold({"export", "run", "x", "--dtype", "f8"}), 2, {"--dtype", "f8"});
  EXPECT_FALSE(exists("x"));
}

TEST_F(Cli, AFullDiskLeavesNoHalfExport) {
  make_run("run");
  const Outcome outcome = onefold({"export", "run", "out"}, {.file_limit = 30'000});
  expect_error(outcome, 1, {"cannot write"});
  EXPECT_FALSE(exists("out"));
  EXPECT_FALSE(exists("out.tmp"));
}

}  // namespace
}  // namespace onefold
