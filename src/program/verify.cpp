#include "program/verify.h"

#include <fmt/format.h>

#include <array>
#include <set>

#include "base/error.h"

namespace onefold {
namespace {

// Walks the program once, as an executor with no memory and no time would, and notes what cannot
// be.
class Verifier {
 public:
  Verifier(const Program& program, const std::vector<UnitTraits>& units, int ranks)
      : program_(program),
        units_(units),
        ranks_(ranks),
        parameters_(units.size()),
        gradients_(units.size()),
        copies_(units.size()),
        activations_((units.size() + 1) * static_cast<size_t>(program.micros)) {
    for (position_ = 0; position_ < program.actions.size(); ++position_) visit(current());
    finish();
  }

  std::vector<std::string> take() { return std::move(problems_); }

 private:
  struct Parameters {
    bool whole = false, read = false;  // while a gather or a fetch holds them
    int ticket = -1;                   // of a gather that no action has waited for yet
    bool stepped = false, stale = false;
    bool in_node = false;         // has been gathered among all
    bool brought = false;         // what the host has stepped
    int fetched = -1, host = -1;  // of that, and of the host's step
  };
  struct Gradient {
    int backwards = 0;
    bool reduced = false, squared = false, released = false;
    bool summed = false;                  // over the shares of the unit
    bool sent = false, received = false;  // where two ranks have the unit
    int ticket = -1;
  };
  // A state on the device whose home is on another tier.
  struct Copy {
    bool here = false;
    bool changed = false;  // since it was last spilled
    int fetched = -1, spilled = -1;
  };
  // Of one unit and micro-batch.
  struct Activation {
    bool input = false, input_read = false;
    bool saved = false;
    bool doutput = false;                 // the gradient of the unit's output is there
    bool later = false;                   // gradients of weights are still to come
    int next_phase = 0;                   // of the action under way
    int exchanged = -1;                   // the phase of it after which something travelled last
    int next_chunk = 0;                   // of that phase, where it is computed by rows
    bool left = false;                    // what the last rows leave is still to travel
    std::vector<int> travelling = {};     // tickets
    bool away = false, released = false;  // input and saved: copied to another tier; not here
    int fetched = -1, spilled = -1;
    bool leaving = false, leaving_back = false;  // being sent: the input, the output's gradient
    int sent = -1, sent_back = -1, received = -1, received_back = -1;
  };

  const Action& current() const { return program_.actions[position_]; }
  const UnitTraits& traits(int unit) const { return units_[static_cast<size_t>(unit)]; }
  Parameters& parameters(int unit) { return parameters_[static_cast<size_t>(unit)]; }
  Gradient& gradient(int unit) { return gradients_[static_cast<size_t>(unit)]; }
  static constexpr State kStatesOfUnits[] = {State::parameters, State::gradients, State::optimizer};
  Copy& copy(int unit, State state) {
    return copies_[static_cast<size_t>(unit)][static_cast<size_t>(state)];
  }
  const Home& home(int unit, State state) const {
    const Homes& homes = traits(unit).homes;
    return state == State::gradients   ? homes.gradients
           : state == State::optimizer ? homes.optimizer
                                       : homes.parameters;
  }
  Activation& activation(int unit, int micro) {
    return activations_[static_cast<size_t>(unit) * static_cast<size_t>(program_.micros) +
                        static_cast<size_t>(micro)];
  }

  template <typename... Args>
  void expect(bool sound, fmt::format_string<Args...> what, Args&&... args) {
    if (sound) return;
    const std::string where =
        position_ < program_.actions.size()
            ? fmt::format("action {} ({})", position_,
                          describe(current(), fmt::format("unit {}", current().unit)))
            : std::string("the end");
    problems_.push_back(where + ": " + fmt::format(what, std::forward<Args>(args)...));
  }

