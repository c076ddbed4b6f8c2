#include "run/checkpoint_writer.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/start_thread.h"
#include "inspect/parameter_source.h"

namespace onefold {
namespace {

// As safetensors files call it.
std::string stored_dtype(DType dtype) {
  std::string name = dtype_name(dtype);
  for (char& letter : name) letter = static_cast<char>(std::toupper(letter));
  return name;
}

// A whole parameter keeps its shape, so that other tools can read it; a slice is a row.
SafetensorsEntry entry_of(const RankState::SavedPiece& piece) {
  SafetensorsEntry entry;
  entry.name = piece_name(piece.state, piece.param->name);
  entry.dtype = stored_dtype(piece.scales.empty() ? piece.data.dtype : DType::f32);
  entry.shape = piece.data.cols == piece.param->elems() ? file_shape(*piece.param)
                                                        : std::vector<int64_t>{piece.data.cols};
  return entry;
}

// Two halves: one is written while the other is copied.
constexpr int64_t kStagingBytes = int64_t{32} << 20;

using TakeBytes = std::function<void(int64_t first, std::span<const std::byte> bytes)>;

void read_state(Engine& engine, Tier tier, Tensor data, const Buffer& staging,
                const TakeBytes& take) {
  if (tier != Tier::device) return engine.tiers().read(tier, data, take);
  engine.device().read_beside(
      data, take, {static_cast<std::byte*>(staging.data()), static_cast<size_t>(staging.bytes())});
}

// What codes stand for.
void write_decoded(Engine& engine, const RankState::SavedPiece& piece, const Buffer& staging,
                   const std::string& name, SafetensorsWriter& writer) {
  std::vector<float> scales(static_cast<size_t>(piece.scales.elems())), values;
  read_state(engine, piece.tier, piece.scales, staging,
             [&](int64_t first, std::span<const std::byte> bytes) {
               std::memcpy(scales.data() + first, bytes.data(), bytes.size());
             });
  read_state(engine, piece.tier, piece.data, staging,
             [&](int64_t first, std::span<const std::byte> codes) {
               values.clear();
               for (const std::byte code : codes) {
                 const int64_t at = first + static_cast<int64_t>(values.size());
                 values.push_back(decode8(piece.moment, std::to_integer<uint8_t>(code),
                                          scales[static_cast<size_t>(at / kBlock8)]));
               }
               writer.write(name, std::as_bytes(std::span(values)));
             });
}

void write_piece(Engine& engine, const RankState::SavedPiece& piece, const Buffer& staging,
                 SafetensorsWriter& writer) {
  const std::string name = piece_name(piece.state, piece.param->name);
  if (!piece.scales.empty()) return write_decoded(engine, piece, staging, name, writer);
  read_state(engine, piece.tier, piece.data, staging,
             [&](int64_t, std::span<const std::byte> bytes) { writer.write(name, bytes); });
}

Json piece_json(const RankState::SavedPiece& piece) {
  if (piece.boxes.empty()) return {piece.first, piece.elems};
  Json boxes = Json::array();
  for (const Box& box : piece.boxes) boxes.push_back({box.row, box.col, box.rows, box.cols});
  return Json::array({boxes});
}

std::vector<Box> boxes_of_json(const Json& list) {
  std::vector<Box> boxes;
  for (const Json& box : list) boxes.push_back({box[0], box[1], box[2], box[3]});
  return boxes;
}

Json to_json(const LossScale::State& state) {
  return {{"scale", state.scale},
          {"steps", state.steps},
          {"last_overflow", state.last_overflow},
          {"hysteresis", state.hysteresis},
          {"skipped", state.skipped},
          {"followed", state.followed}};
}

}  // namespace

struct CheckpointWriter::Job {
  int64_t step = 0;
  LossScale::State loss_scale;  // after that step
  std::vector<double> norms, unit_squares;
  double rates_since_sum = 0;
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
    : engine_(engine), folder_(std::move(folder)) {
  if (!engine.device().memory_is_the_hosts())
    staging_ = engine.ledger().allocate(Kind::communication, kStagingBytes, "checkpoint staging",
                                        Tier::host);
}

CheckpointWriter::~CheckpointWriter() { join(); }

void CheckpointWriter::begin() {
  require(!job_, "a checkpoint is begun while another is under way");
  // What is read beside computation must be complete.
  engine_.state();
  LaneQueue& compute = engine_.device().compute();
  compute.wait(compute.mark().number);
  job_ = std::make_unique<Job>();
  job_->step = engine_.steps_done();
  job_->loss_scale = engine_.loss_scale().state();
  job_->norms = engine_.norms();
  job_->rates_since_sum = engine_.rates_since_sum();
  job_->unit_squares = engine_.executor().unit_squares();
  job_->begin_seconds = now_seconds();
  try {
    thread_ = start_thread([this, job = job_.get()] { write(*job); });
  } catch (const UserError& error) {  // a checkpoint that failed, like one on a full disk
    job_->error = error.what();
    job_->advance(static_cast<int>(engine_.model().units.size()), true);
  }
}

void CheckpointWriter::write(Job& job) {
  const int units = static_cast<int>(engine_.model().units.size());
  try {
    std::vector<SafetensorsEntry> entries;
    for (int unit = 0; unit < units; ++unit)
      for (const RankState::SavedPiece& piece : std::as_const(engine_).state().saved_pieces(unit))
        entries.push_back(entry_of(piece));
    job.file.name = checkpoint_file_name(engine_.rank());
    SafetensorsWriter writer(folder_.begin(job.step) + "/" + job.file.name, std::move(entries),
                             {{"format", "onefold"}, {"step", std::to_string(job.step)}});
    for (int unit = 0; unit < units; ++unit) {
      for (const RankState::SavedPiece& piece : std::as_const(engine_).state().saved_pieces(unit))
        write_piece(engine_, piece, staging_, writer);
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

// A step changes its unit's state, and a packed reduction what its units keep back.
void CheckpointWriter::before(const Action& action) {
  const bool packs = ((action.verb == Verb::reduce && action.packed) ||
                      (action.verb == Verb::squares && engine_.options().local.sums_moves)) &&
                     !std::as_const(engine_).state().own_states(action.unit).empty();
  if (!job_ || (action.verb != Verb::step && !packs)) return;
  const double begin = now_seconds();
  const std::vector<int> units = units_of(action);
  const int last = *std::max_element(units.begin(), units.end());
  std::unique_lock lock(job_->mutex);
  job_->progress.wait(lock, [&] { return job_->units_written > last; });
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

// What this rank's file holds of each parameter: [number, first, elems], or of one that is divided
// over the tensor axis [number, boxes]; parameters counted from unit to unit. Every state of a unit
// is cut alike.
Json CheckpointWriter::ranges() const {
  Json ranges = Json::array();
  int64_t number = 0;
  for (size_t u = 0; u < engine_.model().units.size(); ++u) {
    std::map<std::string, std::map<std::string, Json>> by_state;
    for (const RankState::SavedPiece& piece :
         std::as_const(engine_).state().saved_pieces(static_cast<int>(u)))
      if (!piece.whole && !piece.own) by_state[piece.state][piece.param->name] = piece_json(piece);
    const auto& parameters = by_state[kParameters];
    for (const auto& [state, pieces] : by_state)
      for (const auto& [name, range] : pieces)
        require(parameters.at(name) == range, "{} of {} is not cut like the parameter", state,
                name);
    for (const ParamSpec& param : engine_.model().units[u]->params()) {
      if (const auto found = parameters.find(param.name); found != parameters.end()) {
        Json range = found->second;
        range.insert(range.begin(), number);
        ranges.push_back(std::move(range));
      }
      ++number;
    }
  }
  return ranges;
}

// What it has of states of its own that others have the other parts of: the same with the state's
// name behind the number.
Json CheckpointWriter::own_ranges() const {
  Json ranges = Json::array();
  const RankState& state = std::as_const(engine_).state();
  int64_t number = 0;
  for (int u = 0; u < state.units(); ++u) {
    const std::vector<ParamSpec>& params = state.whole_params(u);
    for (const RankState::SavedPiece& piece : state.saved_pieces(u)) {
      if (!piece.own) continue;
      Json range = piece_json(piece);
      range.insert(range.begin(), piece.state);
      range.insert(range.begin(), number + (piece.param - params.data()));
      ranges.push_back(std::move(range));
    }
    number += static_cast<int64_t>(params.size());
  }
  return ranges;
}

std::vector<std::string> CheckpointWriter::finish(const Json& run) {
  join();
  const double begin = now_seconds();
  const CheckpointFile& mine = job_->file;
  const Json report = {{"error", job_->error},  {"name", mine.name},  {"bytes", mine.bytes},
                       {"xxh3", mine.checksum}, {"ranges", ranges()}, {"own_ranges", own_ranges()}};
  std::vector<std::string> errors;
  std::vector<CheckpointFile> files;
  std::vector<Json> ranges, own_ranges;
  for (const std::string& text : engine_.control().collect("checkpoint", report.dump())) {
    Json of_rank = parse_json(text, "checkpoint");
    if (const std::string error = of_rank["error"]; !error.empty()) {
      errors.push_back(engine_.ranks() == 1
                           ? error
                           : fmt::format("rank {}: {}", files.size() + errors.size(), error));
      continue;
    }
    files.push_back({of_rank["name"], of_rank["bytes"], of_rank["xxh3"]});
    ranges.push_back(std::move(of_rank["ranges"]));
    own_ranges.push_back(std::move(of_rank["own_ranges"]));
  }
  std::string manifest_error;
  if (engine_.rank() == 0) {
    try {
      if (errors.empty()) folder_.commit(manifest(files, ranges, own_ranges, run));
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
                                    const std::vector<Json>& ranges,
                                    const std::vector<Json>& own_ranges, const Json& run) const {
  Manifest manifest{.step = job_->step, .run = run, .files = files, .tensors = {}};
  manifest.run["loss_scale"] = to_json(job_->loss_scale);
  if (!job_->norms.empty()) manifest.run["gradient_norms"] = job_->norms;
  if (job_->rates_since_sum > 0) manifest.run["rates_since_sum"] = job_->rates_since_sum;
  if (!job_->unit_squares.empty()) manifest.run["unit_squares"] = job_->unit_squares;
  std::vector<CheckpointTensor*> numbered;
  for (size_t u = 0; u < engine_.model().units.size(); ++u)
    for (const ParamSpec& param :
         std::as_const(engine_).state().whole_params(static_cast<int>(u))) {
      if (!is_saved(engine_.model().spec, param)) {
        numbered.push_back(nullptr);  // no file has a range of it
        continue;
      }
      CheckpointTensor& tensor = manifest.tensors[param.name];
      tensor.shape = file_shape(param);
      for (const OptimizerState& state :
           std::as_const(engine_).state().saved_states(static_cast<int>(u), param))
        tensor.states.push_back(
            {.name = state.name,
             .dtype = stored_dtype(state.dtype),
             .elems = state.elements(shape_of(param)),
             .block = state.of_parameters() ? CheckpointState::kOwn : state.block});
      numbered.push_back(&tensor);
    }
  for (size_t file = 0; file < files.size(); ++file)
    for (const Json& range : ranges[file]) {
      CheckpointTensor& tensor = *numbered[range[0].get<size_t>()];
      if (range.size() == 3)
        tensor.add_range(static_cast<int>(file), range[1], range[2]);
      else
        tensor.add_boxes(static_cast<int>(file), boxes_of_json(range[1]));
    }
  for (size_t file = 0; file < files.size(); ++file)
    for (const Json& range : own_ranges[file]) {
      CheckpointTensor& tensor = *numbered[range[0].get<size_t>()];
      const bool boxes = range.size() == 3;
      tensor.add_own(range[1], static_cast<int>(file),
                     boxes ? boxes_of_json(range[2])
                           : boxes_of_range(tensor.rows(), tensor.cols(), range[2], range[3]));
    }
  add_own_states(manifest);
  return manifest;
}

// What each rank has of its own, where it is of all of them, is whole in its file.
void CheckpointWriter::add_own_states(Manifest& manifest) const {
  const RankState& state = std::as_const(engine_).state();
  if (!state.own_states_are_of_all()) return;
  for (int u = 0; u < state.units(); ++u) {
    const SlabLayout& layout = state.unit(u).trained_layout();
    for (const std::string& name : state.own_states(u))
      for (const SlabPiece& piece : layout.whole_pieces()) {
        CheckpointTensor& tensor =
            manifest.tensors[state.whole_params(u)[static_cast<size_t>(piece.param)].name];
        for (int rank = 0; rank < static_cast<int>(manifest.files.size()); ++rank)
          tensor.states.push_back({.name = own_state_name(name, rank),
                                   .dtype = stored_dtype(DType::f32),
                                   .elems = piece.elems,
                                   .block = CheckpointState::kOwn,
                                   .pieces = {{rank, 0, {0, 0, 1, piece.elems}}}});
      }
  }
}

}  // namespace onefold
