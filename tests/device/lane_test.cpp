#include "device/lane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "device/device.h"
#include "device/tiers.h"

namespace onefold {
namespace {

TEST(InlineLane, DoesEachJobAsItIsPosted) {
  InlineLane lane;
  int done = 0;
  lane.post({.tag = 7, .bytes = 3, .name = "first"}, [&] { done = 1; });
  EXPECT_EQ(done, 1);
  const std::vector<LaneSpan> spans = lane.take_spans();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].label.tag, 7);
  EXPECT_EQ(spans[0].label.name, "first");
  EXPECT_LE(spans[0].begin, spans[0].end);
  EXPECT_TRUE(lane.take_spans().empty());
}

TEST(ThreadLane, DoesJobsInOrderAndTheHostWaitsForOne) {
  ThreadLane lane;
  std::vector<int> order;
  std::vector<Ticket> tickets;
  for (int i = 0; i < 100; ++i)
    tickets.push_back(lane.post({}, [&order, i] { order.push_back(i); }));
  lane.wait(tickets[99].number);
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(ThreadLane, BeginsNothingBeforeWhatItComesAfter) {
  ThreadLane first, second;
  std::atomic<bool> go = false, done = false;
  const Ticket held = first.post({}, [&] {
    while (!go) std::this_thread::yield();
    done = true;
  });
  second.after(held);
  bool seen = false;
  const Ticket last = second.post({}, [&] { seen = done; });
  go = true;
  second.wait(last.number);
  EXPECT_TRUE(seen);
  // The stretch in which it stood still has a span that says for whom.
  const std::vector<LaneSpan> spans = second.take_spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].awaited, &first);
  EXPECT_EQ(spans[1].awaited, nullptr);
}

TEST(ThreadLane, WhatAJobThrowsComesOutOfTheWaitAndLaterJobsAreNotBegun) {
  ThreadLane lane;
  bool begun = false;
  lane.post({}, [] { throw std::runtime_error("broken"); });
  const Ticket later = lane.post({}, [&] { begun = true; });
  EXPECT_THROW(lane.wait(later.number), std::runtime_error);
  EXPECT_FALSE(begun);
}

TEST(ThreadLane, ComputationThatComesAfterAFailedJobFailsToo) {
  ThreadLane lane;
  InlineLane compute;
  const Ticket failed = lane.post({}, [] { throw std::runtime_error("broken"); });
  EXPECT_THROW(compute.after(failed), std::runtime_error);
}

TEST(Lanes, ATicketThatWasNeverIssuedIsDone) {
  InlineLane compute;
  ThreadLane lane;
  compute.after({});
  lane.after({});
  const Ticket posted = lane.post({}, [] {});
  lane.wait(posted.number);
}

// ---- Virtual time

Hardware described() {
  Hardware hardware{.device = "cuda"};  // which computes while bytes travel
  hardware.product_gflops = 1;          // a second for 1e9 operations
  hardware.memory_gb_per_s = 1e6;
  hardware.product_share = 1;
  hardware.kernel_latency_us = 0;
  hardware.host_gb_per_s = 2;
  hardware.disk_gb_per_s = 0.5;
  hardware.link_gb_per_s = 1;  // a second for 1e9 bytes
  hardware.link_latency_us = 1e-9;
  return hardware;
}

// A product of 2e9 operations: two seconds there.
void multiply(Device& device) {
  device.kernels().gemm({.a = matrix(nullptr, 1000, 1000),
                         .b = matrix(nullptr, 1000, 1000),
                         .dst = matrix(nullptr, 1000, 1000)});
}

