#include "run/ranks.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "comm/binding.h"
#include "comm/local.h"
#include "comm/mpi.h"

namespace onefold {
namespace {

// The failure to report: the first that no other rank caused, with its rank.
class FirstFailure {
 public:
  void add_own(int rank) {
    std::lock_guard lock(mutex_);
    if (own_) return;
    own_ = std::current_exception();
    rank_ = rank;
  }
  void add_agreed() { keep_first(agreed_); }
  void add_by_peer() { keep_first(peer_); }

  // Whether a rank has failed with anything but an AgreedError.
  bool any() const {
    std::lock_guard lock(mutex_);
    return own_ || peer_;
  }

  void rethrow() const {
    if (!own_) {
      if (agreed_) std::rethrow_exception(agreed_);
      if (peer_) std::rethrow_exception(peer_);
      return;
    }
    try {
      std::rethrow_exception(own_);
    } catch (const UserError& error) {
      user_error("rank {}: {}", rank_, error.what());
    } catch (const std::system_error& error) {  // a file, a thread or a write was refused
      user_error("rank {}: {}", rank_, error.what());
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      internal_error("rank {}: {}", rank_, error.what());
    }
  }

 private:
  void keep_first(std::exception_ptr& slot) {
    std::lock_guard lock(mutex_);
    if (!slot) slot = std::current_exception();
  }

  mutable std::mutex mutex_;
  std::exception_ptr own_, agreed_, peer_;
  int rank_ = 0;
};

// Waits until all ranks have ended. Once one has failed the others end at once, unless they hang
// where nothing can wake them: then the process ends and reports the failures so far.
class AllEnded {
 public:
  explicit AllEnded(int ranks) : left_(ranks) {}

  void one_more() {
    std::lock_guard lock(mutex_);
    --left_;
    changed_.notify_all();
  }

  void wait(const FirstFailure& failure) {
    constexpr auto kGrace = std::chrono::seconds(5);
    std::unique_lock lock(mutex_);
    while (left_ > 0) {
      if (!failure.any()) {
        changed_.wait(lock);
        continue;
      }
      if (changed_.wait_for(lock, kGrace, [&] { return left_ == 0; })) return;
      try {
        failure.rethrow();
      } catch (const std::exception& error) {
        fmt::print(stderr, "onefold: error: {}\n", error.what());
      }
      std::fflush(nullptr);
      std::_Exit(1);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
};

}  // namespace

Ranks::Ranks(int asked, const CommOptions& options) : options_(options) {
  if (!mpi_launched()) {
    count_ = ranks_here_ = std::max(1, asked);
    cores_ = std::max(1, available_cores() / count_);
    return;
  }
  mpi_ = join_mpi(options);
  count_ = mpi_->ranks();
  cores_ = bind_rank(mpi_->place().rank, mpi_->place().ranks);
  ranks_here_ = mpi_->host().ranks;
  start_scratch_.resize(static_cast<size_t>(mpi_->scratch_bytes()) + 64);
  void* aligned = start_scratch_.data();
  size_t space = start_scratch_.size();
  start_ = mpi_->open("start", std::align(64, start_scratch_.size() - 64, aligned, space));
  after_leader([&] {  // so that one of them reports it
    if (asked > 0 && asked != count_)
      user_error("--ranks {} was given, and the launcher has started {}; leave --ranks out", asked,
                 count_);
  });
}

Ranks::~Ranks() = default;

void Ranks::after_leader(const std::function<void()>& prepare) {
  const auto follow = [&] {
    if (start_) start_->barrier("the first rank is prepared");
  };
  if (!leads()) follow();
  prepare();
  if (leads()) follow();
}

void Ranks::run(const RankBody& body) {
  if (count_ == 1 && !mpi_) return body(nullptr);
  if (!mpi_) return run_threads(body);
  try {
    body(mpi_);
  } catch (const PeerError&) {
    throw;
  } catch (const AgreedError&) {
    after_leader([] { throw; });  // and its end is that of the others
  } catch (const std::exception& error) {
    mpi_->abort(error.what());
    throw;
  }
}

void Ranks::run_threads(const RankBody& body) {
  LocalGroup group(count_, options_);
  FirstFailure failure;
  AllEnded all(count_);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count_; ++rank)
    threads.emplace_back([&, rank] {
      std::shared_ptr<Communicator> communicator = group.join(rank);
      try {
        bind_rank(rank, count_);
        body(communicator);
      } catch (const PeerError&) {
        failure.add_by_peer();
      } catch (const AgreedError&) {
        failure.add_agreed();
      } catch (const std::exception& error) {
        failure.add_own(rank);
        communicator->abort(error.what());
      }
      communicator.reset();
      all.one_more();
    });
  all.wait(failure);
  for (std::thread& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace onefold
