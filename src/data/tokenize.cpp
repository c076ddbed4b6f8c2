#include "data/tokenize.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "data/chat.h"

namespace onefold {
namespace {

constexpr size_t kChunkBytes =
    size_t{1} << 18;  // enough work to hide the hand-over, small enough to share out evenly

struct Stopped {};  // thrown through the visit of documents; never leaves this file

// Collects chunks of documents' text until every thread has some, encodes them together, and hands
// them on in order.
class Batcher {
 public:
  Batcher(const DataSource& source, const Tokenizer& tokenizer, ThreadPool& pool,
          const TokenSink& sink, const TokenizeOptions& options, int64_t total_bytes)
      : tokenizer_(tokenizer),
        pool_(pool),
        sink_(sink),
        options_(options),
        specials_(source.special_tokens ? Tokenizer::Specials::kMatch
                                        : Tokenizer::Specials::kAsText),
        total_bytes_(total_bytes),
        caches_(static_cast<size_t>(pool.threads())) {
    limit_ = kChunkBytes * 4 * caches_.size();
    if (source.format == DataFormat::kChat) chat_.emplace(tokenizer, source.chat);
    // A conversation's own template says all that begins and ends it.
    if (!options.add_template || (chat_ && chat_->has_template())) return;
    before_ = tokenizer.template_before();
    after_ = tokenizer.template_after();
    // The sink ends documents with end-of-text itself.
    if (!after_.empty() && after_.back() == tokenizer.end_of_text()) after_.pop_back();
  }

  void add(const Document& document) {
    if (document.conversation) {
      chunks_.push_back({.conversation = *document.conversation, .where = document.where});
      held_ += document.text.size();
    } else {
      add_text(document);
    }
    if (held_ >= limit_) run(document.read_bytes);
  }

  // Encodes what is held; `position` is where the input has been read to.
  void run(int64_t position) {
    pool_.run(static_cast<int64_t>(chunks_.size()), [&](int64_t chunk, int thread) {
      encode(chunks_[static_cast<size_t>(chunk)], caches_[static_cast<size_t>(thread)]);
    });
    for (const Chunk& chunk : chunks_) hand_on(chunk);
    chunks_.clear();
    held_ = 0;
    const int64_t done = std::min(position, total_bytes_);
    if (options_.progress && !options_.progress(done, total_bytes_)) throw Stopped();
  }

 private:
  struct Chunk {
    std::string text = {};  // a copy: a document lives only while it is visited
    Conversation conversation = {};
    std::string where = {};
    bool begins_document = true, ends_document = true;
    std::vector<int32_t> tokens = {};
    std::vector<bool> counted = {};  // of a conversation
  };

  // Cuts text where it may be cut. What is too short for a chunk, or cannot be cut, waits for the
  // document's next piece.
  void add_text(const Document& document) {
    if (document.begins) {
      waiting_.clear();
      begins_ = true;
    }
    const size_t searched = waiting_.empty() ? 0 : waiting_.size() - 1;
    waiting_ += document.text;
    std::string_view rest = waiting_;
    size_t at_least = std::max(kChunkBytes, searched);
    while (rest.size() > kChunkBytes) {
      const size_t cut = tokenizer_.safe_cut(rest, at_least);
      if (cut >= rest.size()) break;
      push(rest.substr(0, cut), false);
      rest.remove_prefix(cut);
      at_least = kChunkBytes;
    }
    if (document.ends) {
      push(rest, true);
      rest = {};
    }
    waiting_.erase(0, waiting_.size() - rest.size());
  }

  void push(std::string_view text, bool ends) {
    chunks_.push_back(
        {.text = std::string(text), .begins_document = begins_, .ends_document = ends});
    held_ += text.size();
    begins_ = false;
  }

  void encode(Chunk& chunk, std::unique_ptr<WordCache>& cache) const {
    if (chat_) {
      ChatTokens rendered = chat_->render(chunk.conversation, chunk.where);
      chunk.tokens = std::move(rendered.tokens);
      chunk.counted = std::move(rendered.counted);
      return;
    }
    if (!cache) cache = std::make_unique<WordCache>();
    chunk.tokens.reserve(chunk.text.size() / 3);
    tokenizer_.encode(
        chunk.text, specials_, *cache, chunk.tokens,
        chunk.begins_document ? Tokenizer::Place::kBegin : Tokenizer::Place::kContinue);
  }

  void hand_on(const Chunk& chunk) const {
    const std::span<const int32_t> tokens = chunk.tokens;
    if (chunk.begins_document) sink_.tokens(before_, !chat_);
    if (!chat_) {
      sink_.tokens(tokens, true);
    } else {
      for (size_t at = 0; at < tokens.size();) {  // runs of one kind
        size_t end = at + 1;
        while (end < tokens.size() && chunk.counted[end] == chunk.counted[at]) ++end;
        sink_.tokens(tokens.subspan(at, end - at), chunk.counted[at]);
        at = end;
      }
    }
    if (!chunk.ends_document) return;
    sink_.tokens(after_, !chat_);
    // An answer that no marker ends is ended by end-of-text, which is then trained on.
    sink_.end_document(!chat_ ||
                       (chat_->ends_bare() && chunk.conversation.messages.back().counted &&
                        chunk.conversation.messages.back().role == kChatAssistant));
  }

  const Tokenizer& tokenizer_;
  ThreadPool& pool_;
  const TokenSink& sink_;
  const TokenizeOptions& options_;
  const Tokenizer::Specials specials_;
  const int64_t total_bytes_;
  std::optional<ChatFormat> chat_;
  std::vector<std::unique_ptr<WordCache>> caches_;
  std::vector<int32_t> before_, after_;  // of each document
  std::vector<Chunk> chunks_;
  std::string waiting_;          // of the document that is being read
  bool begins_ = true;           // nothing of it has been cut off yet
  size_t held_ = 0, limit_ = 0;  // bytes of text
};

}  // namespace

bool tokenize(const DataSource& source, const Tokenizer& tokenizer, ThreadPool& pool,
              const TokenSink& sink, const TokenizeOptions& options) {
  const int64_t total = options.progress ? input_bytes(source) : 0;
  Batcher batcher(source, tokenizer, pool, sink, options, total);
  DataSource marked = source;  // what its markers do not show is a bad line
  if (!marked.chat && !tokenizer.chat_template()) marked.chat = ChatMarkers::chatml();
  try {
    const DocumentReport report =
        for_each_document(marked, [&](const Document& document) { batcher.add(document); });
    if (options.report) *options.report = report;
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
  const TokenSink sink = {
      [&](std::span<const int32_t> tokens, bool counted) { writer.add(tokens, counted); },
      [&](bool counted) { writer.end_document(counted); }};
  if (!tokenize(source, tokenizer, pool, sink, options)) return std::nullopt;
  return writer.finish();
}

}  // namespace onefold
