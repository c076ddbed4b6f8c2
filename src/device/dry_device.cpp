#include <algorithm>
#include <iterator>
#include <map>

#include "device/cuda_scratch.h"
#include "device/device.h"
#include "device/dry_kernels.h"

namespace onefold {
namespace {

// What lanes share and only one transfer can have at a time. A transfer that comes later in the
// program may be earlier in time: it gets what the others have left free.
class SharedLink {
 public:
  // Takes so many seconds from `from` on, as soon as they are free: when they are over.
  double take(double from, double seconds) {
    double at = from;
    auto next = busy_.lower_bound(from);
    if (next != busy_.begin() && std::prev(next)->second > from) at = std::prev(next)->second;
    while (next != busy_.end() && next->first - at < seconds) {
      seconds -= std::max(0.0, next->first - at);
      at = std::max(at, next->second);
      next = busy_.erase(next);
    }
    // No gap is left from `from` on.
    at += seconds;
    double begin = from;
    if (next != busy_.begin() && std::prev(next)->second >= from) begin = std::prev(next)->first;
    busy_[begin] = at;
    return at;
  }

 private:
  std::map<double, double> busy_;  // ends, by their beginnings
};

class VirtualLane;

// What all lanes of a device have in common.
struct VirtualMachine {
  DryKernels& kernels;
  const Hardware& hardware;
  VirtualLane& compute;
  SharedLink disk = {};
  SharedLink host_memory = {};  // of a card's host: copies to and from the card, and its own steps
};

// Virtual time: a job takes as long as the work that it books, and begins when this lane is free
// and what it comes after is done.
class VirtualLane final : public LaneQueue {
 public:
  explicit VirtualLane(VirtualMachine& machine, bool of_the_host = false)
      : machine_(machine), of_the_host_(of_the_host) {}

  Ticket post(JobLabel label, Job job) override {
    const Work before = machine_.kernels.work();
    job();
    const double begin = ready_, seconds = link_seconds(label);
    if (seconds > 0 && label.over == Link::disk)
      ready_ = machine_.disk.take(ready_, seconds);
    else if (seconds > 0 && label.over == Link::host && machine_.hardware.device != "cpu")
      ready_ = std::max(
          ready_ + seconds,
          machine_.host_memory.take(ready_, memory_seconds(machine_.hardware.host_copy_share *
                                                           static_cast<double>(label.bytes))));
    else
      ready_ += seconds;
    ready_ += machine_.hardware.device == "cpu"
                  ? label.core_seconds
                  : label.card_bytes / (machine_.hardware.memory_gb_per_s * 1e9);
    const Work& after = machine_.kernels.work();
    if (of_the_host_)  // at the rate of its memory
      ready_ = machine_.host_memory.take(ready_, memory_seconds(after.bytes - before.bytes));
    else
      ready_ += after.seconds - before.seconds;
    // A processor copies by itself: what it moves for another lane it does not compute meanwhile.
    if (seconds > 0 && label.over != Link::disk && machine_.hardware.device == "cpu" &&
        this != &machine_.compute)
      machine_.compute.give_up((seconds + label.core_seconds) / machine_.hardware.cores, this);
    ends_.push_back(ready_);
    spans_.push_back({std::move(label), begin, ready_});
    return mark();
  }
  void after(const Ticket& ticket) override {
    if (!ticket.lane || ticket.lane == this) return;
    const double end = static_cast<const VirtualLane*>(ticket.lane)->end_of(ticket.number);
    if (end > ready_) spans_.push_back({{}, ready_, end, ticket.lane});
    ready_ = std::max(ready_, end);
  }
  void wait(int64_t) override {}
  Ticket mark() override { return {this, static_cast<int64_t>(ends_.size())}; }
  bool is_of_the_host() const override { return of_the_host_; }
  std::vector<LaneSpan> take_spans() override { return std::move(spans_); }
  double ready() const { return ready_; }

