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

// Calls `document` for each document that is not empty, in order. The view is valid during the call
// only. Lines end with "\n" or "\r\n", neither of which belongs to the document. Throws UserError
// (file, and line for JSONL) for what cannot be read, for empty files, and for a source of format
// kTokens, which holds no text.
void for_each_document(const DataSource& source,
                       const std::function<void(std::string_view)>& document);

}  // namespace onefold
