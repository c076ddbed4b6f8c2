// onefold bench adamw: the host's AdamW, as a step calls it for parameters in the host's memory,
// against a loop that only reads and writes the same arrays, in turn.
#include <algorithm>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"
#include "device/device.h"
#include "kernels/probe.h"

namespace onefold::cli {
namespace {

struct AdamWBench {
  int64_t elems = 500'000'000;
  std::string precision = "fp32";
  int threads = 0, repeats = 9;
  bool json = false;

  bool half() const { return precision == "bf16"; }
  // In fp32 gradient, parameter and moments are read and the latter three written. In bf16
  // gradients are of 16 bits, the master takes the parameter's place, and the parameter is written.
  int64_t bytes_of_each() const { return half() ? 2 + 2 + 6 * 4 : 4 + 6 * 4; }
};

// What one step works on.
class States {
 public:
  States(Device& device, const AdamWBench& b)
      : device_(device), elems_(b.elems), ledger_(*device.memory(Tier::device)) {
    grads = take(b.half() ? DType::bf16 : DType::f32, 1e-3f);
    if (b.half()) params = take(DType::bf16, 0.5f);
    stepped = take(DType::f32, 0.5f);
    moment1 = take(DType::f32, 1e-3f);
    moment2 = take(DType::f32, 1e-6f);
    factor = take(DType::f32, 1, 1);
    finite = take(DType::i32, 0, 1);
    *static_cast<int32_t*>(finite.data) = 1;
  }

  Tensor grads, params, stepped, moment1, moment2, factor, finite;

 private:
  Tensor take(DType type, float value, int64_t elems = 0) {
    if (elems == 0) elems = elems_;
    blocks_.push_back(ledger_.allocate(Kind::optimizer, elems * dtype_bytes(type), "states"));
    const Tensor tensor = blocks_.back().as(1, elems, type);
    if (type != DType::i32) device_.kernels().fill(tensor, value);
    return tensor;
  }

