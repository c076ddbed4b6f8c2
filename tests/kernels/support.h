// What the kernel tests share: the devices that they run on, and all SIMD targets of the CPU's.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/cpu/targets.h"
// After targets.h, which configures it.
#include "hwy/highway.h"
#include "sanitized.h"

namespace onefold::test {

// Runs `check` once for each SIMD target that is compiled in and that this processor has.
inline void for_each_target(const std::function<void()>& check) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    check();
  }
  hwy::GetChosenTarget().DeInit();
}

// Host memory of which nothing lies behind a block, so that the address sanitizer sees one byte too
// many.
class ExactMemory final : public MemorySource {
 public:
  int64_t block_bytes(int64_t bytes) const override { return bytes; }
  void* take(int64_t bytes) override {
    void* block = nullptr;
    return ::posix_memalign(&block, Ledger::kAlignment, static_cast<size_t>(bytes)) == 0 ? block
                                                                                         : nullptr;
  }
  void give_back(void* block, int64_t) override { std::free(block); }
};

// A device with a ledger over its memory.
class TestDevice {
 public:
  TestDevice(const std::string& name, int threads)
      : device_(open_device(name, threads)),
        ledger_(name == "cpu" ? exact_ : *device_->memory(Tier::device)) {}

  Device& device() { return *device_; }
  Ledger& ledger() { return ledger_; }

 private:
  std::unique_ptr<Device> device_;
  ExactMemory exact_;
  Ledger ledger_;
};

// The device that is tested: ONEFOLD_TEST_DEVICE, or the CPU.
inline std::string test_device_name() {
  const char* name = std::getenv("ONEFOLD_TEST_DEVICE");
  return name ? name : "cpu";
}
inline bool test_device_is_cpu() { return test_device_name() == "cpu"; }

// On each number of threads that must not matter (under a sanitizer, which is not there for bits,
// on few); a device that computes elsewhere, twice.
inline std::vector<std::unique_ptr<TestDevice>>& test_devices() {
  static const std::vector<int> kThreads = kSanitized ? std::vector{1, 4} : std::vector{1, 2, 4, 7};
  static std::vector<std::unique_ptr<TestDevice>> devices = [] {
    std::vector<std::unique_ptr<TestDevice>> all;
    for (const int threads : test_device_is_cpu() ? kThreads : std::vector{1, 1})
      all.push_back(std::make_unique<TestDevice>(test_device_name(), threads));
    return all;
  }();
  return devices;
}

}  // namespace onefold::test
