#include "run/weights.h"

#include "inspect/parameter_source.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

std::vector<SafetensorsEntry> entries_of(const Model& model) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& unit : model.units) {
    for (const ParamSpec& param : unit->params()) {
      SafetensorsEntry entry;
      entry.name = param.name;
      entry.shape = file_shape(param);
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

}  // namespace

void save_weights(Engine& engine, const std::string& path) {
  if (engine.rank() != 0) return engine.for_each_parameter([](const ParamSpec&, Tensor) {});
  SafetensorsWriter writer(path, entries_of(engine.model()),
                           {{"format", "onefold"}, {"step", std::to_string(engine.steps_done())}});
  engine.for_each_parameter([&](const ParamSpec& param, Tensor tensor) {
    writer.write(param.name,
                 std::span<const float>(tensor.f32(), static_cast<size_t>(tensor.elems())));
  });
  writer.commit();
}

void load_weights(Engine& engine, const std::string& path) {
  const SafetensorsFile weights(path);
  size_t wanted = 0;
  engine.for_each_parameter([&](const ParamSpec& param, Tensor tensor) {
    const SafetensorsEntry& entry = weights.entry(param.name);
    if (entry.shape != file_shape(param))
      user_error("{}: tensor {} has shape [{}], the model needs [{}]", weights.path(), param.name,
                 fmt::join(entry.shape, ", "), fmt::join(file_shape(param), ", "));
    weights.read(param.name, std::span<float>(tensor.f32(), static_cast<size_t>(tensor.elems())));
    ++wanted;
  });
  if (wanted != weights.entries().size())
    user_error("{} holds {} tensors, the model has {}: it belongs to another model", weights.path(),
               weights.entries().size(), wanted);
}

}  // namespace onefold
