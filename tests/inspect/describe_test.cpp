#include "inspect/describe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "data/scratch.h"
#include "error_text.h"
#include "inspect/hf_export.h"
#include "run/run_folder.h"

namespace onefold {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Describe : public testing::Test {
 protected:
  using Tensors = std::vector<std::pair<std::string, std::vector<float>>>;

  std::string file(const std::string& name, const Tensors& tensors) const {
    std::vector<SafetensorsEntry> entries;
    for (const auto& [tensor, values] : tensors)
      entries.push_back({tensor, "F32", {static_cast<int64_t>(values.size())}, 0, 0});
    SafetensorsWriter writer(folder_.path(name), entries);
    for (const auto& [tensor, values] : tensors)
      writer.write(tensor, std::span<const float>(values));
    writer.commit();
    return folder_.path(name);
  }
  template <typename T>
  std::string one(const std::string& name, const char* dtype, const std::vector<T>& values) const {
    SafetensorsWriter writer(folder_.path(name),
                             {{"x", dtype, {static_cast<int64_t>(values.size())}, 0, 0}});
    writer.write("x", std::as_bytes(std::span(values)));
    writer.commit();
    return folder_.path(name);
  }
  std::string make_run(const std::string& name) const {
    const Config config = Config::from_json(
        {{"model", "llama-tiny"}, {"train_batch_size", 1}, {"run", {{"seed", 5}}}});
    const RunFolder run =
        RunFolder::create(folder_.path(name), config, config.model, nullptr, false);
    Engine engine(config.model, {.threads = 1, .sequence = 8, .training = false});
    run.save_weights(engine);
    return run.path();
  }

  Description look(const std::string& path, bool values = true) {
    return describe(path, values, pool_);
  }
  Difference differ(const std::string& a, const std::string& b) { return compare(a, b, pool_); }

