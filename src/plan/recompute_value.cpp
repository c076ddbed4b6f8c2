// Apart from what plans: readers of configurations need it, and plan nothing.
#include "plan/recompute.h"

namespace onefold {

Json recompute_value(const Recompute& policy) {
  if (!policy.any()) return false;
  if (policy.every > 0) return {{"every", policy.every}};
  if (policy.joined)
    return policy.mlp == Recompute::kAll ? Json(true) : Json{{"blocks", policy.mlp}};
  if (policy == Recompute(Recompute::kAll, 0)) return "attention";
  if (policy == Recompute(0, Recompute::kAll)) return "mlp";
  Json counts = Json::object();
  if (policy.attention > 0) counts["attention"] = policy.attention;
  if (policy.mlp > 0) counts["mlp"] = policy.mlp;
  return counts;
}

}  // namespace onefold