  void visit(const Action& action) {
    const int last = static_cast<int>(units_.size());
    expect(action.unit >= 0 && action.unit < last, "no such unit");
    expect(action.micro >= 0 && action.micro < program_.micros, "no such micro-batch");
    if (action.unit < 0 || action.unit >= last || action.micro < 0 ||
        action.micro >= program_.micros)
      return;
    check_tickets(action);
    switch (action.verb) {
      case Verb::gather:
        for (const int unit : units_of(action)) gather(unit, action.ticket);
        if (action.state == State::parameters) check_node(action);
        break;
      case Verb::release:
        if (action.state == State::activations)
          return traits(action.unit).here() ? release_activation(action) : release_sent(action);
        return release(action.unit, action.state);
      case Verb::fetch:
        return fetch(action);
      case Verb::spill:
        return spill(action);
      case Verb::forward:
        return forward(action);
      case Verb::backward:
        return backward(action);
      case Verb::exchange:
        return exchange(action);
      case Verb::reduce:
        for (const int unit : units_of(action)) reduce(unit, action.ticket);
        break;
      case Verb::squares:
        return squares(action.unit);
      case Verb::clip:
        return clip();
      case Verb::step:
        return step(action);
      case Verb::send:
        return action.state == State::gradients ? send_gradient(action.unit) : send(action);
      case Verb::recv:
        return action.state == State::gradients ? receive_gradient(action.unit) : receive(action);
    }
  }

  // Between the stages of a pipeline.
  void send(const Action& action) {
    Activation& own = activation(action.unit, action.micro);
    expect(!traits(action.unit).here(), "unit {} is here and needs no message", action.unit);
    bool& there = action.of_backward ? own.doutput : own.input;
    expect(there, "what is sent is not there");
    there = false;
    (action.of_backward ? own.leaving_back : own.leaving) = true;
    (action.of_backward ? own.sent_back : own.sent) = action.ticket;
  }
  void release_sent(const Action& action) {
    Activation& own = activation(action.unit, action.micro);
    bool& leaving = action.of_backward ? own.leaving_back : own.leaving;
    expect(leaving, "nothing was sent that could be released");
    expect(is_done(action.of_backward ? own.sent_back : own.sent),
           "what is sent is released while it may be read");
    leaving = false;
  }
  void receive(const Action& action) {
    Activation& own = activation(action.unit, action.micro);
    expect(traits(action.unit).here(), "receives for unit {}, which is not here", action.unit);
    bool& there = action.of_backward ? own.doutput : own.input;
    expect(!there, "receives what is there already");
    there = true;
    if (!action.of_backward) own.input_read = false;
    (action.of_backward ? own.received_back : own.received) = action.ticket;
  }
  // The rank with the copy sends what its units have added and receives the whole; the other one
  // receives that before it adds to it.
  void send_gradient(int unit) {
    Gradient& own = gradient(unit);
    expect(traits(unit).copied && own.backwards > 0, "unit {} has no gradient to send", unit);
    expect(!traits(unit).here() || own.received, "sends the gradient of unit {} incomplete", unit);
    expect(!own.sent && !own.reduced && !own.squared, "sends the gradient of unit {} after its use",
           unit);
    if (traits(unit).here()) expect_summed(unit);
    own.sent = true;
  }
  void receive_gradient(int unit) {
    Gradient& own = gradient(unit);
    expect(traits(unit).copied && !own.received, "receives a gradient of unit {} unasked", unit);
    expect(traits(unit).here() ? own.backwards == 0 : own.sent,
           "receives the gradient of unit {} out of order", unit);
    own.received = true;
  }
  void expect_passed(int unit) {
    expect(!traits(unit).copied || (gradient(unit).sent && gradient(unit).received),
           "the gradient of unit {} is not that of both ranks", unit);
  }

