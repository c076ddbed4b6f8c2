// Plans for hardware that is described, and what they refuse.
#include <sched.h>
#include <sys/resource.h>

#include "cli/support.h"
#include "sanitized.h"

namespace onefold {
namespace {

class CliPlan : public Cli {
 protected:
  CliPlan() {
    folder_.write("plan.json", R"({"model": {"preset": "gpt2", "vocab_size": 512},
                                   "train_micro_batch_size_per_gpu": 1,
                                   "zero_optimization": {"stage": 3}})");
    folder_.write("big.json", R"({"name": "big", "cores": 192, "instruction_set": "AVX3",
                                  "device_memory": "3GiB"})");
  }
  Json plan(Arguments more) {
    Arguments arguments = {"plan", "plan.json", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = onefold(arguments);
    EXPECT_LE(outcome.code, 1) << outcome.err;
    return Json::parse(outcome.out);
  }
};

TEST_F(CliPlan, IsForTheDescribedCoresWhateverThisMachineHas) {
  // A narrow MLP, beside which the scratch of threads shows.
  folder_.write("plan.json",
                R"({"model": {"preset": "gpt2", "vocab_size": 512, "intermediate_size": 768},
                                 "train_micro_batch_size_per_gpu": 1})");
  const Json described = plan({"--hardware", "big.json"}), one = plan({});
  EXPECT_EQ(described["hardware"]["cores"], 192);
  EXPECT_EQ(described["hardware"]["instruction_set"], "AVX3");
  EXPECT_GT(described["planned_bytes"]["workspace"], one["planned_bytes"]["workspace"]);
  // More threads than this machine has cores, by the command line or by the configuration.
  EXPECT_EQ(plan({"--threads", "192"})["planned_peak_bytes"], described["planned_peak_bytes"]);
  EXPECT_EQ(plan({"--set", "run.threads=192"})["planned_peak_bytes"],
            described["planned_peak_bytes"]);
}

// On one core the machine looks like another one: to whoever counts cores, and to whoever binds to
// them or measures them.
TEST_F(CliPlan, IsTheSameToTheByteWhereverItIsMade) {
  const auto made = [&] {
    const Outcome outcome = onefold(
        {"plan", "plan.json", "--hardware", "big.json", "--ranks", "8", "--program", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  const std::string here = made();
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // which the program inherits
  const std::string elsewhere = made();
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(here, elsewhere);
}

TEST_F(CliPlan, TheDescribedMemoryIsTheLimit) {
  EXPECT_EQ(plan({"--hardware", "big.json"})["fits"], true);
  folder_.write("small.json", R"({"device_memory": "1GiB"})");
  EXPECT_EQ(plan({"--hardware", "small.json"})["fits"], false);
  EXPECT_EQ(plan({"--hardware", "small.json", "--memory", "64GiB"})["fits"], true);
}

TEST_F(CliPlan, WhatACardsDriverTakesIsCountedBesideTheRunAndHeldBack) {
  const Json free = plan({"--hardware", "big.json"});
  EXPECT_EQ(free["context_bytes"], 0);
  const auto peak = free["planned_peak_bytes"].get<int64_t>();
  const auto card = [&](int64_t memory, int64_t context) {
    folder_.write("card.json", fmt::format(R"({{"cores": 192, "instruction_set": "AVX3",
                                  "device_memory": {}, "context": {}}})",
                                           memory, context));
    return plan({"--hardware", "card.json"});
  };
  EXPECT_EQ(card(peak + 1000, 1000)["fits"], true);
  EXPECT_EQ(card(peak + 1000, 1001)["fits"], false);
  EXPECT_EQ(card(peak + 1000, 1001)["context_bytes"], 1001);
  EXPECT_EQ(card(peak + 1000, 1001)["planned_peak_bytes"], peak);  // the ledger's, to the byte
  const Outcome told = onefold({"plan", "plan.json", "--hardware", "h200"});
  expect_in(told.out, {"context", "590.0 MiB", "in all"});
}

