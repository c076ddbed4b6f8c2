#include "data/documents.h"

#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace onefold {
namespace {

// Text of a document, and where in the file it lies.
using Visit = std::function<void(std::string_view text, const char* place)>;

// Gives back the pages of a mapped file that have been read. They would stay in the process until
// memory runs short, and a container that counts them against its limit ends the process.
class ReadPages {
 public:
  explicit ReadPages(std::string_view file) : begin_(file.data()) {}

  void done_with(const char* until) {
    constexpr size_t kStepBytes = size_t{4} << 20;  // a system call for each page would cost more
    if (until < begin_ + kStepBytes) return;
    static const auto kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t bytes = static_cast<size_t>(until - begin_) / kPage * kPage;
    madvise(const_cast<char*>(begin_), bytes, MADV_DONTNEED);  // a hint: failing does no harm
    begin_ += bytes;
  }

 private:
  const char* begin_;  // on a page's edge
};

size_t choose(std::string_view name, std::string_view what,
              const std::vector<std::string>& choices) {
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == name) return i;
  }
  user_error("{}: \"{}\" is none of {}{}", what, name, join(choices, ", "),
             did_you_mean(name, choices));
}

// Takes the first line off `text`, without its end.
std::string_view take_line(std::string_view& text) {
  const size_t newline = text.find('\n');
  std::string_view line = text.substr(0, newline);
  text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

void visit_lines(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (!line.empty()) visit(line, line.data());
  }
}

// Runs of lines that are not blank. A line of spaces is blank: it looks like one.
void visit_paragraphs(std::string_view text, const Visit& visit) {
  const char* begin = nullptr;
  const char* end = nullptr;
  const auto close = [&] {
    if (begin) visit({begin, static_cast<size_t>(end - begin)}, begin);
    begin = nullptr;
  };
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      close();
      continue;
    }
    if (!begin) begin = line.data();
    end = line.data() + line.size();
  }
  close();
}

std::string keys_of(const nlohmann::json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back("\"" + key + "\"");
  return keys.empty() ? "none" : join(keys, ", ");
}

void visit_jsonl(std::string_view text, const std::string& path, const std::string& field,
                 const Visit& visit) {
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_line(text);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    nlohmann::json object;
    try {
      object = nlohmann::json::parse(line);
    } catch (const nlohmann::json::exception& error) {
      user_error("{}:{}: this line is not JSON ({}); a JSONL file has one JSON object on each line",
                 path, number, json_reason(error.what()));
    }
    if (!object.is_object()) {
      user_error("{}:{}: this line holds {} where a JSON object is needed", path, number,
                 object.type_name());
    }
    const auto found = object.find(field);
    if (found == object.end()) {
      user_error(
          "{}:{}: there is no field \"{}\" on this line; its fields are {}. Set \"field\" to the "
          "one with the text",
          path, number, field, keys_of(object));
    }
    if (!found->is_string()) {
      user_error("{}:{}: the field \"{}\" holds {} where a string is needed", path, number, field,
                 found->type_name());
    }
    const std::string& document = found->get_ref<const std::string&>();
    if (!document.empty()) visit(document, line.data());
  }
}

}  // namespace

DataFormat parse_data_format(std::string_view name, std::string_view what) {
  return static_cast<DataFormat>(choose(name, what, {"text", "jsonl", "tokens"}));
}

TextDocuments parse_text_documents(std::string_view name, std::string_view what) {
  return static_cast<TextDocuments>(choose(name, what, {"file", "line", "blank_line"}));
}

int64_t input_bytes(const DataSource& source) {
  int64_t bytes = 0;
  for (const std::string& path : source.paths)
    bytes += static_cast<int64_t>(MappedFile(path).bytes().size());
  return bytes;
}

void for_each_document(const DataSource& source,
                       const std::function<void(const Document&)>& visit) {
  if (source.paths.empty()) user_error("no data files are given");
  int64_t before = 0;  // bytes of the files before this one
  for (const std::string& path : source.paths) {
    const MappedFile file(path);
    const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                                file.bytes().size());
    if (text.empty()) user_error("{} is empty; give a file with text, or leave it out", path);
    if (source.format == DataFormat::kTokens) user_error("{}: a token file holds no text", path);
    ReadPages pages(text);
    const Visit visit_one = [&](std::string_view document, const char* place) {
      pages.done_with(place);
      const bool mapped = document.data() == place;  // not a string parsed from JSON
      visit({document, before + (place - text.data()), [&, mapped](size_t bytes) {
               if (mapped) pages.done_with(place + bytes);
             }});
    };
    if (source.format == DataFormat::kJsonl) {
      visit_jsonl(text, path, source.field, visit_one);
    } else if (source.text_documents == TextDocuments::kLine) {
      visit_lines(text, visit_one);
    } else if (source.text_documents == TextDocuments::kBlankLine) {
      visit_paragraphs(text, visit_one);
    } else {
      visit_one(text, text.data());
    }
    before += static_cast<int64_t>(text.size());
  }
}

}  // namespace onefold
