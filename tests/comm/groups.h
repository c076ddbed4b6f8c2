// The groups of a mesh of 2 x N: every collective in each of them at once, on any transport.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include "comm/collectives.h"
#include "comm/mesh.h"

namespace onefold::test {

struct OpenedIn {
  std::unique_ptr<Communicator> group;
  std::vector<float> scratch;
  std::unique_ptr<Channel> channel;

  OpenedIn(Communicator& all, const RankGroup& members, const char* name)
      : group(all.group(members)),
        scratch(static_cast<size_t>(group->scratch_bytes() / 4) + 16, -7.0f),
        channel(group->open(name, aligned())) {}

 private:
  void* aligned() {
    void* at = scratch.data();
    size_t space = scratch.size() * 4;
    return std::align(64, space - 64, at, space);
  }
};

// Both axes, on lanes of their own, and calls of all ranks between them.
inline void check_groups(Communicator& all, const Mesh& mesh) {
  OpenedIn data(all, mesh.group(Axis::data, all.rank()), "reduce");
  OpenedIn tensor(all, mesh.group(Axis::tensor, all.rank()), "exchange");
  EXPECT_EQ(data.channel->rank(), mesh.place(Axis::data, all.rank()));
  EXPECT_EQ(data.channel->ranks(), mesh.size(Axis::data));
  EXPECT_EQ(tensor.channel->rank(), mesh.place(Axis::tensor, all.rank()));
  EXPECT_EQ(tensor.channel->ranks(), mesh.size(Axis::tensor));
  std::thread lane([&] { check_collectives(*data.channel); });
  check_collectives(*tensor.channel);
  lane.join();
}

}  // namespace onefold::test
