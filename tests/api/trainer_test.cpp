// The public API, through its header and the shared library alone.
#include <gtest/gtest.h>
#include <onefold/onefold.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

namespace {

using onefold::Trainer;
using onefold::TrainerOptions;

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const onefold::UserError& error) {
    return error.what();
  }
  return "";
}

TrainerOptions tiny() {
  TrainerOptions options;
  options.model = R"({"preset": "gpt2-tiny", "vocab_size": 50})";
  options.micro_batch = 2;
  options.accumulation = 2;
  options.sequence_length = 8;
  return options;
}

std::vector<int32_t> ramp(int64_t count, int32_t first) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>((first + i) % 50));
  return tokens;
}

TEST(Trainer, LearnsCountsStepsAndKeepsItsMemoryPromise) {
  Trainer trainer(tiny());
  const double before = trainer.evaluate(ramp(16, 0), ramp(16, 1));
  EXPECT_NEAR(before, std::log(50.0), 0.5);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(trainer.step(ramp(32, 0), ramp(32, 1), 1e-2).step, i + 1);
  EXPECT_LT(trainer.evaluate(ramp(16, 0), ramp(16, 1)), 0.5 * before);
  EXPECT_EQ(trainer.memory().planned_peak_bytes, trainer.memory().measured_peak_bytes);
  EXPECT_EQ(trainer.generate(ramp(4, 0), {.max_tokens = 4, .temperature = 0}), ramp(4, 4));
}

TEST(Trainer, AFileThatIsThereIsNotReplacedUnasked) {
  const std::string path = testing::TempDir() + "onefold_api_existing.safetensors";
  std::ofstream(path) << "mine";
  const Trainer trainer(tiny());
  EXPECT_NE(error_of([&] { trainer.save(path); }).find("already exists"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(path), 4);
  trainer.save(path, true);
  EXPECT_GT(std::filesystem::file_size(path), 4);
  std::filesystem::remove(path);
}

TEST(Trainer, ALinkStaysALink) {
  const std::string path = testing::TempDir() + "onefold_api_link.safetensors";
  const std::string target = path + ".target";
  std::filesystem::remove(path);
  std::filesystem::create_symlink(target, path);
  Trainer(tiny()).save(path);
  EXPECT_TRUE(std::filesystem::is_symlink(path));
  EXPECT_TRUE(std::filesystem::remove(target));
  std::filesystem::remove(path);
}

TEST(Trainer, NumbersThatAreNoneAreRefused) {
  const double nan = std::nan(""), infinite = INFINITY;
  for (const double bad : {nan, infinite, -1.0}) {
    const auto error_with = [&](double TrainerOptions::*field) {
      TrainerOptions options = tiny();
      options.*field = bad;
      return error_of([&] { Trainer trainer(options); });
    };
    EXPECT_NE(error_with(&TrainerOptions::beta1).find("beta1"), std::string::npos) << bad;
    EXPECT_NE(error_with(&TrainerOptions::beta2).find("beta2"), std::string::npos) << bad;
    EXPECT_NE(error_with(&TrainerOptions::eps).find("eps"), std::string::npos) << bad;
    EXPECT_NE(error_with(&TrainerOptions::weight_decay).find("weight_decay"), std::string::npos);
    EXPECT_NE(error_with(&TrainerOptions::gradient_clipping).find("gradient_clipping"),
              std::string::npos);
    Trainer trainer(tiny());
    EXPECT_NE(error_of([&] { trainer.step(ramp(32, 0), ramp(32, 1), bad); }).find("learning rate"),
              std::string::npos);
  }
}

TEST(Trainer, AModelThatTheMachineCannotHoldIsRefused) {
  TrainerOptions options;
  options.model = R"({"preset": "llama-2-70b", "num_layers": 8000})";
  const std::string error = error_of([&] { Trainer trainer(options); });
  EXPECT_NE(error.find("of memory and the machine has"), std::string::npos) << error;
}

TEST(Trainer, SavedWeightsLoadToTheSameLoss) {
  const std::string path = testing::TempDir() + "onefold_api_weights.safetensors";
  std::filesystem::remove(path);
  Trainer first(tiny());
  first.step(ramp(32, 0), ramp(32, 1), 1e-2);
  first.save(path);
  TrainerOptions other = tiny();
  other.seed = 99;
  Trainer second(other);
  EXPECT_NE(first.evaluate(ramp(16, 0), ramp(16, 1)), second.evaluate(ramp(16, 0), ramp(16, 1)));
  second.load(path);
  EXPECT_EQ(first.evaluate(ramp(16, 0), ramp(16, 1)), second.evaluate(ramp(16, 0), ramp(16, 1)));
  std::filesystem::remove(path);
}

TEST(Trainer, BadInputIsNamed) {
  EXPECT_NE(error_of([] { Trainer({.model = "gpt3"}); }).find("gpt2"), std::string::npos);
  EXPECT_NE(error_of([] {
              Trainer({.model = R"({"preset": "gpt2-tiny", "hiden_size": 3})"});
            }).find("hidden_size"),
            std::string::npos);
  TrainerOptions small = tiny();
  small.memory_bytes = 1000;
  EXPECT_NE(error_of([&] { Trainer trainer(small); }).find("needs"), std::string::npos);
  Trainer trainer(tiny());
  EXPECT_NE(error_of([&] { trainer.step(ramp(3, 0), ramp(3, 0), 1e-3); }).find("takes 32 of each"),
            std::string::npos);
  std::vector<int32_t> foreign = ramp(32, 0);
  foreign[5] = 50;
  EXPECT_NE(error_of([&] { trainer.step(foreign, ramp(32, 0), 1e-3); }).find("token 50"),
            std::string::npos);
  EXPECT_NE(error_of([&] { trainer.load("/nonexistent"); }).find("/nonexistent"),
            std::string::npos);
}

TEST(Trainer, SizesThatAreTooLargeAreNamedWithTheirLargestValue) {
  const auto says = [](const TrainerOptions& options, const std::string& words) {
    const std::string said = error_of([&] { Trainer trainer(options); });
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  TrainerOptions options = tiny();
  options.micro_batch = int64_t{1} << 62;
  says(options,
       "TrainerOptions::micro_batch is 4611686018427387904; with 2 micro-batches in a step, and "
       "sequences of 8 tokens, the largest is 67108864");
  options = tiny();
  options.accumulation = (int64_t{1} << 32) + 1;  // as an int it would be 1
  says(options, "TrainerOptions::accumulation is 4294967297; with 3 layers the largest is 209715");
  options = tiny();
  options.threads = 1'000'000;
  says(options, "TrainerOptions::threads is 1000000");
  options = tiny();
  options.model = R"({"preset": "gpt2-tiny", "vocab_size": 50, "num_layers": 1000000000})";
  says(options, "model.num_layers is 1000000000; the largest is 65536");
}

TEST(Library, ListsItsPresetsAndVersion) {
  EXPECT_FALSE(onefold::model_presets().empty());
  EXPECT_STRNE(onefold::version(), "");
}

}  // namespace
