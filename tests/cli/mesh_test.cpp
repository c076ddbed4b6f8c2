// A run on a mesh, as a user starts it: plans, weights that agree, checkpoints for other meshes.
#include <cmath>
#include <cstdlib>

#include "base/clock.h"
#include "cli/support.h"
#include "io/safetensors.h"
#include "sanitized.h"

namespace onefold {
namespace {

class CliMesh : public Cli {
 protected:
  static constexpr const char* kExperts =
      R"(model={"preset": "mixtral-tiny", "vocab_size": 260, "experts": {"num_experts": 4,
         "balance_loss": 0.02, "dense_blocks": [1]}})";

  Outcome train_on(int ranks, std::vector<std::string> keys, const std::string& output,
                   const std::vector<std::string>& flags = {}) const {
    keys.push_back("run.output=" + output);
    std::vector<std::string> all = {"--quiet", "--json", "--ranks", std::to_string(ranks)};
    all.insert(all.end(), flags.begin(), flags.end());
    return train(keys, all);
  }
  // The largest difference of two runs' weights.
  double difference(const std::string& a, const std::string& b) const {
    const SafetensorsFile one(folder_.path(a + "/weights.safetensors")),
        other(folder_.path(b + "/weights.safetensors"));
    double most = 0;
    for (const SafetensorsEntry& entry : one.entries()) {
      std::vector<float> x(static_cast<size_t>(entry.elems())), y(x.size());
      one.read(entry.name, x);
      other.read(entry.name, y);
      for (size_t i = 0; i < x.size(); ++i) most = std::max(most, std::abs(double{x[i]} - y[i]));
    }
    return most;
  }
};

