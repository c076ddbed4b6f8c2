#include "run/supervisor.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/say.h"

namespace onefold {
namespace {

constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

volatile std::sig_atomic_t watched = 0, stop_wanted = 0;
bool hang_up_ignored = false;

extern "C" void pass_on(int number) {
  if (number != SIGUSR1) stop_wanted = 1;
  if (watched > 0) ::kill(static_cast<pid_t>(watched), number);
}

// No signal comes between making a child and knowing its number.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t held;
    sigemptyset(&held);
    for (const int number : kPassedOn) sigaddset(&held, number);
    ::sigprocmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalsHeld() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

pid_t start(const std::function<int(int)>& work, int number) {
  const SignalsHeld held;
  const pid_t watcher = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) user_error("cannot start a process: {}", std::strerror(errno));
  watched = child;
  if (child > 0) return child;
  // A group of its own: Ctrl-C reaches the watcher alone, and through it this process once.
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != watcher) std::_Exit(EXIT_FAILURE);
  std::signal(SIGHUP, hang_up_ignored ? SIG_IGN : SIG_DFL);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGUSR1}) std::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  std::_Exit(work(number));
}

}  // namespace

int supervise(int restarts, const std::function<int(int start)>& work,
              const std::function<bool(int code)>& again) {
  for (const int signal : kPassedOn)
    if (std::signal(signal, pass_on) == SIG_IGN && signal == SIGHUP) {  // nohup
      std::signal(SIGHUP, SIG_IGN);
      hang_up_ignored = true;
    }
  std::signal(SIGPIPE, SIG_IGN);  // a line that nobody reads does not end the watch
  for (int number = 0;; ++number) {
    const pid_t child = start(work, number);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    watched = 0;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (!again(code) || stop_wanted || number == restarts) return code;
    say("onefold: the run ended with {}; restart {} of {}\n", code, number + 1, restarts);
  }
}

}  // namespace onefold
