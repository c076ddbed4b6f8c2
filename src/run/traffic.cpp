#include "run/traffic.h"

#include <algorithm>

#include "base/text.h"

namespace onefold {
namespace {

constexpr Lane kOrder[] = {Lane::gather, Lane::reduce, Lane::compute};

// The small exchanges of the compute lane never hide.
double hidden_share(const Engine& engine, Lane lane) {
  double busy = 0;
  for (const Traffic& traffic : engine.traffic(lane)) busy += traffic.seconds;
  if (busy <= 0 || lane == Lane::compute) return 0;
  return std::clamp(1 - engine.exposed_seconds(lane) / busy, 0.0, 1.0);
}

template <typename Visit>
void for_each_traffic(const Engine& engine, const Visit& visit) {
  for (const Lane lane : kOrder) {
    const TrafficTable table = engine.traffic(lane);
    for (size_t c = 0; c < table.size(); ++c)
      if (table[c].calls > 0) visit(lane, static_cast<Collective>(c), table[c]);
  }
}

double gb_per_second(const Traffic& traffic) {
  return traffic.seconds > 0 ? static_cast<double>(traffic.bytes_sent) / traffic.seconds / 1e9 : 0;
}

}  // namespace

std::string traffic_table(const Engine& engine) {
  if (engine.ranks() == 1) return "";
  std::string text =
      fmt::format("  {:<9}{:<16}{:>9}{:>12}{:>11}{:>9}{:>9}   (rank {})\n", "lane", "collective",
                  "count", "sent", "seconds", "GB/s", "hidden", engine.rank());
  for_each_traffic(engine, [&](Lane lane, Collective collective, const Traffic& traffic) {
    text +=
        fmt::format("  {:<9}{:<16}{:>9}{:>12}{:>11.3f}{:>9.2f}{:>8.0f}%\n", lane_name(lane),
                    collective_name(collective), traffic.calls, format_bytes(traffic.bytes_sent),
                    traffic.seconds, gb_per_second(traffic), 100 * hidden_share(engine, lane));
  });
  return text;
}

Json traffic_json(const Engine& engine) {
  Json list = Json::array();
  for_each_traffic(engine, [&](Lane lane, Collective collective, const Traffic& traffic) {
    list.push_back({{"lane", lane_name(lane)},
                    {"collective", collective_name(collective)},
                    {"count", traffic.calls},
                    {"bytes_sent", traffic.bytes_sent},
                    {"seconds", traffic.seconds},
                    {"gb_per_second", gb_per_second(traffic)},
                    {"hidden", hidden_share(engine, lane)}});
  });
  return list;
}

}  // namespace onefold
