#include "program/pipeline.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "program/program.h"

namespace onefold {
namespace {

// The k-th forward of a rank, or backward, whose stages come in the reverse order: by groups of
// micro-batches, and in each by stages.
Turn turn_number(const Pipeline& pipeline, int k, bool backward) {
  const int group = pipeline.ranks * pipeline.interleave, in_group = k % group;
  const int number = in_group / pipeline.ranks;
  return {backward, backward ? pipeline.interleave - 1 - number : number,
          k / group * pipeline.ranks + in_group % pipeline.ranks};
}

// So many forwards first, then one of each in turn, then the rest of the backwards.
std::vector<Turn> turns_with(const Pipeline& pipeline, int micros, int ahead) {
  const int count = micros * pipeline.interleave;
  ahead = std::min(ahead, count);
  std::vector<Turn> turns;
  for (int k = 0; k < ahead; ++k) turns.push_back(turn_number(pipeline, k, false));
  for (int k = 0; k < count; ++k) {
    if (ahead + k < count) turns.push_back(turn_number(pipeline, ahead + k, false));
    turns.push_back(turn_number(pipeline, k, true));
  }
  return turns;
}

// Each rank leaves the gradients of weights of as many micro-batches as there are ranks before it,
// for the time when it would wait for the last backwards.
std::vector<Turn> zero_bubble(const Pipeline& pipeline, int micros) {
  std::vector<Turn> turns;
  int next = 0;  // micro-batch whose gradients of weights are left
  const auto add_weights = [&](int until) {
    for (; next < until; ++next) turns.push_back({true, 0, next, true});
  };
  for (const Turn& turn : turns_with(pipeline, micros, pipeline.ranks - 1 - pipeline.place)) {
    turns.push_back(turn);
    if (turn.backward) add_weights(turn.micro - pipeline.place + 1);
  }
  add_weights(micros);
  return turns;
}

class PipelineBuilder {
 public:
  PipelineBuilder(const StepShape& shape, int lowest, std::vector<Action>& actions)
      : shape_(shape), own_(shape.pipeline), lowest_(lowest), actions_(actions) {}

  void build() {
    for (const Turn& turn : turns_of(own_, shape_.micros)) {
      const int stage = own_.stage(turn.number);
      if (turn.weights)
        weights(stage, turn.micro);
      else
        turn.backward ? backward(stage, turn.micro) : forward(stage, turn.micro);
    }
    conclude_copies();
  }

 private:
  const UnitTraits& traits(int unit) const { return shape_.units[static_cast<size_t>(unit)]; }

  void pass(Verb verb, int unit, int micro, bool of_backward) {
    actions_.push_back({.verb = verb,
                        .unit = unit,
                        .micro = micro,
                        .of_backward = of_backward,
                        .state = State::activations});
  }

  void forward(int stage, int micro) {
    if (stage > 0) pass(Verb::recv, own_.begin(stage), micro, false);
    for (int unit = own_.begin(stage); unit < own_.end(stage); ++unit)
      if (!traits(unit).has_loss)
        actions_.push_back({.verb = Verb::forward, .unit = unit, .micro = micro});
    if (!own_.is_last(stage)) pass(Verb::send, own_.end(stage), micro, false);
  }

  // A gradient to which another rank adds collects all of that before the first of its own, as on
  // one rank: these backwards come last.
  void backward(int stage, int micro) {
    const int begin = own_.begin(stage), end = own_.end(stage);
    if (end <= lowest_) return;
    if (!own_.is_last(stage)) pass(Verb::recv, end - 1, micro, true);
    for (int unit = end - 1; unit >= std::max(begin, lowest_); --unit) {
      if (traits(unit).copied || waits_whole(unit)) continue;
      add_backward(unit, micro, leaves_weights(unit) ? Part::by_input : Part::all);
    }
    if (begin > lowest_) pass(Verb::send, begin - 1, micro, true);
  }

  // What later turns compute: nothing waits for the lowest unit, and gradients of weights.
  bool later() const { return own_.schedule == PipelineSchedule::zero_bubble; }
  bool waits_whole(int unit) const { return later() && unit == lowest_; }
  bool leaves_weights(int unit) const {
    return later() && !traits(unit).has_loss && !traits(unit).frozen &&
           traits(unit).phases.cut_in_two();
  }

  void weights(int stage, int micro) {
    for (int unit = own_.end(stage) - 1; unit >= std::max(own_.begin(stage), lowest_); --unit) {
      if (traits(unit).copied) continue;
      if (waits_whole(unit))
        add_backward(unit, micro, Part::all);
      else if (leaves_weights(unit))
        add_backward(unit, micro, Part::by_weights);
    }
  }

