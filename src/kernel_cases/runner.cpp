#include "kernel_cases/runner.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"

namespace onefold::cases {
namespace {

// Behind each tensor, for what a kernel writes beyond the end. The address sanitizer sees more, and
// only if nothing is there.
#if defined(ONEFOLD_ASAN)
constexpr int64_t kGuardBytes = 0;
#else
constexpr int64_t kGuardBytes = 64;
#endif

class DeviceCall final : public Call {
 public:
  DeviceCall(Device& device, Ledger& ledger, const Case& test)
      : device_(device), ledger_(ledger), case_(test) {
    for (const Case::Member& member : test.tensors)
      blocks_.push_back(take(static_cast<int64_t>(member.values.bytes().size())));
  }

  Kernels& kernels() override { return device_.kernels(); }
  Tensor operator[](int tensor) const override {
    return case_[tensor].over(blocks_[static_cast<size_t>(tensor)].data());
  }
  Tensor scratch(int64_t bytes) override {
    if (bytes == 0) return {};
    if (next_scratch_ == scratch_.size()) scratch_.push_back({take(bytes), bytes});
    return matrix(scratch_[next_scratch_++].block.data(), 1, bytes, DType::u8);
  }

  void upload() {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const std::span<const std::byte> values = case_.tensors[i].values.bytes();
      if (!values.empty())
        onefold::upload<std::byte>(device_, values, bytes_of(blocks_[i], values.size()));
    }
  }

  void prepare() {
    if (case_.prepare) post(case_.prepare);
    prepared_ = scratch_.size();
  }
  void run() { post(case_.run); }

  CaseResult download() const {
    CaseResult result;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const Case::Member& member = case_.tensors[i];
      HostTensor& values = result.tensors.emplace_back(member.values);
      if (!values.bytes().empty())
        onefold::download<std::byte>(device_, bytes_of(blocks_[i], values.bytes().size()),
                                     values.bytes());
      if (!values.gaps_untouched())
        result.failures.push_back(member.name + ": a gap between rows was written");
      if (!guard_untouched(blocks_[i], values.bytes().size()))
        result.failures.push_back(member.name + ": memory behind it was written");
      if (!member.written && !std::ranges::equal(values.bytes(), member.values.bytes()))
        result.failures.push_back(member.name + ": an input was changed");
    }
    for (const Scratch& one : scratch_)
      if (!guard_untouched(one.block, static_cast<size_t>(one.bytes)))
        result.failures.emplace_back("memory behind the scratch was written");
    return result;
  }

 private:
  struct Scratch {
    Buffer block;
    int64_t bytes;
  };

  // On the device's lane, and waited for.
  void post(const std::function<void(Call&)>& call) {
    next_scratch_ = prepared_;  // of the run before, if there was one
    const Ticket done = device_.compute().post({}, [&] { call(*this); });
    device_.compute().wait(done.number);
  }
  // Holding no number, the guard included.
  Buffer take(int64_t bytes) {
    Buffer block = ledger_.allocate(Kind::workspace, bytes + kGuardBytes, "a kernel's case");
    if (block.bytes() > 0)
      device_.write(matrix(block.data(), 1, block.bytes(), DType::u8),
                    [](int64_t, std::span<std::byte> piece) {
                      std::fill(piece.begin(), piece.end(), kNothing);
                    });
    return block;
  }
  static Tensor bytes_of(const Buffer& block, size_t bytes) {
    return matrix(block.data(), 1, static_cast<int64_t>(bytes), DType::u8);
  }
  // All of the block from `begin` on.
  bool guard_untouched(const Buffer& block, size_t begin) const {
    std::vector<std::byte> guard(static_cast<size_t>(block.bytes()) - begin);
    if (guard.empty()) return true;
    const Tensor behind =
        bytes_of(block, static_cast<size_t>(block.bytes()))
            .col_range(static_cast<int64_t>(begin), static_cast<int64_t>(guard.size()));
    onefold::download<std::byte>(device_, behind, guard);
    return std::ranges::all_of(guard, [](std::byte b) { return b == kNothing; });
  }

  Device& device_;
  Ledger& ledger_;
  const Case& case_;
  std::vector<Buffer> blocks_;
  std::vector<Scratch> scratch_;
  size_t next_scratch_ = 0, prepared_ = 0;
};

bool as_expected(double actual, double expected, double bound) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  return std::abs(actual - expected) <= bound;
}

