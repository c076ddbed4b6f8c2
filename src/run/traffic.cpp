#include "run/traffic.h"

#include <algorithm>

#include "base/text.h"
#include "engine/lines.h"

namespace onefold {
namespace {

constexpr Lane kOrder[] = {Lane::gather, Lane::reduce, Lane::exchange, Lane::send, Lane::compute};

// The small exchanges of the compute lane never hide, nor do those between phases of units while
// they are in the order of computation.
double hidden_share(const Engine& engine, Lane lane) {
  double busy = 0;
  for (const Traffic& traffic : engine.traffic(lane)) busy += traffic.seconds;
  if (busy <= 0 || lane == Lane::compute) return 0;
  if (lane == Lane::exchange && !has_exchange_lane(engine.options())) return 0;
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

namespace {

// What travels between the device and other tiers, and its share that hides behind computation.
double hidden_share_of_copies(const Engine& engine, Lane lane) {
  const double busy = engine.copies(lane).seconds;
  return busy <= 0 ? 0 : std::clamp(1 - engine.exposed_seconds(lane) / busy, 0.0, 1.0);
}

std::string copies_table(const Engine& engine) {
  std::string text;
  for (const Lane lane : {Lane::fetch, Lane::spill}) {
    const CopyWork& copies = engine.copies(lane);
    if (copies.count == 0) continue;
    text += fmt::format(
        "  {:<9}{:<16}{:>9}{:>12}{:>11.3f}{:>9.2f}{:>8.0f}%\n", lane_name(lane),
        lane == Lane::fetch ? "to the device" : "from the device", copies.count,
        format_bytes(copies.bytes), copies.seconds,
        copies.seconds > 0 ? static_cast<double>(copies.bytes) / copies.seconds / 1e9 : 0,
        100 * hidden_share_of_copies(engine, lane));
  }
  return text;
}

// What a disk was given, and what that is of the writes it is made for: a common drive of 1 TB is
// warranted for about 600 TB.
std::string wear_text(const Engine& engine) {
  const Disk* disk = engine.tiers().disk();
  if (!disk || engine.steps_here() == 0) return "";
  constexpr double kWarrantedBytes = 600e12;
  const double a_step = static_cast<double>(engine.copies(Lane::spill).bytes) /
                        static_cast<double>(engine.steps_here());
  return fmt::format(
      "  disk     {} written by this rank ({}), {} a step; a drive that is warranted for 600 TB "
      "would take {:.0f} steps\n",
      format_bytes(disk->bytes_written()), disk->how(), format_bytes(static_cast<int64_t>(a_step)),
      kWarrantedBytes / a_step);
}

PackWork work_of(const Engine& engine, Lane lane) {
  return engine.packed(lane).value_or(PackWork{});
}

// What was packed before it was sent, and what packets lacked.
std::string packed_text(const Engine& engine) {
  std::string text;
  for (const Lane lane : {Lane::gather, Lane::reduce})
    if (const PackWork work = work_of(engine, lane); work.calls > 0)
      text += fmt::format(
          "  {:<9}packed to {:.3g} % of {}, {:.3g} % of the norm {}, {:.3f}s for packing\n",
          lane_name(lane), 100 * work.ratio(), format_bytes(work.whole_bytes), 100 * work.error(),
          lane == Lane::reduce && engine.options().compression.feedback ? "kept back" : "lost",
          work.seconds);
  return text;
}

}  // namespace

std::string traffic_table(const Engine& engine) {
  const std::string copies = copies_table(engine) + wear_text(engine);
  if (engine.ranks() == 1 && copies.empty()) return "";
  std::string text =
      fmt::format("  {:<9}{:<16}{:>9}{:>12}{:>11}{:>9}{:>9}   (rank {})\n", "lane", "collective",
                  "count", "sent", "seconds", "GB/s", "hidden", engine.rank());
  for_each_traffic(engine, [&](Lane lane, Collective collective, const Traffic& traffic) {
    text +=
        fmt::format("  {:<9}{:<16}{:>9}{:>12}{:>11.3f}{:>9.2f}{:>8.0f}%\n", lane_name(lane),
                    collective_name(collective), traffic.calls, format_bytes(traffic.bytes_sent),
                    traffic.seconds, gb_per_second(traffic), 100 * hidden_share(engine, lane));
  });
  return text + packed_text(engine) + copies;
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
  for (const Lane lane : {Lane::gather, Lane::reduce})
    if (const PackWork work = work_of(engine, lane); work.calls > 0)
      list.push_back({{"lane", lane_name(lane)},
                      {"packed", work.calls},
                      {"whole_bytes", work.whole_bytes},
                      {"packed_bytes", work.packed_bytes},
                      {"ratio", work.ratio()},
                      {"error", work.error()},
                      {"seconds", work.seconds}});
  for (const Lane lane : {Lane::fetch, Lane::spill})
    if (const CopyWork& copies = engine.copies(lane); copies.count > 0)
      list.push_back({{"lane", lane_name(lane)},
                      {"count", copies.count},
                      {"bytes", copies.bytes},
                      {"seconds", copies.seconds},
                      {"hidden", hidden_share_of_copies(engine, lane)}});
  return list;
}

std::string driver_text(const Device::DriverMemory& memory) {
  if (memory.used_bytes == 0) return "";
  return fmt::format(
      "  the card's driver says that {} are in use: {} mapped for the ledger, {} beside it\n",
      format_bytes(memory.used_bytes), format_bytes(memory.mapped_bytes),
      format_bytes(memory.used_bytes - memory.mapped_bytes));
}

}  // namespace onefold
