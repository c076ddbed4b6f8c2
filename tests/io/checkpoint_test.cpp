#include "io/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "data/scratch.h"
#include "error_text.h"
#include "io/checksum.h"

namespace onefold {
namespace {

// Two ranks' checkpoint of two tensors: "a" [3, 5] has its first 8 elements in file 0 and the rest
// in file 1; "b" [4] lies in file 1 alone and is not trained.
class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    std::filesystem::create_directory(folder());
    std::vector<float> values(15);
    std::iota(values.begin(), values.end(), 1.0F);
    std::vector<float> moments = values;
    for (float& value : moments) value *= 100;
    const std::vector<float> b = {-1, -2, -3, -4};
    save(0, {{"parameters/a", {values.begin(), values.begin() + 8}},
             {"exp_avg/a", {moments.begin(), moments.begin() + 8}}});
    save(1, {{"parameters/a", {values.begin() + 8, values.end()}},
             {"exp_avg/a", {moments.begin() + 8, moments.end()}},
             {"parameters/b", b}});
    manifest_.step = 7;
    manifest_.run = {{"position", 21}};
    CheckpointTensor& a = manifest_.tensors["a"] = {
        .shape = {3, 5},
        .states = {{.name = "parameters", .elems = 15}, {.name = "exp_avg", .elems = 15}},
        .pieces = {}};
    a.add_range(0, 0, 8);
    a.add_range(1, 8, 7);
    manifest_.tensors["b"] = {.shape = {4},
                              .states = {{.name = "parameters", .elems = 4}},
                              .pieces = {{1, 0, {0, 0, 1, 4}}}};
    write_file(folder() + "/manifest.json", manifest_.to_json().dump());
  }

  std::string folder() const { return scratch_.path("step-7"); }
  std::string file(int rank) const { return folder() + "/" + checkpoint_file_name(rank); }

  void save(int rank, const std::vector<std::pair<std::string, std::vector<float>>>& tensors) {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [name, values] : tensors)
      entries.push_back({name, "F32", {static_cast<int64_t>(values.size())}, 0, 0});
    SafetensorsWriter writer(file(rank), entries);
    for (const auto& [name, values] : tensors) writer.write(name, std::span<const float>(values));
    writer.commit();
    manifest_.files.push_back({checkpoint_file_name(rank), writer.bytes(), writer.checksum()});
  }

  // What is said of the manifest once one value in it is another.
  std::string error_with(const std::string& pointer, const Json& value) const {
    return error_with(manifest_.to_json(), pointer, value);
  }
  static std::string error_with(Json json, const std::string& pointer, const Json& value) {
    json[Json::json_pointer(pointer)] = value;
    return error_of_signed(json);
  }
  std::string error_without(const std::string& key) const {
    Json json = manifest_.to_json();
    json.erase(key);
    return error_of_signed(json);
  }
  // The checksum is made to fit: what is tested lies behind it. The sum of another manifest's text
  // is got by asking for it.
  static std::string error_of_signed(const Json& json) {
    return error_text([&] { Manifest::from_json(with_checksum(json), "m.json"); });
  }
  static Json with_checksum(Json json) {
    json.erase("xxh3");
    const std::string text = json.dump();
    json["xxh3"] = checksum_of(std::as_bytes(std::span(text)));
    return json;
  }
  // The same manifest as version 1 has it.
  Json flat_json() const {
    Json json = manifest_.to_json();
    json["version"] = 1;
    json["tensors"]["a"]["states"] = {"parameters", "exp_avg"};
    json["tensors"]["a"]["pieces"] = {{0, 0, 8}, {1, 8, 7}};
    json["tensors"]["b"]["states"] = {"parameters"};
    json["tensors"]["b"]["pieces"] = Json::array({{1, 0, 4}});
    return json;
  }

  static std::vector<float> read(const Checkpoint& checkpoint, const std::string& state,
                                 const std::string& tensor, int64_t first, size_t count) {
    std::vector<float> values(count);
    checkpoint.read(state, tensor, first, values);
    return values;
  }

  ScratchFolder scratch_;
  Manifest manifest_;
};

