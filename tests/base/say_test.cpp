// Colours: on terminals alone, unless somebody says otherwise.
#include "base/say.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

namespace onefold {
namespace {

class Say : public testing::Test {
 protected:
  Say() {
    ::unsetenv("NO_COLOR");
    ::setenv("TERM", "xterm", 1);
  }
  ~Say() override {
    set_colours(Colours::automatic);
    ::unsetenv("NO_COLOR");
  }

  // What is written to standard error, while it is a file, or a terminal.
  static std::string in_a_file(const std::function<void()>& code) {
    testing::internal::CaptureStderr();
    code();
    return testing::internal::GetCapturedStderr();
  }
  static std::string on_a_terminal(const std::function<void()>& code) {
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return "no terminal";
    const int screen = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
    const int before = ::dup(STDERR_FILENO);
    ::dup2(screen, STDERR_FILENO);
    code();
    ::dup2(before, STDERR_FILENO);
    ::close(before);
    ::close(screen);
    std::string text;
    char piece[256];
    for (ssize_t n; (n = ::read(terminal, piece, sizeof(piece))) > 0;)
      text.append(piece, static_cast<size_t>(n));
    ::close(terminal);
    return text;
  }
  static void complain() { say("onefold: error: {} is missing\n", "model"); }
};

TEST_F(Say, ATerminalShowsErrorsAndWarningsInColour) {
  EXPECT_EQ(on_a_terminal(complain), "\x1b[1;31monefold: error:\x1b[0m model is missing\r\n");
  EXPECT_EQ(on_a_terminal([] { say("onefold: warning: old\n"); }),
            "\x1b[1;33monefold: warning:\x1b[0m old\r\n");
  EXPECT_EQ(on_a_terminal([] { say("a line with an error: in it\n"); }),
            "a line with an error: in it\r\n");
}

TEST_F(Say, AFileHasNoColours) {
  EXPECT_EQ(in_a_file(complain), "onefold: error: model is missing\n");
}

TEST_F(Say, WhoeverSetsNoColorGetsNone) {
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_EQ(on_a_terminal(complain), "onefold: error: model is missing\r\n");
  ::setenv("NO_COLOR", "", 1);  // as if it were not set
  EXPECT_NE(on_a_terminal(complain).find('\x1b'), std::string::npos);
  ::unsetenv("NO_COLOR");
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(on_a_terminal(complain), "onefold: error: model is missing\r\n");
}

TEST_F(Say, LinesAreDrawnOverThemselvesOnTerminalsThatCan) {
  const auto shown = [] { say("{}", redraws(Stream::err) ? "drawn" : "plain"); };
  EXPECT_EQ(on_a_terminal(shown), "drawn");
  EXPECT_EQ(in_a_file(shown), "plain");
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_EQ(on_a_terminal(shown), "drawn");
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(on_a_terminal(shown), "plain");
}

TEST_F(Say, AChoiceComesBeforeTheEnvironment) {
  ::setenv("NO_COLOR", "1", 1);
  set_colours(Colours::always);
  EXPECT_NE(in_a_file(complain).find('\x1b'), std::string::npos);
  ::unsetenv("NO_COLOR");
  set_colours(Colours::never);
  EXPECT_EQ(on_a_terminal(complain), "onefold: error: model is missing\r\n");
}

TEST_F(Say, WhatIsOutOfAFileSteersNoTerminal) {
  const auto name = [] { say("onefold: error: no \x1b[31mtensor\r\x1b[K\u009b\x7f\n"); };
  const std::string shown = "no \\x1b[31mtensor\\x0d\\x1b[K\\u009b\\x7f";
  EXPECT_EQ(in_a_file(name), "onefold: error: " + shown + "\n");
  EXPECT_EQ(on_a_terminal(name), "\x1b[1;31monefold: error:\x1b[0m " + shown + "\r\n");
}

TEST_F(Say, ProgressAndHeadingsStayAsTheyAre) {
  EXPECT_EQ(in_a_file([] { say("\r\x1b[Kstep 1\tof\x07 2\n"); }), "\r\x1b[Kstep 1\tof\\x07 2\n");
  set_colours(Colours::always);
  const std::string plan = with_headings("model    a\x1b[2J\nmemory   b\n", Stream::err);
  EXPECT_EQ(in_a_file([&] { say("{}", plan); }),
            "\x1b[1mmodel\x1b[0m    a\\x1b[2J\n\x1b[1mmemory\x1b[0m   b\n");
}

TEST_F(Say, HeadingsAreTheWordsInTheFirstColumn) {
  const std::string plan =
      "model    gpt2: 124.4M\nof no consequence here: a\n\n  table\nmemory   1 B";
  EXPECT_EQ(with_headings(plan, Stream::out), plan);
  set_colours(Colours::always);
  EXPECT_EQ(with_headings(plan, Stream::out),
            "\x1b[1mmodel\x1b[0m    gpt2: 124.4M\nof no consequence here: a\n\n  table\n"
            "\x1b[1mmemory\x1b[0m   1 B");
}

}  // namespace
}  // namespace onefold
