#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <csignal>

#include <algorithm>

#include "base/error.h"
#include "base/process.h"
#include "base/start_thread.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace onefold {
namespace {

// Workers spin this long before they sleep: kernels follow each other within microseconds, and a
// futex wake costs more. Where each thread has a core they spin for a millisecond or two: of a
// kernel of a millisecond the first thread may be done that much before the last, and those that
// had gone to sleep began the next one a tenth of a millisecond late (16 Sapphire Rapids cores).
constexpr int kSpins = 4000, kLongSpins = 40000;

// Keeps signal handlers off this thread while it lives. oneDNN's generated kernels use the stack
// pointer as a general register: a handler that ran inside one would write its frame into the heap.
// What arrives meanwhile is delivered afterwards. Signals that a fault raises are not held back.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t held;
    sigfillset(&held);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
      sigdelset(&held, fault);
    pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  ~SignalsHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

uint64_t call_of(uint64_t tickets) { return tickets >> 32; }
uint64_t left_of(uint64_t tickets) { return tickets & 0xFFFFFFFF; }

// Those of a whole pool, or of one that could not start all of its threads.
void end_workers(std::vector<std::thread>& workers, std::mutex& mutex, std::atomic<bool>& stop,
                 std::condition_variable& wake) {
  {
    std::lock_guard lock(mutex);
    stop = true;
  }
  wake.notify_all();
  for (std::thread& worker : workers) worker.join();
}

}  // namespace

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int threads, const std::vector<NumaNode>& nodes) {
  if (threads == 0) threads = threads_by_environment();
  if (threads == 0) threads = available_cores();
  require(threads > 0, "thread pool of {} threads", threads);
  // Each thread costs memory in the matrix library; far more than cores is a mistyped number.
  if (const int most = std::max(64, 4 * available_cores()); threads > most)
    user_error(
        "{} threads on {} cores; at most {} are allowed (run.threads, --threads, OMP_NUM_THREADS)",
        threads, available_cores(), most);
  const int spins = threads <= available_cores() ? kLongSpins : kSpins;
  const SignalsHeld held;  // threads inherit it
  try {
    for (int t = 1; t < threads; ++t) {
      const NumaNode node = nodes.empty() ? NumaNode{} : nodes[node_of_thread(nodes, t, threads)];
      workers_.push_back(start_thread([this, t, node, spins] {
        if (!node.cpus.empty()) bind_to_node(node);
        worker(t, spins);
      }));
    }
  } catch (...) {
    end_workers(workers_, mutex_, stop_, wake_);
    throw;
  }
}

ThreadPool::~ThreadPool() { end_workers(workers_, mutex_, stop_, wake_); }

void ThreadPool::run(int64_t chunks, const std::function<void(int64_t, int)>& work) {
  if (chunks <= 0) return;
  const SignalsHeld held;
  if (chunks == 1 || workers_.empty()) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) work(chunk, 0);
    return;
  }
  require(chunks <= 0xFFFFFFFF, "{} chunks of work at once", chunks);
  work_ = &work;
  chunks_ = chunks;
  error_ = nullptr;
  unfinished_.store(chunks, std::memory_order_relaxed);
  tickets_ = (call_of(tickets_) + 1) << 32 | static_cast<uint64_t>(chunks);
  if (sleepers_ > 0) {
    // A worker that is about to sleep holds the mutex until it does.
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  drain(0);
  for (int spin = 0; unfinished_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins)
      relax();
    else
      std::this_thread::yield();
  }
  if (error_) std::rethrow_exception(error_);
}

void ThreadPool::worker(int thread, int spins) {
  uint64_t seen = 0;
  const auto idle = [&] { return call_of(tickets_) == seen && !stop_; };
  while (true) {
    for (int spin = 0; spin < spins && idle(); ++spin) relax();
    if (idle()) {
      std::unique_lock lock(mutex_);
      ++sleepers_;  // before tickets_ is read again: run() writes it, and then reads this
      wake_.wait(lock, [&] { return !idle(); });
      --sleepers_;
    }
    if (stop_) return;
    seen = call_of(tickets_);
    drain(thread);
  }
}

void ThreadPool::drain(int thread) {
  // Counted together at the end: threads that write to the same place wait for each other.
  int64_t done = 0;
  uint64_t tickets = tickets_;
  while (left_of(tickets) > 0) {
    if (!tickets_.compare_exchange_weak(tickets, tickets - 1)) continue;
    run_chunk(chunks_ - static_cast<int64_t>(left_of(tickets)), thread);
    ++done;
    tickets = tickets_;
  }
  if (done > 0) unfinished_.fetch_sub(done, std::memory_order_release);
}

void ThreadPool::run_chunk(int64_t chunk, int thread) {
  try {
    (*work_)(chunk, thread);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
    // What no thread has taken stays undone.
    uint64_t tickets = tickets_;
    while (!tickets_.compare_exchange_weak(tickets, call_of(tickets) << 32)) {
    }
    unfinished_.fetch_sub(static_cast<int64_t>(left_of(tickets)), std::memory_order_release);
  }
}

}  // namespace onefold
