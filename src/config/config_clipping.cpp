// "gradient_clipping", which is DeepSpeed's, and our "clipping" beside it.
#include "base/error.h"
#include "config/sections.h"

namespace onefold {

namespace {
using Group = JsonReport::Group;
}  // namespace

void read_clipping(JsonObject& root, Config& config) {
  root.allow_auto({"gradient_clipping"});
  JsonObject in = root.object("clipping");
  ClipRule& rule = config.clip_rule;
  rule.value = in.has("value") ? in.positive("value", 0) : 0;
  const std::string of = in.choice("of", {"all", "unit", "tensor"}, "all");
  rule.of = of == "unit"     ? ClipRule::Of::unit
            : of == "tensor" ? ClipRule::Of::tensor
                             : ClipRule::Of::all;
  const bool adaptive = in.has("adaptive");
  rule.percentile = in.has("percentile") ? in.positive("percentile", 0) : 0;
  if (rule.percentile > 100) in.refuse(Group::conflict, "percentile", "must be at most 100");
  if (rule.percentile > 0)
    rule.window = in.at_least("window", 1, rule.window);
  else
    in.no_effect("window", "it is for percentile");
  if (adaptive || rule.percentile > 0) config.gradient_clipping = 0;
  config.gradient_clipping = root.non_negative("gradient_clipping", config.gradient_clipping);
  if (adaptive) {
    rule.adaptive = true;
    if (config.gradient_clipping > 0)
      in.refuse(Group::conflict, "adaptive",
                "limits each gradient by its weights, and gradient_clipping all of them by a "
                "number; set one of them");
    if (rule.percentile > 0 || rule.of != ClipRule::Of::all)
      in.refuse(Group::conflict, "adaptive", "goes with neither \"of\" nor \"percentile\"");
    config.gradient_clipping = in.positive("adaptive", 0.01);
    rule.least = in.positive("adaptive_least", rule.least);
  } else {
    in.no_effect("adaptive_least", "it is for adaptive");
  }
  if (rule.percentile > 0 && rule.of != ClipRule::Of::all)
    in.refuse(Group::conflict, "percentile", "is of the norm of all gradients; leave \"of\" out");
  if (rule.of != ClipRule::Of::all && config.gradient_clipping == 0)
    in.refuse(Group::conflict, "of", "has no effect with gradient_clipping 0");
  in.finish();
}

Json clipping_json(const Config& config) {
  const ClipRule& rule = config.clip_rule;
  Json json;
  if (rule.value > 0) json["value"] = rule.value;
  if (rule.of != ClipRule::Of::all) json["of"] = rule.of == ClipRule::Of::unit ? "unit" : "tensor";
  if (rule.percentile > 0) {
    json["percentile"] = rule.percentile;
    json["window"] = rule.window;
  }
  if (rule.adaptive) {
    json["adaptive"] = config.gradient_clipping;
    json["adaptive_least"] = rule.least;
  }
  return json;
}

}  // namespace onefold
