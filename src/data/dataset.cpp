#include "data/dataset.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "data/byte_input.h"
#include "data/foreign_tokens.h"
#include "data/token_file.h"
#include "data/tokenize.h"

namespace onefold {
namespace {

template <typename Word>
struct MemoryTokens {
  std::vector<Word> tokens;
  std::vector<uint64_t> starts;
  TargetMask mask;
};

struct ForeignFile {
  ForeignTokens tokens;
  std::vector<uint64_t> starts;
};

// Copies and widens; returns the position of the first token outside the vocabulary, or -1.
template <typename Word>
int64_t widen(const std::byte* data, int64_t begin, std::span<int32_t> dst, int64_t vocab_size) {
  const Word* const src = reinterpret_cast<const Word*>(data) + begin;
  Word largest = 0;
  for (size_t i = 0; i < dst.size(); ++i) {
    largest = std::max(largest, src[i]);
    dst[i] = static_cast<int32_t>(src[i]);
  }
  if (largest < vocab_size) return -1;
  return std::find_if(src, src + dst.size(), [&](Word token) { return token >= vocab_size; }) -
         src + begin;
}

}  // namespace

Dataset Dataset::open(const DataSource& source, const Tokenizer* tokenizer, ThreadPool& pool) {
  if (source.paths.empty()) user_error("no data files are given");
  require(source.weights.empty() || source.weights.size() == source.paths.size(),
          "{} weights of {} paths", source.weights.size(), source.paths.size());
  Dataset dataset;
  if (source.weights.empty()) {
    dataset.append_source(expanded(source), tokenizer, pool);
    dataset.groups_ = {{join(source.paths, ", "), 1, {0, dataset.tokens_}}};
    return dataset;
  }
  for (size_t i = 0; i < source.paths.size(); ++i) {
    DataSource one = source;
    one.paths = {source.paths[i]};
    const int64_t begin = dataset.tokens_;
    dataset.append_source(expanded(one), tokenizer, pool);
    dataset.groups_.push_back({source.paths[i], source.weights[i], {begin, dataset.tokens_}});
  }
  return dataset;
}

void Dataset::append_source(const DataSource& source, const Tokenizer* tokenizer,
                            ThreadPool& pool) {
  if (source.format == DataFormat::kTokens) {
    for (const std::string& path : source.paths)
      append_token_file(path, tokenizer, source.vocab_size);
    return;
  }
  std::vector<std::string> names;
  for (const std::string& path : source.paths) names.push_back(input_name(path));
  const std::string name = join(names, ", ");
  if (!tokenizer) user_error("{}: text needs a tokenizer; give one, or use a token file", name);
  vocab_size_ = tokenizer->vocab_size();
  end_of_text_ = tokenizer->end_of_text();
  const auto fill = [&](const TokenSink& sink) {
    DocumentReport report;
    tokenize(source, *tokenizer, pool, sink, {.report = &report});
    if (report_.skipped == 0) report_.first_skipped = report.first_skipped;
    report_.skipped += report.skipped;
  };
  if (token_bytes_for(vocab_size_) == 2)
    append_memory<uint16_t>(name, fill);
  else
    append_memory<uint32_t>(name, fill);
}

Dataset Dataset::from_documents(std::span<const std::vector<int32_t>> documents, int64_t vocab_size,
                                int32_t end_of_text) {
  Dataset dataset;
  dataset.vocab_size_ = vocab_size;
  dataset.end_of_text_ = end_of_text;
  dataset.append_memory<uint32_t>("tokens in memory", [&](const TokenSink& sink) {
    for (const std::vector<int32_t>& document : documents) {
      sink.tokens(document, true);
      sink.end_document(true);
    }
  });
  dataset.groups_ = {{"tokens in memory", 1, {0, dataset.tokens_}}};
  return dataset;
}

template <typename Word, typename Fill>
void Dataset::append_memory(std::string name, const Fill& fill) {
  auto memory = std::make_shared<MemoryTokens<Word>>();
  uint64_t begin = 0;
  const auto add = [&](std::span<const int32_t> tokens, bool counted) {
    for (const int32_t token : tokens) memory->tokens.push_back(static_cast<Word>(token));
    memory->mask.add(static_cast<int64_t>(tokens.size()), counted);
  };
  const auto end_document = [&](bool counted) {
    if (memory->tokens.size() == begin) return;
    if (end_of_text_ >= 0 && memory->tokens.back() != static_cast<Word>(end_of_text_))
      add({&end_of_text_, 1}, counted);
    memory->starts.push_back(begin);
    begin = memory->tokens.size();
  };
  fill(TokenSink{add, end_document});
  if (memory->tokens.empty())
    user_error("{}: there is no text in it, so there is nothing to train on", name);
  memory->tokens.shrink_to_fit();
  memory_bytes_ +=
      static_cast<int64_t>(memory->tokens.size() * sizeof(Word) +
                           memory->starts.size() * sizeof(uint64_t) + memory->mask.bits().size());
  Segment segment;
  segment.name = std::move(name);
  segment.data = reinterpret_cast<const std::byte*>(memory->tokens.data());
  segment.token_bytes = sizeof(Word);
  segment.tokens = static_cast<int64_t>(memory->tokens.size());
  segment.starts = memory->starts;
  if (!memory->mask.empty()) segment.mask = memory->mask.bits().data();
  segment.owner = std::move(memory);
  append(std::move(segment));
}

void Dataset::append_token_file(const std::string& path, const Tokenizer* tokenizer,
                                int64_t vocab_size) {
  if (is_read_once(path))
    user_error("{}: token files are mapped into memory, which a pipe cannot be; name a file",
               input_name(path));
  Segment segment;
  segment.name = path;
  if (std::optional<ForeignTokens> foreign = open_foreign_tokens(path)) {
    if (tokenizer) vocab_size = tokenizer->vocab_size();
    if (vocab_size == 0)
      user_error(
          "{} does not say what its vocabulary is; name data.tokenizer, or set model.vocab_size",
          path);
    const int32_t separator = tokenizer ? tokenizer->end_of_text() : -1;
    require_alike(path, vocab_size, foreign->separator_first ? -1 : separator);
    auto file = std::make_shared<ForeignFile>();
    file->starts = onefold::document_starts(*foreign, separator);
    file->tokens = *std::move(foreign);
    segment.data = file->tokens.data;
    segment.token_bytes = file->tokens.token_bytes;
    segment.tokens = file->tokens.tokens;
    segment.starts = file->starts;
    memory_bytes_ += static_cast<int64_t>(file->starts.size() * sizeof(uint64_t));
    segment.owner = std::move(file);
    return append(std::move(segment));
  }
  const auto file = std::make_shared<const TokenFile>(path);
  const TokenFileInfo& info = file->info();
  if (tokenizer && info.tokenizer_hash != 0 && info.tokenizer_hash != tokenizer->hash()) {
    user_error(
        "{} was made with another tokenizer (hash {:016x}) than the one given ({:016x}); tokenize "
        "the text again, "
        "or give the tokenizer it was made with",
        path, info.tokenizer_hash, tokenizer->hash());
  }
  require_alike(path, info.vocab_size, info.end_of_text);
  require_tokenizer(path, info.tokenizer_hash);
  segment.data = file->tokens();
  segment.token_bytes = info.token_bytes;
  segment.tokens = info.tokens;
  segment.starts = file->document_starts();
  segment.mask = file->mask();
  segment.owner = file;
  append(std::move(segment));
}

void Dataset::require_alike(const std::string& path, int64_t vocab_size, int32_t end_of_text) {
  if (segments_.empty()) {
    vocab_size_ = vocab_size;
    end_of_text_ = end_of_text;
  } else if (vocab_size != vocab_size_ || end_of_text != end_of_text_) {
    user_error(
        "{} has a vocabulary of {} with end-of-text {}, and {} one of {} with {}; files that are "
        "read together "
        "must be made with the same tokenizer",
        path, vocab_size, end_of_text, segments_[0].name, vocab_size_, end_of_text_);
  }
}

// Files with as many tokens may mean other words by them. 0: unknown.
void Dataset::require_tokenizer(const std::string& path, uint64_t hash) {
  if (hash == 0) return;
  if (tokenizer_hash_ == 0) {
    tokenizer_hash_ = hash;
    tokenizer_file_ = path;
  } else if (hash != tokenizer_hash_) {
    user_error(
        "{} was made with another tokenizer (hash {:016x}) than {} ({:016x}); files that are read "
        "together must be made with the same one",
        path, hash, tokenizer_file_, tokenizer_hash_);
  }
}

void Dataset::require_tokenizer_of(const Dataset& other) const {
  if (other.tokenizer_hash_ == 0 || tokenizer_hash_ == 0) return;
  if (tokenizer_hash_ == other.tokenizer_hash_) return;
  user_error(
      "{} was made with another tokenizer (hash {:016x}) than {} ({:016x}); the data of a run must "
      "be made with one tokenizer",
      tokenizer_file_, tokenizer_hash_, other.tokenizer_file_, other.tokenizer_hash_);
}

void Dataset::append(Segment segment) {
  segment.first_token = tokens_;
  segment.first_document = documents_;
  tokens_ += segment.tokens;
  documents_ += static_cast<int64_t>(segment.starts.size());
  segments_.push_back(std::move(segment));
}

const Dataset::Segment& Dataset::segment_of_token(int64_t token) const {
  const auto after =
      std::upper_bound(segments_.begin(), segments_.end(), token,
                       [](int64_t t, const Segment& segment) { return t < segment.first_token; });
  return *(after - 1);
}

const Dataset::Segment& Dataset::segment_of_document(int64_t document) const {
  const auto after = std::upper_bound(
      segments_.begin(), segments_.end(), document,
      [](int64_t d, const Segment& segment) { return d < segment.first_document; });
  return *(after - 1);
}

std::pair<std::string, int64_t> Dataset::file_of_document(int64_t d) const {
  require(d >= 0 && d < documents_, "document {} of {}", d, documents_);
  const Segment& segment = segment_of_document(d);
  return {segment.name, d - segment.first_document};
}

int64_t Dataset::document_start(int64_t d) const {
  require(d >= 0 && d <= documents_, "document {} of {}", d, documents_);
  if (d == documents_) return tokens_;
  const Segment& segment = segment_of_document(d);
  return segment.first_token +
         static_cast<int64_t>(segment.starts[static_cast<size_t>(d - segment.first_document)]);
}

int64_t Dataset::document_of(int64_t token) const {
  require(token >= 0 && token < tokens_, "token {} of {}", token, tokens_);
  const Segment& segment = segment_of_token(token);
  const uint64_t within = static_cast<uint64_t>(token - segment.first_token);
  const auto after = std::upper_bound(segment.starts.begin(), segment.starts.end(), within);
  return segment.first_document + (after - segment.starts.begin()) - 1;
}

void Dataset::read(int64_t begin, std::span<int32_t> dst) const {
  require(begin >= 0 && begin + static_cast<int64_t>(dst.size()) <= tokens_,
          "tokens {} to {} of {}", begin, begin + static_cast<int64_t>(dst.size()), tokens_);
  while (!dst.empty()) {
    const Segment& segment = segment_of_token(begin);
    const int64_t within = begin - segment.first_token;
    const size_t count = std::min(dst.size(), static_cast<size_t>(segment.tokens - within));
    const auto copy = segment.token_bytes == 2 ? widen<uint16_t> : widen<uint32_t>;
    const int64_t bad = copy(segment.data, within, dst.first(count), vocab_size_);
    if (bad >= 0) {
      user_error(
          "{}: token {} is {}, outside the vocabulary of {}; the file is damaged, tokenize the "
          "text again",
          segment.name, bad, static_cast<uint32_t>(dst[static_cast<size_t>(bad - within)]),
          vocab_size_);
    }
    dst = dst.subspan(count);
    begin += static_cast<int64_t>(count);
  }
}

bool Dataset::masked() const {
  return std::any_of(segments_.begin(), segments_.end(),
                     [](const Segment& segment) { return segment.mask != nullptr; });
}

bool Dataset::is_target(int64_t token) const {
  require(token >= 0 && token < tokens_, "token {} of {}", token, tokens_);
  const Segment& segment = segment_of_token(token);
  return !segment.mask || TargetMask::counts(segment.mask, token - segment.first_token);
}

void Dataset::read_targets(int64_t begin, std::span<int32_t> dst) const {
  read(begin, dst);
  if (!masked()) return;
  for (size_t i = 0; i < dst.size();) {
    const int64_t token = begin + static_cast<int64_t>(i);
    const Segment& segment = segment_of_token(token);
    const int64_t within = token - segment.first_token;
    const size_t count = std::min(dst.size() - i, static_cast<size_t>(segment.tokens - within));
    for (size_t j = 0; segment.mask && j < count; ++j)
      if (!TargetMask::counts(segment.mask, within + static_cast<int64_t>(j))) dst[i + j] = -1;
    i += count;
  }
}

int64_t Dataset::count_targets(TokenRange range) const {
  if (!masked()) return range.tokens();
  int64_t count = 0;
  for (int64_t token = range.begin; token < range.end; ++token) count += is_target(token) ? 1 : 0;
  return count;
}

void Dataset::check_vocabulary(int64_t model_vocab_size) const {
  if (vocab_size_ <= model_vocab_size) return;
  user_error(
      "{}: token ids go up to {}, and the model's vocabulary has only {} tokens; set the model's "
      "vocab_size to {} "
      "or more, or use the model's own tokenizer",
      segments_[0].name, vocab_size_ - 1, model_vocab_size, vocab_size_);
}

DataSplit split_dataset(const Dataset& dataset, double validation_fraction) {
  if (!(validation_fraction >= 0.0 && validation_fraction < 1.0)) {
    user_error("validation_fraction is {}; it must be at least 0 and less than 1",
               validation_fraction);
  }
  const int64_t total = dataset.tokens();
  const double wanted = static_cast<double>(total) * validation_fraction;
  int64_t cut = total - static_cast<int64_t>(std::ceil(wanted));
  if (cut < total) {
    const int64_t document = dataset.document_of(std::max<int64_t>(cut, 0));
    const int64_t before = dataset.document_start(document),
                  after = dataset.document_start(document + 1);
    const int64_t nearest = after - cut < cut - before ? after : before;
    for (const int64_t edge : {nearest, nearest == after ? before : after}) {
      const double held = static_cast<double>(total - edge);
      if (edge <= 0 || edge >= total || held < wanted / 2 || held > wanted * 2) continue;
      cut = edge;
      break;
    }
  }
  return {{0, cut}, {cut, total}};
}

}  // namespace onefold
