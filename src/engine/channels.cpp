#include "engine/channels.h"

#include <utility>

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
  const int64_t bytes = device.memory_is_the_hosts() ? communicator.scratch_bytes()
                                                     : communicator.device_scratch_bytes();
  if (bytes > 0) scratch = ledger.allocate(Kind::communication, bytes, "messages");
  return open_unsummed(communicator, device, lane, lane_name(lane), scratch.data());
}

std::unique_ptr<Channel> Channels::open_unsummed(Communicator& communicator, Device& device,
                                                 Lane lane, const char* name, void* scratch) {
  if (device.memory_is_the_hosts() || device.dry()) return communicator.open(name, scratch);
  // Nothing moves, and a channel of the host's memory would try to.
  if (communicator.ranks() == 1) return make_dry_communicator(1)->open(name, scratch);
  const auto i = static_cast<size_t>(lane);
  if (!memory_[i]) memory_[i] = device.rank_memory(lanes_[i] ? *lanes_[i] : device.compute());
  return communicator.open_on(*memory_[i], name, scratch);
}

void Channels::open_pipeline(const Lines& lines, Device& device) {
  for (const Lane lane : {Lane::send, Lane::recv})
    lanes_[static_cast<size_t>(lane)] = device.open_message_lane();
  Communicator& stages = *lines.pipeline;
  stages_ = open_unsummed(stages, device, Lane::compute, "pipeline");
  for (size_t i = 0; i < hops_.size(); ++i) {
    const bool backward = i >= 3, sends = hop_number(backward, stages.rank()) == i;
    hops_[i] = open_unsummed(stages, device, sends ? Lane::send : Lane::recv,
                             backward ? "backward" : "forward");
  }
}

void Channels::open_turns(const Lines& lines, Device& device, Lane lane) {
  if (lines.context && lines.method == ContextMethod::ring)
    for (auto& turn : turns_) turn = open_unsummed(*lines.context, device, lane, "ring");
}

// After all that exchange in the order of computation: those use its lane, and a memory that
// changes places with this one's meanwhile, for they need it too where a channel cannot be opened.
// Rows that are dispatched are not summed.
void Channels::open_beside(const Lines& lines, Device& device, Ledger& ledger) {
  constexpr auto i = static_cast<size_t>(Lane::exchange);
  std::swap(memory_[i], overlapped_memory_);
  lanes_[i] = device.open_lane();
  if (lines.overlapped)
    overlapped_ = open(*lines.tensor, device, ledger, Lane::exchange, overlapped_scratch_);
  if (lines.beside && lines.experts)
    dispatch_ = open_unsummed(*lines.experts, device, Lane::exchange, "dispatch");
  if (lines.beside) open_turns(lines, device, Lane::exchange);
  if (lines.beside && lines.context && lines.method == ContextMethod::ulysses)
    context_beside_ = open_unsummed(*lines.context, device, Lane::exchange, "context beside");
  std::swap(memory_[i], overlapped_memory_);
}

void Channels::open_for_host(const Lines& lines) {
  control_ = lines.all->open("control", nullptr);
  const auto opened = [](const std::shared_ptr<Communicator>& line) {
    return line ? line->open("values of the host", nullptr) : nullptr;
  };
  host_shares_ = opened(lines.tensor);
  host_experts_ = opened(lines.experts);
  host_stages_ = opened(lines.pipeline);
  host_context_ = opened(lines.context);
}

Channels::Channels(const Lines& lines, Device& device, Ledger& ledger, bool own_lanes) {
  for (const Lane lane : kMessageLanes) {
    const auto i = static_cast<size_t>(lane);
    if (line_of(lines, lane) == nullptr) continue;
    const bool for_units = lane == Lane::gather || lane == Lane::reduce;
    if (own_lanes && for_units) lanes_[i] = device.open_lane();
    channels_[i] = open(*line_of(lines, lane), device, ledger, lane, scratch_[i]);
    if (lines.same_experts && for_units)
      same_experts_[i] = open(*lines.same_experts, device, ledger, lane, same_experts_scratch_[i]);
  }
  if (!device.memory_is_the_hosts()) open_for_host(lines);
  if (lines.pipeline) open_pipeline(lines, device);
  if (lines.context) context_ = open_unsummed(*lines.context, device, Lane::compute, "context");
  if (!lines.beside) open_turns(lines, device, Lane::compute);
  if (lines.inside) {
    inside_ = open(*lines.inside, device, ledger, Lane::reduce, inside_scratch_);
    between_ = open(*lines.between, device, ledger, Lane::reduce, between_scratch_);
  }
  if (lines.node) node_ = open(*lines.node, device, ledger, Lane::gather, node_scratch_);
  if (lines.expert_node)
    expert_node_ = open(*lines.expert_node, device, ledger, Lane::gather, expert_node_scratch_);
  if (lines.experts)
    experts_ = open(*lines.experts, device, ledger, Lane::exchange, experts_scratch_);
  if (lines.replicas)
    replicas_ = open(*lines.replicas, device, ledger, Lane::exchange, replicas_scratch_);
  if (lines.overlapped || lines.beside) open_beside(lines, device, ledger);
}

TrafficTable Channels::passed() const {
  TrafficTable table{};
  if (stages_) add_traffic(*stages_, table);
  if (host_stages_) add_traffic(*host_stages_, table);
  for (const auto& hop : hops_)
    if (hop) add_traffic(*hop, table);
  return table;
}

TrafficTable Channels::exchanged(Axis axis) const {
  std::vector<const Channel*> channels;
  if (axis == Axis::tensor)
    channels = {channels_[static_cast<size_t>(Lane::exchange)].get(), replicas_.get(),
                host_shares_.get(), overlapped_.get()};
  if (axis == Axis::expert) channels = {experts_.get(), host_experts_.get(), dispatch_.get()};
  if (axis == Axis::context)
    channels = {context_.get(),  turns_[0].get(),     turns_[1].get(),
                turns_[2].get(), host_context_.get(), context_beside_.get()};
  TrafficTable table{};
  for (const Channel* const channel : channels)
    if (channel != nullptr) add_traffic(*channel, table);
  return table;
}

void sum_over_ranks(Channel& channel, std::string_view what, std::span<float> values) {
  const auto ranks = static_cast<size_t>(channel.ranks());
  const size_t shard = values.size() / ranks, rest = values.size() % ranks;
  std::vector<float> tail(ranks);
  std::copy_n(values.end() - static_cast<ptrdiff_t>(rest), rest, tail.begin());
  std::vector<Message> messages;
  if (shard > 0)
    messages.push_back({values.data(), nullptr, static_cast<int64_t>(shard), DType::f32});
  if (rest > 0) messages.push_back({tail.data(), nullptr, 1, DType::f32});
  channel.all_reduce(what, messages);
  std::copy_n(tail.begin(), rest, values.end() - static_cast<ptrdiff_t>(rest));
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
