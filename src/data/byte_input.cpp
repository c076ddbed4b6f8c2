#include "data/byte_input.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"

namespace onefold {

namespace {

constexpr size_t kInputBlock = size_t{256} << 10;
constexpr std::string_view kGzipMagic = "\x1f\x8b", kZstdMagic = "\x28\xb5\x2f\xfd";
constexpr const char* kCopyAnew = "copy or download it again";

std::string system_path(const std::string& path) {
  return path == kStandardInput ? "/dev/stdin" : path;
}

}  // namespace

// Any number of members one after the other, as parallel compressors write them, and zeros after
// the last, as tapes do.
class GzipDecoder final : public ByteInput::Decoder {
 public:
  GzipDecoder() { require(inflateInit2(&stream_, 15 + 16) == Z_OK, "zlib could not be started"); }
  ~GzipDecoder() override { inflateEnd(&stream_); }

  size_t read(ByteInput& input, std::span<char> dst) override {
    constexpr size_t kMost = size_t{1} << 30;  // zlib counts in 32 bits
    const size_t wanted = std::min(dst.size(), kMost);
    stream_.next_out = reinterpret_cast<Bytef*>(dst.data());
    stream_.avail_out = static_cast<uInt>(wanted);
    while (stream_.avail_out > 0) {
      if (input.rest_.empty() && !input.refill()) {
        if (!between_)
          user_error("{} is cut short: its gzip data has no end; {}", input.name(), kCopyAnew);
        break;
      }
      if (between_ && !begin_member(input)) continue;
      inflate_some(input);
    }
    return wanted - stream_.avail_out;
  }

 private:
  bool begin_member(ByteInput& input) {
    const char first = input.rest_.front();
    if (first == 0) {
      padded_ = true;
      input.rest_ = input.rest_.subspan(1);
      return false;
    }
    if (first != kGzipMagic[0] || padded_)
      user_error("{} has something that is not gzip after its gzip data; {}", input.name(),
                 kCopyAnew);
    inflateReset(&stream_);
    between_ = false;
    return true;
  }

  void inflate_some(ByteInput& input) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input.rest_.data()));
    stream_.avail_in = static_cast<uInt>(input.rest_.size());
    const int result = inflate(&stream_, Z_NO_FLUSH);
    input.rest_ = input.rest_.last(stream_.avail_in);
    if (result == Z_STREAM_END) {
      between_ = true;
    } else if (result != Z_OK) {
      user_error("{}: its gzip data is damaged ({}); {}", input.name(),
                 stream_.msg ? stream_.msg : "unexpected end", kCopyAnew);
    }
  }

  z_stream stream_{};
  bool between_ = false;  // members
  bool padded_ = false;   // zeros have been seen
};

// Any number of frames.
class ZstdDecoder final : public ByteInput::Decoder {
 public:
  ZstdDecoder() { require(stream_ != nullptr, "zstd could not be started"); }
  ~ZstdDecoder() override { ZSTD_freeDStream(stream_); }

  size_t read(ByteInput& input, std::span<char> dst) override {
    ZSTD_outBuffer out{dst.data(), dst.size(), 0};
    while (out.pos < out.size) {
      const bool more = !input.rest_.empty() || input.refill();
      if (!more && frame_done_) break;
      ZSTD_inBuffer in{input.rest_.data(), input.rest_.size(), 0};
      const size_t before = out.pos, result = ZSTD_decompressStream(stream_, &out, &in);
      if (ZSTD_isError(result))
        user_error("{}: its zstd data is damaged or needs too much memory ({}); {}", input.name(),
                   ZSTD_getErrorName(result), kCopyAnew);
      input.rest_ = input.rest_.subspan(in.pos);
      frame_done_ = result == 0;
      if (!more && out.pos == before && !frame_done_)
        user_error("{} is cut short: its zstd data has no end; {}", input.name(), kCopyAnew);
    }
    return out.pos;
  }

 private:
  ZSTD_DStream* stream_ = ZSTD_createDStream();
  bool frame_done_ = false;
};

