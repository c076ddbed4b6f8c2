// The rules by which pages are read and outputs compared: what the tests of the pages rest on.
#include "docs/page.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace onefold::docs {
namespace {

using Lines = std::vector<std::string>;

TEST(DocsOutput, MustBeAsShown) {
  EXPECT_EQ(
      difference({"model    gpt2: 124.4M parameters"}, "model    gpt2: 124.4M parameters\n", false),
      "");
  EXPECT_NE(
      difference({"model    gpt2: 124.4M parameters"}, "model    gpt2: 124.5M parameters\n", false),
      "");
  EXPECT_NE(difference({"a", "b"}, "a\n", false), "");
  EXPECT_NE(difference({"a"}, "a\nb\n", false), "");
  EXPECT_NE(difference({"a", "b"}, "b\na\n", false), "");
  EXPECT_NE(difference({"a"}, "", false), "");
}

TEST(DocsOutput, DotsStandForAnything) {
  EXPECT_EQ(difference({"...", "b", "..."}, "a\nb\nc\nd\n", false), "");
  EXPECT_EQ(difference({"a", "..."}, "a\n", false), "");
  EXPECT_EQ(difference({"...", "b"}, "b\nx\nb\n", false), "");
  EXPECT_EQ(difference({"memory   24 B planned: parameters 2 MiB, ..."},
                       "memory   24 B planned: parameters 2 MiB, optimizer 3 MiB\n", false),
            "");
  EXPECT_NE(difference({"...", "b"}, "b\nx\n", false), "");
  EXPECT_NE(difference({"a", "...", "c"}, "a\nb\n", false), "");
}

TEST(DocsOutput, WhatTheMachineDecidesIsMaskedAndNothingElse) {
  const Lines shown = {
      "step  100/1300  loss 4.8351  val 4.9974  norm 0.63  lr 4.97e-03  6.10K tok/s  73% of GEMM  "
      "132.7 MiB  ETA 3m19s"};
  EXPECT_EQ(difference(shown,
                       "step  100/1300  loss 5.1  val 4.7  norm 12.34  lr 4.97e-03  19.9K tok/s  "
                       "101% of GEMM  1.20 GiB  ETA 0.0s\n",
                       false),
            "");
  EXPECT_NE(difference(shown,
                       "step  100/1300  loss 5.1  val 4.7  norm 12.34  lr 4.98e-03  19.9K tok/s  "
                       "101% of GEMM  1.20 GiB  ETA 0.0s\n",
                       false),
            "");
  EXPECT_NE(difference(shown,
                       "step  200/1300  loss 5.1  val 4.7  norm 12.34  lr 4.97e-03  19.9K tok/s  "
                       "101% of GEMM  1.20 GiB  ETA 0.0s\n",
                       false),
            "");
}

TEST(DocsOutput, NumbersMayVaryWordsMayNot) {
  const Lines shown = {"  optimizer           4.25 MiB     9.8%      4.25 MiB"};
  EXPECT_EQ(difference(shown, "  optimizer    0 B     0.0%       1.00 GiB\n", true), "");
  EXPECT_NE(difference(shown, "  parameters   0 B     0.0%       1.00 GiB\n", true), "");
}

TEST(DocsPage, BlocksBecomeWhatTheirLanguageSays) {
  const std::vector<Part> parts = read_page(
      "# Page\n\n```sh\nonefold a\n\n# why\nonefold b \\\n  --c\n```\n\n```\n$ onefold "
      "d\nout\n```\n"
      "<!-- test: file x.json -->\n```json\n{}\n```\n```text\nfiles -> tokens\n```\n"
      "<!-- test: run mkdir e -->\n<!-- test: skip it is long -->\n```sh\nmake\n```\n");
  ASSERT_EQ(parts.size(), 5U);
  EXPECT_EQ(parts[0].kind, Part::Kind::script);
  const std::vector<Shown> script = commands_of(parts[0]);
  ASSERT_EQ(script.size(), 2U);
  EXPECT_EQ(script[1].command, "onefold b \\\n  --c");
  EXPECT_EQ(script[1].line, 7);
  EXPECT_EQ(parts[1].kind, Part::Kind::console);
  ASSERT_EQ(commands_of(parts[1]).size(), 1U);
  EXPECT_EQ(commands_of(parts[1])[0].output, Lines{"out"});
  EXPECT_EQ(parts[2].file, "x.json");
  EXPECT_EQ(parts[3].command, "mkdir e");
  EXPECT_EQ(parts[4].reason, "it is long");
}

TEST(DocsPage, MarksChangeHowABlockIsRun) {
  const std::vector<Part> parts = read_page(
      "<!-- test: with s/gpt2/tiny/ -->\n<!-- test: numbers vary -->\n<!-- test: exits 1 -->\n"
      "```\n$ onefold bench gpt2\n1\n```\n<!-- test: output of onefold info -->\n```\nCPU\n```\n");
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(commands_of(parts[0])[0].command, "onefold bench tiny");
  EXPECT_TRUE(parts[0].numbers_vary);
  EXPECT_EQ(parts[0].exit_code, 1);
  EXPECT_EQ(commands_of(parts[1])[0].command, "onefold info");
  EXPECT_EQ(commands_of(parts[1])[0].output, Lines{"CPU"});
}

TEST(DocsPage, WhatCannotBeReadIsAnError) {
  EXPECT_THROW(read_page("```\nonefold train\n```\n"), std::runtime_error);
  EXPECT_THROW(read_page("<!-- test: skp it -->\n```sh\na\n```\n"), std::runtime_error);
  EXPECT_THROW(read_page("<!-- test: numbers vary -->\ntext\n"), std::runtime_error);
  EXPECT_THROW(read_page("<!-- test: skip -->\n```sh\na\n```\n"), std::runtime_error);
  EXPECT_THROW(read_page("```sh\na\n"), std::runtime_error);
  EXPECT_THROW(commands_of(read_page("<!-- test: with s/x/y/ -->\n```sh\na\n```\n")[0]),
               std::runtime_error);
}

}  // namespace
}  // namespace onefold::docs
