// Changes to text before it is cut into words: Unicode's NFC, text put in front, text replaced.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace onefold {

class Normalizer {
 public:
  // Changes are made in the order they are added.
  void add_nfc();
  void add_prepend(std::string text);  // in front of text that is not empty
  void add_replace(std::string from, std::string to);

  // The text after all changes: itself if nothing changes, else a view into `buffer`. Bytes that
  // are not UTF-8 stay as they are. With `continues` the text follows text that was normalized
  // before it, and nothing is put in front.
  std::string_view apply(std::string_view text, bool continues, std::string& buffer) const;

  bool empty() const { return changes_.empty(); }
  // True if text may be cut before any space, and its parts be normalized alone.
  bool cuts_before_spaces() const;

 private:
  struct Change {
    enum class Type { kNfc, kPrepend, kReplace };
    Type type;
    std::string from = "", to = "";
  };

  std::vector<Change> changes_;
};

// The most bytes that replacing may make of a text of so many. A few changes that each double a
// letter would fill any memory, from a file of a few hundred bytes.
inline size_t most_replaced_bytes(size_t bytes) { return 64 * bytes + (size_t{1} << 16); }

// Appends `text` to `result` with every `from` (not empty) changed into `to`. UserError if the
// result would have more than `most_bytes`.
void append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     size_t most_bytes, std::string& result);

}  // namespace onefold
