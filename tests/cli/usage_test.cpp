// What every command shares: help, version, and what is said about a command line that is wrong.
#include "cli/support.h"

namespace onefold {
namespace {

TEST_F(Cli, HelpOfEveryCommandShowsAnExample) {
  const std::vector<Arguments> commands = {{},
                                           {"init"},
                                           {"train"},
                                           {"generate"},
                                           {"tokenize"},
                                           {"tokenize", "train"},
                                           {"tokenize", "encode"},
                                           {"tokenize", "show"},
                                           {"bench"},
                                           {"bench", "step"},
                                           {"bench", "kernels"},
                                           {"export"},
                                           {"inspect"},
                                           {"diff"},
                                           {"bench", "tokenizer"},
                                           {"info"},
                                           {"completions"},
                                           {"man"}};
  for (Arguments command : commands) {
    std::string name = "onefold";
    for (const std::string& word : command) name += " " + word;
    command.emplace_back("--help");
    const Outcome help = onefold(command);
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_EQ(help.err, "") << name;
    expect_in(help.out, {"Usage: " + name + " ", "\n  onefold "});
  }
}

TEST_F(Cli, HelpOfTheWholeNamesEveryCommandAndExitCode) {
  expect_in(
      onefold({"--help"}).out,
      {"train", "generate", "tokenize", "bench", "export", "inspect", "diff", "info",
       "0 done, 1 bad input, 2 bad command line, 3 diverged, 4 different", "130 interrupted"});
}

TEST_F(Cli, TheConfigurationInTrainsHelpIsValid) {
  const std::string help = onefold({"train", "--help"}).out;
  const size_t begin = help.find("{\"model\"");
  const std::string text = help.substr(begin, help.rfind('}') + 1 - begin);
  EXPECT_NO_THROW(Config::from_json(parse_json(text, "help")).require_training());
}

TEST_F(Cli, VersionIsOneLine) {
  const Outcome version = onefold({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out, "onefold " ONEFOLD_VERSION "\n");
}

// A script's variable that is not set.
TEST_F(Cli, AnEmptyArgumentIsNotPassedOver) {
  const std::vector<std::pair<Arguments, std::string>> commands = {
      {{"eval", "run", "--data", "book.txt", "--adapter", ""}, "--adapter"},
      {{"eval", "run", "--data", "book.txt", "--tokenizer", ""}, "--tokenizer"},
      {{"generate", "run", "--prompts", ""}, "--prompts"},
      {{"info", "--save", ""}, "--save"},
      {{"train", "config.json", "--trace", ""}, "--trace"},
      {{"export", "run", ""}, "folder"},
      {{"tokenize", "encode", "book.txt", "--output", "x", "--tokenizer", ""}, "--tokenizer"},
      {{"tokenize", "encode", "book.txt", "--output", ""}, "--output"}};
  for (const auto& [command, name] : commands)
    expect_error(onefold(command), 1, {name + " is empty", "leave it out"});
  EXPECT_EQ(onefold({"tokenize", "show", ""}).code, 0);
}

TEST_F(Cli, AnUnknownCommandNamesTheNearest) {
  expect_error(onefold({"trian"}), 2,
               {"no command \"trian\"", "did you mean \"train\"?", "--help"});
  expect_error(onefold({"tokenize", "encoed", "x"}), 2,
               {"no command \"encoed\"", "\"encode\"", "Try: onefold tokenize --help"});
  expect_error(onefold({"xyzzy"}), 2,
               {"there are: init, train, plan, generate, eval, tokenize, data, bench, export"});
}

TEST_F(Cli, AMissingCommandListsThem) {
  expect_error(onefold({}), 2, {"a command is missing: init, train, plan, generate"});
  expect_error(onefold({"tokenize"}), 2, {"a command is missing: train, encode, show"});
  expect_error(onefold({"bench"}), 2, {"a command is missing: step"});
}

TEST_F(Cli, AnUnknownOptionNamesTheNearest) {
  expect_error(onefold({"train", "config.json", "--overwrit"}), 2,
               {"no option \"overwrit\"", "did you mean \"overwrite\"?", "onefold train --help"});
  expect_error(onefold({"train", "--frob=3"}), 2, {"no option \"frob\"", "plan-only"});
  expect_error(onefold({"--frob"}), 2, {"no option \"frob\""});
  // What other programs have as options are keys here.
  expect_error(onefold({"train", "c.json", "--steps=10"}), 2, {"write --set run.steps=10"});
  expect_error(onefold({"plan", "c.json", "--batch-size", "4"}), 2,
               {"write --set train_batch_size=..."});
  expect_error(onefold({"info", "--steps=10"}), 2, {"no option \"steps\"; there are"});
}

TEST_F(Cli, WhatIsMissingOrTooMuchIsNamed) {
  expect_error(onefold({"train"}), 2, {"config is required"});
  expect_error(onefold({"generate"}), 2, {"model is required"});
  expect_error(onefold({"train", "config.json", "extra"}), 2, {"extra"});
  expect_error(onefold({"tokenize", "train", "book.txt"}), 2, {"--output is required"});
}

TEST_F(Cli, NumbersOutOfRangeSayWhatTheyMustBe) {
  expect_error(onefold({"bench", "step", "--steps", "0"}), 2,
               {"--steps: must be an integer of at least 1, not \"0\""});
  expect_error(onefold({"info", "--threads", "-3"}), 2,
               {"--threads: must be an integer of at least 0, not \"-3\""});
  expect_error(onefold({"generate", "run", "--tokens", "many"}), 2, {"--tokens", "\"many\""});
  expect_error(onefold({"generate", "run", "--seed", "-1"}), 2, {"--seed", "\"-1\""});
}

TEST_F(Cli, OptionsThatWouldHaveNoEffectAreRefused) {
  expect_error(onefold({"generate", "run", "--greedy", "--temperature", "0.5"}), 2,
               {"--greedy excludes --temperature"});
  expect_error(onefold({"generate", "run", "--beams", "2", "--seed", "3"}), 2,
               {"--beams excludes --seed"});
  expect_error(onefold({"generate", "run", "--length-penalty", "2"}), 2, {"requires --beams"});
  expect_error(onefold({"generate", "run", "--prompt", "a", "--prompt-file", "b"}), 2,
               {"--prompt-file", "excludes"});
  expect_error(onefold({"train", "config.json", "--plan-only", "--quiet"}), 2,
               {"--plan-only excludes --quiet"});
}

TEST_F(Cli, AResultThatCannotBeWrittenIsAnError) {
  const Outcome outcome = onefold({"tokenize", "show", "text"}, {.out_path = "/dev/full"});
  EXPECT_EQ(outcome.code, 1);
  expect_in(outcome.err, {"cannot write to standard output", "No space left"});
}

}  // namespace
}  // namespace onefold