  void check_tickets(const Action& action) {
    for (const int ticket : action.waits) {
      expect(issued_.contains(ticket), "waits for ticket {}, which nothing before it issues",
             ticket);
      done_.insert(ticket);
    }
    expect(action.lane == Lane::compute || action.ticket >= 0,
           "has a lane of its own but no ticket");
    if (action.ticket < 0) return;
    expect(issued_.insert(action.ticket).second, "ticket {} is issued twice", action.ticket);
  }
  bool is_done(int ticket) const { return ticket < 0 || done_.contains(ticket); }

  void spill_activation(const Action& action) {
    Activation& own = activation(action.unit, action.micro);
    expect((own.input || own.saved) && !own.away, "there are no activations to spill");
    own.away = true;
    own.spilled = action.ticket;
  }
  void release_activation(const Action& action) {
    Activation& own = activation(action.unit, action.micro);
    expect(own.away && !own.released, "activations are released and were not spilled");
    expect(is_done(own.spilled), "activations are released while they may be read");
    own.released = true;
  }
  void fetch_activation(const Action& action) {
    Activation& own = activation(action.unit, action.micro);
    expect(own.away && own.released, "activations are fetched and are there");
    own.away = own.released = false;
    own.fetched = action.ticket;
  }
  void expect_activation_here(const Activation& own) {
    expect(!own.away, "its activations are on another tier");
    expect(is_done(own.fetched), "does not wait for its activations");
  }

  void fetch(const Action& action) {
    if (action.state == State::activations) return fetch_activation(action);
    if (action.state == State::stepped) return fetch_stepped(action);
    if (stepping_ && traits(action.unit).host_steps)
      expect_stepped_by_the_host(parameters(action.unit));
    Copy& own = copy(action.unit, action.state);
    expect(home(action.unit, action.state).offloaded(), "{} of unit {} live on the device",
           state_name(action.state), action.unit);
    expect(!own.here, "{} of unit {} are fetched twice", state_name(action.state), action.unit);
    own = {.here = true, .fetched = action.ticket};
    if (action.state == State::parameters) parameters(action.unit).read = false;
  }

  void expect_stepped_by_the_host(const Parameters& own) {
    expect(own.stepped && is_done(own.host), "brings what the host steps without waiting for it");
  }

  // Of this step, for a gather after it; or, before anything reads them, of the last one.
  void fetch_stepped(const Action& action) {
    const UnitTraits& unit = traits(action.unit);
    Parameters& own = parameters(action.unit);
    expect(unit.fetches_stepped() && unit.fetches_stepped_late() == !stepping_,
           "unit {} has no stepped parameters to bring here", action.unit);
    expect(!own.brought, "stepped parameters of unit {} are fetched twice", action.unit);
    if (stepping_) expect_stepped_by_the_host(own);
    own.brought = true;
    own.fetched = action.ticket;
  }
  void expect_brought(int unit) {
    const Parameters& own = parameters(unit);
    expect(own.brought && is_done(own.fetched),
           "reads parameters of unit {} before what the host has stepped is there", unit);
  }

  void spill(const Action& action) {
    if (action.state == State::activations) return spill_activation(action);
    Copy& own = copy(action.unit, action.state);
    expect(own.here, "{} of unit {} are spilled and are not there", state_name(action.state),
           action.unit);
    expect(own.changed, "{} of unit {} are spilled unchanged", state_name(action.state),
           action.unit);
    if (action.state == State::parameters)
      expect(is_done(parameters(action.unit).ticket),
             "parameters of unit {} are spilled while they may be gathered", action.unit);
    own.changed = false;
    own.spilled = action.ticket;
  }

  // That a state is on the device, whole as far as its home is, and nobody still copies it there.
  void expect_here(int unit, State state) {
    if (!home(unit, state).offloaded()) return;
    const Copy& own = copy(unit, state);
    expect(own.here, "uses {} of unit {}, which are not fetched", state_name(state), unit);
    expect(is_done(own.fetched), "uses {} of unit {} without waiting for their fetch",
           state_name(state), unit);
  }
  void change(int unit, State state) {
    if (home(unit, state).offloaded()) copy(unit, state).changed = true;
  }

