#include "engine/divergence.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/convert.h"

namespace onefold {
namespace {

// The first value that is not finite; 0 if there is none.
float not_finite_in(Device& device, Tensor tensor) {
  if (tensor.empty()) return 0;
  float found = 0;
  std::vector<float> wide;
  device.read(tensor, [&](int64_t, std::span<const std::byte> bytes) {
    if (found != 0) return;
    wide.resize(bytes.size() / static_cast<size_t>(dtype_bytes(tensor.dtype)));
    widen(tensor.dtype, bytes, wide);
    const auto at =
        std::find_if(wide.begin(), wide.end(), [](float x) { return !std::isfinite(x); });
    if (at != wide.end()) found = *at;
  });
  return found;
}

// A unit's own parameters, then those that it shares with others.
std::vector<std::string> parameter_names(const Model& model, int unit) {
  const Unit& own = *model.units[static_cast<size_t>(unit)];
  std::vector<std::string> names;
  for (const ParamSpec& param : own.params()) names.push_back(param.name);
  for (const Unit::Shared shared : own.shared())
    names.push_back(model.units[static_cast<size_t>(shared.unit)]
                        ->params()[static_cast<size_t>(shared.param)]
                        .name);
  return names;
}

}  // namespace

void FirstNotFinite::look(const Action& action, const UnitCall& call) {
  if (found_) return;
  ++position_;
  if (staged_) {
    const auto units = static_cast<double>(model_.units.size());
    position_ = 2 * units * action.micro +
                (action.verb == Verb::forward ? action.unit : 2 * units - 1 - action.unit);
  }
  const std::vector<std::string> names = parameter_names(model_, action.unit);
  for (size_t p = 0; p < call.params.size(); ++p) {
    look_at(action, call.params[p], "a weight is", names[p]);
    is_weight_ = found_;
    if (found_) return;
  }
  if (action.verb == Verb::forward)
    look_at_forward(action, call);
  else
    look_at_backward(action, call);
}

void FirstNotFinite::look_at_forward(const Action& action, const UnitCall& call) {
  look_at(action, call.output, "forward computed", "output");
}

void FirstNotFinite::look_at_backward(const Action& action, const UnitCall& call) {
  if (model_.units[static_cast<size_t>(action.unit)]->has_loss()) {
    look_at(action, call.losses, "the loss is", "logits");
    if (found_) return;
  }
  look_at(action, call.dinput, "backward computed", "gradient of the input");
  if (action.part == Part::by_input) return;  // the others are still to come
  const std::vector<std::string> names = parameter_names(model_, action.unit);
  for (size_t p = 0; p < call.grads.size() && !found_; ++p)
    look_at(action, call.grads[p], "the gradient is", names[p]);
}

void FirstNotFinite::look_at(const Action& action, Tensor tensor, const std::string& what,
                             const std::string& name) {
  if (found_) return;
  const float value = not_finite_in(device_, tensor);
  if (value == 0) return;
  found_ = true;
  micro_ = action.micro;
  what_ = fmt::format("{} {} (unit {}, tensor {})", what, std::isnan(value) ? NAN : value,
                      model_.units[static_cast<size_t>(action.unit)]->name(), name);
}

}  // namespace onefold
