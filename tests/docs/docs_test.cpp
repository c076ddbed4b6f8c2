// Runs what README.md and docs/*.md show, and compares what is printed with what they say. How
// pages are marked: page.h. Each page runs in a folder of its own that looks like a newcomer's: the
// program is on the PATH, examples/ and tests/ are there, demo/text.txt is what `make demo` leaves,
// and book.txt with config.json is a small text with a configuration for it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "base/file.h"
#include "base/json.h"
#include "data/scratch.h"
#include "docs/page.h"
#include "launch.h"

namespace onefold::docs {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostSkipped = 12;
constexpr int kMostSeconds = 600;  // of one command: it hangs
// As root, in a container perhaps, and with more ranks than cores.
constexpr const char* kMpi =
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    "OMPI_MCA_rmaps_base_oversubscribe=1";

std::string source(const std::string& name) { return std::string(ONEFOLD_SOURCE_DIR "/") + name; }

std::vector<std::string> page_names() {
  std::vector<std::string> names = {"README.md"};
  for (const auto& entry : fs::directory_iterator(source("docs")))
    if (entry.path().extension() == ".md")
      names.push_back("docs/" + entry.path().filename().string());
  std::sort(names.begin() + 1, names.end());
  return names;
}

std::string in_quotes(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// The folder that a page's commands run in.
class Newcomer {
 public:
  Newcomer() {
    for (const char* name : {"examples", "tests"})
      fs::create_directory_symlink(source(name), folder_.path(name));
    std::string book;
    for (int i = 0; i < 400; ++i)
      book += fmt::format("Number {} of the quick brown foxes jumps over a lazy dog.\n", i);
    folder_.write("book.txt", book);
    folder_.write("config.json", R"({
      "model": "gpt2-tiny", "train_batch_size": 8, "gradient_accumulation_steps": 1,
      "data": {"train": "book.txt", "sequence_length": 32},
      "run": {"output": "runs/config", "steps": 6, "save_every": 2}
    })");
  }

  // Makes demo/text.txt, as `make demo` does. Whether that is possible here.
  bool prepare_demo_text() const {
    return run(in_quotes(source("scripts/demo_text.sh")) + " > /dev/null").code == 0;
  }

  test::Ended run(const std::string& command) const {
    const std::string line =
        fmt::format("cd {}; export PATH={}:{}:$PATH; unset OMP_NUM_THREADS NO_COLOR; {}; {}",
                    folder_.path(""), in_quotes(fs::path(ONEFOLD_BINARY).parent_path()),
                    in_quotes(fs::path(ONEFOLD_EMBED).parent_path()), kMpi, command);
    return test::launch("bash -c " + in_quotes(line), kMostSeconds);
  }

  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }

 private:
  const ScratchFolder folder_;
};

class DocsPages : public testing::TestWithParam<std::string> {
 protected:
  void run_part(const Part& part) {
    switch (part.kind) {
      case Part::Kind::skipped:
        return;
      case Part::Kind::hidden:
        return expect_success(part.line, part.command);
      case Part::Kind::file:
        return save(part);
      case Part::Kind::script:
        for (const Shown& shown : commands_of(part)) expect_success(shown.line, shown.command);
        return;
      case Part::Kind::console:
        for (const Shown& shown : commands_of(part)) expect_shown(part, shown);
    }
  }

 private:
  static bool can_run(const std::string& command) {
    return command.find("mpirun") == std::string::npos || test::no_mpirun("").empty();
  }
  std::string at(int line, const std::string& command) const {
    return fmt::format("{}:{}: {}", GetParam(), line, command);
  }

  void expect_success(int line, const std::string& command) {
    if (!can_run(command)) return;
    const test::Ended ended = newcomer_.run(command);
    EXPECT_EQ(ended.code, 0) << at(line, command) << "\n" << ended.output;
  }

  void expect_shown(const Part& part, const Shown& shown) {
    if (!can_run(shown.command)) return;
    const test::Ended ended = newcomer_.run(shown.command);
    EXPECT_EQ(ended.code, part.exit_code) << at(shown.line, shown.command) << "\n" << ended.output;
    const std::string wrong = difference(shown.output, ended.output, part.numbers_vary);
    EXPECT_EQ(wrong, "") << at(shown.line, shown.command) << "\nprints:\n" << ended.output;
  }

