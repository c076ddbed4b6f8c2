#include "io/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "io/checksum.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "onefold-checkpoint";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostElems = int64_t{1} << 46;  // far beyond any model, far inside int64

// A name from a file becomes part of a path: it must stay in the folder.
bool plain_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name != "." && name != "..";
}

CheckpointFile read_file_entry(JsonObject in) {
  CheckpointFile file{.name = in.require<std::string>("name"),
                      .bytes = in.at_least("bytes", 1, 0),
                      .checksum = in.require<std::string>("xxh3")};
  if (!plain_name(file.name)) in.fail("name", "must be the name of a file in this folder");
  in.finish();
  return file;
}

CheckpointTensor read_tensor(JsonObject in, size_t files) {
  CheckpointTensor tensor;
  int64_t elems = 1;
  for (const double size : in.require<std::vector<double>>("shape")) {
    if (size < 0 || size > static_cast<double>(kMostElems)) in.fail("shape", "is out of range");
    tensor.shape.push_back(static_cast<int64_t>(size));
    elems = size == 0 || elems <= kMostElems / static_cast<int64_t>(size)
                ? elems * static_cast<int64_t>(size)
                : kMostElems + 1;
    if (elems > kMostElems) in.fail("shape", "is out of range");
  }
  tensor.states = in.require<std::vector<std::string>>("states");
  int64_t covered = 0;
  const Json pieces = in.require<Json>("pieces");
  for (const Json& piece : pieces) {
    if (!piece.is_array() || piece.size() != 3 ||
        !std::all_of(piece.begin(), piece.end(),
                     [](const Json& number) { return number.is_number_integer(); }))
      in.fail("pieces", "must be a list of [file, first, elems]");
    const CheckpointPiece part{piece[0], piece[1], piece[2]};
    if (part.file < 0 || static_cast<size_t>(part.file) >= files)
      in.fail("pieces", fmt::format("names file {} of {}", part.file, files));
    if (part.first != covered || part.elems < 1 || part.elems > elems - covered)
      in.fail("pieces", "do not cover the tensor from end to end");
    covered += part.elems;
    tensor.pieces.push_back(part);
  }
  if (covered != elems) in.fail("pieces", "do not cover the tensor from end to end");
  in.finish();
  return tensor;
}

}  // namespace

std::string checkpoint_file_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

std::string piece_name(const std::string& state, const std::string& tensor) {
  return state + "/" + tensor;
}

int64_t CheckpointTensor::elems() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

Json Manifest::to_json() const {
  Json file_list = Json::array(), tensor_table = Json::object();
  for (const CheckpointFile& file : files)
    file_list.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", file.checksum}});
  for (const auto& [name, tensor] : tensors) {
    Json pieces = Json::array();
    for (const CheckpointPiece& piece : tensor.pieces)
      pieces.push_back({piece.file, piece.first, piece.elems});
    tensor_table[name] = {{"shape", tensor.shape}, {"states", tensor.states}, {"pieces", pieces}};
  }
  return {{"format", kFormat}, {"version", kVersion}, {"step", step},
          {"run", run},        {"files", file_list},  {"tensors", tensor_table}};
}

Manifest Manifest::from_json(const Json& json, const std::string& source) {
  if (!json.is_object()) user_error("{} is not a checkpoint's manifest", source);
  try {
    JsonObject root(json, "");
    if (root.get<std::string>("format", "") != kFormat)
      root.fail("format", fmt::format("must be \"{}\"", kFormat));
    if (const auto version = root.require<int64_t>("version"); version != kVersion)
      root.fail("version", fmt::format("is {}; this Onefold reads {}", version, kVersion));
    Manifest manifest;
    manifest.step = root.at_least("step", 0, 0);
    manifest.run = root.require<Json>("run");
    const Json files = root.require<Json>("files"), tensors = root.require<Json>("tensors");
    for (size_t i = 0; i < files.size(); ++i)
      manifest.files.push_back(read_file_entry({files[i], fmt::format("files[{}]", i)}));
    for (const auto& [name, tensor] : tensors.items())
      manifest.tensors[name] = read_tensor({tensor, "tensors." + name}, manifest.files.size());
    root.finish();
    return manifest;
  } catch (const UserError& error) {
    user_error("{}: {}", source, error.what());
  } catch (const Json::exception& error) {
    user_error("{}: {}", source, json_reason(error.what()));
  }
}

Checkpoint::Checkpoint(const std::string& folder)
    : folder_(folder),
      manifest_(
          Manifest::from_json(read_json(folder + "/" + kManifest), folder + "/" + kManifest)) {
  for (const CheckpointFile& file : manifest_.files) {
    const std::string path = folder + "/" + file.name;
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
    if (error) user_error("{}: {}", path, error.message());
    if (bytes != file.bytes)
      user_error("{} has {} bytes, the manifest says {}: it was cut short or replaced", path, bytes,
                 file.bytes);
    files_.push_back(std::make_unique<SafetensorsFile>(path));
  }
  for (const auto& [name, tensor] : manifest_.tensors)
    for (const CheckpointPiece& piece : tensor.pieces)
      for (const std::string& state : tensor.states) {
        const SafetensorsFile& file = *files_[static_cast<size_t>(piece.file)];
        const SafetensorsEntry& entry = file.entry(piece_name(state, name));
        if (entry.dtype != "F32" || entry.elems() != piece.elems)
          user_error("{}: {} has {} elements of {}, the manifest says {} of F32", file.path(),
                     entry.name, entry.elems(), entry.dtype, piece.elems);
      }
}

void Checkpoint::verify(int file) const {
  const CheckpointFile& expected = manifest_.files[static_cast<size_t>(file)];
  const std::string path = folder_ + "/" + expected.name;
  const MappedFile mapped(path);
  if (checksum_of(mapped.bytes()) != expected.checksum)
    user_error("{} does not have the checksum {} that the manifest gives it: it is damaged", path,
               expected.checksum);
}

void Checkpoint::read(const std::string& state, const std::string& tensor, int64_t first,
                      std::span<float> dst) const {
  const auto found = manifest_.tensors.find(tensor);
  if (found == manifest_.tensors.end())
    user_error("{} has no tensor {}: it belongs to another model", folder_, tensor);
  const auto& [shape, states, pieces] = found->second;
  if (std::find(states.begin(), states.end(), state) == states.end())
    user_error("{} has no {} of {}: it was saved with another optimizer", folder_, state, tensor);
  const auto wanted = static_cast<int64_t>(dst.size());
  require(first >= 0 && first + wanted <= found->second.elems(), "{}: elements {}+{} of {}", tensor,
          first, wanted, found->second.elems());
  for (const CheckpointPiece& piece : pieces) {
    const int64_t begin = std::max(first, piece.first);
    const int64_t end = std::min(first + wanted, piece.first + piece.elems);
    if (begin >= end) continue;
    const SafetensorsFile& file = *files_[static_cast<size_t>(piece.file)];
    const auto bytes = file.bytes(file.entry(piece_name(state, tensor)));
    std::memcpy(dst.data() + (begin - first), bytes.data() + (begin - piece.first) * 4,
                static_cast<size_t>(end - begin) * 4);
    bytes_read_ += (end - begin) * 4;
  }
}

}  // namespace onefold
