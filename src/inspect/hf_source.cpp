#include "inspect/hf_source.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "io/half.h"
#include "io/quantized.h"
#include "model/gguf_model.h"

namespace onefold {
namespace {

// Where the model is described.
std::string config_path(const std::string& path) {
  return GgufFile::is_named(path) ? path : path + "/config.json";
}

TensorFiles open_tensors(const std::string& path) {
  return GgufFile::is_named(path) ? TensorFiles::open_file(path)
                                  : TensorFiles::open_hf_folder(path);
}

}  // namespace

Json read_model_config(const std::string& path) {
  if (GgufFile::is_named(path)) return hf_config_of_gguf(GgufFile(path));
  const Json config = read_plain_json(config_path(path));
  if (!config.is_object() || !config.contains("model_type") || !config["model_type"].is_string())
    user_error("{} has no model_type: it is not a Hugging Face model configuration",
               config_path(path));
  return config;
}

HfSource::HfSource(const std::string& path) : HfSource(path, read_model_config(path), nullptr) {}
HfSource::HfSource(const std::string& path, const ModelSpec& spec)
    : HfSource(path, read_model_config(path), &spec) {}

HfSource::HfSource(const std::string& path, const Json& config, const ModelSpec* spec)
    : path_(path),
      family_(hf_family_named(config["model_type"].get<std::string>(),
                              config_path(path) + ": model_type")),
      spec_(spec ? spec->base() : spec_from_hf_config(config, config_path(path))),
      tensors_(open_tensors(path)) {
  const std::string obstacle = hf_obstacle(spec_, family_);
  if (!obstacle.empty())
    user_error("{} is a {} model's folder, and no {} model is read or written where {}", path,
               hf_model_type(family_), hf_model_type(family_), obstacle);
  find_tensors();
}

void HfSource::find_tensors() {
  const std::string_view prefix = hf_prefix(family_);
  std::set<std::string> used, dtypes;
  const bool gguf = GgufFile::is_named(path_);
  for (HfParameter& parameter :
       gguf ? gguf_parameters(spec_, family_) : hf_parameters(spec_, family_)) {
    for (HfTensor& tensor : parameter.tensors) {
      // A bare model has the same names without the prefix.
      const bool bare = !tensors_.contains(tensor.name) && tensor.name.starts_with(prefix) &&
                        tensors_.contains(tensor.name.substr(prefix.size()));
      if (bare) tensor.name.erase(0, prefix.size());
      if (!tensors_.contains(tensor.name))
        user_error("{} has no tensor \"{}\", which {} for{}", path_, tensor.name,
                   gguf ? "its model asks" : "config.json asks",
                   tensor.name == "lm_head.weight"
                       ? "; a head that is the token table has \"tie_word_embeddings\": true"
                       : did_you_mean(tensor.name, tensors_.names()));
      const SafetensorsEntry& entry = tensors_.entry(tensor.name);
      if (!is_readable_dtype(entry.dtype))
        user_error("{}: tensor {} is {}; {} can be read", tensors_.file_of(tensor.name),
                   tensor.name, entry.dtype, kReadableDtypes);
      if (entry.shape != tensor.shape)
        user_error("{}: tensor {} has the shape {}, the model needs {}",
                   tensors_.file_of(tensor.name), tensor.name, shape_text(entry.shape),
                   shape_text(tensor.shape));
      used.insert(tensor.name);
      dtypes.insert(entry.dtype);
    }
    const std::string name = parameter.param.name;
    parameters_.emplace(name, std::move(parameter));
  }
  if (spec_.tie_embeddings && tensors_.contains("lm_head.weight")) refuse_other_head();
  dtype_ = dtypes.size() == 1 && is_model_dtype(*dtypes.begin()) ? *dtypes.begin() : "F32";

  std::vector<std::string> unknown;
  for (const std::string& name : tensors_.names()) {
    if (used.contains(name)) continue;
    const bool tied_head = spec_.tie_embeddings && name == "lm_head.weight";
    // Which the model's values have.
    const bool factors =
        gguf && (name == kGgufRopeFactors || name == kGgufLongFactors || name == kGgufShortFactors);
    (tied_head || factors || is_hf_buffer(name) ? ignored_ : unknown).push_back(name);
  }
  if (unknown.empty()) return;
  const std::string more =
      unknown.size() > 1 ? fmt::format(" and {} more", unknown.size() - 1) : "";
  user_error(
      "{} has tensors for which a {} model of this {} has no place: {}{}. The two belong to "
      "different models, or the model has parts that are not supported",
      path_, hf_model_type(family_), gguf ? "description" : "config.json", unknown.front(), more);
}

// A head that is stored although it is the token table must be that: transformers 5 computes with
// both if they differ, and earlier versions with the table alone.
void HfSource::refuse_other_head() const {
  const std::string head = "lm_head.weight";
  const std::string& table = parameters_.at("embedding.tokens").tensors.front().name;
  const SafetensorsEntry &a = tensors_.entry(head), &b = tensors_.entry(table);
  if (a.dtype == b.dtype && a.shape == b.shape &&
      std::ranges::equal(tensors_.bytes(head), tensors_.bytes(table)))
    return;
  user_error(
      "{}: the head is the token table by config.json (tie_word_embeddings), but {} in the files "
      "is not {}. If it is the head, set \"tie_word_embeddings\": false; if not, remove it",
      path_, head, table);
}

const HfParameter& HfSource::parameter(const ParamSpec& param) const {
  const auto found = parameters_.find(param.name);
  require(found != parameters_.end() && found->second.param.rows == param.rows &&
              found->second.param.cols == param.cols,
          "{} [{}, {}] is not a parameter of {}", param.name, param.rows, param.cols, path_);
  return found->second;
}

void HfSource::read(const ParamSpec& param, int64_t first, std::span<float> dst) const {
  const HfParameter& whole = parameter(param);
  const int64_t end = first + static_cast<int64_t>(dst.size());
  require(first >= 0 && end <= param.elems(), "elements {} to {} of {}", first, end, param.name);
  for (const HfTensor& tensor : whole.tensors) {
    const int64_t from = std::max(first, tensor.first);
    const int64_t to = std::min(end, tensor.first + tensor.elems());
    if (from >= to) continue;
    const std::span<float> part =
        dst.subspan(static_cast<size_t>(from - first), static_cast<size_t>(to - from));
    if (tensor.transposed)
      read_transposed(tensor, from - tensor.first, part);
    else if (!tensor.order.empty())
      read_ordered(tensor, from - tensor.first, part);
    else
      tensors_.read(tensor.name, from - tensor.first, part);
    if (tensor.more != 0)
      for (float& value : part) value -= tensor.more;
    bytes_read_ += dtype_bytes(tensors_.entry(tensor.name).dtype, to - from);
  }
}

// Row by row, and of the first and the last what is wanted of it.
void HfSource::read_ordered(const HfTensor& tensor, int64_t first, std::span<float> dst) const {
  const int64_t cols = tensor.row_elems();
  for (int64_t done = 0; done < std::ssize(dst);) {
    const int64_t row = (first + done) / cols, col = (first + done) % cols;
    const int64_t count = std::min(cols - col, std::ssize(dst) - done);
    tensors_.read(tensor.name, tensor.order[static_cast<size_t>(row)] * cols + col,
                  dst.subspan(static_cast<size_t>(done), static_cast<size_t>(count)));
    done += count;
  }
}

// Element e of the parameter is row e / in, column e % in; the file has it at [e % in, e / in]. The
// range is cut into the rest of a row, whole rows, and the beginning of one.
void HfSource::read_transposed(const HfTensor& tensor, int64_t first, std::span<float> dst) const {
  const int64_t in = tensor.shape[0], out = tensor.shape[1];
  const std::string& dtype = tensors_.entry(tensor.name).dtype;
  const int64_t width = safetensors_dtype_bytes(dtype);
  const std::span<const std::byte> bytes = tensors_.bytes(tensor.name);
  // Rows are taken a few at a time: so many neighbours in a row of the file are read together,
  // which a cache line holds anyway.
  constexpr int64_t kRows = 32;
  std::array<float, kRows> line;
  const auto copy = [&](int64_t row, int64_t rows, int64_t col, int64_t cols) {
    float* to = dst.data() + (row * in + col - first);
    for (int64_t c = 0; c < cols; ++c) {
      to_f32(dtype,
             bytes.subspan(static_cast<size_t>(((col + c) * out + row) * width),
                           static_cast<size_t>(rows * width)),
             {line.data(), static_cast<size_t>(rows)});
      for (int64_t r = 0; r < rows; ++r) to[r * in + c] = line[static_cast<size_t>(r)];
    }
  };
  const int64_t end = first + static_cast<int64_t>(dst.size());
  for (int64_t at = first; at < end;) {
    const int64_t row = at / in, col = at % in;
    const int64_t rows = col == 0 && end - at >= in ? std::min(kRows, (end - at) / in) : 1;
    const int64_t cols = std::min(in - col, end - at);
    copy(row, rows, col, cols);
    at += rows * cols;
  }
}

void HfSource::release(const ParamSpec& param) const {
  for (const HfTensor& tensor : parameter(param).tensors) tensors_.release(tensor.name);
}

}  // namespace onefold
