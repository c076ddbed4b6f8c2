// onefold bench products: the matrix products of a training step, by the library and paired. Rates
// side by side, and how far either is from the exact result.
#include <algorithm>
#include <cmath>
#include <random>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"
#include "kernels/kernels.h"
#include "model/unit.h"
#include "tensor/ledger.h"

namespace onefold::cli {
namespace {

struct ProductsBench {
  std::string model = "gpt2";
  int64_t tokens = 1024;
  int threads = 0, repeats = 5;
  bool json = false;
};

// One weight's product in forward, or one of its two in backward.
struct Shape {
  std::string name;
  int64_t m, n, k;
  bool a_transposed, b_transposed;
};

std::vector<Shape> shapes_of(const ModelSpec& spec, int64_t tokens) {
  struct Weight {
    const char* name;
    int64_t out, in, tokens;
  };
  // The head sees as many tokens at a time as keep its logits small (model/head.cpp).
  const int64_t head = head_chunk_tokens(tokens, spec.vocab_size);
  const Weight weights[] = {
      {"qkv", spec.qkv_size(), spec.hidden_size, tokens},
      {"out", spec.hidden_size, spec.query_size(), tokens},
      {"up", spec.intermediate_size * (spec.gated ? 2 : 1), spec.hidden_size, tokens},
      {"down", spec.hidden_size, spec.intermediate_size, tokens},
      {"head", spec.vocab_size, spec.hidden_size, head}};
  std::vector<Shape> shapes;
  for (const Weight& w : weights) {
    const std::string name = w.name;
    shapes.push_back({name, w.tokens, w.out, w.in, false, true});
    shapes.push_back({name + ", input's gradient", w.tokens, w.in, w.out, false, false});
    shapes.push_back({name + ", weight's gradient", w.out, w.in, w.tokens, true, false});
  }
  return shapes;
}

struct Way {
  std::unique_ptr<Kernels> kernels;
  std::vector<double> seconds;
  double squared_error = 0;
};

// Activations of variance 1 and weights of GPT-2's initial deviation.
void fill_normal(Tensor x, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  for (int64_t i = 0; i < x.elems(); ++i) x.f32()[i] = normal(random);
}

Json measure(const ProductsBench& b, const Shape& s, ThreadPool& pool) {
  Ledger ledger;  // as training has it: on huge pages where the system grants them
  const auto allocate = [&](int64_t elems) {
    return ledger.allocate(Kind::workspace, elems * dtype_bytes(DType::f32), "products");
  };
  const Buffer a = allocate(s.m * s.k), c = allocate(s.k * s.n), dst = allocate(s.m * s.n);
  Gemm gemm{.a = s.a_transposed ? a.as(s.k, s.m) : a.as(s.m, s.k),
            .b = s.b_transposed ? c.as(s.n, s.k) : c.as(s.k, s.n),
            .dst = dst.as(s.m, s.n),
            .a_transposed = s.a_transposed,
            .b_transposed = s.b_transposed};
  fill_normal(gemm.a, 1.0f, 1);
  fill_normal(gemm.b, 0.02f, 2);
  Way library{make_cpu_kernels(pool, Products::library)};
  Way paired{make_cpu_kernels(pool, Products::paired)};
  const int64_t elems = paired.kernels->gemm_scratch(gemm);
  const Buffer scratch = allocate(elems);

  // Exact results of some elements.
  constexpr int kSamples = 512;
  std::mt19937 random(3);
  std::vector<std::pair<int64_t, int64_t>> places;
  std::vector<double> exact;
  double squares = 0;
  for (int i = 0; i < kSamples; ++i) {
    const int64_t row = random() % static_cast<uint64_t>(s.m),
                  col = random() % static_cast<uint64_t>(s.n);
    double sum = 0;
    for (int64_t k = 0; k < s.k; ++k)
      sum += static_cast<double>(gemm.a.f32()[s.a_transposed ? k * s.m + row : row * s.k + k]) *
             gemm.b.f32()[s.b_transposed ? col * s.k + k : k * s.n + col];
    places.emplace_back(row, col);
    exact.push_back(sum);
    squares += sum * sum;
  }

  for (int repeat = 0; repeat <= b.repeats; ++repeat)
    for (Way* way : {&library, &paired}) {
      gemm.scratch = way == &paired ? scratch.as(1, elems) : Tensor{};
      const double begin = now_seconds();
      way->kernels->gemm(gemm);
      if (repeat > 0) {  // the first one warms up, and is compared
        way->seconds.push_back(now_seconds() - begin);
        continue;
      }
      for (size_t i = 0; i < places.size(); ++i)
        way->squared_error +=
            std::pow(gemm.dst.f32()[places[i].first * s.n + places[i].second] - exact[i], 2);
    }
  const double gflop =
      2e-9 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  const double by_library = median(library.seconds), by_pairs = median(paired.seconds);
  return {{"product", s.name},
          {"m", s.m},
          {"n", s.n},
          {"k", s.k},
          {"library_seconds", by_library},
          {"paired_seconds", by_pairs},
          {"library_gflops", gflop / by_library},
          {"paired_gflops", gflop / by_pairs},
          {"ratio", by_library / by_pairs},
          {"library_error", std::sqrt(library.squared_error / squares)},
          {"paired_error", std::sqrt(paired.squared_error / squares)}};
}

int run_products(const ProductsBench& b) {
  const ModelSpec spec = spec_from_preset(b.model, "--model");
  if (spec.vocab_size == 0)
    user_error("--model {}: its vocabulary is its tokenizer's, and a benchmark has none", b.model);
  ThreadPool pool(b.threads);
  if (!b.json)
    fmt::print(
        "{}, {} tokens, {} thread{}; GFLOP/s, and errors as root mean squares relative to the "
        "results\n\n{:<23}{:>7}{:>7}{:>7}{:>10}{:>9}{:>8}{:>12}{:>10}\n",
        b.model, b.tokens, pool.threads(), pool.threads() == 1 ? "" : "s", "product", "m", "n", "k",
        "library", "paired", "ratio", "library", "paired");
  Json rows = Json::array();
  double library = 0, paired = 0;
  for (const Shape& shape : shapes_of(spec, b.tokens)) {
    const Json row = measure(b, shape, pool);
    library += row["library_seconds"].get<double>();
    paired += row["paired_seconds"].get<double>();
    if (!b.json)
      fmt::print("{:<23}{:>7}{:>7}{:>7}{:>10.1f}{:>9.1f}{:>7.2f}x{:>12.1e}{:>10.1e}\n", shape.name,
                 shape.m, shape.n, shape.k, row["library_gflops"].get<double>(),
                 row["paired_gflops"].get<double>(), row["ratio"].get<double>(),
                 row["library_error"].get<double>(), row["paired_error"].get<double>());
    rows.push_back(row);
  }
  if (b.json)
    print_json({{"model", b.model},
                {"tokens", b.tokens},
                {"threads", pool.threads()},
                {"paired_products", cpu_gains_by_pairing()},
                {"products", rows},
                {"ratio", library / paired}});
  else
    fmt::print("\nall of them once: {:.2f}x. Training on this processor {}\n", library / paired,
               cpu_gains_by_pairing() ? "pairs large products (run.products)"
                                      : "leaves products to the library (run.products)");
  return kOk;
}

}  // namespace

void add_bench_products(CLI::App& bench, Run& run) {
  auto options = std::make_shared<ProductsBench>();
  CLI::App* products = bench.add_subcommand(
      "products", "The matrix products of a step, by the library and paired: rates and errors");
  products->add_option("--model", options->model, "A model preset")->capture_default_str();
  products->add_option("--tokens", options->tokens, "Tokens of a micro-batch")
      ->check(at_least(1))
      ->capture_default_str();
  products->add_option("--threads", options->threads, "Threads; 0 is one for each core")
      ->check(at_least(0))
      ->capture_default_str();
  products->add_option("--repeats", options->repeats, "Timed products of each kind")
      ->check(at_least(1))
      ->capture_default_str();
  products->add_flag("--json", options->json, "One JSON object instead of text");
  products->footer("Example:\n  onefold bench products --model gpt2 --tokens 1024 --threads 2");
  products->callback([options, &run] { run = [options] { return run_products(*options); }; });
}

}  // namespace onefold::cli
