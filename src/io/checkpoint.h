// A checkpoint is a folder: one safetensors file from each rank that saved it, and a manifest,
// which says what whole tensors there are and which box of which file holds each part of them.
// Whoever loads asks for elements of a tensor and gets them from wherever they lie: any split of a
// model over ranks can load what any other has saved.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/manifest.h"
#include "io/safetensors.h"

namespace onefold {

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

  // Elements [first, first + dst.size()) of a state of a tensor, row after row, converted to fp32.
  // UserError if it has none, or one that cannot be converted. In any number of threads.
  void read(const std::string& state, const std::string& tensor, int64_t first,
            std::span<float> dst) const;
  // A box of it, row after row.
  void read(const std::string& state, const std::string& tensor, const Box& box,
            std::span<float> dst) const;
  // Lets go of the memory that reading a tensor's parameters has mapped in.
  void release(const std::string& tensor) const;
  int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Source;  // a state of a tensor
  Source find(const std::string& state, const std::string& tensor) const;
  void check_entries(const std::string& name, const CheckpointTensor& tensor) const;
  void read_range(const Source& source, int64_t first, std::span<float> dst) const;
  void read_coded(const Source& source, const std::string& tensor, int64_t first,
                  std::span<float> dst) const;
  void copy(const Source& source, const Box& box, std::span<float> dst) const;

  std::string folder_;
  Manifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  mutable std::atomic<int64_t> bytes_read_ = 0;
};

}  // namespace onefold
