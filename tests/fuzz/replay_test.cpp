// Replays the fuzzers' corpus: inputs that once broke a reader do not break it again. Needs no
// clang.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "fuzz/targets.h"
#include "sanitized.h"

namespace onefold::fuzz {
namespace {

namespace fs = std::filesystem;

const fs::path kCorpus = fs::path(ONEFOLD_SOURCE_DIR) / "tests/fuzz/corpus";

class Corpus : public testing::TestWithParam<Target> {};

TEST_P(Corpus, IsReadOrRefused) {
  size_t inputs = 0;
  for (const auto& entry : fs::directory_iterator(kCorpus / GetParam().name)) {
    EXPECT_NO_THROW(run(GetParam(), read_file(entry.path()))) << entry.path();
    ++inputs;
  }
  EXPECT_GE(inputs, 3u);
}

// Cut short at every byte, and with each byte in turn turned over: what a broken disk or download
// makes of a good file.
TEST_P(Corpus, DamagedIsReadOrRefused) {
  for (const auto& entry : fs::directory_iterator(kCorpus / GetParam().name)) {
    const std::string whole = read_file(entry.path());
    const size_t stride = 1 + whole.size() / (test::kSanitized ? 32 : 256);
    for (size_t at = 0; at < whole.size(); at += stride) {
      EXPECT_NO_THROW(run(GetParam(), whole.substr(0, at))) << entry.path() << " until " << at;
      std::string flipped = whole;
      flipped[at] = static_cast<char>(~flipped[at]);
      EXPECT_NO_THROW(run(GetParam(), flipped)) << entry.path() << " at " << at;
    }
  }
}

// From a seed that is refused at once a fuzzer reaches little of the reader.
TEST_P(Corpus, HasAnInputThatIsAccepted) {
  size_t accepted = 0;
  for (const auto& entry : fs::directory_iterator(kCorpus / GetParam().name)) {
    try {
      GetParam().read(read_file(entry.path()));
      ++accepted;
    } catch (const UserError&) {
    }
  }
  EXPECT_GE(accepted, 1u);
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FuzzTargets, HaveACorpusEach) {
  std::set<std::string> folders, names;
  for (const auto& entry : fs::directory_iterator(kCorpus)) folders.insert(entry.path().filename());
  for (const Target& target : targets()) names.insert(std::string(target.name));
  EXPECT_EQ(folders, names);
}

}  // namespace
}  // namespace onefold::fuzz
