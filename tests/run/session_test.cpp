#include "run/session.h"

#include "run/plan.h"
#include "run/support.h"

namespace onefold {
namespace {

using Session = RunTest;

TEST_F(Session, DataIsOpenedAsTheConfigurationSays) {
  const RunData data = open_data(config());
  const auto bytes = static_cast<int64_t>(read_file(folder_.path("book.txt")).size());
  EXPECT_EQ(data.train_tokens, bytes + 1);  // and an end of text
  EXPECT_EQ(data.documents, 1);
  EXPECT_EQ(data.vocab_size, 257);
  EXPECT_EQ(data.memory_bytes, 2 * data.train_tokens + 8);  // and where the document starts
  EXPECT_FALSE(data.validation);
  EXPECT_EQ(data.train->layout().micro_batch, 2);
  EXPECT_EQ(data.train->layout().accumulation, 2);
}

TEST_F(Session, AFractionIsHeldOutFromTheEnd) {
  const RunData all = open_data(config()),
                most = open_data(config({"data.validation_fraction=0.25"}));
  EXPECT_EQ(most.train_tokens + most.validation_tokens, all.train_tokens);
  EXPECT_NEAR(static_cast<double>(most.validation_tokens),
              0.25 * static_cast<double>(all.train_tokens), 1);
  ASSERT_TRUE(most.validation);
}

TEST_F(Session, ValidationFilesAreReadLikeTheTrainingFiles) {
  folder_.write("other.txt", std::string(100, 'x'));
  const RunData data =
      open_data(config({"data.validation=" + folder_.path("other.txt"), "run.eval_sequences=2"}));
  EXPECT_EQ(data.validation_tokens, 101);
  EXPECT_EQ(data.validation->count(), 1);  // of the four batches of two that there are
  EXPECT_EQ(data.validation->rows(), 2);
  EXPECT_EQ(data.validation->sequences().count(), 7);
  EXPECT_EQ(open_data(config()).train_tokens, data.train_tokens);
}

TEST_F(Session, TheVocabularyIsTheTokenizersUnlessALargerOneIsNamed) {
  const Config inline_model =
      config({R"(model={"hidden_size": 8, "num_layers": 1, "num_heads": 2})"});
  const RunData data = open_data(inline_model);
  EXPECT_EQ(settled_model(inline_model, data).vocab_size, 257);
  EXPECT_EQ(settled_model(config(), data).vocab_size, 263);
  EXPECT_ERROR(settled_model(config({R"(model={"preset": "gpt2-tiny", "vocab_size": 99})"}), data),
               "vocabulary of 99", "257", "model.vocab_size");
}

TEST_F(Session, AStepTrainsOnTheLoadersBatchesInOrder) {
  const Config c = config({"optimizer.params.lr=0.01"});
  const RunData data = open_data(c);
  const ModelSpec spec = settled_model(c, data);
  Engine by_session(spec, engine_options(c)), by_hand(spec, engine_options(c));
  for (int64_t step = 0; step < 2; ++step) {
    Batch first = data.train->get(step, 0, 0), second = data.train->get(step, 1, 0);
    const std::vector<BatchView> micros = {view_of(first), view_of(second)};
    const StepResult expected = by_hand.train_step(micros, 0.01);
    const StepResult result = train_step(by_session, *data.train, 0.01);
    EXPECT_EQ(result.loss, expected.loss);
    EXPECT_EQ(result.gradient_norm, expected.gradient_norm);
    EXPECT_EQ(result.valid_targets, 4 * 16);
  }
}

TEST_F(Session, AFractionOfLessThanASequenceIsAnError) {
  EXPECT_ERROR(open_data(config({"data.validation_fraction=0.001"})), "the validation data has",
               "one sequence of 16 needs 17");
}

TEST_F(Session, ThePlanSaysHowManySequencesAnEvaluationUses) {
  folder_.write("other.txt", std::string(100, 'x'));
  const std::string validation = "data.validation=" + folder_.path("other.txt");
  const auto text = [&](const std::string& sequences) {
    const Config c = config({validation, sequences});
    return plan_text(c, plan_run(c, Ranks(1, {})));
  };
  expect_in(text("run.eval_sequences=3"), {"101 held out (validation: 3 of 7 sequences)"});
  expect_in(text("run.eval_sequences=0"), {"(validation: all 7 sequences)"});
}

TEST_F(Session, OptionsCarryEveryKeyThatTheEngineKnows) {
  const EngineOptions options = engine_options(
      config({"run.seed=7", "run.memory=1GiB", "run.recompute=true", "gradient_clipping=0.5"}));
  EXPECT_EQ(options.seed, 7u);
  EXPECT_EQ(options.threads, 1);
  EXPECT_EQ(options.micro_batch, 2);
  EXPECT_EQ(options.micros, 2);
  EXPECT_EQ(options.sequence, 16);
  EXPECT_EQ(options.clipping, 0.5);
  EXPECT_EQ(options.memory_limit_bytes, int64_t{1} << 30);
  EXPECT_EQ(options.recompute, Recompute(true));
  EXPECT_EQ(engine_options(config()).memory_limit_bytes, Ledger::kNoLimit);
}

TEST_F(Session, ThePlanIsTheRun) {
  const Config c = config();
  const RunPlan plan = plan_run(c, Ranks(1, {}));
  Engine engine(plan.model, plan.options);
  train_step(engine, *plan.data.train, 1e-3);
  EXPECT_EQ(plan.rank.peak_bytes, engine.ledger().peak_bytes());
  int64_t sum = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    const int64_t planned = plan.rank.bytes_at_peak[static_cast<size_t>(kind)];
    EXPECT_EQ(planned, engine.ledger().bytes_at_peak(static_cast<Kind>(kind)));
    sum += planned;
  }
  EXPECT_EQ(sum, plan.rank.peak_bytes);
}

TEST_F(Session, APlanIsToldInFiveLines) {
  const Config c = config({"run.steps=1"});
  const std::string text = plan_text(c, plan_run(c, Ranks(1, {})));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5);
  expect_in(text, {"model    gpt2-tiny: ", "\ndata     ", "\nbatch    ",
                   "\nrun      1 step = 64 tokens", "on 1 thread\n", "\nmemory   "});
}

TEST_F(Session, EpochsMakeSteps) {
  Json root = config().effective();
  root["run"].erase("steps");
  root["run"]["epochs"] = 2;
  const Config c = Config::from_json(root);
  const RunPlan plan = plan_run(c, Ranks(1, {}));
  EXPECT_EQ(plan.steps, 2 * plan.data.train->sequences().count() / 4);
}

}  // namespace
}  // namespace onefold
