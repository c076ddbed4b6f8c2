#include "data/tokenize.h"

#include <algorithm>
#include <memory>

namespace onefold {
namespace {

constexpr size_t kPieceBytes =
    size_t{1} << 18;  // enough work to hide the hand-over, small enough to share out evenly

// Collects pieces of documents until every thread has some, encodes them together, and hands them
// on in order.
class Batcher {
 public:
  Batcher(const Tokenizer& tokenizer, ThreadPool& pool, const TokenSink& sink)
      : tokenizer_(tokenizer),
        pool_(pool),
        sink_(sink),
        caches_(static_cast<size_t>(pool.threads())) {
    limit_ = kPieceBytes * 4 * caches_.size();
  }

  void add(std::string_view document) {
    while (!document.empty()) {
      const size_t cut = document.size() <= kPieceBytes
                             ? document.size()
                             : tokenizer_.safe_cut(document, kPieceBytes);
      pieces_.push_back({std::string(document.substr(0, cut)), cut == document.size(), {}});
      held_ += cut;
      document.remove_prefix(cut);
      if (held_ >= limit_) run();
    }
  }

  void run() {
    pool_.run(static_cast<int64_t>(pieces_.size()), [&](int64_t chunk, int thread) {
      Piece& piece = pieces_[static_cast<size_t>(chunk)];
      std::unique_ptr<WordCache>& cache = caches_[static_cast<size_t>(thread)];
      if (!cache) cache = std::make_unique<WordCache>();
      tokenizer_.encode(piece.text, Tokenizer::Specials::kAsText, *cache, piece.tokens);
    });
    for (const Piece& piece : pieces_) {
      sink_.tokens(piece.tokens);
      if (piece.ends_document) sink_.end_document();
    }
    pieces_.clear();
    held_ = 0;
  }

 private:
  struct Piece {
    std::string text;  // a copy: a JSONL document lives only while it is visited
    bool ends_document;
    std::vector<int32_t> tokens;
  };

  const Tokenizer& tokenizer_;
  ThreadPool& pool_;
  const TokenSink& sink_;
  std::vector<std::unique_ptr<WordCache>> caches_;
  std::vector<Piece> pieces_;
  size_t held_ = 0, limit_ = 0;  // bytes of text
};

}  // namespace

void tokenize(const DataSource& source, const Tokenizer& tokenizer, ThreadPool& pool,
              const TokenSink& sink) {
  Batcher batcher(tokenizer, pool, sink);
  for_each_document(source, [&](std::string_view document) { batcher.add(document); });
  batcher.run();
}

TokenFileInfo tokenize_to_file(const DataSource& source, const Tokenizer& tokenizer,
                               ThreadPool& pool, const std::string& path) {
  TokenFileWriter writer(path, tokenizer.vocab_size(), tokenizer.end_of_text(), tokenizer.hash());
  tokenize(source, tokenizer, pool,
           {[&](std::span<const int32_t> tokens) { writer.add(tokens); },
            [&] { writer.end_document(); }});
  return writer.finish();
}

}  // namespace onefold
