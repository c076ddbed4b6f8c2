#include "data/token_decoder.h"

#include <utility>

#include "data/bpe_model.h"
#include "data/byte_level.h"
#include "data/normalizer.h"

namespace onefold {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     size_t most_bytes) {
  std::string result;
  append_replaced(text, from, to, most_bytes, result);
  return result;
}

size_t total_bytes(const std::vector<std::string>& tokens) {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

void decode_byte_level(std::vector<std::string>& tokens) {
  std::string all, bytes;
  for (const std::string& token : tokens) all += from_byte_alphabet(token, bytes) ? bytes : token;
  tokens = {utf8_lossy(all)};
}

// Runs of byte tokens become text; a run that is not UTF-8 as a whole becomes one U+FFFD a byte.
void decode_byte_fallback(std::vector<std::string>& tokens) {
  std::vector<std::string> result;
  std::string run;
  const auto end_run = [&] {
    if (run.empty()) return;
    if (utf8_prefix(run) == run.size()) {
      result.push_back(run);
    } else {
      result.insert(result.end(), run.size(), std::string(kReplacement));
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = byte_of_token_name(token); byte >= 0) {
      run.push_back(static_cast<char>(byte));
      continue;
    }
    end_run();
    result.push_back(std::move(token));
  }
  end_run();
  tokens = std::move(result);
}

void strip(std::string& token, std::string_view character, int64_t start, int64_t stop) {
  for (; start > 0 && token.starts_with(character); --start) token.erase(0, character.size());
  for (; stop > 0 && token.ends_with(character); --stop)
    token.resize(token.size() - character.size());
}

std::string word_piece(const std::string& token, const std::string& prefix) {
  return token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
}

std::string cleaned_up(std::string text, size_t most_bytes) {
  constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kChanges) text = replaced(text, from, to, most_bytes);
  return text;
}

}  // namespace

void TokenDecoder::add_byte_level() { steps_.push_back({.type = DecoderStep::Type::kByteLevel}); }
void TokenDecoder::add_replace(std::string from, std::string to) {
  steps_.push_back({DecoderStep::Type::kReplace, std::move(from), std::move(to)});
}
void TokenDecoder::add_byte_fallback() {
  steps_.push_back({.type = DecoderStep::Type::kByteFallback});
}
void TokenDecoder::add_fuse() { steps_.push_back({.type = DecoderStep::Type::kFuse}); }
void TokenDecoder::add_strip(std::string character, int64_t start, int64_t stop) {
  steps_.push_back({.type = DecoderStep::Type::kStrip,
                    .from = std::move(character),
                    .start = start,
                    .stop = stop});
}
void TokenDecoder::add_metaspace(std::string mark, bool drop_first) {
  steps_.push_back(
      {.type = DecoderStep::Type::kMetaspace, .from = std::move(mark), .drop_first = drop_first});
}

void TokenDecoder::add_word_piece(std::string prefix, bool cleanup) {
  steps_.push_back(
      {.type = DecoderStep::Type::kWordPiece, .from = std::move(prefix), .drop_first = cleanup});
}
void TokenDecoder::add_suffix(std::string suffix) {
  steps_.push_back({.type = DecoderStep::Type::kSuffix, .from = std::move(suffix)});
}

void TokenDecoder::take(const DecoderStep& step, size_t most_bytes,
                        std::vector<std::string>& tokens) {
  switch (step.type) {
    case DecoderStep::Type::kByteLevel:
      return decode_byte_level(tokens);
    case DecoderStep::Type::kByteFallback:
      return decode_byte_fallback(tokens);
    case DecoderStep::Type::kReplace:
      for (std::string& token : tokens) token = replaced(token, step.from, step.to, most_bytes);
      return;
    case DecoderStep::Type::kStrip:
      for (std::string& token : tokens) strip(token, step.from, step.start, step.stop);
      return;
    case DecoderStep::Type::kMetaspace:
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] =
            replaced(tokens[i], step.from, i == 0 && step.drop_first ? "" : " ", most_bytes);
      return;
    case DecoderStep::Type::kWordPiece:
      for (size_t i = 0; i < tokens.size(); ++i) {
        std::string& token = tokens[i];
        if (i > 0) token = word_piece(token, step.from);
        if (step.drop_first) token = cleaned_up(token, most_bytes);
      }
      return;
    case DecoderStep::Type::kSuffix:
      for (size_t i = 0; i < tokens.size(); ++i)
        if (!step.from.empty())
          tokens[i] = replaced(tokens[i], step.from, i + 1 == tokens.size() ? "" : " ", most_bytes);
      return;
    case DecoderStep::Type::kFuse: {
      std::string all;
      for (const std::string& token : tokens) all += token;
      tokens = {std::move(all)};
      return;
    }
  }
}

std::string TokenDecoder::text_of(std::vector<std::string> tokens) const {
  const size_t most_bytes = most_replaced_bytes(total_bytes(tokens));
  for (const DecoderStep& step : steps_) take(step, most_bytes, tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && steps_.empty()) text += ' ';
    text += tokens[i];
  }
  return text;
}

std::string TokenDecoder::bytes_of(std::string_view token) const {
  const size_t most_bytes = most_replaced_bytes(token.size());
  std::string bytes(token), decoded;
  for (const DecoderStep& step : steps_) {
    switch (step.type) {
      case DecoderStep::Type::kByteLevel:
        if (from_byte_alphabet(bytes, decoded)) bytes = decoded;
        break;
      case DecoderStep::Type::kByteFallback:
        if (const int byte = byte_of_token_name(bytes); byte >= 0)
          bytes.assign(1, static_cast<char>(byte));
        break;
      case DecoderStep::Type::kReplace:
        bytes = replaced(bytes, step.from, step.to, most_bytes);
        break;
      case DecoderStep::Type::kMetaspace:
        bytes = replaced(bytes, step.from, " ", most_bytes);
        break;
      case DecoderStep::Type::kWordPiece:
        bytes = word_piece(bytes, step.from);
        break;
      case DecoderStep::Type::kSuffix:
        if (!step.from.empty()) bytes = replaced(bytes, step.from, " ", most_bytes);
        break;
      case DecoderStep::Type::kFuse:
      case DecoderStep::Type::kStrip:
        break;
    }
  }
  return bytes;
}

}  // namespace onefold
