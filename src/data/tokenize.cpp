#include "data/tokenize.h"

#include <algorithm>
#include <memory>

namespace onefold {
namespace {

constexpr size_t kChunkBytes =
    size_t{1} << 18;  // enough work to hide the hand-over, small enough to share out evenly

struct Stopped {};  // thrown through the visit of documents; never leaves this file

// Collects chunks of documents' text until every thread has some, encodes them together, and hands
// them on in order.
class Batcher {
 public:
  Batcher(const Tokenizer& tokenizer, ThreadPool& pool, const TokenSink& sink,
          const TokenizeOptions& options, int64_t total_bytes)
      : tokenizer_(tokenizer),
        pool_(pool),
        sink_(sink),
        options_(options),
        total_bytes_(total_bytes),
        caches_(static_cast<size_t>(pool.threads())) {
    limit_ = kChunkBytes * 4 * caches_.size();
    if (!options.add_template) return;
    before_ = tokenizer.template_before();
    after_ = tokenizer.template_after();
    // The sink ends documents with end-of-text itself.
    if (!after_.empty() && after_.back() == tokenizer.end_of_text()) after_.pop_back();
  }

  void add(const Document& document) {
    std::string_view rest = document.text;
    bool first = true;
    while (!rest.empty()) {
      const size_t cut =
          rest.size() <= kChunkBytes ? rest.size() : tokenizer_.safe_cut(rest, kChunkBytes);
      chunks_.push_back({std::string(rest.substr(0, cut)), first, cut == rest.size(), {}});
      first = false;
      held_ += cut;
      rest.remove_prefix(cut);
      const size_t passed = document.text.size() - rest.size();
      document.done_with(passed);
      if (held_ >= limit_) run(document.position + static_cast<int64_t>(passed));
    }
  }

  // Encodes what is held; `position` is where the input has been read to.
  void run(int64_t position) {
    pool_.run(static_cast<int64_t>(chunks_.size()), [&](int64_t chunk, int thread) {
      TextChunk& text = chunks_[static_cast<size_t>(chunk)];
      std::unique_ptr<WordCache>& cache = caches_[static_cast<size_t>(thread)];
      if (!cache) cache = std::make_unique<WordCache>();
      text.tokens.reserve(text.text.size() / 3);
      tokenizer_.encode(
          text.text, Tokenizer::Specials::kAsText, *cache, text.tokens,
          text.begins_document ? Tokenizer::Place::kBegin : Tokenizer::Place::kContinue);
    });
    for (const TextChunk& text : chunks_) {
      if (text.begins_document) sink_.tokens(before_);
      sink_.tokens(text.tokens);
      if (!text.ends_document) continue;
      sink_.tokens(after_);
      sink_.end_document();
    }
    chunks_.clear();
    held_ = 0;
    const int64_t done = std::min(position, total_bytes_);  // JSON's text may be longer than a line
    if (options_.progress && !options_.progress(done, total_bytes_)) throw Stopped();
  }

 private:
  struct TextChunk {
    std::string text;  // a copy: a JSONL document lives only while it is visited
    bool begins_document, ends_document;
    std::vector<int32_t> tokens;
  };

  const Tokenizer& tokenizer_;
  ThreadPool& pool_;
  const TokenSink& sink_;
  const TokenizeOptions& options_;
  const int64_t total_bytes_;
  std::vector<std::unique_ptr<WordCache>> caches_;
  std::vector<int32_t> before_, after_;  // of each document
  std::vector<TextChunk> chunks_;
  size_t held_ = 0, limit_ = 0;  // bytes of text
};

}  // namespace

bool tokenize(const DataSource& source, const Tokenizer& tokenizer, ThreadPool& pool,
              const TokenSink& sink, const TokenizeOptions& options) {
  const int64_t total = options.progress ? input_bytes(source) : 0;
  Batcher batcher(tokenizer, pool, sink, options, total);
  try {
    for_each_document(source, [&](const Document& document) { batcher.add(document); });
    batcher.run(total);
  } catch (const Stopped&) {
    return false;
  }
  return true;
}

std::optional<TokenFileInfo> tokenize_to_file(const DataSource& source, const Tokenizer& tokenizer,
                                              ThreadPool& pool, const std::string& path,
                                              const TokenizeOptions& options) {
  TokenFileWriter writer(path, tokenizer.vocab_size(), tokenizer.end_of_text(), tokenizer.hash());
  const TokenSink sink = {[&](std::span<const int32_t> tokens) { writer.add(tokens); },
                          [&] { writer.end_document(); }};
  if (!tokenize(source, tokenizer, pool, sink, options)) return std::nullopt;
  return writer.finish();
}

}  // namespace onefold