TEST_F(CliPlan, HardwareThatIsNotThereIsNamed) {
  const Outcome unknown = onefold({"plan", "plan.json", "--hardware", "server-6"});
  EXPECT_EQ(unknown.code, 1);
  expect_in(unknown.err, {"no hardware \"server-6\"", "server-64"});
  folder_.write("bad.json", R"({"core": 4})");
  const Outcome bad = onefold({"plan", "plan.json", "--hardware", "bad.json"});
  EXPECT_EQ(bad.code, 1);
  expect_in(bad.err, {"bad.json", "core"});
}

// Seconds of processors that the program's runs have taken; whatever else the machine does.
double seconds_of_runs() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Accumulation, ranks and sequences are walked, not extrapolated, and each plan takes half a second
// at most; it was 20 to 36 once.
TEST_F(CliPlan, TakesNoLongerForMoreOfTheSame) {
  const double most = test::kSanitized ? 60 : 5;
  const auto in_time = [&](const Arguments& arguments) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(arguments, " ")));
    const double before = seconds_of_runs();
    EXPECT_GT(plan(arguments)["planned_peak_bytes"], 0);
    EXPECT_LT(seconds_of_runs() - before, most);
  };
  in_time({"--set", "train_micro_batch_size_per_gpu=100000"});
  folder_.write("plan.json", R"({"model": "llama-2-7b", "train_micro_batch_size_per_gpu": 1,
      "gradient_accumulation_steps": 512, "zero_optimization": {"stage": 3}})");
  in_time({"--ranks", "8"});
  folder_.write("plan.json", R"({"model": {"preset": "llama-2-70b", "num_layers": 128,
      "hidden_size": 25600, "intermediate_size": 68096, "num_heads": 160, "num_kv_heads": 160},
      "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 64,
      "zero_optimization": {"stage": 3}})");  // 1.01T parameters
  in_time({"--ranks", "10000"});
}

TEST_F(CliPlan, PredictsTimeForHardwareThatIsNamed) {
  EXPECT_FALSE(plan({}).contains("predicted_step_seconds"));
  const Json fast = plan({"--hardware", "h200", "--ranks", "2"});
  EXPECT_GT(fast["predicted_step_seconds"], 0.0);
  EXPECT_NEAR(fast["predicted_tokens_per_second"].get<double>() *
                  fast["predicted_step_seconds"].get<double>(),
              2 * 1024, 1e-3);
  EXPECT_TRUE(fast.contains("predicted_bound_by"));
  double waits = 0;
  for (const Json& lane : fast["predicted_lanes"]) {
    EXPECT_GE(lane["busy_seconds"], lane["exposed_seconds"]);
    waits += lane["exposed_seconds"].get<double>();
  }
  EXPECT_NEAR(fast["predicted_product_seconds"].get<double>() +
                  fast["predicted_other_seconds"].get<double>() + waits,
              fast["predicted_step_seconds"], 1e-3);
  EXPECT_GT(plan({"--hardware", "a100", "--ranks", "2"})["predicted_step_seconds"],
            fast["predicted_step_seconds"]);
  const Outcome text = onefold({"plan", "plan.json", "--hardware", "h200"});
  expect_in(text.out, {"time     ", "tokens/s, as predicted for h200; bound by", "products"});
}

