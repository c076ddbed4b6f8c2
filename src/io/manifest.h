// manifest.json of a checkpoint: what whole tensors there are, what is saved of each, and which box
// of which file holds which part. docs/formats.md has it field by field. Version 2 is written;
// version 1, whose pieces were flat ranges of F32, is read into the same structures.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/box.h"

namespace onefold {

struct CheckpointFile {
  std::string name;  // within the folder
  int64_t bytes = 0;
  std::string checksum;
};

// A box of a matrix. Its elements lie in files[file], row after row, from element `offset` of the
// entry "STATE/NAME" on.
struct CheckpointPiece {
  int file = 0;
  int64_t offset = 0;
  Box box;
};

// One of the things that are saved of a tensor: its values, or a state of the optimizer.
struct CheckpointState {
  static constexpr int64_t kOwn = 0;  // a block: it has elements of its own, all in one file
  std::string name;
  std::string dtype = "F32";  // as in safetensors files
  int64_t elems = 0;          // that are stored
  int64_t block = 1;          // successive elements of the tensor that share one of them; or kOwn
  // Of the state as one row of `elems`. Where block is 1, of the tensor's matrix, and mostly none:
  // the tensor's count.
  std::vector<CheckpointPiece> pieces = {};

  // Codes of 8 bits (base/block8.h), whose scales are the state of this name with kScaleSuffix
  // behind.
  bool is_coded() const { return dtype == "U8" && block == 1; }
  // Why values of this state cannot be read as fp32; "": they can.
  std::string obstacle() const;
};

struct CheckpointTensor {
  std::vector<int64_t> shape;           // at most two sizes
  std::vector<CheckpointState> states;  // "parameters" first, then the optimizer's
  std::vector<CheckpointPiece> pieces;  // each element of the matrix in one of them

  // As a matrix: a vector is one row.
  int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t elems() const { return rows() * cols(); }

  const CheckpointState* state(const std::string& name) const;  // null: it is not saved
  const std::vector<CheckpointPiece>& pieces_of(const CheckpointState& state) const {
    return state.pieces.empty() ? pieces : state.pieces;
  }
  // Elements [first, first + elems), row after row, are all that a file has of this tensor; `first`
  // begins a block of every state.
  void add_range(int file, int64_t first, int64_t elems);
  // These boxes, one after the other, are all that a file has of it; no state has blocks.
  void add_boxes(int file, const std::vector<Box>& boxes);
  // These are all that a file has of a state of ranks' own, F32, which is cut by itself.
  void add_own(const std::string& state, int file, const std::vector<Box>& boxes);
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
inline constexpr const char* kParameters = "parameters";  // the state that every tensor has

// Of all of a manifest but its own field "xxh3": a digit that changes on disk must not change where
// a run goes on. Taken of the document without white space, which is the same however the file is
// laid out.
std::string manifest_checksum(Json manifest);

}  // namespace onefold
