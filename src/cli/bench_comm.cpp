// onefold bench comm: collectives against a plain copy, and under mpirun against MPI's own.
#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "cli/cli.h"
#include "comm/binding.h"
#include "comm/local.h"
#include "comm/mpi.h"
#include "comm/mpi_channel.h"
#include "comm/mpi_library.h"
#include "tensor/ledger.h"

namespace onefold::cli {
namespace {

struct CommBench {
  int ranks = 0, repeats = 9;
  std::vector<std::string> sizes = {"1MiB", "16MiB", "64MiB"};
  bool json = false;
};

// Bandwidths as nccl-tests define them: the algorithm's is the size by the time, the bus's is
// scaled so that it compares with the hardware whatever the number of ranks. `moved` is what a rank
// must at least read and write, in sizes: what a copy of as many bytes is compared with.
struct BenchedCollective {
  Collective collective;
  double (*bus)(double n);
  double (*moved)(double n);
};
constexpr BenchedCollective kBenched[] = {
    // Reads the others' shards and writes them.
    {Collective::all_gather, [](double n) { return (n - 1) / n; },
     [](double n) { return 2 * (n - 1) / n; }},
    // Reads its piece of every rank's slab, writes one.
    {Collective::reduce_scatter, [](double n) { return (n - 1) / n; },
     [](double n) { return (n + 1) / n; }},
    // Reads its piece of every rank's slab, writes it back to each.
    {Collective::all_reduce, [](double n) { return 2 * (n - 1) / n; }, [](double) { return 2.0; }},
    // Reads the root's and writes its own.
    {Collective::broadcast, [](double) { return 1.0; }, [](double) { return 2.0; }},
    // Reads a block of each rank and writes it.
    {Collective::all_to_all, [](double n) { return (n - 1) / n; }, [](double) { return 2.0; }},
};

struct Row {
  BenchedCollective benched;
  int64_t bytes = 0;                               // of the whole, as nccl-tests count it
  std::vector<double> seconds, copy, native = {};  // of each repeat
};

// One rank's side of the measurement. Memory comes from a ledger, as training's does: on huge pages
// where the system grants them.
class Bench {
 public:
  Bench(Communicator& communicator, int64_t largest)
      : scratch_(take(std::max<int64_t>(communicator.scratch_bytes(), 64))),
        whole_(take(largest)),
        other_(take(largest)),
        copy_(take(largest)),
        channel_(communicator.open("bench", scratch_.data())),
        one_clock_(std::strcmp(communicator.transport(), "threads") == 0) {}

  Row measure(const BenchedCollective& benched, int64_t size, int repeats) {
    const int64_t shard = std::max<int64_t>(size / channel_->ranks() / 64 * 64, 64);
    Row row{benched, shard * channel_->ranks(), {}, {}};
    const auto copied =
        static_cast<size_t>(static_cast<double>(row.bytes) * benched.moved(channel_->ranks()) / 2);
    const int calls = static_cast<int>(std::clamp<int64_t>((4 << 20) / row.bytes, 1, 100));
    for (int repeat = -1; repeat < repeats; ++repeat) {  // the first one warms up
      const double copy = time(calls, [&] { std::memcpy(copy_.data(), other_.data(), copied); });
      const double ours = time(calls, [&] { run(benched.collective, shard); });
      double native = -1;
      if (const auto* mpi = dynamic_cast<const MpiChannel*>(channel_.get()))
        native = time(calls, [&] { run_native(*mpi, benched.collective, shard); });
      if (repeat < 0) continue;
      row.copy.push_back(copy);
      row.seconds.push_back(ours);
      if (native >= 0) row.native.push_back(native);
    }
    return row;
  }

 private:
  Buffer take(int64_t bytes) {
    Buffer buffer = ledger_.allocate(Kind::communication, bytes, "bench comm");
    std::memset(buffer.data(), 0, static_cast<size_t>(bytes));
    return buffer;
  }

  struct Interval {
    double begin, end;
  };

