#include "base/text.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace onefold {
namespace {

TEST(Text, BytesAreWrittenInBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(int64_t{24} << 30), "24.0 GiB");
}

TEST(Text, NamesAreShownWithoutControlCharacters) {
  const std::string name = std::string("a\0b", 3) + "\n\t\x1b[0m\x7f\u0080\u009f\u00a0é\xc2";
  EXPECT_EQ(printable(name), "a\\x00b\\x0a\\x09\\x1b[0m\\x7f\\u0080\\u009f\u00a0é\xc2");
  EXPECT_EQ(printable_lines("a\n\tb\r"), "a\n\tb\\x0d");
}

TEST(Text, CountsAreWrittenInThousands) {
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(124'439'808), "124.4M");
  EXPECT_EQ(format_count(7'000'000'000), "7.00B");
}

TEST(Text, DurationsReadNaturally) {
  EXPECT_EQ(format_duration(4.23), "4.2s");
  EXPECT_EQ(format_duration(187), "3m07s");
  EXPECT_EQ(format_duration(3720), "1h02m");
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(Text, SizesAreParsedInBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("1000", "x"), 1000);
  EXPECT_EQ(parse_bytes("64GiB", "x"), int64_t{64} << 30);
  EXPECT_EQ(parse_bytes("1.5 GB", "x"), 1'500'000'000);
  EXPECT_EQ(parse_bytes("512M", "x"), int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("7b", "x"), 7);
}

TEST(Text, AWrongSizeNamesItsKeyAndTheText) {
  for (const char* text : {"", "GB", "12 parsecs", "-1", "1e30", "1GiBs"}) {
    try {
      parse_bytes(text, "memory.limit");
      ADD_FAILURE() << text << " was taken for a size";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("memory.limit"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos);
    }
  }
}

TEST(Text, TheNearestNameIsSuggestedIfItIsNear) {
  const std::vector<std::string> names = {"learning_rate", "weight_decay", "steps"};
  EXPECT_EQ(nearest("learing_rate", names), "learning_rate");
  EXPECT_EQ(nearest("step", names), "steps");
  EXPECT_EQ(nearest("zero_optimization", names), "");
  EXPECT_EQ(did_you_mean("weightdecay", names), ", did you mean \"weight_decay\"?");
  EXPECT_EQ(did_you_mean("zero_optimization", names), "");
}

TEST(Text, SplitAndJoinAreInverse) {
  EXPECT_EQ(split("a,b,,c", ','), (std::vector<std::string>{"a", "b", "", "c"}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
  EXPECT_EQ(join(split("a,b,,c", ','), ","), "a,b,,c");
}

TEST(Text, NamesThatLeadOutOfAFolderAreNotPlain) {
  for (const std::string name : {"a", "model-00001.safetensors", "..a", "a b"})
    EXPECT_TRUE(is_plain_file_name(name)) << name;
  for (const std::string name : {"", ".", "..", "a/b", "/a", "a\\b"})
    EXPECT_FALSE(is_plain_file_name(name)) << name;
  EXPECT_FALSE(is_plain_file_name(std::string_view("a\0b", 3)));
}

// A file's name, a key or a text of a file may have line breaks; no line of a message is theirs.
TEST(Errors, WhatTheyQuoteBeginsNoLine) {
  const auto message = [](const auto& name) {
    try {
      user_error("cannot read {} ({} bytes of {:>3})", name, 5, std::string("x"));
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string name = "a\nonefold: error: b", shown = "a\\nonefold: error: b";
  EXPECT_EQ(message(name), "cannot read " + shown + " (5 bytes of   x)");
  EXPECT_EQ(message(std::string_view(name)), message(name));
  EXPECT_EQ(message(name.c_str()), message(name));
  // Lists of our own, and a last line's end, stay; so does what an inner error has said.
  EXPECT_EQ(quoted_lines("one\n  two\n    three\n"), "one\n  two\n    three\n");
  EXPECT_EQ(quoted_lines(quoted_lines("a\n\nb")), "a\\n\\nb");
}

}  // namespace
}  // namespace onefold
