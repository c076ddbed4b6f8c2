#include "data/documents.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "data/byte_input.h"

namespace onefold {
namespace {

constexpr std::array<std::string_view, 4> kFormats = {"text", "jsonl", "tokens", "chat"};
constexpr std::array<std::string_view, 3> kUnits = {"file", "line", "blank_line"};
constexpr size_t kPieceBytes = size_t{1} << 18;  // of a long text

size_t choose(std::string_view name, std::string_view what,
              std::span<const std::string_view> choices) {
  const auto found = std::find(choices.begin(), choices.end(), name);
  if (found != choices.end()) return static_cast<size_t>(found - choices.begin());
  const std::vector<std::string> names(choices.begin(), choices.end());
  user_error("{}: \"{}\" is none of {}{}", what, name, join(names, ", "),
             did_you_mean(name, names));
}

// Text of a document or a piece of one, and where in the file it begins.
using VisitText =
    std::function<void(std::string_view text, int64_t position, bool begins, bool ends)>;

bool is_letter(char c) {
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'z';
}

// Where to cut a text that goes on: before a space after a letter, which few tokenizers see, else
// between characters. Leaves at least one byte.
size_t piece_end(std::string_view text) {
  const size_t lowest = text.size() / 2;
  for (size_t at = text.size() - 1; at > lowest; --at)
    if (text[at] == ' ' && is_letter(text[at - 1])) return at;
  size_t at = text.size() - 1;
  while (at > text.size() - 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

void visit_whole(ByteInput& input, const VisitText& visit) {
  std::string held;
  int64_t position = 0;
  for (bool begins = true;; begins = false) {
    const size_t before = held.size();
    held.resize(before + kPieceBytes);
    const size_t count = input.read(std::span(held).subspan(before));
    held.resize(before + count);
    if (count < kPieceBytes) {
      if (!held.empty()) visit(held, position, begins, true);
      return;
    }
    const size_t cut = piece_end(held);
    visit(std::string_view(held).substr(0, cut), position, begins, false);
    held.erase(0, cut);
    position += static_cast<int64_t>(cut);
  }
}

void visit_lines(ByteInput& input, const VisitText& visit) {
  LineReader lines(input);
  while (lines.next())
    if (!lines.line().empty()) visit(lines.line(), lines.position(), true, true);
}

// Runs of lines that are not blank. A line of spaces is blank: it looks like one.
void visit_paragraphs(ByteInput& input, const VisitText& visit) {
  LineReader lines(input);
  std::string held, line_end;  // of the paragraph so far, and what ends its last line
  int64_t position = 0;
  bool begins = true;
  const auto close = [&] {
    if (!held.empty()) visit(held, position, begins, true);
    held.clear();
    begins = true;
  };
  while (lines.next()) {
    if (lines.line().find_first_not_of(" \t\r") == std::string_view::npos) {
      close();
      continue;
    }
    if (!held.empty()) held += line_end;
    if (held.size() >= kPieceBytes) {
      visit(held, position, begins, false);
      held.clear();
      begins = false;
    }
    if (held.empty()) position = lines.position();
    held += lines.line();
    line_end = lines.end();
  }
  close();
}

std::string keys_of(const nlohmann::json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back("\"" + key + "\"");
  return keys.empty() ? "none" : join(keys, ", ");
}

[[noreturn]] void not_json(const std::string& where, std::string_view reason) {
  user_error("{}: this line is not JSON ({}); a JSONL file has one JSON object on each line", where,
             reason);
}
[[noreturn]] void not_object(const std::string& where, std::string_view kind) {
  user_error("{}: this line holds {} where a JSON object is needed", where, kind);
}

nlohmann::json parse_line(std::string_view line, const std::string& where) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception& error) {
    not_json(where, json_reason(error.what()));
  }
  if (!object.is_object()) not_object(where, object.type_name());
  return object;
}

std::string text_of_line(std::string_view line, const std::string& where,
                         const std::string& field) {
  nlohmann::json object = parse_line(line, where);
  const auto found = object.find(field);
  if (found == object.end()) {
    const bool chat = object.contains("messages") || object.contains("conversations");
    user_error("{}: there is no field \"{}\" on this line; its fields are {}. {}", where, field,
               keys_of(object),
               chat ? "For conversations, set the format to \"chat\""
                    : "Set \"field\" to the one with the text");
  }
  if (!found->is_string())
    user_error("{}: the field \"{}\" holds {} where a string is needed", where, field,
               found->type_name());
  return std::move(found->get_ref<std::string&>());
}

Conversation conversation_of_line(std::string_view line, const std::string& where,
                                  const std::optional<ChatMarkers>& markers) {
  const auto parsed = [&] {
    try {
      return parse_json_line(line);
    } catch (const UserError& error) {
      not_json(where, error.what());
    }
  };
  const Json object = parsed();
  if (!object.is_object()) not_object(where, json_kind(object));
  Conversation conversation = parse_conversation(object, where);
  if (markers) markers->require_shown(conversation, where);
  return conversation;
}

// All that is said in it, in no form.
std::string text_of(const Conversation& conversation) {
  std::string text;
  const auto add = [&](const Json& value) { text += value.dump() + "\n"; };
  if (conversation.tools.is_array()) add(conversation.tools);
  for (const ChatMessage& message : conversation.messages) {
    text += message.content + "\n";
    if (!message.fields.is_object()) continue;
    for (const auto& [key, value] : message.fields.get_ref<const Json::object_t&>())
      if (value.is_structured()) add(value);
  }
  return text;
}

// Calls visit(line, where, position) for each line that is not blank. With skip_bad, a line that
// `parse` refuses is counted and left out; what `visit` throws is nobody's bad line.
template <typename Parse, typename Visit>
void visit_json_lines(ByteInput& input, bool skip_bad, DocumentReport& report, const Parse& parse,
                      const Visit& visit) {
  LineReader lines(input);
  while (lines.next()) {
    if (lines.line().find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", input.name(), lines.number());
    std::optional<decltype(parse(lines.line(), where))> parsed;
    try {
      parsed = parse(lines.line(), where);
    } catch (const UserError& error) {
      if (!skip_bad) throw;
      if (report.skipped++ == 0) report.first_skipped = error.what();
      continue;
    }
    visit(*parsed, where, lines.position());
  }
}

// The files that a pattern matches, component by component.
void match(const std::filesystem::path& before, std::span<const std::string> components,
           std::vector<std::string>& found) {
  if (components.empty()) {
    found.push_back(before.string());
    return;
  }
  const std::string& pattern = components.front();
  if (pattern.find_first_of("*?[") == std::string::npos) {
    if (components.size() > 1 || path_exists((before / pattern).string()))
      match(before / pattern, components.subspan(1), found);
    return;
  }
  const std::string folder = before.empty() ? "." : before.string();
  if (!is_folder(folder)) return;
  for (const Files::Entry& entry : list_folder(folder)) {
    if (fnmatch(pattern.c_str(), entry.name.c_str(), FNM_PERIOD) != 0) continue;
    const bool folder_entry = is_folder((before / entry.name).string());
    if (folder_entry == (components.size() > 1))
      match(before / entry.name, components.subspan(1), found);
  }
}

std::vector<std::string> files_of(const std::string& path) {
  if (path == kStandardInput || path.find_first_of("*?[") == std::string::npos || path_exists(path))
    return {path};
  std::vector<std::string> components, found;
  std::filesystem::path root = std::filesystem::path(path).root_path();
  for (const std::filesystem::path& part : std::filesystem::path(path).relative_path())
    components.push_back(part.string());
  match(root, components, found);
  if (found.empty()) user_error("no file matches {}", path);
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

DataFormat parse_data_format(std::string_view name, std::string_view what) {
  return static_cast<DataFormat>(choose(name, what, kFormats));
}
TextDocuments parse_text_documents(std::string_view name, std::string_view what) {
  return static_cast<TextDocuments>(choose(name, what, kUnits));
}
std::string_view data_format_name(DataFormat format) {
  return kFormats[static_cast<size_t>(format)];
}
std::string_view text_documents_name(TextDocuments unit) {
  return kUnits[static_cast<size_t>(unit)];
}

std::optional<DataFormat> format_by_name(const std::string& path) {
  std::filesystem::path name = path;
  if (name.extension() == ".gz" || name.extension() == ".zst") name.replace_extension();
  const std::string extension = name.extension().string();
  if (extension == ".jsonl" || extension == ".ndjson") return DataFormat::kJsonl;
  if (extension == ".tokens" || extension == ".bin") return DataFormat::kTokens;
  for (const std::string_view other :
       {".json", ".parquet", ".arrow", ".npy", ".csv", ".xz", ".bz2", ".zip", ".tar", ".tgz"})
    if (extension == other) return std::nullopt;
  return DataFormat::kText;
}

bool holds_conversations(const std::string& path) {
  if (!path_exists(path) || is_read_once(path)) return false;
  ByteInput input(path);
  LineReader lines(input);
  while (lines.next())
    if (lines.line().find_first_not_of(" \t") != std::string_view::npos) {
      const Json object = Json::parse(lines.line(), nullptr, /*allow_exceptions=*/false);
      return object.is_object() &&
             (object.contains("messages") || object.contains("conversations"));
    }
  return false;
}

DataSource expanded(const DataSource& source) {
  DataSource result = source;
  result.paths.clear();
  result.weights.clear();
  for (const std::string& path : source.paths)
    for (std::string& file : files_of(path)) result.paths.push_back(std::move(file));
  return result;
}

int64_t input_bytes(const DataSource& source) {
  int64_t bytes = 0;
  for (const std::string& path : expanded(source).paths) {
    if (is_read_once(path)) return 0;
    bytes += file_bytes(path);
  }
  return bytes;
}

namespace {

// Visits the documents of one file.
class FileVisitor {
 public:
  FileVisitor(const DataSource& source, size_t file, int64_t before,
              const std::function<void(const Document&)>& visit, DocumentReport& report)
      : source_(source),
        file_(file),
        before_(before),
        visit_(visit),
        report_(report),
        input_(source.paths[file]) {
    if (input_.taken_bytes() == 0)
      user_error("{} is empty; give a file with text, or leave it out", input_.name());
  }

  // Returns the bytes of the file.
  int64_t run() {
    const VisitText text = [&](std::string_view piece, int64_t position, bool begins, bool ends) {
      Document document = at(piece, position);
      document.begins = begins;
      document.ends = ends;
      visit_(document);
    };
    if (source_.format == DataFormat::kJsonl)
      visit_jsonl();
    else if (source_.format == DataFormat::kChat)
      visit_chat();
    else if (source_.text_documents == TextDocuments::kLine)
      visit_lines(input_, text);
    else if (source_.text_documents == TextDocuments::kBlankLine)
      visit_paragraphs(input_, text);
    else
      visit_whole(input_, text);
    return input_.taken_bytes();
  }

 private:
  Document at(std::string_view text, int64_t position) const {
    return {.text = text,
            .file = file_,
            .position = position,
            .read_bytes = before_ + input_.taken_bytes()};
  }

  void visit_jsonl() {
    visit_json_lines(
        input_, source_.skip_bad, report_,
        [&](std::string_view line, const std::string& where) {
          return text_of_line(line, where, source_.field);
        },
        [&](const std::string& text, const std::string&, int64_t position) {
          if (!text.empty()) visit_(at(text, position));
        });
  }

  void visit_chat() {
    visit_json_lines(
        input_, source_.skip_bad, report_,
        [&](std::string_view line, const std::string& where) {
          return conversation_of_line(line, where, source_.chat);
        },
        [&](const Conversation& conversation, const std::string& where, int64_t position) {
          const std::string text = text_of(conversation);
          Document document = at(text, position);
          document.conversation = &conversation;
          document.where = where;
          visit_(document);
        });
  }

  const DataSource& source_;
  const size_t file_;
  const int64_t before_;
  const std::function<void(const Document&)>& visit_;
  DocumentReport& report_;
  ByteInput input_;
};

}  // namespace

DocumentReport for_each_document(const DataSource& given,
                                 const std::function<void(const Document&)>& visit) {
  if (given.paths.empty()) user_error("no data files are given");
  const DataSource source = expanded(given);
  DocumentReport report;
  int64_t before = 0;  // bytes of the files before this one
  for (size_t file = 0; file < source.paths.size(); ++file) {
    if (source.format == DataFormat::kTokens)
      user_error("{}: a token file holds no text", input_name(source.paths[file]));
    before += FileVisitor(source, file, before, visit, report).run();
  }
  return report;
}

}  // namespace onefold
