#include "run/checkpoint_writer.h"

#include "base/clock.h"
#include "inspect/parameter_source.h"

namespace onefold {
namespace {

// A whole parameter keeps its shape, so that other tools can read it; a slice is a row.
SafetensorsEntry entry_of(const RankState::SavedPiece& piece) {
  SafetensorsEntry entry;
  entry.name = piece_name(piece.state, piece.param->name);
  entry.shape = piece.data.cols == piece.param->elems() ? file_shape(*piece.param)
                                                        : std::vector<int64_t>{piece.data.cols};
  return entry;
}

}  // namespace

struct CheckpointWriter::Job {
  int64_t step = 0;
  double begin_seconds = 0;
  std::mutex mutex;
  std::condition_variable progress;
  int units_written = 0;  // units are written in the order in which they step
  bool done = false;
  std::string error;
  CheckpointFile file;

  void advance(int units, bool finished) {
    std::lock_guard lock(mutex);
    units_written = units;
    done = finished;
    progress.notify_all();
  }
};

CheckpointWriter::CheckpointWriter(Engine& engine, CheckpointFolder folder)
    : engine_(engine), folder_(std::move(folder)) {}

CheckpointWriter::~CheckpointWriter() { join(); }

void CheckpointWriter::begin() {
  require(!job_, "a checkpoint is begun while another is under way");
  job_ = std::make_unique<Job>();
  job_->step = engine_.steps_done();
  job_->begin_seconds = now_seconds();
  thread_ = std::thread([this, job = job_.get()] { write(*job); });
}

void CheckpointWriter::write(Job& job) {
  const int units = static_cast<int>(engine_.model().units.size());
  try {
    std::vector<SafetensorsEntry> entries;
    for (int unit = 0; unit < units; ++unit)
      for (const RankState::SavedPiece& piece : engine_.state().saved_pieces(unit))
        entries.push_back(entry_of(piece));
    job.file.name = checkpoint_file_name(engine_.rank());
    SafetensorsWriter writer(folder_.begin(job.step) + "/" + job.file.name, std::move(entries),
                             {{"format", "onefold"}, {"step", std::to_string(job.step)}});
    for (int unit = 0; unit < units; ++unit) {
      for (const RankState::SavedPiece& piece : engine_.state().saved_pieces(unit))
        writer.write(
            piece_name(piece.state, piece.param->name),
            std::span<const float>(piece.data.f32(), static_cast<size_t>(piece.data.cols)));
      job.advance(unit + 1, false);
    }
    writer.commit();
    job.file.bytes = writer.bytes();
    job.file.checksum = writer.checksum();
  } catch (const std::exception& error) {
    job.error = error.what();
  }
  job.advance(units, true);
}

void CheckpointWriter::before(const Action& action) {
  if (!job_ || action.verb != Verb::step) return;
  const double begin = now_seconds();
  std::unique_lock lock(job_->mutex);
  job_->progress.wait(lock, [&] { return job_->units_written > action.unit; });
  stalled_ += now_seconds() - begin;
}

bool CheckpointWriter::done() const {
  if (!job_) return false;
  std::lock_guard lock(job_->mutex);
  return job_->done;
}

void CheckpointWriter::wait() {
  if (!job_) return;
  const double begin = now_seconds();
  std::unique_lock lock(job_->mutex);
  job_->progress.wait(lock, [&] { return job_->done; });
  stalled_ += now_seconds() - begin;
}

std::string CheckpointWriter::error() const { return job_->error; }
CheckpointFile CheckpointWriter::file() const { return job_->file; }
int64_t CheckpointWriter::step() const { return job_->step; }

void CheckpointWriter::join() {
  if (thread_.joinable()) thread_.join();
}

std::vector<std::string> CheckpointWriter::finish(const Json& run) {
  join();
  const double begin = now_seconds();
  const CheckpointFile& mine = job_->file;
  const Json report = {
      {"error", job_->error}, {"name", mine.name}, {"bytes", mine.bytes}, {"xxh3", mine.checksum}};
  std::vector<std::string> errors;
  std::vector<CheckpointFile> files;
  for (const std::string& text : engine_.control().collect("checkpoint", report.dump())) {
    const Json of_rank = parse_json(text, "checkpoint");
    if (const std::string error = of_rank["error"]; !error.empty())
      errors.push_back(engine_.ranks() == 1
                           ? error
                           : fmt::format("rank {}: {}", files.size() + errors.size(), error));
    else
      files.push_back({of_rank["name"], of_rank["bytes"], of_rank["xxh3"]});
  }
  std::string manifest_error;
  if (engine_.rank() == 0) {
    try {
      if (errors.empty()) folder_.commit(manifest(files, run));
    } catch (const UserError& error) {
      manifest_error = error.what();
    }
    if (!errors.empty() || !manifest_error.empty()) folder_.discard(job_->step);
  }
  // The others must know whether it is there.
  for (const std::string& error : engine_.control().collect("checkpoint committed", manifest_error))
    if (!error.empty()) errors.push_back(error);
  bytes_ = 0;
  for (const CheckpointFile& file : files) bytes_ += file.bytes;
  seconds_ = now_seconds() - job_->begin_seconds;
  stalled_ += now_seconds() - begin;
  job_.reset();
  return errors;
}

Manifest CheckpointWriter::manifest(const std::vector<CheckpointFile>& files,
                                    const Json& run) const {
  Manifest manifest{.step = job_->step, .run = run, .files = files, .tensors = {}};
  for (size_t u = 0; u < engine_.model().units.size(); ++u) {
    const SlabLayout layout(engine_.model().units[u]->params(), engine_.ranks());
    std::vector<std::string> states;
    for (const OptimizerState& state : engine_.state().saved_states(static_cast<int>(u)))
      states.push_back(state.name);
    for (const ParamSpec& param : layout.params())
      manifest.tensors[param.name] = {file_shape(param), states, {}};
    for (int rank = 0; rank < engine_.ranks(); ++rank)
      for (const SlabPiece& piece : layout.shard_pieces(rank))
        manifest.tensors[layout.params()[static_cast<size_t>(piece.param)].name].pieces.push_back(
            {rank, piece.first, piece.elems});
  }
  return manifest;
}

}  // namespace onefold
