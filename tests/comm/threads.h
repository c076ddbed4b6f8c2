// Runs one function on each rank of a local group, each on a thread of its own.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/local.h"

namespace onefold::test {

// What each rank's function threw as a PeerError; "" where it threw nothing.
inline std::vector<std::string> run_ranks(int ranks, const CommOptions& options,
                                          const std::function<void(Communicator&)>& rank_main) {
  LocalGroup group(ranks, options);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto communicator = group.join(r);
      try {
        rank_main(*communicator);
      } catch (const PeerError& error) {
        errors[static_cast<size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace onefold::test