std::string first_difference(const Case& test, const CaseResult& result, const Expected& expected) {
  const HostTensor& tensor = result.tensors[static_cast<size_t>(expected.tensor)];
  const std::string& name = test.tensors[static_cast<size_t>(expected.tensor)].name;
  const Doubles actual = tensor.doubles();
  if (!expected.not_finite &&
      (expected.values.size() != actual.size() || expected.bounds.size() != actual.size()))
    return fmt::format("{}: {} values and {} bounds are expected of {} elements", name,
                       expected.values.size(), expected.bounds.size(), actual.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / tensor.cols(),
               col = static_cast<int64_t>(i) % tensor.cols();
    if (expected.not_finite) {
      if (std::isfinite(actual[i]))
        return fmt::format("{}: {} at row {} column {} is finite", name, actual[i], row, col);
    } else if (!as_expected(actual[i], expected.values[i], expected.bounds[i])) {
      return fmt::format(
          "{}: {} instead of {} at row {} column {}, {:.3g} apart where {:.3g} is allowed", name,
          actual[i], expected.values[i], row, col, std::abs(actual[i] - expected.values[i]),
          expected.bounds[i]);
    }
  }
  return "";
}

}  // namespace

CaseResult run_case(Device& device, Ledger& ledger, const Case& test) {
  DeviceCall call(device, ledger, test);
  call.upload();
  call.prepare();
  call.run();
  return device.dry() ? CaseResult{} : call.download();
}

std::vector<std::string> differences(const Case& test, const CaseResult& result,
                                     const std::vector<Expected>& expected) {
  std::vector<std::string> all;
  for (const Expected& one : expected)
    if (std::string difference = first_difference(test, result, one); !difference.empty())
      all.push_back(std::move(difference));
  return all;
}

std::vector<std::string> bit_differences(const Case& test, const CaseResult& a,
                                         const CaseResult& b) {
  std::vector<Twin::Part> parts;
  for (const Case::Member& member : test.tensors)
    if (member.written) parts.push_back({member.name});
  return bit_differences(test, a, test, b, parts);
}

std::vector<std::string> bit_differences(const Case& test, const CaseResult& result,
                                         const Case& twin, const CaseResult& twin_result,
                                         const std::vector<Twin::Part>& parts) {
  std::vector<std::string> all;
  for (const Twin::Part& part : parts) {
    const int mine = test.find(part.tensor), other = twin.find(part.tensor);
    require(mine >= 0 && other >= 0, "a case or its twin has no tensor {}", part.tensor);
    const HostTensor& a = result.tensors[static_cast<size_t>(mine)];
    const HostTensor& b = twin_result.tensors[static_cast<size_t>(other)];
    require(a.rows() == b.rows() && a.cols() == b.cols(), "{} has another size in the twin",
            part.tensor);
    const int64_t row_end = part.row_end < 0 ? a.rows() : part.row_end,
                  col_end = part.col_end < 0 ? a.cols() : part.col_end;
    int64_t count = 0;
    std::string first;
    for (int64_t row = part.row_begin; row < row_end; ++row)
      for (int64_t col = part.col_begin; col < col_end; ++col)
        if (!std::ranges::equal(a.bits(row, col), b.bits(row, col)) && count++ == 0)
          first = fmt::format("{} and {} at row {} column {}", a.number(row, col),
                              b.number(row, col), row, col);
    if (count > 0)
      all.push_back(
          fmt::format("{}: {} elements have other bits, the first {}", part.tensor, count, first));
  }
  return all;
}

Work work_of(const Case& test) {
  const std::unique_ptr<Device> device = open_dry_device({}, 1);
  Ledger ledger(*device->memory(Tier::device));
  DeviceCall call(*device, ledger, test);
  call.run();
  return static_cast<const DryKernels&>(device->kernels()).work();
}

std::vector<double> time_case(Device& device, Ledger& ledger, const Case& test, int repeats) {
  DeviceCall call(device, ledger, test);
  call.upload();
  call.prepare();
  call.run();
  const auto seconds_of = [&](int calls) {
    const double begin = now_seconds();
    for (int i = 0; i < calls; ++i) call.run();
    return (now_seconds() - begin) / calls;
  };
  const int calls = static_cast<int>(std::clamp(1e-3 / seconds_of(1), 1.0, 1000.0));
  std::vector<double> seconds;
  for (int repeat = 0; repeat < repeats; ++repeat) seconds.push_back(seconds_of(calls));
  return seconds;
}

}  // namespace onefold::cases
