// From a Hugging Face folder through training to an export: what came in goes out.
#include "cli/support.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

struct HfCase {
  const char* family;
  const char* model;  // of the configuration that the folder is made with
  const char* architecture;
};

constexpr const char* kTemplate =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class HuggingFace : public Cli, public testing::WithParamInterface<HfCase> {
 protected:
  static constexpr const char* kGpt2 = R"({"preset": "gpt2-tiny", "vocab_size": 260})";

  // A folder as an instruction model has it: weights, a tokenizer with chat markers, and the files
  // that say what ends a text.
  void make_folder(const std::string& name, const std::string& model, const std::string& family) {
    const Outcome trained =
        train({"model=" + model, "run.output=made", "run.steps=1"}, {"--quiet", "--overwrite"});
    ASSERT_EQ(trained.code, 0) << trained.err;
    ASSERT_EQ(onefold({"export", "made", name, "--family", family}).code, 0);
    Json tokenizer = Json::parse(read(name + "/tokenizer.json"));
    for (const auto& [id, text] : {std::pair(257, "<|im_start|>"), std::pair(258, "<|im_end|>")})
      tokenizer["added_tokens"].push_back({{"id", id},
                                           {"content", text},
                                           {"single_word", false},
                                           {"lstrip", false},
                                           {"rstrip", false},
                                           {"normalized", false},
                                           {"special", true}});
    folder_.write(name + "/tokenizer.json", tokenizer.dump());
    folder_.write(name + "/tokenizer_config.json",
                  R"({"model_max_length": 77, "eos_token": "<|im_end|>"})");
    folder_.write(name + "/chat_template.jinja", kTemplate);
    folder_.write(name + "/special_tokens_map.json", R"({"eos_token": "<|im_end|>"})");
    folder_.write(name + "/generation_config.json", R"({"eos_token_id": [258, 256]})");
    Json config = Json::parse(read(name + "/config.json"));
    config["eos_token_id"] = {258, 256};
    config["pad_token_id"] = 256;
    folder_.write(name + "/config.json", config.dump());
  }
};

TEST_P(HuggingFace, WhatCameInGoesOut) {
  make_folder("hf", GetParam().model, GetParam().family);
  const Arguments fields = {"model=hf", "run.output=tuned", "run.steps=1"};
  expect_in(train(fields, {"--plan-only"}).out, {"ended by <|im_end|> (258, by tokenizer_config"});
  const Outcome tuned = train(fields);
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  ASSERT_EQ(onefold({"generate", "tuned", "--tokens", "2"}).code, 0);

  const Outcome exported = onefold({"export", "tuned", "out"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  expect_in(exported.out, {GetParam().architecture});
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                           "special_tokens_map.json", "generation_config.json"})
    EXPECT_EQ(read(std::string("out/") + name), read(std::string("hf/") + name)) << name;
  const Json before = Json::parse(read("hf/config.json")),
             after = Json::parse(read("out/config.json"));
  for (const char* key :
       {"model_type", "architectures", "eos_token_id", "pad_token_id", "bos_token_id"})
    EXPECT_EQ(after[key], before[key]) << key;
  // A checkpoint belongs to its run.
  ASSERT_EQ(onefold({"export", "tuned/checkpoints/step-00000001", "of_checkpoint"}).code, 0);
  EXPECT_EQ(read("of_checkpoint/chat_template.jinja"), kTemplate);
  EXPECT_EQ(read("of_checkpoint/config.json"), read("out/config.json"));
}

