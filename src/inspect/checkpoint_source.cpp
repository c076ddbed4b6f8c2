#include "inspect/checkpoint_source.h"

#include "base/error.h"
#include "base/text.h"

namespace onefold {

CheckpointSource::CheckpointSource(const std::string& folder)
    : checkpoint_(folder),
      spec_(spec_from_json(checkpoint_.manifest().run.value("model", Json()), folder + ": model")) {
  if (const Json& run = checkpoint_.manifest().run; run.contains("lora")) {
    lora_ = LoraRecord::from_json(run["lora"], folder + ": lora");
    spec_.lora = lora_->lora;
  }
  for (const ParamSpec& param : parameters_of(spec_)) {
    if (!is_saved(spec_, param)) continue;
    const auto found = checkpoint_.manifest().tensors.find(param.name);
    if (found == checkpoint_.manifest().tensors.end() || found->second.shape != file_shape(param))
      user_error("{}: its tensor {} does not fit its model", folder, param.name);
    const CheckpointState& values = found->second.states.front();
    if (const std::string obstacle = values.obstacle(); !obstacle.empty())
      user_error("{}: {}: {}", folder, param.name, obstacle);
    dtype_ = dtype_.empty() || dtype_ == values.dtype ? values.dtype : "F32";
  }
}

void CheckpointSource::verify() const {
  for (size_t file = 0; file < checkpoint_.manifest().files.size(); ++file)
    checkpoint_.verify(static_cast<int>(file));
}

std::shared_ptr<const ParameterSource> model_of(std::shared_ptr<const CheckpointSource> source) {
  if (!source->lora()) return source;
  return adapted_model(*source->lora(), *source);
}

std::shared_ptr<CheckpointSource> newest_whole(const CheckpointFolder& folder,
                                               std::vector<std::string>& remarks) {
  for (const CheckpointFolder::Entry& entry : folder.list()) {
    try {
      auto source = std::make_shared<CheckpointSource>(entry.path);
      source->verify();
      return source;
    } catch (const UserError& error) {
      remarks.push_back(error.what());
    }
  }
  if (remarks.empty()) user_error("{} has no checkpoint", folder.path());
  user_error("no checkpoint of {} is whole:\n  {}", folder.path(), join(remarks, "\n  "));
}

}  // namespace onefold
