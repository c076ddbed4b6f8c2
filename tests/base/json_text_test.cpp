#include "base/json_text.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/text.h"

namespace onefold {
namespace {

TEST(JsonText, AnObjectsMembersHaveLinesOfTheirOwn) {
  EXPECT_EQ(json_text({{"a", 1}, {"b", {{"c", {1, 2}}, {"d", "x"}}}}),
            "{\n  \"a\": 1,\n  \"b\": {\"c\": [1, 2], \"d\": \"x\"}\n}");
  EXPECT_EQ(json_text(Json::object()), "{}");
  EXPECT_EQ(json_text({{"a", Json::array()}}), "{\n  \"a\": []\n}");
  EXPECT_EQ(json_text({1, 2}), "[1, 2]");
  EXPECT_EQ(json_text("x"), "\"x\"");
}

TEST(JsonText, NoLineIsTooLongUnlessOneValueIs) {
  Json numbers = Json::array();
  for (int i = 0; i < 500; ++i) numbers.push_back(i * 7919);
  const Json value = {{"numbers", numbers}, {"inner", {{"numbers", numbers}, {"x", 1}}}};
  const std::string text = json_text(value);
  for (const std::string& line : split(text, '\n')) EXPECT_LE(line.size(), 100u) << line;
  EXPECT_EQ(Json::parse(text), value);
  EXPECT_LT(split(text, '\n').size(), 110u);  // filled: not a line for each number
}

TEST(JsonText, ReadsBackToTheSameValue) {
  const Json value = {{"train_batch_size", 8},
                      {"optimizer", {{"type", "AdamW"}, {"params", {{"betas", {0.9, 0.999}}}}}},
                      {"data", {{"train", Json::array({"a.txt", "b.txt"})}, {"seed", nullptr}}},
                      {"a", std::string(120, 'x')},
                      {"zero", {{"stage", 3}, {"overlap_comm", true}, {"threshold", 1e-5}}}};
  EXPECT_EQ(Json::parse(json_text(value)), value);
  EXPECT_EQ(json_text(Json::parse(json_text(value))), json_text(value));  // in the same order
}

TEST(JsonText, WhatJsonCannotSayIsReplaced) {
  EXPECT_EQ(json_text({{"text", "a\xff"}, {"loss", std::nan("")}}),
            "{\n  \"text\": \"a\uFFFD\",\n  \"loss\": null\n}");
}

}  // namespace
}  // namespace onefold
