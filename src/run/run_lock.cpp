#include "run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/say.h"

namespace onefold {
namespace {

constexpr const char* kLock = "run.lock";

// A process that was killed holds its locks until its memory is given back.
bool try_lock_a_while(int fd) {
  using namespace std::chrono_literals;
  for (int tries = 0; tries < 40; ++tries) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK && errno != EINTR) return false;
    std::this_thread::sleep_for(50ms);
  }
  errno = EWOULDBLOCK;
  return false;
}

std::string holder(int fd) {
  std::array<char, 512> text{};
  const ssize_t count = ::pread(fd, text.data(), text.size() - 1, 0);
  std::string line(text.data(), count > 0 ? static_cast<size_t>(count) : 0);
  return line.substr(0, line.find('\n'));
}

void write_holder(int fd) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) std::strcpy(host.data(), "unknown host");
  const std::string text = fmt::format("process {} on {}\n", ::getpid(), host.data());
  // A full disk does not matter: the text only explains.
  if (::ftruncate(fd, 0) == 0 && ::pwrite(fd, text.data(), text.size(), 0) < 0) return;
}

}  // namespace

RunLock::RunLock(const std::string& folder) {
  const std::string path = folder + "/" + kLock;
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) user_error("cannot open {}: {}", path, std::strerror(errno));
  if (try_lock_a_while(fd_)) {
    write_holder(fd_);
    return;
  }
  const int reason = errno;
  const std::string other = holder(fd_);
  ::close(std::exchange(fd_, -1));
  if (reason == EWOULDBLOCK)
    user_error(
        "run.output: another run is writing to {} ({}); wait for it, stop it, or name another "
        "folder",
        folder, other.empty() ? "it does not say which" : other);
  say("onefold: warning: {} cannot be locked ({}): see that no other run writes to the folder\n",
      path, std::strerror(reason));
}

RunLock::RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace onefold