std::string input_name(const std::string& path) {
  return path == kStandardInput ? "standard input" : path;
}

bool is_read_once(const std::string& path) {
  if (path == kStandardInput) return true;
  Files::Status status;
  return !files().status(path, status) && status.kind == Files::Kind::special;
}

namespace {

// A small file, of which there may be many, takes no large block.
size_t block_bytes(const std::string& path) {
  constexpr size_t kLeast = 4096;  // of files in /proc the system says no size
  Files::Status status;
  if (files().status(path, status) || status.kind != Files::Kind::file) return kInputBlock;
  return std::clamp(static_cast<size_t>(status.bytes), kLeast, kInputBlock);
}

}  // namespace

ByteInput::ByteInput(const std::string& path)
    : name_(input_name(path)),
      file_(system_path(path)),
      block_(block_bytes(system_path(path)), '\0') {
  refill();
  const std::string_view begin(rest_.data(), rest_.size());
  refuse_lfs_pointer(begin, name_);  // shorter than a block: it is here whole
  if (begin.starts_with(kGzipMagic)) decoder_ = std::make_unique<GzipDecoder>();
  if (begin.starts_with(kZstdMagic)) decoder_ = std::make_unique<ZstdDecoder>();
  for (const auto& [extension, kind] : {std::pair(".gz", "gzip"), std::pair(".zst", "zstd")})
    if (!decoder_ && path.ends_with(extension))
      user_error("{} is named {} and holds no {} data; {}", path, extension, kind, kCopyAnew);
}

ByteInput::~ByteInput() = default;

bool ByteInput::refill() {
  const size_t count = file_.read(std::as_writable_bytes(std::span(block_)));
  rest_ = std::span<const char>(block_.data(), count);
  taken_bytes_ += static_cast<int64_t>(count);
  return count > 0;
}

size_t ByteInput::read(std::span<char> dst) {
  if (decoder_) return decoder_->read(*this, dst);
  size_t done = 0;
  while (done < dst.size()) {
    if (rest_.empty() && !refill()) break;
    const size_t count = std::min(rest_.size(), dst.size() - done);
    std::memcpy(dst.data() + done, rest_.data(), count);
    rest_ = rest_.subspan(count);
    done += count;
  }
  return done;
}

bool LineReader::next() {
  constexpr size_t kRead = size_t{1} << 16;
  position_ = next_position_;
  size_t scanned = begin_, newline = std::string::npos;
  while ((newline = buffer_.find('\n', scanned)) == std::string::npos && !at_end_) {
    scanned = buffer_.size();
    if (scanned - begin_ > most_bytes_)
      user_error("{}:{}: this line is longer than {}; is it the format that it was taken for?",
                 input_.name(), number_ + 1, format_bytes(static_cast<int64_t>(most_bytes_)));
    // What was read makes room before the buffer grows.
    buffer_.erase(0, begin_);
    scanned -= begin_;
    begin_ = 0;
    // A long line doubles its buffer, so that it is copied few times.
    const size_t room = std::max(kRead, std::min(scanned, size_t{16} << 20));
    buffer_.resize(scanned + room);
    const size_t count = input_.read(std::span(buffer_).subspan(scanned));
    buffer_.resize(scanned + count);
    at_end_ = count < room;
  }
  if (begin_ == buffer_.size()) return false;
  const bool ended = newline != std::string::npos;
  const size_t stop = ended ? newline + 1 : buffer_.size();
  line_ = std::string_view(buffer_).substr(begin_, stop - begin_);
  end_ = line_.substr(line_.size() - (ended ? 1 : 0));
  line_.remove_suffix(end_.size());
  if (line_.ends_with('\r')) {
    // The last line may end with "\r" alone, which is cut off too.
    if (ended) end_ = std::string_view(line_.data() + line_.size() - 1, 2);
    line_.remove_suffix(1);
  }
  next_position_ += static_cast<int64_t>(stop - begin_);
  begin_ = stop;
  ++number_;
  return true;
}

}  // namespace onefold
