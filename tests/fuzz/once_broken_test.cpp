// Inputs that once broke a reader, and what it says of them now.
#include <gtest/gtest.h>

#include "base/file.h"
#include "error_text.h"
#include "fuzz/targets.h"

namespace onefold::fuzz {
namespace {

void read(const std::string& target, const std::string& input) {
  const std::string corpus = std::string(ONEFOLD_SOURCE_DIR) + "/tests/fuzz/corpus/";
  target_named(target).read(read_file(corpus + target + "/" + input));
}

// Fuzzing gets no further than its seeds are read.
TEST(Seeds, OfCheckpointsAreReadToTheEnd) {
  for (const char* name : {"two_ranks", "columns", "version_1"})
    EXPECT_EQ(error_text([&] { read("checkpoint", name); }), "") << name;
}

// The integer part of half a row is zero, by which was divided.
TEST(OnceBroken, AShapeOfHalfARow) {
  EXPECT_ERROR(read("checkpoint", "half_a_row"), "tensors.w.shape", "which no tensor has");
}

// File 2^32 was taken for file 0.
TEST(OnceBroken, AFileNumberBeyondInt) {
  EXPECT_ERROR(read("checkpoint", "file_beyond_int"), "names file 4294967296 of 2");
}

// Copying a value recurses into it, until the stack ends.
TEST(OnceBroken, ADeepConfiguration) {
  EXPECT_ERROR(read("config", "deep"), "config.json", "nested more than 256 levels");
}

// The device was taken for a string.
TEST(OnceBroken, AnOffloadToANumber) {
  EXPECT_ERROR(read("config", "offload_to_a_number"),
               "zero_optimization.offload_param.device must be a string");
}

// What is not there was shown in the message that refuses its default.
TEST(OnceBroken, ADefaultThatIsRefused) {
  EXPECT_ERROR(read("model_config", "dropout_by_default"), "embd_pdrop is left to its default",
               "set it equal to resid_pdrop");
}

// 8^20 bytes for one letter.
TEST(OnceBroken, AReplacementThatFeedsItself) {
  EXPECT_ERROR(read("tokenizer", "grows"), "replacing \"a\"", "Replace steps");
}

// Of a map without a trie nothing was copied, to where there is no memory.
TEST(OnceBroken, AMapWithoutATrie) {
  EXPECT_EQ(error_text([] { read("sentencepiece", "map_without_a_trie"); }), "");
}

// JSON, which is what becomes of them, holds no such bytes.
TEST(OnceBroken, MergesThatAreNotUtf8) {
  EXPECT_ERROR(read("vocabulary", "merges_not_utf8"), "merges.txt:1: is not UTF-8");
}

// A byte that says it begins four was read with three that are not there.
TEST(OnceBroken, AByteOfNoCharacterInAListsText) {
  EXPECT_ERROR(read("chat_template", "byte_of_no_character"), "the byte 0xf4 is no part");
}

}  // namespace
}  // namespace onefold::fuzz
