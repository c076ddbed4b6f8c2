#include "data/foreign_tokens.h"

#include <array>
#include <cstring>

#include "base/error.h"

namespace onefold {
namespace {

constexpr int32_t kLlmcGpt2 = 20240520;    // 16-bit tokens
constexpr int32_t kLlmcLlama3 = 20240801;  // 32-bit
constexpr size_t kLlmcHeader = 256;        // integers: magic, version, number of tokens, zeros

template <typename Word>
void find_starts(const ForeignTokens& tokens, int32_t separator, std::vector<uint64_t>& starts) {
  const auto* const ids = reinterpret_cast<const Word*>(tokens.data);
  const auto count = static_cast<size_t>(tokens.tokens);
  const auto wanted = static_cast<Word>(separator);
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] != wanted) continue;
    const size_t start = tokens.separator_first ? i : i + 1;
    if (start > starts.back() && start < count) starts.push_back(start);
  }
}

}  // namespace

std::optional<ForeignTokens> open_foreign_tokens(const std::string& path) {
  ForeignTokens tokens;
  tokens.file = MappedFile(path);
  const std::span<const std::byte> bytes = tokens.file.bytes();
  std::array<int32_t, 3> header{};
  if (bytes.size() >= sizeof(header)) std::memcpy(header.data(), bytes.data(), sizeof(header));
  size_t begin = 0;
  if (header[0] == kLlmcGpt2 || header[0] == kLlmcLlama3) {
    begin = kLlmcHeader * sizeof(int32_t);
    tokens.token_bytes = header[0] == kLlmcGpt2 ? 2 : 4;
    tokens.separator_first = true;
    if (bytes.size() < begin)
      user_error("{} is cut short inside its header of llm.c's; copy it anew", path);
  } else if (!path.ends_with(".bin") ||
             (bytes.size() >= 8 && std::memcmp(bytes.data(), "ONEFTOK", 8) == 0)) {
    return std::nullopt;
  }
  const size_t room = bytes.size() - begin, width = static_cast<size_t>(tokens.token_bytes);
  if (room == 0) user_error("{} holds no tokens", path);
  if (room % width != 0)
    user_error("{} has {} bytes of tokens, which is no multiple of {}; copy it anew{}", path, room,
               width, begin == 0 ? ", or set data.format if it holds no 16-bit tokens" : "");
  tokens.tokens = static_cast<int64_t>(room / width);
  if (begin > 0 && header[2] != tokens.tokens)
    user_error("{} holds {} tokens, and its header says {}; copy it anew", path, tokens.tokens,
               header[2]);
  tokens.data = bytes.data() + begin;
  return tokens;
}

std::vector<uint64_t> document_starts(const ForeignTokens& tokens, int32_t separator) {
  std::vector<uint64_t> starts = {0};
  if (separator < 0 || (tokens.token_bytes == 2 && separator > UINT16_MAX)) return starts;
  if (tokens.token_bytes == 2)
    find_starts<uint16_t>(tokens, separator, starts);
  else
    find_starts<uint32_t>(tokens, separator, starts);
  return starts;
}

}  // namespace onefold
