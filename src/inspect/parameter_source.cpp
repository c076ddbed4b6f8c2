#include "inspect/parameter_source.h"

#include "base/error.h"

namespace onefold {

std::vector<int64_t> file_shape(const ParamSpec& param) {
  if (param.rows == 1) return {param.cols};
  return {param.rows, param.cols};
}

ParameterReader reader_of(std::shared_ptr<const ParameterSource> source) {
  return [source = std::move(source)](const ParamSpec& param, int64_t first, std::span<float> dst) {
    source->read(param, first, dst);
    source->release(param);  // or the mapped files would stay in memory beside what was read
  };
}

RunSource::RunSource(const ModelSpec& spec, const std::string& path)
    : spec_(spec), tensors_(TensorFiles::open_file(path)) {
  size_t count = 0;
  for (const ParamSpec& param : parameters_of(spec)) {
    if (!is_saved(spec, param)) continue;
    ++count;
    const SafetensorsEntry& entry = tensors_.entry(param.name);
    const std::vector<int64_t> shape = file_shape(param);
    if (entry.shape != shape || entry.dtype != "F32")
      user_error("{}: tensor {} is {} {}, the model needs F32 {}", path, param.name, entry.dtype,
                 shape_text(entry.shape), shape_text(shape));
  }
  if (tensors_.names().size() != count)
    user_error("{} holds {} tensors, the model has {}: it belongs to another model", path,
               tensors_.names().size(), count);
}

void RunSource::read(const ParamSpec& param, int64_t first, std::span<float> dst) const {
  tensors_.read(param.name, first, dst);
}

}  // namespace onefold