  void add_backward(int unit, int micro, Part part) {
    actions_.push_back({.verb = Verb::backward, .unit = unit, .micro = micro, .part = part});
    if (micro == shape_.micros - 1 && part != Part::by_input) squares(unit);
  }

  void squares(int unit) {
    if (!traits(unit).frozen) actions_.push_back({.verb = Verb::squares, .unit = unit});
  }

  void pass_gradients(Verb verb, int unit) {
    actions_.push_back(
        {.verb = verb, .unit = unit, .of_backward = true, .state = State::gradients});
  }

  // The gradients of units that two ranks have, at the end: nothing but clipping waits for them.
  void conclude_copies() {
    for (int unit = 0; unit < static_cast<int>(shape_.units.size()); ++unit) {
      if (!traits(unit).copied) continue;
      const bool here = traits(unit).here();
      pass_gradients(here ? Verb::recv : Verb::send, unit);
      for (int micro = 0; here && micro < shape_.micros; ++micro)
        actions_.push_back({.verb = Verb::backward, .unit = unit, .micro = micro});
      pass_gradients(here ? Verb::send : Verb::recv, unit);
      squares(unit);
    }
  }

  const StepShape& shape_;
  const Pipeline& own_;
  const int lowest_;
  std::vector<Action>& actions_;
};

}  // namespace

const char* schedule_name(PipelineSchedule schedule) {
  static constexpr std::array<const char*, std::size(kPipelineSchedules)> kNames = {"gpipe", "1f1b",
                                                                                    "zb-h1"};
  return kNames[static_cast<size_t>(schedule)];
}

std::vector<Turn> turns_of(const Pipeline& pipeline, int micros) {
  const int behind = pipeline.ranks - 1 - pipeline.place;
  if (pipeline.schedule == PipelineSchedule::gpipe)
    return turns_with(pipeline, micros, micros * pipeline.interleave);
  if (pipeline.schedule == PipelineSchedule::zero_bubble) return zero_bubble(pipeline, micros);
  if (pipeline.interleave == 1) return turns_with(pipeline, micros, behind);
  require(micros % pipeline.ranks == 0, "{} micro-batches in groups of {}", micros, pipeline.ranks);
  return turns_with(pipeline, micros, 2 * behind + (pipeline.interleave - 1) * pipeline.ranks);
}

void place_units(std::vector<UnitTraits>& units, const Pipeline& pipeline) {
  int stage = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    while (static_cast<int>(u) >= pipeline.end(stage)) ++stage;
    units[u].place = stage % pipeline.ranks;
  }
  for (const UnitTraits& unit : units)
    for (const int shared : unit.adds_to) {
      UnitTraits& other = units[static_cast<size_t>(shared)];
      if (other.place == unit.place) continue;
      other.copied = !other.frozen;
      if (unit.place == pipeline.place) other.presence = Presence::copy;
    }
  for (UnitTraits& unit : units) {
    if (unit.place == pipeline.place) continue;
    // What is not computed here is neither computed again nor summed over shares here.
    unit.segment = -1;
    unit.travels.gradients = false;
    if (unit.presence == Presence::copy) continue;
    unit.presence = Presence::elsewhere;
    unit.copied = false;
    unit.elems = unit.adapter_elems = 0;
    unit.vector_elems = unit.factor_elems = unit.ratio_elems = 0;
    unit.homes = {};
    unit.node_ranks = 0;
    unit.forward_reads.clear();
    unit.backward_reads.clear();
  }
}

void add_pipeline_step(const StepShape& shape, int lowest, std::vector<Action>& actions) {
  PipelineBuilder(shape, lowest, actions).build();
}

void add_pipeline_evaluation(const Pipeline& pipeline, std::vector<Action>& actions) {
  const auto pass = [&](Verb verb, int unit) {
    actions.push_back({.verb = verb, .unit = unit, .state = State::activations});
  };
  for (int number = 0; number < pipeline.interleave; ++number) {
    const int stage = pipeline.stage(number);
    if (stage > 0) pass(Verb::recv, pipeline.begin(stage));
    for (int unit = pipeline.begin(stage); unit < pipeline.end(stage); ++unit)
      actions.push_back({.verb = Verb::forward, .unit = unit});
    if (!pipeline.is_last(stage)) pass(Verb::send, pipeline.end(stage));
  }
}

}  // namespace onefold
