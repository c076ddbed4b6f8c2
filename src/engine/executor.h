// The executor walks a program. Memory is taken and given back here, on one thread and in program
// order, so that what a rank holds is a function of the program alone; lanes only move bytes and
// compute. It knows units by what they say of themselves, never by their place.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "device/host_side.h"
#include "engine/channels.h"
#include "engine/control.h"
#include "engine/copies.h"
#include "engine/expert_load.h"
#include "engine/options.h"
#include "engine/rank_state.h"
#include "engine/step_scalars.h"
#include "engine/times.h"
#include "program/program.h"

namespace onefold {

// Added to a norm before a limit is divided by it.
inline constexpr double kClipEps = 1e-6;

// One program's run: what it is given, what has been computed and is still needed, and what is
// under way on the lanes.
struct Walk {
  // A unit between two of its phases.
  struct Frame {
    std::vector<Tensor> params, grads;
    std::optional<UnitCall> call;
    int64_t arena_top = 0;
  };
  // A backward whose gradients of weights come later, with what its phases leave to them.
  struct Later {
    Arena arena;
    Frame frame;
    Buffer doutput;
    int64_t gathered_from = 0;  // of the executor's arena, while the first part is computed
  };
  struct Held {
    Buffer input, saved;
    Buffer input_away, saved_away;  // on another tier
    Buffer leaving, leaving_back;   // of a unit of another stage, while they are sent
    std::unique_ptr<Later> later;
  };

  std::span<const UnitBatch> micros;
  std::span<KvCache> caches = {};  // by block; generation only
  // Instead of the forward of the unit with the loss, whose call it is given: what else is made of
  // its input.
  std::function<void(UnitCall&)> in_place_of_loss = {};
  bool training = false;
  StepRates rates = 0;
  double loss_scale = 1;
  double clip_limit = 0;  // of the norm; 0: none
  int64_t updates = 0;    // steps before this one that changed the weights
  bool sums = true;       // gradients; false: of local steps, which are this rank's own
  bool stale = false;     // computes with old weights, until `clip`
  // After each unit's forward or backward, if set: for looking at what it computed.
  std::function<void(const Action&, const UnitCall&)> watch = {};

  std::vector<Held> held = {};         // [unit][micro]
  std::vector<Buffer> gradients = {};  // [micro]: of the residual connection
  Frame frame = {};
  Later* later = nullptr;  // whose gradient by input is being computed, in the place of `frame`
  std::map<int, Ticket> tickets = {};

  // Of the unit whose phases are under way.
  const UnitCall& call() const { return later ? *later->frame.call : *frame.call; }
};

class Executor {
 public:
  Executor(Device& device, const Tiers& tiers, Ledger& ledger, const Model& model, RankState& state,
           const std::vector<UnitTraits>& traits, const EngineOptions& options, Channels& channels,
           Control& control);
  ~Executor();

  // Memory for packets of what these programs send in a wire format. Before the first walk.
  void open_packing(std::span<const Program* const> programs);
  // Of ranks that step by themselves: values become their sum over ranks, as packets have it; what
  // these lack is kept.
  void sum_in_packets(int unit, const std::string& what, Tensor values);
  // What the lanes gather and reduce have packed; null: nothing.
  bool packs(Lane lane) const;
  std::optional<PackWork> packed(Lane lane) const;
  // Old weights change places with the newest, which are this rank's own state meanwhile.
  void swap_stale();
  // Of adaptive compression: running means of the squares of each unit's gradient, which all ranks
  // have alike; none before the first step. After a step they take in what its sums were.
  const std::vector<double>& unit_squares() const { return unit_squares_; }
  void set_unit_squares(std::vector<double> squares) { unit_squares_ = std::move(squares); }
  void take_unit_squares(double loss_scale);

  // The scratch arena, whose size a dry run has measured, and that of each unit whose backward is
  // computed in two parts; without them, arenas that measure.
  void set_arena(Arena arena, std::vector<int64_t> later_bytes) {
    arena_ = std::move(arena);
    later_bytes_ = std::move(later_bytes);
    measures_ = false;
  }
  int64_t scratch_bytes() const { return arena_.high_water_bytes(); }
  const std::vector<int64_t>& later_bytes() const { return later_bytes_; }

  // Walks the program. `step` is the number of steps done before it. A rank that fails tells the
  // others before it throws.
  void run(const Program& program, Walk& walk, int64_t step);

  // Completes what the last step has left for the next one: the host's steps, and bringing what
  // they have changed to the device. For those who look at a rank's state.
  void settle();

  // A unit's call outside of a program (the head's logits in generation).
  void call_unit(int unit, const UnitBatch& batch, const std::function<void(UnitCall&)>& body);
  // The input of a unit that a walk has left.
  Tensor input_of(const Walk& walk, int unit, int micro) const;

  // The loss of each of a micro-batch's first tokens, as the last evaluation has left them.
  void read_losses(std::span<float> losses) const;

  StepScalars& scalars() { return scalars_; }
  const StepScalars& scalars() const { return scalars_; }
  ExpertLoad& expert_load() { return load_; }
  Times& times() { return times_; }
  const Times& times() const { return times_; }

