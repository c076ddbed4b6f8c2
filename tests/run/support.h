// A folder with a text, and configurations that train on it.
#pragma once

#include <gtest/gtest.h>

#include "config/config.h"
#include "data/scratch.h"
#include "error_text.h"

namespace onefold {

class RunTest : public ::testing::Test {
 protected:
  RunTest() {
    std::string text;
    for (int i = 0; i < 40; ++i) text += "Line " + std::to_string(i) + " of a short book.\n";
    folder_.write("book.txt", text);
  }

  // gpt2-tiny on the book, with these keys set.
  Config config(std::initializer_list<std::string> keys = {}) const {
    Json root = {{"model", "gpt2-tiny"},
                 {"train_batch_size", 4},
                 {"gradient_accumulation_steps", 2},
                 {"data", {{"train", folder_.path("book.txt")}, {"sequence_length", 16}}},
                 {"run", {{"steps", 3}, {"threads", 1}}}};
    for (const std::string& key : keys) apply_override(root, key);
    return Config::from_json(root);
  }

  ScratchFolder folder_;
};

}  // namespace onefold
