// onefold bench disk: the disk tier's rates, in pieces like those of a unit's states. bench/disk.py
// runs it in turn with fio.
#include <random>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"
#include "device/lent_memory.h"

namespace onefold::cli {
namespace {

struct DiskBench {
  std::string folder, bytes = "1GiB", piece = "64MiB", block_size = "1MiB";
  int queue_depth = Files::Requests{}.depth;
  int repeats = 3;
  bool json = false;
};

int run_disk(const DiskBench& b) {
  const int64_t bytes = parse_bytes(b.bytes, "--bytes"), piece = parse_bytes(b.piece, "--piece");
  if (piece < 1 || piece % kDiskBlock != 0)
    user_error("--piece {}: it is whole blocks of {} bytes", b.piece, kDiskBlock);
  if (bytes < piece) user_error("--bytes {}: it is no less than a piece ({})", b.bytes, b.piece);
  const int64_t block = parse_bytes(b.block_size, "--block-size");
  if (block < kDiskBlock || block % kDiskBlock != 0 || block > Files::kMostRequestBytes)
    user_error("--block-size {}: it is a multiple of {}, up to {}", b.block_size, kDiskBlock,
               format_bytes(Files::kMostRequestBytes));
  Disk disk(b.folder, {block, b.queue_depth});
  const std::unique_ptr<MemorySource> host = make_host_memory();
  LentMemory lent(*host, disk);
  Ledger ledger(Ledger::Tiers{Ledger::TierSetup{&lent}, {}, Ledger::TierSetup{&disk}});
  // Two pieces of memory in turn, as a lane's next piece is another unit's.
  const Buffer there = ledger.allocate(Kind::optimizer, bytes / piece * piece, "disk", Tier::disk),
               here = ledger.allocate(Kind::optimizer, 2 * piece, "memory");
  // Not what a disk could compress.
  std::mt19937_64 random(1);
  const std::span words(static_cast<uint64_t*>(here.data()),
                        static_cast<size_t>(here.bytes()) / sizeof(uint64_t));
  for (uint64_t& word : words) word = random();
  const auto rate = [&](const auto& transfer) {
    const double begin = now_seconds();
    for (int64_t at = 0; at < there.bytes(); at += piece)
      transfer(static_cast<std::byte*>(there.data()) + at,
               std::span(static_cast<std::byte*>(here.data()) + at / piece % 2 * piece,
                         static_cast<size_t>(piece)));
    return static_cast<double>(there.bytes()) / (now_seconds() - begin) / 1e9;
  };
  const auto write = [&](std::byte* to, std::span<std::byte> from) { disk.write(to, from); };
  const auto read = [&](std::byte* from, std::span<std::byte> to) { disk.read(from, to); };
  (void)rate(write);  // room is made at the first time
  std::vector<double> writes, reads;
  for (int repeat = 0; repeat < b.repeats; ++repeat) {
    writes.push_back(rate(write));
    reads.push_back(rate(read));
  }
  if (b.json) {
    print_json({{"bytes", there.bytes()},
                {"piece_bytes", piece},
                {"how", disk.how()},
                {"write_gb_per_s", median(writes)},
                {"read_gb_per_s", median(reads)},
                {"writes_gb_per_s", writes},
                {"reads_gb_per_s", reads}});
    return kOk;
  }
  fmt::print("{} in pieces of {} in {} ({}), medians of {}\n", format_bytes(there.bytes()),
             format_bytes(piece), b.folder, disk.how(), b.repeats);
  fmt::print("  writing {:6.2f} GB/s\n  reading {:6.2f} GB/s\n", median(writes), median(reads));
  return kOk;
}

}  // namespace

void add_bench_disk(CLI::App& bench, Run& run) {
  auto b = std::make_shared<DiskBench>();
  CLI::App* command = bench.add_subcommand("disk", "Reading and writing of the disk tier");
  command->add_option("folder", b->folder, "On the disk; the file in it has no name")->required();
  command->add_option("--bytes", b->bytes, "Of the file")->capture_default_str();
  command->add_option("--piece", b->piece, "Bytes of each call, as a unit's states")
      ->capture_default_str();
  command->add_option("--block-size", b->block_size, "Of a request; aio.block_size of a run")
      ->capture_default_str();
  command
      ->add_option("--queue-depth", b->queue_depth,
                   "Requests under way at once; aio.queue_depth of a run")
      ->check(CLI::Range(1, Files::kMostRequests))
      ->capture_default_str();
  command->add_option("--repeats", b->repeats, "Timed repeats of each; medians are printed")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_flag("--json", b->json, "One JSON object instead of text");
  command->footer("Example:\n  onefold bench disk /mnt/nvme --bytes 4GiB");
  command->callback([b, &run] { run = [b] { return run_disk(*b); }; });
}

}  // namespace onefold::cli
