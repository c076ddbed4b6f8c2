#include "comm/mesh.h"

namespace onefold {

const char* axis_name(Axis axis) {
  return axis == Axis::data ? "data" : axis == Axis::tensor ? "tensor" : "pipeline";
}

Mesh::Mesh(int ranks, int tensor, int pipeline)
    : data_(ranks / (tensor * pipeline)), tensor_(tensor), pipeline_(pipeline) {
  const auto refuse = [&](const std::string& axes) {
    user_error("{}, and the {} rank{} cannot be divided by it", axes, ranks, ranks == 1 ? "" : "s");
  };
  if (ranks % (tensor * pipeline) == 0) return;
  if (pipeline == 1) refuse(fmt::format("mesh.tensor is {}", tensor));
  if (tensor == 1) refuse(fmt::format("mesh.pipeline is {}", pipeline));
  refuse(
      fmt::format("mesh.tensor {} x mesh.pipeline {} is {}", tensor, pipeline, tensor * pipeline));
}

RankGroup Mesh::group(Axis axis, int rank) const {
  RankGroup group{.name = axis_name(axis), .members = {}};
  const int first = rank - place(axis, rank) * stride(axis);
  for (int i = 0; i < size(axis); ++i) group.members.push_back(first + i * stride(axis));
  return group;
}

RankGroup Mesh::replicas(int rank, int count) const {
  RankGroup group{.name = "replica", .members = {}};
  for (int i = 0; i < count; ++i) group.members.push_back(rank / count * count + i);
  return group;
}

}  // namespace onefold