 private:
  double end_of(int64_t number) const {
    return number == 0 ? 0 : ends_[static_cast<size_t>(number - 1)];
  }
  void give_up(double seconds, const LaneQueue* to) {
    spans_.push_back({{}, ready_, ready_ + seconds, to});
    ready_ += seconds;
  }
  double memory_seconds(double bytes) const {
    return bytes / (machine_.hardware.host_memory_gb_per_s * 1e9);
  }
  double link_seconds(const JobLabel& label) const {
    if (label.bytes == 0) return 0;
    const Hardware& hardware = machine_.hardware;
    const auto bytes = static_cast<double>(label.bytes);
    switch (label.over) {
      case Link::host:
        return bytes / (hardware.host_gb_per_s * 1e9);
      case Link::disk: {
        const bool writes = label.out && hardware.disk_write_gb_per_s > 0;
        return bytes / ((writes ? hardware.disk_write_gb_per_s : hardware.disk_gb_per_s) * 1e9);
      }
      case Link::ranks:
        break;
    }
    const bool between = label.host_links > 0 && hardware.between_hosts_gb_per_s > 0;
    const double latency_us = between && hardware.between_hosts_latency_us > 0
                                  ? hardware.between_hosts_latency_us
                                  : hardware.link_latency_us;
    const double rate = between ? std::min(hardware.link_gb_per_s,
                                           label.host_links * hardware.between_hosts_gb_per_s)
                                : hardware.link_gb_per_s;
    return latency_us * 1e-6 + bytes / (rate * 1e9);
  }

  VirtualMachine& machine_;
  const bool of_the_host_;
  double ready_ = 0;
  std::vector<double> ends_;
  std::vector<LaneSpan> spans_;
};

// What the described device's kernels take.
std::shared_ptr<const KernelScratch> scratch_like(const Hardware& hardware, int threads) {
  if (hardware.device == "cuda") return make_cuda_scratch();
  return make_cpu_scratch(threads, hardware.multiplies_bf16);
}

class DryDevice final : public Device {
 public:
  DryDevice(const Hardware& hardware, int threads, std::shared_ptr<const KernelScratch> scratch)
      : hardware_(hardware),
        threads_(threads > 0 ? threads : hardware.cores),
        kernels_(scratch ? std::move(scratch) : scratch_like(hardware_, threads_), &hardware_),
        memory_(make_dry_memory(hardware_.device == "cuda" ? cuda::kMemoryBlockBytes : 0)),
        disk_(make_dry_memory(kDiskBlock)),
        machine_{kernels_, hardware_, compute_},
        compute_(machine_) {}

  const char* name() const override { return "dry"; }
  Kernels& kernels() override { return kernels_; }
  MemorySource* memory(Tier tier) override {
    return tier == Tier::disk ? disk_.get() : memory_.get();
  }
  LaneQueue& compute() override { return compute_; }
  std::unique_ptr<LaneQueue> open_lane() override {
    return std::make_unique<VirtualLane>(machine_);
  }
  std::unique_ptr<LaneQueue> open_host_lane() {
    return std::make_unique<VirtualLane>(machine_, /*of_the_host=*/true);
  }
  Ticket copy(LaneQueue& lane, JobLabel label, void*, const void*, int64_t) override {
    return lane.post(std::move(label), [] {});
  }
  void copy_now(void*, const void*, int64_t) override {}
  double now() const override { return compute_.ready(); }
  int threads() const override { return threads_; }
  bool dry() const override { return true; }
  bool memory_is_the_hosts() const override { return hardware_.device == "cpu"; }
  void write(Tensor, const Make&, Calls) override {}
  void read(Tensor, const Take&) override {}

 private:
  const Hardware hardware_;
  const int threads_;
  DryKernels kernels_;
  std::unique_ptr<MemorySource> memory_, disk_;
  VirtualMachine machine_;
  VirtualLane compute_;
};

}  // namespace

std::unique_ptr<LaneQueue> open_dry_host_lane(Device& dry) {
  return static_cast<DryDevice&>(dry).open_host_lane();
}

std::unique_ptr<Device> open_dry_device(const Hardware& hardware, int threads,
                                        std::shared_ptr<const KernelScratch> scratch) {
  return std::make_unique<DryDevice>(hardware, threads, std::move(scratch));
}

}  // namespace onefold
