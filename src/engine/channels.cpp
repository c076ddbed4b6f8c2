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

Channels::Channels(const Lines& lines, Device& device, Ledger& ledger, bool own_lanes) {
  const bool on_host = device.memory_is_the_hosts();
  for (const Lane lane : kMessageLanes) {
    const auto i = static_cast<size_t>(lane);
    if (line_of(lines, lane) == nullptr) continue;
    Communicator& communicator = *line_of(lines, lane);
    if (own_lanes && (lane == Lane::gather || lane == Lane::reduce)) lanes_[i] = device.open_lane();
    if (communicator.ranks() > 1)
      memory_[i] = device.rank_memory(lanes_[i] ? *lanes_[i] : device.compute());
    const int64_t bytes =
        on_host ? communicator.scratch_bytes() : communicator.device_scratch_bytes();
    if (bytes > 0) scratch_[i] = ledger.allocate(Kind::communication, bytes, "messages");
    channels_[i] = memory_[i]
                       ? communicator.open_on(*memory_[i], lane_name(lane), scratch_[i].data())
                       : communicator.open(lane_name(lane), scratch_[i].data());
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
  const auto open_beside = [&](Communicator& communicator, Buffer& scratch) {
    if (const int64_t bytes = communicator.scratch_bytes(); bytes > 0)
      scratch = ledger.allocate(Kind::communication, bytes, "messages");
    RankMemory* const memory = memory_[static_cast<size_t>(Lane::reduce)].get();
    return memory ? communicator.open_on(*memory, lane_name(Lane::reduce), scratch.data())
                  : communicator.open(lane_name(Lane::reduce), scratch.data());
  };
  if (lines.inside) {
    inside_ = open_beside(*lines.inside, inside_scratch_);
    between_ = open_beside(*lines.between, between_scratch_);
  }
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

void add_traffic(const Channel& channel, TrafficTable& table) {
  for (size_t c = 0; c < table.size(); ++c) {
    const Traffic& traffic = channel.traffic()[c];
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
