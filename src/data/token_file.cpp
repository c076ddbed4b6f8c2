#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "data/byte_level.h"

namespace onefold {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr char kMagic[8] = {'O', 'N', 'E', 'F', 'T', 'O', 'K', '\0'};
// The second is the first with a mask.
constexpr uint32_t kPlainVersion = 1, kMaskedVersion = 2;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t vocab_size;
  uint64_t tokens;
  uint64_t documents;
  int64_t end_of_text;
  uint64_t tokenizer_hash;
  uint64_t checksum;  // FNV-1a 64 of the bytes before it
};
static_assert(sizeof(Header) == 64);

uint64_t checksum_of(const Header& header) {
  return fnv1a64({reinterpret_cast<const char*>(&header), offsetof(Header, checksum)});
}

Header header_for(const TokenFileInfo& info) {
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = info.masked ? kMaskedVersion : kPlainVersion;
  header.token_bytes = static_cast<uint32_t>(info.token_bytes);
  header.vocab_size = static_cast<uint64_t>(info.vocab_size);
  header.tokens = static_cast<uint64_t>(info.tokens);
  header.documents = static_cast<uint64_t>(info.documents);
  header.end_of_text = info.end_of_text;
  header.tokenizer_hash = info.tokenizer_hash;
  header.checksum = checksum_of(header);
  return header;
}

// Tokens are padded so that the document starts lie on a multiple of 8 bytes.
uint64_t padded_token_bytes(const Header& header) {
  return (header.tokens * header.token_bytes + 7) / 8 * 8;
}

constexpr const char* kRemake = "make it again with `onefold tokenize`";

void check_header(const Header& header, uint64_t file_bytes, const std::string& path) {
  if (header.version != kPlainVersion && header.version != kMaskedVersion) {
    user_error("{} is a token file of version {}, and this Onefold reads versions {} and {}; {}",
               path, header.version, kPlainVersion, kMaskedVersion, kRemake);
  }
  if (header.checksum != checksum_of(header))
    user_error("{}: the header is damaged; {}", path, kRemake);
  constexpr uint64_t kLimit = uint64_t{1} << 56;  // keeps the sums below from overflowing
  const bool sane = (header.token_bytes == 2 || header.token_bytes == 4) &&
                    header.tokens < kLimit && header.documents <= header.tokens &&
                    header.vocab_size > 0 && header.vocab_size <= (uint64_t{1} << 31) &&
                    header.end_of_text >= -1 &&
                    header.end_of_text < static_cast<int64_t>(header.vocab_size);
  if (!sane) user_error("{}: the header does not make sense; {}", path, kRemake);
  if (header.tokens == 0 || header.documents == 0)
    user_error("{} holds no tokens; {}", path, kRemake);
  const bool masked = header.version == kMaskedVersion;
  const uint64_t expected =
      sizeof(Header) + padded_token_bytes(header) + header.documents * sizeof(uint64_t) +
      (masked ? static_cast<uint64_t>(TargetMask::bytes_for(static_cast<int64_t>(header.tokens)))
              : 0);
  if (file_bytes != expected) {
    user_error("{} is {}: it has {} bytes and its header says {}; copy it anew or {}", path,
               file_bytes < expected ? "cut short" : "too long", file_bytes, expected, kRemake);
  }
}

void check_starts(std::span<const uint64_t> starts, uint64_t tokens, const std::string& path) {
  if (starts[0] != 0)
    user_error("{}: the first document does not start at token 0; {}", path, kRemake);
  for (size_t d = 1; d < starts.size(); ++d) {
    if (starts[d] <= starts[d - 1] || starts[d] >= tokens) {
      user_error("{}: document {} starts at token {}, after one at {}, in a file of {} tokens; {}",
                 path, d, starts[d], starts[d - 1], tokens, kRemake);
    }
  }
}

}  // namespace

void TargetMask::add(int64_t tokens, bool counted) {
  const int64_t begin = tokens_;
  tokens_ += tokens;
  if (bits_.empty() && counted) return;
  if (bits_.empty()) {  // the tokens before are all trained on
    bits_.assign(static_cast<size_t>(begin / 8), 0xFF);
    if (begin % 8 != 0) bits_.push_back(static_cast<uint8_t>((1u << (begin % 8)) - 1));
  }
  bits_.resize(static_cast<size_t>((tokens_ + 7) / 8));
  if (!counted) return;
  for (int64_t token = begin; token < tokens_; ++token)
    bits_[static_cast<size_t>(token / 8)] |= static_cast<uint8_t>(1u << (token % 8));
}

