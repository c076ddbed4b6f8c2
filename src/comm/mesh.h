// A mesh: ranks by axes. Neighbours along the tensor axis have neighbouring numbers, because they
// exchange the most and the most often; then the data axis, and outermost that of the pipeline,
// whose ranks exchange the least.
#pragma once

#include "comm/communicator.h"

namespace onefold {

enum class Axis : uint8_t { data, tensor, pipeline };
const char* axis_name(Axis axis);

class Mesh {
 public:
  // So many ranks along the tensor and the pipeline axis, which must divide them; the rest is the
  // data axis.
  explicit Mesh(int ranks = 1, int tensor = 1, int pipeline = 1);

  int ranks() const { return data_ * tensor_ * pipeline_; }
  int size(Axis axis) const {
    return axis == Axis::tensor ? tensor_ : axis == Axis::data ? data_ : pipeline_;
  }
  // A rank's place along an axis.
  int place(Axis axis, int rank) const { return rank / stride(axis) % size(axis); }
  // Those that differ from a rank along this axis alone.
  RankGroup group(Axis axis, int rank) const;
  // Those of its tensor group that hold the same key and value heads, if each is held by `count`.
  RankGroup replicas(int rank, int count) const;
  // Ranks of one stage of the pipeline: those from place * this on.
  int stage_ranks() const { return data_ * tensor_; }

  bool operator==(const Mesh&) const = default;

 private:
  // How far apart neighbours along an axis are.
  int stride(Axis axis) const {
    return axis == Axis::tensor ? 1 : axis == Axis::data ? tensor_ : data_ * tensor_;
  }

  int data_ = 1, tensor_ = 1, pipeline_ = 1;
};

}  // namespace onefold
