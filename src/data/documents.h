// The documents of text, JSONL and conversation files, one after the other, in bounded memory. A
// file may be compressed, a pipe, or standard input (data/byte_input.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat.h"

namespace onefold {

enum class DataFormat { kText, kJsonl, kTokens, kChat };
enum class TextDocuments { kFile, kLine, kBlankLine };

// "text", "jsonl", "tokens", "chat"; "file", "line", "blank_line". Errors name `what` (the
// configuration key) and the choices.
DataFormat parse_data_format(std::string_view name, std::string_view what);
TextDocuments parse_text_documents(std::string_view name, std::string_view what);
std::string_view data_format_name(DataFormat format);
std::string_view text_documents_name(TextDocuments unit);

// By a file's name, without .gz or .zst: .jsonl and .ndjson, .tokens and .bin, else text. None for
// names of what is no text: .json, .parquet, .csv, ...
std::optional<DataFormat> format_by_name(const std::string& path);
// Whether the first line of a file with JSON lines is a conversation. Of what can be read once
// only, false.
bool holds_conversations(const std::string& path);

struct DataSource {
  // Files, in the order of reading; "-" is standard input; a pattern (* ? [a-z]) is all files that
  // match it, in order of their names.
  std::vector<std::string> paths;
  // Of each of `paths`: how often its documents are drawn in an epoch. Empty: once.
  std::vector<double> weights = {};
  DataFormat format = DataFormat::kText;
  TextDocuments text_documents = TextDocuments::kFile;  // text: what one document is
  std::string field = "text";                           // jsonl: the key that holds the document
  std::optional<ChatMarkers> chat = std::nullopt;       // chat; none: whatever renders it
  bool special_tokens = false;  // text that spells a special token becomes its id
  bool skip_bad = false;        // jsonl, chat: lines that cannot be read are left out and counted
  int64_t vocab_size = 0;       // of token files that do not say, without a tokenizer
};

// The same with patterns replaced by what they match, and without weights. UserError for a pattern
// that matches nothing. A path that is there is no pattern.
DataSource expanded(const DataSource& source);

// Bytes of all the source's files together, as they are on disk; 0 if one is a pipe. Throws
// UserError for a file that is not there.
int64_t input_bytes(const DataSource& source);

// One document while it is visited, or a piece of it: long texts come in several.
struct Document {
  std::string_view text;            // valid during the visit only. Of a conversation: all it says
  bool begins = true, ends = true;  // whether the document does so with this piece
  size_t file = 0;                  // of the expanded paths
  int64_t position = 0;    // bytes of the (decompressed) file before its text, or before its line
  int64_t read_bytes = 0;  // of all files so far, as they are on disk
  const Conversation* conversation = nullptr;  // chat
  std::string where = {};                      // chat: "file:line"
};

struct DocumentReport {
  int64_t skipped = 0;        // lines
  std::string first_skipped;  // why
};

// Calls `visit` for each document that is not empty, in order. Lines end with "\n" or "\r\n",
// neither of which belongs to the document. Throws UserError (file, and line for JSONL) for what
// cannot be read, for empty files, and for a source of format kTokens, which holds no text.
DocumentReport for_each_document(const DataSource& source,
                                 const std::function<void(const Document&)>& visit);

}  // namespace onefold
