// Checkpoints that are split in ways which no rank of today splits them: by columns, by rows, in
// boxes of all sizes, in other types; and those of the first version.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "data/scratch.h"
#include "error_text.h"
#include "io/checkpoint.h"
#include "io/half.h"

namespace onefold {
namespace {

constexpr int64_t kRows = 5, kCols = 7;

// A checkpoint of one tensor "w", [5, 7], whose element e has the value 1 + e.
class CheckpointBoxes : public ::testing::Test {
 protected:
  struct Part {
    int file;
    Box box;
  };

  CheckpointBoxes() {
    make_folders(folder());
    for (int64_t e = 0; e < kRows * kCols; ++e) values_.push_back(static_cast<float>(1 + e));
    manifest_.run = Json::object();
    manifest_.tensors["w"] = {.shape = {kRows, kCols},
                              .states = {{.name = "parameters", .elems = kRows * kCols}},
                              .pieces = {}};
  }
  std::string folder() const { return scratch_.path("step"); }
  CheckpointTensor& tensor() { return manifest_.tensors["w"]; }

  // Gives each file its boxes, one after the other.
  void split(const std::vector<Part>& parts, const std::string& dtype = "F32") {
    tensor().states[0].dtype = dtype;
    tensor().pieces.clear();
    std::map<int, std::vector<float>> stored;
    for (const auto& [file, box] : parts) {
      tensor().pieces.push_back({file, static_cast<int64_t>(stored[file].size()), box});
      for (int64_t r = box.row; r < box.row + box.rows; ++r)
        for (int64_t c = box.col; c < box.col + box.cols; ++c)
          stored[file].push_back(values_[static_cast<size_t>(r * kCols + c)]);
    }
    for (const auto& [file, values] : stored) {
      std::vector<std::byte> bytes(values.size() *
                                   static_cast<size_t>(safetensors_dtype_bytes(dtype)));
      from_f32(dtype, values, bytes);
      entries_[file]["parameters/w"] = {dtype, bytes};
    }
  }
  void write() {
    manifest_.files.clear();
    for (const auto& [file, contents] : entries_) {
      std::vector<SafetensorsEntry> entries;
      for (const auto& [name, content] : contents)
        entries.push_back({name,
                           content.first,
                           {static_cast<int64_t>(content.second.size()) /
                            safetensors_dtype_bytes(content.first)}});
      SafetensorsWriter writer(folder() + "/" + checkpoint_file_name(file), entries);
      for (const auto& [name, content] : contents)
        writer.write(name, std::span<const std::byte>(content.second));
      writer.commit();
      manifest_.files.push_back({checkpoint_file_name(file), writer.bytes(), writer.checksum()});
    }
    write_file(folder() + "/" + kManifest, manifest_.to_json().dump());
  }

  void expect_every_range_and_box() const {
    const Checkpoint checkpoint(folder());
    for (int64_t first = 0; first < kRows * kCols; ++first)
      for (int64_t elems = 0; first + elems <= kRows * kCols; ++elems) {
        std::vector<float> dst(static_cast<size_t>(elems), -1.0F);
        checkpoint.read(kParameters, "w", first, dst);
        ASSERT_TRUE(std::equal(dst.begin(), dst.end(), values_.begin() + first))
            << first << "+" << elems;
      }
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t col = 0; col < kCols; ++col)
        for (int64_t rows = 1; row + rows <= kRows; ++rows)
          for (int64_t cols = 1; col + cols <= kCols; ++cols) {
            std::vector<float> dst(static_cast<size_t>(rows * cols), -1.0F);
            checkpoint.read(kParameters, "w", Box{row, col, rows, cols}, dst);
            for (int64_t i = 0; i < rows * cols; ++i)
              ASSERT_EQ(dst[static_cast<size_t>(i)],
                        static_cast<float>(1 + (row + i / cols) * kCols + col + i % cols));
          }
  }

