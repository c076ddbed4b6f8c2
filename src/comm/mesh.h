// A mesh: ranks by axes. Neighbours along the tensor axis have neighbouring numbers, because they
// exchange the most and the most often; ranks along the data axis are so far apart.
#pragma once

#include "comm/communicator.h"

namespace onefold {

enum class Axis : uint8_t { data, tensor };
const char* axis_name(Axis axis);

class Mesh {
 public:
  // So many ranks along the tensor axis, which must divide them; the rest is the data axis.
  explicit Mesh(int ranks = 1, int tensor = 1);

  int ranks() const { return data_ * tensor_; }
  int size(Axis axis) const { return axis == Axis::tensor ? tensor_ : data_; }
  // A rank's place along an axis.
  int place(Axis axis, int rank) const {
    return axis == Axis::tensor ? rank % tensor_ : rank / tensor_;
  }
  // Those that differ from a rank along this axis alone.
  RankGroup group(Axis axis, int rank) const;
  // Those of its tensor group that hold the same key and value heads, if each is held by `count`.
  RankGroup replicas(int rank, int count) const;

  bool operator==(const Mesh&) const = default;

 private:
  int data_ = 1, tensor_ = 1;
};

}  // namespace onefold
