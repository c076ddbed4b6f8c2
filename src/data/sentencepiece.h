// SentencePiece's own file (tokenizer.model), made into what a tokenizer.json would hold.
#pragma once

#include <string>
#include <string_view>

namespace onefold {

// The text of a tokenizer.json for a BPE or Unigram model, as transformers converts Llama's and
// T5's. UserError, naming `source`, for bytes that are no such file and for models of words or
// characters.
std::string tokenizer_json_of_sentencepiece(std::string_view bytes, const std::string& source);

}  // namespace onefold
