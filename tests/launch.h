// Runs a command line and returns its exit code, its output and how long it took.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/clock.h"

namespace onefold::test {

struct Ended {
  int code = -1;  // 124: stopped at the time limit
  double seconds = 0;
  std::string output;  // standard output and error
};

inline Ended launch(const std::string& command, int limit_seconds) {
  const std::string limited = fmt::format("timeout {} {} 2>&1", limit_seconds, command);
  Ended ended;
  const double begin = now_seconds();
  FILE* output = popen(limited.c_str(), "r");
  if (output == nullptr) return ended;
  char block[4096];
  for (size_t got = 0; (got = fread(block, 1, sizeof(block), output)) > 0;)
    ended.output.append(block, got);
  const int status = pclose(output);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  ended.seconds = now_seconds() - begin;
  return ended;
}

inline Ended mpirun(int ranks, const std::string& command, int limit_seconds = 60) {
  return launch(fmt::format("mpirun --oversubscribe -n {} {}", ranks, command), limit_seconds);
}

// Why nothing can be started through mpirun here; "" if it can. `sanitizers`: what the tests are
// built with.
inline std::string no_mpirun(const std::string& sanitizers) {
  if (std::system("command -v mpirun > /dev/null") != 0)
    return "no mpirun here: install openmpi-bin";
  if (sanitizers.find("thread") != std::string::npos)
    return "the MPI library is not built for the thread sanitizer";
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);  // containers
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // the MPI library's
  return "";
}

}  // namespace onefold::test