  Device& device_;
  const int64_t elems_;
  Ledger ledger_;
  std::vector<Buffer> blocks_;
};

void step(Kernels& kernels, const AdamWBench& b, const States& s) {
  const AdamWStep one{.hyper = {.learning_rate = 1e-4f,
                                .beta1 = 0.9f,
                                .beta2 = 0.999f,
                                .eps = 1e-8f,
                                .weight_decay = 0.01f,
                                .bias_correction1 = 0.5f,
                                .bias_correction2 = 0.05f},
                      .stepped = {.params = b.half() ? s.params : s.stepped,
                                  .grads = s.grads,
                                  .master = b.half() ? s.stepped : Tensor{}},
                      .moment1 = s.moment1,
                      .moment2 = s.moment2};
  kernels.adamw({s.factor, s.finite}, {&one, 1});
}

// The loop of a piece: as little arithmetic as there can be. Lines are asked for ahead, as AdamW
// does: the loop is a ceiling, and without that it is a slower one.
constexpr int64_t kLine = 16, kAhead = 1024;  // floats
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void stream_floats(const float* __restrict g, float* __restrict p, float* __restrict m,
                   float* __restrict v, int64_t elems) {
  int64_t line = 0;
  for (; line + kLine <= elems; line += kLine) {
    __builtin_prefetch(g + line + kAhead);
    __builtin_prefetch(p + line + kAhead, 1);
    __builtin_prefetch(m + line + kAhead, 1);
    __builtin_prefetch(v + line + kAhead, 1);
    for (int64_t i = line; i < line + kLine; ++i) p[i] += g[i];
    for (int64_t i = line; i < line + kLine; ++i) m[i] += g[i];
    for (int64_t i = line; i < line + kLine; ++i) v[i] += g[i];
  }
  for (; line < elems; ++line) p[line] += g[line], m[line] += g[line], v[line] += g[line];
}
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void stream_halves(const uint16_t* __restrict g, uint16_t* __restrict copy, float* __restrict p,
                   float* __restrict m, float* __restrict v, int64_t elems) {
  int64_t line = 0;
  for (; line + kLine <= elems; line += kLine) {
    __builtin_prefetch(g + line + kAhead);
    __builtin_prefetch(p + line + kAhead, 1);
    __builtin_prefetch(m + line + kAhead, 1);
    __builtin_prefetch(v + line + kAhead, 1);
    for (int64_t i = line; i < line + kLine; ++i) p[i] += 1;
    for (int64_t i = line; i < line + kLine; ++i) m[i] += 1;
    for (int64_t i = line; i < line + kLine; ++i) v[i] += 1;
    for (int64_t i = line; i < line + kLine; ++i) copy[i] = g[i];
  }
  for (; line < elems; ++line) p[line] += 1, m[line] += 1, v[line] += 1, copy[line] = g[line];
}

void stream(ThreadPool& pool, const AdamWBench& b, const States& s) {
  constexpr int64_t kPiece = int64_t{1} << 14;
  const auto at = [](const Tensor& tensor, int64_t first) {
    return static_cast<std::byte*>(tensor.data) + first * dtype_bytes(tensor.dtype);
  };
  const auto floats = [&](const Tensor& tensor, int64_t first) {
    return reinterpret_cast<float*>(at(tensor, first));
  };
  const auto halves = [&](const Tensor& tensor, int64_t first) {
    return reinterpret_cast<uint16_t*>(at(tensor, first));
  };
  pool.run((b.elems + kPiece - 1) / kPiece, [&](int64_t piece, int) {
    const int64_t first = piece * kPiece, elems = std::min(kPiece, b.elems - first);
    float* const p = floats(s.stepped, first);
    float* const m = floats(s.moment1, first);
    float* const v = floats(s.moment2, first);
    if (b.half())
      stream_halves(halves(s.grads, first), halves(s.params, first), p, m, v, elems);
    else
      stream_floats(floats(s.grads, first), p, m, v, elems);
  });
}

int run_adamw(const AdamWBench& b) {
  if (b.precision != "fp32" && b.precision != "bf16")
    user_error("--precision {}: it is fp32 or bf16", b.precision);
  const std::unique_ptr<Device> device = open_device("cpu", b.threads);
  const States states(*device, b);
  const auto seconds_of = [](const auto& work) {
    const double begin = now_seconds();
    work();
    return now_seconds() - begin;
  };
  std::vector<double> steps, streams;
  for (int repeat = -1; repeat < b.repeats; ++repeat) {  // the first one warms up
    const double stepping = seconds_of([&] { step(device->kernels(), b, states); });
    const double streaming = seconds_of([&] { stream(*device->pool(), b, states); });
    if (repeat < 0) continue;
    steps.push_back(stepping);
    streams.push_back(streaming);
  }
  const auto bytes = static_cast<double>(b.elems * b.bytes_of_each());
  const double share = median(streams) / median(steps),
               memory = measure_memory_gb_per_s(*device->pool());
  if (b.json) {
    print_json({{"elems", b.elems},
                {"precision", b.precision},
                {"threads", device->threads()},
                {"seconds", steps},
                {"stream_seconds", streams},
                {"gb_per_s", bytes / median(steps) / 1e9},
                {"stream_gb_per_s", bytes / median(streams) / 1e9},
                {"stream_fraction", share},
                {"memory_gb_per_s", memory}});
    return kOk;
  }
  fmt::print("AdamW of {} parameters in {} on {} thread{}, medians of {}\n", b.elems, b.precision,
             device->threads(), device->threads() == 1 ? "" : "s", b.repeats);
  fmt::print("  a step   {:8.4f} s, {:6.1f} GB/s: {:.1f} % of the loop's rate\n", median(steps),
             bytes / median(steps) / 1e9, 100 * share);
  fmt::print("  the loop {:8.4f} s, {:6.1f} GB/s\n", median(streams),
             bytes / median(streams) / 1e9);
  fmt::print("  a sum of long vectors: {:.1f} GB/s\n", memory);
  return kOk;
}

}  // namespace

void add_bench_adamw(CLI::App& bench, Run& run) {
  auto b = std::make_shared<AdamWBench>();
  CLI::App* command = bench.add_subcommand(
      "adamw", "The host's AdamW, against a loop that reads and writes the same arrays");
  command->add_option("--elems", b->elems, "Parameters")->check(at_least(1))->capture_default_str();
  command->add_option("--precision", b->precision, "fp32, or bf16 with a master copy")
      ->capture_default_str();
  command->add_option("--threads", b->threads, "Threads; 0 is one for each core")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--repeats", b->repeats, "Timed repeats of each; medians are printed")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_flag("--json", b->json, "One JSON object instead of text");
  command->footer("Example:\n  onefold bench adamw --elems 100000000 --threads 2");
  command->callback([b, &run] { run = [b] { return run_adamw(*b); }; });
}

}  // namespace onefold::cli