TEST(VirtualLane, AJobTakesAsLongAsItsWorkAndWaitsForWhatItComesAfter) {
  const std::unique_ptr<Device> device = open_dry_device(described(), 1);
  const std::unique_ptr<LaneQueue> link = device->open_lane();
  device->compute().post({}, [&] { multiply(*device); });
  EXPECT_NEAR(device->now(), 2, 1e-6);
  // Three seconds on the link, after what computation has been given.
  link->after(device->compute().mark());
  const Ticket sent = link->post({.bytes = 3'000'000'000}, [] {});
  device->compute().post({}, [&] { multiply(*device); });
  EXPECT_NEAR(device->now(), 4, 1e-6);  // beside the message
  device->compute().after(sent);
  EXPECT_NEAR(device->now(), 5, 1e-6);  // the rest of it is waited for
  double waited = 0;
  for (const LaneSpan& span : device->compute().take_spans())
    if (span.awaited == link.get()) waited += span.end - span.begin;
  EXPECT_NEAR(waited, 1, 1e-6);
}

// Between hosts, over the links of all that send at the same time, but no faster than inside.
TEST(VirtualLane, MessagesBetweenHostsTakeTheirLinksTime) {
  Hardware hardware = described();
  const auto seconds = [&](int host_links) {
    const std::unique_ptr<Device> device = open_dry_device(hardware, 1);
    device->compute().post({.bytes = 1'000'000'000, .host_links = host_links}, [] {});
    return device->now();
  };
  EXPECT_NEAR(seconds(2), 1, 1e-6) << "all links are alike";
  hardware.host_ranks = 8;
  hardware.between_hosts_gb_per_s = 0.25;
  hardware.between_hosts_latency_us = 1e6;
  EXPECT_NEAR(seconds(0), 1, 1e-6);
  EXPECT_NEAR(seconds(1), 1 + 4, 1e-6);
  EXPECT_NEAR(seconds(2), 1 + 2, 1e-6);
  EXPECT_NEAR(seconds(8), 1 + 1, 1e-6);
}

TEST(VirtualLane, EachKernelTakesTheLongerOfItsTwoLimits) {
  Hardware hardware = described();
  hardware.memory_gb_per_s = 0.001;  // 8 MB for a kernel: 8 seconds
  const std::unique_ptr<Device> slow_memory = open_dry_device(hardware, 1);
  slow_memory->compute().post({}, [&] {
    const Tensor x = matrix(nullptr, 1000, 1000);
    slow_memory->kernels().scale(x, 2, x);
  });
  EXPECT_NEAR(slow_memory->now(), 8, 1e-6);
  hardware.product_share = 0.5;
  hardware.memory_gb_per_s = 1e6;
  hardware.kernel_latency_us = 1e6;
  const std::unique_ptr<Device> slow_start = open_dry_device(hardware, 1);
  slow_start->compute().post({}, [&] { multiply(*slow_start); });
  EXPECT_NEAR(slow_start->now(), 4 + 1, 1e-6);
}

// 2e9 operations of 16 bits and 6 MB, 2 of them packed: these, the others and the product may take
// their time beside the arithmetic.
TEST(VirtualLane, ProductsOf16BitsHaveASpeedAShareAndOperandsOfTheirOwn) {
  const auto seconds = [](const Hardware& hardware) {
    const std::unique_ptr<Device> device = open_dry_device(hardware, 1);
    const Tensor x = matrix(nullptr, 1000, 1000, DType::bf16);
    device->compute().post({}, [&] { device->kernels().gemm({.a = x, .b = x, .dst = x}); });
    return device->now();
  };
  Hardware hardware = described();
  hardware.half_product_gflops = 4;
  EXPECT_NEAR(seconds(hardware), 0.5, 1e-6);
  hardware.half_product_share = 0.25;
  EXPECT_NEAR(seconds(hardware), 2, 1e-6);
  hardware.half_operand_gb_per_s = 0.002;
  hardware.memory_gb_per_s = 0.008;
  EXPECT_NEAR(seconds(hardware), 2 + 1 + 0.5, 1e-6);
  hardware.half_product_latency_us = 250'000;
  EXPECT_NEAR(seconds(hardware), 2 + 1 + 0.5 + 0.25, 1e-6);
}

TEST(VirtualLane, CopiesTakeTheirTiersTime) {
  const std::unique_ptr<Device> device = open_dry_device(described(), 1);
  const Tiers tiers(*device, "unused");
  const std::unique_ptr<LaneQueue> lane = device->open_lane();
  const auto seconds = [&](Tier tier) {
    tiers.copy(*lane, {}, {.tier = tier, .bytes = 1'000'000'000}, Tiers::Way::in);
    const std::vector<LaneSpan> spans = lane->take_spans();
    return spans.back().end - spans.back().begin;
  };
  EXPECT_NEAR(seconds(Tier::host), 0.5, 1e-6);
  EXPECT_NEAR(seconds(Tier::disk), 2, 1e-6);
}

TEST(VirtualLane, TwoLanesShareADisk) {
  Hardware hardware = described();
  hardware.disk_write_gb_per_s = 0.25;
  const std::unique_ptr<Device> device = open_dry_device(hardware, 1);
  const Tiers tiers(*device, "unused");
  const std::unique_ptr<LaneQueue> in = device->open_lane(), out = device->open_lane();
  const auto end = [&](LaneQueue& lane, Tiers::Way way) {
    tiers.copy(lane, {}, {.tier = Tier::disk, .bytes = 1'000'000'000}, way);
    return lane.take_spans().back().end;
  };
  EXPECT_NEAR(end(*in, Tiers::Way::in), 2, 1e-6);
  EXPECT_NEAR(end(*out, Tiers::Way::out), 6, 1e-6);  // when the disk has read
}

TEST(VirtualLane, AnEarlierTransferIsNotBehindALaterOneThatWasPostedFirst) {
  const std::unique_ptr<Device> device = open_dry_device(described(), 1);
  const Tiers tiers(*device, "unused");
  const std::unique_ptr<LaneQueue> late = device->open_lane(), early = device->open_lane();
  const auto end = [&](LaneQueue& lane, int64_t bytes) {
    tiers.copy(lane, {}, {.tier = Tier::disk, .bytes = bytes}, Tiers::Way::in);
    return lane.take_spans().back().end;
  };
  device->compute().post({}, [&] { multiply(*device); });
  late->after(device->compute().mark());
  EXPECT_NEAR(end(*late, 1'000'000'000), 4, 1e-6);   // from 2 to 4
  EXPECT_NEAR(end(*early, 500'000'000), 1, 1e-6);    // before that
  EXPECT_NEAR(end(*early, 1'000'000'000), 5, 1e-6);  // half before it and half after it
  EXPECT_NEAR(end(*late, 500'000'000), 6, 1e-6);
}

TEST(VirtualLane, TheHostStepsAtTheRateOfItsMemory) {
  Hardware hardware = described();
  hardware.host_memory_gb_per_s = 0.004;
  const std::unique_ptr<Device> device = open_dry_device(hardware, 1);
  const std::unique_ptr<LaneQueue> host = open_dry_host_lane(*device);
  EXPECT_TRUE(host->is_of_the_host());
  host->post({}, [&] {
    const Tensor x = matrix(nullptr, 1000, 1000);
    device->kernels().scale(x, 2, x);  // 8 MB
  });
  EXPECT_NEAR(host->take_spans().back().end, 2, 1e-6);
  EXPECT_NEAR(device->now(), 0, 1e-6);
}

// 8 MB at 4 MB/s, and of a copy of 8 MB beside it the share that cores miss.
TEST(VirtualLane, ACardsCopiesTakeAShareOfTheHostsMemory) {
  Hardware hardware = described();
  hardware.device = "cuda";
  hardware.host_memory_gb_per_s = 0.004;
  for (const double share : {1.0, 0.25, 0.0}) {
    hardware.host_copy_share = share;
    const std::unique_ptr<Device> device = open_dry_device(hardware, 1);
    const Tiers tiers(*device, "unused");
    const std::unique_ptr<LaneQueue> lane = device->open_lane(), host = open_dry_host_lane(*device);
    tiers.copy(*lane, {}, {.tier = Tier::host, .bytes = 8'000'000}, Tiers::Way::in);
    host->post({}, [&] {
      const Tensor x = matrix(nullptr, 1000, 1000);
      device->kernels().scale(x, 2, x);
    });
    EXPECT_NEAR(host->take_spans().back().end, 2 + 2 * share, 1e-6);
  }
}

TEST(VirtualLane, AProcessorThatCopiesDoesNotCompute) {
  Hardware hardware = described();
  hardware.cores = 4;
  for (const char* kind : {"cpu", "cuda"}) {
    hardware.device = kind;
    const std::unique_ptr<Device> device = open_dry_device(hardware, 0);
    const Tiers tiers(*device, "unused");
    const std::unique_ptr<LaneQueue> lane = device->open_lane();
    tiers.copy(*lane, {}, {.tier = Tier::host, .bytes = 1'000'000'000}, Tiers::Way::in);
    device->compute().post({}, [&] { multiply(*device); });
    EXPECT_NEAR(device->now(), hardware.device == "cpu" ? 2 + 0.5 / 4 : 2, 1e-6);
  }
}

TEST(VirtualLane, SmallKernelsRunAtTheCachesRateAndFunctionsAtTheirs) {
  Hardware hardware = described();
  hardware.memory_gb_per_s = 0.001;
  hardware.cache_gb_per_s = 0.002;
  hardware.cache_bytes = 8'000'000;
  const auto seconds = [&](int64_t rows, bool function) {
    const std::unique_ptr<Device> device = open_dry_device(hardware, 1);
    device->compute().post({}, [&] {
      const Tensor x = matrix(nullptr, rows, 1000);
      if (function)
        device->kernels().activation_forward(Activation::silu, false, x, x);
      else
        device->kernels().scale(x, 2, x);
    });
    return device->now();
  };
  EXPECT_NEAR(seconds(1000, false), 4, 1e-6);
  EXPECT_NEAR(seconds(1001, false), 8.008, 1e-6);
  EXPECT_NEAR(seconds(1000, true), 4, 1e-6);
  hardware.function_gelems_per_s = 1e-4;
  EXPECT_NEAR(seconds(1000, true), 10, 1e-6);
}

}  // namespace
}  // namespace onefold