  void release(int unit, State state) {
    const bool offloaded = home(unit, state).offloaded();
    if (offloaded) {
      Copy& own = copy(unit, state);
      expect(own.here, "{} of unit {} are released and are not there", state_name(state), unit);
      expect(!own.changed, "{} of unit {} are released and were not spilled", state_name(state),
             unit);
      expect(is_done(own.spilled), "{} of unit {} are released while they may be read",
             state_name(state), unit);
      own = {};
    }
    if (state == State::parameters && !stepping_) {
      release_parameters(unit);
    } else if (state == State::gradients && home(unit, state).sharded && !gradient(unit).released) {
      release_gradients(unit);
    } else {
      expect(offloaded, "{} of unit {} are released and live on the device", state_name(state),
             unit);
    }
  }

  // What a node keeps is what was gathered among all, in this step.
  void check_node(const Action& action) {
    Parameters& own = parameters(action.unit);
    expect(!action.inside || (traits(action.unit).node_ranks > 0 && own.in_node),
           "unit {} is gathered inside a node that does not keep it", action.unit);
    own.in_node = true;
  }

  void gather(int unit, int ticket) {
    Parameters& own = parameters(unit);
    const Homes& homes = traits(unit).homes;
    expect_gatherable(unit);
    if (stepping_) {  // in place, of what a step has changed
      expect(own.stepped && traits(unit).gathers_after_step(),
             "unit {} has nothing to gather after its step", unit);
      own.stale = false;
      own.ticket = ticket;
      if (traits(unit).fetches_stepped()) expect_brought(unit);
      if (traits(unit).host_steps) change(unit, State::parameters);
      return;
    }
    if (traits(unit).fetches_stepped_late()) expect_brought(unit);
    expect(homes.parameters.sharded, "unit {} is whole and is gathered", unit);
    expect(!own.whole, "unit {} is gathered twice", unit);
    own.whole = true;
    own.read = false;
    own.ticket = ticket;
  }

  // On a lane of its own, a gather waits for the fetch itself.
  void expect_gatherable(int unit) {
    if (!traits(unit).adapted()) expect_here(unit, State::parameters);
  }

  void release_parameters(int unit) {
    Parameters& own = parameters(unit);
    const Home& where = home(unit, State::parameters);
    expect(own.whole || (where.offloaded() && !where.sharded),
           "unit {} is released and was not gathered", unit);
    expect(own.read, "unit {} was gathered and is released without a reader", unit);
    expect(is_done(own.ticket), "unit {} is released while its gather may be under way", unit);
    own.whole = false;
  }

  void read_parameters(const Action& action) {
    for (const int unit : reads_of(action, units_)) {
      Parameters& own = parameters(unit);
      own.read = true;
      expect_here(unit, State::parameters);
      if (traits(unit).fetches_stepped_late()) expect_brought(unit);
      if (!traits(unit).homes.parameters.sharded) continue;
      expect(own.whole, "reads unit {}, which is not gathered", unit);
      expect(is_done(own.ticket), "reads unit {} without waiting for its gather", unit);
    }
  }

  void exchange(const Action& action) {
    if (action.state == State::gradients) {
      Gradient& own = gradient(action.unit);
      expect(traits(action.unit).travels.gradients, "unit {} has no gradients to exchange",
             action.unit);
      expect(own.backwards > 0 && !own.reduced && !own.squared && !own.summed,
             "the gradient of unit {} is exchanged before it is there, after it was used, or twice",
             action.unit);
      own.summed = true;
      return;
    }
    Activation& own = activation(action.unit, action.micro);
    expect(action.phase + 1 == own.next_phase, "nothing of phase {} is there to travel",
           action.phase);
    expect(own.exchanged != action.phase, "what phase {} leaves travels twice", action.phase);
    if (action.chunk.count > 1) {
      expect(own.left && action.chunk.index + 1 == own.next_chunk,
             "rows {} of what phase {} leaves travel where others are due", action.chunk.index,
             action.phase);
      own.left = false;
      own.travelling.push_back(action.ticket);
      if (own.next_chunk < action.chunk.count) return;
      own.next_chunk = 0;
    }
    if (action.chunk.count == 1 && action.ticket >= 0) own.travelling.push_back(action.ticket);
    own.exchanged = action.phase;
  }

