#include "run/weights.h"

#include "inspect/parameter_source.h"
#include "io/safetensors.h"

namespace onefold {
namespace {

std::vector<SafetensorsEntry> entries_of(const Model& model) {
  std::vector<SafetensorsEntry> entries;
  for (const ParamSpec& param : parameters_of(model.spec)) {
    if (!is_saved(model.spec, param)) continue;
    SafetensorsEntry entry;
    entry.name = param.name;
    entry.shape = file_shape(param);
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

void save_weights(Engine& engine, const std::string& path) {
  const auto visit = [&](const RankState::VisitWhole& each) {
    engine.state().for_each_saved(engine.channel(Lane::gather), each);
  };
  if (engine.rank() != 0) return visit([](const ParamSpec&, std::span<const float>) {});
  SafetensorsWriter writer(path, entries_of(engine.model()),
                           {{"format", "onefold"}, {"step", std::to_string(engine.steps_done())}});
  visit([&](const ParamSpec& param, std::span<const float> values) {
    writer.write(param.name, values);
  });
  writer.commit();
}

void load_weights(Engine& engine, const std::string& path) {
  engine.state().write_parameters(reader_of(std::make_shared<RunSource>(engine.model().spec, path)),
                                  Device::Calls::in_order, true);
}

}  // namespace onefold
