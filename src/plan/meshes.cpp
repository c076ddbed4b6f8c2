#include "plan/meshes.h"

#include <algorithm>
#include <limits>

#include "engine/lines.h"

namespace onefold {
namespace {

std::vector<int> divisors(int ranks) {
  std::vector<int> list, large;
  for (int size = 1; size <= ranks / size; ++size) {
    if (ranks % size != 0) continue;
    list.push_back(size);
    if (size != ranks / size) large.push_back(ranks / size);
  }
  list.insert(list.end(), large.rbegin(), large.rend());
  return list;
}

}  // namespace

std::vector<MeshAxes> possible_meshes(int ranks, const MeshAxes& given, const FreeAxes& free,
                                      int host_ranks, int64_t data, const MeshAxes& most) {
  const std::vector<int> all = divisors(ranks);
  // Of an axis, where so many ranks are left.
  const auto sizes = [&](bool is_free, int size, int largest, int left) {
    std::vector<int> list;
    if (!is_free) return std::vector{size};
    for (const int one : all) {
      if (one > largest) break;
      if (left % one == 0) list.push_back(one);
    }
    return list;
  };
  std::vector<MeshAxes> meshes;
  for (const int expert : sizes(free.expert, given.expert, most.expert, ranks)) {
    const int beside_expert = ranks / expert;
    for (const int context : sizes(free.context, given.context, most.context, beside_expert)) {
      const int beside_context = beside_expert / context;
      for (const int pipeline :
           sizes(free.pipeline, given.pipeline, most.pipeline, beside_context)) {
        for (const int tensor :
             sizes(free.tensor, given.tensor, most.tensor, beside_context / pipeline)) {
          const int64_t others = int64_t{tensor} * pipeline * context * expert;
          if (ranks % others != 0 || (data > 0 && others * data != ranks)) continue;
          if (free.tensor && host_ranks > 0 && host_ranks % tensor != 0) continue;
          meshes.push_back(
              {.tensor = tensor, .context = context, .expert = expert, .pipeline = pipeline});
        }
      }
    }
  }
  return meshes;
}

MeshAxes largest_worth_a_plan(const ModelSpec& spec, int64_t sequence) {
  constexpr int64_t kLeastPart = 256;
  const auto axis = [](int64_t size) {
    return static_cast<int>(std::clamp<int64_t>(size, 1, std::numeric_limits<int>::max()));
  };
  return {.tensor = axis(spec.hidden_size),
          .context = axis(sequence / kLeastPart),
          .expert = axis(spec.experts.count),
          .pipeline = axis(2 * spec.num_layers + 2)};
}

bool is_worth_a_plan(const ModelSpec& spec, int64_t sequence, const FreeAxes& free,
                     const MeshAxes& mesh) {
  const MeshAxes most = largest_worth_a_plan(spec, sequence);
  return (!free.context || mesh.context <= most.context) && mesh.pipeline <= most.pipeline &&
         mesh.expert <= most.expert;
}

std::vector<EngineOptions> options_of_meshes(const ModelSpec& spec, const EngineOptions& options,
                                             const FitContext& context, const FreeAxes& free) {
  const MeshAxes given{options.tensor, options.context, options.expert, options.pipeline.ranks};
  const int64_t batch = options.micro_batch * options.micros * data_ranks(options, context.ranks);
  // Where heads could have been exchanged, somebody has asked for it.
  const bool is_ring =
      options.context_method == ContextMethod::ring && divides_heads(spec, options);
  std::vector<EngineOptions> list;
  for (const MeshAxes& axes :
       possible_meshes(context.ranks, given, free, context.hardware.host_ranks, 0,
                       largest_worth_a_plan(spec, options.sequence))) {
    if (!is_worth_a_plan(spec, options.sequence, free, axes)) continue;
    EngineOptions one = options;
    one.tensor = axes.tensor;
    one.context = axes.context;
    one.expert = axes.expert;
    one.pipeline.ranks = axes.pipeline;
    if (axes.tensor == 1) {
      one.sequence_parallel = false;
      one.overlap_chunks = 1;
    }
    const int64_t sequences = batch / data_ranks(one, context.ranks);
    if (sequences * data_ranks(one, context.ranks) != batch) continue;
    if (sequences % options.micro_batch == 0) {
      one.micros = static_cast<int>(sequences / options.micro_batch);
    } else {
      one.micro_batch = 1;
      one.micros = static_cast<int>(sequences);
    }
    if (free.context && !is_ring)
      one.context_method = divides_heads(spec, one) ? ContextMethod::ulysses : ContextMethod::ring;
    // A pipeline's schedule is its order.
    if (axes.pipeline > 1 && !context.order_is_given) one.order = Order::micro_first;
    if (obstacle_to_mesh(spec, one).empty()) list.push_back(std::move(one));
  }
  return list;
}

}  // namespace onefold