  // Of a phase that is computed by rows: its further ones. Whatever of a phase reads what travels
  // waits for that; gradients of weights, and phases beside it, do not.
  bool enter_rows(const Action& action, Activation& own) {
    const bool of_backward = action.verb == Verb::backward;
    const bool cut = action.chunk.count > 1;
    if (!cut || action.chunk.index == 0)
      expect(own.next_chunk == 0 && !own.left, "begins before all rows of a phase have travelled");
    if (cut) {
      expect(traits(action.unit).travels.by_rows_after(of_backward, action.phase),
             "phase {} is not computed by rows", action.phase);
      expect(action.chunk.index == own.next_chunk && !own.left, "rows {} come where {} are due",
             action.chunk.index, own.next_chunk);
      own.next_chunk = action.chunk.index + 1;
      own.left = true;
      if (action.chunk.index > 0) {
        expect(action.phase + 1 == own.next_phase, "rows of phase {} come among others",
               action.phase);
        return true;
      }
    }
    const PhaseCounts& phases = traits(action.unit).phases;
    if (of_backward && phases.makes_weights(action.phase)) return false;
    const bool beside = !own.travelling.empty() && own.exchanged + 1 == action.phase &&
                        phases.beside(of_backward, action.phase);
    const int going = beside ? own.travelling.back() : -1;
    for (const int ticket : own.travelling)
      expect(ticket == going || is_done(ticket), "reads what travels without waiting for it");
    own.travelling.clear();
    if (beside) own.travelling = {going};
    return false;
  }

  // True on an action's last phase: its effects are then complete.
  bool enter_phase(const Action& action, Activation& own) {
    const Travels& travels = traits(action.unit).travels;
    const bool of_backward = action.verb == Verb::backward;
    if (action.phase == Action::kAllPhases) {
      expect(!travels.any() || action.part == Part::by_weights,
             "is not cut where something travels");
      return true;
    }
    if (enter_rows(action, own)) return false;
    // Phases that come later are left out.
    const auto due = [&](int phase) {
      return action.part == Part::by_input ? traits(action.unit).phases.by_input_from(phase)
                                           : phase;
    };
    const int before = own.next_phase - 1;
    expect(action.phase == due(own.next_phase), "phase {} comes where phase {} is due",
           action.phase, due(own.next_phase));
    expect(before < 0 || !travels.after(of_backward, before) || own.exchanged == before,
           "what phase {} leaves has not travelled", before);
    own.exchanged = -1;
    const Action* next = nullptr;
    for (size_t i = position_ + 1; i < program_.actions.size() && !next; ++i)
      if (computes(program_.actions[i]) && program_.actions[i].chunk.index == 0)
        next = &program_.actions[i];
    const bool more = next && next->verb == action.verb && next->unit == action.unit &&
                      next->micro == action.micro && next->part == action.part &&
                      next->phase == due(action.phase + 1);
    own.next_phase = more ? action.phase + 1 : 0;
    if (!more) expect_travelled(own);
    return !more;
  }
  // Temporaries, in which things travel, are given back where a unit ends.
  void expect_travelled(Activation& own) {
    for (const int ticket : own.travelling)
      expect(is_done(ticket), "ends while something of it travels");
    own.travelling.clear();
  }

