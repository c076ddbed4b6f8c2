#include "engine/ranks/matrix.h"

#include <map>

#include "comm/call_record.h"
#include "engine/compressions.h"
#include "engine/optimizers.h"
#include "engine/ranks.h"

namespace onefold::test {
namespace {

constexpr int64_t kAll = int64_t{1} << 40;
constexpr int64_t kPrefetches[] = {0, ZeroOptions::kAuto, kAll};
// The tiny models' units have 10 to 20 thousand elements: alone, by two or three, all together.
constexpr int64_t kBuckets[] = {0, 40000, kAll};

std::string size_name(int64_t elems) {
  if (elems == ZeroOptions::kAuto) return "1";
  return elems == kAll ? "all" : std::to_string(elems);
}

// What a rank ends with, as numbers that it can exchange: a double holds 53 bits.
struct Result {
  uint64_t hash = 0;
  std::array<int64_t, kKinds + 1> peaks{};  // by kind, and of all together

  static constexpr size_t kNumbers = kKinds + 3;
  std::vector<double> numbers() const {
    std::vector<double> all{static_cast<double>(hash >> 32),
                            static_cast<double>(hash & 0xffffffff)};
    for (const int64_t peak : peaks) all.push_back(static_cast<double>(peak));
    return all;
  }
  explicit Result(std::span<const double> all)
      : hash(static_cast<uint64_t>(all[0]) << 32 | static_cast<uint64_t>(all[1])) {
    for (size_t i = 0; i < peaks.size(); ++i) peaks[i] = static_cast<int64_t>(all[i + 2]);
  }
  Result(uint64_t hash, const Ledger& ledger) : hash(hash) {
    for (size_t kind = 0; kind < kKinds; ++kind)
      peaks[kind] = ledger.peak_bytes(static_cast<Kind>(kind));
    peaks[kKinds] = ledger.peak_bytes();
  }
};

std::string peak_name(size_t i) { return i == kKinds ? "all" : kind_name(static_cast<Kind>(i)); }

uint64_t hash_of(Engine& engine, const std::vector<double>& losses) {
  uint64_t hash = hash_bytes(losses.data(), losses.size() * sizeof(double));
  for_each_parameter(engine, [&](const ParamSpec&, std::span<const float> values) {
    hash = hash_bytes(values.data(), values.size_bytes(), hash);
  });
  return hash;
}

// Every rank's result.
std::vector<Result> train(const Configuration& configuration, int steps,
                          const std::shared_ptr<Communicator>& communicator) {
  Engine engine(configuration.spec(), configuration.options(), communicator);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) losses.push_back(train_step(engine).loss);
  Result mine(0, engine.ledger());  // before a sharded unit is gathered for its hash
  mine.hash = hash_of(engine, losses);
  const std::vector<double> all = engine.control().exchange("results", mine.numbers());
  std::vector<Result> results;
  for (size_t i = 0; i < all.size(); i += Result::kNumbers)
    results.emplace_back(std::span(all).subspan(i, Result::kNumbers));
  return results;
}

// `plans`: of each share of a model.
void expect_planned(const Configuration& configuration,
                    const std::vector<std::unique_ptr<Engine>>& plans,
                    const std::vector<Result>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const Result planned(0, plans[rank % plans.size()]->ledger());
    for (size_t i = 0; i < planned.peaks.size(); ++i)
      if (results[rank].peaks[i] != planned.peaks[i])
        user_error("{}: rank {} has a peak of {} bytes ({}), and {} were planned",
                   configuration.name(), rank, results[rank].peaks[i], peak_name(i),
                   planned.peaks[i]);
  }
}

// The first configuration of each batch decides what the others must end with.
class Hashes {
 public:
  void expect_same(const Configuration& configuration, const std::vector<Result>& results) {
    const auto [first, is_first] =
        first_.try_emplace(configuration.batch(), configuration.name(), results[0].hash);
    const auto& [name, hash] = first->second;
    for (size_t rank = 0; rank < results.size(); ++rank)
      if (results[rank].hash != hash)
        user_error("{}: rank {} ends with {:016x}, and \"{}\" has ended with {:016x}",
                   configuration.name(), rank, results[rank].hash, name, hash);
  }

 private:
  std::map<std::string, std::pair<std::string, uint64_t>> first_;
};

void print(const Configuration& configuration, const std::vector<Result>& results,
           int64_t planned_bytes) {
  std::string peaks;
  for (const Result& result : results) peaks += fmt::format(" {}", result.peaks[kKinds]);
  fmt::print("{} | {:016x} | {} |{}\n", configuration.name(), results[0].hash, planned_bytes,
             peaks);
  std::fflush(stdout);
}

}  // namespace

// A compression of local steps.
constexpr const char* kMoves = "moves";

ModelSpec Configuration::spec() const {
  ModelSpec spec = spec_from_preset(model, "test");
  if (axes.expert > 1) spec.experts.count = 4;  // of five
  if (axes.tensor == 1 && axes.context == 1) return spec;
  spec.num_heads = spec.num_kv_heads = 4;  // the presets' three cannot be divided
  spec.head_dim = 6;
  spec.hidden_size = 24;
  return spec;
}

