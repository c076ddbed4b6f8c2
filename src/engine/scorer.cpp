#include "engine/scorer.h"

#include <algorithm>
#include <cmath>

#include "tensor/convert.h"

namespace onefold {
namespace {

// Rows whose logits exist at a time.
constexpr int64_t kRows = 64;

struct RowRange {
  int64_t first, count;
};

// Stretches of neighbours that have a target.
std::vector<RowRange> rows_with_targets(std::span<const int32_t> targets) {
  std::vector<RowRange> ranges;
  for (size_t at = 0; at < targets.size(); ++at) {
    if (targets[at] < 0) continue;
    const auto row = static_cast<int64_t>(at);
    if (!ranges.empty() && ranges.back().first + ranges.back().count == row &&
        ranges.back().count < kRows)
      ++ranges.back().count;
    else
      ranges.push_back({row, 1});
  }
  return ranges;
}

bool is_likeliest(std::span<const float> logits, int32_t target) {
  // Of equal ones the first, as greedy decoding chooses.
  return std::max_element(logits.begin(), logits.end()) - logits.begin() == target;
}

}  // namespace

std::vector<TokenScore> score_tokens(Engine& engine, const BatchView& batch) {
  require(engine.model().share.whole() && engine.model().share.parts == 1 &&
              engine.pipeline().ranks == 1,
          "logits of a share of the vocabulary or of sequences, or of another stage, score no "
          "tokens");
  const int64_t vocabulary = engine.model().spec.vocab_size;
  const DType type = engine.options().precision.compute;
  const std::vector<RowRange> ranges = rows_with_targets(batch.targets);
  const Buffer memory =
      engine.ledger().allocate(Kind::activations, kRows * vocabulary * dtype_bytes(type), "logits");
  std::vector<float> logits(static_cast<size_t>(kRows * vocabulary));
  std::vector<TokenScore> scores(batch.targets.size());
  const std::vector<UnitBatch> batches = engine.batches().upload({&batch, 1});
  Walk walk{.micros = batches};
  walk.in_place_of_loss = [&](UnitCall& call) {
    for (const RowRange& rows : ranges) {
      const Tensor made = memory.as(rows.count, vocabulary, type);
      head_logits(call, *engine.model().units.back(), call.input.row_range(rows.first, rows.count),
                  made);
      call.kernels.cross_entropy(made, call.batch.targets.col_range(rows.first, rows.count), {},
                                 call.losses.col_range(rows.first, rows.count));
      engine.device().read(made.flat(), [&](int64_t first, std::span<const std::byte> bytes) {
        const size_t count = bytes.size() / static_cast<size_t>(dtype_bytes(type));
        widen(type, bytes, std::span(logits).subspan(static_cast<size_t>(first), count));
      });
      for (int64_t row = 0; row < rows.count; ++row) {
        const auto at = static_cast<size_t>(rows.first + row);
        scores[at].likeliest =
            is_likeliest(std::span(logits).subspan(static_cast<size_t>(row * vocabulary),
                                                   static_cast<size_t>(vocabulary)),
                         batch.targets[at]);
      }
    }
  };
  engine.executor().run(engine.evaluation(), walk, engine.steps_done());
  std::vector<float> losses(batch.targets.size());
  engine.executor().read_losses(losses);
  for (size_t at = 0; at < losses.size(); ++at) {
    if (batch.targets[at] < 0) continue;
    if (!std::isfinite(losses[at]))
      user_error(
          "what the model computes is not finite: its weights hold NaN or infinities, or numbers "
          "that overflow");
    scores[at].loss = losses[at];
  }
  return scores;
}

}  // namespace onefold
