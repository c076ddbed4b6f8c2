// Continuing a prompt from a run's weights.
#include "cli/support.h"

namespace onefold {
namespace {

class Generate : public Cli {
 protected:
  Generate() { make_run("run"); }

  Json generated(Arguments arguments) const {
    arguments.insert(arguments.begin(),
                     {"generate", "run", "--tokens", "20", "--threads", "1", "--json"});
    const Outcome outcome = onefold(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  }
  Outcome error(const Arguments& arguments = {}) const {
    Arguments all = {"generate", "run", "--prompt", "a"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return onefold(all);
  }
};

TEST_F(Generate, GreedyIsDeterministicAndBeginsWithThePrompt) {
  const Arguments command = {"generate", "run",      "--prompt", "The fox",
                             "--greedy", "--tokens", "10",       "--threads"};
  const auto on_threads = [&](const char* threads) {
    Arguments all = command;
    all.emplace_back(threads);
    return onefold(all);
  };
  const Outcome one = on_threads("1"), two = on_threads("2");
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_TRUE(one.out.starts_with("The fox") && one.out.ends_with("\n")) << one.out;
  EXPECT_EQ(one.out, two.out);
}

TEST_F(Generate, JsonHasTextAndTokens) {
  const Json result = generated({"--prompt", "The fox", "--greedy"});
  expect_keys(result,
              {"prompt", "text", "tokens", "prompt_tokens", "finish", "passed_over", "seconds"});
  EXPECT_EQ(result["prompt"], "The fox");
  EXPECT_EQ(result["prompt_tokens"], 7);
  EXPECT_LE(result["tokens"].size(), 20u);
  EXPECT_EQ(result["finish"], result["tokens"].size() == 20u ? "length" : "end");
}

TEST_F(Generate, HuggingFaceFoldersAndCheckpointsWriteWhatTheirRunDoes) {
  ASSERT_EQ(train({"run.output=trained"}).code, 0);
  ASSERT_EQ(onefold({"export", "trained", "exported"}).code, 0);
  const auto text = [&](const char* model) {
    const Outcome outcome = onefold(
        {"generate", model, "--prompt", "The fox", "--greedy", "--tokens", "12", "--threads", "1"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string wanted = text("trained");
  EXPECT_EQ(text("exported"), wanted);
  EXPECT_EQ(text("trained/checkpoints/step-00000003"), wanted);
}

// Both files of a Hugging Face folder name tokens that end a text, one or a list of them.
TEST_F(Generate, StopsAtTheEndTokensOfTheFolder) {
  ASSERT_EQ(onefold({"export", "run", "exported"}).code, 0);
  const auto tokens = [&] {
    const Outcome outcome = onefold({"generate", "exported", "--prompt", "The fox", "--greedy",
                                     "--tokens", "20", "--threads", "1", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out)["tokens"].get<std::vector<int>>();
  };
  const std::vector<int> all = tokens();
  ASSERT_GT(all.size(), 6u);
  const auto first = [&](int token) {
    return static_cast<size_t>(std::find(all.begin(), all.end(), token) - all.begin());
  };
  for (const char* name : {"exported/config.json", "exported/generation_config.json"}) {
    const std::string before = read(name);
    Json json = Json::parse(before);
    json["eos_token_id"] = {all[6], 300, all[4]};
    folder_.write(name, json.dump());
    EXPECT_EQ(tokens().size(), std::min(first(all[4]), first(all[6]))) << name;
    json["eos_token_id"] = all[5];
    folder_.write(name, json.dump());
    EXPECT_EQ(tokens().size(), first(all[5])) << name;
    folder_.write(name, before);
  }
}

TEST_F(Generate, PromptsComeFromAFileOrStandardInputInOrder) {
  folder_.write("prompts.txt", "The fox\n\nA dog\r\nNumber 3\n");
  folder_.write("prompts.jsonl",
                "{\"prompt\": \"The fox\"}\n{\"text\": \"A dog\"}\n{\"prompt\": \"Number 3\"}\n");
  const std::string flags = " --greedy --tokens 20 --threads 1 --json";
  const auto answers = [&](const std::string& line) {
    const Outcome outcome = shell("$onefold generate run " + line + flags);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    folder_.write("answers.jsonl", outcome.out);
    std::vector<std::pair<std::string, Json>> found;
    for (const Json& one : lines("answers.jsonl")) found.emplace_back(one["prompt"], one["tokens"]);
    return found;
  };
  const auto wanted = answers("--prompts prompts.txt");
  ASSERT_EQ(wanted.size(), 3u);
  EXPECT_EQ(wanted[0].first, "The fox");
  EXPECT_EQ(wanted[2].first, "Number 3");
  EXPECT_EQ(answers("--prompts prompts.jsonl"), wanted);
  EXPECT_EQ(answers("--prompts - < prompts.txt"), wanted);
  EXPECT_EQ(answers("--prompts - --prompt-format jsonl < prompts.jsonl"), wanted);
  for (const auto& [prompt, tokens] : wanted) {
    const Json one = generated({"--prompt", prompt, "--greedy"});
    EXPECT_EQ(one["tokens"], tokens) << prompt;
  }
  const Outcome text = onefold({"generate", "run", "--prompts", "prompts.txt", "--greedy"});
  expect_in(text.out, {"The fox", "\nA dog", "\nNumber 3"});
}

TEST_F(Generate, APromptThatIsWrongIsNamedWithItsLine) {
  folder_.write("prompts.txt", "ok\n" + std::string(70, 'x') + "\n");
  folder_.write("prompts.jsonl", "{\"question\": 1}\n");
  const Outcome outcome = onefold({"generate", "run", "--prompts", "prompts.txt", "--tokens", "1"});
  EXPECT_EQ(outcome.code, 1);
  expect_in(outcome.err, {"prompts.txt:2", "the prompt has 70 tokens"});
  expect_error(onefold({"generate", "run", "--prompts", "prompts.jsonl"}), 1,
               {"prompts.jsonl:1", "no field \"prompt\" or \"text\""});
}

TEST_F(Generate, WhatIsPrintedIsUtf8AndEndsBeforeAStopText) {
  // Untrained weights draw any bytes.
  const Outcome text = onefold(
      {"generate", "run", "--prompt", "a", "--tokens", "60", "--seed", "5", "--threads", "1"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NO_THROW(Json(text.out).dump());  // which throws for what is not UTF-8
  const Json all = generated({"--prompt", "a", "--seed", "5"});
  const auto whole = all["text"].get<std::string>();
  ASSERT_GT(whole.size(), 12u);
  const Json cut = generated({"--prompt", "a", "--seed", "5", "--stop", whole.substr(9, 3)});
  EXPECT_EQ(cut["text"], whole.substr(0, whole.find(whole.substr(9, 3))));
  EXPECT_EQ(cut["finish"], "end");
}

TEST_F(Generate, AConversationIsHeldLineByLine) {
  const std::string markers = " --user-prefix 'U: ' --assistant-prefix 'B:' --greedy --tokens 4";
  const Outcome outcome = shell("printf 'Hello\\n\\nAnd you\\n' | $onefold generate run --chat" +
                                markers + " --json --threads 1");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  folder_.write("answers.jsonl", outcome.out);
  const std::vector<Json> replies = lines("answers.jsonl");
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0]["prompt"], "Hello");
  EXPECT_EQ(replies[0]["prompt_tokens"], std::string("U: Hello\nB:").size());
  // The second prompt holds all that was said before it, and is what a fresh start would be given.
  EXPECT_GE(replies[1]["prompt_tokens"], std::string("U: Hello\nB:\nU: And you\nB:").size());
  const auto alone =
      generated({"--prompt", "U: Hello\nB:", "--greedy"})["tokens"].get<std::vector<int>>();
  EXPECT_EQ(replies[0]["tokens"], std::vector<int>(alone.begin(), alone.begin() + 4));
  const Outcome text =
      shell("printf 'Hello\\n' | $onefold generate run --chat --threads 1" + markers);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(text.out.ends_with("\n"));
}

TEST_F(Generate, ALongConversationLeavesOutItsOldestMessages) {
  const Outcome outcome = shell(
      "printf 'one two three\\nfour five six\\nseven eight\\n' | $onefold generate run --chat "
      "--user-prefix 'U: ' --assistant-prefix 'B:' --greedy --tokens 20 --threads 1 --json");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  expect_in(outcome.err, {"longer than the model's 67 positions", "oldest messages"});
}

TEST_F(Generate, AConversationNeedsMarkersThatTheModelKnows) {
  expect_error(onefold({"generate", "run", "--chat"}), 1,
               {"no token <|im_start|>", "--user-prefix", "--assistant-prefix"});
  expect_error(onefold({"generate", "run", "--chat", "--user-prefix", "U:"}), 1,
               {"--assistant-prefix is missing"});
  EXPECT_EQ(onefold({"generate", "run", "--user-prefix", "U:"}).code, 2);
  EXPECT_EQ(onefold({"generate", "run", "--chat", "--prompt", "x"}).code, 2);
}

// A tokenizer with ChatML's tokens: no markers are needed, and the end of a message ends a reply.
TEST_F(Generate, ChatmlIsUsedWhereTheTokenizerHasIt) {
  Json tokenizer = Json::parse(read("run/tokenizer.json"));
  for (const char* name : {"<|im_start|>", "<|im_end|>"}) {
    Json token = tokenizer["added_tokens"][0];
    token["id"] = 257 + static_cast<int>(tokenizer["added_tokens"].size()) - 1;
    token["content"] = name;
    tokenizer["added_tokens"].push_back(token);
  }
  folder_.write("run/tokenizer.json", tokenizer.dump());
  const Outcome outcome = shell(
      "printf 'Hi\\n' | $onefold generate run --chat --system Short. --tokens 3 --greedy --json");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // <|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n
  EXPECT_EQ(Json::parse(outcome.out)["prompt_tokens"], 5 + 7 + 6 + 1 + 5 + 2 + 1 + 10);
}

// Its text, and nothing that marks a message otherwise.
TEST_F(Generate, TheModelsOwnTemplateRendersConversations) {
  folder_.write("run/chat_template.jinja",
                "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
                "{% if add_generation_prompt %}>{% endif %}");
  const std::string command = "printf 'Hi\\n' | $onefold generate run --chat --tokens 3 --json";
  const Outcome outcome = shell(command);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["prompt_tokens"], std::string("[user]Hi>").size());
  folder_.write("run/chat_template.jinja", "\n{% include 'x' %}");
  expect_error(shell(command), 1, {"chat_template.jinja:2:", "{% include %} is not interpreted"});
}

TEST_F(Generate, AGgufFileWritesWhatItsRunDoes) {
  const Outcome exported = onefold({"export", "run", "run.gguf", "--format", "gguf"});
  ASSERT_EQ(exported.code, 0) << exported.err;
  const Outcome outcome = onefold({"generate", "run.gguf", "--prompt", "The fox", "--greedy",
                                   "--tokens", "20", "--threads", "1", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out)["tokens"],
            generated({"--prompt", "The fox", "--greedy"})["tokens"]);
  expect_error(onefold({"export", "run", "run2.gguf", "--type", "F32"}), 1,
               {"--type is for --format gguf"});
  expect_error(onefold({"export", "run", "run2.gguf", "--format", "gguf", "--dtype", "f32"}), 1,
               {"--dtype is for --format hf"});
}

TEST_F(Generate, TheSeedDecides) {
  const Json one = generated({"--prompt", "a", "--seed", "1"});
  EXPECT_EQ(one["tokens"], generated({"--prompt", "a"})["tokens"]);  // 1 is the default
  EXPECT_NE(one["tokens"], generated({"--prompt", "a", "--seed", "2"})["tokens"]);
}

TEST_F(Generate, ThePromptMayComeFromAFileOrBeMissing) {
  folder_.write("prompt.txt", "The fox");
  EXPECT_EQ(generated({"--prompt-file", "prompt.txt", "--greedy"})["tokens"],
            generated({"--prompt", "The fox", "--greedy"})["tokens"]);
  EXPECT_EQ(generated({"--greedy"})["prompt_tokens"], 1);  // a document begins
}

TEST_F(Generate, BeamSearchIsDeterministic) {
  EXPECT_EQ(generated({"--prompt", "a", "--beams", "3"})["tokens"],
            generated({"--prompt", "a", "--beams", "3"})["tokens"]);
  EXPECT_GT(generated({"--prompt", "a", "--beams", "2", "--length-penalty", "2"})["tokens"].size(),
            0u);
}

// gpt2-tiny has 263 tokens and bytes are 257: untrained weights draw the others too.
TEST_F(Generate, TokensThatTheTokenizerDoesNotHaveAreNoError) {
  Arguments command = {"generate", "run", "--prompt", "a", "--tokens", "66", "--threads", "1"};
  const Outcome text = onefold(command);
  command.emplace_back("--json");
  const Outcome json = onefold(command);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(json.code, 0) << json.err;
  const auto tokens = Json::parse(json.out)["tokens"].get<std::vector<int>>();
  EXPECT_GE(*std::max_element(tokens.begin(), tokens.end()), 257);
  expect_in(text.out, {"\uFFFD"});
}

TEST_F(Generate, TheModelsLastPositionEndsTheTextWithANote) {
  const Outcome outcome =
      onefold({"generate", "run", "--prompt", "a", "--greedy", "--tokens", "999"});
  EXPECT_EQ(outcome.code, 0);
  expect_in(outcome.err, {"stopped at the model's 67 positions"});
}

TEST_F(Generate, APromptThatIsTooLongIsNotPrinted) {
  expect_error(onefold({"generate", "run", "--prompt-file", "book.txt"}), 1,
               {"the prompt has ", " tokens; the model has 67 positions"});
}

TEST_F(Generate, SamplingOptionsOutOfRangeSayTheirRange) {
  expect_error(error({"--top-p", "3"}), 1, {"top-p is 3", "above 0 and at most 1"});
  expect_error(error({"--top-k", "-1"}), 1, {"top-k is -1"});
  expect_error(error({"--temperature", "-1"}), 1, {"temperature is -1", "0 (greedy)"});
  expect_error(error({"--repetition-penalty", "0"}), 1, {"repetition penalty is 0"});
  expect_error(onefold({"generate", "run", "--prompt-file", "missing"}), 1,
               {"cannot open missing"});
}

TEST_F(Generate, WhatIsNoRunFolderIsNamed) {
  expect_error(onefold({"generate", "missing"}), 1, {"missing", "there is no such folder"});
  expect_error(onefold({"generate", "book.txt"}), 1, {"book.txt is a file", "run.output"});
  expect_error(onefold({"generate", "."}), 1, {"neither the folder of a run", "model.json"});
  std::filesystem::remove(folder_.path("run/weights.safetensors"));
  expect_error(error(), 1, {"has no weights yet"});
}

TEST_F(Generate, DamagedWeightsAreNamed) {
  const std::string weights = read("run/weights.safetensors");
  const auto damage = [&](const std::string& content) {
    folder_.write("run/weights.safetensors", content);
    return error();
  };
  expect_error(damage(weights.substr(0, weights.size() - 4)), 1,
               {"run/weights.safetensors", "the file is cut off"});
  expect_error(damage(weights.substr(0, 100)), 1, {"its header should have", "cut off"});
  expect_error(damage(""), 1, {"it has 0 bytes"});
  expect_error(damage("this is not a safetensors file"), 1, {"run/weights.safetensors"});
}

TEST_F(Generate, WeightsOfAnotherModelAreRefused) {
  make_run("llama", "llama-tiny");
  std::filesystem::copy_file(folder_.path("llama/weights.safetensors"),
                             folder_.path("run/weights.safetensors"),
                             std::filesystem::copy_options::overwrite_existing);
  expect_error(error(), 1, {"run/weights.safetensors", "tensor"});
}

TEST_F(Generate, ADamagedModelOrTokenizerIsNamed) {
  folder_.write("run/tokenizer.json", "{");
  expect_error(error(), 1, {"run/tokenizer.json"});
  std::filesystem::remove(folder_.path("run/tokenizer.json"));
  expect_error(error(), 1, {"run has no tokenizer.json", "data.tokenizer"});
  make_run("other");
  folder_.write("other/model.json", "{\"hidden\": 3}");
  expect_error(onefold({"generate", "other"}), 1,
               {"other/model.json: model.hidden is not a known key"});
}

}  // namespace
}  // namespace onefold
