#include "comm/mesh.h"

namespace onefold {

const char* axis_name(Axis axis) { return axis == Axis::data ? "data" : "tensor"; }

Mesh::Mesh(int ranks, int tensor) : data_(ranks / tensor), tensor_(tensor) {
  if (tensor < 1 || ranks % tensor != 0)
    user_error("mesh.tensor is {}, and the {} rank{} cannot be divided by it", tensor, ranks,
               ranks == 1 ? "" : "s");
}

RankGroup Mesh::group(Axis axis, int rank) const {
  RankGroup group{.name = axis_name(axis), .members = {}};
  const int first = axis == Axis::tensor ? rank / tensor_ * tensor_ : rank % tensor_;
  for (int i = 0; i < size(axis); ++i)
    group.members.push_back(first + i * (axis == Axis::tensor ? 1 : tensor_));
  return group;
}

RankGroup Mesh::replicas(int rank, int count) const {
  RankGroup group{.name = "replica", .members = {}};
  for (int i = 0; i < count; ++i) group.members.push_back(rank / count * count + i);
  return group;
}

}  // namespace onefold
