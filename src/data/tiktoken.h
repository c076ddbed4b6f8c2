// Vocabularies that are tokens with ranks, made into what a tokenizer.json would hold: tiktoken's
// files (a token in base64 and its rank on each line) and Mistral's tekken.json. Two neighbours
// that make a token are put together, that of the lowest rank first; a word that is a token is
// taken as it is.
#pragma once

#include <string>
#include <string_view>

namespace onefold {

// Whether a file's content begins like tiktoken's: Llama 3's tokenizer.model does.
bool is_tiktoken(std::string_view content);

// Such a file has neither pattern nor special tokens; they follow from `name`, the file's without
// its folder: cl100k_base, o200k_base, p50k_base, r50k_base, qwen or tokenizer.model (Llama 3).
// UserError for others, and for what is no such file; `source` names it.
std::string tokenizer_json_of_tiktoken(std::string_view content, const std::string& name,
                                       const std::string& source);

// tekken.json, which has all of it.
std::string tokenizer_json_of_tekken(std::string_view content, const std::string& source);

}  // namespace onefold
