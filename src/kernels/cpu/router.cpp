// Routing of tokens to experts, forward and backward. A row of logits has as many elements as there
// are experts, few beside a product: plain loops, each row on its own. Rows are sorted by counting,
// in the order of choices and on one thread: two passes over as many integers as there are choices.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/cpu/chunk.h"
#include "kernels/cpu/cpu_kernels.h"

namespace onefold::cpu {
namespace {

// Keeps a share of scores that are all 0 from being no number.
constexpr float kLeastSum = 1e-20f;

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// A row of logits, and what scores follow from.
struct Row {
  const float* logits;
  int64_t experts;
  RouterScores kind;
  float largest = 0, sum = 1;  // softmax: e^(logit - largest) / sum

  Row(const Route& r, int64_t token)
      : logits(r.logits.f32() + token * r.logits.stride), experts(r.logits.cols), kind(r.scores) {
    if (kind == RouterScores::softmax) add_up();
  }
  float score(int64_t expert) const {
    return kind == RouterScores::sigmoid ? sigmoid(logits[expert])
                                         : std::exp(logits[expert] - largest) / sum;
  }
  // Infinite where a logit is, and no number where one is none.
  float log_sum_exp() const { return largest + std::log(sum); }
  void add_up() {
    largest = logits[0];
    for (int64_t e = 1; e < experts; ++e)
      if (logits[e] > largest || std::isnan(logits[e])) largest = logits[e];
    sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += std::exp(logits[e] - largest);
  }
};

// Of the experts behind `last` in the order of logits (equal ones by number), the first; those
// whose logits are no numbers come last.
int64_t next_choice(const Row& row, int64_t last) {
  const auto rank = [&](int64_t e) {
    return std::isnan(row.logits[e]) ? -std::numeric_limits<float>::infinity() : row.logits[e];
  };
  const auto before = [&](int64_t a, int64_t b) {
    return rank(a) > rank(b) || (rank(a) == rank(b) && a < b);
  };
  int64_t best = -1;
  for (int64_t e = 0; e < row.experts; ++e)
    if ((last < 0 || before(last, e)) && (best < 0 || before(e, best))) best = e;
  return best;
}

void choose(const Route& r, int64_t token) {
  const Row row(r, token);
  const int64_t k = r.routing.choices();
  int32_t* experts = r.routing.experts.i32() + token * r.routing.experts.stride;
  float* weights = r.routing.weights.f32() + token * r.routing.weights.stride;
  float sum = 0;
  for (int64_t j = 0; j < k; ++j) {
    const int64_t expert = next_choice(row, j == 0 ? -1 : experts[j - 1]);
    experts[j] = static_cast<int32_t>(expert);
    sum += weights[j] = row.score(expert);
  }
  if (r.normalised)
    for (int64_t j = 0; j < k; ++j) weights[j] /= sum + kLeastSum;
}

// Choices are of the experts that `to` says, or of none (-1).
void sort_by_expert(const Routing& to, int32_t capacity) {
  const int64_t choices = to.experts.elems(), count = to.count();
  const int32_t* experts = to.experts.i32();
  int32_t *counts = to.counts.i32(), *offsets = to.offsets.i32(), *places = to.places.i32(),
          *sources = to.sources.i32();
  std::fill_n(counts, count, 0);
  // First the number of each choice among those of its expert.
  for (int64_t c = 0; c < choices; ++c) {
    const int32_t number = experts[c] < 0 ? -1 : counts[experts[c]]++;
    places[c] = capacity > 0 && number >= capacity ? -1 : number;
  }
  offsets[0] = 0;
  for (int64_t e = 0; e < count; ++e)
    offsets[e + 1] = offsets[e] + (capacity > 0 ? std::min(counts[e], capacity) : counts[e]);
  for (int64_t c = 0; c < choices; ++c) {
    if (places[c] < 0) continue;
    places[c] += offsets[experts[c]];
    sources[places[c]] = static_cast<int32_t>(c);
  }
  std::fill(sources + offsets[count], sources + choices, -1);
}

void check(const Route& r) {
  const Routing& to = r.routing;
  const int64_t tokens = r.logits.rows, experts = r.logits.cols, k = to.choices();
  require(k >= 1 && k <= experts, "route: {} choices of {} experts", k, experts);
  for (const Tensor& each : {to.experts, to.weights, to.places})
    require(each.rows == tokens && each.cols == k && each.contiguous(), "route: {}x{} for {}x{}",
            each.rows, each.cols, tokens, k);
  require(to.sources.elems() == tokens * k && to.counts.elems() == experts &&
              to.offsets.elems() == experts + 1,
          "route: {} sources, {} counts and {} offsets for {}x{} choices of {} experts",
          to.sources.elems(), to.counts.elems(), to.offsets.elems(), tokens, k, experts);
  require(tokens * k <= INT32_MAX && r.capacity >= 0, "route: {} choices", tokens * k);
}

// What a chunk of rows adds to the losses, and room for a row's shares.
struct Partial {
  double* shares;  // sums over tokens, by expert; then of squares of the log-sum-exp
  float* row;
};

Partial partial_of(const RouteBackward& args, int64_t chunk) {
  const int64_t experts = args.forward.logits.cols;
  const int64_t each = (experts + 1) * 8 + (experts + experts % 2) * 4;
  auto* const at = static_cast<std::byte*>(args.scratch.data) + chunk * each;
  return {reinterpret_cast<double*>(at), reinterpret_cast<float*>(at + (experts + 1) * 8)};
}

// Gradients by scores, of the chosen experts: of weights that are scores, or their shares.
void add_weight_gradients(const RouteBackward& args, int64_t token, const Row& row,
                          float* dscores) {
  const Routing& to = args.forward.routing;
  const int64_t k = to.choices();
  const int32_t *experts = to.experts.i32() + token * k, *places = to.places.i32() + token * k;
  const float *dweights = args.dweights.f32() + token * args.dweights.stride,
              *weights = to.weights.f32() + token * k;
  float sum = 0, along = 0;
  for (int64_t j = 0; j < k; ++j) {
    sum += row.score(experts[j]);
    if (places[j] >= 0) along += dweights[j] * weights[j];
  }
  for (int64_t j = 0; j < k; ++j) {
    const float own = places[j] >= 0 ? dweights[j] : 0.0f;
    dscores[experts[j]] += args.forward.normalised ? (own - along) / (sum + kLeastSum) : own;
  }
}

// Choices of an expert, over the parts of the sequences.
int64_t choices_of(const RouteBackward& args, int64_t expert) {
  if (args.of_parts.empty()) return args.forward.routing.counts.i32()[expert];
  int64_t sum = 0;
  for (int64_t part = 0; part < args.of_parts.rows; ++part)
    sum += args.of_parts.i32()[part * args.of_parts.stride + expert];
  return sum;
}
int64_t parts_of(const RouteBackward& args) {
  return args.of_parts.empty() ? 1 : args.of_parts.rows;
}

// The loss of balance is linear in the shares of scores.
float balance_gradient(const RouteBackward& args, int64_t expert) {
  const auto tokens = static_cast<float>(args.forward.logits.rows);
  return args.balance * static_cast<float>(args.forward.routing.count()) *
         static_cast<float>(choices_of(args, expert)) /
         (tokens * tokens * static_cast<float>(parts_of(args)));
}

template <class T>
void logit_gradients(const RouteBackward& args, int64_t token, const Partial& partial) {
  const Row row(args.forward, token);
  const int64_t experts = row.experts;
  const auto tokens = static_cast<float>(args.forward.logits.rows);
  const bool softmax = row.kind == RouterScores::softmax;
  const bool has_losses = args.balance != 0 || args.z != 0;
  const float scale = has_losses ? *args.scale.f32() : 0.0f;
  Row of_softmax = row;
  if (!softmax && (args.z != 0 || !args.load.empty())) of_softmax.add_up();

  // Shares of scores: their sum is 1 for a softmax.
  float total = 1;
  if (!softmax) {
    total = kLeastSum;
    for (int64_t e = 0; e < experts; ++e) total += row.score(e);
  }
  float* dscores = partial.row;
  float along = 0;  // sigmoid: the gradient of balance by `total`
  for (int64_t e = 0; e < experts; ++e) {
    const float share = row.score(e) / total;
    partial.shares[e] += static_cast<double>(share);
    dscores[e] = args.balance == 0 ? 0.0f : scale * balance_gradient(args, e) / total;
    if (!softmax) along += dscores[e] * share;
  }
  if (!softmax)
    for (int64_t e = 0; e < experts; ++e) dscores[e] -= along;
  add_weight_gradients(args, token, row, dscores);

  const float lse = args.z != 0 ? of_softmax.log_sum_exp() : 0.0f;
  partial.shares[experts] += static_cast<double>(lse) * static_cast<double>(lse);
  float mean = 0;
  if (softmax)
    for (int64_t e = 0; e < experts; ++e) mean += row.score(e) * dscores[e];
  T* dlogits = args.dlogits.as<T>() + token * args.dlogits.stride;
  for (int64_t e = 0; e < experts; ++e) {
    const float score = row.score(e);
    float gradient = score * (softmax ? dscores[e] - mean : (1 - score) * dscores[e]);
    if (args.z != 0) {
      const float p = std::exp(row.logits[e] - of_softmax.largest) / of_softmax.sum;
      gradient += scale * args.z * 2 * lse / tokens * p;
    }
    dlogits[e] = narrowed<T>(gradient);
  }
}

// In the order of chunks.
void add_load(const RouteBackward& args, const Chunks& chunks) {
  const Routing& to = args.forward.routing;
  const int64_t experts = to.count();
  const auto tokens = static_cast<double>(args.forward.logits.rows);
  const int32_t *counts = to.counts.i32(), *offsets = to.offsets.i32();
  double* load = args.load.f64();
  double balance = 0, squares = 0;
  for (int64_t e = 0; e <= experts; ++e) {
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks.count(); ++chunk)
      sum += partial_of(args, chunk).shares[e];
    if (e == experts)
      squares = sum;
    else
      balance += static_cast<double>(choices_of(args, e)) /
                 (tokens * static_cast<double>(parts_of(args))) * (sum / tokens);
  }
  load[0] += static_cast<double>(args.balance) * static_cast<double>(experts) * balance;
  load[1] += static_cast<double>(args.z) * squares / tokens;
  for (int64_t e = 0; e < experts; ++e) {
    load[2 + e] += counts[e];
    load[2 + experts + e] += counts[e] - (offsets[e + 1] - offsets[e]);
  }
}

}  // namespace

