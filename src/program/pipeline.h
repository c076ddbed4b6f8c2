// Pipelines: the units of a model are divided into stages, which ranks compute one after the other,
// and micro-batches pass through them. A schedule only chooses in which order a rank takes its
// turns: the forward or backward of one stage and one micro-batch, or what it has left of the
// latter. Every schedule adds up gradients in the order of micro-batches, so all of them have the
// bits of one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "program/unit_traits.h"

namespace onefold {

struct Action;
struct StepShape;

enum class PipelineSchedule : uint8_t {
  gpipe,        // all forwards, then all backwards: the activations of all micro-batches are held
  one_f_one_b,  // a backward as soon as there is one: those of at most as many as there are ranks
  zero_bubble  // ZB-H1: the same, with gradients of weights moved to where a rank would stand still
};
inline constexpr PipelineSchedule kPipelineSchedules[] = {
    PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::zero_bubble};
const char* schedule_name(PipelineSchedule schedule);

// A pipeline as one of its ranks sees it.
struct Pipeline {
  int ranks = 1;       // along the axis
  int place = 0;       // of this one
  int interleave = 1;  // stages of each rank: they go round, so that a rank has every ranks-th
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::vector<int> first = {};  // unit of each stage, and the number of units

  int stages() const { return ranks * interleave; }
  // This rank's stage of a number from 0 to interleave - 1.
  int stage(int number) const { return number * ranks + place; }
  int begin(int stage) const { return first[static_cast<size_t>(stage)]; }
  int end(int stage) const { return first[static_cast<size_t>(stage) + 1]; }
  bool is_last(int stage) const { return stage + 1 == stages(); }
};

struct Turn {
  bool backward = false;
  int number = 0;  // of the rank's stages
  int micro = 0;
  bool weights = false;  // backward: the gradients of weights that an earlier turn has left

  bool operator==(const Turn&) const = default;
};

// In what order a rank takes its turns. Where stages are interleaved, micro-batches go through them
// in groups of as many as there are ranks, of which there must be whole ones.
std::vector<Turn> turns_of(const Pipeline& pipeline, int micros);

// Says of each unit of a whole model where it is computed and what this rank has of it.
void place_units(std::vector<UnitTraits>& units, const Pipeline& pipeline);

// A step's forwards and backwards of this rank, what it receives before and sends after them, and
// the squares of each complete gradient. `lowest`: the lowest unit that is trained.
void add_pipeline_step(const StepShape& shape, int lowest, std::vector<Action>& actions);
void add_pipeline_evaluation(const Pipeline& pipeline, std::vector<Action>& actions);

}  // namespace onefold