  void forward(const Action& action) {
    Activation& own = activation(action.unit, action.micro);
    read_parameters(action);
    expect(own.input || traits(action.unit).is_first, "its input is not there");
    expect(is_done(own.received), "does not wait for the input that it receives");
    expect_activation_here(own);
    if (!enter_phase(action, own)) return;
    own.input_read = true;
    if (!action.keep_input) own.input = false;
    own.saved = action.keep_saved;
    if (!action.output) return;
    Activation& next = activation(action.unit + 1, action.micro);
    expect(!next.input, "writes the next unit's input, which is there already");
    next.input = true;
    next.input_read = false;
  }

  void backward(const Action& action) {
    const UnitTraits& unit = traits(action.unit);
    Activation& own = activation(action.unit, action.micro);
    read_parameters(action);
    expect(own.input || unit.is_first, "its input is not there");
    expect(own.saved || unit.has_loss, "what its forward saved is not there");
    const bool later = action.part == Part::by_weights;
    expect(own.later == later, "gradients of weights come before, or after, those of the input");
    expect(own.doutput || unit.has_loss || later, "the gradient of its output is not there");
    expect(is_done(own.received) && is_done(own.received_back),
           "does not wait for what it receives");
    expect_activation_here(own);
    if (!enter_phase(action, own)) return;
    if (action.part == Part::by_input) {
      own.later = true;
      own.doutput = false;
      if (action.output) activation(action.unit - 1, action.micro).doutput = true;
      return;
    }
    own = {};
    for (const int trained : gradients_of(action, units_)) add_gradient(trained, action.accumulate);
    if (action.output) activation(action.unit - 1, action.micro).doutput = true;
  }

  void add_gradient(int unit, bool accumulate) {
    Gradient& own = gradient(unit);
    const bool shared = unit != current().unit || is_added_to(unit);
    expect(shared || accumulate == (own.backwards > 0), "{} the gradient of unit {} {} backward",
           accumulate ? "adds to" : "overwrites", unit,
           own.backwards > 0 ? "after an earlier" : "before any");
    expect(!own.reduced && !own.squared && !own.summed && !own.sent,
           "changes the gradient of unit {} after it was used", unit);
    expect(!traits(unit).copied || !traits(unit).here() || own.received,
           "adds to the gradient of unit {} before that of another rank is there", unit);
    if (home(unit, State::gradients).offloaded()) {
      Copy& here = copy(unit, State::gradients);
      const bool first = own.backwards == 0;
      expect(first || here.here, "adds to the gradient of unit {}, which is not fetched", unit);
      expect(is_done(here.fetched), "adds to the gradient of unit {} without waiting for its fetch",
             unit);
      here.here = here.changed = true;
    }
    ++own.backwards;
  }
  bool is_added_to(int unit) const {
    for (const UnitTraits& other : units_)
      for (const int receiver : other.adds_to)
        if (receiver == unit) return true;
    return false;
  }

  void reduce(int unit, int ticket) {
    Gradient& own = gradient(unit);
    expect(own.backwards > 0, "unit {} has no gradient to reduce", unit);
    expect_summed(unit);
    expect_passed(unit);
    expect(!own.reduced, "unit {} is reduced twice", unit);
    own.reduced = true;
    own.ticket = ticket;
  }

  void squares(int unit) {
    Gradient& own = gradient(unit);
    expect(own.backwards > 0, "unit {} has no gradient", unit);
    expect_summed(unit);
    expect_passed(unit);
    expect(!own.squared, "the squares of unit {} are summed twice", unit);
    expect(traits(unit).ranks_of(ranks_) == 1 || own.reduced,
           "the gradient of unit {} is not reduced", unit);
    expect(is_done(own.ticket), "reads the gradient of unit {} without waiting for its reduction",
           unit);
    own.squared = true;
    expect_here(unit, State::gradients);
  }

  void expect_summed(int unit) {
    expect(!traits(unit).travels.gradients || gradient(unit).summed,
           "the gradient of unit {} is not summed over shares", unit);
  }

