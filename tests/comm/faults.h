// Ranks that make random calls, with a fault in one of them on one rank. A seed, the same on all
// ranks, determines the calls, the fault, the rank and the call.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace onefold::test {

enum class Fault {
  other_words,  // the same call with another description
  other_size,
  other_call,
  skipped_call,
  leave,
  abort,
  hang,
  raise,       // an exception that is no PeerError
  exit_early,  // processes only
  kill         // processes only: SIGKILL
};
inline constexpr int kThreadFaults = 8, kProcessFaults = 10;
inline const char* fault_name(Fault fault) {
  static constexpr const char* kNames[] = {
      "other_words", "other_size", "other_call", "skipped_call", "leave",
      "abort",       "hang",       "raise",      "exit_early",   "kill"};
  return kNames[static_cast<size_t>(fault)];
}

struct FaultPlan {
  Fault fault;
  int rank, at;  // on which rank, and before which call
};

inline constexpr int kCalls = 40;

inline FaultPlan plan_fault(unsigned seed, int ranks, int faults) {
  std::mt19937 random(seed);
  const auto fault = static_cast<Fault>(seed % static_cast<unsigned>(faults));
  return {fault, static_cast<int>(random() % static_cast<unsigned>(ranks)),
          static_cast<int>(random() % kCalls)};
}

// One random call; `change`, if any, is the fault that alters it.
inline void random_call(Channel& channel, std::mt19937& random, int number, const Fault* change) {
  const auto ranks = static_cast<size_t>(channel.ranks());
  size_t elems = 1 + random() % 3000;
  unsigned kind = random() % 4;
  std::vector<float> whole((elems + 1) * ranks, 1.0f), other((elems + 1) * ranks);
  std::string what = "call " + std::to_string(number);
  if (change != nullptr && *change == Fault::other_words) what += ", but another one";
  if (change != nullptr && *change == Fault::other_call) kind = (kind + 1) % 4;
  if (change != nullptr && *change == Fault::other_size) ++elems;
  const Message message{whole.data(), other.data(), static_cast<int64_t>(elems)};
  if (kind == 0) channel.all_gather(what, {&message, 1});
  if (kind == 1) channel.reduce_scatter(what, {&message, 1});
  if (kind == 2) channel.all_reduce(what, {&message, 1});
  if (kind == 3) channel.all_to_all(what, whole.data(), other.data(), message.shard_bytes());
}

// Makes calls until the fault, or the communicator on another rank's fault, throws. `inject`
// carries out the faults that are not altered calls; its rank makes no further calls.
inline void run_with_fault(Communicator& communicator, Channel& channel, unsigned seed,
                           const FaultPlan& plan, const std::function<void(Fault)>& inject) {
  std::mt19937 random(seed + 1);
  for (int call = 0; call < kCalls + 10; ++call) {
    const bool now = communicator.rank() == plan.rank && call == plan.at;
    if (now && plan.fault > Fault::skipped_call) {
      inject(plan.fault);
      return;
    }
    if (now && plan.fault == Fault::skipped_call) {
      random.discard(2);  // the numbers that the call would have taken
      continue;
    }
    random_call(channel, random, call, now ? &plan.fault : nullptr);
  }
}

}  // namespace onefold::test
