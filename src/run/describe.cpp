#include "run/describe.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "io/half.h"
#include "run/run_folder.h"

namespace onefold {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlockElems = int64_t{1} << 18;    // of one chunk of work: 2 MiB as doubles
constexpr int64_t kReleaseElems = int64_t{1} << 23;  // after which mapped pages are let go

bool present(const std::string& path) {
  std::error_code ignored;  // what cannot be examined cannot be read either, and that says why
  return fs::exists(path, ignored);
}

// What a folder says about its model, if anything.
void read_model(const std::string& path, Located& located) {
  try {
    if (located.kind == PathKind::run) {
      located.model = RunFolder::open(path).model();
      return;
    }
    if (!present(path + "/config.json")) return;
    const Json config = read_json(path + "/config.json");
    if (config.is_object() && config.contains("model_type") && config["model_type"].is_string())
      located.model_type = config["model_type"].get<std::string>();
    located.model = spec_from_hf_config(config, "config.json");
  } catch (const UserError& error) {
    located.remark = error.what();  // its tensors can be described all the same
  }
}

struct Partial {
  double sum = 0, squares = 0;
  double min = std::numeric_limits<double>::infinity(), max = -min;
  int64_t nans = 0, infinities = 0;

  void add(std::span<const double> values) {
    for (const double value : values) {
      if (!std::isfinite(value)) {
        ++(std::isnan(value) ? nans : infinities);
        continue;
      }
      sum += value;
      squares += value * value;
      min = std::min(min, value);
      max = std::max(max, value);
    }
  }
  void add(const Partial& other) {
    sum += other.sum;
    squares += other.squares;
    min = std::min(min, other.min);
    max = std::max(max, other.max);
    nans += other.nans;
    infinities += other.infinities;
  }
};

void look_at_values(const TensorFiles& tensors, ThreadPool& pool, TensorStats& stats) {
  const std::span<const std::byte> bytes = tensors.bytes(stats.name);
  const auto width = static_cast<size_t>(safetensors_dtype_bytes(stats.dtype));
  Partial whole;
  // Blocks are cut by size alone and added in order: the same sums on any number of threads.
  for (int64_t start = 0; start < stats.elems; start += kReleaseElems) {
    const int64_t count = std::min(kReleaseElems, stats.elems - start);
    std::vector<Partial> parts(static_cast<size_t>((count + kBlockElems - 1) / kBlockElems));
    pool.run(static_cast<int64_t>(parts.size()), [&](int64_t block, int) {
      const auto first = static_cast<size_t>(start + block * kBlockElems);
      const auto size = static_cast<size_t>(std::min(kBlockElems, count - block * kBlockElems));
      std::vector<double> values(size);
      to_f64(stats.dtype, bytes.subspan(first * width, size * width), values);
      parts[static_cast<size_t>(block)].add(values);
    });
    for (const Partial& part : parts) whole.add(part);
    tensors.release(stats.name);
  }
  stats.nans = whole.nans;
  stats.infinities = whole.infinities;
  const int64_t finite = stats.elems - whole.nans - whole.infinities;
  if (finite == 0) return;
  stats.norm = std::sqrt(whole.squares);
  stats.min = whole.min;
  stats.max = whole.max;
  stats.mean = whole.sum / static_cast<double>(finite);
}

const char* kind_name(PathKind kind) {
  switch (kind) {
    case PathKind::run:
      return "run";
    case PathKind::hf:
      return "hugging_face";
    case PathKind::file:
      return "safetensors";
  }
  internal_error("no name for kind {}", static_cast<int>(kind));
}

// Where a tensor is in the tree: "model.layers.3.mlp.up_proj.weight" is the leaf
// "mlp.up_proj.weight" on the branch "model.layers.3". Without a number, the branch is all but the
// last part.
struct Location {
  std::string branch, leaf;
  std::string stem;     // the branch without its number
  int64_t number = -1;  // of the block; -1 if there is none
  size_t tensor = 0;
};

Location place_of(const std::string& name, size_t tensor) {
  Location place;
  place.tensor = tensor;
  const std::vector<std::string> parts = split(name, '.');
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const std::string& part = parts[i];
    place.branch += (i == 0 ? "" : ".") + part;
    // Nine digits: more are no block's.
    if (!part.empty() && part.size() < 10 &&
        part.find_first_not_of("0123456789") == std::string::npos) {
      place.number = std::stoll(part);
      break;
    }
    place.stem = place.branch;
  }
  place.leaf = place.branch.empty() ? name : name.substr(place.branch.size() + 1);
  return place;
}

// Branch by branch. Files are often sorted by type or by letters (block 10 before block 2): blocks
// come by number here, and otherwise things stay in the order in which they first appear.
std::vector<Location> places_of(const std::vector<TensorStats>& tensors) {
  std::vector<Location> places;
  std::map<std::string, size_t> order;
  for (size_t i = 0; i < tensors.size(); ++i) {
    places.push_back(place_of(tensors[i].name, i));
    order.emplace(places.back().stem, i);
  }
  std::stable_sort(places.begin(), places.end(), [&](const Location& a, const Location& b) {
    return std::pair(order.at(a.stem), a.number) < std::pair(order.at(b.stem), b.number);
  });
  return places;
}

std::string health_text(const TensorStats& tensor) {
  std::string text;
  if (tensor.nans > 0) text += fmt::format("  {} NaN", tensor.nans);
  if (tensor.infinities > 0) text += fmt::format("  {} infinite", tensor.infinities);
  return text;
}

std::string model_text(const ModelSpec& spec) {
  return fmt::format(
      "{} layers, hidden {}, {} heads{}, vocabulary {}", spec.num_layers, spec.hidden_size,
      spec.num_heads,
      spec.num_kv_heads == spec.num_heads ? "" : fmt::format(" on {} key heads", spec.num_kv_heads),
      spec.vocab_size);
}

