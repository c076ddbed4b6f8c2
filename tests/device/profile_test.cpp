// Kernels are timed and counted while a profile is on, and nothing else changes.
#include "device/profile.h"

#include <gtest/gtest.h>

namespace onefold {
namespace {

class Profile : public testing::Test {
 protected:
  Tensor filled(float value) {
    blocks_.push_back(ledger_.allocate(Kind::workspace, kElems * 4, "test"));
    const Tensor tensor = blocks_.back().as(1, kElems);
    device_->kernels().fill(tensor, value);
    return tensor;
  }
  void add(Tensor x, Tensor dst) {
    device_->compute().post({.tag = 7}, [&] { device_->kernels().add(x, dst, dst); });
  }

  static constexpr int64_t kElems = 1000;
  const std::shared_ptr<KernelProfile> profile_ = std::make_shared<KernelProfile>();
  const std::unique_ptr<Device> device_ = profiled(open_device("cpu", 1), profile_);
  Ledger ledger_{*device_->memory(Tier::device)};
  std::vector<Buffer> blocks_;
};

TEST_F(Profile, HasARowForEachKernelAndShapeThatWasCalledWhileItWasOn) {
  const Tensor x = filled(1), sum = filled(0);
  add(x, sum);
  EXPECT_TRUE(profile_->rows().empty());
  profile_->turn(true);
  add(x, sum);
  add(x, sum);
  add(x.col_range(0, 10), sum.col_range(0, 10));
  device_->kernels().copy(x, sum);
  profile_->turn(false);
  add(x, sum);
  // Spans of jobs are the caller's, those of kernels are not.
  const std::vector<LaneSpan> spans = device_->compute().take_spans();
  ASSERT_EQ(spans.size(), 5u);
  for (const LaneSpan& span : spans) EXPECT_EQ(span.label.tag, 7);
  ASSERT_EQ(profile_->rows().size(), 2u);
  const KernelProfile::Row& whole = profile_->rows()[0];
  EXPECT_EQ(whole.calls, 3);  // of one shape: two sums and a copy
  EXPECT_EQ(whole.work.bytes, 4 * kElems * (3 + 3 + 2));
  EXPECT_GT(whole.seconds, 0);
  EXPECT_EQ(profile_->rows()[1].calls, 1);
  EXPECT_EQ(profile_->rows()[1].work.bytes, 4 * 10 * 3);
  const std::vector<KernelProfile::Row> families = profile_->families();
  ASSERT_EQ(families.size(), 1u);
  EXPECT_EQ(families[0].calls, 4);
  EXPECT_EQ(families[0].seconds, whole.seconds + profile_->rows()[1].seconds);
}

TEST_F(Profile, ComputesWhatTheDeviceWithinComputes) {
  profile_->turn(true);
  const Tensor x = filled(2), sum = filled(3);
  add(x, sum);
  float last = 0;
  download(*device_, sum.col_range(kElems - 1, 1), std::span(&last, 1));
  EXPECT_EQ(last, 5);
  EXPECT_TRUE(device_->memory_is_the_hosts());
  EXPECT_STREQ(device_->name(), "cpu");
}

}  // namespace
}  // namespace onefold
