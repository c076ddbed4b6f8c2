#include "run/pipeline_drawing.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace onefold {
namespace {

// A stretch of one stage's forwards or backwards of one micro-batch.
struct DrawnTurn {
  char kind;          // F, B, W
  int micro, number;  // of the rank's stages
  double begin, end;
};

int stage_of(const Pipeline& pipeline, int unit) {
  int stage = 0;
  while (unit >= pipeline.end(stage)) ++stage;
  return stage;
}

std::vector<DrawnTurn> turns_drawn(const PipelinePlan& plan, size_t place) {
  std::vector<DrawnTurn> turns;
  const auto& actions = plan.programs[place].actions;
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (!computes(action)) continue;
    const Timeline::Span& span = plan.times.spans[place][i];
    const int number = stage_of(plan.pipeline, action.unit) / plan.pipeline.ranks;
    DrawnTurn* last = turns.empty() ? nullptr : &turns.back();
    if (last && (last->micro != action.micro || last->number != number)) last = nullptr;
    // Forwards that are computed again belong to the backward that they are for, and a whole
    // backward after gradients of weights to these.
    const char kind = action.part == Part::by_weights                                ? 'W'
                      : last && last->kind == 'W'                                    ? 'W'
                      : action.verb == Verb::backward || (last && last->kind == 'B') ? 'B'
                                                                                     : 'F';
    if (last && last->kind == kind)
      last->end = span.end;
    else
      turns.push_back({kind, action.micro, number, span.begin, span.end});
  }
  return turns;
}

std::string label_of(const DrawnTurn& turn) {
  return fmt::format("{}{}{}", turn.kind, turn.micro,
                     std::string(static_cast<size_t>(turn.number), '\''));
}

}  // namespace

std::vector<RankTrace> traces_of(const PipelinePlan& plan) {
  std::vector<RankTrace> traces;
  for (size_t place = 0; place < plan.programs.size(); ++place) {
    RankTrace& trace = traces.emplace_back(RankTrace{.rank = plan.ranks[place], .lanes = {}});
    for (const Lane lane : kAllLanes) {
      RankTrace::Lane& to = trace.lanes.emplace_back(RankTrace::Lane{lane_name(lane), {}});
      for (size_t i = 0; i < plan.programs[place].actions.size(); ++i) {
        const Action& action = plan.programs[place].actions[i];
        const Timeline::Span& span = plan.times.spans[place][i];
        if (action.lane == lane && span.end > span.begin)
          to.spans.push_back({describe(action, plan.unit_names[static_cast<size_t>(action.unit)]),
                              span.begin, span.end - span.begin, 0});
      }
    }
  }
  return traces;
}

// As wide as the shortest turn asks for, within limits.
std::string schedule_text(const PipelinePlan& plan) {
  constexpr double kMostColumns = 180, kColumnsOfATurn = 3;
  double shortest = plan.times.seconds, end = 0;
  std::vector<std::vector<DrawnTurn>> rows;
  for (size_t place = 0; place < plan.programs.size(); ++place) {
    rows.push_back(turns_drawn(plan, place));
    for (const DrawnTurn& turn : rows.back()) {
      if (turn.end > turn.begin) shortest = std::min(shortest, turn.end - turn.begin);
      end = std::max(end, turn.end);
    }
  }
  const double scale = std::min(kMostColumns, kColumnsOfATurn * end / shortest) / end;
  const auto column = [&](double time) { return static_cast<size_t>(std::lround(time * scale)); };
  std::string text = "\n";
  for (size_t place = 0; place < rows.size(); ++place) {
    std::string row(column(end), '.');
    for (const DrawnTurn& turn : rows[place]) {
      const size_t from = column(turn.begin), to = std::max(from, column(turn.end));
      std::string cell = label_of(turn);
      cell.resize(to - from, '-');
      row.replace(from, to - from, cell);
    }
    text += fmt::format("  rank {:<4}|{}|\n", plan.ranks[place], row);
  }
  text += fmt::format("  {:.1f} % of the ranks' time stands still", 100 * plan.idle_share());
  // Of ZB-H1 it follows from times, not from numbers alone.
  if (plan.pipeline.schedule != PipelineSchedule::zero_bubble)
    text += fmt::format("; with equal stages and messages that take no time it would be {:.1f} %",
                        100 * plan.ideal_idle_share());
  return text + "\n";
}

std::string schedule_svg(const PipelinePlan& plan) {
  constexpr double kWidth = 1200, kRow = 28, kLeft = 70, kTop = 10;
  const double scale = plan.times.seconds > 0 ? kWidth / plan.times.seconds : 0;
  const double height = kTop + kRow * static_cast<double>(plan.programs.size()) + kTop;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\" font-size=\"11\">\n",
      kLeft + kWidth + kTop, height);
  for (size_t place = 0; place < plan.programs.size(); ++place) {
    const double y = kTop + kRow * static_cast<double>(place);
    text += fmt::format("<text x=\"4\" y=\"{}\">rank {}</text>\n", y + 17, plan.ranks[place]);
    text += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#eeeeee\"/>\n",
                        kLeft, y, kWidth, kRow - 4);
    for (const DrawnTurn& turn : turns_drawn(plan, place)) {
      const double x = kLeft + scale * turn.begin, width = scale * (turn.end - turn.begin);
      text += fmt::format(
          "<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" "
          "stroke=\"#ffffff\"><title>{}</title></rect>\n",
          x, y, width, kRow - 4,
          turn.kind == 'B'   ? "#4c8c4a"
          : turn.kind == 'W' ? "#b08030"
                             : "#4a6fa5",
          label_of(turn));
      if (width > 14)
        text += fmt::format(
            "<text x=\"{:.2f}\" y=\"{}\" fill=\"#ffffff\" text-anchor=\"middle\">{}</text>\n",
            x + width / 2, y + 16, label_of(turn));
    }
  }
  return text + "</svg>\n";
}

}  // namespace onefold
