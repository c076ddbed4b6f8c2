#include "io/hf_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "data/scratch.h"
#include "error_text.h"
#include "io/half.h"

namespace onefold {
namespace {

class HfFolder : public testing::Test {
 protected:
  // A file with these tensors, each of four values counted up from `start`.
  void shard(const std::string& name, const std::vector<std::string>& tensors, float start = 0,
             const std::string& dtype = "F32") const {
    std::vector<SafetensorsEntry> entries;
    for (const std::string& tensor : tensors) entries.push_back({tensor, dtype, {2, 2}, 0, 0});
    SafetensorsWriter writer(folder_.path(name), entries, {{"format", "pt"}});
    for (const std::string& tensor : tensors) {
      const std::vector<float> values = {start, start + 1, start + 2, start + 3};
      std::vector<std::byte> bytes(dtype == "F32" ? 16 : 8);
      from_f32(dtype, values, bytes);
      writer.write(tensor, bytes);
      start += 4;
    }
    writer.commit();
  }
  void index(const std::string& weight_map) const {
    folder_.write(kHfIndex, "{\"metadata\": {}, \"weight_map\": " + weight_map + "}");
  }
  TensorFiles open() const { return TensorFiles::open_hf_folder(folder_.path("")); }

  ScratchFolder folder_;
};

TEST_F(HfFolder, ShardsAreOneListOfTensors) {
  shard("one.safetensors", {"b", "a"}, 0, "BF16");
  shard("two.safetensors", {"c"}, 100, "F16");
  index(R"({"b": "one.safetensors", "a": "one.safetensors", "c": "two.safetensors"})");
  const TensorFiles tensors = open();
  EXPECT_EQ(tensors.names(), (std::vector<std::string>{"b", "a", "c"}));
  EXPECT_EQ(tensors.files().size(), 2u);
  EXPECT_EQ(tensors.entry("a").dtype, "BF16");
  std::vector<float> two(2);
  tensors.read("a", 1, two);
  EXPECT_EQ(two, (std::vector<float>{5, 6}));
  tensors.read("c", 2, two);
  EXPECT_EQ(two, (std::vector<float>{102, 103}));
  tensors.release("c");
  tensors.read("c", 2, two);
  EXPECT_EQ(two[0], 102) << "what was released can be read again";
  EXPECT_THROW(tensors.read("c", 3, two), InternalError);
  EXPECT_ERROR(tensors.entry("cc"), "has no tensor \"cc\"");
}

TEST_F(HfFolder, OneFileComesBeforeAnIndex) {
  shard(kHfWeights, {"a"});
  index(R"({"a": "gone.safetensors"})");
  EXPECT_EQ(open().names().size(), 1u);
}

TEST_F(HfFolder, WithoutWeightsItSaysWhatIsMissing) {
  EXPECT_FALSE(TensorFiles::in_folder(folder_.path("")));
  EXPECT_ERROR(open(), "has no weights", "model.safetensors", "index.json");
  folder_.write("pytorch_model.bin", "x");
  EXPECT_ERROR(open(), "pytorch_model.bin", "not an archive of torch.save");
  folder_.write(kHfIndex, "{}");
  EXPECT_TRUE(TensorFiles::in_folder(folder_.path("")));
}

// As a copy of a snapshot of the hub's cache, or a clone without Git LFS, has them.
TEST_F(HfFolder, WhatStandsForAFileIsNamed) {
  std::filesystem::create_symlink("../../blobs/gone", folder_.path(kHfWeights));
  EXPECT_TRUE(TensorFiles::in_folder(folder_.path("")));
  EXPECT_ERROR(open(), "model.safetensors is a link that leads to no file", "cp -rL");
  std::filesystem::remove(folder_.path(kHfWeights));
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    folder_.write(name, pointer);
    EXPECT_ERROR(open(), name, "is a pointer of Git LFS", "git lfs pull");
    std::filesystem::remove(folder_.path(name));
  }
  folder_.write("tokenizer.json", pointer);
  EXPECT_ERROR(read_file(folder_.path("tokenizer.json")), "tokenizer.json is a pointer");
}

TEST_F(HfFolder, APipeIsNoFileOfAModel) {
  for (const char* name : {"model.safetensors", "pytorch_model.bin", kHfIndex}) {
    ASSERT_EQ(::mkfifo(folder_.path(name).c_str(), 0600), 0);
    EXPECT_ERROR(open(), name, "is a pipe");
    std::filesystem::remove(folder_.path(name));
  }
}

TEST_F(HfFolder, AnIndexIsNotTrusted) {
  shard("one.safetensors", {"a", "b"});
  shard("two.safetensors", {"c"});
  index(R"({"a": "one.safetensors", "b": "one.safetensors", "c": "three.safetensors"})");
  EXPECT_ERROR(open(), kHfIndex, "names the file three.safetensors, which is not there");
  index(R"({"a": "one.safetensors", "b": "one.safetensors", "d": "two.safetensors"})");
  EXPECT_ERROR(open(), "says that tensor d is in two.safetensors", "does not have it");
  index(R"({"a": "two.safetensors", "b": "one.safetensors", "c": "two.safetensors"})");
  EXPECT_ERROR(open(), "says that tensor a is in two.safetensors", "one.safetensors has");
  index(R"({"a": "one.safetensors", "c": "two.safetensors"})");
  EXPECT_ERROR(open(), "does not list tensor b", "one.safetensors");
  index(R"({"a": "one.safetensors", "a": "two.safetensors"})");
  EXPECT_ERROR(open(), "\"a\" appears twice");
  shard("two.safetensors", {"b"});
  index(R"({"a": "one.safetensors", "b": "two.safetensors"})");
  EXPECT_ERROR(open(), "tensor b is in two files", "one.safetensors", "two.safetensors");
  index("{}");
  EXPECT_ERROR(open(), "weight_map is empty");
  folder_.write(kHfIndex, "[]");
  EXPECT_ERROR(open(), "no object \"weight_map\"");
  index(R"({"a": 3})");
  EXPECT_ERROR(open(), "weight_map.a is 3");
}

TEST_F(HfFolder, AShardOutsideTheFolderIsRefused) {
  make_folders(folder_.path("in"));
  shard("secret.safetensors", {"a"});
  for (const std::string name : {"../secret.safetensors", "..", "", "in/x.safetensors", "/etc/x"}) {
    folder_.write(std::string("in/") + kHfIndex, "{\"weight_map\": {\"a\": \"" + name + "\"}}");
    EXPECT_ERROR(TensorFiles::open_hf_folder(folder_.path("in")), "weight_map.a",
                 "not a file's name in this folder");
  }
}

TEST_F(HfFolder, IntegersAreNotWeights) {
  shard(kHfWeights, {"a"});
  {
    SafetensorsWriter writer(folder_.path("ints"), {{"a", "I32", {1}, 0, 0}});
    writer.write("a", std::as_bytes(std::span("xyz", 4)));
    writer.commit();
  }
  std::vector<float> one(1);
  EXPECT_ERROR(TensorFiles::open_file(folder_.path("ints")).read("a", 0, std::span(one)),
               "tensor a is I32", "BF16");
}

}  // namespace
}  // namespace onefold
