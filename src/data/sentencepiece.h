// SentencePiece's own file (tokenizer.model), made into what a tokenizer.json would hold.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onefold {

struct SentencePiece {
  enum Type : uint64_t {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUser = 4,
    kUnused = 5,
    kByte = 6
  };
  std::string text;
  float score = 0;
  uint64_t type = kNormal;
};

struct SentencePieceModel {
  enum Type : uint64_t { kUnigram = 1, kBpe = 2 };
  std::vector<SentencePiece> pieces;
  uint64_t type = kUnigram;
  bool byte_fallback = false;
  bool add_dummy_prefix = true, remove_extra_spaces = true;
  std::string charsmap;
};

// The text of a tokenizer.json for a BPE or Unigram model, as transformers converts Llama's and
// T5's. UserError, naming `source`, for bytes that are no such file and for models of words or
// characters.
std::string tokenizer_json_of_sentencepiece(std::string_view bytes, const std::string& source);
std::string tokenizer_json_of_sentencepiece(const SentencePieceModel& model,
                                            const std::string& source);

}  // namespace onefold
