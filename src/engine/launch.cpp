#include "engine/launch.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "base/say.h"
#include "base/start_thread.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "comm/binding.h"
#include "comm/local.h"
#include "comm/mpi.h"
#include "engine/channels.h"
#include "engine/control.h"

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
        say("onefold: error: {}\n", error.what());
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

// "rank 2: run.seed is 7, and rank 0 has 1", for each key in which a rank differs from the first;
// no more than a screen of them.
std::vector<std::string> differences_from_first(const std::vector<std::string>& texts) {
  constexpr size_t kMost = 20;
  std::vector<std::string> differences;
  const auto flat = [](const std::string& text) { return parse_json(text, "ranks").flatten(); };
  const Json first = flat(texts.front());
  const auto dotted = [](std::string path) {
    path.erase(0, 1);
    std::replace(path.begin(), path.end(), '/', '.');
    return path;
  };
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts.front()) continue;
    const Json other = flat(texts[rank]);
    Json both = first;
    both.update(other);
    for (const auto& [path, ignored] : both.items()) {
      const Json here = other.value(path, Json()), there = first.value(path, Json());
      if (here == there) continue;
      if (differences.size() == kMost) return differences;
      differences.push_back(fmt::format("rank {}: {} is {}, and rank 0 has {}", rank, dotted(path),
                                        brief_json(here), brief_json(there)));
    }
  }
  return differences;
}

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

int64_t Ranks::scratch_bytes(const std::string& device) const {
  return lane_scratch_bytes(device, mpi_ != nullptr, count_);
}

void Ranks::after_leader(const std::function<void()>& prepare) {
  const auto follow = [&] {
    if (start_) start_->barrier("the first rank is prepared");
  };
  if (!leads()) follow();
  prepare();
  if (leads()) follow();
}

void Ranks::require_alike(const Json& mine) {
  if (!mpi_) return;
  Control control(*mpi_, *start_);
  const std::vector<std::string> all = control.collect("what ranks were told", mine.dump());
  const std::vector<std::string> differences = differences_from_first(all);
  if (differences.empty()) return;
  after_leader([&] {
    throw AgreedError(fmt::format(
        "ranks were not started with the same:\n  {}\nGive every rank the same program, "
        "configuration, data and tokenizer",
        join(differences, "\n  ")));
  });
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
  const auto run_rank = [&](int rank) {
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
  };
  for (int rank = 0; rank < count_; ++rank) {
    try {
      threads.push_back(start_thread([&run_rank, rank] { run_rank(rank); }));
    } catch (const UserError& error) {  // those that have started wait for this one
      failure.add_own(rank);
      group.join(rank)->abort(error.what());
      for (int left = rank; left < count_; ++left) all.one_more();
      break;
    }
  }
  all.wait(failure);
  for (std::thread& thread : threads) thread.join();
  failure.rethrow();
}

}  // namespace onefold
