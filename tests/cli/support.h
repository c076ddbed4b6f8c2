// Runs the binary as a user would: in a folder of its own, with what it prints, its exit code, and
// signals sent to it while it runs.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "data/scratch.h"
#include "run/run_folder.h"

namespace onefold {

using Arguments = std::vector<std::string>;

struct Outcome {
  int code = -1;  // exit code; 128 + signal if one ended it
  std::string out, err;
};

struct Environment {
  std::string out_path;     // where standard output goes instead, like /dev/full
  int64_t file_limit = -1;  // bytes that a file may have: what a full disk looks like
  std::vector<std::string> launcher = {};  // words before the binary, like mpirun -n 2
  std::string err_path = {};               // where standard error goes instead
};

// The binary under way. Must be waited for.
class Process {
 public:
  Process(const std::string& folder, const Arguments& arguments, const Environment& environment)
      : out_(environment.out_path.empty() ? logs_.path("out") : environment.out_path),
        err_(environment.err_path.empty() ? logs_.path("err") : environment.err_path) {
    pid_ = ::fork();
    if (pid_ == 0) become(folder, arguments, environment);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const { ::kill(pid_, signal); }

  Outcome wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    Outcome outcome;
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (out_ == logs_.path("out")) outcome.out = read_file(out_);
    if (err_ == logs_.path("err")) outcome.err = read_file(err_);
    return outcome;
  }

 private:
  [[noreturn]] void become(const std::string& folder, const Arguments& arguments,
                           const Environment& environment) const {
    std::vector<char*> words;
    std::string binary = ONEFOLD_BINARY;
    for (const std::string& word : environment.launcher)
      words.push_back(const_cast<char*>(word.data()));
    words.push_back(binary.data());
    for (const std::string& argument : arguments)
      words.push_back(const_cast<char*>(argument.data()));
    words.push_back(nullptr);
    redirect(out_, STDOUT_FILENO);
    redirect(err_, STDERR_FILENO);
    if (environment.file_limit >= 0) {
      const auto limit = static_cast<rlim_t>(environment.file_limit);
      const rlimit both{limit, limit};
      ::setrlimit(RLIMIT_FSIZE, &both);
      std::signal(SIGXFSZ, SIG_IGN);  // so that write() fails and the process lives
    }
    if (::chdir(folder.c_str()) == 0) ::execvp(words[0], words.data());
    ::_exit(127);
  }

  static void redirect(const std::string& path, int fd) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::dup2(file, fd);
    ::close(file);
  }

  const ScratchFolder logs_;
  const std::string out_, err_;
  pid_t pid_ = -1;
};

// A folder with a text to train on and a configuration that takes three steps over it, on one
// thread: other tests run beside it.
class Cli : public ::testing::Test {
 protected:
  Cli() {
    std::string text;
    for (int i = 0; i < 40; ++i)
      text += "Number " + std::to_string(i) + " of the quick brown foxes jumps over a lazy dog.\n";
    folder_.write("book.txt", text);
    folder_.write("config.json", R"({
      "model": "gpt2-tiny",
      "train_batch_size": 4, "gradient_accumulation_steps": 2,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
      "data": {"train": "book.txt", "sequence_length": 32},
      "run": {"output": "run", "steps": 3, "threads": 1}
    })");
  }

  Outcome onefold(const Arguments& arguments, const Environment& environment = {}) const {
    return Process(folder_.path(""), arguments, environment).wait();
  }
  // A shell's command line, in which $onefold is the binary.
  Outcome shell(const std::string& line) const {
    return onefold({}, {.launcher = {"sh", "-c", "onefold=$0; " + line}});
  }
  // onefold train config.json --quiet, with these keys and flags.
  Outcome train(const Arguments& keys, const Arguments& flags = {"--quiet"}) const {
    return onefold(train_arguments(keys, flags));
  }
  static Arguments train_arguments(const Arguments& keys, const Arguments& flags) {
    Arguments arguments = {"train", "config.json"};
    for (const std::string& key : keys) arguments.insert(arguments.end(), {"--set", key});
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return arguments;
  }

  std::string read(const std::string& name) const { return read_file(folder_.path(name)); }
  bool exists(const std::string& name) const { return std::filesystem::exists(folder_.path(name)); }
  std::vector<Json> lines(const std::string& name) const {
    std::vector<Json> objects;
    std::istringstream in(read(name));
    for (std::string line; std::getline(in, line);) objects.push_back(Json::parse(line));
    return objects;
  }

  // A run folder with untrained weights: all that `generate` needs, without training.
  RunFolder make_run(const std::string& name, const std::string& preset = "gpt2-tiny") const {
    const Json root = {{"model", preset},
                       {"train_batch_size", 1},
                       {"data", {{"train", "book.txt"}, {"sequence_length", 8}}},
                       {"run", {{"steps", 1}}}};
    const Config config = Config::from_json(root);
    const Tokenizer tokenizer = Tokenizer::bytes();
    const RunFolder run =
        RunFolder::create(folder_.path(name), config, config.model, &tokenizer, false);
    Engine engine(config.model, {.threads = 1, .sequence = 8, .training = false});
    run.save_weights(engine);
    return run;
  }

  ScratchFolder folder_;
};

inline void expect_error(const Outcome& outcome, int code,
                         std::initializer_list<std::string_view> words) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  // No result; under --json the error, which is one.
  if (outcome.out.starts_with("{"))
    EXPECT_EQ(Json::parse(outcome.out)["error"]["code"], code);
  else
    EXPECT_EQ(outcome.out, "");
  expect_in(outcome.err, words);
}

inline void expect_keys(const Json& json, std::initializer_list<const char*> keys) {
  for (const char* key : keys) EXPECT_TRUE(json.contains(key)) << key << " in " << json.dump();
  EXPECT_EQ(json.size(), keys.size()) << json.dump();
}

// Waits, within reason, for something that another process does.
inline bool eventually(const std::function<bool()>& condition) {
  using namespace std::chrono_literals;
  for (int i = 0; i < 3000; ++i, std::this_thread::sleep_for(10ms))
    if (condition()) return true;
  return false;
}

}  // namespace onefold
