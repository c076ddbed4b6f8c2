// Cuts text into words before byte-pair merging; merges never cross a word's edge. The patterns of
// GPT-2, Llama 3 and Qwen have hand-written scanners, which are several times as fast as a
// pattern's engine; other patterns are matched by Oniguruma.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/pattern.h"

namespace onefold {

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// What is made of a match: a word of its own, nothing, a word together with the text before or
// after it, or a word together with neighbouring matches. As `tokenizers` names them.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

class PreTokenizer {
 public:
  using Word = std::function<void(std::string_view)>;

  // Without splitters the whole text is one word; each splitter cuts the words of the one before
  // it.
  void add_gpt2();
  // What lies between matches is a word too. With `invert`, matches and the text between them
  // change places. `source` names the file in errors.
  void add_split(std::string_view pattern, SplitBehavior behavior, bool invert,
                 const std::string& source);
  using Matches = bool (*)(uint32_t code_point);
  // Each character for which `matches` is true is a match.
  void add_characters(Matches matches, SplitBehavior behavior);
  // A word begins at every `mark`.
  void add_before(std::string mark);

  // Calls `word` for each word in order. Every byte lands in exactly one word, unless a splitter
  // drops what it matches. Bytes that are not UTF-8 form words of their own. Safe from any thread.
  void split(std::string_view text, const Word& word) const;

  bool empty() const { return splitters_.empty(); }
  // True if a space after an ASCII letter always begins a word, so that a long text may be cut
  // there.
  bool cuts_before_spaces() const;
  // The same for a `mark` that every word begins at.
  bool cuts_before(std::string_view mark) const;

 private:
  struct Splitter {
    enum class Type { kGpt2, kLlama3, kQwen2, kPattern, kCharacters, kBefore };
    Type type;
    std::shared_ptr<const Pattern> pattern = nullptr;
    SplitBehavior behavior = SplitBehavior::kIsolated;
    bool invert = false;
    Matches matches = nullptr;
    std::string mark = "";
  };

  static void split_by(const Splitter& splitter, std::string_view text, const Word& word);
  void split_valid(size_t splitter, std::string_view text, const Word& word) const;

  std::vector<Splitter> splitters_;
};

}  // namespace onefold
