// Every device runs the one list of cases (src/kernel_cases). ONEFOLD_TEST_DEVICE names the device;
// ONEFOLD_TEST_CASE runs only the cases in whose names it is found, a regular expression, and
// ONEFOLD_TEST_ELEMS those whose tensors have at most so many elements together: under a tool that
// watches every access to memory, all of them would take hours. A device other than the CPU may
// lack a type so far: the cases that it refuses with a TypeError are counted as skipped.
#include <algorithm>
#include <limits>
#include <regex>
#include <set>

#include "kernel_cases/runner.h"
#include "kernels/support.h"

namespace onefold::test {
namespace {

using cases::Case;
using cases::CaseEntry;
using cases::CaseList;
using cases::CaseResult;

void report(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

// Once for each SIMD target of the CPU; another device has one.
void on_each_target(const std::function<void()>& check) {
  test_device_is_cpu() ? for_each_target(check) : check();
}

bool has_half_tensor(const Case& test) {
  return std::ranges::any_of(test.tensors, [](const Case::Member& member) {
    return member.values.dtype() == DType::bf16 || member.values.dtype() == DType::f16;
  });
}

int64_t elems_of(const Case& test) {
  int64_t elems = 0;
  for (const Case::Member& member : test.tensors)
    elems += member.values.rows() * member.values.cols();
  return elems;
}

class KernelCases : public testing::TestWithParam<std::string> {
 protected:
  static void for_each_case(const std::function<void(const Case&)>& check) {
    const char* const pattern = std::getenv("ONEFOLD_TEST_CASE");
    const char* const limit = std::getenv("ONEFOLD_TEST_ELEMS");
    const std::regex only(pattern ? pattern : "");
    const int64_t most = limit ? std::stoll(limit) : std::numeric_limits<int64_t>::max();
    int skipped = 0;
    for (const CaseEntry& entry : cases::cases_of(GetParam())) {
      if (!std::regex_search(entry.name, only)) continue;
      SCOPED_TRACE(entry.family + ": " + entry.name);
      try {
        const Case test = entry.make();
        if (elems_of(test) > most) continue;
        try {
          check(test);
        } catch (const TypeError&) {
          if (test_device_is_cpu() || !has_half_tensor(test)) throw;
          ++skipped;
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
    if (skipped > 0)
      fmt::print("{}: skipped {} cases of types that the device lacks\n", GetParam(), skipped);
  }
};

INSTANTIATE_TEST_SUITE_P(Of, KernelCases, testing::ValuesIn(cases::case_families()),
                         [](const auto& info) { return info.param; });

TEST_P(KernelCases, AgreeWithTheOracleAndHaveTheSameBitsOnAnyThreads) {
  for_each_case([](const Case& test) {
    const bool by_library = !test_device_is_cpu() && test.expected_of_library;
    const std::vector<cases::Expected> expected =
        by_library ? test.expected_of_library(test) : test.expected(test);
    on_each_target([&] {
      CaseResult first;
      for (const auto& on : test_devices()) {
        SCOPED_TRACE(fmt::format("{} threads", on->device().threads()));
        CaseResult result = run_case(on->device(), on->ledger(), test);
        report(result.failures);
        if (!first.tensors.empty()) {
          report(bit_differences(test, first, result));
          continue;
        }
        report(differences(test, result, expected));
        first = std::move(result);
      }
    });
  });
}

TEST_P(KernelCases, HaveTheBitsOfTheirTwins) {
  for_each_case([](const Case& test) {
    if (!test.twin || (!test.twin->every_device && !test_device_is_cpu())) return;
    const Case twin = test.twin->make();
    TestDevice& on = *test_devices().back();
    on_each_target([&] {
      const CaseResult a = run_case(on.device(), on.ledger(), test);
      const CaseResult b = run_case(on.device(), on.ledger(), twin);
      report(b.failures);
      report(bit_differences(test, a, twin, b, test.twin->parts));
    });
  });
}

// Each element's step is the same arithmetic everywhere, so state may be stepped wherever it lives.
TEST(OptimizerCases, HaveTheBitsOfTheHost) {
  if (test_device_is_cpu()) GTEST_SKIP() << "this is the host";
  TestDevice host("cpu", 1), &on = *test_devices().front();
  for (const CaseEntry& entry : cases::cases_of("optimizer")) {
    SCOPED_TRACE(entry.name);
    const Case test = entry.make();
    try {
      report(bit_differences(test, run_case(host.device(), host.ledger(), test),
                             run_case(on.device(), on.ledger(), test)));
    } catch (const TypeError&) {
      if (!has_half_tensor(test)) throw;
    }
  }
}

bool has_empty_tensor(const Case& test) {
  for (const Case::Member& member : test.tensors)
    if (member.values.elems() == 0) return true;
  return false;
}

TEST_P(KernelCases, RunDryAndCountTheirWork) {
  const std::unique_ptr<Device> dry = open_dry_device({}, 2);
  Ledger ledger(*dry->memory(Tier::device));
  for_each_case([&](const Case& test) {
    run_case(*dry, ledger, test);
    EXPECT_TRUE(cases::work_of(test).bytes > 0 || has_empty_tensor(test));
  });
  EXPECT_GT(dry->now(), 0);
  EXPECT_EQ(ledger.held_bytes(), 0);
}

TEST_P(KernelCases, HaveNamesOfTheirOwnAndABenchmark) {
  for (const CaseList& list : {cases::cases_of(GetParam()), cases::benchmarks_of(GetParam())}) {
    EXPECT_FALSE(list.empty());
    std::set<std::string> names;
    for (const CaseEntry& entry : list) {
      EXPECT_EQ(entry.family, GetParam());
      EXPECT_TRUE(names.insert(entry.name).second) << entry.name << " occurs twice";
    }
  }
}

TEST_P(KernelCases, OfBenchmarksRunDryAndCountTheirWork) {
  for (const CaseEntry& entry : cases::benchmarks_of(GetParam()))
    EXPECT_GT(cases::work_of(entry.make()).bytes, 0) << entry.name;
}

}  // namespace
}  // namespace onefold::test