  void save(const Part& part) {
    std::string text;
    for (const std::string& line : part.lines) text += line + "\n";
    const std::string name = part.file.empty() ? "snippet.json" : part.file;
    newcomer_.write(name, text);
    if (part.language != "json") return;
    const Json json = parse_json(text, at(part.line, name));
    if (json.contains("model")) expect_success(part.line, "onefold plan " + name);
  }

 protected:
  const Newcomer newcomer_;
};

TEST_P(DocsPages, DoWhatTheyShow) {
  const std::string text = read_file(source(GetParam()));
  if (text.find("demo/t") != std::string::npos && !newcomer_.prepare_demo_text())
    GTEST_SKIP() << "the text of the demo is not here: install bible-kjv";
  for (const Part& part : read_page(text)) run_part(part);
}

INSTANTIATE_TEST_SUITE_P(All, DocsPages, testing::ValuesIn(page_names()), [](const auto& info) {
  return std::regex_replace(fs::path(info.param).stem().string(), std::regex("[^A-Za-z0-9]"), "");
});

TEST(Docs, WhatIsNotRunIsLittleAndHasItsReason) {
  size_t count = 0;
  for (const std::string& name : page_names())
    for (const Part& part : read_page(read_file(source(name))))
      if (part.kind == Part::Kind::skipped) {
        fmt::print("not run: {}:{}: {}\n", name, part.line, part.reason);
        ++count;
      }
  EXPECT_LE(count, kMostSkipped);
}

// The commands and flags of `onefold man`, which is made of the command line's own description:
// "onefold plan" -> {"--ranks", ...}.
std::map<std::string, std::set<std::string>> described_flags() {
  std::map<std::string, std::set<std::string>> flags;
  std::istringstream manual(Newcomer().run("onefold man").output);
  static const std::regex section(R"(^\.SS (onefold[a-z ]*?)( \\fI.*)?$)"),
      flag(R"(^(\\fB\\-.\\fR, )?\\fB\\-\\-([a-z\\-]+)\\fR.*$)");
  std::string command;
  std::smatch match;
  for (std::string line; std::getline(manual, line);) {
    if (std::regex_match(line, match, section)) flags[command = match[1]];
    if (!command.empty() && std::regex_match(line, match, flag))
      flags[command].insert("--" + std::regex_replace(match[2].str(), std::regex(R"(\\)"), ""));
  }
  return flags;
}

TEST(Docs, EveryCommandAndFlagIsDescribed) {
  const std::string page = read_file(source("docs/cli.md"));
  const auto flags = described_flags();
  EXPECT_GT(flags.size(), 10U);
  for (const auto& [command, names] : flags) {
    const std::regex heading("(^|\n)## `" + command + "[ `]");
    std::smatch match;
    if (!std::regex_search(page, match, heading)) {
      ADD_FAILURE() << "docs/cli.md has no section for " << command;
      continue;
    }
    const auto begin = static_cast<size_t>(match.position(0));
    const std::string text = page.substr(begin, page.find("\n## ", begin + 4) - begin);
    for (const std::string& name : names) {
      if (name == "--color") continue;  // every command's: described once
      EXPECT_TRUE(std::regex_search(text, std::regex("`(-., )?" + name + "\\b")))
          << "docs/cli.md does not describe " << name << " of " << command;
    }
  }
}

TEST(Docs, EveryFlagThatIsDescribedIsThere) {
  const auto flags = described_flags();
  std::istringstream page(read_file(source("docs/cli.md")));
  static const std::regex heading("## `(onefold [a-z]+( [a-z]+)?)[ `].*"),
      row(R"(\| `(-., )?(--[a-z-]+).*)");
  std::string command;
  std::smatch match;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## "))
      command = std::regex_match(line, match, heading) ? match[1].str() : std::string();
    if (command.empty() || !std::regex_match(line, match, row)) continue;
    const std::string name = match[2];
    EXPECT_TRUE(flags.contains(command) && flags.at(command).contains(name))
        << "docs/cli.md describes " << name << " of " << command << ", which has none";
  }
}

}  // namespace
}  // namespace onefold::docs
