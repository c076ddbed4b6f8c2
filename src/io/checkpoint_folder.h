// A run's checkpoints: RUN/checkpoints/step-00000050 and its like. One is written beside them under
// another name, flushed, and renamed: it exists whole or not at all.
#pragma once

#include <string>
#include <vector>

#include "io/checkpoint.h"

namespace onefold {

// The step in the name of a checkpoint's folder; -1 for any other name.
int64_t step_of_name(const std::string& name);

class CheckpointFolder {
 public:
  struct Entry {
    int64_t step;
    std::string path;
  };

  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // Those that are there whole, newest first, by their names. Nothing is said about their contents.
  // The folder, and any checkpoint, may be a link, to another disk perhaps. UserError if the folder
  // cannot be read, or is a link to what is not there: that there is none would be the wrong
  // answer. A checkpoint that is such a link is listed, for whoever reads it to say why it cannot.
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
  // whose step is a multiple of `every` (0: none). Later ones are damaged: they are neither counted
  // nor removed. Returns why others could not be removed.
  std::vector<std::string> prune(int64_t newest, int64_t last, int64_t every) const;

  // The run has gone back to `step`, and what it saved after that is no longer its future: later
  // checkpoints but those `passed_over` get names that list() does not know. Returns their new
  // paths.
  std::vector<std::string> abandon_after(int64_t step, const std::vector<Entry>& passed_over) const;
  // A new run comes: all get names that list() does not know, and are there until drop_replaced().
  void replace_all() const;
  // Returns why some could not be removed.
  std::vector<std::string> drop_replaced() const;

 private:
  std::string set_aside(const Entry& entry, std::string_view prefix) const;
  std::string temporary(int64_t step) const;

  std::string path_;
};

}  // namespace onefold
