// Apart from the rest, because configurations are read where there are no ranks.
#include "base/block8.h"
#include "base/text.h"
#include "engine/lines.h"
#include "model/unit.h"

namespace onefold {

void refuse_what_knows_whole_tensors(const EngineOptions& options,
                                     std::vector<std::string>& reasons) {
  if (!options.optimizer.elementwise())
    reasons.emplace_back(
        "its optimizer steps whole tensors, which are divided; AdamW, Adam, SGD and Lion step each "
        "element by itself");
  if (options.clip_rule.counts_tensors())
    reasons.emplace_back(
        "gradients of single tensors are not clipped where these are divided; clip by the norm of "
        "all or of a unit");
}

namespace {

// What several shares hold must be coded alike by all of them: in blocks that hold nothing else.
void refuse_blocks_of_copies(const ModelSpec& spec, const EngineOptions& options,
                             std::vector<std::string>& reasons) {
  if (options.precision.moments != DType::u8 || !reasons.empty()) return;
  const Share first{0, options.tensor};
  const auto attention = spec.parallel == Parallel::no ? make_attention(spec, 0, first)
                                                       : make_parallel(spec, 0, first);
  for (const ParamSpec& param : attention->params())
    if (param.summed_over.replicas && is_saved(spec, param) && param.summed_from % kBlock8 != 0) {
      reasons.push_back(fmt::format(
          "key and value heads that several ranks hold share blocks of {} moments of 8 bits "
          "(data_types) with queries that one of them holds",
          kBlock8));
      return;
    }
}

// Shares make parts of sums, which are added where units end: what comes after a sum inside of a
// unit must be linear.
void refuse_what_is_not_linear(const ModelSpec& spec, const EngineOptions& options,
                               std::vector<std::string>& reasons) {
  if (options.tokens() % options.tensor != 0)
    reasons.push_back(
        fmt::format("the {} tokens of a micro-batch (of each part of its sequences) cannot be "
                    "divided by {} (mesh.sequence_parallel)",
                    options.tokens(), options.tensor));
  if (spec.norm_after())
    reasons.emplace_back(
        "norms behind branches need their sums (norm_place), which mesh.sequence_parallel leaves "
        "to the end of a unit");
  if (spec.embedding_norm)
    reasons.emplace_back(
        "a norm behind the embedding (embedding_norm) needs its sum, which mesh.sequence_parallel "
        "leaves to the end of the unit");
}

// Sums travel in runs of rows where a product inside of a unit makes them, row by row.
void refuse_what_is_not_by_rows(const ModelSpec& spec, const EngineOptions& options,
                                std::vector<std::string>& reasons) {
  if (options.sequence_parallel)
    reasons.emplace_back(
        "mesh.sequence_parallel sums where units end, and mesh.overlap_chunks inside of them; "
        "leave "
        "one of the two out");
  if (spec.lora.enabled())
    reasons.emplace_back(
        "products of adapters (lora) are not cut into rows; leave mesh.overlap_chunks out");
}

}  // namespace

std::string obstacle_to_tensor(const ModelSpec& spec, const EngineOptions& options) {
  if (options.tensor == 1) return "";
  std::vector<std::string> reasons = obstacles_to_shares(spec, options.tensor);
  refuse_what_knows_whole_tensors(options, reasons);
  refuse_blocks_of_copies(spec, options, reasons);
  if (options.sequence_parallel) refuse_what_is_not_linear(spec, options, reasons);
  if (options.overlap_chunks > 1) refuse_what_is_not_by_rows(spec, options, reasons);
  if (reasons.empty()) return "";
  return fmt::format("mesh.tensor is {}, and the model cannot be divided so: {}", options.tensor,
                     join(reasons, "; "));
}

}  // namespace onefold
