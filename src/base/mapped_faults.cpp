#include "base/mapped_faults.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>

namespace onefold {
namespace {

// What a handler may read: no locks, no memory of the heap. A map without a slot left is only not
// named.
struct Slot {
  std::atomic<uintptr_t> begin = 0;  // 0: free
  size_t bytes = 0;
  std::array<char, 512> path{};
};
std::array<Slot, 1024> slots;
std::mutex writers;

void print(std::string_view text) {
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;  // there is no one to tell
}

extern "C" void on_fault(int number, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin == 0 || at < begin || at - begin >= slot.bytes) continue;
    print("onefold: error: ");
    print(slot.path.data());
    print(" was cut short, or its disk failed, while it was read\n");
    ::_exit(1);
  }
  std::signal(number, SIG_DFL);  // and the fault comes again
}

}  // namespace

void report_faults_of_maps() {
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

void watch_map(const void* data, size_t bytes, const std::string& path) {
  const std::lock_guard lock(writers);
  for (Slot& slot : slots) {
    if (slot.begin.load(std::memory_order_relaxed) != 0) continue;
    slot.bytes = bytes;
    std::strncpy(slot.path.data(), path.c_str(), slot.path.size() - 1);
    slot.begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_release);
    return;
  }
}

void forget_map(const void* data) {
  const std::lock_guard lock(writers);
  for (Slot& slot : slots)
    if (slot.begin.load(std::memory_order_relaxed) == reinterpret_cast<uintptr_t>(data))
      slot.begin.store(0, std::memory_order_release);
}

}  // namespace onefold
