// XXH3 over 64 bits: fast enough (tens of GB/s) to be taken of everything that goes to disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace onefold {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  void add(std::span<const std::byte> bytes);
  // Of all that was added so far, as 16 hexadecimal digits.
  std::string text() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string checksum_of(std::span<const std::byte> bytes);

}  // namespace onefold
