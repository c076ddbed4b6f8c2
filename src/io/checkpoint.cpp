#include "io/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "io/checksum.h"

namespace onefold {
namespace {

constexpr const char* kFormat = "onefold-checkpoint";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostElems = int64_t{1} << 46;  // far beyond any model, far inside int64

// A name from a file becomes part of a path: it must stay in the folder.
bool plain_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name != "." && name != "..";
}

Json list_of(JsonObject& in, std::string_view key) {
  Json list = in.require<Json>(key);
  if (!list.is_array()) in.fail(key, fmt::format("is {}, not a list", json_kind(list)));
  return list;
}

Json object_of(JsonObject& in, std::string_view key) {
  return JsonObject(in.require<Json>(key), in.path(key)).value();
}

CheckpointFile read_file_entry(JsonObject in) {
  CheckpointFile file{.name = in.require<std::string>("name"),
                      .bytes = in.require<int64_t>("bytes"),
                      .checksum = in.require<std::string>("xxh3")};
  if (!plain_name(file.name)) in.fail("name", "must be the name of a file in this folder");
  if (file.bytes < 1) in.fail("bytes", "must be at least 1");
  in.finish();
  return file;
}

// A count from a file: -1 for what is none, or is beyond any model.
int64_t count_of(const Json& json) {
  if (!json.is_number_integer()) return -1;
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{kMostElems}) return -1;
  const auto count = json.get<int64_t>();
  return count < 0 || count > kMostElems ? -1 : count;
}

std::vector<int64_t> read_shape(JsonObject& in, int64_t& elems) {
  std::vector<int64_t> shape;
  elems = 1;
  for (const Json& json : list_of(in, "shape")) {
    const int64_t size = count_of(json);
    // Two factors of at most 2^46 overflow: the product is looked at before it is taken.
    if (size < 0 || (size > 0 && elems > kMostElems / size))
      in.fail("shape", fmt::format("has the size {}, which no tensor has", brief_json(json)));
    elems *= size;
    shape.push_back(size);
  }
  return shape;
}

// By reading, not through a mapping: it takes a block of memory whatever the file's size, and a
// disk that fails is an error, not a signal.
std::string checksum_of_file(const std::string& path) {
  InputFile file(path);
  Checksum checksum;
  std::vector<std::byte> block(size_t{1} << 19);
  while (const size_t count = file.read(block)) checksum.add({block.data(), count});
  return checksum.text();
}

CheckpointTensor read_tensor(JsonObject in, size_t files) {
  CheckpointTensor tensor;
  int64_t elems = 0, covered = 0;
  tensor.shape = read_shape(in, elems);
  tensor.states = in.require<std::vector<std::string>>("states");
  if (std::set<std::string>(tensor.states.begin(), tensor.states.end()).size() !=
          tensor.states.size() ||
      tensor.states.empty() || tensor.states[0] != kParameters)
    in.fail("states", fmt::format("must be distinct names, \"{}\" first", kParameters));
  for (const Json& piece : list_of(in, "pieces")) {
    if (!piece.is_array() || piece.size() != 3)
      in.fail("pieces", "must be a list of [file, first, elems]");
    const int64_t file = count_of(piece[0]), first = count_of(piece[1]), count = count_of(piece[2]);
    if (file < 0 || static_cast<size_t>(file) >= files)
      in.fail("pieces", fmt::format("names file {} of {}", brief_json(piece[0]), files));
    if (first != covered || count < 1 || count > elems - covered)
      in.fail("pieces", "do not cover the tensor from end to end");
    covered += count;
    tensor.pieces.push_back({static_cast<int>(file), first, count});
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

std::string manifest_checksum(Json manifest) {
  manifest.erase("xxh3");
  const std::string text = manifest.dump(-1, ' ', false, Json::error_handler_t::replace);
  return checksum_of(std::as_bytes(std::span(text)));
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
    // Not operator[]: the object is searched linearly, and the names are distinct.
    tensor_table.get_ref<Json::object_t&>().emplace_back(
        name, Json{{"shape", tensor.shape}, {"states", tensor.states}, {"pieces", pieces}});
  }
  Json json = {{"format", kFormat}, {"version", kVersion}, {"step", step},
               {"run", run},        {"files", file_list},  {"tensors", tensor_table}};
  json["xxh3"] = manifest_checksum(json);
  return json;
}

Manifest Manifest::from_json(const Json& json, const std::string& source) {
  if (!json.is_object()) user_error("{} is not a checkpoint's manifest", source);
  try {
    JsonObject root(json, "");
    if (root.get<std::string>("format", "") != kFormat)
      root.fail("format", fmt::format("must be \"{}\"", kFormat));
    if (const auto version = root.require<int64_t>("version"); version != kVersion)
      root.fail("version", fmt::format("is {}; this Onefold reads {}", version, kVersion));
    if (root.require<std::string>("xxh3") != manifest_checksum(json))
      user_error("it does not have the checksum that it gives itself: it is damaged");
    Manifest manifest;
    manifest.step = root.require<int64_t>("step");
    if (manifest.step < 0) root.fail("step", "must be at least 0");
    manifest.run = object_of(root, "run");
    const Json files = list_of(root, "files"), tensors = object_of(root, "tensors");
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
    const int64_t bytes = file_bytes(path);
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
  if (checksum_of_file(path) != expected.checksum)
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

void Checkpoint::release(const std::string& tensor) const {
  const std::string name = piece_name(kParameters, tensor);
  for (const CheckpointPiece& piece : manifest_.tensors.at(tensor).pieces) {
    const SafetensorsFile& file = *files_[static_cast<size_t>(piece.file)];
    file.release(file.entry(name));
  }
}

}  // namespace onefold
