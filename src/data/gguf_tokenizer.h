// The tokenizer among the values of a GGUF file (tokenizer.ggml.*), which is a tokenizer.json in
// other words: byte-level BPE ("gpt2"), whose way of cutting words is a name, and SentencePiece's
// BPE ("llama").
#pragma once

#include <cstdint>
#include <string>

#include "base/gguf.h"
#include "data/tokenizer.h"

namespace onefold {

// Whether a file has a tokenizer; one whose kind is not read counts.
bool has_gguf_tokenizer(const GgufFile& file);
// The text of a tokenizer.json. UserError that says what the file has if it cannot be read.
std::string tokenizer_json_of_gguf(const GgufFile& file);
// The same as a tokenizer, with the file's end of text.
Tokenizer load_gguf_tokenizer(const GgufFile& file);

// Adds a tokenizer.json to a file of `vocab_size` tokens. `ids`: bos_token_id, eos_token_id and
// pad_token_id as config.json has them. Returns "", or why llama.cpp cannot run this tokenizer, as
// half a sentence; then the file has none.
std::string add_gguf_tokenizer(const std::string& tokenizer_json, int64_t vocab_size,
                               const Json& ids, GgufHeader& header);

}  // namespace onefold
