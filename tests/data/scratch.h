// Helpers of the data tests: a folder that cleans up after itself, random text, and the message of
// a UserError.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace onefold {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "onefold_XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp");
    path_ = pattern;
  }
  ~ScratchFolder() { std::filesystem::remove_all(path_); }

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, std::string_view content) const {
    write_file(path(name), content);
    return path(name);
  }
  int64_t files() const {
    return std::distance(std::filesystem::directory_iterator(path_),
                         std::filesystem::directory_iterator());
  }

 private:
  std::string path_;
};

inline std::string random_text(std::mt19937& random, size_t length, std::string_view letters) {
  std::uniform_int_distribution<size_t> pick(0, letters.size() - 1);
  std::string text;
  for (size_t i = 0; i < length; ++i) text.push_back(letters[pick(random)]);
  return text;
}

inline std::string random_bytes(std::mt19937& random, size_t length) {
  std::uniform_int_distribution<int> byte(0, 255);
  std::string text;
  for (size_t i = 0; i < length; ++i) text.push_back(static_cast<char>(byte(random)));
  return text;
}

// What the user is told; fails the test if nothing is thrown.
inline std::string user_error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

inline void expect_in(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << part << "\" is not in: " << message;
  }
}

}  // namespace onefold