TEST_F(CheckpointTest, SlicesComeFromWhereverTheyLie) {
  const Checkpoint checkpoint(folder());
  EXPECT_EQ(checkpoint.manifest().step, 7);
  EXPECT_EQ(checkpoint.manifest().run["position"], 21);
  EXPECT_EQ(read(checkpoint, "parameters", "a", 0, 3), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(read(checkpoint, "parameters", "a", 6, 4), (std::vector<float>{7, 8, 9, 10}));
  EXPECT_EQ(read(checkpoint, "exp_avg", "a", 14, 1), (std::vector<float>{1500}));
  EXPECT_EQ(read(checkpoint, "parameters", "b", 1, 2), (std::vector<float>{-2, -3}));
  EXPECT_EQ(read(checkpoint, "parameters", "b", 4, 0), std::vector<float>());
  EXPECT_EQ(checkpoint.bytes_read(), (3 + 4 + 1 + 2) * 4);
  checkpoint.release("a");
  EXPECT_EQ(read(checkpoint, "parameters", "a", 7, 2), (std::vector<float>{8, 9}));
  for (int rank = 0; rank < 2; ++rank) checkpoint.verify(rank);
}

TEST_F(CheckpointTest, WhatItDoesNotHaveIsNamed) {
  const Checkpoint checkpoint(folder());
  std::vector<float> dst(1);
  EXPECT_ERROR(checkpoint.read("parameters", "c", 0, dst), "no tensor c", "another model");
  EXPECT_ERROR(checkpoint.read("exp_avg", "b", 0, dst), "no exp_avg of b", "another optimizer");
}

TEST_F(CheckpointTest, AManifestSaysTheSameAfterwards) {
  const Json json = manifest_.to_json();
  EXPECT_EQ(Manifest::from_json(json, "m.json").to_json(), json);
  EXPECT_EQ(Manifest::from_json(Json::parse(json.dump(2)), "m.json").to_json(), json);
}

TEST_F(CheckpointTest, EveryMistakeInAManifestIsNamed) {
  EXPECT_ERROR(Manifest::from_json(Json::array(), "m.json"), "m.json", "not a checkpoint");
  expect_in(error_with("/format", "other"), {"m.json", "format", "onefold-checkpoint"});
  expect_in(error_with("/version", 3), {"version is 3", "reads 1 and 2"});
  expect_in(error_with("/step", -1), {"step"});
  expect_in(error_with("/step", "x"), {"step"});
  expect_in(error_with("/run", Json::array()), {"run", "an object"});
  expect_in(error_with("/files", Json::object()), {"files", "not a list"});
  expect_in(error_with("/tensors", Json::array()), {"tensors", "an object"});
  expect_in(error_with("/extra", 1), {"extra"});
  for (const char* key : {"format", "version", "step", "run", "files", "tensors"})
    expect_in(error_without(key), {"m.json", key});

  for (const char* name : {"", ".", "..", "../rank-0", "/etc/passwd", "a/b"})
    expect_in(error_with("/files/0/name", name), {"files[0].name", "in this folder"});
  expect_in(error_with("/files/0/bytes", 0), {"files[0].bytes"});
  expect_in(error_with("/files/0/bytes", -5), {"files[0].bytes"});
  expect_in(error_with("/files/0/xxh3", 5), {"files[0].xxh3"});
  expect_in(error_with("/files/1/more", 5), {"files[1].more"});

  const char* names = "distinct names, \"parameters\" first";
  expect_in(error_with("/tensors/a/states", Json::array()), {"tensors.a.states", names});
  expect_in(error_with("/tensors/a/states/1/name", "parameters"), {"tensors.a.states", names});
  expect_in(error_with("/tensors/a/states/0/name", "exp"), {"tensors.a.states", names});
  expect_in(error_with("/tensors/a/states/1", "exp_avg"), {"tensors.a.states[1]", "an object"});
  expect_in(error_with("/tensors/a/states/1/more", 1), {"tensors.a.states[1].more"});
  expect_in(error_with("/tensors/a/states/1/dtype", "F31"), {"states[1].dtype", "F31"});
  for (const Json& elements : {Json(14), Json(16), Json(-1), Json("15"), Json(1.5)})
    expect_in(error_with("/tensors/a/states/1/elements", elements),
              {"states[1].elements", "must be 15"});
  for (const Json& block : {Json(-1), Json("1"), Json(1.5)})
    expect_in(error_with("/tensors/a/states/1/block", block), {"states[1].block", "at least 1"});
  // With elements of its own, a state says where they are.
  expect_in(error_with("/tensors/a/states/1/block", 0), {"states[1].pieces is missing"});
  expect_in(error_with("/tensors/a/states/1/pieces", Json::array()), {"states[1].pieces"});

  expect_in(error_with("/tensors/a/shape", {3, 5, 1}), {"tensors.a.shape", "more than two"});
  expect_in(error_with("/tensors/a/pieces", 3), {"tensors.a.pieces", "not a list"});
  const char* format = "[file, offset, row, col, rows, cols]";
  expect_in(error_with("/tensors/a/pieces/0", {0, 0, 1}), {"tensors.a.pieces", format});
  expect_in(error_with("/tensors/a/pieces/0", 7), {"tensors.a.pieces", format});
  expect_in(error_with("/tensors/a/pieces/0/2", "x"), {"tensors.a.pieces", format});
}

// "a" is in four boxes: one row and three columns of the next in file 0, two columns and the last
// row in file 1.
TEST_F(CheckpointTest, EveryMistakeInBoxesIsNamed) {
  EXPECT_EQ(manifest_.to_json()["tensors"]["a"]["pieces"],
            Json::parse("[[0,0,0,0,1,5],[0,5,1,0,1,3],[1,0,1,3,1,2],[1,2,2,0,1,5]]"));
  const auto error = [&](const char* at, const Json& value) {
    return error_with(std::string("/tensors/a/pieces/") + at, value);
  };
  expect_in(error("1/5", 2), {"tensors.a.pieces", "do not cover all of 3 x 5"});
  expect_in(error("2", {1, 0, 2, 0, 1, 2}), {"tensors.a.pieces", "overlap"});
  expect_in(error("1/5", 4), {"overlap"});
  expect_in(error("0/4", 2), {"overlap"});
  expect_in(error("0/5", 6), {"not inside 3 x 5"});
  expect_in(error("3/2", 3), {"not inside 3 x 5"});
  expect_in(error("3/4", 0), {"not inside 3 x 5"});
  expect_in(error("1/3", -1), {"none of [file, offset"});
  expect_in(error_with("/tensors/a/pieces", Json::array()), {"do not cover all"});
  expect_in(error("1/1", 6), {"follow each other in file 0", "at element 6", "end at 5"});
  expect_in(error("1/1", 4), {"follow each other in file 0"});
  expect_in(error("0/1", 1), {"follow each other in file 0"});
  expect_in(error("3/0", 0), {"follow each other in file 0"});
  expect_in(error("1/0", 2), {"names file 2 of 2"});
  expect_in(error("1/0", -1), {"names file -1 of 2"});
}

TEST_F(CheckpointTest, HostileSizesAreRefusedBeforeTheyAreUsed) {
  const int64_t huge = int64_t{1} << 62;
  for (const Json& json : {manifest_.to_json(), flat_json()}) {
    for (const Json& size : {Json(-1), Json(huge), Json(UINT64_MAX), Json(1e300), Json(2.5),
                             Json("3"), Json(nullptr), Json(Json::array())})
      expect_in(error_with(json, "/tensors/a/shape/0", size),
                {"tensors.a.shape", "which no tensor has"});
    // Each is in range, and their product is not.
    expect_in(error_with(json, "/tensors/a/shape", {int64_t{1} << 40, int64_t{1} << 40}),
              {"shape"});
    expect_in(error_with(json, "/tensors/a/shape", {0, huge}), {"shape"});
    // 2^32 + 1 as a 32-bit number would be file 1.
    expect_in(error_with(json, "/tensors/a/pieces/1/0", (int64_t{1} << 32) + 1),
              {"names file 4294967297"});
  }
  for (const int item : {1, 2, 3, 4, 5})
    for (const Json& value : {Json(huge), Json(UINT64_MAX), Json(-huge), Json(int64_t{1} << 46)})
      expect_in(error_with(fmt::format("/tensors/a/pieces/1/{}", item), value),
                {"tensors.a.pieces"});
  // As many boxes of the whole as would overflow a sum.
  Json many = Json::array();
  for (int i = 0; i < 1000; ++i) many.push_back({0, i, 0, 0, 1, int64_t{1} << 46});
  Json json = manifest_.to_json();
  json["tensors"]["a"]["shape"] = {int64_t{1} << 46};
  for (Json& state : json["tensors"]["a"]["states"]) state["elements"] = int64_t{1} << 46;
  expect_in(error_with(json, "/tensors/a/pieces", many), {"tensors.a.pieces", "overlap"});
}

TEST_F(CheckpointTest, TheFirstVersionSaysTheSame) {
  EXPECT_EQ(Manifest::from_json(with_checksum(flat_json()), "m.json").to_json(),
            manifest_.to_json());
  write_file(folder() + "/manifest.json", with_checksum(flat_json()).dump());
  const Checkpoint checkpoint(folder());
  EXPECT_EQ(read(checkpoint, "exp_avg", "a", 6, 4), (std::vector<float>{700, 800, 900, 1000}));
}

TEST_F(CheckpointTest, EveryMistakeInTheFirstVersionIsNamed) {
  const auto error = [&](const std::string& at, const Json& value) {
    return error_with(flat_json(), "/tensors/a/" + at, value);
  };
  expect_in(error("states", Json::array()), {"tensors.a.states", "parameters"});
  expect_in(error("states/1", "parameters"), {"tensors.a.states", "distinct"});
  expect_in(error("states/0", "exp"), {"tensors.a.states", "\"parameters\" first"});
  expect_in(error("pieces/0", {0, 0}), {"tensors.a.pieces", "[file, first, elems]"});
  const char* gap = "do not cover the tensor from end to end";
  expect_in(error("pieces/1/1", 9), {"tensors.a.pieces", gap});
  expect_in(error("pieces/1/1", 7), {gap});
  expect_in(error("pieces/1/2", 6), {"tensors.a.pieces", "do not cover"});
  expect_in(error("pieces/1/2", 8), {gap});
  expect_in(error("pieces/1/2", 0), {gap});
  expect_in(error("pieces", Json::array()), {"tensors.a.pieces", "do not cover"});
  expect_in(error("pieces/1/0", 0), {"follow each other in file 0"});  // one range for each file
  expect_in(error("pieces/1/0", 2), {"names file 2 of 2"});
  for (const Json& count : {Json(int64_t{1} << 62), Json(UINT64_MAX), Json(-5), Json("7")})
    expect_in(error("pieces/1/2", count), {"tensors.a.pieces", "[file, first, elems]"});
}

TEST_F(CheckpointTest, ADigitThatChangesInAManifestIsFound) {
  std::string text = manifest_.to_json().dump();
  const size_t at = text.find("\"position\":21");
  ASSERT_NE(at, std::string::npos);
  text[at + 11] = '3';
  EXPECT_ERROR(Manifest::from_json(Json::parse(text), "m.json"), "m.json", "checksum", "damaged");
}

TEST_F(CheckpointTest, AFileThatIsMissingOrCutShortIsNamed) {
  const std::string whole = read_file(file(1));
  std::filesystem::resize_file(file(1), whole.size() - 1);
  EXPECT_ERROR(Checkpoint(folder()), file(1), "the manifest says", "cut short");
  write_file(file(1), whole + "x");
  EXPECT_ERROR(Checkpoint(folder()), file(1), "the manifest says");
  std::filesystem::remove(file(1));
  EXPECT_ERROR(Checkpoint(folder()), file(1), "No such file");
  write_file(file(1), whole);
  std::filesystem::remove(folder() + "/manifest.json");
  EXPECT_ERROR(Checkpoint(folder()), "manifest.json");
  write_file(folder() + "/manifest.json", manifest_.to_json().dump().substr(0, 200));
  EXPECT_ERROR(Checkpoint(folder()), "manifest.json");
}

TEST_F(CheckpointTest, EveryFlippedBitIsFound) {
  const std::string whole = read_file(file(0));
  for (size_t at = 0; at < whole.size(); at += 7) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    write_file(file(0), flipped);
    // In the header it may be found at once, in the values by the checksum.
    EXPECT_NE(error_text([&] { Checkpoint(folder()).verify(0); }), "") << at;
  }
  std::string flipped = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  write_file(file(0), flipped);
  const Checkpoint checkpoint(folder());
  EXPECT_ERROR(checkpoint.verify(0), file(0), "checksum", "damaged");
  checkpoint.verify(1);
}

TEST_F(CheckpointTest, AnotherCheckpointsFileIsNotTaken) {
  // The same tensors with other values: sizes and names fit, the checksum does not.
  const std::vector<float> other(8, 3.0F);
  save(0, {{"parameters/a", other}, {"exp_avg/a", other}});
  const Checkpoint checkpoint(folder());
  EXPECT_ERROR(checkpoint.verify(0), file(0), "checksum");
  // Other tensors of as many bytes.
  save(0, {{"parameters/c", other}, {"exp_avg/c", other}});
  EXPECT_ERROR(Checkpoint(folder()), checkpoint_file_name(0), "parameters/a");
}

TEST_F(CheckpointTest, TheFilesMustHoldWhatTheManifestSays) {
  manifest_.tensors["a"].pieces.clear();
  manifest_.tensors["a"].add_range(0, 0, 7);
  manifest_.tensors["a"].add_range(1, 7, 8);
  write_file(folder() + "/manifest.json", manifest_.to_json().dump());
  EXPECT_ERROR(Checkpoint(folder()), file(0), "8 elements of F32", "says 7");
}

}  // namespace
}  // namespace onefold
