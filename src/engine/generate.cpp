#include "engine/generate.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "engine/decoder.h"
#include "model/spec_limits.h"

namespace onefold {
namespace {

// Prompts are read in pieces of this many tokens, which bounds the memory of a long one.
constexpr int64_t kPromptPiece = 256;

void read_prompt(Decoder& decoder, std::span<const int32_t> prompt, int64_t piece) {
  for (size_t at = 0; at < prompt.size(); at += static_cast<size_t>(piece))
    decoder.feed(prompt.subspan(at, std::min(prompt.size() - at, static_cast<size_t>(piece))));
}

// NaN compares as nothing, so a token would be chosen all the same.
std::span<float> finite_logits(Decoder& decoder, int64_t sequence) {
  const std::span<float> logits = decoder.logits(sequence);
  if (!std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); }))
    user_error(
        "what the model computes is not finite: its weights hold NaN or infinities, or numbers "
        "that "
        "overflow");
  return logits;
}

bool ends(const GenerateOptions& options, int32_t token) {
  return std::find(options.end_tokens.begin(), options.end_tokens.end(), token) !=
         options.end_tokens.end();
}

// From the logits after `all`, to which the tokens are appended.
std::vector<int32_t> sample(Decoder& decoder, std::vector<int32_t> all,
                            const GenerateOptions& options, int64_t count,
                            const std::function<bool(int32_t)>& emit) {
  const auto prompt = static_cast<int64_t>(all.size());
  for (int64_t i = 0; i < count; ++i) {
    penalise_repetition(finite_logits(decoder, 0), all, options.sampling.repetition_penalty);
    const PhiloxWords words = philox(philox_key(options.sampling.seed, Draw::sampling),
                                     {static_cast<uint32_t>(i), 0, 0, 0});
    const int32_t token = pick_token(decoder.logits(0), options.sampling, philox_uniform(words[0]));
    if (ends(options, token)) break;
    all.push_back(token);
    if ((emit && !emit(token)) || i + 1 == count) break;
    decoder.feed({&token, 1});
  }
  return {all.begin() + prompt, all.end()};
}

struct Beam {
  std::vector<int32_t> tokens;  // after the prompt
  double score = 0;             // log-probability
  int64_t parent = 0;
};

double normalised(const Beam& beam, double penalty) {
  return beam.score /
         std::pow(static_cast<double>(std::max<size_t>(1, beam.tokens.size())), penalty);
}

// The best `wanted` continuations of all beams by one token.
std::vector<Beam> extend(const std::vector<Beam>& beams, Decoder& decoder,
                         std::span<const int32_t> prompt, const GenerateOptions& options,
                         size_t wanted) {
  std::vector<Beam> candidates;
  for (size_t b = 0; b < beams.size(); ++b) {
    std::span<float> logits = finite_logits(decoder, static_cast<int64_t>(b));
    std::vector<int32_t> present(prompt.begin(), prompt.end());
    present.insert(present.end(), beams[b].tokens.begin(), beams[b].tokens.end());
    penalise_repetition(logits, present, options.sampling.repetition_penalty);
    log_softmax(logits);
    std::vector<int32_t> order(logits.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    const size_t keep = std::min(wanted, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(keep), order.end(),
                      [&](int32_t x, int32_t y) {
                        const float lx = logits[static_cast<size_t>(x)],
                                    ly = logits[static_cast<size_t>(y)];
                        return lx != ly ? lx > ly : x < y;
                      });
    for (size_t i = 0; i < keep; ++i) {
      if (std::isinf(logits[static_cast<size_t>(order[i])])) break;  // of probability 0
      Beam next{beams[b].tokens, beams[b].score + logits[static_cast<size_t>(order[i])],
                static_cast<int64_t>(b)};
      next.tokens.push_back(order[i]);
      candidates.push_back(std::move(next));
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Beam& x, const Beam& y) { return x.score > y.score; });
  candidates.resize(std::min(wanted, candidates.size()));
  return candidates;
}

std::vector<int32_t> beam_search(Engine& engine, std::span<const int32_t> prompt,
                                 const GenerateOptions& options, int64_t count, int64_t piece) {
  const int64_t width = options.beams, capacity = static_cast<int64_t>(prompt.size()) + count;
  Decoder reader(engine, 1, capacity), first(engine, width, capacity),
      second(engine, width, capacity);
  read_prompt(reader, prompt, piece);
  std::vector<Beam> beams{Beam{}}, finished;
  Decoder *now = &reader, *next = &first;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<Beam> alive;
    // Twice the width: even if every beam's best continuation ends here, enough go on.
    for (Beam& candidate : extend(beams, *now, prompt, options, static_cast<size_t>(2 * width))) {
      if (ends(options, candidate.tokens.back())) {
        candidate.tokens.pop_back();
        finished.push_back(std::move(candidate));
      } else if (static_cast<int64_t>(alive.size()) < width) {
        alive.push_back(std::move(candidate));
      }
    }
    if (alive.empty()) break;
    beams = std::move(alive);
    if (static_cast<int64_t>(finished.size()) >= width || i + 1 == count) break;
    while (static_cast<int64_t>(beams.size()) <
           width) {  // a tiny vocabulary: pad with a beam that cannot win
      beams.push_back(beams.back());
      beams.back().score = -1e30;
    }
    std::vector<int64_t> parents;
    std::vector<int32_t> last;
    for (const Beam& beam : beams) {
      parents.push_back(beam.parent);
      last.push_back(beam.tokens.back());
    }
    next->take_past(*now, parents);
    next->feed(last);
    now = next;
    next = now == &first ? &second : &first;
  }
  finished.insert(finished.end(), beams.begin(), beams.end());
  return std::max_element(finished.begin(), finished.end(),
                          [&](const Beam& a, const Beam& b) {
                            return normalised(a, options.length_penalty) <
                                   normalised(b, options.length_penalty);
                          })
      ->tokens;
}

}  // namespace