  const ScratchFolder scratch_;
  std::vector<float> values_;
  Manifest manifest_;
  std::map<int, std::map<std::string, std::pair<std::string, std::vector<std::byte>>>> entries_;
};

TEST_F(CheckpointBoxes, SplitByColumns) {
  split({{0, {0, 0, 5, 3}}, {1, {0, 3, 5, 1}}, {2, {0, 4, 5, 3}}});
  write();
  expect_every_range_and_box();
}

TEST_F(CheckpointBoxes, SplitByRows) {
  split({{1, {0, 0, 2, 7}}, {0, {2, 0, 3, 7}}});
  write();
  expect_every_range_and_box();
}

// Rows of three parts in turn, as a fused projection is when its parts are split each by itself.
TEST_F(CheckpointBoxes, SplitInTurn) {
  split({{0, {0, 0, 1, 7}}, {1, {1, 0, 1, 7}}, {0, {2, 0, 1, 7}}, {1, {3, 0, 2, 7}}});
  write();
  expect_every_range_and_box();
}

TEST_F(CheckpointBoxes, SplitInBoxesOfAllSizes) {
  split({{0, {0, 0, 2, 3}},
         {0, {2, 0, 3, 1}},
         {1, {0, 3, 1, 4}},
         {2, {1, 3, 4, 2}},
         {1, {1, 5, 4, 2}},
         {2, {2, 1, 3, 2}}});
  write();
  expect_every_range_and_box();
  const Checkpoint checkpoint(folder());
  std::vector<float> dst(3 * 2);
  checkpoint.read(kParameters, "w", Box{1, 2, 3, 2}, dst);
  EXPECT_EQ(checkpoint.bytes_read(), 6 * 4);
}

TEST_F(CheckpointBoxes, SplitInFlatRanges) {
  tensor().add_range(0, 0, 11);
  tensor().add_range(1, 11, 20);
  tensor().add_range(2, 31, 4);
  std::vector<Part> parts;
  for (const CheckpointPiece& piece : tensor().pieces) parts.push_back({piece.file, piece.box});
  split(parts);
  write();
  expect_every_range_and_box();
}

TEST_F(CheckpointBoxes, OtherTypesAreConverted) {
  for (const char* dtype : {"BF16", "F16"}) {  // which hold 1 to 35 exactly
    split({{0, {0, 0, 5, 3}}, {1, {0, 3, 5, 4}}}, dtype);
    write();
    expect_every_range_and_box();
    const Checkpoint checkpoint(folder());
    std::vector<float> dst(4);
    checkpoint.read(kParameters, "w", 5, dst);
    EXPECT_EQ(checkpoint.bytes_read(), 4 * 2);
  }
}

TEST_F(CheckpointBoxes, OnlyWhatIsInsideCanBeAskedFor) {
  split({{0, {0, 0, 5, 7}}});
  write();
  const Checkpoint checkpoint(folder());
  std::vector<float> dst(4);
  EXPECT_THROW(checkpoint.read(kParameters, "w", 32, dst), InternalError);
  EXPECT_THROW(checkpoint.read(kParameters, "w", Box{0, 4, 1, 4}, dst), InternalError);
  EXPECT_THROW(checkpoint.read(kParameters, "w", Box{0, 0, 1, 3}, dst), InternalError);
}

// What ranks keep back is cut as shares cut the tensor, whatever stage has cut its parameters.
TEST_F(CheckpointBoxes, OfAStateThatIsCutByItself) {
  split({{0, {0, 0, 2, 7}}, {1, {2, 0, 3, 7}}});
  std::vector<float> left, right;  // of columns, the first three and the rest
  for (int64_t e = 0; e < kRows * kCols; ++e)
    (e % kCols < 3 ? left : right).push_back(static_cast<float>(-e));
  for (const auto& [file, values] : {std::pair(0, left), std::pair(1, right)}) {
    const auto bytes = std::as_bytes(std::span(values));
    entries_[file]["residual.0/w"] = {"F32", {bytes.begin(), bytes.end()}};
  }
  tensor().add_own("residual.0", 0, {{0, 0, kRows, 3}});
  tensor().add_own("residual.0", 1, {{0, 3, kRows, kCols - 3}});
  write();
  expect_every_range_and_box();
  std::vector<float> dst(static_cast<size_t>(kRows * kCols));
  Checkpoint(folder()).read("residual.0", "w", 0, dst);
  for (size_t e = 0; e < dst.size(); ++e) EXPECT_EQ(dst[e], -static_cast<float>(e));
  Json json = manifest_.to_json();
  EXPECT_EQ(Manifest::from_json(json, "m.json").to_json(), json);
  const auto error_with = [&](int state, const Json& pieces) {
    Json changed = json;
    changed["tensors"]["w"]["states"][static_cast<size_t>(state)]["pieces"] = pieces;
    changed["xxh3"] = manifest_checksum(changed);
    return error_text([&] { Manifest::from_json(changed, "m.json"); });
  };
  expect_in(error_with(1, {{0, 0, 0, 0, 5, 3}}), {"states[1].pieces", "do not cover all of 5 x 7"});
  expect_in(error_with(0, {{0, 0, 0, 0, 5, 7}}), {"parameters with pieces of their own"});
}

// 8-bit moments, and one scale for each 16 elements: in files of their own cut.
class BlockStates : public CheckpointBoxes {
 protected:
  BlockStates() {
    split({{0, {0, 0, 5, 3}}, {1, {0, 3, 5, 4}}});
    entries_[0]["moment1/w"] = {"U8", std::vector<std::byte>(15)};
    entries_[1]["moment1/w"] = {"U8", std::vector<std::byte>(20)};
    entries_[0]["scale1/w"] = {"F32", std::vector<std::byte>(2 * 4)};
    entries_[1]["scale1/w"] = {"F32", std::vector<std::byte>(1 * 4)};
    tensor().states.push_back({.name = "moment1", .dtype = "U8", .elems = 35});
    tensor().states.push_back({.name = "scale1",
                               .elems = 3,
                               .block = 16,
                               .pieces = {{0, 0, {0, 0, 1, 2}}, {1, 0, {0, 2, 1, 1}}}});
  }
};

TEST_F(BlockStates, DoNotKeepTheParametersFromBeingRead) {
  write();
  expect_every_range_and_box();
  const Json json = manifest_.to_json();
  EXPECT_EQ(json["tensors"]["w"]["states"][2],
            Json::parse(R"({"name":"scale1","dtype":"F32","elements":3,"block":16,)"
                        R"("pieces":[[0,0,0,0,1,2],[1,0,0,2,1,1]]})"));
  EXPECT_EQ(Manifest::from_json(json, "m.json").to_json(), json);
}

TEST_F(BlockStates, AreNamedByWhoeverCannotReadThem) {
  write();
  const Checkpoint checkpoint(folder());
  std::vector<float> dst(1);
  EXPECT_ERROR(checkpoint.read("moment1", "w", 0, dst), folder(), "w is in codes",
               "has no moment1.scale");
  EXPECT_ERROR(checkpoint.read("scale1", "w", 0, dst), "w: scale1 is F32",
               "a value for each 16 elements");
}

TEST_F(BlockStates, AreCheckedLikeAllOthers) {
  write();
  const auto error = [&](const char* at, const Json& value) {
    Json json = manifest_.to_json();
    json[Json::json_pointer(std::string("/tensors/w/states/") + at)] = value;
    json["xxh3"] = manifest_checksum(json);
    return error_text([&] { Manifest::from_json(json, "m.json"); });
  };
  expect_in(error("2/elements", 2), {"states[2].elements", "must be 3"});
  expect_in(error("2/block", 1), {"states[2].elements", "must be 35"});
  expect_in(error("2/block", int64_t{1} << 60), {"states[2].block"});
  expect_in(error("2/pieces", Json::array()), {"states[2].pieces", "do not cover all of 1 x 3"});
  expect_in(error("2/pieces/1/3", 1), {"states[2].pieces", "overlap"});
  expect_in(error("2/pieces/1/2", 1), {"states[2].pieces", "not inside 1 x 3"});
  expect_in(error("2/pieces/1/0", 9), {"states[2].pieces", "names file 9 of 2"});
  expect_in(error("0", manifest_.to_json()["tensors"]["w"]["states"][2]), {"distinct names"});
  Json in_blocks = manifest_.to_json()["tensors"]["w"]["states"][2];
  in_blocks["name"] = "parameters";
  expect_in(error("0", in_blocks), {"tensors.w.states", "parameters in blocks"});
  Json json = manifest_.to_json();
  json["tensors"]["w"]["states"][2].erase("pieces");
  json["xxh3"] = manifest_checksum(json);
  EXPECT_ERROR(Manifest::from_json(json, "m.json"), "states[2].pieces");

  entries_[0]["scale1/w"].second.resize(3 * 4);
  write();
  EXPECT_ERROR(Checkpoint(folder()), checkpoint_file_name(0), "scale1/w has 3 elements of F32",
               "says 2 of F32");
  entries_[0]["scale1/w"].second.resize(2 * 4);
  entries_[1]["moment1/w"] = {"I8", std::vector<std::byte>(20)};
  write();
  EXPECT_ERROR(Checkpoint(folder()), checkpoint_file_name(1), "moment1/w has 20 elements of I8",
               "says 20 of U8");
}

// ---- the first version

// Three ranks at stage 2 have written it: tests/golden/README.md.
TEST(FirstVersion, ACheckpointOfItIsReadAsItWasWritten) {
  const std::string folder = std::string(ONEFOLD_GOLDEN_DIR) + "/checkpoint_v1";
  const Json json = read_json(folder + "/" + kManifest);
  ASSERT_EQ(json["version"], 1);
  const Checkpoint checkpoint(folder);
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  for (int rank = 0; rank < 3; ++rank) {
    checkpoint.verify(rank);
    files.push_back(std::make_unique<SafetensorsFile>(folder + "/" + checkpoint_file_name(rank)));
  }
  const SafetensorsFile weights(folder + "/weights.safetensors");  // of the run's end, its step
  int64_t tensors = 0, cut = 0;
  for (const auto& [name, tensor] : json["tensors"].items()) {
    for (const std::string state : {"parameters", "moment1", "moment2"}) {
      // What version 1 means: ranges, one after the other.
      std::vector<float> expected;
      for (const Json& piece : tensor["pieces"]) {
        std::vector<float> part(piece[2].get<size_t>());
        files[piece[0].get<size_t>()]->read(piece_name(state, name), std::span<float>(part));
        expected.insert(expected.end(), part.begin(), part.end());
      }
      std::vector<float> whole(expected.size()), end(expected.size() - 5);
      checkpoint.read(state, name, 0, whole);
      EXPECT_EQ(whole, expected) << state << "/" << name;
      checkpoint.read(state, name, 5, end);
      EXPECT_TRUE(std::equal(end.begin(), end.end(), expected.begin() + 5)) << name;
      if (state != "parameters") continue;
      std::vector<float> saved(expected.size());
      weights.read(name, std::span<float>(saved));
      EXPECT_EQ(whole, saved) << name;
    }
    ++tensors;
    cut += tensor["pieces"].size() > 1;
  }
  EXPECT_EQ(tensors, 8);
  EXPECT_EQ(cut, 3);
}

}  // namespace
}  // namespace onefold