int token_bytes_for(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

TokenFileWriter::TokenFileWriter(std::string path, int64_t vocab_size, int32_t end_of_text,
                                 uint64_t tokenizer_hash)
    : file_(std::move(path)) {
  require(vocab_size > 0 && end_of_text < vocab_size, "end-of-text {} in a vocabulary of {}",
          end_of_text, vocab_size);
  info_.vocab_size = vocab_size;
  info_.end_of_text = end_of_text;
  info_.tokenizer_hash = tokenizer_hash;
  info_.token_bytes = token_bytes_for(vocab_size);
  const Header placeholder{};  // overwritten by finish()
  file_.append(std::as_bytes(std::span(&placeholder, 1)));
  file_.overwrite(0, std::as_bytes(std::span(&placeholder, 1)));  // a pipe is refused now, not then
}

// A block at a time: appending token by token took as long as encoding.
void TokenFileWriter::add(std::span<const int32_t> tokens, bool counted) {
  mask_.add(static_cast<int64_t>(tokens.size()), counted);
  if (!tokens.empty()) last_ = tokens.back();
  constexpr size_t kBlock = 4096;
  const auto width = static_cast<size_t>(info_.token_bytes);
  std::array<std::byte, kBlock * sizeof(int32_t)> block;
  while (!tokens.empty()) {
    const std::span<const int32_t> part = tokens.first(std::min(kBlock, tokens.size()));
    for (size_t i = 0; i < part.size(); ++i) {
      if (part[i] < 0 || part[i] >= info_.vocab_size) {
        user_error("{}: token {} is outside the vocabulary of {}", file_.path(), part[i],
                   info_.vocab_size);
      }
      std::memcpy(&block[i * width], &part[i], width);  // little-endian: the low bytes come first
    }
    file_.append(std::span(block).first(part.size() * width));
    info_.tokens += static_cast<int64_t>(part.size());
    tokens = tokens.subspan(part.size());
  }
}

void TokenFileWriter::end_document(bool counted) {
  if (info_.tokens == document_begin_) return;
  if (info_.end_of_text >= 0 && last_ != info_.end_of_text) add({&info_.end_of_text, 1}, counted);
  starts_.push_back(static_cast<uint64_t>(document_begin_));
  ++info_.documents;
  document_begin_ = info_.tokens;
}

TokenFileInfo TokenFileWriter::finish() {
  end_document();
  if (info_.tokens == 0)
    user_error("{}: there are no tokens to write; the input holds no text", file_.path());
  info_.masked = !mask_.empty();
  const Header header = header_for(info_);
  const std::byte padding[8] = {};
  file_.append(
      std::span(padding).first(padded_token_bytes(header) - header.tokens * header.token_bytes));
  file_.append(std::as_bytes(std::span(starts_)));
  if (info_.masked) {
    file_.append(std::as_bytes(mask_.bits()));
    file_.append(std::span(padding).first(static_cast<size_t>(TargetMask::bytes_for(info_.tokens)) -
                                          mask_.bits().size()));
  }
  file_.overwrite(0, std::as_bytes(std::span(&header, 1)));
  file_.commit();
  return info_;
}

TokenFile::TokenFile(const std::string& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  Header header;
  if (bytes.size() < sizeof(kMagic) || std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    user_error(
        "{} is not a token file; make one with `onefold tokenize`, or set format to \"text\" or "
        "\"jsonl\"",
        path);
  }
  if (bytes.size() < sizeof(header))
    user_error("{} is cut short inside its header; {}", path, kRemake);
  std::memcpy(&header, bytes.data(), sizeof(header));
  check_header(header, bytes.size(), path);
  info_.vocab_size = static_cast<int64_t>(header.vocab_size);
  info_.tokens = static_cast<int64_t>(header.tokens);
  info_.documents = static_cast<int64_t>(header.documents);
  info_.end_of_text = static_cast<int32_t>(header.end_of_text);
  info_.tokenizer_hash = header.tokenizer_hash;
  info_.token_bytes = static_cast<int>(header.token_bytes);
  const std::byte* const starts = bytes.data() + sizeof(header) + padded_token_bytes(header);
  starts_ = {reinterpret_cast<const uint64_t*>(starts), header.documents};
  check_starts(starts_, header.tokens, path);
  info_.masked = header.version == kMaskedVersion;
  if (info_.masked)
    mask_ = reinterpret_cast<const uint8_t*>(starts + header.documents * sizeof(uint64_t));
}

const std::byte* TokenFile::tokens() const { return file_.bytes().data() + sizeof(Header); }

}  // namespace onefold
