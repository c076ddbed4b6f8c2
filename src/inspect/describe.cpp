#include "inspect/describe.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "inspect/blocks.h"
#include "inspect/hf_source.h"
#include "inspect/saved_run.h"

namespace onefold {
namespace {

// What a folder says about its model, if anything.
void read_model(const std::string& path, Located& located) {
  try {
    if (located.kind == PathKind::run) {
      located.model = SavedRun(path).model();
      return;
    }
    const bool gguf = located.kind == PathKind::gguf;
    if (!gguf && !path_exists(path + "/config.json")) return;
    const Json config = gguf ? read_model_config(path) : read_plain_json(path + "/config.json");
    if (config.is_object() && config.contains("model_type") && config["model_type"].is_string())
      located.model_type = config["model_type"].get<std::string>();
    located.model = spec_from_hf_config(config, gguf ? path : "config.json");
  } catch (const UserError& error) {
    located.remark = error.what();  // its tensors can be described all the same
  }
}

struct ValueStatistics {
  double sum = 0;
  long double squares = 0;  // whose range holds the square of any double
  double min = std::numeric_limits<double>::infinity(), max = -min;
  int64_t nans = 0, infinities = 0;

  void add(std::span<const double> values) {
    for (const double value : values) {
      if (!std::isfinite(value)) {
        ++(std::isnan(value) ? nans : infinities);
        continue;
      }
      sum += value;
      squares += static_cast<long double>(value) * value;
      min = std::min(min, value);
      max = std::max(max, value);
    }
  }
  void add(const ValueStatistics& other) {
    sum += other.sum;
    squares += other.squares;
    min = std::min(min, other.min);
    max = std::max(max, other.max);
    nans += other.nans;
    infinities += other.infinities;
  }
};

// Values [first, first + dst.size()) of a tensor.
using ValueReader = std::function<void(int64_t first, std::span<double> dst)>;

void look_at_values(const ValueReader& read, const std::function<void()>& release, ThreadPool& pool,
                    TensorStats& stats) {
  ValueStatistics whole;
  // Blocks are cut by size alone and added in order: the same sums on any number of threads.
  for (int64_t start = 0; start < stats.elems; start += kReleaseElems) {
    const int64_t count = std::min(kReleaseElems, stats.elems - start);
    std::vector<ValueStatistics> parts(
        static_cast<size_t>((count + kBlockElems - 1) / kBlockElems));
    pool.run(static_cast<int64_t>(parts.size()), [&](int64_t block, int) {
      const int64_t done = block * kBlockElems;
      std::vector<double> values(static_cast<size_t>(std::min(kBlockElems, count - done)));
      read(start + done, values);
      parts[static_cast<size_t>(block)].add(values);
    });
    for (const ValueStatistics& part : parts) whole.add(part);
    release();
  }
  stats.nans = whole.nans;
  stats.infinities = whole.infinities;
  const int64_t finite = stats.elems - whole.nans - whole.infinities;
  if (finite == 0) {
    if (stats.elems > 0)
      stats.norm = stats.min = stats.max = stats.mean = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  stats.norm = static_cast<double>(std::sqrt(whole.squares));
  stats.min = whole.min;
  stats.max = whole.max;
  stats.mean = whole.sum / static_cast<double>(finite);
}

const char* kind_name(PathKind kind) {
  switch (kind) {
    case PathKind::run:
      return "run";
    case PathKind::checkpoint:
      return "checkpoint";
    case PathKind::hf:
      return "hugging_face";
    case PathKind::gguf:
      return "gguf";
    case PathKind::file:
      return "safetensors";
  }
  internal_error("no name for kind {}", static_cast<int>(kind));
}

void describe_files(const TensorFiles& tensors, ThreadPool& pool, Description& description) {
  description.files = tensors.files();
  for (const std::string& name : tensors.names()) {
    const SafetensorsEntry& entry = tensors.entry(name);
    TensorStats stats;
    stats.name = name;
    stats.dtype = entry.dtype;
    stats.shape = entry.shape;
    stats.elems = entry.elems();
    stats.bytes = entry.bytes();
    stats.has_values = description.has_values && tensors.has_numbers(name);
    const auto read = [&](int64_t first, std::span<double> dst) { tensors.read(name, first, dst); };
    if (stats.has_values)
      look_at_values(
          read, [&] { tensors.release(name); }, pool, stats);
    description.tensors.push_back(std::move(stats));
  }
}

int64_t stored_bytes(const CheckpointState& state) {
  return state.elems * safetensors_dtype_bytes(state.dtype);
}

// Parameters by their whole names, wherever their pieces lie; the optimizer's state in sum.
void describe_checkpoint(const CheckpointSource& source, ThreadPool& pool,
                         Description& description) {
  const Manifest& manifest = source.checkpoint().manifest();
  CheckpointSummary summary;
  summary.step = manifest.step;
  summary.ranks = static_cast<int64_t>(manifest.files.size());
  if (const Json& stage = manifest.run.value("stage", Json()); stage.is_number_integer())
    summary.stage = stage;
  for (const CheckpointFile& file : manifest.files)
    description.files.push_back(source.checkpoint().folder() + "/" + file.name);
  for (const ParamSpec& param : parameters_of(source.model())) {
    if (!is_saved(source.model(), param)) continue;
    const CheckpointTensor& tensor = manifest.tensors.at(param.name);
    TensorStats stats;
    stats.name = param.name;
    stats.dtype = tensor.states.front().dtype;
    stats.shape = tensor.shape;
    stats.elems = tensor.elems();
    stats.bytes = stored_bytes(tensor.states.front());
    const auto read = [&](int64_t first, std::span<double> dst) {
      std::vector<float> values(dst.size());
      source.read(param, first, values);
      std::copy(values.begin(), values.end(), dst.begin());
    };
    stats.has_values = description.has_values;
    if (stats.has_values)
      look_at_values(
          read, [&] { source.release(param); }, pool, stats);
    description.tensors.push_back(std::move(stats));
    for (size_t i = 1; i < tensor.states.size(); ++i) {
      const CheckpointState& state = tensor.states[i];
      summary.state_elems += state.elems;
      summary.state_bytes += stored_bytes(state);
      if (i > summary.states.size()) summary.states.push_back(state.name);
    }
  }
  description.checkpoint = std::move(summary);
}

std::string checkpoint_text(const CheckpointSummary& summary) {
  std::string text =
      fmt::format("saved    after step {} by {} rank{}{}\n", summary.step, summary.ranks,
                  summary.ranks == 1 ? "" : "s",
                  summary.stage < 0 ? "" : fmt::format(" at stage {}", summary.stage));
  if (summary.states.empty()) return text;
  return text + fmt::format("state    {} of the optimizer: {} values, {}\n",
                            join(summary.states, ", "), format_count(summary.state_elems),
                            format_bytes(summary.state_bytes));
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
    places.push_back(place_of(printable(tensors[i].name), i));
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
      "{} layers, hidden {}, {} heads{}{}, vocabulary {}", spec.num_layers, spec.hidden_size,
      spec.num_heads,
      spec.num_kv_heads == spec.num_heads ? "" : fmt::format(" on {} key heads", spec.num_kv_heads),
      spec.experts.enabled()
          ? fmt::format(", {} experts, {} for a token", spec.experts.count, spec.experts.per_token)
          : "",
      spec.vocab_size);
}

std::string head_text(const Description& d) {
  std::string what = "a safetensors file";
  if (d.kind == PathKind::run) what = "a run of Onefold's";
  if (d.kind == PathKind::checkpoint) what = "a checkpoint of Onefold's";
  if (d.kind == PathKind::hf)
    what = fmt::format("a Hugging Face model{}",
                       d.model_type.empty() ? "" : fmt::format(" ({})", d.model_type));
  if (d.kind == PathKind::gguf)
    what = fmt::format("a GGUF file{}",
                       d.model_type.empty() ? "" : fmt::format(" ({})", d.model_type));
  std::string text = fmt::format("{}: {}\n", d.path, what);
  if (d.model) text += fmt::format("model    {}\n", model_text(*d.model));
  if (!d.remark.empty()) text += fmt::format("model    not supported: {}\n", d.remark);
  text += fmt::format("tensors  {} with {} values, {} in {} file{}\n", d.tensors.size(),
                      format_count(d.elems()), format_bytes(d.bytes()), d.files.size(),
                      d.files.size() == 1 ? "" : "s");
  if (d.checkpoint) text += checkpoint_text(*d.checkpoint);
  if (!d.has_values) return text;
  if (d.not_finite() == 0) return text + "health   all values are finite\n";
  const int64_t bad = d.not_finite();
  return text + fmt::format("health   {} not finite; see the marks below\n",
                            bad == 1 ? "1 value is" : fmt::format("{} values are", bad));
}

}  // namespace

Located locate(const std::string& path) {
  if (!path_exists(path))
    user_error("{} is not there; name a folder, a safetensors file or a GGUF file", path);
  const auto of_files = [](PathKind kind, TensorFiles tensors) {
    return Located{kind, std::move(tensors), nullptr, {}, "", ""};
  };
  const auto with_model = [&](Located located) {
    read_model(path, located);
    return located;
  };
  if (!is_folder(path) && GgufFile::is_named(path))
    return with_model(of_files(PathKind::gguf, TensorFiles::open_file(path)));
  if (!is_folder(path)) return of_files(PathKind::file, TensorFiles::open_file(path));
  const auto of_checkpoint = [](std::shared_ptr<const CheckpointSource> source) {
    const ModelSpec model = source->model();
    return Located{PathKind::checkpoint, {}, std::move(source), model, "", ""};
  };
  if (path_exists(path + "/" + kManifest)) {
    const auto source = std::make_shared<CheckpointSource>(path);
    source->verify();
    return of_checkpoint(source);
  }
  if (path_exists(path + "/" + kRunWeights))
    return with_model(of_files(PathKind::run, TensorFiles::open_file(path + "/" + kRunWeights)));
  if (TensorFiles::in_folder(path))
    return with_model(of_files(PathKind::hf, TensorFiles::open_hf_folder(path)));
  const CheckpointFolder checkpoints(path + "/" + kRunCheckpoints);  // of a run that has not ended
  std::vector<std::string> remarks;
  if (!checkpoints.list().empty()) return of_checkpoint(newest_whole(checkpoints, remarks));
  user_error(
      "{} has no weights: weights.safetensors or a checkpoint of a run, or {} or {} of a Hugging "
      "Face model",
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
  description.has_values = values;
  if (located.checkpoint)
    describe_checkpoint(*located.checkpoint, pool, description);
  else
    describe_files(*located.tensors, pool, description);
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
  if (d.checkpoint)
    json["checkpoint"] = {{"step", d.checkpoint->step},
                          {"ranks", d.checkpoint->ranks},
                          {"stage", d.checkpoint->stage < 0 ? Json() : Json(d.checkpoint->stage)},
                          {"optimizer_states", d.checkpoint->states},
                          {"optimizer_values", d.checkpoint->state_elems},
                          {"optimizer_bytes", d.checkpoint->state_bytes}};
  json["tensors"] = Json::array();
  for (const TensorStats& tensor : d.tensors) {
    Json item = {{"name", tensor.name},
                 {"dtype", tensor.dtype},
                 {"shape", tensor.shape},
                 {"elements", tensor.elems},
                 {"bytes", tensor.bytes}};
    if (tensor.has_values)
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
    if (tensor.has_values)
      text += fmt::format("  norm {:<9.4g} min {:<10.4g} max {:<10.4g} mean {:.3g}{}", tensor.norm,
                          tensor.min, tensor.max, tensor.mean, health_text(tensor));
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

}  // namespace onefold
