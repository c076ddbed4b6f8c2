// The fields of a mixture of experts: JSON, defaults and limits.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/spec.h"
#include "model/spec_limits.h"

namespace onefold {
namespace {

float at_least_zero(JsonObject& in, std::string_view key, float fallback) {
  const auto value = in.get<float>(key, fallback);
  if (!(value >= 0 && std::isfinite(value)))
    in.fail(key, fmt::format("must be at least 0, not {}", value));
  return value;
}

std::vector<int64_t> read_blocks(JsonObject& in, std::string_view key,
                                 std::vector<int64_t> fallback) {
  auto blocks = in.get<std::vector<int64_t>>(key, std::move(fallback));
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return blocks;
}

}  // namespace

void read_experts(JsonObject& model, ExpertSpec& experts) {
  if (!model.has("experts")) return;
  JsonObject in = model.object("experts");
  ExpertSpec& e = experts;
  e.count = in.at_least("num_experts", 0, e.count);
  e.per_token = in.at_least("experts_per_token", 1, e.per_token);
  e.intermediate_size = in.at_least("intermediate_size", 1, e.intermediate_size);
  e.shared_intermediate_size =
      in.at_least("shared_intermediate_size", 0, e.shared_intermediate_size);
  e.shared_gate = in.get<bool>("shared_gate", e.shared_gate);
  e.scores = in.choice("scores", {"softmax", "sigmoid"},
                       e.scores == RouterScores::softmax ? "softmax" : "sigmoid") == "softmax"
                 ? RouterScores::softmax
                 : RouterScores::sigmoid;
  e.normalised = in.get<bool>("normalise_weights", e.normalised);
  e.every = in.at_least("every", 1, e.every);
  e.dense_blocks = read_blocks(in, "dense_blocks", e.dense_blocks);
  e.balance_loss = at_least_zero(in, "balance_loss", e.balance_loss);
  e.z_loss = at_least_zero(in, "z_loss", e.z_loss);
  e.jitter = at_least_zero(in, "jitter", e.jitter);
  e.capacity_factor = at_least_zero(in, "capacity_factor", e.capacity_factor);
  in.finish();
  if (e.count == 0) e = {};
}

void complete_experts(
    ModelSpec& spec,
    const std::function<void(std::string_view field, const std::string& message)>& fail) {
  ExpertSpec& e = spec.experts;
  if (!e.enabled()) return;
  if (e.intermediate_size == 0) e.intermediate_size = spec.intermediate_size;
  const auto check = [&](std::string_view field, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
      fail(field, fmt::format("is {}; it may be {} to {}", value, least, most));
  };
  check("experts.num_experts", e.count, 1, kMostExperts);
  check("experts.experts_per_token", e.per_token, 1, e.count);
  check("experts.intermediate_size", e.intermediate_size, 1, kMostWidth);
  check("experts.shared_intermediate_size", e.shared_intermediate_size, 0, kMostWidth);
  check("experts.every", e.every, 1, kMostLayers);
  if (e.shared_gate && e.shared_intermediate_size == 0)
    fail("experts.shared_gate", "has no effect without a shared_intermediate_size");
  if (!(e.jitter < 1)) fail("experts.jitter", fmt::format("must be less than 1, not {}", e.jitter));
  for (const int64_t block : e.dense_blocks)
    check("experts.dense_blocks", block, 0, spec.num_layers - 1);
  if (spec.expert_blocks() == 0)
    fail("experts", fmt::format("leaves no block with experts: there are {}, \"every\" is {} and "
                                "{} are dense_blocks",
                                spec.num_layers, e.every, e.dense_blocks.size()));
  if (spec.mlp_bias) fail("mlp_bias", "is true: experts have no biases");
  if (spec.parallel != Parallel::no || spec.norm_place != NormPlace::before ||
      spec.residual_scale != 1)
    fail("experts",
         "go with blocks whose branches follow each other, with the norm before each "
         "and no residual_scale");
}

bool ModelSpec::has_experts(int block) const {
  return experts.enabled() && (block + 1) % experts.every == 0 &&
         !std::binary_search(experts.dense_blocks.begin(), experts.dense_blocks.end(), block);
}

int64_t ModelSpec::expert_blocks() const {
  if (!experts.enabled()) return 0;
  const auto skipped = std::count_if(
      experts.dense_blocks.begin(), experts.dense_blocks.end(),
      [&](int64_t block) { return block < num_layers && (block + 1) % experts.every == 0; });
  return num_layers / experts.every - skipped;
}

int64_t ExpertSpec::capacity(int64_t tokens) const {
  if (capacity_factor == 0) return 0;
  // In double, and never below one: a token is not turned away by an expert that has none.
  const double share = static_cast<double>(capacity_factor) *
                       static_cast<double>(tokens * per_token) / static_cast<double>(count);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(std::min(share, 1e18))), 1, tokens);
}

Json ExpertSpec::to_json() const {
  Json json;
  json["num_experts"] = count;
  json["experts_per_token"] = per_token;
  json["intermediate_size"] = intermediate_size;
  if (shared_intermediate_size > 0) {
    json["shared_intermediate_size"] = shared_intermediate_size;
    json["shared_gate"] = shared_gate;
  }
  json["scores"] = scores == RouterScores::softmax ? "softmax" : "sigmoid";
  json["normalise_weights"] = normalised;
  json["every"] = every;
  if (!dense_blocks.empty()) json["dense_blocks"] = dense_blocks;
  json["balance_loss"] = shortest(balance_loss);
  json["z_loss"] = shortest(z_loss);
  json["jitter"] = shortest(jitter);
  json["capacity_factor"] = shortest(capacity_factor);
  return json;
}

}  // namespace onefold
