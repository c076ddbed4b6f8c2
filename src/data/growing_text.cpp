#include "data/growing_text.h"

#include <algorithm>
#include <string_view>

namespace onefold {
namespace {

constexpr std::string_view kNoCharacter = "\uFFFD";

struct Utf8 {
  size_t bytes;  // that belong together
  enum { kWhole, kCut, kInvalid } state;
};

// The character at the beginning of a text that is not empty. One that ends with the text may go
// on; invalid bytes belong together as far as they could have begun a character.
Utf8 leading_character(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, Utf8::kWhole};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return {1, Utf8::kInvalid};
  // Longer spellings of short characters, surrogates, and what is beyond Unicode show in the second
  // byte.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t at = 1; at < length; ++at) {
    if (at == text.size()) return {at, Utf8::kCut};
    if (byte(at) < (at == 1 ? low : 0x80) || byte(at) > (at == 1 ? high : 0xBF))
      return {at, Utf8::kInvalid};
  }
  return {length, Utf8::kWhole};
}

// How many bytes at the end of the text may begin a stop text.
size_t begun(std::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops)
    for (size_t bytes = std::min(text.size(), stop.size() - 1); bytes > longest; --bytes)
      if (stop.starts_with(text.substr(text.size() - bytes))) longest = bytes;
  return longest;
}

std::vector<std::string> not_empty(std::vector<std::string> stops) {
  std::erase_if(stops, [](const std::string& stop) { return stop.empty(); });
  return stops;
}

}  // namespace

GrowingText::GrowingText(const Tokenizer& tokenizer, std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(not_empty(std::move(stops))) {}

// Moves whole characters, or all there are, to where stop texts are looked for.
void GrowingText::take_characters(bool all) {
  size_t at = 0;
  while (at < bytes_.size()) {
    const Utf8 next = leading_character(std::string_view(bytes_).substr(at));
    if (next.state == Utf8::kCut && !all) break;
    waiting_ +=
        next.state == Utf8::kWhole ? std::string_view(bytes_).substr(at, next.bytes) : kNoCharacter;
    at += next.bytes;
  }
  bytes_.erase(0, at);
}

std::string GrowingText::show(size_t bytes) {
  std::string piece = waiting_.substr(0, bytes);
  waiting_.erase(0, bytes);
  shown_ += piece;
  return piece;
}

std::string GrowingText::add(int32_t token) {
  if (stopped_) return "";
  if (token < tokenizer_.vocab_size())
    bytes_ += tokenizer_.token_text(token);
  else
    bytes_ += kNoCharacter;
  take_characters(false);
  size_t stop = std::string::npos;
  for (const std::string& text : stops_) stop = std::min(stop, waiting_.find(text));
  if (stop == std::string::npos) return show(waiting_.size() - begun(waiting_, stops_));
  stopped_ = true;
  std::string piece = show(stop);
  waiting_.clear();
  bytes_.clear();
  return piece;
}

std::string GrowingText::finish() {
  take_characters(true);
  return show(waiting_.size());
}

}  // namespace onefold
