// A mesh: ranks by axes. Neighbours along the tensor axis have neighbouring numbers, because they
// exchange the most and the most often; then come the context, expert and data axes, and outermost
// that of the pipeline, whose ranks exchange the least.
#pragma once

#include <array>
#include <vector>

#include "comm/communicator.h"

namespace onefold {

enum class Axis : uint8_t { tensor, context, expert, data, pipeline };  // innermost first
inline constexpr int kAxes = 5;
const char* axis_name(Axis axis);
// Those along which something travels between the phases of a unit.
inline constexpr Axis kExchangeAxes[] = {Axis::tensor, Axis::context, Axis::expert};

// So many ranks along each axis; the rest is the data axis.
struct MeshAxes {
  int tensor = 1, context = 1, expert = 1, pipeline = 1;
};

class Mesh {
 public:
  explicit Mesh(int ranks = 1, const MeshAxes& axes = {});  // whose product must divide the ranks

  int ranks() const { return stride(Axis::pipeline) * size(Axis::pipeline); }
  int size(Axis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  // A rank's place along an axis.
  int place(Axis axis, int rank) const { return rank / stride(axis) % size(axis); }
  // Those that differ from a rank along these axes alone.
  RankGroup group(const std::vector<Axis>& axes, int rank) const;
  RankGroup group(Axis axis, int rank) const { return group(std::vector{axis}, rank); }
  // Those of its tensor group that hold the same key and value heads, if each is held by `count`.
  RankGroup replicas(int rank, int count) const;
  // Ranks of one stage of the pipeline: those from place * this on.
  int stage_ranks() const { return stride(Axis::pipeline); }

  bool operator==(const Mesh&) const = default;

 private:
  // How far apart neighbours along an axis are.
  int stride(Axis axis) const {
    int stride = 1;
    for (size_t i = 0; i < static_cast<size_t>(axis); ++i) stride *= sizes_[i];
    return stride;
  }

  std::array<int, kAxes> sizes_;  // by Axis
};

}  // namespace onefold
