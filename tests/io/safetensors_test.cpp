#include "io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "error_text.h"

namespace onefold {
namespace {

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "onefold_safetensors_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    make_folders(folder_);
    path_ = folder_ + "/model.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A file of this header and `data_bytes` zeros, as a broken writer would leave it.
  void write_raw(const std::string& header, size_t data_bytes, int64_t length = -1) {
    const uint64_t stated = length < 0 ? header.size() : static_cast<uint64_t>(length);
    std::string bytes(reinterpret_cast<const char*>(&stated), sizeof(stated));
    write_file(path_, bytes + header + std::string(data_bytes, '\0'));
  }

  std::string folder_, path_;
};

SafetensorsEntry f32(const char* name, std::vector<int64_t> shape) {
  return {name, "F32", std::move(shape), 0, 0};
}

TEST_F(Safetensors, RoundTrip) {
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  const std::vector<float> scalar = {0.5f};
  const std::vector<int64_t> ids = {-1, int64_t{1} << 40};
  const std::vector<int32_t> small = {7, -8, 9};
  const std::vector<uint16_t> half = {0x3F80};
  {
    SafetensorsWriter writer(path_,
                             {f32("weight", {2, 3}),
                              f32("empty", {0, 4}),
                              f32("scalar", {}),
                              {"ids", "I64", {2}, 0, 0},
                              {"small", "I32", {3}, 0, 0},
                              {"half", "BF16", {1, 1}, 0, 0}},
                             {{"format", "pt"}, {"step", "12"}});
    writer.write("weight", std::span<const float>(weight).first(2));
    writer.write("weight", std::span<const float>(weight).subspan(2));
    writer.write("scalar", std::span<const float>(scalar));
    writer.write("ids", std::as_bytes(std::span(ids)));
    writer.write("small", std::as_bytes(std::span(small)));
    writer.write("half", std::as_bytes(std::span(half)));
    EXPECT_FALSE(std::filesystem::exists(path_)) << "the name appears only with commit()";
    writer.commit();
  }
  EXPECT_FALSE(std::filesystem::exists(path_ + kTemporarySuffix));

  const SafetensorsFile file(path_);
  ASSERT_EQ(file.entries().size(), 6u);
  EXPECT_EQ(file.metadata().at("step"), "12");
  EXPECT_EQ(file.entry("weight").shape, (std::vector<int64_t>{2, 3}));
  std::vector<float> floats(6);
  file.read("weight", floats);
  EXPECT_EQ(floats, weight);
  std::vector<int64_t> longs(2);
  file.read("ids", longs);
  EXPECT_EQ(longs, ids);
  std::vector<int32_t> ints(3);
  file.read("small", ints);
  EXPECT_EQ(ints, small);
  file.read("empty", std::span<float>());
  EXPECT_EQ(file.entry("scalar").elems(), 1);
  EXPECT_EQ(std::memcmp(file.bytes(file.entry("half")).data(), half.data(), 2), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.bytes(file.entry("weight")).data()) % 8, 0u);
}

TEST_F(Safetensors, ReadsAFileWrittenByTheReferenceImplementation) {
  const SafetensorsFile file(std::string(ONEFOLD_GOLDEN_DIR) + "/gelu.safetensors");
  EXPECT_FALSE(file.entries().empty());
}

