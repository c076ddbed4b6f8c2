// Reads TensorBoard event files back.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "io/tensorboard.h"

namespace onefold::test {

// Just enough of a protobuf reader to see every field of an event.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    field = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0:
        number = varint();
        break;
      case 1:
        bytes = take(8);
        break;
      case 2:
        bytes = take(varint());
        break;
      case 5:
        bytes = take(4);
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return false;
    }
    return true;
  }

  template <typename T>
  T fixed() const {
    T value{};
    EXPECT_EQ(bytes.size(), sizeof(T));
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  int field = 0;
  uint64_t number = 0;
  std::string_view bytes;

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return value;
  }
  std::string_view take(size_t n) {
    const std::string_view piece = rest_.substr(0, n);
    rest_.remove_prefix(piece.size());
    return piece;
  }

  std::string_view rest_;
};

struct Scalar {
  int64_t step;
  std::string tag;
  float value;
};

struct Events {
  std::vector<std::string> versions;
  std::vector<Scalar> scalars;
  std::vector<int64_t> restarts;  // the steps of session logs that say: start
};

inline Events parse_events(std::string_view file) {
  Events events;
  const auto number = [&]<typename T>(T) {
    T value{};
    EXPECT_GE(file.size(), sizeof(T));
    std::memcpy(&value, file.data(), sizeof(T));
    file.remove_prefix(sizeof(T));
    return value;
  };
  while (!file.empty()) {
    const std::string_view length_bytes = file.substr(0, 8);
    const auto length = number(uint64_t{});
    EXPECT_EQ(number(uint32_t{}), masked_crc32c(length_bytes));
    const std::string_view event = file.substr(0, length);
    file.remove_prefix(length);
    EXPECT_EQ(number(uint32_t{}), masked_crc32c(event));

    int64_t step = -1;
    for (Message m(event); m.next();) {
      if (m.field == 1) {
        EXPECT_GT(m.fixed<double>(), 1.7e9);
      }
      if (m.field == 2) step = static_cast<int64_t>(m.number);
      if (m.field == 3) events.versions.emplace_back(m.bytes);
      if (m.field == 7)
        for (Message session(m.bytes); session.next();)
          if (session.field == 1 && session.number == 1) events.restarts.push_back(step);
      if (m.field != 5) continue;
      for (Message summary(m.bytes); summary.next();) {
        Scalar scalar{step, "", NAN};
        for (Message value(summary.bytes); value.next();) {
          if (value.field == 1) scalar.tag = value.bytes;
          if (value.field == 2) scalar.value = value.fixed<float>();
        }
        events.scalars.push_back(scalar);
      }
    }
  }
  return events;
}

}  // namespace onefold::test
