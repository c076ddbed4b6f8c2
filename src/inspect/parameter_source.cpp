#include "inspect/parameter_source.h"

#include <mutex>
#include <optional>

#include "base/error.h"

namespace onefold {

std::vector<int64_t> file_shape(const ParamSpec& param) {
  if (param.rows == 1) return {param.cols};
  return {param.rows, param.cols};
}

namespace {

// Parameters are released when they have been read whole or the next one is begun, and not while
// other threads read parts of them: those would be read from the file again.
class ReleasingReader {
 public:
  explicit ReleasingReader(std::shared_ptr<const ParameterSource> source)
      : source_(std::move(source)) {}

  void read(const ParamSpec& param, int64_t first, std::span<float> dst) {
    begin(param);
    source_->read(param, first, dst);
    end(param, static_cast<int64_t>(dst.size()));
  }

 private:
  void begin(const ParamSpec& param) {
    const std::lock_guard lock(mutex_);
    if (current_ && current_->name == param.name) return;
    if (current_) source_->release(*current_);
    current_ = param;
    read_elems_ = 0;
  }
  void end(const ParamSpec& param, int64_t elems) {
    const std::lock_guard lock(mutex_);
    read_elems_ += elems;
    if (read_elems_ < param.elems()) return;
    source_->release(param);
    current_.reset();
  }

  const std::shared_ptr<const ParameterSource> source_;
  std::mutex mutex_;
  std::optional<ParamSpec> current_;
  int64_t read_elems_ = 0;
};

}  // namespace

ParameterReader reader_of(std::shared_ptr<const ParameterSource> source) {
  return [reader = std::make_shared<ReleasingReader>(std::move(source))](
             const ParamSpec& param, int64_t first, std::span<float> dst) {
    reader->read(param, first, dst);
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