TEST_F(CliMesh, ThePlanNamesTheAxesAndIsTheRun) {
  const Outcome plan = train({"mesh.tensor=3"}, {"--ranks", "6", "--plan-only"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  expect_in(plan.err + plan.out, {"mesh     data 2 x tensor 3", "x 2 groups"});
  const Outcome run = train_on(6, {"mesh.tensor=3", "zero_optimization.stage=2"}, "mesh");
  ASSERT_EQ(run.code, 0) << run.err;
  const Json summary = Json::parse(run.out);
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
  bool exchanged = false;
  for (const Json& lane : summary["communication"]) {
    if (lane["lane"] != "exchange") continue;
    exchanged = true;
    EXPECT_EQ(lane["hidden"], 0.0) << "it is in the order of computation";
  }
  EXPECT_TRUE(exchanged) << summary["communication"];
}

TEST_F(CliMesh, SumsTravelBesideComputationAsPlanned) {
  const std::vector<std::string> keys = {"model=llama-tiny", "data.sequence_length=67",
                                         "mesh.tensor=3", "mesh.overlap_chunks=3"};
  const Outcome plan = train(keys, {"--ranks", "3", "--plan-only"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  expect_in(plan.err + plan.out, {"whose sums travel in up to 3 runs of tokens beside products"});
  const Outcome run = train_on(3, keys, "beside");
  ASSERT_EQ(run.code, 0) << run.err;
  const Json summary = Json::parse(run.out);
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
  const Outcome in_order = train_on(3, {keys.begin(), keys.end() - 1}, "in-order");
  ASSERT_EQ(in_order.code, 0) << in_order.err;
  const auto sums = [](const Json& of) -> Json {
    for (const Json& lane : of["communication"])
      if (lane["lane"] == "exchange" && lane["collective"] == "all_reduce") return lane;
    return {};
  };
  const Json beside = sums(summary), plain = sums(Json::parse(in_order.out));
  EXPECT_EQ(beside["bytes_sent"], plain["bytes_sent"]);
  EXPECT_GT(beside["count"], plain["count"]);
  expect_error(train({"mesh.tensor=3", "mesh.overlap_chunks=2", "mesh.sequence_parallel=true"},
                     {"--quiet", "--ranks", "3"}),
               1, {"mesh.sequence_parallel sums where units end"});
}

// The program says what is between an exchange and its reader; without the key there is no lane.
TEST_F(CliMesh, RowsTravelToExpertsBesideComputationAsTheProgramSays) {
  const std::vector<std::string> keys = {kExperts, "model.experts.shared_intermediate_size=40",
                                         "gradient_accumulation_steps=1", "mesh.expert=2"};
  const auto program = [&](const char* overlap) {
    std::vector<std::string> all = {"plan", "config.json", "--ranks", "2", "--program"};
    for (const std::string& key : keys) all.insert(all.end(), {"--set", key});
    all.insert(all.end(), {"--set", std::string("zero_optimization.overlap_comm=") + overlap});
    const Outcome plan = onefold(all);
    EXPECT_EQ(plan.code, 0) << plan.err;
    return plan.out;
  };
  const std::string exchange = "exchange block.0.mlp, micro 0, after phase 0 of backward";
  EXPECT_TRUE(
      contains(program("true"), "  exchange " + exchange +
                                    "\n  compute  backward block.0.mlp, micro 0, phase 1\n"
                                    "  compute  backward block.0.mlp, micro 0, phase 2   after " +
                                    exchange + "\n"));
  EXPECT_TRUE(contains(program("false"), "  compute  " + exchange + "\n"));
  std::vector<std::string> beside = keys;
  beside.push_back("zero_optimization.overlap_comm=true");
  const Outcome run = train_on(2, beside, "beside");
  ASSERT_EQ(run.code, 0) << run.err;
  const Json summary = Json::parse(run.out);
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
}

TEST_F(CliMesh, WeightsAgreeWithThoseOfOneRank) {
  ASSERT_EQ(train_on(1, {}, "one").code, 0);
  ASSERT_EQ(train_on(3, {"mesh.tensor=3"}, "three").code, 0);
  EXPECT_LT(difference("one", "three"), 2e-5);
  ASSERT_EQ(train_on(6, {"tensor_parallel.autotp_size=3", "zero_optimization.stage=3"}, "six").code,
            0);
  EXPECT_LT(difference("one", "six"), 2e-5);
}

// With validation, as planned, and a checkpoint that one rank goes on with.
TEST_F(CliMesh, PartsOfSequencesTrainAndOneRankGoesOn) {
  const std::vector<std::string> half = {"data.sequence_length=33", "run.steps=6",
                                         "run.save_every=3", "run.keep_last=9"};
  ASSERT_EQ(train_on(1, half, "one").code, 0);
  std::vector<std::string> keys = half;
  keys.insert(keys.end(), {"mesh.context=3", "zero_optimization.stage=3"});
  const Outcome plan = train(keys, {"--ranks", "3", "--plan-only"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  expect_in(plan.err + plan.out, {"mesh     data 1 x context 3", "11 tokens each",
                                  "all_to_all along the context axis", "gradients 1/3"});
  const Outcome run = train_on(3, keys, "parts");
  ASSERT_EQ(run.code, 0) << run.err;
  const Json summary = Json::parse(run.out);
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
  EXPECT_LT(difference("one", "parts"), 2e-5);
  std::filesystem::remove_all(folder_.path("parts/checkpoints/step-00000006"));
  const Outcome back = train_on(1, half, "parts", {"--resume", "parts"});
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(Json::parse(back.out)["resumed_from_step"], 3);
  EXPECT_LT(difference("one", "parts"), 2e-5);
}

TEST_F(CliMesh, AnotherMeshGoesOnWithACheckpoint) {
  const std::vector<std::string> half = {"run.steps=6", "run.save_every=3", "run.keep_last=9"};
  ASSERT_EQ(train_on(1, half, "one").code, 0);
  std::vector<std::string> keys = half;
  keys.push_back("mesh.tensor=3");
  const Outcome first = train_on(3, keys, "mesh");
  ASSERT_EQ(first.code, 0) << first.err;
  std::filesystem::remove_all(folder_.path("mesh/checkpoints/step-00000006"));
  const Outcome back = train_on(1, half, "mesh", {"--resume", "mesh"});
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(Json::parse(back.out)["resumed_from_step"], 3);
  EXPECT_LT(difference("one", "mesh"), 2e-5);
}

TEST_F(CliMesh, WhatItSavesIsExportedEvaluatedAndGeneratedFrom) {
  const Outcome run = train_on(3, {"mesh.tensor=3"}, "mesh");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(onefold({"export", "mesh", "hf"}).code, 0);
  const Outcome text = onefold({"generate", "mesh", "--prompt", "Number", "--tokens", "4"});
  EXPECT_EQ(text.code, 0) << text.err;
  const Outcome loss = onefold({"eval", "mesh", "--data", "book.txt"});
  EXPECT_EQ(loss.code, 0) << loss.err;
}

// Evaluated on the way, and resumed on another mesh.
TEST_F(CliMesh, ExpertsAreDividedAndGoOnOnOneRank) {
  const std::vector<std::string> keys = {kExperts,           "run.steps=6",
                                         "run.save_every=3", "run.keep_last=9",
                                         "run.eval_every=3", "data.validation_fraction=0.2"};
  std::vector<std::string> one = keys, divided = keys;
  one.emplace_back("gradient_accumulation_steps=4");
  divided.insert(divided.end(), {"gradient_accumulation_steps=1", "mesh.expert=2"});
  const Outcome plan = train(divided, {"--ranks", "4", "--plan-only"});
  ASSERT_EQ(plan.code, 0) << plan.err;
  expect_in(plan.err + plan.out, {"mesh     data 2 x expert 2", "1/2 of each mixture's experts",
                                  "x 4 ranks", "in 8 all_to_all along the expert axis"});
  ASSERT_EQ(train_on(1, one, "one").code, 0);
  divided.emplace_back("zero_optimization.stage=3");
  const Outcome run = train_on(4, divided, "mesh");
  ASSERT_EQ(run.code, 0) << run.err;
  const Json summary = Json::parse(run.out);
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
  EXPECT_LT(difference("one", "mesh"), 2e-5);
  std::filesystem::remove_all(folder_.path("mesh/checkpoints/step-00000006"));
  const Outcome back = train_on(1, one, "mesh", {"--resume", "mesh"});
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(Json::parse(back.out)["resumed_from_step"], 3);
  EXPECT_LT(difference("one", "mesh"), 2e-5);
}

TEST_F(CliMesh, PlansOfCardsHaveEveryAxis) {
  for (const auto& [keys, mesh] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"mesh.tensor=3"}, "tensor 3"},
           {{"mesh.pipeline=3"}, "pipeline 3"},
           {{"mesh.context=3", "context.method=ulysses", "data.sequence_length=33"}, "context 3"},
           {{kExperts, "mesh.expert=2"}, "expert 2"}}) {
    SCOPED_TRACE(mesh);
    std::vector<std::string> args = {"plan", "config.json", "--hardware",
                                     "h200", "--ranks",     mesh.substr(mesh.size() - 1)};
    for (const std::string& key : keys) args.insert(args.end(), {"--set", key});
    const Outcome plan = onefold(args);
    ASSERT_EQ(plan.code, 0) << plan.err;
    expect_in(plan.out, {"as predicted for h200", mesh});
  }
}

// A Mixtral 8x7B on 4,096 ranks along all five axes, each place of the pipeline verified.
TEST_F(CliMesh, PlansForThousandsOfRanksTakeSeconds) {
  folder_.write("big.json",
                R"({"model": {"preset": "mixtral-8x7b"}, "train_micro_batch_size_per_gpu": 1,
      "gradient_accumulation_steps": 16, "data": {"sequence_length": 8192}, "run": {"recompute": true},
      "zero_optimization": {"stage": 1}, "bf16": {"enabled": true},
      "mesh": {"tensor": 4, "context": 2, "expert": 8, "pipeline": 8, "sequence_parallel": true}})");
  const double begin = now_seconds();
  const Outcome plan = onefold({"plan", "big.json", "--ranks", "4096"});
  if (!test::kSanitized) {
    EXPECT_LT(now_seconds() - begin, 5);
  }
  ASSERT_EQ(plan.code, 0) << plan.err;
  expect_in(plan.out, {"data 8 x tensor 4 x context 2 x pipeline 8 x expert 8",
                       "and what passes between units,", "reduce_scatter along the tensor axis",
                       "all_to_all along the context axis", "all_to_all along the expert axis",
                       "between stages", "total at place 7"});
}

// Four axes at once, with validation; the plan is the run, and one rank goes on.
TEST_F(CliMesh, AxesTogetherTrainAndOneRankGoesOn) {
  const std::string model =
      R"(model={"preset": "mixtral-tiny", "vocab_size": 260, "hidden_size": 24, "num_heads": 4,
         "num_kv_heads": 2, "head_dim": 6, "experts": {"num_experts": 4, "balance_loss": 0.02}})";
  const std::vector<std::string> keys = {model,
                                         "run.steps=6",
                                         "run.save_every=3",
                                         "run.keep_last=9",
                                         "data.sequence_length=32",
                                         "run.eval_every=3",
                                         "data.validation_fraction=0.2"};
  std::vector<std::string> one = keys, divided = keys;
  one.emplace_back("gradient_accumulation_steps=4");
  divided.insert(divided.end(), {"gradient_accumulation_steps=2", "mesh.expert=2", "mesh.tensor=2",
                                 "mesh.context=2", "mesh.pipeline=2", "mesh.sequence_parallel=true",
                                 "zero_optimization.stage=2"});
  ASSERT_EQ(train_on(1, one, "one").code, 0);
  const Outcome run = train_on(16, divided, "mesh");
  ASSERT_EQ(run.code, 0) << run.err;
  const Json summary = Json::parse(run.out);
  EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
  EXPECT_LT(difference("one", "mesh"), 2e-5);
  std::filesystem::remove_all(folder_.path("mesh/checkpoints/step-00000006"));
  const Outcome back = train_on(1, one, "mesh", {"--resume", "mesh"});
  ASSERT_EQ(back.code, 0) << back.err;
  EXPECT_LT(difference("one", "mesh"), 2e-5);
}

