#include "engine/channels.h"

#include "comm/mpi.h"
#include "comm/nccl.h"
#include "device/device_name.h"

namespace onefold {

namespace {

Communicator* line_of(const Lines& lines, Lane lane) {
  if (lane == Lane::exchange) return lines.tensor.get();
  return lane == Lane::compute ? lines.all.get() : lines.data.get();
}

}  // namespace

std::unique_ptr<Channel> Channels::open(Communicator& communicator, Device& device, Ledger& ledger,
                                        Lane lane, Buffer& scratch) {
  const auto i = static_cast<size_t>(lane);
  if (communicator.ranks() > 1 && !memory_[i])
    memory_[i] = device.rank_memory(lanes_[i] ? *lanes_[i] : device.compute());
  const int64_t bytes = device.memory_is_the_hosts() ? communicator.scratch_bytes()
                                                     : communicator.device_scratch_bytes();
  if (bytes > 0) scratch = ledger.allocate(Kind::communication, bytes, "messages");
  return memory_[i] ? communicator.open_on(*memory_[i], lane_name(lane), scratch.data())
                    : communicator.open(lane_name(lane), scratch.data());
}

Channels::Channels(const Lines& lines, Device& device, Ledger& ledger, bool own_lanes) {
  const bool on_host = device.memory_is_the_hosts();
  for (const Lane lane : kMessageLanes) {
    const auto i = static_cast<size_t>(lane);
    if (line_of(lines, lane) == nullptr) continue;
    const bool for_units = lane == Lane::gather || lane == Lane::reduce;
    if (own_lanes && for_units) lanes_[i] = device.open_lane();
    channels_[i] = open(*line_of(lines, lane), device, ledger, lane, scratch_[i]);
    if (lines.same_experts && for_units)
      same_experts_[i] = open(*lines.same_experts, device, ledger, lane, same_experts_scratch_[i]);
  }
  // Numbers are gathered and not summed: no scratch.
  if (!on_host) control_ = lines.all->open("control", nullptr);
  if (lines.pipeline) {
    stages_ = lines.pipeline->open("pipeline", nullptr);
    for (size_t i = 0; i < hops_.size(); ++i)
      hops_[i] = lines.pipeline->open(i < 3 ? "forward" : "backward", nullptr);
    for (const Lane lane : {Lane::send, Lane::recv})
      lanes_[static_cast<size_t>(lane)] = device.open_lane();
  }
  // What is exchanged is not summed: no scratch.
  if (lines.context) context_ = lines.context->open("context", nullptr);
  if (lines.context && lines.method == ContextMethod::ring)
    for (auto& turn : turns_) turn = lines.context->open("ring", nullptr);
  if (lines.inside) {
    inside_ = open(*lines.inside, device, ledger, Lane::reduce, inside_scratch_);
    between_ = open(*lines.between, device, ledger, Lane::reduce, between_scratch_);
  }
  if (lines.node) node_ = open(*lines.node, device, ledger, Lane::gather, node_scratch_);
  if (lines.experts)
    experts_ = open(*lines.experts, device, ledger, Lane::exchange, experts_scratch_);
  if (!lines.replicas) return;
  if (const int64_t bytes = lines.replicas->scratch_bytes(); bytes > 0)
    replicas_scratch_ = ledger.allocate(Kind::communication, bytes, "messages");
  replicas_ = lines.replicas->open(lane_name(Lane::exchange), replicas_scratch_.data());
}

TrafficTable Channels::passed() const {
  TrafficTable table{};
  if (stages_) add_traffic(*stages_, table);
  for (const auto& hop : hops_)
    if (hop) add_traffic(*hop, table);
  return table;
}

TrafficTable Channels::exchanged(Axis axis) const {
  std::vector<const Channel*> channels;
  if (axis == Axis::tensor)
    channels = {channels_[static_cast<size_t>(Lane::exchange)].get(), replicas_.get()};
  if (axis == Axis::expert) channels = {experts_.get()};
  if (axis == Axis::context)
    channels = {context_.get(), turns_[0].get(), turns_[1].get(), turns_[2].get()};
  TrafficTable table{};
  for (const Channel* const channel : channels)
    if (channel != nullptr) add_traffic(*channel, table);
  return table;
}

void add_traffic(const Channel& channel, TrafficTable& table) {
  add_traffic(channel.traffic(), table);
}

void add_traffic(const TrafficTable& more, TrafficTable& table) {
  for (size_t c = 0; c < table.size(); ++c) {
    const Traffic& traffic = more[c];
    table[c].calls += traffic.calls;
    table[c].bytes_sent += traffic.bytes_sent;
    table[c].seconds += traffic.seconds;
  }
}

int64_t lane_scratch_bytes(const std::string& device, bool over_mpi, int ranks) {
  const DeviceName named = parse_device(device);
  if (named.kind == "cuda") return named.card ? 0 : nccl_scratch_bytes(ranks);
  return over_mpi ? mpi_scratch_bytes(ranks) : 0;
}

}  // namespace onefold
