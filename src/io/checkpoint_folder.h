// A run's checkpoints: RUN/checkpoints/step-00000050 and its like. One is written beside them under
// another name, flushed, and renamed: it exists whole or not at all.
#pragma once

#include <string>
#include <vector>

#include "io/checkpoint.h"

namespace onefold {

class CheckpointFolder {
 public:
  struct Entry {
    int64_t step;
    std::string path;
  };

  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // Those that are there whole, newest first. Nothing is said about their contents. UserError if
  // the folder cannot be read: that there is none would be the wrong answer.
  std::vector<Entry> list() const;

  // Where the files of a checkpoint under way are written; made if it is not there.
  std::string begin(int64_t step) const;
  // Writes the manifest, and gives the folder its name. Any checkpoint of the same step is
  // replaced.
  std::string commit(const Manifest& manifest) const;
  // Removes what a checkpoint under way has written, and all that killed runs have left of theirs.
  void discard(int64_t step) const;
  void discard_all() const;
  // Of `newest`, which is known to be good, and those before it, keeps the newest `last`, and each
  // whose step is a multiple of `every` (0: none). Later ones are of a course that the run has
  // left, or damaged: they stay, and do not count. Returns why others could not be removed.
  std::vector<std::string> prune(int64_t newest, int64_t last, int64_t every) const;

 private:
  std::string temporary(int64_t step) const;

  std::string path_;
};

}  // namespace onefold
