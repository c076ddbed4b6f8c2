#include "device/device.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/text.h"
#include "device/device_name.h"
#include "error_text.h"

namespace onefold {
namespace {

TEST(CpuDevice, HostValuesComeBackAsTheyWereWritten) {
  const std::unique_ptr<Device> device = open_device("cpu", 2);
  Ledger ledger(*device->memory(Tier::device));
  const Buffer memory = ledger.allocate(Kind::workspace, 3'000'000 * 8, "test");
  std::vector<double> values(3'000'000), back(values.size());
  std::iota(values.begin(), values.end(), 0.5);
  const Tensor tensor = memory.as(1, 3'000'000, DType::f64);
  upload(*device, std::span<const double>(values), tensor);
  download(*device, tensor, std::span(back));
  EXPECT_EQ(values, back);
  // In pieces, over many threads.
  device->write(
      tensor,
      [](int64_t first, std::span<std::byte> piece) {
        auto* to = reinterpret_cast<double*>(piece.data());
        for (size_t i = 0; i < piece.size() / 8; ++i)
          to[i] = static_cast<double>(first) + static_cast<double>(i);
      },
      Device::Calls::shared_out);
  download(*device, tensor, std::span(back));
  EXPECT_EQ(back[2'999'999], 2'999'999.0);
}

TEST(Devices, AnUnknownOneIsRefusedWithThoseThereAre) {
  EXPECT_ERROR(open_device("tpu", 1), "no device \"tpu\"", "cpu");
}

TEST(DeviceNames, ACardHasANumber) {
  EXPECT_EQ(parse_device("cpu").kind, "cpu");
  EXPECT_EQ(parse_device("cuda").kind, "cuda");
  EXPECT_FALSE(parse_device("cuda").card);
  EXPECT_EQ(parse_device("cuda:12").kind, "cuda");
  EXPECT_EQ(parse_device("cuda:12").card, 12);
  for (const char* wrong : {"", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:99999999999",
                            "cpu:0", "Cuda", "cuda:0,1"})
    EXPECT_ERROR(parse_device(wrong), "there is no device", "cuda:N");
}

TEST(DeviceNames, RanksThatShareADeviceKeepItsName) {
  EXPECT_EQ(device_of_rank("cpu", 3, 4), "cpu");
  EXPECT_EQ(device_of_rank("cuda:1", 3, 4), "cuda:1");
}

// Blocks of a card are larger than the host's: a plan books what its run does.
TEST(DryDevice, BooksTheBlocksOfACard) {
  const std::unique_ptr<Device> card = open_dry_device(hardware_named("h200"), 1),
                                host = open_dry_device({}, 1);
  EXPECT_EQ(card->memory(Tier::device)->block_bytes(1), 512);
  EXPECT_EQ(card->memory(Tier::device)->block_bytes(513), 1024);
  EXPECT_EQ(host->memory(Tier::device)->block_bytes(1), 64);
  EXPECT_FALSE(card->memory_is_the_hosts());
  EXPECT_TRUE(host->memory_is_the_hosts());
}

TEST(DryDevice, StartsNoThreadHoldsNothingAndHasTheDescribedCores) {
  Hardware hardware = hardware_named("server-192");
  const std::unique_ptr<Device> device = open_dry_device(hardware, 0);
  EXPECT_EQ(device->threads(), 192);
  EXPECT_EQ(device->pool(), nullptr);
  Ledger ledger(*device->memory(Tier::device));
  EXPECT_EQ(ledger.allocate(Kind::workspace, int64_t{1} << 50, "huge").data(), nullptr);
  const AttentionShape shape{1, 256, 256, 4, 4, 64};
  EXPECT_EQ(device->kernels().attention_forward_scratch_bytes(shape),
            192 * open_dry_device(hardware, 1)->kernels().attention_forward_scratch_bytes(shape));
}

TEST(DryDevice, StandsForACardWhereThereIsNone) {
  const Hardware hardware = hardware_named("h200");
  EXPECT_EQ(hardware.device, "cuda");
  const std::unique_ptr<Device> device = open_dry_device(hardware, 0);
  EXPECT_EQ(device->kernels().gemm_scratch_bytes({}), (int64_t{32} << 20) + 256);
  // Products of 16 bits take less time than those of 32.
  const auto seconds = [&](DType dtype) {
    const double before = device->now();
    const Tensor square{nullptr, dtype, 8192, 8192, 8192};
    device->compute().post({}, [&] { device->kernels().gemm({square, square, square}); });
    return device->now() - before;
  };
  EXPECT_NEAR(seconds(DType::f32) / seconds(DType::bf16), 16, 0.1);
}

TEST(Hardware, ADescriptionIsReadStrictly) {
  const Hardware h =
      hardware_from_json(parse_json(R"({"name": "big", "cores": 192, "instruction_set": "AVX3",
                     "device_memory": "1TiB", "product_gflops": 12000})",
                                    "big.json"),
                         "big.json");
  EXPECT_EQ(h.cores, 192);
  EXPECT_EQ(h.instruction_set, "AVX3");
  EXPECT_EQ(h.device_bytes, int64_t{1} << 40);
  const auto refused = [](const char* text) {
    return [text] { hardware_from_json(parse_json(text, "h.json"), "h.json"); };
  };
  EXPECT_ERROR(refused(R"({"core": 2})")(), "h.json", "core");
  EXPECT_ERROR(refused(R"({"device_memory": "1GiB", "context": "1GiB"})")(), "context", "less");
  EXPECT_ERROR(refused(R"({"cores": 0})")(), "cores", "from 1 to");
  EXPECT_ERROR(refused(R"({"product_gflops": -1})")(), "product_gflops", "above 0");
  EXPECT_ERROR(refused(R"({"product_share": 1.5})")(), "product_share", "at most 1");
  EXPECT_ERROR(refused(R"({"device": "abacus"})")(), "abacus");
  EXPECT_ERROR(hardware_named("serve-64"), "serve-64", "server-64");
}

TEST(Hardware, WhatIsWrittenReadsBackTheSame) {
  for (const std::string& name : hardware_presets()) {
    const Hardware preset = hardware_named(name);
    EXPECT_EQ(hardware_from_json(preset.to_json(), name).to_json(), preset.to_json());
  }
}

}  // namespace
}  // namespace onefold