 private:
  // A unit is stepped by the ranks of its stage.
  static std::unique_ptr<StepRanks> make_step_ranks(const Channels& channels);
  void perform(const Action& action, Walk& walk);
  void abandon(Walk& walk);  // that failed
  void execute(const Action& action, Walk& walk);
  void wait_for(const Action& action, Walk& walk);
  void finish_lanes();
  void forward(const Action& action, Walk& walk);
  void backward(const Action& action, Walk& walk);
  std::unique_ptr<Walk::Later> open_later(const Action& action, Walk& walk);
  void backward_by_input(const Action& action, Walk& walk);
  void backward_by_weights(const Action& action, Walk& walk);
  void run_part(const Action& action, UnitCall& call);
  void open_frame(const Action& action, Walk& walk, Walk::Frame& frame, Arena& arena);
  void set_gradients(const Action& action, Walk& walk, Walk::Frame& frame, const Buffer& doutput);
  void run_phases(const Action& action, Walk& walk);
  bool take_rows(const Action& action, UnitCall& call) const;
  bool repeats(const Action& action, const Walk& walk) const;
  bool is_last_phase(const Action& action, const Walk& walk) const;
  void gather(const Action& action, Walk& walk);
  void reduce(const Action& action, Walk& walk);
  void reduce_packed(const Action& action, Walk& walk);
  void gather_packed(const Action& action, Walk& walk);
  void exchange(const Action& action, Walk& walk);
  void exchange_shares(const Action& action, Walk& walk, bool sums);
  // Where shares hold a run of the tokens each: all of them from such runs, in the arena; and a run
  // of the sum over shares.
  Tensor gathered(const Action& action, Walk& walk, const Buffer& run);
  void pass_residual(const Action& action, Walk& walk, Tensor whole, void* run, bool gathers);
  void scatter_result(const Action& action, Walk& walk);
  void exchange_blocks(const Action& action, Walk& walk, Channel* among);
  void shift(const Action& action, Walk& walk);
  Role role_after(const Action& action, const Walk& walk) const;
  // Of the rows that a phase computes, and that travel after it.
  Span rows_of(const Chunk& chunk, int64_t tokens) const;
  void exchange_gradients(const Action& action, Walk& walk, Channel* among,
                          bool ParamSpec::SummedOver::*over);
  void send(const Action& action, Walk& walk);
  void receive(const Action& action, Walk& walk);
  void pass_gradients(const Action& action, Walk& walk);
  std::string carried_text(const Action& action) const;
  // Of what is held between units, of a micro-batch.
  int64_t residual_bytes(const Walk& walk, int micro) const;
  // What a unit writes for it: the memory itself, or, where that is of a run of the tokens, room
  // for all of them.
  Tensor residual_of(const Walk& walk, int micro, const Buffer& held) {
    return all_tokens(walk, micro,
                      model_.share.scattered
                          ? arena_.take_bytes(residual_bytes(walk, micro) * model_.share.count).data
                          : held.data());
  }
  Tensor all_tokens(const Walk& walk, int micro, void* data) const {
    return matrix(data, walk.micros[static_cast<size_t>(micro)].tokens_count(),
                  model_.spec.hidden_size, type());
  }
  int sender_of(const Action& action) const;
  std::vector<Tensor> passed_gradients(const Action& action);
  void release_activations(const Action& action, Walk& walk) const;
  void move(const Action& action, Walk& walk);
  std::vector<Transfer> move_activations(const Action& action, Walk& walk);
  // Of ranks that step by themselves: sums in packets, outside of the program.
  struct MovedSums {
    Channel* channel = nullptr;
    int ranks = 1;
    std::unique_ptr<Wire> wire;
    Buffer scratch;
    std::unique_ptr<PackedCalls> calls;  // null: there are none

    void sum(const std::string& what, const PackedMessage& packed, int64_t elems);
  };
  void open_moved_sums();
  // In a step in which they do not.
  void sum_over_ranks(int unit);
  // What a gradient of old weights lacks, to first order.
  void compensate(int unit);
  void squares(const Action& action, const Walk& walk);
  void clamp(int unit, double limit);
  void weigh(int unit);
  void clip(const Walk& walk);
  void step(const Action& action, Walk& walk);
  UnitStep unit_step(int unit) const;
  void step_divided(int unit, const SlabPiece& piece, UnitStep& step) const;
  bool rounds(const UnitState& unit) const;
  SteppedParam stepped_param(int unit, const SlabPiece& piece) const;
  Tensor factor_of(int unit, int param) const;
  // What is kept of all of a parameter, of its rows and columns or ratios; empty: nothing.
  static Tensor common_of(const UnitState& unit, int param);
  const ParamGroup* group(int unit, int param) const {
    return groups_[static_cast<size_t>(unit)][static_cast<size_t>(param)];
  }
  bool frozen(int unit, int param) const {
    return group(unit, param) && group(unit, param)->frozen;
  }
  void host_step(const Action& action, Walk& walk);
  void bring_control();
  StepControl host_control() const;
  static constexpr int kFactorsPlace = 3;
  std::byte* host_place(int number) const;
  // `besides`: what packing takes the lane. Between hosts all members on one send
  // parts of what is gathered or summed; what goes to one rank has one link.
  enum class Travel : uint8_t { together, apart };
  void communicate(const Action& action, Walk& walk, const Channel& channel, Travel travel,
                   int64_t bytes, std::function<void(const std::string& what)> call,
                   const PackCost& besides = {});
  void compute(const Action& action, const std::function<void()>& job);

