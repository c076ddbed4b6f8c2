#include "data/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "data/byte_level.h"

namespace onefold {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr char kMagic[8] = {'O', 'N', 'E', 'F', 'T', 'O', 'K', '\0'};
constexpr uint32_t kVersion = 1;
constexpr size_t kBufferBytes = size_t{1} << 20;

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
  header.version = kVersion;
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
  if (header.version != kVersion) {
    user_error("{} is a token file of version {}, and this Onefold reads version {}; {}", path,
               header.version, kVersion, kRemake);
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
  const uint64_t expected =
      sizeof(Header) + padded_token_bytes(header) + header.documents * sizeof(uint64_t);
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

void write_all(int fd, const char* data, size_t bytes, const std::string& path) {
  while (bytes > 0) {
    const ssize_t n = ::write(fd, data, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) user_error("cannot write {}: {}", path, std::strerror(errno));
    data += n;
    bytes -= static_cast<size_t>(n);
  }
}

}  // namespace

int token_bytes_for(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

TokenFileWriter::TokenFileWriter(std::string path, int64_t vocab_size, int32_t end_of_text,
                                 uint64_t tokenizer_hash)
    : path_(std::move(path)) {
  require(vocab_size > 0 && end_of_text < vocab_size, "end-of-text {} in a vocabulary of {}",
          end_of_text, vocab_size);
  info_.vocab_size = vocab_size;
  info_.end_of_text = end_of_text;
  info_.tokenizer_hash = tokenizer_hash;
  info_.token_bytes = token_bytes_for(vocab_size);
  try {
    open(tokens_, path_ + ".tmp");
    open(offsets_, path_ + ".offsets.tmp");
    const Header placeholder{};  // overwritten by finish(): until then the file is not a token file
    append(tokens_, &placeholder, sizeof(placeholder));
  } catch (...) {
    discard();
    throw;
  }
}

TokenFileWriter::~TokenFileWriter() {
  if (!finished_) discard();
}

void TokenFileWriter::discard() {
  for (Spool* spool : {&tokens_, &offsets_}) {
    if (spool->fd < 0) continue;
    ::close(std::exchange(spool->fd, -1));
    ::unlink(spool->path.c_str());
  }
}

void TokenFileWriter::open(Spool& spool, std::string path) {
  spool.path = std::move(path);
  spool.fd = ::open(spool.path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (spool.fd < 0) user_error("cannot create {}: {}", spool.path, std::strerror(errno));
  spool.buffer.reserve(kBufferBytes);
}

void TokenFileWriter::append(Spool& spool, const void* data, size_t bytes) {
  if (spool.buffer.size() + bytes > kBufferBytes) flush(spool);
  spool.buffer.append(static_cast<const char*>(data), bytes);
}

void TokenFileWriter::flush(Spool& spool) {
  write_all(spool.fd, spool.buffer.data(), spool.buffer.size(), spool.path);
  spool.buffer.clear();
}

void TokenFileWriter::put_token(int32_t token) {
  if (token < 0 || token >= info_.vocab_size) {
    user_error("{}: token {} is outside the vocabulary of {}", path_, token, info_.vocab_size);
  }
  append(tokens_, &token,
         static_cast<size_t>(info_.token_bytes));  // little-endian: the low bytes come first
  ++info_.tokens;
}

void TokenFileWriter::add(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) put_token(token);
}

void TokenFileWriter::end_document() {
  if (info_.tokens == document_begin_) return;
  if (info_.end_of_text >= 0) put_token(info_.end_of_text);
  const uint64_t start = static_cast<uint64_t>(document_begin_);
  append(offsets_, &start, sizeof(start));
  ++info_.documents;
  document_begin_ = info_.tokens;
}

TokenFileInfo TokenFileWriter::finish() {
  end_document();
  if (info_.tokens == 0)
    user_error("{}: there are no tokens to write; the input holds no text", path_);
  const Header header = header_for(info_);
  const char padding[8] = {};
  append(tokens_, padding, padded_token_bytes(header) - header.tokens * header.token_bytes);
  flush(offsets_);
  if (::lseek(offsets_.fd, 0, SEEK_SET) != 0)
    user_error("cannot read {}: {}", offsets_.path, std::strerror(errno));
  char block[1 << 16];
  while (true) {
    const ssize_t n = ::read(offsets_.fd, block, sizeof(block));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) user_error("cannot read {}: {}", offsets_.path, std::strerror(errno));
    if (n == 0) break;
    append(tokens_, block, static_cast<size_t>(n));
  }
  flush(tokens_);
  if (::pwrite(tokens_.fd, &header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header)) ||
      ::fsync(tokens_.fd) != 0) {
    user_error("cannot write {}: {}", tokens_.path, std::strerror(errno));
  }
  if (::rename(tokens_.path.c_str(), path_.c_str()) != 0) {
    user_error("cannot rename {} to {}: {}", tokens_.path, path_, std::strerror(errno));
  }
  finished_ = true;
  ::close(std::exchange(tokens_.fd, -1));
  ::close(std::exchange(offsets_.fd, -1));
  ::unlink(offsets_.path.c_str());
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
}

const std::byte* TokenFile::tokens() const { return file_.bytes().data() + sizeof(Header); }

}  // namespace onefold