TEST_F(CliPlan, WritesThePredictedTimeline) {
  expect_error(onefold({"plan", "plan.json", "--trace", "step.json"}), 2,
               {"--trace", "requires", "--hardware"});
  const Outcome outcome =
      onefold({"plan", "plan.json", "--ranks", "2", "--hardware", "h200", "--trace", "step.json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json trace = Json::parse(read("step.json"));
  double end = 0;
  bool gathers = false;
  for (const Json& event : trace["traceEvents"]) {
    if (!event.contains("dur")) continue;
    EXPECT_GE(event["ts"], 0.0);
    end = std::max(end, event["ts"].get<double>() + event["dur"].get<double>());
    gathers |= event["name"].get<std::string>().starts_with("gather block.3");
  }
  EXPECT_TRUE(gathers);
  const Json planned = plan({"--hardware", "h200", "--ranks", "2"});
  EXPECT_NEAR(end / 1e6, planned["predicted_step_seconds"], 1e-5);
  expect_error(onefold({"plan", "plan.json", "--hardware", "h200", "--trace", "step.json"}), 1,
               {"--trace", "step.json"});
}

TEST_F(CliPlan, FitFindsALayoutAndWritesIt) {
  folder_.write("open.json", R"({"model": {"preset": "gpt2", "vocab_size": 512},
                                 "train_batch_size": 8, "data": {"sequence_length": 128},
                                 "run": {"recompute": false}, "bf16": {"enabled": true}})");
  const Arguments fit = {"plan",     "open.json", "--fit",      "--ranks", "2",
                         "--memory", "1200MiB",   "--hardware", "laptop"};
  Arguments writes = fit;
  writes.insert(writes.end(), {"--output", "fast.json"});
  const Outcome text = onefold(writes);
  ASSERT_EQ(text.code, 0) << text.err;
  expect_in(text.out, {"tokens/s", "device", "layout", "1.17 GiB of the device", "The first",
                       "by the rates of laptop", "the first is in fast.json"});
  Arguments json = fit;
  json.push_back("--json");
  const Json found = Json::parse(onefold(json).out);
  EXPECT_EQ(found["fits"], true);
  const Json& best = found["layouts"][0];
  EXPECT_LE(best["planned_peak_bytes"], 1200 << 20);
  EXPECT_EQ(best["recompute"], false);
  EXPECT_EQ(best["micro_batch"].get<int64_t>() * best["accumulation"].get<int64_t>(), 4);
  // The file that was written is that layout, and keeps the rest.
  const Json planned = Json::parse(
      onefold({"plan", "fast.json", "--ranks", "2", "--hardware", "laptop", "--json"}).out);
  EXPECT_EQ(planned["planned_peak_bytes"], best["planned_peak_bytes"]);
  EXPECT_NEAR(planned["predicted_step_seconds"].get<double>(), best["predicted_step_seconds"],
              1e-6);
  EXPECT_EQ(planned["configuration"]["train_batch_size"], 8);
  EXPECT_EQ(planned["configuration"]["bf16"]["enabled"], true);
  expect_error(onefold(writes), 1, {"--output", "fast.json"});
}

// The table names the mesh, and the file that is written is what was planned.
TEST_F(CliPlan, FitFindsAMesh) {
  folder_.write("slow.json", R"({"name": "slow", "device": "cpu", "product_gflops": 1,
      "memory_gb_per_s": 0.5, "link_gb_per_s": 0.5, "host_ranks": 2,
      "between_hosts_gb_per_s": 0.001})");
  folder_.write("open.json", R"({"model": {"preset": "llama-tiny", "vocab_size": 96,
                                           "tie_embeddings": false},
      "train_batch_size": 8, "mesh": "auto", "data": {"sequence_length": 64}})");
  const Arguments fit = {"plan", "open.json",  "--fit",     "--ranks",
                         "4",    "--hardware", "slow.json", "--json"};
  Arguments writes = fit;
  writes.insert(writes.end(), {"--output", "fast.json"});
  const Outcome outcome = onefold(writes);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json best = Json::parse(outcome.out)["layouts"][0];
  const Json& mesh = best["mesh"];
  // Data ranks would sum all gradients between hosts.
  EXPECT_GT(mesh["pipeline"], 1) << best.dump();
  EXPECT_EQ(mesh["data"].get<int>() * mesh["tensor"].get<int>() * mesh["pipeline"].get<int>() *
                mesh["context"].get<int>() * mesh["expert"].get<int>(),
            4);
  EXPECT_EQ(best["micro_batch"].get<int>() * best["accumulation"].get<int>() *
                mesh["data"].get<int>() * mesh["expert"].get<int>(),
            8);
  const Json planned = Json::parse(
      onefold({"plan", "fast.json", "--ranks", "4", "--hardware", "slow.json", "--json"}).out);
  EXPECT_EQ(planned["planned_peak_bytes"], best["planned_peak_bytes"]);
  EXPECT_NEAR(planned["predicted_step_seconds"].get<double>(), best["predicted_step_seconds"],
              1e-6);
  EXPECT_EQ(planned["configuration"]["mesh"]["pipeline"], mesh["pipeline"]);
  Arguments text = fit;
  text.pop_back();
  expect_in(onefold(text).out, {"pipeline 2 (", "The first"});
  // What --fit leaves open, `plan` finds where it is "auto".
  const Json settled = Json::parse(
      onefold({"plan", "open.json", "--ranks", "4", "--hardware", "slow.json", "--json"}).out);
  EXPECT_EQ(settled["configuration"]["mesh"]["pipeline"], mesh["pipeline"]);
  EXPECT_EQ(settled["configuration"]["train_batch_size"], 8);
  // What is given stays.
  Arguments tensor = fit;
  tensor.insert(tensor.end(), {"--set", R"(mesh={"tensor": 2, "pipeline": "auto"})"});
  for (const Json& layout : Json::parse(onefold(tensor).out)["layouts"])
    EXPECT_EQ(layout["mesh"]["tensor"], 2);
}

