#include "inspect/gguf_export.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "data/gguf_tokenizer.h"
#include "data/hf_tokenizer.h"
#include "inspect/export_family.h"
#include "io/half.h"
#include "io/quantized.h"
#include "model/gguf_model.h"

namespace onefold {
namespace {

constexpr int64_t kRowElems = int64_t{1} << 20;

struct FileType {
  std::string_view name;
  uint32_t number;  // general.file_type
};
constexpr std::array<FileType, 5> kFileTypes = {
    {{"F32", 0}, {"F16", 1}, {"BF16", 32}, {"Q8_0", 7}, {"Q4_K", 14}}};

const GgmlType& type_of(const HfTensor& tensor, const std::string& wanted) {
  const bool table = tensor.name == "token_embd.weight" || tensor.name == "output.weight";
  std::string type = wanted == "Q4_K" && table ? "Q8_0" : wanted;
  if (tensor.shape.size() == 1 || tensor.name == "position_embd.weight") type = "F32";
  const auto whole = [&] { return tensor.shape.back() % ggml_type_named(type)->elems == 0; };
  if (type == "Q4_K" && !whole()) type = "Q8_0";
  if (type == "Q8_0" && !whole()) type = "F16";
  return *ggml_type_named(type);
}

// Writes the tensors one after the other, some rows at a time.
class TensorWriter {
 public:
  TensorWriter(const ParameterSource& source, OutputFile& file) : source_(source), file_(file) {}

  void write(const ParamSpec& param, const HfTensor& tensor, const GgmlType& type) {
    const int64_t cols = tensor.shape.back();
    const int64_t rows = tensor.elems() / cols;
    const int64_t step = std::max<int64_t>(1, kRowElems / cols);
    size_t written = 0;
    for (int64_t row = 0; row < rows; row += step) {
      read_rows(param, tensor, row, std::min(step, rows - row), cols);
      written += put(param, type);
    }
    pad(written);
    source_.release(param);
  }
  void write(std::span<const float> values) {
    file_.append(std::as_bytes(values));
    pad(values.size_bytes());
  }

 private:
  // Rows of the file, wherever they are in the parameter.
  void read_rows(const ParamSpec& param, const HfTensor& tensor, int64_t first, int64_t rows,
                 int64_t cols) {
    values_.resize(static_cast<size_t>(rows * cols));
    if (tensor.order.empty())
      source_.read(param, tensor.first + first * cols, values_);
    else
      read_ordered(param, tensor, first, rows * cols);
    if (tensor.more != 0)
      for (float& value : values_) value += tensor.more;
  }
  void read_ordered(const ParamSpec& param, const HfTensor& tensor, int64_t first, int64_t elems) {
    // A vector is one row here, and its elements are the rows that are in another order.
    const int64_t width = tensor.row_elems();
    const std::vector<int64_t> ours = tensor.rows_in_parameter();
    for (int64_t i = 0; i < elems / width; ++i)
      source_.read(
          param, tensor.first + ours[static_cast<size_t>(first + i)] * width,
          std::span(values_).subspan(static_cast<size_t>(i * width), static_cast<size_t>(width)));
  }

  size_t put(const ParamSpec& param, const GgmlType& type) {
    const std::string name(type.name);
    bytes_.resize(values_.size() / static_cast<size_t>(type.elems) *
                  static_cast<size_t>(type.bytes));
    const int64_t lost =
        type.elems > 1 ? quantize(name, values_, bytes_) : from_f32(name, values_, bytes_);
    if (lost > 0)
      user_error("{} has values that {} cannot hold, as {} of {}: export as {}", param.name, name,
                 lost, values_.size(), name == "F16" ? "BF16 or F32" : "F32");
    file_.append(bytes_);
    return bytes_.size();
  }
  void pad(size_t written) {
    const std::array<std::byte, GgufHeader::kAlignment> zeros{};
    file_.append(std::span(zeros).first(GgufHeader::padding(written)));
  }

