#include "comm/mesh.h"

#include <algorithm>

#include "base/text.h"

namespace onefold {

const char* axis_name(Axis axis) {
  constexpr const char* kNames[kAxes] = {"tensor", "context", "expert", "data", "pipeline"};
  return kNames[static_cast<size_t>(axis)];
}

Mesh::Mesh(int ranks, const MeshAxes& axes)
    : sizes_{axes.tensor, axes.context, axes.expert, 1, axes.pipeline} {
  int others = 1;
  std::vector<std::string> named;  // those above 1
  for (const Axis axis : {Axis::tensor, Axis::context, Axis::expert, Axis::pipeline}) {
    others *= size(axis);
    if (size(axis) > 1) named.push_back(fmt::format("mesh.{} {}", axis_name(axis), size(axis)));
  }
  if (ranks % others != 0)
    user_error("{} is {}, and the {} rank{} cannot be divided by it",
               named.size() == 1 ? named[0].substr(0, named[0].find(' ')) : join(named, " x "),
               others, ranks, ranks == 1 ? "" : "s");
  sizes_[static_cast<size_t>(Axis::data)] = ranks / others;
}

RankGroup Mesh::group(const std::vector<Axis>& axes, int rank) const {
  RankGroup group;
  for (const Axis axis : axes) {
    if (!group.name.empty()) group.name += " x ";
    group.name += axis_name(axis);
    rank -= place(axis, rank) * stride(axis);
  }
  group.members = {rank};
  for (const Axis axis : axes) {
    const std::vector<int> first = group.members;
    for (int i = 1; i < size(axis); ++i)
      for (const int member : first) group.members.push_back(member + i * stride(axis));
  }
  std::sort(group.members.begin(), group.members.end());
  return group;
}

RankGroup Mesh::replicas(int rank, int count) const {
  RankGroup group{.name = "replica", .members = {}};
  for (int i = 0; i < count; ++i) group.members.push_back(rank / count * count + i);
  return group;
}

}  // namespace onefold