TEST_F(CliMesh, WhatCannotBeIsRefusedInASentence) {
  expect_error(
      train({"mesh.expert=2"}, {"--quiet", "--ranks", "2"}), 1,
      {"mesh.expert is 2, and the experts of the model cannot be divided so: it has none"});
  expect_error(train({"mesh.context=5", "context.method=ulysses"}, {"--quiet", "--ranks", "5"}), 1,
               {"mesh.context is 5, and sequences cannot be divided so", "attention heads",
                "data.sequence_length"});
  expect_error(train({"mesh.tensor=2"}, {"--quiet", "--ranks", "2"}), 1,
               {"mesh.tensor is 2, and the model cannot be divided so", "attention heads"});
  expect_error(train({"mesh.tensor=2"}, {"--quiet", "--ranks", "3"}), 1,
               {"mesh.tensor is 2, and 3 rank(s) cannot be divided by it"});
}

TEST_F(CliMesh, MpiWritesTheWeightsOfThreads) {
  if (std::system("command -v mpirun > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "there is no mpirun here";
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // Open MPI's own, at its end
  const auto compare = [&](int ranks, const std::vector<std::string>& keys,
                           const std::string& name) {
    const Outcome threads = train_on(ranks, keys, name);
    ASSERT_EQ(threads.code, 0) << threads.err;
    std::vector<std::string> with_output = keys;
    with_output.push_back("run.output=" + name + "-mpi");
    const Outcome mpi =
        onefold(train_arguments(with_output, {"--quiet", "--json"}),
                {.launcher = {"mpirun", "--oversubscribe", "-n", std::to_string(ranks)}});
    ASSERT_EQ(mpi.code, 0) << mpi.err;
    EXPECT_EQ(read(name + "/weights.safetensors"), read(name + "-mpi/weights.safetensors"));
    const Json summary = Json::parse(mpi.out);
    EXPECT_EQ(summary["planned_peak_bytes"], summary["ledger_peak_bytes"]);
  };
  compare(6, {"model=llama-tiny", "mesh.tensor=3", "zero_optimization.stage=2"}, "tensor");
  compare(6,
          {"model=llama-tiny", "data.sequence_length=33", "mesh.context=3",
           "zero_optimization.stage=2"},
          "context");
  const std::vector<std::string> long_ones = {"model=llama-tiny", "data.sequence_length=67",
                                              "mesh.tensor=3", "zero_optimization.stage=2"};
  std::vector<std::string> beside = long_ones;
  beside.push_back("mesh.overlap_chunks=3");
  compare(3, beside, "beside");
  ASSERT_EQ(train_on(3, long_ones, "in-order").code, 0);
  EXPECT_EQ(read("beside/weights.safetensors"), read("in-order/weights.safetensors"));
  compare(4,
          {kExperts, "gradient_accumulation_steps=1", "mesh.expert=2", "zero_optimization.stage=2"},
          "expert");
  for (const std::string method : {"ring", "ulysses"}) {
    const std::vector<std::string> keys = {"model=llama-tiny", "data.sequence_length=36",
                                           "mesh.context=3", "context.method=" + method};
    beside = keys;
    beside.push_back("zero_optimization.overlap_comm=true");
    compare(3, beside, method + "-beside");
    ASSERT_EQ(train_on(3, keys, method + "-in-order").code, 0);
    EXPECT_EQ(read(method + "-beside/weights.safetensors"),
              read(method + "-in-order/weights.safetensors"));
  }
  const std::vector<std::string> dispatched = {
      kExperts, R"(model.experts.shared_intermediate_size=40)", "gradient_accumulation_steps=1",
      "mesh.expert=2", "zero_optimization.stage=2"};
  beside = dispatched;
  beside.push_back("zero_optimization.overlap_comm=true");
  compare(4, beside, "dispatch-beside");
  ASSERT_EQ(train_on(4, dispatched, "dispatch-in-order").code, 0);
  EXPECT_EQ(read("dispatch-beside/weights.safetensors"),
            read("dispatch-in-order/weights.safetensors"));
}

}  // namespace
}  // namespace onefold
