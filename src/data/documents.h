// The documents of text and JSONL files, one after the other, without holding more than the one at
// hand.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace onefold {

enum class DataFormat { kText, kJsonl, kTokens };
enum class TextDocuments { kFile, kLine, kBlankLine };

// "text", "jsonl", "tokens"; "file", "line", "blank_line". Errors name `what` (the configuration
// key) and the choices.
DataFormat parse_data_format(std::string_view name, std::string_view what);
TextDocuments parse_text_documents(std::string_view name, std::string_view what);

struct DataSource {
  std::vector<std::string> paths;  // read in this order
  DataFormat format = DataFormat::kText;
  TextDocuments text_documents = TextDocuments::kFile;  // text: what one document is
  std::string field = "text";                           // jsonl: the key that holds the document
};

// Bytes of all the source's files together. Throws UserError for a file that cannot be opened.
int64_t input_bytes(const DataSource& source);

// One document while it is visited.
struct Document {
  std::string_view text;  // valid during the visit only
  int64_t position = 0;   // input bytes before its text; the text's own length may differ (JSON)
  // Says that text before this byte is not needed any more: its pages are given back, so that a
  // file larger than memory can be one document. The text there may still be read, at the disk's
  // speed.
  std::function<void(size_t)> done_with = [](size_t) {};
};

// Calls `visit` for each document that is not empty, in order. Lines end with "\n" or "\r\n",
// neither of which belongs to the document. Holds no more than a few megabytes of the files. Throws
// UserError (file, and line for JSONL) for what cannot be read, for empty files, and for a source
// of format kTokens, which holds no text.
void for_each_document(const DataSource& source, const std::function<void(const Document&)>& visit);

}  // namespace onefold
