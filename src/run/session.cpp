#include "run/session.h"

#include "data/dataset.h"
#include "data/hf_tokenizer.h"
#include "io/checksum.h"

namespace onefold {

std::optional<Tokenizer> open_tokenizer(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "bytes") return Tokenizer::bytes();
  return load_tokenizer(name);
}

namespace {

SequenceSet sequences_of(const Config& config, const Dataset& dataset, TokenRange range,
                         const std::string& what) {
  return {dataset, range, config.data.sequence_length, config.data.documents, what};
}

// Files with weights are sets of their own: a sequence holds tokens of one of them.
SequenceMix training_sequences(const Config& config, const Dataset& dataset, TokenRange range) {
  if (config.data.train.weights.empty())
    return sequences_of(config, dataset, range, "training data");
  std::vector<SequenceSet> sets;
  for (const Dataset::Group& group : dataset.groups())
    sets.push_back(sequences_of(config, dataset, group.range, "training data of " + group.name));
  return SequenceMix(std::move(sets));
}

void hold_out(const Config& config, const Dataset& dataset, TokenRange range, RunData& result) {
  // Every token counts, but less than one sequence is a mistake.
  const bool keep_tail = range.tokens() > config.data.sequence_length;
  result.validation.emplace(SequenceSet(dataset, range, config.data.sequence_length,
                                        config.data.documents, "validation data", keep_tail),
                            config.batch.micro, config.run.eval_sequences);
  result.validation_tokens = range.tokens();
}

// Of the number of sequences and of some of them, spread evenly: enough to tell other data, or data
// that has grown, from the same.
std::string fingerprint_of(const BatchLoader& loader) {
  constexpr int64_t kSamples = 256;
  const SequenceMix& sequences = loader.sequences();
  Checksum checksum;
  const int64_t sizes[] = {sequences.count(), sequences.length()};
  checksum.add(std::as_bytes(std::span(sizes)));
  const int64_t drawn = loader.sampler().count();  // other weights, another order
  if (drawn != sequences.count()) checksum.add(std::as_bytes(std::span(&drawn, 1)));
  std::vector<int32_t> tokens(static_cast<size_t>(sequences.length())), targets = tokens;
  const int64_t samples = std::min(kSamples, sequences.count());
  for (int64_t i = 0; i < samples; ++i) {
    sequences.get(i * (sequences.count() - 1) / std::max<int64_t>(1, samples - 1), tokens, targets);
    checksum.add(std::as_bytes(std::span(tokens)));
    checksum.add(std::as_bytes(std::span(targets)));
  }
  return checksum.text();
}

// Of all tokens and where documents begin.
std::string hash_of(const Dataset& dataset, TokenRange range) {
  constexpr int64_t kMostTokens = int64_t{1} << 31, kBlock = int64_t{1} << 18;
  if (range.tokens() > kMostTokens) return "";
  Checksum checksum;
  std::vector<int32_t> block(static_cast<size_t>(std::min(kBlock, range.tokens())));
  for (int64_t at = range.begin; at < range.end; at += kBlock) {
    const auto count = static_cast<size_t>(std::min(kBlock, range.end - at));
    dataset.read(at, std::span(block).first(count));
    checksum.add(std::as_bytes(std::span(block).first(count)));
    if (!dataset.masked()) continue;
    dataset.read_targets(at, std::span(block).first(count));
    checksum.add(std::as_bytes(std::span(block).first(count)));
  }
  for (int64_t document = 0; document < dataset.documents(); ++document) {
    const int64_t start = dataset.document_start(document);
    if (start >= range.end) break;
    checksum.add(std::as_bytes(std::span(&start, 1)));
  }
  return checksum.text();
}

}  // namespace

RunData open_data(const Config& config) {
  const DataConfig& data = config.data;
  ThreadPool pool(config.run.threads);
  RunData result;
  result.tokenizer = open_tokenizer(data.tokenizer);
  const Tokenizer* tokenizer = result.tokenizer ? &*result.tokenizer : nullptr;
  DataSource source = data.train;
  source.vocab_size = config.model.vocab_size;
  const Dataset train = Dataset::open(source, tokenizer, pool);
  const DataSplit split = split_dataset(train, data.validation_fraction);
  result.train.emplace(training_sequences(config, train, split.train), config.run.seed,
                       data.shuffle,
                       BatchLayout{.micro_batch = config.batch.micro,
                                   .accumulation = config.batch.accumulation,
                                   .ranks = config.batch.world_size},
                       data.train.weights);
  result.fingerprint = fingerprint_of(*result.train);
  result.hash = hash_of(train, split.train);
  result.vocab_size = train.vocab_size();
  result.train_tokens = split.train.tokens();
  result.documents = train.documents();
  result.end_of_text = train.end_of_text();
  result.skipped = train.report();
  result.targets = result.train->sequences().targets();
  result.masked = train.masked();
  result.memory_bytes = train.memory_bytes();
  if (data.validation_fraction > 0) hold_out(config, train, split.validation, result);
  if (data.validation.empty()) return result;

  source.paths = data.validation;
  source.weights.clear();
  const Dataset held_out = Dataset::open(source, tokenizer, pool);
  held_out.require_tokenizer_of(train);
  hold_out(config, held_out, {0, held_out.tokens()}, result);
  result.vocab_size = std::max(result.vocab_size, held_out.vocab_size());
  result.memory_bytes += held_out.memory_bytes();
  if (result.skipped.skipped == 0) result.skipped.first_skipped = held_out.report().first_skipped;
  result.skipped.skipped += held_out.report().skipped;
  return result;
}

ModelSpec settled_model(const Config& config, const RunData& data) {
  ModelSpec spec = config.model;
  if (spec.vocab_size == 0) spec.vocab_size = data.vocab_size;
  if (spec.vocab_size < data.vocab_size)
    user_error(
        "the model ({}) has a vocabulary of {} and the data one of {}: set model.vocab_size to {} "
        "or more. To change one field of a preset, write \"model\": {{\"preset\": \"name\", "
        "\"vocab_size\": {}}}",
        config.model_source, spec.vocab_size, data.vocab_size, data.vocab_size, data.vocab_size);
  spec.complete("model");
  return spec;
}

BatchView view_of(Batch& batch) {
  return {.tokens = batch.tokens,
          .targets = batch.targets,
          .samples = batch.samples,
          .starts = batch.starts,
          .batch = batch.batch,
          .sequence = batch.sequence};
}

StepResult train_step(Engine& engine, const BatchLoader& loader, const StepRates& rates) {
  std::vector<Batch> batches;
  for (int64_t micro = 0; micro < loader.layout().accumulation; ++micro)
    batches.push_back(loader.get(engine.steps_done(), micro, engine.data_rank()));
  std::vector<BatchView> views;
  for (Batch& batch : batches) views.push_back(view_of(batch));
  return engine.train_step(views, rates);
}

}  // namespace onefold
