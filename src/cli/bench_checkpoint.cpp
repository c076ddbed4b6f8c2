// onefold bench checkpoint: saving and loading against plain sequential writing and reading of as
// many bytes, in turn on the same folder.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/cli.h"
#include "run/checkpoint_writer.h"
#include "run/resume.h"
#include "run/signals.h"

namespace onefold::cli {
namespace {

namespace fs = std::filesystem;

struct CheckpointBench {
  std::string folder, model = "gpt2";
  int repeats = 5;
  bool json = false;
};

double seconds_of(const std::function<void()>& work) {
  const double begin = now_seconds();
  work();
  return now_seconds() - begin;
}

// Asks the system to drop the cached pages of these files, so that what is read next comes from the
// disk. It is a hint: an unprivileged process cannot do more.
void drop_from_cache(const std::string& path) {
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    const int fd = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
}

constexpr size_t kBlockBytes = size_t{4} << 20;

void plain_write(const std::string& path, int64_t bytes, std::span<const std::byte> block) {
  OutputFile file(path);
  for (int64_t done = 0; done < bytes; done += static_cast<int64_t>(block.size()))
    file.append(block.first(std::min(block.size(), static_cast<size_t>(bytes - done))));
  file.commit();
}

void plain_read(const std::string& path, std::span<std::byte> block) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) user_error("cannot open {}", path);
  while (::read(fd, block.data(), block.size()) > 0) {
  }
  ::close(fd);
}

struct Samples {
  std::vector<double> save, load, write, read;  // seconds
  int64_t bytes = 0;
};

// Nothing if it is interrupted.
std::optional<Samples> measure(const CheckpointBench& b, const std::string& folder,
                               const StopSignals& signals) {
  const ModelSpec spec = spec_from_preset(b.model, "--model");
  if (spec.vocab_size == 0)
    user_error("--model {}: its vocabulary is its tokenizer's, and a benchmark has none", b.model);
  Engine engine(spec, {.sequence = std::min<int64_t>(64, spec.max_sequence_length)});
  // Not zeros: a file system that compresses would write them faster.
  engine.state().write_optimizer(
      [](const std::string&, const ParamSpec& param, int64_t first, std::span<float> dst) {
        for (size_t i = 0; i < dst.size(); ++i)
          dst[i] = static_cast<float>((first + static_cast<int64_t>(i)) * 2654435761 % 1000003) /
                   static_cast<float>(1 + param.cols);
      });
  const CheckpointFolder checkpoints(folder + "/checkpoints");
  const std::string plain = folder + "/plain";
  std::vector<std::byte> block(kBlockBytes);
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i * 131 >> 3);
  CheckpointWriter writer(engine, checkpoints);
  Samples samples;
  for (int repeat = -1; repeat < b.repeats; ++repeat) {  // the first one warms up
    if (signals.stop_wanted()) return std::nullopt;
    const double save = seconds_of([&] {
      writer.begin();
      const auto errors = writer.finish({{"position", 0}});
      if (!errors.empty()) user_error("{}", join(errors, "; "));
    });
    samples.bytes = writer.bytes();
    const double write = seconds_of([&] { plain_write(plain, samples.bytes, block); });
    drop_from_cache(folder);
    const double load = seconds_of([&] { resume(engine, checkpoints.list()); });
    const double read = seconds_of([&] { plain_read(plain, block); });
    if (repeat < 0) continue;
    samples.save.push_back(save);
    samples.write.push_back(write);
    samples.load.push_back(load);
    samples.read.push_back(read);
  }
  return samples;
}

// A folder that was not there, and is gone afterwards with those above it that had to be made.
class BenchFolder {
 public:
  explicit BenchFolder(const std::string& parent) : path_(parent + "/onefold-bench") {
    if (fs::exists(path_)) user_error("{} is in the way; remove it", path_);
    fs::path at = fs::absolute(parent).lexically_normal();
    for (; !at.empty() && !fs::exists(at); at = at.parent_path()) made_.push_back(at);
    make_folders(path_);
  }
  ~BenchFolder() {
    (void)try_remove_path(path_);
    for (const fs::path& folder : made_) (void)files().remove(folder.string());  // if it is empty
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  std::vector<fs::path> made_;  // inner ones first
};

int run_checkpoint(const CheckpointBench& b) {
  const StopSignals signals;  // an end by exception, which leaves no folder behind
  const BenchFolder folder(b.folder);
  const std::optional<Samples> measured = measure(b, folder.path(), signals);
  if (!measured) return kInterrupted;
  const Samples& s = *measured;
  const auto rate = [&](const std::vector<double>& seconds) {
    return static_cast<double>(s.bytes) / median(seconds) / 1e6;
  };
  const double save_ratio = rate(s.save) / rate(s.write), load_ratio = rate(s.load) / rate(s.read);
  if (b.json) {
    print_json({{"model", b.model},
                {"bytes", s.bytes},
                {"save_mb_per_s", rate(s.save)},
                {"write_mb_per_s", rate(s.write)},
                {"save_ratio", save_ratio},
                {"load_mb_per_s", rate(s.load)},
                {"read_mb_per_s", rate(s.read)},
                {"load_ratio", load_ratio},
                {"save_seconds", s.save},
                {"write_seconds", s.write},
                {"load_seconds", s.load},
                {"read_seconds", s.read}});
    return kOk;
  }
  fmt::print("{}: a checkpoint of {} in {}, median of {}\n", b.model, format_bytes(s.bytes),
             b.folder, b.repeats);
  fmt::print("  save {:7.0f} MB/s = {:3.0f} % of the {:.0f} MB/s of plain writing and flushing\n",
             rate(s.save), 100 * save_ratio, rate(s.write));
  fmt::print("  load {:7.0f} MB/s = {:3.0f} % of the {:.0f} MB/s of plain reading\n", rate(s.load),
             100 * load_ratio, rate(s.read));
  return kOk;
}

}  // namespace

void add_bench_checkpoint(CLI::App& bench, Run& run) {
  auto b = std::make_shared<CheckpointBench>();
  CLI::App* command =
      bench.add_subcommand("checkpoint", "Saving and loading against plain writing and reading");
  command->add_option("folder", b->folder, "Where to write; what is written is removed")
      ->required();
  command->add_option("--model", b->model, "A model preset")->capture_default_str();
  command->add_option("--repeats", b->repeats, "Times each is measured; the median counts")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_flag("--json", b->json, "One JSON object instead of text");
  command->footer("Example:\n  onefold bench checkpoint /tmp --model gpt2");
  command->callback([b, &run] { run = [b] { return run_checkpoint(*b); }; });
}

}  // namespace onefold::cli
