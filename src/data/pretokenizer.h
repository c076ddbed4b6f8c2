// Cuts text into words before byte-pair merging; merges never cross a word's edge. The GPT-2
// pattern has a hand-written scanner for ASCII (several times PCRE2's speed) that asks PCRE2 only
// where a word touches a non-ASCII character; other patterns go to PCRE2 whole. Every byte of the
// text lands in exactly one word, whatever the pattern and the bytes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace onefold {

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Regex;  // a compiled PCRE2 pattern

class PreTokenizer {
 public:
  using Word = std::function<void(std::string_view)>;

  // Without stages the whole text is one word; each stage cuts the pieces of the stage before it.
  void add_gpt2();
  // Matches are words, and so is what lies between them. `source` names the file in errors.
  void add_regex(std::string_view pattern, const std::string& source);

  // Calls `word` for each word in order. Bytes that are not UTF-8 form words of their own. Safe
  // from any thread.
  void split(std::string_view text, const Word& word) const;

  // True if a space after an ASCII letter always begins a word, so that a long text may be cut
  // there.
  bool cuts_before_spaces() const { return stages_.size() == 1 && stages_[0].gpt2; }

 private:
  struct Stage {
    bool gpt2 = false;
    std::shared_ptr<const Regex> regex;
  };

  void split_valid(size_t stage, std::string_view text, const Word& word) const;

  std::vector<Stage> stages_;
};

}  // namespace onefold
