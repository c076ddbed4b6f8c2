// What the shell around a run sees: colours, errors for scripts, threads by the environment,
// completions and the manual page.
#include "cli/support.h"

namespace onefold {
namespace {

TEST_F(Cli, AnErrorIsAnObjectForWhoeverAsksForJson) {
  const Outcome bad = train({"run.setps=3"}, {"--json"});
  EXPECT_EQ(bad.code, 1);
  const Json error = Json::parse(bad.out);
  expect_keys(error, {"error"});
  expect_keys(error["error"], {"message", "code"});
  EXPECT_EQ(error["error"]["code"], 1);
  const std::string message = error["error"]["message"];
  expect_in(message, {"run.setps", "did you mean \"steps\"?"});
  EXPECT_EQ(bad.err, "onefold: error: " + message + "\n");  // for logs

  const Outcome usage = onefold({"train", "config.json", "--jso", "--json"});
  EXPECT_EQ(usage.code, 2);
  EXPECT_EQ(Json::parse(usage.out)["error"]["code"], 2);
  expect_in(usage.err, {"no option \"jso\"", "Try: onefold train --help"});

  const Outcome diverged =
      train({"optimizer.params.lr=1e30", "optimizer.type=SGD", "gradient_clipping=0"}, {"--json"});
  EXPECT_EQ(diverged.code, 3);
  EXPECT_EQ(Json::parse(diverged.out)["error"]["code"], 3);
}

TEST_F(Cli, AnErrorOfARestartedRunIsOneObject) {
  const Outcome bad = train({"run.steps=none"}, {"--restarts", "2", "--json"});
  EXPECT_EQ(bad.code, 1);
  EXPECT_EQ(Json::parse(bad.out)["error"]["code"], 1);
}

TEST_F(Cli, WithoutJsonAnErrorLeavesStandardOutputAlone) {
  EXPECT_EQ(train({"run.setps=3"}, {}).out, "");
}

TEST_F(Cli, ColoursComeWhenTheyAreAskedFor) {
  const auto has_escapes = [](const std::string& text) {
    return text.find('\x1b') != std::string::npos;
  };
  EXPECT_TRUE(has_escapes(onefold({"train", "no.json", "--color", "always"}).err));
  EXPECT_TRUE(has_escapes(onefold({"--color", "always", "train", "no.json"}).err));
  EXPECT_FALSE(has_escapes(onefold({"train", "no.json", "--color", "never"}).err));
  EXPECT_FALSE(has_escapes(onefold({"train", "no.json"}).err));
  const Outcome plan = onefold({"plan", "config.json", "--color", "always"});
  EXPECT_TRUE(plan.out.starts_with("\x1b[1mmodel\x1b[0m    gpt2-tiny")) << plan.out;
  expect_error(onefold({"info", "--color", "blue"}), 2, {"--color", "blue", "auto"});
}

TEST_F(Cli, ThreadsAreThoseOfTheEnvironmentAndTheRunLineSaysSo) {
  const auto plan = [&](const char* variable, const Arguments& more) {
    Arguments arguments = {"train", "config.json", "--plan-only", "--set", "run.threads=0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return onefold(arguments, {.launcher = {"env", variable}}).out;
  };
  expect_in(plan("OMP_NUM_THREADS=3", {}), {"on 3 threads, as OMP_NUM_THREADS says ("});
  expect_in(plan("OMP_NUM_THREADS=3", {"--ranks", "2"}),
            {"2 ranks over threads with 3 threads each, as OMP_NUM_THREADS says ("});
  // What the configuration names comes first.
  EXPECT_EQ(plan("OMP_NUM_THREADS=3", {"--set", "run.threads=1"}).find("OMP"), std::string::npos);
  EXPECT_EQ(plan("NOTHING=1", {}).find("OMP_NUM_THREADS"), std::string::npos);
  const Outcome run = onefold({"train", "config.json", "--json", "--set", "run.threads=0"},
                              {.launcher = {"env", "OMP_NUM_THREADS=2"}});
  ASSERT_EQ(run.code, 0) << run.err;
  const Json summary = Json::parse(run.out);
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
}

// Completes the last of the words as bash would, and prints what it offers.
class CliCompletions : public Cli {
 protected:
  std::vector<std::string> complete(const std::string& words) const {
    const Outcome outcome = shell("bash -c 'source <($0 completions bash); COMP_WORDS=(" + words +
                                  "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _onefold; "
                                  "printf \"%s\\n\" \"${COMPREPLY[@]}\"' $onefold");
    EXPECT_EQ(outcome.err, "");
    std::vector<std::string> lines;
    std::istringstream in(outcome.out);
    for (std::string line; std::getline(in, line);)
      if (!line.empty()) lines.push_back(line);
    return lines;
  }
  using Words = std::vector<std::string>;
};

TEST_F(CliCompletions, OfferCommandsFlagsAndTheirValues) {
  EXPECT_EQ(complete("onefold tr"), Words{"train"});
  EXPECT_EQ(complete("onefold tokenize en"), Words{"encode"});
  EXPECT_EQ(complete("onefold train config.json --plan"), Words{"--plan-only"});
  EXPECT_EQ(complete("onefold plan c.json --transport m"), Words{"mpi"});
  EXPECT_EQ(complete("onefold completions z"), Words{"zsh"});
  EXPECT_EQ(complete("onefold diff --color al"), Words{"always"});
  EXPECT_EQ(complete("onefold train con"), Words{});  // the shell's own: names of files
}

TEST_F(CliCompletions, EveryShellKnowsEveryFlag) {
  const std::string help = onefold({"train", "--help"}).out;
  for (const char* name : {"bash", "zsh", "fish"}) {
    const Outcome script = onefold({"completions", name});
    EXPECT_EQ(script.code, 0);
    const std::string dashes = std::string(name) == "fish" ? "-l " : "--";
    for (const char* flag : {"plan-only", "allow-changes", "length-penalty", "max-shard-size"})
      expect_in(script.out, {dashes + flag});
    for (const char* command : {"init", "train", "checkpoint", "completions"})
      expect_in(script.out, {command});
  }
  expect_error(onefold({"completions", "tcsh"}), 2, {"tcsh", "bash"});
}

TEST_F(Cli, TheManualPageHasEveryCommandAndIsValid) {
  const Outcome manual = onefold({"man"});
  EXPECT_EQ(manual.code, 0);
  EXPECT_TRUE(manual.out.starts_with(".TH ONEFOLD 1 "));
  expect_in(manual.out, {".SS onefold tokenize encode", ".SS onefold init", "\\fB\\-\\-plan\\-only",
                         ".SH ENVIRONMENT"});
  const Outcome checked =
      shell("command -v groff > /dev/null || exit 0; $onefold man | groff -man -Tutf8 -ww");
  EXPECT_EQ(checked.code, 0);
  EXPECT_EQ(checked.err, "");
}

}  // namespace
}  // namespace onefold
