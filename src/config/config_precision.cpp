// Number types: DeepSpeed's "bf16", "fp16", "data_types" and "communication_data_type".
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/text.h"
#include "config/sections.h"

namespace onefold {
namespace {

using Group = JsonReport::Group;

struct NumberType {
  std::string_view name;
  DType dtype;
};
// In the order in which errors list them; DeepSpeed takes all of these.
constexpr std::array kNumberTypes = {
    NumberType{"fp32", DType::f32},      NumberType{"bf16", DType::bf16},
    NumberType{"fp16", DType::f16},      NumberType{"float32", DType::f32},
    NumberType{"bfloat16", DType::bf16}, NumberType{"float16", DType::f16},
    NumberType{"float", DType::f32},     NumberType{"half", DType::f16},
};

std::string_view number_type_name(DType dtype) {
  for (const NumberType& type : kNumberTypes)
    if (type.dtype == dtype) return type.name;
  return "?";
}

std::optional<DType> number_type_named(std::string name) {
  name = lower(name);
  if (name.starts_with("torch.")) name = name.substr(6);
  for (const NumberType& type : kNumberTypes)
    if (type.name == name) return type.dtype;
  return std::nullopt;
}

std::optional<DType> read_number_type(JsonObject& in, std::string_view key) {
  if (!in.has(key)) return std::nullopt;
  const auto name = in.get<std::string>(key, "");
  const std::optional<DType> type = number_type_named(name);
  if (!type && !name.empty())
    in.refuse(Group::conflict, key, fmt::format("must be fp32, bf16 or fp16, not \"{}\"", name));
  return type;
}

// What the model's own file says that its weights are.
std::optional<DType> type_of_model(const Config& config) {
  const std::string path = config.model_weights + "/config.json";
  std::error_code ignored;
  if (config.model_weights.empty() || !std::filesystem::exists(path, ignored)) return std::nullopt;
  const Json json = read_json(path);
  for (const char* key : {"dtype", "torch_dtype"})
    if (json.is_object() && json.contains(key) && json[key].is_string())
      return number_type_named(json[key].get<std::string>());
  return std::nullopt;
}

bool left_open(const JsonObject& root, std::string_view key) {
  const Json value = root.value().value(key, Json());
  return value == "auto" || (value.is_object() && value.value("enabled", Json()) == "auto");
}

// Whether a section switches its type on: as it says, or if "auto", as the model's weights are.
bool switched_on(JsonObject& section, bool open, DType type, const Config& config) {
  return section.get<bool>("enabled", false) || (open && type_of_model(config) == type);
}

void read_bf16(JsonObject& root, std::string_view key, Config& config) {
  root.allow_auto({key});
  if (!root.has(key) && !root.is_auto(key)) return;
  JsonObject section = root.object(key);
  section.allow_auto();
  const bool on = switched_on(section, left_open(root, key), DType::bf16, config);
  const bool check = section.get<bool>("check_grad_overflow", true);
  const bool lean = section.get<bool>("bf16_master_weights_and_grads", false);
  const bool lean_states = section.get<bool>("bf16_optimizer_states", false);
  section.idle("immediate_grad_update");
  section.idle("check_overflow");
  // Files have them from fp16's section or from Apex: earlier releases ignore them.
  for (const std::string_view other : {"loss_scale", "initial_scale_power", "loss_scale_window",
                                       "hysteresis", "min_loss_scale", "auto_cast", "opt_level"})
    section.idle(other);
  if (!on) {
    for (const std::string_view other :
         {"check_grad_overflow", "bf16_master_weights_and_grads", "bf16_optimizer_states"})
      section.idle(other);
  } else {
    config.precision.compute = DType::bf16;
    config.skip_overflow = check;
    if (lean) {
      config.precision.gradients = DType::bf16;
      config.precision.master = false;
    }
    if (lean_states) config.precision.moments = DType::bf16;
    if (lean_states && !lean)
      section.refuse(Group::conflict, "bf16_optimizer_states",
                     "needs bf16_master_weights_and_grads, as in DeepSpeed; for moments in bf16 "
                     "beside fp32 master weights set data_types.moments to \"bf16\"");
  }
  section.finish();
}

void read_fp16(JsonObject& root, Config& config) {
  root.allow_auto({"fp16"});
  if (!root.has("fp16") && !root.is_auto("fp16")) return;
  JsonObject section = root.object("fp16");
  section.allow_auto();
  const bool on = switched_on(section, left_open(root, "fp16"), DType::f16, config);
  LossScaleConfig scale{.fixed = 0};
  scale.fixed = section.non_negative("loss_scale", 0);
  scale.initial_power = static_cast<int>(section.at_least("initial_scale_power", 0, 16));
  scale.window = section.at_least("loss_scale_window", 1, scale.window);
  scale.hysteresis = section.at_least("hysteresis", 1, scale.hysteresis);
  scale.consecutive = section.get<bool>("consecutive_hysteresis", false);
  scale.least = section.positive("min_loss_scale", 1);
  const bool lean = section.get<bool>("fp16_master_weights_and_grads", false);
  section.idle("auto_cast");
  section.idle("opt_level");  // Apex's
  constexpr int kLargestPower = 64;
  if (!on) {
    for (const std::string_view other :
         {"loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis",
          "consecutive_hysteresis", "min_loss_scale", "fp16_master_weights_and_grads"})
      section.idle(other);
  } else if (lean) {
    section.refuse(Group::missing, "fp16_master_weights_and_grads",
                   "is true: fp16 is trained with master weights in fp32; without them train in "
                   "bf16");
  } else if (scale.initial_power > kLargestPower) {
    section.refuse(Group::conflict, "initial_scale_power",
                   fmt::format("must be at most {}", kLargestPower));
  } else {
    if (config.precision.compute == DType::bf16)
      section.refuse(Group::conflict, "enabled", "is true, and so is bf16.enabled: keep one");
    config.precision.compute = DType::f16;
    config.loss_scale = scale;
    config.skip_overflow = true;
  }
  section.finish();
}

// One type for gradients: they are summed over micro-batches and over ranks in it.
void read_gradients(JsonObject& root, JsonObject& section, Config& config) {
  const std::optional<DType> summed = read_number_type(section, "grad_accum_dtype"),
                             sent = read_number_type(root, "communication_data_type");
  if (summed && sent && *summed != *sent)
    root.refuse(Group::missing, "communication_data_type",
                fmt::format("is {} and data_types.grad_accum_dtype {}: gradients are summed over "
                            "micro-batches and over ranks in one type",
                            number_type_name(*sent), number_type_name(*summed)));
  const std::optional<DType> wanted = summed ? summed : sent;
  if (!wanted) return;
  const DType compute = config.precision.compute;
  if (*wanted != DType::f32 && *wanted != compute)
    (summed ? section : root)
        .refuse(Group::missing, summed ? "grad_accum_dtype" : "communication_data_type",
                fmt::format(
                    "is {}: gradients are summed in fp32{}", number_type_name(*wanted),
                    compute == DType::f32 ? "" : fmt::format(" or {}", number_type_name(compute))));
  else if (*wanted == DType::f32 && !config.precision.master)
    (summed ? section : root)
        .refuse(Group::conflict, summed ? "grad_accum_dtype" : "communication_data_type",
                "is fp32, and bf16.bf16_master_weights_and_grads asks for gradients in bf16");
  else
    config.precision.gradients = *wanted;
}

// Ours beside DeepSpeed's: "master" and "moments".
void read_lean_states(JsonObject& section, Config& config) {
  Precision& precision = config.precision;
  if (section.has("master")) {
    const bool master = section.get<bool>("master", true);
    if (precision.compute == DType::f32)
      section.idle("master");
    else if (!master && precision.compute == DType::f16)
      section.refuse(Group::missing, "master",
                     "is false: fp16 is trained with master weights; without them train in bf16");
    else
      precision.master = master;
  }
  if (section.has("moments") && section.value().value("moments", Json()) == "8bit") {
    section.require<Json>("moments");
    precision.moments = DType::u8;
  } else if (const std::optional<DType> moments = read_number_type(section, "moments")) {
    if (*moments == DType::f16)
      section.refuse(Group::missing, "moments",
                     "are fp32, bf16 or 8bit; fp16 has too small a range");
    else
      precision.moments = *moments;
  }
}

void read_data_types(JsonObject& root, Config& config) {
  JsonObject section = root.object("data_types");
  section.allow_auto();
  read_gradients(root, section, config);
  read_lean_states(section, config);
  const std::optional<DType> params = read_number_type(section, "param_dtype");
  if (params && *params != config.precision.compute)
    section.refuse(
        Group::conflict, "param_dtype",
        fmt::format("is {}, and the sections bf16 and fp16 say {}", number_type_name(*params),
                    number_type_name(config.precision.compute)));
  section.idle("param_dtype");
  // There are no buffers but rope's table, which is fp32.
  const std::optional<DType> buffers = read_number_type(section, "buffer_dtype");
  if (buffers && *buffers != DType::f32)
    section.refuse(Group::missing, "buffer_dtype", "is not fp32: rope's table is kept in fp32");
  section.idle("buffer_dtype");
  section.idle("keep_in_fp32_modules");
  section.finish();
}

Json fp16_json(const LossScaleConfig& scale) {
  Json json = {{"enabled", true}, {"loss_scale", scale.fixed}};
  if (!scale.dynamic()) return json;
  json["initial_scale_power"] = scale.initial_power;
  json["loss_scale_window"] = scale.window;
  json["hysteresis"] = scale.hysteresis;
  json["consecutive_hysteresis"] = scale.consecutive;
  json["min_loss_scale"] = scale.least;
  return json;
}

}  // namespace

void read_precision(JsonObject& root, Config& config) {
  std::vector<std::string> open;
  for (const std::string key : {"bf16", "bfloat16", "fp16"})
    if (left_open(root, key)) open.push_back(key);
  read_bf16(root, "bf16", config);
  read_bf16(root, "bfloat16", config);
  read_fp16(root, config);
  read_data_types(root, config);
  if (!open.empty())
    config.notes.remarks.push_back(fmt::format(
        "{} left to \"auto\": {}", join(open, " and "),
        config.precision.compute != DType::f32
            ? fmt::format("{}, as the model's weights", number_type_name(config.precision.compute))
            : "fp32; bf16.enabled true takes half the memory"));
}

void add_precision_json(const Config& config, Json& json) {
  const Precision& precision = config.precision;
  if (precision.compute == DType::bf16)
    json["bf16"] = {{"enabled", true}, {"check_grad_overflow", config.skip_overflow}};
  if (precision.compute == DType::f16) json["fp16"] = fp16_json(config.loss_scale);
  Json types = Json::object();
  if (precision.compute != DType::f32) {
    types["grad_accum_dtype"] = number_type_name(precision.gradients);
    types["master"] = precision.master;
  }
  if (precision.compute != DType::f32 || precision.moments != DType::f32)
    types["moments"] =
        precision.moments == DType::u8 ? "8bit" : number_type_name(precision.moments);
  if (!types.empty()) json["data_types"] = types;
}

}  // namespace onefold