void route(ThreadPool& pool, const Route& args) {
  check(args);
  const Chunks rows = row_chunks(pool, args.logits.rows, args.logits.cols);
  pool.run(rows.count(), [&](int64_t chunk, int) {
    for (int64_t token = rows[chunk].begin; token < rows[chunk].end; ++token) choose(args, token);
  });
  sort_by_expert(args.routing, static_cast<int32_t>(args.capacity));
}

void spread_rows(const SpreadRows& args) {
  const Routing& from = args.from;
  const int64_t all = args.sources.elems(), rows = all / args.blocks,
                each = from.count() / args.blocks;
  require(args.blocks >= 1 && rows * args.blocks == all && each * args.blocks == from.count() &&
              args.numbers.rows == all && args.places.elems() == from.places.elems() &&
              args.places.contiguous() && (args.needed.empty() || args.needed.elems() == 2),
          "spread_rows: {} rows with {} numbers and {} places, of {} choices of {} experts, in {} "
          "blocks",
          all, args.numbers.rows, args.places.elems(), from.places.elems(), from.count(),
          args.blocks);
  int32_t *places = args.places.i32(), *sources = args.sources.i32(), *numbers = args.numbers.i32();
  std::fill_n(places, args.places.elems(), -1);
  for (int64_t block = 0; block < args.blocks; ++block) {
    const int64_t first = from.offsets.i32()[block * each],
                  taken = from.offsets.i32()[(block + 1) * each] - first;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = block * rows + i;
      const int32_t choice = i < taken ? from.sources.i32()[first + i] : -1;
      sources[row] = choice;
      numbers[row * args.numbers.stride] =
          choice < 0 ? -1 : from.experts.i32()[choice] - static_cast<int32_t>(block * each);
      if (choice >= 0) places[choice] = static_cast<int32_t>(row);
    }
    for (int64_t i = rows; i < taken; ++i) {
      const int32_t lost = from.sources.i32()[first + i];
      places[lost] = static_cast<int32_t>(block * rows + i % rows);
      from.weights.f32()[lost] = std::numeric_limits<float>::quiet_NaN();
    }
    if (taken <= rows || args.needed.empty()) continue;
    int32_t* needed = args.needed.i32();
    needed[0] = std::max(needed[0], static_cast<int32_t>(taken));
    needed[1] = std::max(needed[1], static_cast<int32_t>(rows));
  }
}

