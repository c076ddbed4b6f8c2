#include "base/json.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "sanitized.h"

namespace onefold {
namespace {

JsonObject object(const char* text, const std::string& path = "") {
  return {parse_json(text, "test"), path};
}

TEST(ParseJson, NamesSourceLineAndColumn) {
  EXPECT_ERROR(parse_json("{\n  \"a\": 1,\n  \"b\": x\n}", "run.json"),
               "run.json:3:8:", "not valid JSON");
  EXPECT_ERROR(parse_json("{\"a\": 1", "run.json"), "run.json:1:8:", "unexpected end of input");
  EXPECT_ERROR(parse_json("", "empty.json"), "empty.json:1:1:");
  EXPECT_ERROR(parse_json("{\"a\": 1e999}", "big.json"), "big.json", "1e999");
  EXPECT_ERROR(parse_json("{\"a\": \"\xff\"}", "bytes.json"), "bytes.json:1:");
  EXPECT_ERROR(read_json("/does/not/exist.json"), "/does/not/exist.json");
}

TEST(ParseJson, RefusesARepeatedKeyButOnlyWithinOneObject) {
  EXPECT_ERROR(parse_json(R"({"lr": 1, "b": {"lr": 2}, "lr": 3})", "run.json"), "run.json",
               "\"lr\" appears twice");
  EXPECT_EQ(parse_json(R"([{"a": {"b": 1}, "b": 2}, {"a": 1}])", "ok").size(), 2u);
}

TEST(ParseJson, KeepsOrderAndValuesHoweverManyKeys) {
  constexpr int kKeys = test::kSanitized ? 9'000 : 90'000;
  std::string text = "{";
  for (int i = kKeys; i > 0; --i) text += fmt::format("\"k{0}\": [{0}, {{\"v\": -{0}}}], ", i);
  text += R"("last": [true, null, 0.5, "x", {}, []]})";
  const Json json = parse_json(text, "large");
  ASSERT_EQ(json.size(), size_t{kKeys} + 1);
  int i = kKeys;
  for (const auto& [key, value] : json.items()) {
    if (key == "last") break;
    ASSERT_EQ(key, fmt::format("k{}", i));
    ASSERT_EQ(value[0], i);
    ASSERT_EQ(value[1]["v"], -i);
    --i;
  }
  EXPECT_EQ(i, 0);
  EXPECT_EQ(json.back().dump(), R"([true,null,0.5,"x",{},[]])");
  text.insert(text.size() - 1, R"(, "k4500": 1)");
  EXPECT_ERROR(parse_json(text, "large"), "large", "\"k4500\" appears twice");
}

TEST(ParseJson, RefusesWhatIsNestedTooDeep) {
  const auto nested = [](int levels) {
    std::string text;
    for (int i = 0; i < levels; ++i) text += i % 2 == 0 ? "[" : "{\"a\": ";
    text += "1";
    for (int i = levels; i > 0; --i) text += i % 2 == 1 ? "]" : "}";
    return text;
  };
  EXPECT_EQ(parse_json(nested(kDeepestJson), "deep").size(), 1u);
  EXPECT_ERROR(parse_json(nested(kDeepestJson + 1), "deep"), "deep", "more than 256 levels");
}

TEST(ParseJson, AllowsComments) {
  EXPECT_EQ(parse_json("{ // the rate\n \"lr\": /* small */ 1}", "c")["lr"], 1);
}

TEST(JsonObject, FinishNamesThePathOfAnUnknownKeyAndTheNearestKnownOne) {
  JsonObject in = object(R"({"lrr": 0.1})", "optimizer.params");
  in.get<double>("lr", 0.0);
  in.get<double>("weight_decay", 0.0);
  EXPECT_ERROR(in.finish(), "optimizer.params.lrr is not a known key", "did you mean \"lr\"?");

  JsonObject far = object(R"({"zzzzzzzz": 1})");
  far.get<double>("lr", 0.0);
  EXPECT_ERROR(far.finish(), "zzzzzzzz is not a known key", "known here: lr");
}

TEST(JsonObject, FinishPassesWhenAllIsRead) {
  JsonObject in = object(R"({"a": 1, "b": {"c": true}})");
  EXPECT_EQ(in.get<int64_t>("a", 0), 1);
  JsonObject b = in.object("b");
  EXPECT_TRUE(b.require<bool>("c"));
  b.finish();
  in.finish();
}

TEST(JsonObject, HasDoesNotCountAsReading) {
  JsonObject in = object(R"({"a": 1})");
  EXPECT_TRUE(in.has("a"));
  EXPECT_ERROR(in.finish(), "a is not a known key");
}

TEST(JsonObject, TypeErrorsNamePathExpectedAndFound) {
  JsonObject in = object(R"({"b": "yes", "n": [1], "s": 3, "o": null, "l": ["x", 4]})", "run");
  EXPECT_ERROR(in.require<bool>("b"), "run.b must be true or false, not a string (\"yes\")");
  EXPECT_ERROR(in.require<double>("n"), "run.n must be a number, not a list ([1])");
  EXPECT_ERROR(in.require<int64_t>("b"), "run.b must be an integer, not a string");
  EXPECT_ERROR(in.require<std::string>("s"), "run.s must be a string, not a number (3)");
  EXPECT_ERROR(in.object("s"), "run.s must be an object, not a number");
  EXPECT_FALSE(in.has("o")) << "null is absent";
  EXPECT_ERROR(in.require<std::vector<std::string>>("l"), "run.l[1] must be a string");
  EXPECT_ERROR(in.require<int64_t>("missing"), "run.missing is missing");
  EXPECT_ERROR(object("[1]"), "the document must be an object");
}

TEST(JsonObject, IntegersMustBeIntegersHoweverTheyAreWritten) {
  JsonObject in =
      object(R"({"a": 1e3, "b": 2.0, "c": 1.5, "d": 1e300, "e": 18446744073709551615})");
  EXPECT_EQ(in.require<int64_t>("a"), 1000);
  EXPECT_EQ(in.require<int64_t>("b"), 2);
  EXPECT_ERROR(in.require<int64_t>("c"), "c must be an integer, not 1.5");
  EXPECT_ERROR(in.require<int64_t>("d"), "d is 1e+300", "the largest is 2^53");
  EXPECT_ERROR(in.require<int64_t>("e"), "e is too large");
}

TEST(JsonObject, RangesAreChecked) {
  JsonObject in = object(R"({"zero": 0, "one": 1, "minus": -1, "half": 0.5})");
  EXPECT_ERROR(in.at_least("zero", 1, 5), "zero must be at least 1, not 0");
  EXPECT_ERROR(in.positive("zero", 5), "zero must be greater than 0, not 0");
  EXPECT_ERROR(in.non_negative("minus", 5), "minus must not be negative");
  EXPECT_ERROR(in.fraction("one", 0), "one must be at least 0 and less than 1, not 1");
  EXPECT_ERROR(in.ratio("minus", 0), "minus must be from 0 to 1, not -1");
  EXPECT_EQ(in.ratio("one", 0), 1);
  EXPECT_EQ(in.fraction("half", 0), 0.5);
  EXPECT_EQ(in.positive("absent", 7), 7);
}

TEST(JsonObject, ChoiceListsTheNames) {
  JsonObject in = object(R"({"format": "jsnl"})", "data");
  EXPECT_ERROR(in.choice("format", {"text", "jsonl", "tokens"}, "text"),
               "data.format must be one of text, jsonl, tokens, not \"jsnl\"",
               "did you mean \"jsonl\"?");
  EXPECT_EQ(in.choice("other", {"a", "b"}, "b"), "b");
}

TEST(JsonObject, AutoIsAbsentWhereAllowedAndExplainedElsewhere) {
  JsonObject in = object(R"({"lr": "auto", "eps": "auto"})");
  in.allow_auto({"eps"});
  EXPECT_FALSE(in.has("eps"));
  EXPECT_EQ(in.get<double>("eps", 1e-8), 1e-8);
  EXPECT_ERROR(in.get<double>("lr", 1.0), "lr must be a number", "\"auto\"", "write the value");
}

TEST(JsonObject, NoEffectSaysWhy) {
  JsonObject in = object(R"({"field": "text"})", "data");
  EXPECT_ERROR(in.no_effect("field", "the format is text"),
               "data.field has no effect: the format is text");
  in.no_effect("other", "absent keys are fine");
}

TEST(BriefJson, CutsLongValuesBetweenCharacters) {
  Json value = std::string(200, 'x');
  EXPECT_EQ(brief_json(value).size(), 63u);
  value = "";
  for (int i = 0; i < 100; ++i) value = value.get<std::string>() + "é";
  EXPECT_NO_THROW(Json(brief_json(value)).dump());
}

}  // namespace
}  // namespace onefold