  // Seconds of one call: from the first rank's begin to the last one's end, which counts ranks that
  // wait for a core. Processes may be on machines with clocks of their own: there, the slowest
  // rank's.
  template <class Work>
  double time(int calls, const Work& work) {
    channel_->barrier("bench");
    Interval own{now_seconds(), 0};
    for (int i = 0; i < calls; ++i) work();
    own.end = now_seconds();
    if (!one_clock_) own = {0, own.end - own.begin};
    std::vector<Interval> all(static_cast<size_t>(channel_->ranks()), own);
    const Message times{all.data(), &all[static_cast<size_t>(channel_->rank())],
                        sizeof(own) / sizeof(double), DType::f64};
    channel_->all_gather("bench times", {&times, 1});
    for (const Interval& other : all)
      own = {std::min(own.begin, other.begin), std::max(own.end, other.end)};
    return (own.end - own.begin) / calls;
  }

  void run(Collective collective, int64_t shard) {
    auto* whole = static_cast<std::byte*>(whole_.data());
    const bool gathers = collective == Collective::all_gather;
    const Message message{whole, gathers ? whole + channel_->rank() * shard : other_.data(),
                          shard / dtype_bytes(DType::f32)};
    if (gathers) channel_->all_gather("bench", {&message, 1});
    if (collective == Collective::reduce_scatter) channel_->reduce_scatter("bench", {&message, 1});
    if (collective == Collective::all_reduce) channel_->all_reduce("bench", {&message, 1});
    if (collective == Collective::broadcast)
      channel_->broadcast("bench", 0, whole, shard * channel_->ranks());
    if (collective == Collective::all_to_all)
      channel_->all_to_all("bench", whole, other_.data(), shard);
  }

  void run_native(const MpiChannel& channel, Collective collective, int64_t shard) {
    const auto* from = static_cast<const float*>(whole_.data());
    auto* to = static_cast<float*>(other_.data());
    int64_t elems = shard / 4;
    if (collective == Collective::all_reduce || collective == Collective::broadcast)
      elems *= channel.ranks();
    if (mpi_library().api->native(channel.port(), static_cast<int>(collective), from, to, elems) !=
        0)
      user_error("MPI's own {} failed", collective_name(collective));
  }

