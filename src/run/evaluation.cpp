#include "run/evaluation.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "engine/scorer.h"
#include "run/session.h"

namespace onefold {
namespace {

// What ranks compute in rounds, one batch each; `width` numbers of each batch.
class SharedBatches {
 public:
  SharedBatches(Engine& engine, int64_t batches, size_t width)
      : engine_(engine),
        rounds_((batches + engine.data_ranks() - 1) / engine.data_ranks()),
        width_(width),
        mine_(static_cast<size_t>(rounds_) * width) {}

  int64_t rounds() const { return rounds_; }
  int64_t batch_of(int64_t round) const {
    return round * engine_.data_ranks() + engine_.data_rank();
  }
  std::span<double> numbers(int64_t round) {
    return std::span(mine_).subspan(static_cast<size_t>(round) * width_, width_);
  }

  // All ranks together: the numbers of all batches, in their order.
  std::vector<double> collect() {
    const std::vector<double> all = engine_.control().exchange("evaluate", mine_);
    std::vector<double> ordered;
    ordered.reserve(all.size());
    for (int64_t round = 0; round < rounds_; ++round)
      // Ranks of one tensor group have computed the same, those of a context group parts of it,
      // which all have, and so do all stages of a pipeline.
      for (size_t rank = 0; rank < static_cast<size_t>(engine_.mesh().stage_ranks());
           rank += static_cast<size_t>(engine_.mesh().size(Axis::tensor) *
                                       engine_.mesh().size(Axis::context))) {
        const auto from = all.begin() + static_cast<ptrdiff_t>(rank * mine_.size() +
                                                               static_cast<size_t>(round) * width_);
        ordered.insert(ordered.end(), from, from + static_cast<ptrdiff_t>(width_));
      }
    return ordered;
  }

 private:
  Engine& engine_;
  const int64_t rounds_;
  const size_t width_;
  std::vector<double> mine_;
};

constexpr size_t kSums = 3;  // of each sequence: loss, tokens, bytes

void sum_rows(const Batch& batch, std::span<const float> losses,
              std::span<const int32_t> token_bytes, std::span<double> sums) {
  for (size_t at = 0; at < losses.size(); ++at) {
    const int32_t target = batch.targets[at];
    if (target < 0) continue;
    double* sum = sums.data() + at / static_cast<size_t>(batch.sequence) * kSums;
    sum[0] += losses[at];
    sum[1] += 1;
    if (!token_bytes.empty()) sum[2] += token_bytes[static_cast<size_t>(target)];
  }
}

// Longest first: what does not fit is known at once, and the time left is not underestimated.
std::vector<size_t> by_length(std::span<const ScoredText> texts) {
  std::vector<size_t> order(texts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return texts[a].tokens.size() > texts[b].tokens.size();
  });
  return order;
}

Batch batch_of(std::span<const ScoredText> texts, std::span<const size_t> rows) {
  // Without a row the rank has no text left, and computes as little as possible.
  const size_t length = rows.empty() ? 1 : texts[rows.front()].tokens.size() - 1;
  Batch batch(static_cast<int64_t>(std::max<size_t>(1, rows.size())), static_cast<int64_t>(length));
  for (size_t row = 0; row < rows.size(); ++row) {
    const ScoredText& text = texts[rows[row]];
    const auto at = static_cast<ptrdiff_t>(row * length);
    std::copy(text.tokens.begin(), text.tokens.end() - 1, batch.tokens.begin() + at);
    std::copy(text.tokens.begin() + static_cast<ptrdiff_t>(text.given), text.tokens.end(),
              batch.targets.begin() + at + static_cast<ptrdiff_t>(text.given) - 1);
  }
  return batch;
}

}  // namespace

LossSum sum_losses(Engine& engine, const ValidationLoader& loader,
                   std::span<const int32_t> token_bytes, const EvaluationProgress& progress) {
  SharedBatches shared(engine, loader.count(), kSums * static_cast<size_t>(loader.batch()));
  for (int64_t round = 0; round < shared.rounds(); ++round) {
    // A rank without a batch left computes padding: at stage 3 the others need its shards.
    const int64_t index = shared.batch_of(round);
    Batch batch = index < loader.count() ? loader.get(index) : loader.padding();
    const std::vector<float> losses = engine.token_losses(view_of(batch));
    sum_rows(batch, losses, token_bytes, shared.numbers(round));
    if (progress)
      progress(std::min(loader.rows(), (round + 1) * engine.data_ranks() * loader.batch()),
               loader.rows());
  }
  LossSum sum;
  const std::vector<double> all = shared.collect();
  for (size_t at = 0; at < all.size(); at += kSums) {
    sum.loss += all[at];
    sum.tokens += static_cast<int64_t>(all[at + 1]);
    sum.bytes += static_cast<int64_t>(all[at + 2]);
  }
  return sum;
}

std::vector<TextScore> score_texts(Engine& engine, std::span<const ScoredText> texts,
                                   const EvaluationProgress& progress) {
  for (const ScoredText& text : texts)
    require(text.given >= 1 && text.given < text.tokens.size(), "{} of {} tokens are given",
            text.given, text.tokens.size());
  const auto width = static_cast<size_t>(engine.options().micro_batch);
  const std::vector<size_t> order = by_length(texts);
  const auto batches = static_cast<int64_t>((order.size() + width - 1) / width);
  SharedBatches shared(engine, batches, 2 * width);
  for (int64_t round = 0; round < shared.rounds(); ++round) {
    const size_t first =
        std::min(order.size(), static_cast<size_t>(shared.batch_of(round)) * width);
    const auto rows = std::span(order).subspan(first, std::min(width, order.size() - first));
    Batch batch = batch_of(texts, rows);
    const std::vector<TokenScore> scores = score_tokens(engine, view_of(batch));
    const std::span<double> numbers = shared.numbers(round);
    for (size_t row = 0; row < rows.size(); ++row) {
      numbers[2 * row + 1] = 1;
      for (size_t at = row * static_cast<size_t>(batch.sequence);
           at < (row + 1) * static_cast<size_t>(batch.sequence); ++at) {
        if (batch.targets[at] < 0) continue;
        numbers[2 * row] -= scores[at].loss;
        if (!scores[at].likeliest) numbers[2 * row + 1] = 0;
      }
    }
    const auto done = static_cast<size_t>((round + 1) * engine.data_ranks()) * width;
    if (progress)
      progress(static_cast<int64_t>(std::min(order.size(), done)),
               static_cast<int64_t>(order.size()));
  }
  const std::vector<double> all = shared.collect();
  std::vector<TextScore> result(texts.size());
  for (size_t place = 0; place < order.size(); ++place)
    result[order[place]] = {all[2 * place], all[2 * place + 1] > 0};
  return result;
}

}  // namespace onefold