  ScratchFolder folder_;
  ThreadPool pool_{2};
};

TEST_F(Describe, StatisticsAreThoseOfTheFiniteValues) {
  const Description d =
      look(file("a", {{"x", {3, -4, NAN, kInfinity, -kInfinity}}, {"none", {}}, {"bad", {NAN}}}));
  ASSERT_EQ(d.tensors.size(), 3u);
  const auto find = [&](const std::string& name) {
    for (const TensorStats& tensor : d.tensors)
      if (tensor.name == name) return tensor;
    return TensorStats{};
  };
  EXPECT_EQ(find("x").norm, 5);
  EXPECT_EQ(find("x").min, -4);
  EXPECT_EQ(find("x").max, 3);
  EXPECT_EQ(find("x").mean, -0.5);
  EXPECT_EQ(find("x").nans, 1);
  EXPECT_EQ(find("x").infinities, 2);
  EXPECT_EQ(find("none").norm, 0);
  for (const double value : {find("bad").norm, find("bad").min, find("bad").max, find("bad").mean})
    EXPECT_TRUE(std::isnan(value)) << "nothing is finite";
  EXPECT_EQ(d.not_finite(), 4);
  EXPECT_EQ(d.elems(), 6);
  EXPECT_EQ(d.bytes(), 24);
  EXPECT_EQ(description_json(d)["finite"], false);
  expect_in(description_text(d), {"4 values are not finite", "1 NaN", "2 infinite"});
}

// F64 beyond the square root of the largest double, and types whose values are not read.
TEST_F(Describe, HugeNormsAndUnreadTypesAreShown) {
  const std::string path = folder_.path("types.safetensors");
  SafetensorsWriter writer(path, {{"huge", "F64", {2}, 0, 0},
                                  {"tiny", "F64", {2}, 0, 0},
                                  {"complex", "C64", {1}, 0, 0},
                                  {"scales", "F8_E8M0", {3}, 0, 0},
                                  {"codes", "F4", {2, 3}, 0, 0},
                                  {"sixes", "F6_E2M3", {4}, 0, 0}});
  const std::vector<double> huge = {3e200, -4e200}, tiny = {3e-200, 4e-200};
  writer.write("huge", std::as_bytes(std::span(huge)));
  writer.write("tiny", std::as_bytes(std::span(tiny)));
  writer.write("complex", std::as_bytes(std::span(huge)).first(8));
  for (const char* name : {"scales", "codes", "sixes"})
    writer.write(name, std::as_bytes(std::span(huge)).first(3));
  writer.commit();
  const Description d = look(path);
  EXPECT_NEAR(d.tensors[0].norm, 5e200, 1e186);
  EXPECT_NEAR(d.tensors[1].norm, 5e-200, 1e-214);
  EXPECT_FALSE(d.tensors[2].has_values);
  EXPECT_FALSE(description_json(d)["tensors"][3].contains("norm"));
  expect_in(description_text(d), {"5e+200", "C64 [1]", "F8_E8M0 [3]", "F4 [2, 3]", "F6_E2M3 [4]"});
  EXPECT_TRUE(differ(path, path).equal());
}

// Four bits each: the second byte has the third and the fourth, whichever of them differs.
TEST_F(Describe, OfValuesThatShareAByteTheByteIsCompared) {
  const auto codes = [&](const char* name, uint8_t second) {
    const std::string path = folder_.path(name);
    SafetensorsWriter writer(path, {{"x", "F4", {6}, 0, 0}});
    const std::vector<uint8_t> bytes = {1, second, 3};
    writer.write("x", std::as_bytes(std::span(bytes)));
    writer.commit();
    return path;
  };
  const std::string a = codes("a", 2), b = codes("b", 0x12);
  EXPECT_TRUE(differ(a, a).equal());
  EXPECT_EQ(differ(a, b).common[0].unequal, 2);
}

TEST_F(Describe, LargeTensorsHaveTheSameSumsOnAnyNumberOfThreads) {
  std::vector<float> values(1'000'003);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const std::string path = file("large", {{"x", values}});
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  ThreadPool one(1);
  const TensorStats a = look(path).tensors[0], b = describe(path, true, one).tensors[0];
  EXPECT_EQ(a.norm, b.norm);
  EXPECT_EQ(a.mean, b.mean);
  EXPECT_NEAR(a.norm, std::sqrt(squares), 1e-9 * a.norm);
}

TEST_F(Describe, TheTreeHasBlocksByNumber) {
  const std::string text = description_text(look(file("a", {{"lm_head.weight", {1}},
                                                            {"h.10.mlp.weight", {1}},
                                                            {"h.2.mlp.weight", {1}},
                                                            {"h.2.attn.weight", {1}},
                                                            {"h.10.attn.weight", {1}},
                                                            {"plain", {1}}})));
  const size_t two = text.find("\nh.2\n"), ten = text.find("\nh.10\n");
  ASSERT_NE(two, std::string::npos) << text;
  ASSERT_NE(ten, std::string::npos) << text;
  EXPECT_LT(text.find("\nlm_head\n"), two);
  EXPECT_LT(two, ten);
  EXPECT_EQ(text.find("\nh.2\n", two + 1), std::string::npos) << "a block is one branch\n" << text;
  expect_in(text, {"\n.\n  plain ", "all values are finite"});
}

TEST_F(Describe, EveryKindOfPathIsKnown) {
  const std::string run = make_run("run");
  const Description of_run = look(run);
  EXPECT_EQ(of_run.kind, PathKind::run);
  EXPECT_EQ(of_run.model->to_json(), spec_from_preset("llama-tiny", "model").to_json());
  EXPECT_EQ(of_run.elems(), of_run.model->parameter_count());
  const ModelOnDisk model = open_model(run);
  export_hf(*model.source, model.extras, folder_.path("hf"),
            {.dtype = "BF16", .max_shard_bytes = 40'000});
  const Description of_hf = look(folder_.path("hf"));
  EXPECT_EQ(of_hf.kind, PathKind::hf);
  EXPECT_EQ(of_hf.model_type, "llama");
  EXPECT_EQ(of_hf.elems(), of_run.elems());
  EXPECT_GT(of_hf.files.size(), 1u);
  EXPECT_EQ(description_json(of_hf)["model"], of_run.model->to_json());
  EXPECT_EQ(description_json(of_hf)["tensors"][0]["dtype"], "BF16");
  EXPECT_EQ(look(run + "/weights.safetensors").kind, PathKind::file);
}

TEST_F(Describe, AModelThatIsNotSupportedIsDescribedAllTheSame) {
  make_folders(folder_.path("bert"));
  file("bert/model.safetensors", {{"encoder.layer.0.weight", {1, 2}}});
  folder_.write("bert/config.json", R"({"model_type": "bert"})");
  const Description d = look(folder_.path("bert"));
  EXPECT_EQ(d.tensors.size(), 1u);
  EXPECT_FALSE(d.model);
  expect_in(description_text(d), {"(bert)", "not supported: config.json.model_type is \"bert\""});
}

TEST_F(Describe, HeadersAloneNeedNoValues) {
  const Description d = look(file("a", {{"x", {NAN}}}), false);
  EXPECT_EQ(d.tensors[0].nans, 0);
  EXPECT_TRUE(description_json(d)["finite"].is_null());
  EXPECT_FALSE(description_json(d)["tensors"][0].contains("norm"));
  EXPECT_EQ(description_text(d).find("norm"), std::string::npos);
}

TEST_F(Describe, WhatCannotBeDescribedSaysWhatWasLookedFor) {
  EXPECT_ERROR(look(folder_.path("nowhere")), "nowhere is not there");
  EXPECT_ERROR(look(folder_.path("")), "has no weights", "weights.safetensors",
               "model.safetensors");
  folder_.write("text", "this is no model");
  EXPECT_ERROR(look(folder_.path("text")), "not a valid safetensors file");
}

TEST_F(Describe, DifferencesAreNamed) {
  const std::string a =
      file("a", {{"same", {1, 2}}, {"changed", {1, -2, 4}}, {"left", {1}}, {"s", {1}}});
  const std::string b =
      file("b", {{"same", {1, 2}}, {"changed", {1, -3, 4}}, {"right", {1}}, {"s", {1, 1}}});
  const Difference d = differ(a, b);
  EXPECT_FALSE(d.equal());
  EXPECT_EQ(d.only_a, std::vector<std::string>{"left"});
  EXPECT_EQ(d.only_b, std::vector<std::string>{"right"});
  const Json json = difference_json(d);
  EXPECT_EQ(json["equal_tensors"], 1);
  ASSERT_EQ(json["different"].size(), 2u);
  for (const Json& item : json["different"]) {
    if (item["name"] == "s") {
      EXPECT_EQ(item["shapes"], (Json{{1}, {2}}));
      continue;
    }
    EXPECT_EQ(item["unequal"], 1);
    EXPECT_EQ(item["max_absolute"], 1.0);
    EXPECT_DOUBLE_EQ(item["max_relative"].get<double>(), 1.0 / 3);
  }
  expect_in(
      difference_text(d),
      {"only in " + a + ": 1\n  left", "only in " + b + ": 1\n  right", "F32 [1] and F32 [2]",
       "1 of 3 values, by at most 1 (relative 0.333)", "equal: 1 of the 3 tensors that both have"});
  EXPECT_TRUE(differ(a, a).equal());
  expect_in(difference_text(differ(a, a)), {"equal: all 4 tensors, bit by bit"});
}

TEST_F(Describe, EqualMeansTheSameBits) {
  EXPECT_TRUE(differ(file("a", {{"x", {NAN}}}), file("b", {{"x", {NAN}}})).equal());
  const Difference zeros = differ(file("a", {{"x", {0.0f}}}), file("b", {{"x", {-0.0f}}}));
  EXPECT_FALSE(zeros.equal());
  EXPECT_EQ(zeros.common[0].max_absolute, 0);
  const Difference lost = differ(file("a", {{"x", {0.0f}}}), file("b", {{"x", {NAN}}}));
  EXPECT_TRUE(std::isinf(lost.common[0].max_absolute));
  // Two integers that are one double.
  const int64_t large = int64_t{1} << 60;
  EXPECT_EQ(differ(one<int64_t>("a", "I64", {large}), one<int64_t>("b", "I64", {large + 1}))
                .common[0]
                .unequal,
            1);
  // The same values as another type are a difference, of no value.
  const Difference types =
      differ(one<float>("a", "F32", {2.0f}), one<uint16_t>("b", "BF16", {0x4000}));
  EXPECT_FALSE(types.equal());
  EXPECT_EQ(types.common[0].unequal, 0);
  expect_in(difference_text(types), {"F32 and BF16 [1]  all values are equal"});
}

TEST_F(Describe, ARunIsComparedWithItsExportParameterByParameter) {
  const std::string run = make_run("run"), out = folder_.path("hf");
  const ModelOnDisk model = open_model(run);
  export_hf(*model.source, model.extras, out, {});
  const Difference same = differ(run, out);
  EXPECT_TRUE(same.as_parameters);
  EXPECT_TRUE(same.equal()) << difference_text(same);
  EXPECT_EQ(same.common.size(), parameters_of(model.source->model()).size());
  export_hf(*model.source, model.extras, out, {.dtype = "BF16", .overwrite = true});
  const Difference rounded = differ(out, run);
  EXPECT_FALSE(rounded.equal());
  for (const TensorDifference& d : rounded.common)
    EXPECT_LE(d.max_relative, 1.0 / 256) << d.name;  // half a unit of 8 bits
}

}  // namespace
}  // namespace onefold
