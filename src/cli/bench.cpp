// onefold bench: rates against a ceiling measured in the same run.
#include <algorithm>
#include <ctime>
#include <random>

#include "base/clock.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/bench_tokenizer.h"
#include "cli/cli.h"
#include "cli/roofline.h"
#include "device/rates.h"
#include "engine/engine.h"
#include "engine/launch.h"
#include "kernels/probe.h"
#include "run/traffic.h"

namespace onefold::cli {
namespace {

struct StepBench {
  std::string model = "gpt2", device = "cpu", precision = "fp32";
  int64_t batch = 4, sequence = 256;
  int threads = 0, steps = 5, warmup = 1, micros = 1, ranks = 0, stage = 0;
  bool recompute = false, tied = false, json = false;
  std::string optimizer_on = "none", parameters_on = "none", nvme_path = ".";
  double ratio = 1, host_step = 1;
  int64_t experts = 0;
  float capacity = 0;

  OffloadOptions offload() const {
    const auto tier = [](const std::string& name) {
      return name == "cpu" ? Tier::host : name == "nvme" ? Tier::disk : Tier::device;
    };
    return {.parameters = tier(parameters_on),
            .optimizer = tier(optimizer_on),
            .optimizer_ratio = ratio,
            .host_step_ratio = host_step,
            .folder = nvme_path};
  }
};

Precision precision_named(const std::string& name) {
  if (name == "fp32") return {};
  if (name == "bf16") return {.compute = DType::bf16};
  if (name == "fp16") return {.compute = DType::f16};
  if (name == "bf16-gradients") return {.compute = DType::bf16, .gradients = DType::bf16};
  if (name == "bf16-no-master")
    return {.compute = DType::bf16, .gradients = DType::bf16, .master = false};
  if (name == "bf16-states")
    return {
        .compute = DType::bf16, .gradients = DType::bf16, .master = false, .moments = DType::bf16};
  if (name == "bf16-8bit")
    return {
        .compute = DType::bf16, .gradients = DType::bf16, .master = false, .moments = DType::u8};
  user_error(
      "--precision {}: it is fp32, bf16, fp16, bf16-gradients, bf16-no-master, bf16-states or "
      "bf16-8bit",
      name);
}

// What a step of AdamW reads and writes of each parameter.
double step_bytes(const EngineOptions& options) {
  const Precision& precision = options.precision;
  double bytes =
      static_cast<double>(dtype_bytes(precision.gradients) + dtype_bytes(precision.compute));
  bytes += 2.0 * static_cast<double>(precision.has_master() ? 4 : 0);
  if (!precision.has_master()) bytes += static_cast<double>(dtype_bytes(precision.compute));
  return bytes + 4.0 * static_cast<double>(dtype_bytes(precision.moments));
}

// Seconds of the profiled step's matrix products.
double product_seconds(const KernelProfile& profile) {
  double seconds = 0;
  for (const KernelProfile::Row& row : profile.rows())
    if (row.family.starts_with("products")) seconds += row.seconds;
  return seconds;
}

// Random tokens: the time of a step does not depend on their values.
struct RandomBatch {
  std::vector<int32_t> tokens, targets;
  std::vector<int64_t> samples;
  BatchView view;