void sort_rows(Tensor numbers, const Routing& to) {
  require(numbers.cols == 1 && to.experts.elems() == numbers.rows && to.choices() == 1 &&
              to.places.elems() == numbers.rows && to.sources.elems() == numbers.rows &&
              to.offsets.elems() == to.count() + 1,
          "sort_rows: {} numbers for {} rows of {} experts", numbers.rows, to.sources.elems(),
          to.count());
  for (int64_t row = 0; row < numbers.rows; ++row)
    to.experts.i32()[row] = numbers.i32()[row * numbers.stride];
  sort_by_expert(to, 0);
}

int64_t route_backward_scratch_bytes(int64_t tokens, int64_t experts) {
  return sum_chunks(tokens).count() * ((experts + 1) * 8 + (experts + experts % 2) * 4);
}

void route_backward(ThreadPool& pool, const RouteBackward& args) {
  check(args.forward);
  const Tensor& logits = args.forward.logits;
  require(args.dlogits.rows == logits.rows && args.dlogits.cols == logits.cols &&
              args.dweights.rows == logits.rows &&
              args.dweights.cols == args.forward.routing.choices(),
          "route: dlogits {}x{} and dweights {}x{} for {}x{}", args.dlogits.rows, args.dlogits.cols,
          args.dweights.rows, args.dweights.cols, logits.rows, logits.cols);
  require(args.of_parts.empty() || args.of_parts.cols == logits.cols,
          "route: parts' choices of {} experts for {}", args.of_parts.cols, logits.cols);
  require(args.load.empty() || args.load.elems() == load_elems(logits.cols),
          "route: a load of {} numbers for {} experts", args.load.elems(), logits.cols);
  require(args.scratch.elems() >= route_backward_scratch_bytes(logits.rows, logits.cols),
          "route: scratch of {} bytes", args.scratch.elems());
  const Chunks chunks = sum_chunks(logits.rows);
  pool.run(chunks.count(), [&](int64_t chunk, int) {
    const Partial partial = partial_of(args, chunk);
    std::fill_n(partial.shares, logits.cols + 1, 0.0);
    with_type(args.dlogits.dtype, "route", [&](auto type) {
      for (int64_t token = chunks[chunk].begin; token < chunks[chunk].end; ++token)
        logit_gradients<decltype(type)>(args, token, partial);
    });
  });
  if (!args.load.empty()) add_load(args, chunks);
}

}  // namespace onefold::cpu
