// The tokenizer of a Hugging Face folder: tokenizer.json, or vocab.json with merges.txt, which is
// made into the same Tokenizer; and which token ends a text, which tokenizer.json does not say but
// the files beside it do.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "data/tokenizer.h"

namespace onefold {

// `path` is a tokenizer.json, a folder or a GGUF file, which says all of it itself. End-of-text is
// what the files beside it name, in this order: eos_token of tokenizer_config.json and
// special_tokens_map.json; eos_token_id of generation_config.json, config.json and hf_config.json,
// the first of a list; else the first of four usual names that the tokenizer has. Its chat template
// is what the files beside it hold. UserError if it names a token that there is not, if a
// vocab.json is of a class whose words are cut in another way than GPT-2's or Qwen's, and for a
// folder without a tokenizer that can be read, which says what to do.
Tokenizer load_tokenizer(const std::string& path);

// What load_tokenizer would read of a folder: its tokenizer.json, or the folder itself if it has
// vocab.json and merges.txt; "" if it has neither.
std::string tokenizer_in_folder(const std::string& folder);

// Files that belong to a tokenizer or to generation, and go with a model from folder to folder.
std::span<const std::string_view> hf_companion_names();
inline constexpr const char* kHfGeneration = "generation_config.json";
// In a run's folder: config.json of the Hugging Face model that it began with.
inline constexpr const char* kHfConfigKept = "hf_config.json";

// Name and content of those that lie beside a tokenizer, tokenizer.json among them. `path` as for
// load_tokenizer; "bytes" has none.
std::map<std::string, std::string> tokenizer_companions(const std::string& path);

// The template that conversations are rendered with (chat_template.h), of the files beside a
// tokenizer, given by name and content: chat_template.jinja, else "chat_template" of
// chat_template.json or tokenizer_config.json; "" if they have none.
inline constexpr std::string_view kPlainChat = "default", kToolsChat = "tool_use";
std::string chat_template_of(const std::map<std::string, std::string>& files,
                             std::string_view kind = kPlainChat);

// Gives a tokenizer the template of the files in a folder, if there is one.
void take_chat_template(const std::string& folder, Tokenizer& tokenizer);

// How documents end, for people: "ended by <|endoftext|> (256, by config.json)", or by no token.
// `tokenizer` may be null.
std::string describe_end_of_text(int32_t id, const Tokenizer* tokenizer);

// The folder that a tokenizer's path, or any file's, lies in.
std::string folder_of_tokenizer(const std::string& path);

}  // namespace onefold
