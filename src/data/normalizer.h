// Changes to text before it is cut into words: Unicode's normal forms, lower case, text put in
// front, stripped or replaced, SentencePiece's own map; as `tokenizers` makes them, with its
// Unicode.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/pattern.h"
#include "data/precompiled.h"

namespace onefold {

class Normalizer {
 public:
  enum class Form { kNfc, kNfd, kNfkc, kNfkd };
  struct Bert {
    bool clean_text = true, handle_chinese = true, strip_accents = true, lowercase = true;
  };

  // Changes are made in the order they are added.
  void add_form(Form form);
  void add_lowercase();
  void add_strip_accents();  // marks, of text that is decomposed already
  void add_strip(bool left, bool right);
  void add_nmt();
  void add_bert(Bert options);
  void add_prepend(std::string text);  // in front of text that is not empty
  void add_replace(std::string from, std::string to);
  void add_replace(std::shared_ptr<const Pattern> pattern, std::string to);
  void add_precompiled(std::shared_ptr<const PrecompiledMap> map);

  // The text after all changes: itself if nothing changes, else a view into `buffer`. Bytes that
  // are not UTF-8 stay as they are. With `continues` the text follows text that was normalized
  // before it, and nothing is put in front.
  std::string_view apply(std::string_view text, bool continues, std::string& buffer) const;

  bool empty() const { return changes_.empty(); }
  // True if text may be cut before any space, and its parts be normalized alone.
  bool cuts_before_spaces() const;

 private:
  struct Change {
    enum class Type {
      kForm,
      kLowercase,
      kStripAccents,
      kStrip,
      kNmt,
      kBert,
      kPrepend,
      kReplace,
      kReplacePattern,
      kPrecompiled
    };
    Type type;
    std::string from = "", to = "";
    Form form = Form::kNfc;
    bool left = false, right = false;
    Bert bert = {};
    std::shared_ptr<const Pattern> pattern = nullptr;
    std::shared_ptr<const PrecompiledMap> map = nullptr;
  };

  // Whether `change` leaves the text as it is, as far as that is seen at a glance.
  static bool surely_same(const Change& change, std::string_view text, bool continues);
  static std::string changed(const Change& change, std::string_view text, size_t most_bytes);

  std::vector<Change> changes_;
};

// The most bytes that replacing may make of a text of so many. A few changes that each double a
// letter would fill any memory, from a file of a few hundred bytes.
inline size_t most_replaced_bytes(size_t bytes) { return 64 * bytes + (size_t{1} << 16); }

// Appends `text` to `result` with every `from` (not empty) changed into `to`. UserError if the
// result would have more than `most_bytes`.
void append_replaced(std::string_view text, std::string_view from, std::string_view to,
                     size_t most_bytes, std::string& result);
// The same for what a pattern matches, in well-formed UTF-8.
void append_replaced(std::string_view text, const Pattern& pattern, std::string_view to,
                     size_t most_bytes, std::string& result);

}  // namespace onefold