// A folder and conversations become a tuned, evaluated and exported model.
TEST_P(HuggingFace, FourCommandsAndNoFileButTheOneThatInitWrote) {
  make_folder("hf", GetParam().model, GetParam().family);
  std::string lines;
  for (int i = 0; i < 30; ++i)
    lines += fmt::format(
        R"({{"messages": [{{"role": "user", "content": "{}?"}}, {{"role": "assistant", "content": "{}."}}]}})"
        "\n",
        i, i + 1);
  folder_.write("chat.jsonl", lines);
  const auto succeed = [&](const Arguments& words) {
    const Outcome outcome = onefold(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  };
  succeed({"init", "hf", "--data", "chat.jsonl", "--output", "tune.json"});
  expect_in(read("tune.json"), {"\"format\": \"chat\""});
  expect_in(succeed({"train", "tune.json", "--set", "run.output=run"}).err,
            {"loss on the answers alone", "weights of hf"});
  expect_in(succeed({"eval", "run", "--data", "chat.jsonl"}).out, {"loss ", "perplexity "});
  succeed({"export", "run", "out"});
  EXPECT_EQ(read("out/chat_template.jinja"), kTemplate);
}

INSTANTIATE_TEST_SUITE_P(
    Families, HuggingFace,
    testing::Values(
        HfCase{"gpt2", R"({"preset": "gpt2-tiny", "vocab_size": 260})", "GPT2LMHeadModel"},
        HfCase{"llama", R"({"preset": "llama-tiny", "vocab_size": 260})", "LlamaForCausalLM"},
        HfCase{"mistral", R"({"preset": "llama-tiny", "vocab_size": 260})", "MistralForCausalLM"},
        HfCase{"qwen2", R"({"preset": "llama-tiny", "vocab_size": 260, "qkv_bias": true})",
               "Qwen2ForCausalLM"},
        HfCase{"qwen3", R"({"preset": "qwen3-tiny", "vocab_size": 260})", "Qwen3ForCausalLM"},
        HfCase{"mixtral", R"({"preset": "mixtral-tiny", "vocab_size": 260})",
               "MixtralForCausalLM"}),
    [](const auto& info) { return std::string(info.param.family); });

using HuggingFaceFolder = HuggingFace;

// Of another tokenizer than the folder's, nothing of the folder's tokenizer is kept.
TEST_F(HuggingFaceFolder, AnotherTokenizerBringsItsOwnFiles) {
  make_folder("hf", kGpt2, "gpt2");
  const Outcome tuned =
      train({"model=hf", "data.tokenizer=bytes", "run.output=tuned", "run.steps=1"});
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  ASSERT_EQ(onefold({"export", "tuned", "out"}).code, 0);
  EXPECT_FALSE(exists("out/chat_template.jinja"));
  EXPECT_EQ(Json::parse(read("out/config.json"))["eos_token_id"], 256);
  EXPECT_EQ(Json::parse(read("out/tokenizer_config.json"))["eos_token"], "<|endoftext|>");
}

// To open a pipe would wait for a writer: `timeout` ends what does.
TEST_F(HuggingFaceFolder, APipeInItIsRefusedByName) {
  make_folder("hf", kGpt2, "gpt2");
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    const Outcome outcome =
        shell(fmt::format("cp -r hf odd && rm odd/{0} && mkfifo odd/{0} && "
                          "timeout 60 $onefold generate odd --prompt x --tokens 1; code=$?; "
                          "rm -r odd; exit $code",
                          name));
    expect_error(outcome, 1, {name, "is a pipe"});
  }
}

// Pretrained weights are never trained on raw bytes without a word.
TEST_F(HuggingFaceFolder, WeightsAreTrainedWithTheirOwnTokenizer) {
  make_folder("hf", kGpt2, "gpt2");
  const Json tokenizer = Json::parse(read("hf/tokenizer.json"));
  const auto plan = [&](const std::string& model) {
    return train({"model=" + model, "run.output=tuned"}, {"--plan-only"});
  };
  expect_in(plan(R"({"weights": "hf", "dropout": 0.1})").out, {"hf/tokenizer.json", "<|im_end|>"});

  fs::remove(folder_.path("hf/tokenizer.json"));
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json"})
    fs::remove(folder_.path(std::string("hf/") + name));
  folder_.write("hf/tokenizer.model", "\n");
  expect_error(plan("hf"), 1, {"tokenizer.model is not a model of SentencePiece"});
  fs::remove(folder_.path("hf/tokenizer.model"));
  expect_error(plan("hf"), 1, {"hf has no tokenizer", "data.tokenizer"});
  EXPECT_EQ(train({"model=hf", "data.tokenizer=bytes", "run.output=tuned"}, {"--plan-only"}).code,
            0);

  Json config = Json::parse(read("hf/config.json"));
  config["eos_token_id"] = 256;
  folder_.write("hf/config.json", config.dump());
  folder_.write("hf/vocab.json", tokenizer["model"]["vocab"].dump());
  folder_.write("hf/merges.txt", "#version: 0.2\n");
  expect_in(plan("hf").out,
            {"\"tokenizer\": \"hf\"", "ended by <|endoftext|> (256, by config.json)"});
  // And the run keeps them.
  ASSERT_EQ(train({"model=hf", "run.output=tuned", "run.steps=1"}).code, 0);
  ASSERT_EQ(onefold({"export", "tuned", "out"}).code, 0);
  EXPECT_EQ(read("out/vocab.json"), read("hf/vocab.json"));
  EXPECT_TRUE(exists("out/tokenizer.json"));
}

}  // namespace
}  // namespace onefold
