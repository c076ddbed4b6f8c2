// JSON with positions in errors, and a reader that lets nothing pass unread: every key of an object must be taken by
// someone, with the right type, or reading ends in a UserError that names the JSON path and the nearest known key.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace onefold {

using Json = nlohmann::ordered_json;

// Parses a document; the error names `source`, line and column.
Json parse_json(std::string_view text, const std::string& source);
Json read_json(const std::string& path);

}  // namespace onefold