TEST_F(Safetensors, WithoutCommitNothingIsLeft) {
  {
    SafetensorsWriter writer(path_, {f32("a", {1})});
    const float one = 1;
    writer.write("a", std::span(&one, 1));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  EXPECT_ERROR(SafetensorsWriter(folder_ + "/no/such/folder", {}), "cannot create",
               "no/such/folder");
}

TEST_F(Safetensors, TheWriterRefusesBytesOutOfTurn) {
  const std::vector<float> two = {1, 2};
  SafetensorsWriter writer(path_, {f32("a", {2}), f32("b", {1})});
  EXPECT_THROW(writer.write("b", std::span<const float>(two).first(1)), InternalError);
  EXPECT_THROW(writer.commit(), InternalError);
  writer.write("a", std::span<const float>(two));
  EXPECT_THROW(writer.write("a", std::span<const float>(two)), InternalError);
  EXPECT_THROW(SafetensorsWriter(path_ + "2", {f32("a", {1}), f32("a", {1})}), InternalError);
  EXPECT_THROW(SafetensorsWriter(path_ + "2", {{"a", "F31", {1}, 0, 0}}), InternalError);
}

TEST_F(Safetensors, AskingForTheWrongThingNamesFileAndTensor) {
  const float one = 1;
  SafetensorsWriter writer(path_, {f32("wte.weight", {1})});
  writer.write("wte.weight", std::span(&one, 1));
  writer.commit();
  const SafetensorsFile file(path_);
  std::vector<float> two(2);
  std::vector<int32_t> ints(1);
  EXPECT_ERROR(file.entry("wte.wieght"), path_, "did you mean \"wte.weight\"?");
  EXPECT_ERROR(file.read("wte.weight", two), "has the shape [1], where 2 elements are expected");
  EXPECT_ERROR(file.read("wte.weight", ints), "is F32, where I32 is expected");
}

TEST_F(Safetensors, DamagedFilesAreRefusedWithTheReason) {
  const auto open = [&] { SafetensorsFile file(path_); };
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

  write_file(path_, "abc");
  EXPECT_ERROR(open(), path_, "3 bytes, too few");
  write_raw(good, 8, int64_t{1} << 60);
  EXPECT_ERROR(open(), "more than the format allows");
  write_raw(good, 8, 5000);
  EXPECT_ERROR(open(), "its header should have 5000 bytes", "cut off");
  write_raw(good, 7);
  EXPECT_ERROR(open(), "tensor a ends at byte 8, but there are only 7", "cut off");
  write_raw(good, 9);
  EXPECT_ERROR(open(), "1 bytes at its end belong to no tensor");
  write_raw("{\"a\": ", 0);
  EXPECT_ERROR(open(), "(header):1:", "not valid JSON");
  write_raw("[1]", 0);
  EXPECT_ERROR(open(), "its header is a list, not an object");

  const auto tensor = [&](const std::string& fields, size_t bytes) {
    write_raw("{\"a\":{" + fields + "}}", bytes);
  };
  tensor(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])", 8);
  EXPECT_ERROR(open(), "tensor a has the unknown dtype \"F31\"");
  tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])", 8);
  EXPECT_ERROR(open(), "tensor a: F32 [3] takes 12 bytes, but its offsets span 8");
  tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])", 8);
  EXPECT_ERROR(open(), "tensor a: the shape [4294967296, 4294967296] is too large");
  tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])", 2);
  EXPECT_ERROR(open(), "tensor a: F4 [3] takes 12 bits, no whole number of bytes");
  tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])", 8);
  EXPECT_ERROR(open(), "tensor a: shape has the entry -2");
  tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", 8);
  EXPECT_ERROR(open(), "data_offsets [8, 0] are not a begin and an end");
  tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])", 8);
  EXPECT_ERROR(open(), "data_offsets has the entry 18446744073709551615");
  tensor(R"("dtype":"F32","shape":[2])", 8);
  EXPECT_ERROR(open(), "a.data_offsets is missing");
  tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1])", 8);
  EXPECT_ERROR(open(), "a.strides is not a known key");

  write_raw(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
            12);
  EXPECT_ERROR(open(), "tensor b overlaps");
  write_raw(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
            12);
  EXPECT_ERROR(open(), "a hole of 4 bytes before tensor b");
  write_raw(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            8);
  EXPECT_ERROR(open(), "\"a\" appears twice");
  write_raw(R"({"__metadata__":{"step":3}})", 0);
  EXPECT_ERROR(open(), "__metadata__.step must be a string");
}

}  // namespace
}  // namespace onefold