  RandomBatch(int64_t batch, int64_t sequence, int64_t vocabulary)
      : samples(static_cast<size_t>(batch)) {
    std::mt19937 random(1);
    for (int64_t i = 0; i < batch * sequence; ++i) {
      tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
      targets.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
    }
    view = {.tokens = tokens,
            .targets = targets,
            .samples = samples,
            .batch = batch,
            .sequence = sequence};
  }
};

// The preset's MLPs as mixtures that take as many operations for a token.
ModelSpec with_experts(ModelSpec spec, const StepBench& b) {
  if (spec.experts.enabled())
    user_error("--experts {}: the preset {} has experts of its own", b.experts, b.model);
  constexpr int64_t kPerToken = 2;
  spec.experts = {.count = b.experts,
                  .per_token = kPerToken,
                  .intermediate_size = spec.intermediate_size / kPerToken,
                  .capacity_factor = b.capacity};
  spec.mlp_bias = false;
  spec.complete("--experts");
  return spec;
}

// Of all choices of experts, the share that was dropped.
double dropped_share(const StepExperts& experts) {
  double sum = 0;
  for (const StepExperts::Layer& layer : experts.layers) sum += layer.dropped;
  return experts.layers.empty() ? 0 : sum / static_cast<double>(experts.layers.size());
}

// Without those of dropped choices, which nothing is computed for.
double flops_per_token(const ModelSpec& spec, int64_t sequence, double dropped) {
  const double all = spec.flops_per_token(sequence);
  if (dropped == 0) return all;
  ModelSpec fewer = spec;
  --fewer.experts.per_token;
  const auto choices = static_cast<double>(spec.experts.per_token);
  return all - dropped * choices * (all - fewer.flops_per_token(sequence));
}

// On one rank of several, or alone; the first one prints.
void measure_step(const StepBench& b, int64_t baseline, std::shared_ptr<Communicator> communicator);

// Of flags that mean something beside others alone.
void refuse_without_effect(const StepBench& b, int ranks) {
  const auto refuse_if = [](bool idle, const char* flag, const char* needs) {
    if (idle) user_error("{} has no effect without {}; leave it out", flag, needs);
  };
  const bool on_disk = b.optimizer_on == "nvme" || b.parameters_on == "nvme";
  refuse_if(b.stage != 0 && ranks == 1, "--stage", "several --ranks");
  refuse_if(b.capacity != 0 && b.experts == 0, "--capacity", "--experts");
  refuse_if(b.ratio != 1 && b.optimizer_on == "none", "--ratio", "--offload-optimizer");
  refuse_if(b.host_step != 1 && b.optimizer_on == "none", "--host-step", "--offload-optimizer");
  refuse_if(b.nvme_path != "." && !on_disk, "--nvme-path", "something on nvme");
}

int run_step(StepBench b) {
  Ranks ranks(b.ranks, {});
  refuse_without_effect(b, ranks.count());
  if (b.threads == 0) b.threads = ranks.cores();
  // The process with its libraries at work, before any training state: the matrix library generates
  // code and takes packing buffers at its first products, whatever is trained.
  if (b.device == "cpu") {
    ThreadPool pool(b.threads);
    measure_gemm_gflops(pool, 1, precision_named(b.precision).compute);
  }
  const int64_t baseline = current_rss_bytes();
  ranks.run([&](std::shared_ptr<Communicator> communicator) {
    measure_step(b, baseline, std::move(communicator));
  });
  return kOk;
}

void measure_step(const StepBench& b, int64_t baseline,
                  std::shared_ptr<Communicator> communicator) {
  ModelSpec spec = spec_from_preset(b.model, "--model");
  if (spec.vocab_size == 0)
    user_error("--model {}: its vocabulary is its tokenizer's, and a benchmark has none", b.model);
  spec.max_sequence_length = std::max(spec.max_sequence_length, b.sequence);
  spec.tie_embeddings = spec.tie_embeddings || b.tied;
  if (b.experts > 0) spec = with_experts(spec, b);
  EngineOptions options{.device = b.device,
                        .threads = b.threads,
                        .micro_batch = b.batch,
                        .sequence = b.sequence,
                        .micros = b.micros,
                        .recompute = b.recompute,
                        .zero = {.stage = b.stage},
                        .offload = b.offload(),
                        .optimizer = {.beta2 = 0.95, .weight_decay = 0.1},
                        .precision = precision_named(b.precision),
                        .clipping = 1.0};
  options.profile = std::make_shared<KernelProfile>();
  Engine engine(spec, options, std::move(communicator));
  const RandomBatch batch(b.batch, b.sequence, spec.vocab_size);
  const std::vector<BatchView> micros(static_cast<size_t>(b.micros), batch.view);
  std::vector<double> seconds, gemm, dropped;
  VerbTimes before{};
  // What the host steps goes on beside the next step: nothing may come between two of them.
  const bool one_after_another = options.offload.any();
  constexpr int kProbes = 8;  // of products, which take longer than a small step
  const int probe_every = (b.steps + kProbes - 1) / kProbes;
  for (int step = 0; step < b.warmup + b.steps; ++step) {
    if (step == b.warmup) before = engine.times();
    engine.control().exchange("begin", {});
    const double begin = now_seconds();
    const StepResult result = engine.train_step(micros, 1e-4);
    if (step + 1 == b.warmup || step + 1 == b.warmup + b.steps) engine.state();
    if (step >= b.warmup) {
      seconds.push_back(now_seconds() - begin);
      dropped.push_back(dropped_share(result.experts));
      const int timed = step + 1 - b.warmup;
      if (timed < b.steps && (one_after_another || timed % probe_every != 0)) continue;
      // Between the steps, so that other load on the machine slows both alike.
      gemm.push_back(measure_product_gflops(engine.device(), options.precision.compute, 3));
    }
  }
  const VerbTimes now = engine.times();
  // One more step, in which every kernel is timed.
  options.profile->turn(true);
  const double kept = 1 - dropped_share(engine.train_step(micros, 1e-4).experts);
  options.profile->turn(false);
  // Before the memory probe takes its own.
  const int64_t peak = peak_rss_bytes();
  const Device::DriverMemory driver = engine.device().driver_memory();
  if (engine.rank() != 0) return;
  const auto tokens = static_cast<double>(b.batch * b.sequence * b.micros * engine.ranks());
  const double rate = tokens / median(seconds);
  const double gflops = rate * flops_per_token(spec, b.sequence, median(dropped)) / 1e9,
               ceiling = median(gemm) * engine.ranks();
  const auto per_step = [&](double later, double earlier) { return (later - earlier) / b.steps; };
  const double memory_rate = measure_memory_gb_per_s(engine.device());
  const double optimizer_seconds = per_step(now.step, before.step);
  const double optimizer_rate = step_bytes(options) * static_cast<double>(spec.parameter_count()) /
                                optimizer_seconds / 1e9 / (b.stage > 0 ? engine.ranks() : 1);
  const double products = product_seconds(*options.profile);
  const Ceilings ceilings{ceiling, memory_rate, kept};
  Json result = {{"model", b.model},
                 {"batch", b.batch},
                 {"sequence", b.sequence},
                 {"micros", b.micros},
                 {"device", b.device},
                 {"precision", b.precision},
                 {"threads", engine.device().threads()},
                 {"ranks", engine.ranks()},
                 {"stage", b.stage},
                 {"tokens_per_second", rate},
                 {"step_seconds", seconds},
                 {"forward_seconds", per_step(now.forward, before.forward)},
                 {"backward_seconds", per_step(now.backward, before.backward)},
                 {"norm_seconds", per_step(now.squares, before.squares)},
                 {"optimizer_seconds", optimizer_seconds},
                 {"communication_seconds", per_step(now.communication, before.communication)},
                 {"optimizer_gb_per_s", optimizer_rate},
                 {"memory_gb_per_s", memory_rate},
                 {"gemm_gflops", ceiling},
                 {"model_gflops", gflops},
                 {"dropped_choices", median(dropped)},
                 {"gemm_fraction", gflops / ceiling},
                 {"product_seconds", products},
                 {"product_fraction", products / median(seconds)},
                 {"peak_rss_bytes", peak},
                 {"baseline_rss_bytes", baseline},
                 {"ledger_peak_bytes", engine.ledger().peak_bytes()},
                 {"mapped_bytes", driver.mapped_bytes},
                 {"driver_bytes", driver.used_bytes},
                 {"ledger_host_bytes", engine.ledger().peak_bytes(Tier::host)},
                 {"ledger_disk_bytes", engine.ledger().peak_bytes(Tier::disk)},
                 {"ledger_activation_bytes", engine.ledger().peak_bytes(Kind::activations)},
                 {"ledger_workspace_bytes", engine.ledger().peak_bytes(Kind::workspace)}};
  result["kernels"] = roofline_json(*options.profile, ceilings);
  if (b.json) return print_json(result);
  fmt::print("{}: {} x {} tokens in {}, {}", b.model, b.batch * b.micros, b.sequence, b.precision,
             b.device == "cpu" ? fmt::format("{} thread{}", engine.device().threads(),
                                             engine.device().threads() == 1 ? "" : "s")
                               : b.device);
  fmt::print("{}\n", engine.ranks() == 1 ? ""
                                         : fmt::format(" on each of {} ranks, ZeRO stage {}",
                                                       engine.ranks(), b.stage));
  fmt::print("  {:.1f} tokens/s, {:.3f} s a step (median of {})\n", rate, median(seconds), b.steps);
  fmt::print("  {:.1f} model GFLOP/s = {:.1f} % of the {:.1f} measured for matrix products\n",
             gflops, 100 * gflops / ceiling, ceiling);
  if (median(dropped) > 0)
    fmt::print("  {:.1f} % of the choices of experts are dropped, and not counted\n",
               100 * median(dropped));
  fmt::print(
      "  its own products alone take {:.3f} s: {:.1f} tokens/s, of which it reaches {:.1f} %\n",
      products, tokens / products, 100 * products / median(seconds));
  fmt::print("  forward {:.3f} s, backward {:.3f} s, norm {:.3f} s, optimizer {:.3f} s",
             per_step(now.forward, before.forward), per_step(now.backward, before.backward),
             per_step(now.squares, before.squares), optimizer_seconds);
  fmt::print("{}\n", engine.ranks() == 1
                         ? ""
                         : fmt::format(", waiting for communication {:.3f} s",
                                       per_step(now.communication, before.communication)));
  fmt::print("  optimizer at {:.1f} GB/s = {:.0f} % of the {:.1f} measured for memory\n",
             optimizer_rate, 100 * optimizer_rate / memory_rate, memory_rate);
  fmt::print("  peak resident set {}, of which the ledger{} holds {}\n{}\n{}{}", format_bytes(peak),
             engine.ranks() > 1 ? " of a rank" : "", format_bytes(engine.ledger().peak_bytes()),
             driver_text(driver), engine.ledger().table(), traffic_table(engine));
  fmt::print("\n{}", roofline_table(*options.profile, ceilings));
}

}  // namespace

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void add_bench(CLI::App& app, Run& run) {
  CLI::App* bench = app.add_subcommand("bench", "Measure rates against this machine's ceilings");
  bench->require_subcommand(1);
  bench->footer("Example:\n  onefold bench step --model gpt2 --batch 1 --sequence 1024");
  auto options = std::make_shared<StepBench>();
  CLI::App* step =
      bench->add_subcommand("step", "A whole training step: forward, backward, clipping, AdamW");
  step->add_option("--model", options->model, "A model preset")->capture_default_str();
  step->add_option("--batch", options->batch, "Sequences of a micro-batch")
      ->check(at_least(1))
      ->capture_default_str();
  step->add_option("--sequence", options->sequence, "Tokens of a sequence")
      ->check(at_least(1))
      ->capture_default_str();
  step->add_option("--micros", options->micros, "Micro-batches of a step")
      ->check(at_least(1))
      ->capture_default_str();
  step->add_option("--device", options->device, "cpu, cuda or cuda:N")->capture_default_str();
  step->add_option("--precision", options->precision,
                   "fp32; bf16 or fp16 with fp32 master weights; bf16-gradients: those too; "
                   "bf16-no-master; bf16-states; bf16-8bit")
      ->capture_default_str();
  step->add_option("--threads", options->threads,
                   "Threads of each rank; 0 divides all cores among them")
      ->check(at_least(0))
      ->capture_default_str();
  step->add_option("--ranks", options->ranks, "Ranks, as threads, each with this batch")
      ->check(at_least(1));
  step->add_option("--stage", options->stage, "ZeRO stage of several ranks")
      ->check(CLI::Range(0, 3))
      ->capture_default_str();
  step->add_option("--steps", options->steps, "Timed steps")
      ->check(at_least(1))
      ->capture_default_str();
  step->add_option("--warmup", options->warmup, "Untimed steps first")
      ->check(at_least(0))
      ->capture_default_str();
  const CLI::IsMember places({"none", "cpu", "nvme"});
  step->add_option("--offload-optimizer", options->optimizer_on,
                   "Where the optimizer's states and gradients live: none (the device), cpu, nvme")
      ->check(places)
      ->capture_default_str();
  step->add_option("--offload-param", options->parameters_on, "Where parameters live")
      ->check(places)
      ->capture_default_str();
  step->add_option("--nvme-path", options->nvme_path, "Folder on the disk")->capture_default_str();
  step->add_option("--ratio", options->ratio, "How much of the optimizer's states is offloaded")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  step->add_option("--host-step", options->host_step,
                   "How much of what is in the host's memory the host's cores step")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  step->add_option("--experts", options->experts,
                   "Makes the preset's MLPs mixtures of so many experts half as wide, of which a "
                   "token takes two: as many operations")
      ->check(at_least(2));
  step->add_option("--capacity", options->capacity,
                   "How many times its even share one of --experts takes; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  step->add_flag("--recompute", options->recompute,
                 "Keep only block inputs; compute the rest again in backward");
  step->add_flag("--tied", options->tied,
                 "Share the embedding's table with the head, whatever the preset says");
  step->add_flag("--json", options->json, "One JSON object instead of text");
  step->footer("Example:\n  onefold bench step --model gpt2 --batch 1 --sequence 1024 --threads 2");
  step->callback([options, &run] { run = [options] { return run_step(*options); }; });
  add_bench_kernels(*bench, run);
  add_bench_comm(*bench, run);
  add_bench_wire(*bench, run);
  add_bench_tokenizer(*bench, run);
  add_bench_checkpoint(*bench, run);
  add_bench_adamw(*bench, run);
  add_bench_disk(*bench, run);
}

}  // namespace onefold::cli
