#include "io/hf_folder.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/gguf_tensors.h"
#include "io/half.h"
#include "io/quantized.h"
#include "io/torch_file.h"

namespace onefold {
namespace {

// As transformers looks for them: safetensors first, and one file before an index.
constexpr std::array<std::string_view, 4> kWeightFiles = {kHfWeights, kHfIndex, "pytorch_model.bin",
                                                          "pytorch_model.bin.index.json"};

// A shard lies in the folder itself. Links are followed: the hub's cache is made of them, and
// whoever can put a link into the folder can put the file there too.
struct WeightMap {
  std::vector<std::string> shards;             // in order of first mention
  std::map<std::string, std::string> tensors;  // tensor to shard
};

WeightMap read_index(const std::string& index) {
  const Json root = read_plain_json(index);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object())
    user_error("{} has no object \"weight_map\": it is not the index of a model", index);
  WeightMap map;
  std::set<std::string> seen;
  for (const auto& [tensor, shard] : root["weight_map"].items()) {
    if (!shard.is_string())
      user_error("{}: weight_map.{} is {}, not the name of a file", index, tensor,
                 brief_json(shard));
    const auto name = shard.get<std::string>();
    if (!is_plain_file_name(name))
      user_error("{}: weight_map.{} is {}, which is not a file's name in this folder", index,
                 tensor, brief_json(shard));
    map.tensors[tensor] = name;
    if (seen.insert(name).second) map.shards.push_back(name);
  }
  if (map.tensors.empty()) user_error("{}: weight_map is empty", index);
  return map;
}

}  // namespace

TensorFiles TensorFiles::open_file(const std::string& path) {
  TensorFiles tensors(path);
  tensors.add(path);
  return tensors;
}

bool TensorFiles::in_folder(const std::string& folder) {
  return std::any_of(kWeightFiles.begin(), kWeightFiles.end(), [&](std::string_view name) {
    const std::string path = fmt::format("{}/{}", folder, name);
    return path_exists(path) || is_broken_link(path);
  });
}

std::vector<std::string> TensorFiles::unreadable_in_folder(const std::string& folder) {
  static constexpr std::array<std::string_view, 10> kWeights = {
      ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".npz", ".onnx"};
  // What trainers leave beside a model.
  static constexpr std::array<std::string_view, 5> kOthers = {"training_args.", "optimizer.",
                                                              "scheduler.", "scaler.", "rng_state"};
  std::vector<std::string> names;
  if (in_folder(folder)) return names;
  for (const Files::Entry& entry : list_folder(folder)) {
    const std::string_view name = entry.name;
    const auto ends = [&](std::string_view end) { return name.ends_with(end); };
    const auto begins = [&](std::string_view begin) { return name.starts_with(begin); };
    const bool weights =
        std::any_of(kWeights.begin(), kWeights.end(), ends) || name.ends_with(".index.json");
    if (weights && std::none_of(kOthers.begin(), kOthers.end(), begins))
      names.push_back(entry.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TensorFiles TensorFiles::open_hf_folder(const std::string& folder) {
  TensorFiles tensors(folder);
  for (const std::string_view name : kWeightFiles) {
    const std::string path = fmt::format("{}/{}", folder, name);
    if (is_broken_link(path))
      user_error(
          "{} is a link that leads to no file. Links of the hub's cache lead out of their folder: "
          "copy it with what they lead to (cp -rL)",
          path);
    if (!path_exists(path)) continue;
    if (name.ends_with(".json"))
      tensors.open_index(folder, path);
    else
      tensors.add(path);
    return tensors;
  }
  user_error("{} has no weights: none of {}", folder, fmt::join(kWeightFiles, ", "));
}

void TensorFiles::add(const std::string& path) {
  if (GgufFile::is_named(path))
    mapped_.push_back(std::make_unique<GgufTensors>(path));
  else if (path.ends_with(".bin"))
    mapped_.push_back(std::make_unique<TorchFile>(path));
  else
    mapped_.push_back(std::make_unique<SafetensorsFile>(path));
  files_.push_back(path);
  for (const SafetensorsEntry& entry : mapped_.back()->entries()) {
    const auto [other, fresh] = places_.emplace(entry.name, Place{mapped_.back().get(), &entry});
    if (!fresh)
      user_error("tensor {} is in two files, {} and {}: remove the one that does not belong",
                 entry.name, other->second.file->path(), path);
    names_.push_back(entry.name);
  }
}

void TensorFiles::open_index(const std::string& folder, const std::string& index) {
  const WeightMap map = read_index(index);
  for (const std::string& shard : map.shards) {
    if (!path_exists(folder + "/" + shard))
      user_error("{} names the file {}, which is not there; download or copy it again", index,
                 shard);
    add(folder + "/" + shard);
  }
  for (const auto& [tensor, shard] : map.tensors) {
    const auto found = places_.find(tensor);
    if (found == places_.end() || found->second.file->path() != folder + "/" + shard)
      user_error("{} says that tensor {} is in {}, but that file does not have it{}", index, tensor,
                 shard,
                 found == places_.end() ? "" : fmt::format("; {} has", found->second.file->path()));
  }
  for (const std::string& name : names_)
    if (!map.tensors.contains(name))
      user_error("{} does not list tensor {}, which is in {}: index and files are of two models",
                 index, name, file_of(name));
}

const TensorFiles::Place& TensorFiles::place(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end())
    user_error("{} has no tensor \"{}\"{}", path_, name, did_you_mean(name, names_));
  return found->second;
}

const std::map<std::string, std::string>& TensorFiles::metadata() const {
  return mapped_.front()->metadata();
}
const SafetensorsEntry& TensorFiles::entry(const std::string& name) const {
  return *place(name).entry;
}
const std::string& TensorFiles::file_of(const std::string& name) const {
  return place(name).file->path();
}
std::span<const std::byte> TensorFiles::bytes(const std::string& name) const {
  const Place& at = place(name);
  return at.file->bytes(*at.entry);
}
void TensorFiles::release(const std::string& name) const {
  const Place& at = place(name);
  at.file->release(*at.entry);
}

void TensorFiles::read(const std::string& name, int64_t first, std::span<float> dst) const {
  const Place& at = place(name);
  if (!is_readable_dtype(at.entry->dtype))
    user_error("{}: tensor {} is {}; {} can be read", at.file->path(), name, at.entry->dtype,
               kReadableDtypes);
  const auto count = static_cast<int64_t>(dst.size());
  require(first >= 0 && count <= at.entry->elems() - first, "elements {}+{} of tensor {}", first,
          count, name);
  read_values(at.entry->dtype, at.file->bytes(*at.entry), first, dst);
}

bool TensorFiles::has_numbers(const std::string& name) const {
  const std::string& dtype = entry(name).dtype;
  return is_number_dtype(dtype) || is_readable_dtype(dtype);
}

void TensorFiles::read(const std::string& name, int64_t first, std::span<double> dst) const {
  const std::string& dtype = entry(name).dtype;
  if (is_number_dtype(dtype)) {
    const auto width = static_cast<size_t>(safetensors_dtype_bytes(dtype));
    return to_f64(dtype,
                  bytes(name).subspan(static_cast<size_t>(first) * width, dst.size() * width), dst);
  }
  std::vector<float> values(dst.size());
  read(name, first, values);
  std::copy(values.begin(), values.end(), dst.begin());
}

}  // namespace onefold