  void release_gradients(int unit) {
    Gradient& own = gradient(unit);
    expect(traits(unit).homes.gradients.sharded && own.reduced,
           "unit {} gives back a gradient that was not reduced into a shard", unit);
    expect(!own.released, "the gradient of unit {} is released twice", unit);
    expect(is_done(own.ticket),
           "the gradient of unit {} is released while its reduction may be "
           "under way",
           unit);
    own.released = true;
  }

  void clip() {
    for (size_t u = 0; u < units_.size(); ++u)
      expect(units_[u].frozen || !units_[u].held() || gradients_[u].squared,
             "the squares of unit {} are missing", u);
    stepping_ = true;
  }

  void step(const Action& action) {
    const int unit = action.unit;
    Parameters& own = parameters(unit);
    const Homes& homes = traits(unit).homes;
    expect(stepping_, "comes before clip");
    expect(!own.stepped, "unit {} steps twice", unit);
    expect(!traits(unit).frozen, "unit {} is frozen", unit);
    expect(!homes.gradients.sharded || gradient(unit).released,
           "the whole gradient of unit {} is still held", unit);
    if (traits(unit).host_steps)
      step_by_the_host(action);
    else
      step_here(unit);
    own.stepped = true;
    own.stale = traits(unit).ranks_of(ranks_) > 1 && traits(unit).gathers_after_step();
  }

  void step_here(int unit) {
    expect_here(unit, State::gradients);
    expect_here(unit, State::optimizer);
    change(unit, State::optimizer);
    if (traits(unit).adapted()) return;
    expect_here(unit, State::parameters);
    change(unit, State::parameters);
  }

  void step_by_the_host(const Action& action) {
    const Copy& own = copy(action.unit, State::gradients);
    expect(!own.changed && is_done(own.spilled), "the gradient of unit {} may not be there yet",
           action.unit);
    parameters(action.unit).host = action.ticket;
  }

  void finish() {
    for (size_t u = 0; u < units_.size(); ++u) {
      expect(!parameters_[u].whole, "unit {} stays gathered", u);
      for (const State state : kStatesOfUnits)
        expect(!copies_[u][static_cast<size_t>(state)].here, "{} of unit {} stay on the device",
               state_name(state), u);
      expect(!parameters_[u].stale, "unit {} is not gathered after its step", u);
      expect(!stepping_ || units_[u].frozen || !units_[u].held() || parameters_[u].stepped,
             "unit {} has no step", u);
      for (int micro = 0; micro < program_.micros; ++micro) {
        const Activation& own = activation(static_cast<int>(u), micro);
        expect(!own.input, "the input of unit {}, micro {}, is held without a reader", u, micro);
        expect(!own.doutput, "the gradient of unit {}'s output, micro {}, has no reader", u, micro);
        expect(!own.saved, "what unit {} saved, micro {}, is held without a reader", u, micro);
        expect(!own.leaving && !own.leaving_back,
               "what unit {} was sent, micro {}, is not released", u, micro);
      }
    }
  }

  const Program& program_;
  const std::vector<UnitTraits>& units_;
  const int ranks_;
  size_t position_ = 0;
  bool stepping_ = false;
  std::vector<Parameters> parameters_;
  std::vector<Gradient> gradients_;
  std::vector<std::array<Copy, onefold::kStates>> copies_;  // by State
  std::vector<Activation> activations_;
  std::set<int> issued_, done_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> problems_of(const Program& program, const std::vector<UnitTraits>& units,
                                     int ranks) {
  return Verifier(program, units, ranks).take();
}

void verify(const Program& program, const std::vector<UnitTraits>& units, int ranks) {
  constexpr size_t kShown = 3;
  const std::vector<std::string> problems = problems_of(program, units, ranks);
  if (problems.empty()) return;
  std::string text;
  for (size_t i = 0; i < problems.size() && i < kShown; ++i) text += "\n  " + problems[i];
  internal_error("the program is not sound ({} problems):{}", problems.size(), text);
}

}  // namespace onefold
