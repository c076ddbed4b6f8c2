// Added tokens: those that merging never makes. They are found in the text as `tokenizers` finds
// them, before it is cut into words.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onefold {

struct AddedToken {
  int32_t id = -1;
  std::string text;
  // Special tokens steer the model. Text that merely spells one is plain text unless the caller
  // says otherwise.
  bool special = true;
  bool single_word = false;             // not next to a letter, digit, mark or underscore
  bool lstrip = false, rstrip = false;  // takes the white space before it, after it
  bool normalized = false;              // looked for after normalizing, in its own normalized form
  bool in_vocabulary = true;            // also listed under model.vocab
};

// A set of added tokens to look for.
class AddedTokenFinder {
 public:
  // `text` is what to look for: the token's own, or its normalized form.
  void add(const AddedToken& token, std::string_view text);

  using Visit = std::function<void(std::string_view text, const AddedToken* token)>;
  // Calls `visit` for every part of the text in order: a token's occurrence, or plain text (token
  // is null). The leftmost token is found first, the longest of several. An occurrence that does
  // not count (a special token unless `specials`, a single word within a word) is plain text, in
  // which no other token is looked for.
  void split(std::string_view text, bool specials, const Visit& visit) const;

  bool empty() const { return nodes_.size() == 1; }
  // True if no token spans an ASCII letter and a space after it, or takes that space.
  bool cuts_before_spaces() const { return cuts_before_spaces_; }

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> next;
    AddedToken token;  // id -1: none ends here
  };

  // The longest token at the start of `text`, and its length.
  std::pair<const AddedToken*, size_t> at(std::string_view text) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);  // a trie; 0 is the root
  std::array<bool, 256> starts_{};
  bool cuts_before_spaces_ = true;
};

}  // namespace onefold
