// Reading a source's parameters into memory, by many threads.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "inspect/parameter_source.h"

namespace onefold {
namespace {

class CountingSource final : public ParameterSource {
 public:
  const ModelSpec& model() const override { return spec_; }
  std::string dtype() const override { return "F32"; }
  void read(const ParamSpec&, int64_t first, std::span<float> dst) const override {
    for (size_t i = 0; i < dst.size(); ++i)
      dst[i] = static_cast<float>(first + static_cast<int64_t>(i));
  }
  void release(const ParamSpec& param) const override { released.push_back(param.name); }

  mutable std::vector<std::string> released;

 private:
  ModelSpec spec_;
};

ParamSpec param_of(const char* name, int64_t elems) {
  ParamSpec param;
  param.name = name;
  param.rows = 1;
  param.cols = elems;
  return param;
}

TEST(ParameterReader, ReleasesAParameterThatManyThreadsReadOnceAndAtItsEnd) {
  const auto source = std::make_shared<CountingSource>();
  const ParameterReader read = reader_of(source);
  constexpr int64_t kParts = 8, kElems = 1000;
  const ParamSpec param = param_of("first", kParts * kElems);
  std::vector<float> values(static_cast<size_t>(kParts * kElems));
  const auto part = [&](int64_t p) {
    read(param, p * kElems, std::span(values).subspan(static_cast<size_t>(p * kElems), kElems));
  };
  std::vector<std::thread> threads;
  for (int64_t p = 1; p < kParts; ++p) threads.emplace_back(part, p);
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(source->released.empty());
  part(0);
  EXPECT_EQ(source->released, std::vector<std::string>{"first"});
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<float>(i));
}

TEST(ParameterReader, ReleasesAPartThatWasReadWhenTheNextParameterBegins) {
  const auto source = std::make_shared<CountingSource>();
  const ParameterReader read = reader_of(source);
  std::vector<float> values(10);
  const ParamSpec first = param_of("first", 20), second = param_of("second", 10);
  read(first, 5, values);
  EXPECT_TRUE(source->released.empty());
  read(second, 0, values);
  EXPECT_EQ(source->released, (std::vector<std::string>{"first", "second"}));
  read(second, 0, values);  // again, for a copy of it
  EXPECT_EQ(source->released, (std::vector<std::string>{"first", "second", "second"}));
}

}  // namespace
}  // namespace onefold
