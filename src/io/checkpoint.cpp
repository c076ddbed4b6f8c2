#include "io/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/block8.h"
#include "base/error.h"
#include "base/file.h"
#include "io/checkpoint_folder.h"
#include "io/checksum.h"
#include "io/half.h"

namespace onefold {
namespace {

// By reading, not through a mapping: it takes a block of memory whatever the file's size, and a
// disk that fails is an error, not a signal.
std::string checksum_of_file(const std::string& path) {
  InputFile file(path);
  Checksum checksum;
  std::vector<std::byte> block(size_t{1} << 19);
  while (const size_t count = file.read(block)) checksum.add({block.data(), count});
  return checksum.text();
}

// Where an element of a box's matrix lies among the box's elements, row after row.
int64_t place_in(const Box& box, int64_t row, int64_t col) {
  return (row - box.row) * box.cols + (col - box.col);
}

}  // namespace

struct Checkpoint::Source {
  const CheckpointTensor& tensor;
  const CheckpointState& state;
  std::string entry;  // its name in the files
};

std::string checkpoint_file_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

std::string piece_name(const std::string& state, const std::string& tensor) {
  return state + "/" + tensor;
}

Checkpoint::Checkpoint(const std::string& folder)
    : folder_(folder),
      manifest_(Manifest::from_json(read_plain_json(folder + "/" + kManifest),
                                    folder + "/" + kManifest)) {
  const std::string name = (std::filesystem::absolute(folder) / "").parent_path().filename();
  if (const int64_t named = step_of_name(name); named >= 0 && named != manifest_.step)
    user_error("{} is named after step {}, and its manifest says step {}: it was renamed", folder,
               named, manifest_.step);
  for (const CheckpointFile& file : manifest_.files) {
    const std::string path = folder + "/" + file.name;
    const int64_t bytes = file_bytes(path);
    if (bytes != file.bytes)
      user_error("{} has {} bytes, the manifest says {}: it was cut short or replaced", path, bytes,
                 file.bytes);
    files_.push_back(std::make_unique<SafetensorsFile>(path));
  }
  for (const auto& [name, tensor] : manifest_.tensors) check_entries(name, tensor);
}

// The pieces of a file are without holes, so their sum is what its entry must have.
void Checkpoint::check_entries(const std::string& name, const CheckpointTensor& tensor) const {
  for (const CheckpointState& state : tensor.states) {
    std::map<int, int64_t> elems;  // by file
    for (const CheckpointPiece& piece : tensor.pieces_of(state))
      elems[piece.file] += piece.box.elems();
    for (const auto& [number, expected] : elems) {
      const SafetensorsFile& file = *files_[static_cast<size_t>(number)];
      const SafetensorsEntry& entry = file.entry(piece_name(state.name, name));
      if (entry.dtype != state.dtype || entry.elems() != expected)
        user_error("{}: {} has {} elements of {}, the manifest says {} of {}", file.path(),
                   entry.name, entry.elems(), entry.dtype, expected, state.dtype);
    }
  }
}

void Checkpoint::verify(int file) const {
  const CheckpointFile& expected = manifest_.files[static_cast<size_t>(file)];
  const std::string path = folder_ + "/" + expected.name;
  if (checksum_of_file(path) != expected.checksum)
    user_error("{} does not have the checksum {} that the manifest gives it: it is damaged", path,
               expected.checksum);
}

Checkpoint::Source Checkpoint::find(const std::string& state, const std::string& tensor) const {
  const auto found = manifest_.tensors.find(tensor);
  if (found == manifest_.tensors.end())
    user_error("{} has no tensor {}: it belongs to another model", folder_, tensor);
  const CheckpointState* const saved = found->second.state(state);
  if (!saved)
    user_error("{} has no {} of {}: it was saved with another optimizer", folder_, state, tensor);
  if (const std::string obstacle = saved->obstacle(); !obstacle.empty())
    user_error("{}: {}: {}", folder_, tensor, obstacle);
  return {found->second, *saved, piece_name(state, tensor)};
}

void Checkpoint::read(const std::string& state, const std::string& tensor, int64_t first,
                      std::span<float> dst) const {
  const Source source = find(state, tensor);
  if (source.state.is_coded()) return read_coded(source, tensor, first, dst);
  read_range(source, first, dst);
}

void Checkpoint::read_range(const Source& source, int64_t first, std::span<float> dst) const {
  const bool own = source.state.block == CheckpointState::kOwn;
  const int64_t rows = own ? 1 : source.tensor.rows(),
                cols = own ? source.state.elems : source.tensor.cols();
  for (const Box& box : boxes_of_range(rows, cols, first, static_cast<int64_t>(dst.size()))) {
    copy(source, box, dst.first(static_cast<size_t>(box.elems())));
    dst = dst.subspan(static_cast<size_t>(box.elems()));
  }
}

// Codes as numbers, then what they stand for.
void Checkpoint::read_coded(const Source& source, const std::string& tensor, int64_t first,
                            std::span<float> dst) const {
  const std::string name = source.state.name + kScaleSuffix;
  const CheckpointState* const scales = source.tensor.state(name);
  if (!scales || scales->dtype != "F32" || scales->block != kBlock8)
    user_error("{}: {} is in codes, and has no {} that is F32 with a value for each {} elements",
               folder_, tensor, name, kBlock8);
  if (dst.empty()) return;
  const auto elems = static_cast<int64_t>(dst.size());
  const int64_t begin = first / kBlock8, end = (first + elems - 1) / kBlock8 + 1;
  std::vector<float> values(static_cast<size_t>(end - begin));
  copy({source.tensor, *scales, piece_name(name, tensor)}, {0, begin, 1, end - begin}, values);
  read_range(source, first, dst);
  const Moment8 moment = source.state.name == "moment2" ? Moment8::second : Moment8::first;
  for (int64_t i = 0; i < elems; ++i) {
    float& value = dst[static_cast<size_t>(i)];
    value = decode8(moment, static_cast<uint8_t>(value),
                    values[static_cast<size_t>((first + i) / kBlock8 - begin)]);
  }
}

void Checkpoint::read(const std::string& state, const std::string& tensor, const Box& box,
                      std::span<float> dst) const {
  const Source source = find(state, tensor);
  require(!source.state.is_coded(), "{}: a box of codes", tensor);
  const Box whole{0, 0, source.tensor.rows(), source.tensor.cols()};
  require(box.empty() || intersection(box, whole) == box, "{}: a box outside of {} x {}", tensor,
          whole.rows, whole.cols);
  require(box.elems() == static_cast<int64_t>(dst.size()), "{}: {} elements for a box of {}",
          tensor, dst.size(), box.elems());
  copy(source, box, dst);
}

// The pieces cover the tensor: what the box has in common with each of them is all of the box.
void Checkpoint::copy(const Source& source, const Box& box, std::span<float> dst) const {
  const int64_t width = safetensors_dtype_bytes(source.state.dtype);
  for (const CheckpointPiece& piece : source.tensor.pieces_of(source.state)) {
    const Box common = intersection(piece.box, box);
    if (common.empty()) continue;
    const SafetensorsFile& file = *files_[static_cast<size_t>(piece.file)];
    const std::span<const std::byte> bytes = file.bytes(file.entry(source.entry));
    // Rows that are whole on both sides follow each other on both.
    const bool whole_rows = common.cols == piece.box.cols && common.cols == box.cols;
    const int64_t run = whole_rows ? common.elems() : common.cols;
    for (int64_t row = common.row; row < common.row + (whole_rows ? 1 : common.rows); ++row) {
      const int64_t from = (piece.offset + place_in(piece.box, row, common.col)) * width;
      const auto read = bytes.subspan(static_cast<size_t>(from), static_cast<size_t>(run * width));
      const auto to = dst.subspan(static_cast<size_t>(place_in(box, row, common.col)),
                                  static_cast<size_t>(run));
      if (source.state.is_coded())
        std::transform(read.begin(), read.end(), to.begin(),
                       [](std::byte code) { return static_cast<float>(code); });
      else
        to_f32(source.state.dtype, read, to);
    }
    bytes_read_ += common.elems() * width;
  }
}

void Checkpoint::release(const std::string& tensor) const {
  const std::string name = piece_name(kParameters, tensor);
  int last = -1;  // a file's pieces mostly follow each other
  for (const CheckpointPiece& piece : manifest_.tensors.at(tensor).pieces) {
    if (piece.file == std::exchange(last, piece.file)) continue;
    const SafetensorsFile& file = *files_[static_cast<size_t>(piece.file)];
    file.release(file.entry(name));
  }
}

}  // namespace onefold
