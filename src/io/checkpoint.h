// A checkpoint is a folder: one safetensors file from each rank that saved it, and manifest.json,
// which says what whole tensors there are and which slice of which file holds each part of them.
// Whoever loads asks for elements of a tensor and gets them from wherever they lie: any number of
// ranks can load what any other number has saved. docs/formats.md has the manifest field by field.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/safetensors.h"

namespace onefold {

struct CheckpointFile {
  std::string name;  // within the folder
  int64_t bytes = 0;
  std::string checksum;
};

// Elements [first, first + elems) of a tensor, in files[file] under "STATE/NAME".
struct CheckpointPiece {
  int file = 0;
  int64_t first = 0, elems = 0;
};

struct CheckpointTensor {
  std::vector<int64_t> shape;
  std::vector<std::string> states;      // "parameters" first, then the optimizer's
  std::vector<CheckpointPiece> pieces;  // by `first`, without gap or overlap

  int64_t elems() const;
};

struct Manifest {
  int64_t step = 0;
  Json run;  // configuration, data and versions: for those who go on with the run
  std::vector<CheckpointFile> files;
  std::map<std::string, CheckpointTensor> tensors;

  Json to_json() const;
  // Checks everything that can be checked without the files. `source` names it in errors.
  static Manifest from_json(const Json& json, const std::string& source);
};

inline constexpr const char* kManifest = "manifest.json";
// Of all of a manifest but its own field "xxh3": a digit that changes on disk must not change where
// a run goes on. Taken of the document without white space, which is the same however the file is
// laid out.
std::string manifest_checksum(Json manifest);
inline constexpr const char* kParameters = "parameters";  // the state that every tensor has
std::string checkpoint_file_name(int rank);
// The name of a tensor's part in a file.
std::string piece_name(const std::string& state, const std::string& tensor);

class Checkpoint {
 public:
  // Reads the manifest and maps the files; UserError if one is missing, has another size, or does
  // not hold what the manifest says. Values are not looked at: see verify().
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }

  // Throws UserError if the file's bytes are not those that were written.
  void verify(int file) const;

  // Elements [first, first + dst.size()) of a state of a tensor, in any number of threads.
  void read(const std::string& state, const std::string& tensor, int64_t first,
            std::span<float> dst) const;
  // Lets go of the memory that reading a tensor's parameters has mapped in.
  void release(const std::string& tensor) const;
  int64_t bytes_read() const { return bytes_read_; }

 private:
  std::string folder_;
  Manifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  mutable std::atomic<int64_t> bytes_read_ = 0;
};

}  // namespace onefold
