// Ranks that make random calls, one of which goes wrong on one of them: what, where and when comes
// from a seed, the same on all ranks.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace onefold::test {

enum class Fault {
  other_words,  // the same call for something else
  other_size,
  other_call,
  skipped_call,
  leave,
  abort,
  hang,
  raise,       // an exception that is not ours
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
  int victim, at;  // which rank, and before which call
};

inline constexpr int kCalls = 40;

inline FaultPlan plan_fault(unsigned seed, int ranks, int faults) {
  std::mt19937 dice(seed);
  const auto fault = static_cast<Fault>(seed % static_cast<unsigned>(faults));
  return {fault, static_cast<int>(dice() % static_cast<unsigned>(ranks)),
          static_cast<int>(dice() % kCalls)};
}

// One call, drawn from the dice; `change` makes it the victim's.
inline void random_call(Channel& channel, std::mt19937& dice, int number, const Fault* change) {
  const auto ranks = static_cast<size_t>(channel.ranks());
  size_t elems = 1 + dice() % 3000;
  unsigned kind = dice() % 4;
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

// Runs to the fault, and then on: it ends by what the fault or the communicator throws. `befall`
// does the faults that are not a matter of calls.
inline void run_with_fault(Communicator& communicator, Channel& channel, unsigned seed,
                           const FaultPlan& plan, const std::function<void(Fault)>& befall) {
  std::mt19937 dice(seed + 1);
  for (int call = 0; call < kCalls + 10; ++call) {
    const bool now = communicator.rank() == plan.victim && call == plan.at;
    if (now && plan.fault > Fault::skipped_call) {
      befall(plan.fault);
      return;
    }
    if (now && plan.fault == Fault::skipped_call) {
      dice.discard(2);  // as the call would have drawn
      continue;
    }
    random_call(channel, dice, call, now ? &plan.fault : nullptr);
  }
}

}  // namespace onefold::test