  const std::unique_ptr<MemorySource> memory_ = make_host_memory();
  Ledger ledger_{*memory_};
  Buffer scratch_, whole_, other_, copy_;
  std::unique_ptr<Channel> channel_;
  const bool one_clock_;
};

std::vector<Row> measure(Communicator& communicator, const std::vector<int64_t>& sizes,
                         int repeats) {
  const Place place = communicator.place();
  bind_rank(place.rank, place.ranks);
  const int64_t least = int64_t{64} * communicator.ranks();
  Bench bench(communicator, std::max(least, *std::max_element(sizes.begin(), sizes.end())));
  std::vector<Row> rows;
  for (const BenchedCollective& benched : kBenched)
    for (const int64_t size : sizes) rows.push_back(bench.measure(benched, size, repeats));
  return rows;
}

// Ranks as threads; what rank 0 has measured. The first thing that goes wrong is thrown.
std::vector<Row> measure_threads(int ranks, const std::vector<int64_t>& sizes, int repeats) {
  LocalGroup group(ranks);
  std::vector<Row> rows;
  std::exception_ptr error;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto communicator = group.join(rank);
      try {
        std::vector<Row> own = measure(*communicator, sizes, repeats);
        if (rank == 0) rows = std::move(own);
      } catch (const std::exception& failure) {
        communicator->abort(failure.what());
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
  return rows;
}

double gb_per_s(double bytes, double seconds) { return bytes / seconds / 1e9; }

Json to_json(const Row& row, int ranks) {
  const auto bytes = static_cast<double>(row.bytes);
  const double seconds = median(row.seconds), copy = median(row.copy);
  Json json = {{"collective", collective_name(row.benched.collective)},
               {"bytes", row.bytes},
               {"seconds", row.seconds},
               {"algorithm_gb_per_s", gb_per_s(bytes, seconds)},
               {"bus_gb_per_s", gb_per_s(bytes * row.benched.bus(ranks), seconds)},
               {"copy_seconds", row.copy},
               {"moved_bytes", bytes * row.benched.moved(ranks)},
               {"copy_fraction", copy / seconds}};
  if (!row.native.empty()) {
    json["mpi_seconds"] = row.native;
    json["mpi_ratio"] = median(row.native) / seconds;
  }
  return json;
}

void print_table(const std::vector<Row>& rows, int ranks) {
  const bool native = !rows.front().native.empty();
  fmt::print("{:<15} {:>10} {:>11} {:>10} {:>10} {:>8}{}\n", "", "size", "time", "algorithm", "bus",
             "of copy", native ? fmt::format(" {:>11} {:>8}", "MPI's own", "speedup") : "");
  for (const Row& row : rows) {
    const auto bytes = static_cast<double>(row.bytes);
    const double seconds = median(row.seconds);
    fmt::print("{:<15} {:>10} {:>8.1f} us {:>5.2f} GB/s {:>5.2f} GB/s {:>6.0f} %{}\n",
               collective_name(row.benched.collective), format_bytes(row.bytes), 1e6 * seconds,
               gb_per_s(bytes, seconds), gb_per_s(bytes * row.benched.bus(ranks), seconds),
               100 * median(row.copy) / seconds,
               native ? fmt::format(" {:>8.1f} us {:>6.2f} x", 1e6 * median(row.native),
                                    median(row.native) / seconds)
                      : "");
  }
}

int report(const CommBench& b, const std::vector<Row>& rows, int ranks, const char* transport) {
  if (b.json) {
    Json result = {{"transport", transport},
                   {"ranks", ranks},
                   {"cores", available_cores()},
                   {"repeats", b.repeats},
                   {"results", Json::array()}};
    if (std::strcmp(transport, "mpi") == 0) result["mpi"] = mpi_status();
    for (const Row& row : rows) result["results"].push_back(to_json(row, ranks));
    print_json(result);
    return kOk;
  }
  fmt::print("{} rank{} over {}, medians of {}\n", ranks, ranks == 1 ? "" : "s", transport,
             b.repeats);
  print_table(rows, ranks);
  return kOk;
}

int run_comm(const CommBench& b) {
  std::vector<int64_t> sizes;
  for (const std::string& size : b.sizes) {
    sizes.push_back(parse_bytes(size, "--sizes"));
    if (sizes.back() < 1 || sizes.back() > int64_t{1} << 40)
      user_error("--sizes: {} is not a size from 1 byte to 1 TiB", size);
  }
  if (mpi_launched()) {
    const auto communicator = join_mpi({});
    if (b.ranks != 0 && b.ranks != communicator->ranks())
      user_error("--ranks {}: mpirun has started {}; leave the flag away", b.ranks,
                 communicator->ranks());
    const std::vector<Row> rows = measure(*communicator, sizes, b.repeats);
    return communicator->rank() == 0 ? report(b, rows, communicator->ranks(), "mpi") : int{kOk};
  }
  const int ranks = b.ranks > 0 ? b.ranks : std::max(2, available_cores());
  return report(b, measure_threads(ranks, sizes, b.repeats), ranks, "threads");
}

}  // namespace

void add_bench_comm(CLI::App& bench, Run& run) {
  auto options = std::make_shared<CommBench>();
  CLI::App* comm = bench.add_subcommand("comm", "Collectives between ranks, against a plain copy");
  comm->add_option("--ranks", options->ranks,
                   "Ranks, as threads; 0 is one for each core, and at least 2")
      ->check(at_least(0))
      ->capture_default_str();
  comm->add_option("--sizes", options->sizes, "Sizes of the whole, as in 64KiB,16MiB")
      ->delimiter(',')
      ->capture_default_str();
  comm->add_option("--repeats", options->repeats, "Timed repeats of each")
      ->check(at_least(1))
      ->capture_default_str();
  comm->add_flag("--json", options->json, "One JSON object instead of text");
  comm->footer(
      "Examples:\n  onefold bench comm --ranks 2 --sizes 16MiB,64MiB\n"
      "  mpirun -n 2 onefold bench comm");
  comm->callback([options, &run] { run = [options] { return run_comm(*options); }; });
}

}  // namespace onefold::cli
