// Writes checkpoints behind training. State is written from where it lives, without a copy: until a
// unit's next optimizer step nothing changes it, and forward and backward of that step are time
// enough on most disks. A step that comes too early waits for its unit to be written, and the wait
// is counted. A card's state passes through a small block of the host tier, beside computation.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/engine.h"
#include "io/checkpoint_folder.h"

namespace onefold {

class CheckpointWriter {
 public:
  CheckpointWriter(Engine& engine, CheckpointFolder folder);
  ~CheckpointWriter();

  const CheckpointFolder& folder() const { return folder_; }

  // Begins to write this rank's file of the engine's state. None may be under way.
  void begin();
  // Before an action: a step waits until its unit is written.
  void before(const Action& action);

  bool active() const { return job_ != nullptr; }
  bool done() const;  // written, or failed
  void wait();
  // After done(): what went wrong ("": nothing), and the file.
  std::string error() const;
  CheckpointFile file() const;
  // All ranks together, when all are done: the manifest of all files is written by rank 0. Returns
  // the errors of ranks that failed; empty: the checkpoint is there.
  std::vector<std::string> finish(const Json& run);

  int64_t step() const;
  double seconds() const { return seconds_; }          // of the last checkpoint, to its last byte
  int64_t bytes() const { return bytes_; }             // of the last one, all ranks
  double stalled_seconds() const { return stalled_; }  // all together: how long training waited

 private:
  struct Job;
  void write(Job& job);
  Json ranges() const;
  Json own_ranges() const;
  Manifest manifest(const std::vector<CheckpointFile>& files, const std::vector<Json>& ranges,
                    const std::vector<Json>& own_ranges, const Json& run) const;
  void add_own_states(Manifest& manifest) const;
  void join();

  Engine& engine_;
  const CheckpointFolder folder_;
  Buffer staging_;  // empty where the device's memory is the host's
  std::unique_ptr<Job> job_;
  std::thread thread_;
  double seconds_ = 0, stalled_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace onefold