EngineOptions Configuration::options() const {
  EngineOptions options{.threads = 1,
                        .micro_batch = 1,
                        .sequence = 11,
                        .micros = micros,
                        .order = order,
                        .clipping = 1.0};
  options.tensor = axes.tensor;
  options.context = axes.context;
  options.expert = axes.expert;
  if (options.context > 1) options.sequence = 12;
  options.zero.stage = stage;
  options.zero.persistence_elems = 0;
  options.zero.prefetch_elems = prefetch_elems;
  options.zero.reduce_bucket_elems = options.zero.gather_bucket_elems = bucket_elems;
  for (const NamedOptimizer& one : all_optimizers())
    if (optimizer == one.name && optimizer != "adamw") options.optimizer = one.spec;
  for (const NamedCompression& one : all_compressions())
    if (compression == one.name) options.compression = one.options;
  if (compression == kMoves) {
    options.optimizer = {.eps = 1e-2, .bias_correction = false, .freeze_step = 1};
    options.compression.gradients = {.type = WireFormat::Type::sign};
    options.local = {.steps = 4, .sums_moves = true, .scaler = 8, .whole_steps = 1};
  }
  return options;
}

std::string Configuration::batch() const {
  return fmt::format("{}, {} micro-batches{}", model, micros,
                     (optimizer == "adamw" ? "" : ", " + optimizer) +
                         (compression.empty() ? "" : ", " + compression) +
                         (axes.tensor > 1    ? ", tensor"
                          : axes.context > 1 ? ", context"
                          : axes.expert > 1  ? ", expert"
                                             : ""));
}

std::string Configuration::name() const {
  return fmt::format("{} {}, stage {}, prefetch {}, bucket {}", batch(), order_name(order), stage,
                     size_name(prefetch_elems), size_name(bucket_elems));
}

std::vector<Configuration> matrix(bool quick) {
  const std::pair<int, Order> splits[] = {
      {1, Order::micro_first}, {4, Order::micro_first}, {4, Order::unit_first}};
  std::vector<Configuration> all;
  size_t turn = 0;  // whose travel it is, in the quick matrix
  for (const char* model : {"gpt2-tiny", "llama-tiny"})
    for (const auto& [micros, order] : splits)
      for (const int stage : {0, 1, 2, 3}) {
        size_t travel = 0;
        for (const int64_t prefetch : kPrefetches)
          for (const int64_t bucket : kBuckets)
            if (!quick || travel++ == turn % 9)
              all.push_back({model, stage, prefetch, bucket, micros, order});
        ++turn;
      }
  return all;
}

std::vector<Configuration> optimizer_matrix() {
  std::vector<Configuration> all;
  for (const NamedOptimizer& optimizer : all_optimizers())
    for (const char* model : {"gpt2-tiny", "llama-tiny"})
      for (const int stage : {0, 1, 2, 3})
        all.push_back({.model = model,
                       .stage = stage,
                       .prefetch_elems = ZeroOptions::kAuto,
                       .bucket_elems = 40000,
                       .optimizer = optimizer.name});
  return all;
}

std::vector<Configuration> compression_matrix() {
  std::vector<Configuration> all;
  for (const NamedCompression& compression : all_compressions())
    for (const int stage : {0, 1, 3})
      all.push_back({.model = "llama-tiny",
                     .stage = stage,
                     .prefetch_elems = ZeroOptions::kAuto,
                     .bucket_elems = stage == 1 ? kAll : 40000,
                     .compression = compression.name});
  // 1-bit LAMB, and 0/1 Adam, which knows no stages.
  for (const int stage : {0, 1, 3})
    all.push_back({.model = "gpt2-tiny",
                   .stage = stage,
                   .prefetch_elems = ZeroOptions::kAuto,
                   .bucket_elems = 40000,
                   .optimizer = "lamb_trust_frozen",
                   .compression = "one_bit"});
  all.push_back({.model = "gpt2-tiny",
                 .stage = 0,
                 .prefetch_elems = ZeroOptions::kAuto,
                 .bucket_elems = 40000,
                 .compression = kMoves});
  return all;
}

std::vector<Configuration> compression_mesh_matrix() {
  std::vector<Configuration> all;
  for (const MeshAxes& axes :
       {MeshAxes{.tensor = 2}, MeshAxes{.context = 2}, MeshAxes{.expert = 2}})
    for (const char* compression : {"int8", "topk", "randomk", "one_bit"})
      for (const int stage : {0, 3})
        all.push_back({.model = axes.expert > 1 ? "mixtral-tiny" : "gpt2-tiny",
                       .stage = stage,
                       .prefetch_elems = ZeroOptions::kAuto,
                       .bucket_elems = stage == 0 ? kAll : 40000,
                       .compression = compression,
                       .axes = axes});
  return all;
}

void walk(const std::vector<Configuration>& configurations, int steps,
          const std::shared_ptr<Communicator>& communicator) {
  Hashes hashes;
  for (const Configuration& configuration : configurations) {
    const std::vector<Result> results = train(configuration, steps, communicator);
    if (communicator->rank() != 0) continue;
    std::vector<std::unique_ptr<Engine>> plans;
    for (int share = 0; share < configuration.axes.tensor; ++share)
      plans.push_back(Engine::plan(configuration.spec(), configuration.options(),
                                   communicator->ranks(), communicator->scratch_bytes(), Hardware{},
                                   share));
    print(configuration, results, plans[0]->ledger().peak_bytes());
    hashes.expect_same(configuration, results);
    expect_planned(configuration, plans, results);
  }
}

}  // namespace onefold::test
