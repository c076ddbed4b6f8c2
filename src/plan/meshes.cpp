#include "plan/meshes.h"

#include "engine/lines.h"

namespace onefold {
namespace {

std::vector<int> sizes(bool free, int given, int ranks) {
  if (!free) return {given};
  std::vector<int> list;
  for (int size = 1; size <= ranks; ++size)
    if (ranks % size == 0) list.push_back(size);
  return list;
}

}  // namespace

std::vector<MeshAxes> possible_meshes(int ranks, const MeshAxes& given, const FreeAxes& free,
                                      int host_ranks, int64_t data) {
  std::vector<MeshAxes> meshes;
  for (const int expert : sizes(free.expert, given.expert, ranks))
    for (const int context : sizes(free.context, given.context, ranks / expert))
      for (const int pipeline : sizes(free.pipeline, given.pipeline, ranks / expert / context))
        for (const int tensor :
             sizes(free.tensor, given.tensor, ranks / expert / context / pipeline)) {
          const int64_t others = int64_t{tensor} * pipeline * context * expert;
          if (ranks % others != 0 || (data > 0 && others * data != ranks)) continue;
          if (free.tensor && host_ranks > 0 && host_ranks % tensor != 0) continue;
          meshes.push_back(
              {.tensor = tensor, .context = context, .expert = expert, .pipeline = pipeline});
        }
  return meshes;
}

bool is_worth_a_plan(const ModelSpec& spec, int64_t sequence, const FreeAxes& free,
                     const MeshAxes& mesh) {
  constexpr int64_t kLeastPart = 256;
  if (free.context && mesh.context > 1 && sequence / mesh.context < kLeastPart) return false;
  return mesh.pipeline <= 2 * spec.num_layers + 2 &&
         (mesh.expert == 1 || mesh.expert <= spec.experts.count);
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
       possible_meshes(context.ranks, given, free, context.hardware.host_ranks)) {
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
