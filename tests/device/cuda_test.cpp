// The device cuda, where there is one; elsewhere, what is said about that.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "device/device.h"
#include "error_text.h"

namespace onefold {
namespace {

TEST(CudaIsMissing, AndTheErrorSaysWhatAndWhatToDo) {
  const std::string problem = error_text([] { open_device("cuda", 1); });
  if (problem.empty()) GTEST_SKIP() << "there is a card";
  EXPECT_TRUE(contains(problem, "libonefold_cuda.so") || contains(problem, "driver") ||
              contains(problem, "card"))
      << problem;
  EXPECT_TRUE(contains(problem, "use the device cpu")) << problem;
}

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    const std::string problem = error_text([&] { device_ = open_device("cuda", 2); });
    if (!device_) GTEST_SKIP() << problem;
    ledger_ = std::make_unique<Ledger>(*device_->memory(Tier::device));
  }
  // So many floats of this value.
  Tensor filled(int64_t elems, float value) {
    blocks_.push_back(ledger_->allocate(Kind::workspace, elems * 4, "test"));
    const Tensor tensor = blocks_.back().as(1, elems);
    device_->kernels().fill(tensor, value);
    return tensor;
  }
  float first_of(Tensor tensor) {
    float value = 0;
    download(*device_, tensor.col_range(0, 1), std::span(&value, 1));
    return value;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Ledger> ledger_;
  std::vector<Buffer> blocks_;
};

TEST_F(CudaDevice, HostValuesComeBackAsTheyWereWritten) {
  // More than both buffers on the way hold, and not a multiple of one.
  constexpr int64_t kElems = 3'000'001;
  const Buffer memory = ledger_->allocate(Kind::workspace, kElems * 8, "test");
  std::vector<double> values(kElems), back(values.size());
  std::iota(values.begin(), values.end(), 0.5);
  const Tensor tensor = memory.as(1, kElems, DType::f64);
  upload(*device_, std::span<const double>(values), tensor);
  download(*device_, tensor, std::span(back));
  EXPECT_EQ(values, back);
  device_->write(
      tensor,
      [](int64_t first, std::span<std::byte> piece) {
        auto* to = reinterpret_cast<double*>(piece.data());
        for (size_t i = 0; i < piece.size() / 8; ++i)
          to[i] = static_cast<double>(first) + static_cast<double>(i);
      },
      Device::Calls::shared_out);
  download(*device_, tensor, std::span(back));
  std::iota(values.begin(), values.end(), 0.0);
  EXPECT_EQ(values, back);
}

TEST_F(CudaDevice, WritesComeAfterKernelsThatReadAndBeforeThoseThatFollow) {
  constexpr int64_t kElems = 1 << 24;
  const Tensor x = filled(kElems, 1), sum = filled(kElems, 0);
  for (int i = 0; i < 20; ++i) device_->kernels().add(sum, x, sum);
  const float hundred = 100;
  upload(*device_, std::span(&hundred, 1), x.col_range(kElems - 1, 1));
  device_->kernels().add(sum, x, sum);
  float last = 0;
  download(*device_, sum.col_range(kElems - 1, 1), std::span(&last, 1));
  EXPECT_EQ(last, 120);
  EXPECT_EQ(first_of(sum), 21);
}

// Through pinned memory of the host tier, on another thread, while the card computes.
TEST_F(CudaDevice, TensorsAreReadBesideComputation) {
  constexpr int64_t kElems = 1'000'003;
  Ledger ledger(Ledger::Tiers{Ledger::TierSetup{device_->memory(Tier::device)},
                              Ledger::TierSetup{device_->memory(Tier::host)}, Ledger::TierSetup{}});
  const Buffer memory = ledger.allocate(Kind::optimizer, kElems * 4, "test");
  const Buffer staging =
      ledger.allocate(Kind::communication, 100'000, "checkpoint staging", Tier::host);
  EXPECT_EQ(ledger.held_bytes(Tier::host), 100'352);
  std::vector<float> values(kElems), back(values.size());
  std::iota(values.begin(), values.end(), 0.5f);
  const Tensor tensor = memory.as(1, kElems);
  upload(*device_, std::span<const float>(values), tensor);
  device_->compute().wait(device_->compute().mark().number);
  const Tensor busy = filled(1 << 26, 1);
  for (int i = 0; i < 100; ++i) device_->kernels().add(busy, busy, busy);
  const Ticket computed = device_->compute().mark();
  const double begin = device_->now();
  double read = 0, done = 0;
  std::thread reader([&] {
    device_->read_beside(
        tensor,
        [&](int64_t first, std::span<const std::byte> piece) {
          std::memcpy(back.data() + first, piece.data(), piece.size());
        },
        {static_cast<std::byte*>(staging.data()), static_cast<size_t>(staging.bytes())});
    read = device_->now();
  });
  device_->compute().wait(computed.number);
  done = device_->now();
  reader.join();
  EXPECT_EQ(values, back);
  EXPECT_LT(read - begin, done - begin);  // it did not wait for what was computed meanwhile
}

TEST_F(CudaDevice, BlocksHaveWhole512Bytes) {
  EXPECT_EQ(ledger_->allocate(Kind::workspace, 513, "test").bytes(), 1024);
  EXPECT_EQ(ledger_->held_bytes(), 0);
}

// A step that repeats takes nothing from the driver: blocks of one size become blocks of others.
TEST_F(CudaDevice, BlocksAreCutFromWhatWasGivenBackAndJoinAgain) {
  constexpr int64_t kPart = 1 << 20;
  const auto take = [&](int64_t parts) {
    return ledger_->allocate(Kind::workspace, parts * kPart, "test");
  };
  Buffer whole = take(4);
  const auto* begin = static_cast<const char*>(whole.data());
  whole = {};
  Buffer first = take(1), second = take(2), third = take(1);
  EXPECT_EQ(first.data(), begin);
  EXPECT_EQ(second.data(), begin + kPart);
  EXPECT_EQ(third.data(), begin + 3 * kPart);
  for (Buffer* block : {&first, &third, &second}) *block = {};
  EXPECT_EQ(take(4).data(), begin);
  // What is larger than anything free replaces it: the process takes no more than it needs at once.
  const Buffer larger = take(8);
  EXPECT_NE(larger.data(), nullptr);
}

// What lies scattered moves together; what is in use stays where it is.
TEST_F(CudaDevice, FreeMemoryInPiecesServesALargerBlock) {
  constexpr int64_t kElems = 20 << 20;
  for (int round = 0; round < 2; ++round) {
    blocks_.clear();
    std::vector<Tensor> tensors;
    for (int i = 0; i < 8; ++i) tensors.push_back(filled(kElems, static_cast<float>(i)));
    for (size_t i = 0; i < 8; i += 2) blocks_[i] = {};
    const Tensor larger = filled(3 * kElems, 100);
    for (size_t i = 1; i < 8; i += 2) EXPECT_EQ(first_of(tensors[i]), static_cast<float>(i));
    EXPECT_EQ(first_of(larger.col_range(3 * kElems - 1, 1)), 100);
  }
}

TEST_F(CudaDevice, MemoryThatTheCardDoesNotHaveIsRefusedAndTheDeviceStaysUsable) {
  EXPECT_ERROR(ledger_->allocate(Kind::workspace, int64_t{1} << 50, "test"), "refused");
  EXPECT_EQ(first_of(filled(10, 3)), 3);
}

TEST_F(CudaDevice, JobsHaveSpansInTheirOrder) {
  constexpr int64_t kElems = 1 << 26;
  const Tensor x = filled(kElems, 1);
  const double before = device_->now();
  LaneQueue& lane = device_->compute();
  Ticket last;
  for (int job = 0; job < 3; ++job)
    last = lane.post({.tag = job, .bytes = 5, .name = "add"},
                     [&] { device_->kernels().add(x, x, x); });
  lane.wait(last.number);
  const double after = device_->now();
  const std::vector<LaneSpan> spans = lane.take_spans();
  ASSERT_EQ(spans.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(spans[i].label.tag, static_cast<int>(i));
    EXPECT_EQ(spans[i].label.name, "add");
    EXPECT_EQ(spans[i].awaited, nullptr);
    EXPECT_LT(spans[i].begin, spans[i].end);
    EXPECT_LE(i == 0 ? 0 : spans[i - 1].end, spans[i].begin);
  }
  EXPECT_EQ(spans[1].end, spans[2].begin);  // posted long before the card came to it
  // The card's clock and the host's were set to each other once: a millisecond apart is far.
  EXPECT_GT(spans[0].begin, before - 1e-3);
  EXPECT_LT(spans[2].end, after + 1e-3);
  EXPECT_TRUE(lane.take_spans().empty());
  EXPECT_EQ(first_of(x), 8);
}

TEST_F(CudaDevice, ALaneStandsStillForAnotherAndSaysSo) {
  constexpr int64_t kElems = 1 << 26;
  const Tensor x = filled(kElems, 1);
  const std::unique_ptr<LaneQueue> lane = device_->open_lane();
  Ticket adds;
  for (int i = 0; i < 10; ++i)
    adds = device_->compute().post({}, [&] { device_->kernels().add(x, x, x); });
  lane->after(adds);
  const Ticket done = lane->post({.tag = 1}, [] {});
  lane->wait(done.number);
  const std::vector<LaneSpan> computed = device_->compute().take_spans();
  const std::vector<LaneSpan> spans = lane->take_spans();
  ASSERT_EQ(computed.size(), 10u);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].awaited, &device_->compute());
  EXPECT_EQ(spans[1].awaited, nullptr);
  EXPECT_GT(spans[1].begin, computed[9].end - 1e-3);
  EXPECT_GT(spans[0].end - spans[0].begin, 0);
}

// The card waits before each: the first two are as they were given, the third is kept as a graph.
TEST_F(CudaDevice, AJobThatRepeatsIsLaunchedAgainInThePlaceOfBeingRun) {
  const Tensor x = filled(1000, 1), y = filled(1000, 1);
  LaneQueue& lane = device_->compute();
  int runs = 0;
  const auto doubled = [&](const std::string& key, Tensor tensor) {
    lane.wait(lane.mark().number);
    lane.repeat(
        {.name = key}, [&] { return key; },
        [&] {
          ++runs;
          device_->kernels().add(tensor, tensor, tensor);
        });
  };
  for (int i = 0; i < 10; ++i) doubled("x", x);
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(first_of(x), 1024);
  doubled("y", y);
  EXPECT_EQ(runs, 4);
  EXPECT_EQ(first_of(y), 2);
  lane.wait(lane.mark().number);
  int named = 0;
  for (const LaneSpan& span : lane.take_spans()) {
    if (span.label.name.empty()) continue;
    EXPECT_LT(span.begin, span.end);
    ++named;
  }
  EXPECT_EQ(named, 11);
}

// Host code waits for the card in it, which no graph can hold.
TEST_F(CudaDevice, AJobThatCannotBeKeptIsRunEachTime) {
  const Tensor x = filled(1000, 1);
  LaneQueue& lane = device_->compute();
  int runs = 0;
  for (int i = 0; i < 8; ++i) {
    lane.wait(lane.mark().number);
    lane.repeat(
        {}, [] { return std::string("x"); },
        [&] {
          device_->kernels().add(x, x, x);
          first_of(x);
          ++runs;
        });
  }
  EXPECT_EQ(runs, 8);
  EXPECT_EQ(first_of(x), 256);
}

TEST_F(CudaDevice, AfterAHostsLaneAndWithoutOne) {
  ThreadLane host;
  int done = 0;
  const Ticket ticket = host.post({}, [&] { done = 1; });
  device_->compute().after(ticket);
  EXPECT_EQ(done, 1);
  device_->compute().after({});
  device_->compute().after(device_->compute().mark());
  // Tickets that were done long ago stay valid.
  const Ticket first = device_->compute().mark();
  Ticket mark;
  for (int i = 0; i < 2000; ++i) mark = device_->compute().mark();
  device_->compute().wait(mark.number);
  device_->compute().wait(first.number);
  const std::unique_ptr<LaneQueue> lane = device_->open_lane();
  lane->after(first);
  lane->wait(lane->mark().number);
}

// Which algorithm a large product gets depends on timing, and the bits of its result do not.
TEST_F(CudaDevice, LargeProductsHaveTheSameBitsOnEveryDevice) {
  constexpr int64_t kSize = 1024;
  const auto product_on = [&](Device& device) {
    Ledger ledger(*device.memory(Tier::device));
    const auto take = [&](DType dtype) {
      return ledger.allocate(Kind::workspace, kSize * kSize * dtype_bytes(dtype), "test");
    };
    const Buffer a = take(DType::bf16), b = take(DType::bf16), dst = take(DType::f32);
    const auto fill = [&](const Buffer& buffer, uint32_t seed) {
      const Tensor tensor = buffer.as(kSize, kSize, DType::bf16);
      device.write(tensor, [&](int64_t first, std::span<std::byte> piece) {
        auto* to = reinterpret_cast<uint16_t*>(piece.data());
        // Numbers of both signs near 1.
        for (size_t i = 0; i < piece.size() / 2; ++i) {
          const uint32_t mixed =
              (static_cast<uint32_t>(first) + static_cast<uint32_t>(i) + seed) * 2654435761u;
          to[i] = static_cast<uint16_t>((mixed >> 31 << 15) | 0x3F00u | (mixed >> 20 & 0xFFu));
        }
      });
      return tensor;
    };
    Gemm product{
        .a = fill(a, 1), .b = fill(b, 2), .dst = dst.as(kSize, kSize), .a_transposed = true};
    const Buffer scratch =
        ledger.allocate(Kind::workspace, device.kernels().gemm_scratch_bytes(product), "test");
    product.scratch = scratch.as(1, scratch.bytes(), DType::u8);
    device.kernels().gemm(product);
    std::vector<float> values(kSize * kSize);
    download(device, product.dst, std::span(values));
    return values;
  };
  const std::vector<float> first = product_on(*device_);
  EXPECT_NE(first[0], first[1]);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(product_on(*open_device("cuda", 1)), first);
}

// A plan is made without the plugin, by the same functions.
TEST_F(CudaDevice, TakesTheScratchThatIsPlanned) {
  const std::unique_ptr<Device> dry = open_dry_device(hardware_named("h200"), 0);
  const KernelScratch &planned = dry->kernels(), &taken = device_->kernels();
  EXPECT_EQ(planned.gemm_scratch_bytes({}), taken.gemm_scratch_bytes({}));
  for (const int64_t rows : {1, 37, 1024, 65536})
    for (const int64_t cols : {8, 768, 4096, 50257}) {
      EXPECT_EQ(planned.norm_backward_scratch_bytes(rows, cols, 1),
                taken.norm_backward_scratch_bytes(rows, cols, 1));
      EXPECT_EQ(planned.embedding_backward_scratch_bytes(rows, cols),
                taken.embedding_backward_scratch_bytes(rows, cols));
      EXPECT_EQ(planned.column_sum_scratch_bytes(rows, cols),
                taken.column_sum_scratch_bytes(rows, cols));
      EXPECT_EQ(planned.sum_squares_scratch_bytes(rows * cols),
                taken.sum_squares_scratch_bytes(rows * cols));
    }
  for (const int64_t batch : {1, 5, 64})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const AttentionShape shape{batch, 1024, 1024, 12, 4, 64, {}, dtype};
      EXPECT_EQ(planned.attention_forward_scratch_bytes(shape),
                taken.attention_forward_scratch_bytes(shape));
      EXPECT_EQ(planned.attention_backward_scratch_bytes(shape),
                taken.attention_backward_scratch_bytes(shape));
    }
}

TEST_F(CudaDevice, WhatAJobThrowsComesOutAtOnceAndTheLaneGoesOn) {
  LaneQueue& lane = device_->compute();
  EXPECT_THROW(lane.post({}, [] { throw std::runtime_error("broken"); }), std::runtime_error);
  bool begun = false;
  lane.wait(lane.post({}, [&] { begun = true; }).number);
  EXPECT_TRUE(begun);
  EXPECT_EQ(lane.take_spans().size(), 1u);
}

}  // namespace
}  // namespace onefold
