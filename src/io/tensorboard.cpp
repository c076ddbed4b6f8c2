#include "io/tensorboard.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace onefold {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  constexpr uint32_t kPolynomial = 0x82F63B78u;  // 0x1EDC6F41 with its bits reversed
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}();

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Protobuf wire format: a key is field * 8 + type; 0 is a varint, 1 eight bytes, 2 length and
// bytes, 5 four bytes.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, uint32_t field, WireType type) { put_varint(out, field * 8 + type); }

template <typename T>
void put_fixed(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event_header(int64_t step) {
  std::string event;
  put_key(event, 1, kFixed64);
  put_fixed(event, wall_time());
  put_key(event, 2, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  return event;
}

// Distinct for every writer of this second: host, process, and a count within the process.
std::string new_file_in(const std::string& folder) {
  make_folders(folder);
  static std::atomic<int> count{0};
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) std::strcpy(host.data(), "localhost");
  return fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", folder,
                     static_cast<int64_t>(wall_time()), host.data(), ::getpid(), count++);
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

TensorBoardWriter::TensorBoardWriter(const std::string& folder)
    : file_(new_file_in(folder), Files::Mode::fresh) {
  std::string event = event_header(0);
  put_bytes(event, 3, "brain.Event:2");
  record(event);
}

void TensorBoardWriter::restart(int64_t step) {
  std::string session;
  put_key(session, 1, kVarint);
  put_varint(session, 1);
  std::string event = event_header(step);
  put_bytes(event, 7, session);
  record(event);
}

void TensorBoardWriter::scalars(int64_t step,
                                std::initializer_list<std::pair<std::string_view, double>> values) {
  std::string summary;
  for (const auto& [tag, value] : values) {
    std::string one;
    put_bytes(one, 1, tag);
    put_key(one, 2, kFixed32);
    put_fixed(one, static_cast<float>(value));
    put_bytes(summary, 1, one);
  }
  std::string event = event_header(step);
  put_bytes(event, 5, summary);
  record(event);
}

void TensorBoardWriter::record(std::string_view event) {
  std::string out;
  put_fixed(out, static_cast<uint64_t>(event.size()));
  put_fixed(out, masked_crc32c(out));
  out += event;
  put_fixed(out, masked_crc32c(event));
  file_.append(out);
}

}  // namespace onefold
