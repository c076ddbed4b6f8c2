#include "cli/roofline.h"

#include <algorithm>

namespace onefold::cli {
namespace {

using Row = KernelProfile::Row;

double product_seconds(const Row& row, const Ceilings& ceilings) {
  return row.work.flops / ceilings.product_gflops / 1e9;
}
double memory_seconds(const Row& row, const Ceilings& ceilings) {
  return row.work.bytes / ceilings.memory_gb_per_s / 1e9;
}
double limit_seconds(const Row& row, const Ceilings& ceilings) {
  return std::max(product_seconds(row, ceilings), memory_seconds(row, ceilings));
}

std::vector<Row> longest_first(std::vector<Row> rows, const Ceilings& ceilings) {
  for (Row& row : rows)
    if (row.family.starts_with("products of experts")) row.work.flops *= ceilings.kept;
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return rows;
}

}  // namespace

std::string roofline_table(const KernelProfile& profile, const Ceilings& ceilings) {
  std::string text = fmt::format("  {:<30}{:>5}{:>11}{:>10}{:>10}{:>10}  {}\n", "kernels", "calls",
                                 "time", "TFLOP/s", "GB/s", "of limit", "limit");
  double seconds = 0, limit = 0;
  for (const Row& row : longest_first(profile.families(), ceilings)) {
    const bool by_products = product_seconds(row, ceilings) > memory_seconds(row, ceilings);
    text += fmt::format(
        "  {:<30}{:>5}{:>8.2f} ms{:>10.2f}{:>10.1f}{:>8.0f} %  {}\n", row.family, row.calls,
        1e3 * row.seconds, row.work.flops / row.seconds / 1e12, row.work.bytes / row.seconds / 1e9,
        100 * limit_seconds(row, ceilings) / row.seconds, by_products ? "products" : "memory");
    seconds += row.seconds;
    limit += limit_seconds(row, ceilings);
  }
  return text + fmt::format("  {:<30}{:>5}{:>8.2f} ms{:>10}{:>10}{:>8.0f} %\n", "all", "",
                            1e3 * seconds, "", "", 100 * limit / seconds);
}

Json roofline_json(const KernelProfile& profile, const Ceilings& ceilings) {
  Json rows = Json::array();
  for (const Row& row : longest_first(profile.rows(), ceilings))
    rows.push_back({{"family", row.family},
                    {"shape", row.shape},
                    {"calls", row.calls},
                    {"seconds", row.seconds},
                    {"flops", row.work.flops},
                    {"bytes", row.work.bytes},
                    {"limit_seconds", limit_seconds(row, ceilings)}});
  return rows;
}

}  // namespace onefold::cli