std::string head_text(const Description& d) {
  std::string what = "a safetensors file";
  if (d.kind == PathKind::run) what = "a run of Onefold's";
  if (d.kind == PathKind::hf)
    what = fmt::format("a Hugging Face model{}",
                       d.model_type.empty() ? "" : fmt::format(" ({})", d.model_type));
  std::string text = fmt::format("{}: {}\n", d.path, what);
  if (d.model) text += fmt::format("model    {}\n", model_text(*d.model));
  if (!d.remark.empty()) text += fmt::format("model    not supported: {}\n", d.remark);
  text += fmt::format("tensors  {} with {} values, {} in {} file{}\n", d.tensors.size(),
                      format_count(d.elems()), format_bytes(d.bytes()), d.files.size(),
                      d.files.size() == 1 ? "" : "s");
  if (!d.has_values) return text;
  if (d.not_finite() == 0) return text + "health   all values are finite\n";
  const int64_t bad = d.not_finite();
  return text + fmt::format("health   {} not finite; see the marks below\n",
                            bad == 1 ? "1 value is" : fmt::format("{} values are", bad));
}

}  // namespace

Located locate(const std::string& path) {
  if (!present(path)) user_error("{} is not there; name a folder or a safetensors file", path);
  if (!fs::is_directory(path)) return {PathKind::file, TensorFiles::open_file(path), {}, "", ""};
  const auto with = [&](PathKind kind, TensorFiles tensors) {
    Located located{kind, std::move(tensors), {}, "", ""};
    read_model(path, located);
    return located;
  };
  if (present(path + "/weights.safetensors"))
    return with(PathKind::run, TensorFiles::open_file(path + "/weights.safetensors"));
  if (TensorFiles::in_folder(path)) return with(PathKind::hf, TensorFiles::open_hf_folder(path));
  user_error("{} has no weights: weights.safetensors of a run, or {} or {} of a Hugging Face model",
             path, kHfWeights, kHfIndex);
}

int64_t Description::elems() const {
  int64_t sum = 0;
  for (const TensorStats& tensor : tensors) sum += tensor.elems;
  return sum;
}
int64_t Description::bytes() const {
  int64_t sum = 0;
  for (const TensorStats& tensor : tensors) sum += tensor.bytes;
  return sum;
}
int64_t Description::not_finite() const {
  int64_t sum = 0;
  for (const TensorStats& tensor : tensors) sum += tensor.nans + tensor.infinities;
  return sum;
}

Description describe(const std::string& path, bool values, ThreadPool& pool) {
  const Located located = locate(path);
  Description description;
  description.path = path;
  description.kind = located.kind;
  description.model = located.model;
  description.model_type = located.model_type;
  description.remark = located.remark;
  description.files = located.tensors.files();
  description.has_values = values;
  for (const std::string& name : located.tensors.names()) {
    const SafetensorsEntry& entry = located.tensors.entry(name);
    TensorStats stats;
    stats.name = name;
    stats.dtype = entry.dtype;
    stats.shape = entry.shape;
    stats.elems = entry.elems();
    stats.bytes = entry.bytes();
    if (values) look_at_values(located.tensors, pool, stats);
    description.tensors.push_back(std::move(stats));
  }
  return description;
}

Json description_json(const Description& d) {
  Json json = {{"path", d.path}, {"kind", kind_name(d.kind)}};
  json["model_type"] = d.model_type.empty() ? Json(nullptr) : Json(d.model_type);
  json["model"] = d.model ? d.model->to_json() : Json(nullptr);
  json["remark"] = d.remark.empty() ? Json(nullptr) : Json(d.remark);
  json["files"] = d.files;
  json["parameters"] = d.elems();
  json["bytes"] = d.bytes();
  json["finite"] = d.has_values ? Json(d.not_finite() == 0) : Json(nullptr);
  json["tensors"] = Json::array();
  for (const TensorStats& tensor : d.tensors) {
    Json item = {{"name", tensor.name},
                 {"dtype", tensor.dtype},
                 {"shape", tensor.shape},
                 {"elements", tensor.elems},
                 {"bytes", tensor.bytes}};
    if (d.has_values)
      item.update({{"norm", tensor.norm},
                   {"min", tensor.min},
                   {"max", tensor.max},
                   {"mean", tensor.mean},
                   {"nan", tensor.nans},
                   {"infinite", tensor.infinities}});
    json["tensors"].push_back(std::move(item));
  }
  return json;
}

std::string description_text(const Description& d) {
  std::string text = head_text(d);
  const std::vector<Location> places = places_of(d.tensors);
  const auto type = [](const TensorStats& tensor) {
    return fmt::format("{} {}", tensor.dtype, shape_text(tensor.shape));
  };
  size_t widest = 0, widest_type = 0;
  for (const Location& place : places) {
    widest = std::max(widest, place.leaf.size());
    widest_type = std::max(widest_type, type(d.tensors[place.tensor]).size());
  }
  const std::string* last = nullptr;
  for (const Location& place : places) {
    const TensorStats& tensor = d.tensors[place.tensor];
    if (!last || place.branch != *last)
      text += fmt::format("{}\n", place.branch.empty() ? "." : place.branch);
    last = &place.branch;
    text += fmt::format("  {:<{}}  {:<{}}", place.leaf, widest, type(tensor), widest_type);
    if (d.has_values)
      text += fmt::format("  norm {:<9.4g} min {:<10.4g} max {:<10.4g} mean {:.3g}{}", tensor.norm,
                          tensor.min, tensor.max, tensor.mean, health_text(tensor));
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace onefold