EngineOptions generation_engine_options(const ModelSpec& spec, int64_t beams, int threads) {
  return {.threads = threads,
          .micro_batch = 1,
          .sequence = std::max(beams, std::min(spec.max_sequence_length, kPromptPiece)),
          .positions = spec.max_sequence_length,
          .training = false};
}

namespace {

int64_t piece_of(const Engine& engine) {
  return engine.options().micro_batch * engine.options().sequence;
}

// How many tokens there is room for; UserError for what cannot be generated from.
int64_t checked_count(const Engine& engine, std::span<const int32_t> prompt,
                      const GenerateOptions& options) {
  check_sampling(options.sampling);
  const ModelSpec& spec = engine.model().spec;
  const auto length = static_cast<int64_t>(prompt.size());
  if (prompt.empty()) user_error("the prompt is empty; give at least one token");
  for (const int32_t token : prompt)
    if (token < 0 || token >= spec.vocab_size)
      user_error("prompt token {} is outside the model's vocabulary of {}", token, spec.vocab_size);
  if (length >= spec.max_sequence_length)
    user_error("the prompt has {} tokens; the model has {}", length, spec.positions_text());
  const int64_t piece = piece_of(engine);
  if (options.beams < 1 || options.beams > piece)
    user_error("{} beams; from 1 to {} are possible", options.beams, piece);
  if (!std::isfinite(options.length_penalty))
    user_error("length penalty is {}; it must be finite", options.length_penalty);
  const int64_t count = std::min(options.max_tokens, spec.max_sequence_length - length);
  if (count <= 0) return 0;
  const int64_t past = saturating_product({spec.num_layers, spec.kv_size(), length + count});
  if (saturating_product({options.beams, past}) > kMostSavedElems)
    user_error("{} beams; with {} tokens of the past the largest number is {}", options.beams,
               length + count, largest_size(kMostSavedElems, {past}));
  return count;
}

}  // namespace

std::vector<int32_t> generate(Engine& engine, std::span<const int32_t> prompt,
                              const GenerateOptions& options,
                              const std::function<bool(int32_t)>& emit) {
  const int64_t count = checked_count(engine, prompt, options);
  if (count == 0) return {};
  if (options.beams == 1) {
    Decoder decoder(engine, 1, static_cast<int64_t>(prompt.size()) + count);
    read_prompt(decoder, prompt, piece_of(engine));
    return sample(decoder, {prompt.begin(), prompt.end()}, options, count, emit);
  }
  const std::vector<int32_t> tokens = beam_search(engine, prompt, options, count, piece_of(engine));
  if (emit)
    for (const int32_t token : tokens)
      if (!emit(token)) break;
  return tokens;
}

// One that has room for the prompt and `count` tokens, and has seen what the prompt begins with,
// but for its last token at least: that one's logits are needed.
Decoder& Generator::decoder_for(std::span<const int32_t> prompt, int64_t count) {
  const auto common = std::mismatch(seen_.begin(), seen_.end(), prompt.begin(), prompt.end() - 1);
  seen_.erase(common.first, seen_.end());
  if (decoder_) decoder_->keep(static_cast<int64_t>(seen_.size()));
  const int64_t needed = static_cast<int64_t>(prompt.size()) + count;
  if (decoder_ && decoder_->capacity() >= needed) return *decoder_;
  // Twice as much, so that a conversation is copied a few times and not at each turn.
  const int64_t capacity = std::min(2 * needed, engine_.model().spec.max_sequence_length);
  auto larger = std::make_unique<Decoder>(engine_, 1, capacity);
  if (decoder_) larger->take_past(*decoder_, std::vector<int64_t>{0});
  decoder_ = std::move(larger);
  return *decoder_;
}

std::vector<int32_t> Generator::generate(std::span<const int32_t> prompt,
                                         const GenerateOptions& options,
                                         const std::function<bool(int32_t)>& emit) {
  require(options.beams == 1, "a text that grows, with {} beams", options.beams);
  const int64_t count = checked_count(engine_, prompt, options);
  if (count == 0) return {};
  Decoder& decoder = decoder_for(prompt, count);
  read_prompt(decoder, prompt.subspan(seen_.size()), piece_of(engine_));
  seen_.assign(prompt.begin(), prompt.end());
  std::vector<int32_t> tokens =
      sample(decoder, {prompt.begin(), prompt.end()}, options, count, emit);
  // The last token may not have been fed, if it was the last of all.
  if (!tokens.empty()) seen_.insert(seen_.end(), tokens.begin(), tokens.end() - 1);
  return tokens;
}

}  // namespace onefold
