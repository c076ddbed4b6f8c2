#include "run/prediction.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "device/dry_kernels.h"
#include "plan/search.h"

namespace onefold {
namespace {

// What a lane carries, for people.
const char* lane_text(Lane lane) {
  switch (lane) {
    case Lane::gather:
      return "gathering parameters";
    case Lane::reduce:
      return "reducing gradients";
    case Lane::exchange:
      return "exchanging activations";
    case Lane::fetch:
      return "fetching from other tiers";
    case Lane::spill:
      return "spilling to other tiers";
    case Lane::send:
      return "sending to other stages";
    case Lane::recv:
      return "waiting for other stages";
    case Lane::host:
      return "stepping on the host";
    default:
      return lane_name(lane);
  }
}

double busy_seconds(const RankTrace& trace, Lane lane) {
  double seconds = 0;
  for (const RankTrace::Lane& one : trace.lanes)
    if (one.name == lane_name(lane))
      for (const RankTrace::Span& span : one.spans) seconds += span.seconds;
  return seconds;
}

}  // namespace

RankTrace rank_trace(Engine& engine, double begin) {
  RankTrace trace{.rank = engine.rank()};
  for (const Lane lane : kAllLanes) {
    RankTrace::Lane& to = trace.lanes.emplace_back(RankTrace::Lane{lane_name(lane), {}});
    for (const TraceSpan& span : engine.trace().spans(lane))
      if (span.begin >= begin)
        to.spans.push_back({span.name, span.begin - begin, span.end - span.begin, span.bytes});
  }
  return trace;
}

void Prediction::wait_for_other_stages(double step_seconds) {
  double waited = std::max(0.0, step_seconds - seconds);
  for (const LaneTime& lane : lanes)
    if (lane.lane == Lane::recv) waited += lane.exposed;
  std::erase_if(lanes, [](const LaneTime& lane) { return lane.lane == Lane::recv; });
  if (waited > 0) lanes.push_back({Lane::recv, waited, waited});
  tokens_per_second *= seconds / step_seconds;
  seconds = step_seconds;
}

double Prediction::exposed() const {
  double seconds = 0;
  for (const LaneTime& lane : lanes) seconds += lane.exposed;
  return seconds;
}

std::string Prediction::bound_by() const {
  std::string largest = products >= memory ? "products" : "memory";
  double most = std::max(products, memory);
  for (const LaneTime& lane : lanes)
    if (lane.exposed > most) {
      most = lane.exposed;
      largest = lane_name(lane.lane);
    }
  return largest;
}

Prediction predict(Engine& dry, const std::string& hardware) {
  const EngineOptions& options = dry.options();
  const auto& kernels = static_cast<const DryKernels&>(dry.device().kernels());
  const Work before = kernels.work();
  std::array<double, kLanes> exposed{}, in_place{};
  for (const Lane lane : kAllLanes) {
    exposed[static_cast<size_t>(lane)] = -dry.exposed_seconds(lane);
    in_place[static_cast<size_t>(lane)] = -dry.in_place_seconds(lane);
  }
  const double begin = dry.device().now();
  dry.trace().switch_on();
  const std::vector<BatchView> micros(
      static_cast<size_t>(options.micros),
      BatchView{.batch = options.micro_batch, .sequence = options.sequence});
  dry.train_step(micros, 0);
  Prediction prediction{.hardware = hardware, .seconds = dry.device().now() - begin};
  prediction.trace = rank_trace(dry, begin);
  const auto tokens = static_cast<double>(options.micro_batch * options.sequence * options.micros *
                                          dry.data_ranks());
  prediction.tokens_per_second = tokens / prediction.seconds;
  prediction.products = kernels.work().product_seconds - before.product_seconds;
  for (const Lane lane : kAllLanes) {
    exposed[static_cast<size_t>(lane)] += dry.exposed_seconds(lane);
    in_place[static_cast<size_t>(lane)] += dry.in_place_seconds(lane);
    // Without lanes of their own, messages are at work where computation stands.
    const double waited = exposed[static_cast<size_t>(lane)],
                 busy = std::max(
                     busy_seconds(prediction.trace, lane) + in_place[static_cast<size_t>(lane)],
                     waited);
    if (lane != Lane::compute && busy > 0) prediction.lanes.push_back({lane, busy, waited});
  }
  prediction.memory =
      std::max(0.0, prediction.seconds - prediction.products - prediction.exposed());
  return prediction;
}

std::string prediction_text(const Prediction& prediction) {
  const auto share = [&](double seconds) { return 100 * seconds / prediction.seconds; };
  std::string text =
      fmt::format("time     {} a step, {} tokens/s, as predicted for {}; bound by {}\n",
                  step_time_text(prediction.seconds),
                  format_count(static_cast<int64_t>(prediction.tokens_per_second)),
                  prediction.hardware, prediction.bound_by());
  text += fmt::format("         products {:.0f} %, other kernels {:.0f} %, waits {:.0f} %\n",
                      share(prediction.products), share(prediction.memory),
                      share(prediction.exposed()));
  for (const Prediction::LaneTime& lane : prediction.lanes)
    text +=
        fmt::format("         {} takes {}, of which {:.0f} % are hidden\n", lane_text(lane.lane),
                    step_time_text(lane.busy), 100 * std::max(0.0, 1 - lane.exposed / lane.busy));
  return text;
}

Json prediction_json(const Prediction& prediction) {
  Json lanes = Json::array();
  for (const Prediction::LaneTime& lane : prediction.lanes)
    lanes.push_back({{"lane", lane_name(lane.lane)},
                     {"busy_seconds", lane.busy},
                     {"exposed_seconds", lane.exposed}});
  return {{"predicted_step_seconds", prediction.seconds},
          {"predicted_tokens_per_second", prediction.tokens_per_second},
          {"predicted_product_seconds", prediction.products},
          {"predicted_other_seconds", prediction.memory},
          {"predicted_bound_by", prediction.bound_by()},
          {"predicted_lanes", lanes}};
}

}  // namespace onefold
