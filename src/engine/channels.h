// The lanes of a rank beside computation, and the channels of a rank: one for each lane that has
// messages, along the axis of the mesh that they travel on. What a transport needs for them comes
// from the ledger.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "device/device.h"
#include "engine/lines.h"
#include "program/program.h"
#include "tensor/ledger.h"

namespace onefold {

class Channels {
 public:
  // Without `own_lanes`, everything travels in the order of computation.
  Channels(const Lines& lines, Device& device, Ledger& ledger, bool own_lanes);

  // Gathers and reductions travel along the axes data, context and expert, exchanges along the
  // tensor axis, and the small sums of computation among all ranks.
  Channel& of(Lane lane) const { return *channels_[static_cast<size_t>(lane)]; }
  // Gathers and reductions of a unit: of divided experts, among those that have the same ones.
  Channel& of(Lane lane, const UnitTraits& unit) const {
    return unit.ranks > 0 ? *same_experts_[static_cast<size_t>(lane)] : of(lane);
  }
  // What has been sent there of a lane, beside of(lane); null where no experts are divided.
  Channel* same_experts(Lane lane) const { return same_experts_[static_cast<size_t>(lane)].get(); }
  bool has(Lane lane) const { return channels_[static_cast<size_t>(lane)] != nullptr; }
  // Of the tensor axis like of(Lane::exchange), for what travels on the lane of that name while
  // units compute; null without such a lane.
  Channel* overlapped() const { return overlapped_.get(); }
  // Of those that hold the same key and value heads; null where none does.
  Channel* replicas() const { return replicas_.get(); }
  // Of those that divide the experts of each mixture, null where none does: for gradients, and for
  // rows, which have a channel of their own on the lane exchange.
  Channel* experts() const { return experts_.get(); }
  Channel* dispatch(Lane lane) const {
    return lane == Lane::exchange ? dispatch_.get() : experts_.get();
  }
  // Of those that have the other parts of the same sequences, null where there are none: likewise.
  Channel* context(Lane lane) const {
    return lane == Lane::exchange ? context_beside_.get() : context_.get();
  }
  // Of these, where they pass something around: what the one at place `from` passes to the next, on
  // channels of their own, as hop() is; of the lane exchange, if there is one for it.
  Channel& turn(int from) const {
    return *turns_[static_cast<size_t>(from + 1 == context_->ranks() ? 2 : from % 2)];
  }
  // What this rank has sent between the phases of units, along the axis tensor, context or expert.
  TrafficTable exchanged(Axis axis) const;
  // Of the lane gather, among the ranks of a node that keep what was gathered of a unit, and of
  // divided experts; else null.
  Channel& node(const UnitTraits& unit) const { return unit.ranks > 0 ? *expert_node_ : *node_; }
  Channel* node() const { return node_.get(); }
  Channel* expert_node() const { return expert_node_.get(); }
  // Of the lane reduce, where gradients are compressed between hosts alone: of the ranks of this
  // host, and of those of the same place on every host; else null.
  Channel* inside() const { return inside_.get(); }
  Channel* between() const { return between_.get(); }
  // Of a pipeline: what its ranks pass on from the one at place `from` to the next (or back), each
  // on channels of its own, so that a rank may send and receive at the same time; and a channel of
  // all of them, in the order of computation. Null without a pipeline.
  Channel& hop(bool backward, int from) const { return *hops_[hop_number(backward, from)]; }
  Channel* stages() const { return stages_.get(); }
  // What this rank has passed on.
  TrafficTable passed() const;
  // For the host's numbers, where lanes carry those of a device. All ranks' threads of control use
  // it, and no lane.
  Channel& control() const { return control_ ? *control_ : of(Lane::compute); }
  // The same among ranks along one axis: of shares, holders of experts, stages, and parts of
  // sequences; null where there are none.
  Channel* host_shares() const {
    if (host_shares_) return host_shares_.get();
    return channels_[static_cast<size_t>(Lane::exchange)].get();
  }
  Channel* host_experts() const { return host_experts_ ? host_experts_.get() : experts_.get(); }
  Channel* host_stages() const { return host_stages_ ? host_stages_.get() : stages_.get(); }
  Channel* host_context() const { return host_context_ ? host_context_.get() : context_.get(); }
  // What a lane's channels exchange, in its order; null where host code reaches it.
  RankMemory* memory(Lane lane) const { return memory_[static_cast<size_t>(lane)].get(); }
  // Null: on the compute lane.
  LaneQueue* own_lane(Lane lane) const { return lanes_[static_cast<size_t>(lane)].get(); }

 private:
  // A channel of a lane; what a transport needs for it is kept in `scratch`.
  std::unique_ptr<Channel> open(Communicator& communicator, Device& device, Ledger& ledger,
                                Lane lane, Buffer& scratch);
  // One that sums nothing needs no memory of its own.
  std::unique_ptr<Channel> open_unsummed(Communicator& communicator, Device& device, Lane lane,
                                         const char* name, void* scratch = nullptr);
  void open_pipeline(const Lines& lines, Device& device);
  void open_turns(const Lines& lines, Device& device, Lane lane);
  void open_beside(const Lines& lines, Device& device, Ledger& ledger);
  void open_for_host(const Lines& lines);
  size_t hop_number(bool backward, int from) const {
    const int last = backward ? 0 : stages_->ranks() - 1;  // from there it goes round
    return static_cast<size_t>((backward ? 3 : 0) + (from == last ? 2 : from % 2));
  }

  // What channels use comes before them: it outlives them, for a transport may look at it until a
  // channel is closed.
  std::array<Buffer, kLanes> scratch_, same_experts_scratch_;
  Buffer replicas_scratch_, experts_scratch_, inside_scratch_, between_scratch_, node_scratch_,
      expert_node_scratch_, overlapped_scratch_;
  std::array<std::unique_ptr<RankMemory>, kLanes> memory_;
  std::unique_ptr<RankMemory> overlapped_memory_;
  std::array<std::unique_ptr<Channel>, kLanes> channels_, same_experts_;
  std::unique_ptr<Channel> control_, replicas_, experts_, context_, stages_;
  std::unique_ptr<Channel> host_shares_, host_experts_, host_stages_, host_context_;
  std::array<std::unique_ptr<Channel>, 6> hops_;
  std::unique_ptr<Channel> inside_, between_, node_, expert_node_;
  std::unique_ptr<Channel> overlapped_, dispatch_, context_beside_;
  std::array<std::unique_ptr<Channel>, 3> turns_;
  std::array<std::unique_ptr<LaneQueue>, kLanes> lanes_;  // last: their jobs use the rest
};

// values = their sum over the ranks of a channel, in rank order; of any number of elements.
void sum_over_ranks(Channel& channel, std::string_view what, std::span<float> values);

void add_traffic(const Channel& channel, TrafficTable& table);
void add_traffic(const TrafficTable& more, TrafficTable& table);

// Scratch of each lane's channel on this device, for plans.
int64_t lane_scratch_bytes(const std::string& device, bool over_mpi, int ranks);

}  // namespace onefold
