#include "base/gguf.h"

#include <gtest/gtest.h>

#include "data/scratch.h"
#include "error_text.h"

namespace onefold {
namespace {

class Gguf : public testing::Test {
 protected:
  static GgufHeader small() {
    GgufHeader header;
    header.add("general.architecture", "llama");
    header.add("llama.block_count", uint32_t{2});
    header.add("llama.eps", 1e-5f);
    header.add("llama.truth", true);
    const std::vector<std::string> texts = {"a", "", "\xFF"};
    header.add("texts", std::span<const std::string>(texts));
    const std::vector<float> numbers = {0.5f, -2};
    header.add("numbers", std::span<const float>(numbers));
    const std::vector<int32_t> wholes = {-1, 7};
    header.add("wholes", std::span<const int32_t>(wholes));
    header.add_tensor("first", *ggml_type_named("F32"), std::vector<int64_t>{2, 3});
    header.add_tensor("second", *ggml_type_named("Q8_0"), std::vector<int64_t>{1, 64});
    return header;
  }
  static std::string whole() {
    const GgufHeader header = small();
    std::string bytes = header.bytes();
    for (int64_t i = 0; i < header.tensor_bytes(); ++i) bytes += static_cast<char>(i);
    return bytes;
  }
  std::string put(const std::string& bytes) { return folder_.write("model.gguf", bytes); }
  // The file with one stretch of bytes replaced.
  std::string changed(const std::string& from, const std::string& to) {
    std::string bytes = whole();
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos);
    return put(bytes.replace(at, from.size(), to));
  }

  ScratchFolder folder_;
};

template <typename T>
std::string raw_bytes(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

TEST_F(Gguf, WhatIsWrittenIsRead) {
  const GgufFile file(put(whole()));
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.integer("llama.block_count"), 2);
  EXPECT_EQ(file.number("llama.eps"), 1e-5f);
  EXPECT_EQ(file.values()["llama.truth"], true);
  EXPECT_EQ(file.values()["texts"].size(), 3u);
  EXPECT_EQ(file.values()["texts"][2].get<std::string>(), "\xFF");
  EXPECT_EQ(file.values()["numbers"][0], 0.5);
  EXPECT_EQ(file.values()["wholes"][0], -1);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensor("first")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.tensor("second")->type->name, "Q8_0");
  const auto first = file.bytes(*file.tensor("first")), second = file.bytes(*file.tensor("second"));
  EXPECT_EQ(first.size(), 24u);
  EXPECT_EQ(static_cast<int>(first[1]), 1);
  EXPECT_EQ(second.size(), 68u);
  EXPECT_EQ(static_cast<int>(second[0]), 32) << "tensors begin at multiples of 32";
  EXPECT_EQ(file.tensor("third"), nullptr);
}

TEST_F(Gguf, ValuesOfAnotherKindAreNamed) {
  const GgufFile file(put(whole()));
  EXPECT_ERROR(file.integer("llama.heads"), "has no value llama.heads");
  EXPECT_ERROR(file.integer("llama.eps"), "llama.eps is not a whole number");
  EXPECT_ERROR(file.number("general.architecture"), "is not a number");
  EXPECT_ERROR(file.text("llama.block_count"), "is not a text");
}

TEST_F(Gguf, AnyCutIsRefused) {
  const std::string bytes = whole();
  for (size_t length = 0; length + 28 < bytes.size();
       length += 11)  // the last tensor's padding may go
    EXPECT_THROW(GgufFile(put(bytes.substr(0, length))), UserError) << length;
}

TEST_F(Gguf, NoSizeIsTrusted) {
  const auto opened = [](const std::string& path) { return GgufFile(path); };
  EXPECT_ERROR(opened(changed("GGUF", "GGUX")), "does not begin with GGUF");
  EXPECT_ERROR(opened(changed(raw_bytes(uint32_t{3}), raw_bytes(uint32_t{9}))), "version 9");
  EXPECT_ERROR(opened(changed(raw_bytes(uint32_t{3}), raw_bytes(uint32_t{0x03000000}))),
               "big-endian");
  // The number of tensors, and of values.
  EXPECT_ERROR(opened(changed(raw_bytes(uint64_t{2}), raw_bytes(~uint64_t{0}))), "tensors");
  EXPECT_ERROR(opened(changed(raw_bytes(uint64_t{7}), raw_bytes(~uint64_t{0}))), "values");
  // A string, a list, a shape, a place.
  const std::string key = raw_bytes(uint64_t{20}) + "general.architecture";
  EXPECT_ERROR(opened(changed(key, raw_bytes(~uint64_t{0}) + "general.architecture")), "cut off");
  EXPECT_ERROR(opened(changed(raw_bytes(uint32_t{8}) + raw_bytes(uint64_t{3}),
                              raw_bytes(uint32_t{8}) + raw_bytes(uint64_t{1} << 60))),
               "cut off");
  EXPECT_ERROR(opened(changed("first" + raw_bytes(uint32_t{2}) + raw_bytes(uint64_t{3}),
                              "first" + raw_bytes(uint32_t{2}) + raw_bytes(uint64_t{1} << 62))),
               "too large");
  EXPECT_ERROR(opened(changed("first" + raw_bytes(uint32_t{2}), "first" + raw_bytes(uint32_t{5}))),
               "5 dimensions");
  EXPECT_ERROR(opened(changed(raw_bytes(uint32_t{8}) + raw_bytes(uint64_t{32}),
                              raw_bytes(uint32_t{8}) + raw_bytes(uint64_t{1} << 40))),
               "cut off");
  EXPECT_ERROR(opened(changed(raw_bytes(uint32_t{8}) + raw_bytes(uint64_t{32}),
                              raw_bytes(uint32_t{8}) + raw_bytes(uint64_t{0}))),
               "overlaps");
  EXPECT_ERROR(opened(changed(raw_bytes(uint32_t{8}) + raw_bytes(uint64_t{32}),
                              raw_bytes(uint32_t{8}) + raw_bytes(uint64_t{8}))),
               "multiple of 32");
  // Types that there are not, names twice, rows that are no whole blocks.
  EXPECT_ERROR(opened(changed(raw_bytes(uint32_t{8}) + raw_bytes(uint64_t{32}),
                              raw_bytes(uint32_t{99}) + raw_bytes(uint64_t{32}))),
               "type 99");
  EXPECT_ERROR(opened(changed("second" + raw_bytes(uint32_t{2}) + raw_bytes(uint64_t{64}),
                              "second" + raw_bytes(uint32_t{2}) + raw_bytes(uint64_t{40}))),
               "not whole blocks of 32");
  EXPECT_ERROR(opened(changed(raw_bytes(uint64_t{6}) + "wholes" + raw_bytes(uint32_t{9}),
                              raw_bytes(uint64_t{6}) + "wholes" + raw_bytes(uint32_t{13}))),
               "type 13");
}

}  // namespace
}  // namespace onefold