  void add_params(int unit, std::vector<Tensor>& params) const;
  void add_grads(int unit, std::vector<Tensor>& grads);
  UnitCall call_for(const UnitBatch& batch, std::span<const Tensor> params, Arena& arena);

  DType type() const { return options_.precision.compute; }  // of activations
  const Unit& unit(int index) const { return *model_.units[static_cast<size_t>(index)]; }
  const UnitTraits& traits(int index) const { return traits_[static_cast<size_t>(index)]; }
  Walk::Held& held(Walk& walk, int unit, int micro) const {
    return walk.held[static_cast<size_t>(unit) * walk.micros.size() + static_cast<size_t>(micro)];
  }
  // Whether someone looks at the names of jobs.
  bool named() const { return times_.tracing() || device_.shows_names(); }
  JobLabel label_of(const Action& action, int64_t bytes = 0) const;
  LaneQueue* lane(Lane lane) const { return lanes_[static_cast<size_t>(lane)]; }

  // What travels packed on one lane.
  struct Packing {
    std::unique_ptr<PackedCalls> calls;
    // Of units whose experts are divided, among those that have the same ones; one call at a time.
    std::unique_ptr<PackedCalls> same_experts = {};
    Buffer copies = {};  // scratch of CopiesCall
    WireFormat format = {};
    std::unique_ptr<Wire> wire = {};  // of that format; null: this step sends numbers as they are
    Buffer scratch = {};

    void set(const WireFormat& now);
    bool on() const { return calls || same_experts; }
    PackedCalls& calls_of(const UnitTraits& unit) const {
      return unit.ranks > 0 ? *same_experts : *calls;
    }
  };
  Packing& packing(Lane lane) { return lane == Lane::gather ? gathers_ : reduces_; }
  void open_packing(Lane lane, std::span<const Program* const> programs);
  // Who exchanges the packets of a unit.
  struct PackedLine {
    Channel& channel;
    Channel* inside;
    PackedRanks ranks() const { return {channel.ranks(), inside ? inside->ranks() : 1}; }
  };
  PackedLine packed_line(Lane lane, const UnitTraits& unit) const;
  CopiesCall copies_call(const Action& action, const std::vector<PackedMessage>& messages);
  // The formats of this step.
  void set_formats(double loss_scale);
  void take_momentum_scales();
  PackedMessage packed_message(int unit, const Message& message) const;
  // Of a gradient, or of parameters, wherever they are.
  Message size_of(const Action& action, int unit) const;

  Device& device_;
  const Tiers& tiers_;
  Ledger& ledger_;
  const Model& model_;
  RankState& state_;
  const std::vector<UnitTraits>& traits_;
  const EngineOptions& options_;
  Channels& channels_;
  Control& control_;
  StepScalars scalars_;
  ExpertLoad load_;
  HostSide host_;
  Buffer host_control_;  // the host's copy of the step's control, and of factors that differ
  std::vector<std::vector<const ParamGroup*>> groups_;  // by unit and parameter; null: none
  std::array<Buffer, kLanes> through_;                  // of the lanes fetch and spill
  std::vector<std::optional<Ticket>> pending_;  // by unit: a step of the host that nobody has read
  std::unique_ptr<StepRanks> step_ranks_;
  Packing gathers_, reduces_;
  std::vector<std::vector<SlabGap>> gaps_;  // by unit: of gradients
  // By unit: of parameters, and of gradients.
  std::vector<std::vector<SlabRun>> copies_, copied_gradients_;
  // By unit and shard: where rows begin; empty where the format does not ask.
  std::vector<std::vector<std::vector<int64_t>>> rows_;
  std::vector<double> unit_squares_;
  MovedSums moved_sums_;
  std::vector<std::vector<SlabScale>> momentum_scales_;  // by unit; empty: none
  std::vector<std::unique_ptr<Wire>> unit_wires_;  // by unit; empty: all have that of reduces_
  Arena arena_;
  bool measures_ = true;
  std::vector<int64_t> later_bytes_;  // by unit
  Buffer rope_, losses_;
  int64_t rope_positions_ = 0;
  int64_t step_ = 0;     // steps done before the walk under way
  int64_t updates_ = 0;  // and how many of them changed the weights
  int action_ = -1;      // of the program, that is performed; -1: none
  Times times_;
  std::array<LaneQueue*, kLanes> lanes_{};  // null: at its place, on the compute lane
  std::array<std::unique_ptr<LaneQueue>, kLanes> copy_lanes_;  // last: they use the rest
};

}  // namespace onefold