  const ParameterSource& source_;
  OutputFile& file_;
  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

void require_path(const std::string& path, bool overwrite) {
  if (!GgufFile::is_named(path))
    user_error("{}: a GGUF file is known by its name; end it with .gguf", path);
  if (is_folder(path)) user_error("{} is a folder; name a file to write", path);
  if (path_exists(path) && !overwrite)
    user_error("{} is there already; pass --overwrite to replace it", path);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) make_folders(folder);
}

void add_tokenizer(const ModelSpec& spec, const ModelExtras& extras, GgufHeader& header,
                   ExportResult& result) {
  std::string obstacle = "there is none", json;
  if (const auto found = extras.files.find("tokenizer.json"); found != extras.files.end())
    json = found->second;
  else if (!extras.tokenizer.empty())
    json = load_tokenizer(extras.tokenizer).to_json();
  if (!json.empty()) obstacle = add_gguf_tokenizer(json, spec.vocab_size, extras.token_ids, header);
  const std::string chat = chat_template_of(extras.files);
  if (!chat.empty()) header.add("tokenizer.chat_template", chat);
  if (const std::string tools = chat_template_of(extras.files, kToolsChat); !tools.empty()) {
    const std::vector<std::string> names = {std::string(kToolsChat)};
    header.add("tokenizer.chat_templates", names);
    header.add("tokenizer.chat_template.tool_use", tools);
  }
  if (obstacle.empty()) return;
  header.add("tokenizer.ggml.model", "no_vocab");
  result.remarks.push_back(fmt::format(
      "no tokenizer is written: {}. llama.cpp takes tokens for this file, no text", obstacle));
}

}  // namespace

ExportResult export_gguf(const ParameterSource& source, const ModelExtras& extras,
                         const std::string& path, const GgufOptions& options) {
  const ModelSpec& spec = source.model();
  ExportResult result;
  result.remarks = extras.remarks;
  result.family = export_family(spec, extras, options.family);
  result.dtype = options.type.empty() ? source.dtype() : options.type;
  result.parameters = spec.parameter_count();
  const std::string obstacle = gguf_obstacle(spec, result.family);
  if (!obstacle.empty())
    user_error("GGUF: llama.cpp cannot run this {} model: {}", hf_model_type(result.family),
               obstacle);
  require_path(path, options.overwrite);

  GgufHeader header;
  add_gguf_model(spec, result.family, header);
  header.add("general.type", "model");
  header.add("general.name", std::filesystem::path(path).stem().string());
  const auto type = std::ranges::find(kFileTypes, result.dtype, &FileType::name);
  require(type != kFileTypes.end(), "no file type {}", result.dtype);
  header.add("general.file_type", type->number);
  header.add("general.quantization_version", uint32_t{2});
  add_tokenizer(spec, extras, header, result);

  const std::vector<HfParameter> parameters = gguf_parameters(spec, result.family);
  const std::vector<GgufFactors> factors = gguf_rope_factors(spec);
  int64_t wider = 0;
  for (const HfParameter& parameter : parameters)
    for (const HfTensor& tensor : parameter.tensors) {
      const GgmlType& chosen = type_of(tensor, result.dtype);
      header.add_tensor(tensor.name, chosen, tensor.shape);
      wider += tensor.shape.back() % ggml_type_named(result.dtype)->elems != 0;
    }
  for (const GgufFactors& one : factors) {
    const std::array<int64_t, 1> pairs = {static_cast<int64_t>(one.values.size())};
    header.add_tensor(one.name, *ggml_type_named("F32"), pairs);
  }
  if (wider > 0)
    result.remarks.push_back(
        fmt::format("{} tensors have rows that are not multiples of {}, and a wider type than {}",
                    wider, ggml_type_named(result.dtype)->elems, result.dtype));
  result.bytes = header.tensor_bytes();
  require_export_space(path, result.bytes);

  OutputFile file(path);
  const std::string bytes = header.bytes();
  file.append(std::as_bytes(std::span(bytes)));
  TensorWriter writer(source, file);
  for (const HfParameter& parameter : parameters)
    for (const HfTensor& tensor : parameter.tensors)
      writer.write(parameter.param, tensor, type_of(tensor, result.dtype));
  for (const GgufFactors& one : factors) writer.write(one.values);
  file.commit();
  result.files.push_back(path);
  return result;
}

}  // namespace onefold
