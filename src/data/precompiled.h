// SentencePiece's own normalization: a map from short strings to others, compiled into a
// double-array trie and the texts that it points into.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onefold {

class PrecompiledMap {
 public:
  // `bytes` is the map as files hold it; UserError, naming `source`, if it is none.
  PrecompiledMap(std::string_view bytes, const std::string& source);

  // Appends well-formed UTF-8 as the map has it. As `tokenizers` does it: a grapheme of fewer than
  // 6 bytes as a whole, if the map has its beginning, else character by character.
  void append(std::string_view text, std::string& result) const;

 private:
  // What the shortest beginning of `chunk` that the map has stands for; false if it has none.
  bool find(std::string_view chunk, std::string_view& mapped) const;

  std::vector<uint32_t> units_;
  std::string texts_;  // each ends with a zero
};

// What base64 stands for; false if `text` is not base64.
bool from_base64(std::string_view text, std::string& bytes);

}  // namespace onefold
