// Shares of a model: their parameters are boxes that make up the whole ones.
#include "model/share.h"

#include <gtest/gtest.h>

#include "model/unit.h"
#include "model/zoo.h"

namespace onefold {
namespace {

ModelSpec shaped(const std::string& preset, int64_t heads, int64_t kv_heads) {
  ModelSpec spec = spec_from_preset(preset, "test");
  spec.vocab_size = 101;
  spec.num_layers = 1;
  spec.num_heads = heads;
  spec.num_kv_heads = kv_heads;
  spec.head_dim = 6;
  spec.hidden_size = 24;
  spec.intermediate_size = 47;
  spec.qkv_bias = true;
  return spec;
}

// What each share calls its own is every element once.
void expect_whole(const ModelSpec& spec, int count) {
  const Model whole(spec);
  for (size_t u = 0; u < whole.units.size(); ++u)
    for (size_t p = 0; p < whole.units[u]->params().size(); ++p) {
      const ParamSpec& param = whole.units[u]->params()[p];
      std::vector<Box> boxes;
      std::vector<int> seen(static_cast<size_t>(param.elems()));
      for (int index = 0; index < count; ++index) {
        const Model share(spec, kLogitsBytes, {index, count});
        const ParamSpec& part = share.units[u]->params()[p];
        EXPECT_EQ(part.name, param.name);
        EXPECT_EQ(part.layer_key, param.layer_key);
        EXPECT_EQ(part.place_key, param.place_key);
        for (const Box& box : boxes_of(part, 0, part.own_elems())) boxes.push_back(box);
        for_each_run(part, param.cols, 0, part.own_elems(),
                     [&](int64_t, int64_t first, int64_t elems) {
                       for (int64_t i = first; i < first + elems; ++i)
                         ++seen[static_cast<size_t>(i)];
                     });
      }
      EXPECT_EQ(cover_of(boxes, param.rows, param.cols), Cover::exact) << param.name;
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << param.name;
    }
}

TEST(Shares, MakeUpTheWholeModel) {
  for (const int count : {1, 2, 3, 6}) {
    expect_whole(shaped("gpt2-tiny", 6, 6), count);
    expect_whole(shaped("llama-tiny", 6, 6), count);
    expect_whole(shaped("bloom-tiny", 6, 6), count);
  }
  for (const int count : {2, 4, 8}) {
    expect_whole(shaped("qwen3-tiny", 8, 2), count);
    expect_whole(shaped("gemma-tiny", 8, 2), count);
    expect_whole(shaped("gptj-tiny", 8, 8), count);
  }
}

TEST(Shares, OfAdaptersMakeUpTheWholeOnes) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny", "qwen3-tiny", "neox-tiny"})
    for (const int count : {1, 2, 4, 8}) {
      ModelSpec spec = shaped(preset, 8, preset == "gpt2-tiny" || preset == "neox-tiny" ? 8 : 2);
      // As Hugging Face's, whose names adapters have.
      spec.hidden_size = spec.num_heads * spec.head_dim;
      spec.qkv_bias = spec_from_preset(preset, "test").qkv_bias;
      spec.lora = {.rank = 3, .targets = {"all-linear"}};
      expect_whole(spec, count);
    }
}

TEST(Shares, RunsOfARangeAreItsBoxesInOrder) {
  const ModelSpec spec = shaped("llama-tiny", 6, 2);
  const Model whole(spec), share(spec, kLogitsBytes, {1, 2});
  int divided = 0;
  for (size_t u = 0; u < whole.units.size(); ++u)
    for (size_t p = 0; p < whole.units[u]->params().size(); ++p) {
      const ParamSpec& part = share.units[u]->params()[p];
      if (part.boxes.empty()) continue;
      ++divided;
      const int64_t begin = part.elems() / 3, end = part.elems() - 5;
      const int64_t cols = whole.units[u]->params()[p].cols;
      std::vector<int64_t> by_runs, by_boxes;
      for_each_run(part, cols, begin, end, [&](int64_t at, int64_t first, int64_t elems) {
        EXPECT_EQ(at, begin + static_cast<int64_t>(by_runs.size())) << part.name;
        for (int64_t i = 0; i < elems; ++i) by_runs.push_back(first + i);
      });
      for (const Box& box : boxes_of(part, begin, end))
        for (int64_t i = 0; i < box.elems(); ++i)
          by_boxes.push_back((box.row + i / box.cols) * cols + box.col + i % box.cols);
      EXPECT_EQ(by_runs, by_boxes) << part.name;
    }
  EXPECT_GE(divided, 6);
}

TEST(Shares, KeyHeadsThatAreFewerAreInSeveral) {
  const ModelSpec spec = shaped("llama-tiny", 6, 2);
  EXPECT_EQ(kv_replicas(spec, 2), 1);
  EXPECT_EQ(kv_replicas(spec, 6), 3);
  for (int index = 0; index < 6; ++index) {
    EXPECT_EQ(heads_of(spec, {index, 6}).first, index);
    EXPECT_EQ(kv_heads_of(spec, {index, 6}).first, index / 3);
    EXPECT_EQ(kv_heads_of(spec, {index, 6}).size, 1);
  }
}

TEST(Shares, OfAVocabularyHoldAsMuchMemoryEach) {
  const ModelSpec spec = shaped("llama-tiny", 6, 2);
  for (int index = 0; index < 3; ++index) {
    const Model share(spec, kLogitsBytes, {index, 3});
    const ParamSpec& table = share.units[0]->params()[0];
    EXPECT_EQ(table.rows + table.slack_rows, vocabulary_rows(spec, {index, 3}));
    EXPECT_GE(table.slack_rows, 1) << "a row of zeros for the tokens of others";
    EXPECT_EQ(table.rows, index < 2 ? 34 : 33);
  }
}

}  // namespace
}  // namespace onefold