TEST_F(CliPlan, AMeshThatIsAutoSaysWhatItLacks) {
  expect_error(onefold({"plan", "plan.json", "--ranks", "4", "--set", "mesh=auto", "--set",
                        "train_batch_size=null"}),
               1, {"mesh is \"auto\"", "set train_batch_size"});
  expect_error(onefold({"plan", "plan.json", "--ranks", "4", "--set",
                        R"(mesh={"data": 3, "tensor": "auto"})", "--set", "train_batch_size=8"}),
               1, {"no mesh of 4 ranks goes with what the configuration says", "mesh.data"});
}

// What is wrong whatever the mesh is said as it is without one.
TEST_F(CliPlan, ErrorsThatAreNoneOfTheMeshAreSaidThemselves) {
  const auto error_on = [&](const char* ranks, const Arguments& keys) {
    Arguments all = {"plan", "plan.json", "--ranks", ranks};
    for (const std::string& key : keys) all.insert(all.end(), {"--set", key});
    const Outcome outcome = onefold(all);
    EXPECT_EQ(outcome.code, 1) << outcome.out;
    return outcome.err;
  };
  const Arguments open = {"mesh=auto", "train_batch_size=8"};
  for (const char* ranks : {"4", "7"})  // no data axis of 7 divides the batch
    for (const char* wrong : {"optimizer.params.lr=-1", "optimizzer=1", "run.steps=0"}) {
      Arguments keys = open;
      keys.emplace_back(wrong);
      EXPECT_EQ(error_on(ranks, keys), error_on("1", {wrong})) << ranks << " " << wrong;
    }
  Arguments two = open;
  two.insert(two.end(), {"optimizer.params.lr=-1", "optimizzer=1"});
  const std::string both = error_on("7", two);
  EXPECT_EQ(both.find("no mesh"), std::string::npos) << both;
  EXPECT_EQ(both.find("train_batch_size"), std::string::npos) << both;
  expect_in(both, {"2 problems", "lr must be greater than 0", "did you mean \"optimizer\""});
  // An axis that has a number, and does not divide the ranks.
  expect_in(error_on("4", {R"(mesh={"tensor": "auto", "pipeline": 3})", "train_batch_size=8"}),
            {"mesh.pipeline is 3", "--ranks 3"});
}

TEST_F(CliPlan, FitSaysWhereNothingFits) {
  const Outcome outcome = onefold({"plan", "plan.json", "--fit", "--memory", "1MiB"});
  EXPECT_EQ(outcome.code, 1);
  expect_in(outcome.out, {"nothing fits", "takes", "--host-memory or --disk"});
  const Outcome disk =
      onefold({"plan", "plan.json", "--fit", "--memory", "200MiB", "--disk", "10GiB"});
  EXPECT_EQ(disk.code, 0) << disk.out;
  expect_in(disk.out, {"on the disk", "10.0 GiB of the disk"});
  expect_error(onefold({"plan", "plan.json", "--disk", "1GiB"}), 2, {"--disk", "--fit"});
}

TEST_F(CliPlan, AutoIsTheFastestLayoutThatFits) {
  const Json whole = plan({"--ranks", "2", "--set", "zero_optimization.stage=0"});
  const std::string limit = std::to_string(whole["planned_peak_bytes"].get<int64_t>() * 3 / 4);
  const Json settled = plan({"--ranks", "2", "--set", "zero_optimization.stage=auto", "--memory",
                             limit, "--hardware", "laptop"});
  EXPECT_EQ(settled["fits"], true);
  EXPECT_GT(settled["configuration"]["zero_optimization"]["stage"], 0);
}

}  // namespace
}  // namespace onefold
