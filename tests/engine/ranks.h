// Engines on N ranks as threads: runs the same steps on each and hands back what they end with.
#pragma once

#include <cmath>
#include <thread>

#include "comm/local.h"
#include "engine/support.h"

namespace onefold::test {

// Calls body(rank, communicator) on one thread for each rank. The first rank that fails stops the
// others, and its error is the one thrown.
inline void on_ranks(int ranks, const std::function<void(int, std::shared_ptr<Communicator>)>& body,
                     double timeout_seconds = 60) {
  LocalGroup group(ranks, {.timeout_seconds = timeout_seconds});
  std::mutex mutex;
  std::exception_ptr first, peer;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::shared_ptr<Communicator> communicator = group.join(rank);
      try {
        body(rank, communicator);
      } catch (const PeerError&) {
        std::lock_guard lock(mutex);
        peer = std::current_exception();
      } catch (const std::exception& error) {
        {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        communicator->abort(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
  if (peer) std::rethrow_exception(peer);
}

struct RankRun {
  Weights weights;
  std::vector<double> losses, norms;
  std::vector<int64_t> peaks;                      // by rank
  std::vector<std::array<int64_t, kKinds>> kinds;  // by rank: each kind's peak
  std::vector<std::string> moments;
  std::array<TrafficTable, kLanes> traffic;  // of rank 0
};

// One step of a global batch that is a function of the step, divided by rank and micro-batch as the
// sampler divides it.
inline StepResult train_step(Engine& engine) {
  const EngineOptions& options = engine.options();
  const int64_t first = engine.steps_done() * options.micros;
  std::vector<OwnedBatch> batches;
  for (int micro = 0; micro < options.micros; ++micro)
    batches.push_back(random_rows((first + micro) * engine.data_ranks() + engine.data_rank(),
                                  options, engine.model().spec.vocab_size));
  std::vector<BatchView> views;
  for (OwnedBatch& batch : batches) views.push_back(batch.view());
  return engine.train_step(views, 1e-3);
}

// What a rank's communicator becomes before its engine gets it, if anything.
using Wrap = std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>)>;

inline RankRun train_on_ranks(const ModelSpec& spec, const EngineOptions& options, int ranks,
                              int steps, const Wrap& wrap = {}) {
  RankRun run;
  run.peaks.resize(static_cast<size_t>(ranks));
  run.kinds.resize(static_cast<size_t>(ranks));
  run.moments.resize(static_cast<size_t>(ranks));
  on_ranks(ranks, [&](int rank, std::shared_ptr<Communicator> communicator) {
    if (wrap) communicator = wrap(std::move(communicator));
    Engine engine(spec, options, std::move(communicator));
    for (int step = 0; step < steps; ++step) {
      const StepResult result = train_step(engine);
      if (rank > 0) continue;
      run.losses.push_back(result.loss);
      run.norms.push_back(result.gradient_norm);
    }
    const auto r = static_cast<size_t>(rank);
    run.peaks[r] = engine.ledger().peak_bytes();
    run.moments[r] = engine.ledger().peak_moment();
    for (size_t kind = 0; kind < kKinds; ++kind)
      run.kinds[r][kind] = engine.ledger().peak_bytes(static_cast<Kind>(kind));
    if (rank == 0)
      for (const Lane lane : kAllLanes)
        run.traffic[static_cast<size_t>(lane)] = engine.traffic(lane);
    const Weights weights = weights_of(engine);
    if (rank == 0) run.weights = weights;
  });
  return run;
}

// |a - b| against |b|, of all weights but those of norms, whose size would hide the others'.
inline double distance(const Weights& a, const Weights& b) {
  double difference = 0, size = 0;
  for (const auto& [name, values] : b) {
    if (name.ends_with("norm.weight")) continue;
    for (size_t i = 0; i < values.size(); ++i) {
      const double one = a.at(name)[i] - values[i];
      difference += one * one;
      size += double{values[i]} * values[i];
    }
  }
  return std::sqrt(difference / size);
}

// Peaks, kinds and moments of every rank against a dry run of the same options.
inline void expect_planned(const ModelSpec& spec, const EngineOptions& options, int ranks,
                           const RankRun& run, const Hardware& hardware,
                           int64_t comm_scratch_bytes = 0) {
  for (size_t rank = 0; rank < run.peaks.size(); ++rank) {
    const auto plan =
        Engine::plan(spec, options, ranks, comm_scratch_bytes, hardware,
                     options.pipeline.ranks > 1 ? static_cast<int>(rank)
                                                : static_cast<int>(rank) % options.tensor);
    EXPECT_EQ(plan->ledger().peak_bytes(), run.peaks[rank]) << "rank " << rank;
    EXPECT_EQ(plan->ledger().peak_moment(), run.moments[rank]);
    for (size_t kind = 0; kind < kKinds; ++kind)
      EXPECT_EQ(plan->ledger().peak_bytes(static_cast<Kind>(kind)), run.kinds[rank][kind])
          << kind_name(static_cast<Kind>(kind));
  }
}

}  // namespace onefold::test
