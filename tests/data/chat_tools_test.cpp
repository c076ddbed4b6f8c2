// Conversations with tools: rendered by the model's template as transformers renders them, with the
// loss on the calls and not on what the tools return. tests/golden/README.md says how the golden
// file was made.
#include <gtest/gtest.h>

#include "base/json.h"
#include "data/chat.h"
#include "data/chat_template.h"
#include "data/dataset.h"
#include "data/hf_tokenizer.h"
#include "data/jinja.h"
#include "data/scratch.h"
#include "error_text.h"

namespace onefold {
namespace {

const Json& tool_goldens() {
  static const Json kGoldens = read_json(std::string(ONEFOLD_GOLDEN_DIR) + "/chat_tools.json");
  return kGoldens;
}

Conversation conversation_of(const std::string& line) {
  return parse_conversation(parse_json_line(line), "f:1");
}

ChatTemplateText golden_template(const std::string& name) {
  const Json& golden = tool_goldens()["templates"][name];
  return {golden["template"].get<std::string>(), name, tool_goldens()["tokens"]};
}

// A question, a call of "look" with the arguments, what it returned, and the answer.
std::string line_with(const std::string& arguments, const std::string& more = "") {
  return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "",)"
         R"( "tool_calls": [{"id": "123456789", "type": "function", "function": {"name": "look",)"
         R"( "arguments": )" +
         arguments +
         R"(}}]}, {"role": "tool", "tool_call_id": "123456789", "content": "R"},)"
         R"( {"role": "assistant", "content": "A"}])" +
         more + "}";
}
constexpr const char* kTools =
    R"(, "tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}])";

TEST(ChatToolsGolden, EveryConversationIsRenderedAsTransformersDoes) {
  const Json& goldens = tool_goldens();
  int rendered = 0, refused = 0;
  for (const auto& [name, golden] : goldens["templates"].items()) {
    const ChatTemplate chat(golden_template(name));
    for (size_t i = 0; i < goldens["lines"].size(); ++i)
      for (const bool prompt : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, i, prompt));
        const Json& wanted = golden["rendered"][i][prompt ? 1 : 0];
        std::string text;
        const std::string error = error_text([&] {
          text = chat.render(conversation_of(goldens["lines"][i].get<std::string>()), prompt);
        });
        if (wanted.is_null()) {
          EXPECT_NE(error, "");
          continue;
        }
        // What transformers leaves out without a word is refused here.
        if (contains(error, "it would teach something else")) {
          EXPECT_TRUE(contains(error, "reasoning_content")) << error;
          ++refused;
          continue;
        }
        EXPECT_EQ(error, "");
        EXPECT_EQ(text, wanted.get<std::string>());
        ++rendered;
      }
  }
  EXPECT_GE(rendered, 120);
  EXPECT_EQ(refused, 10);
}

TEST(ChatToolsGolden, JsonIsWrittenAsPythonWritesIt) {
  for (const Json& dump : tool_goldens()["dumps"]) {
    const auto filter = dump[0].get<std::string>(), value = dump[1].get<std::string>();
    const JinjaTemplate text("{{ x | " + filter + " }}", "t");
    EXPECT_EQ(text.render({{"x", parse_json_line(value)}}).text, dump[2].get<std::string>())
        << filter << " of " << value;
  }
}

// A tokenizer of bytes with the special tokens of these templates.
class ChatTools : public testing::Test {
 protected:
  static Tokenizer with_template(ChatTemplateText chat) {
    Json json = Json::parse(Tokenizer::bytes().to_json());
    int64_t id = 257;
    for (const char* token :
         {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>",
          "<|end_header_id|>", "<|end|>", "<|assistant|>", "[INST]", "[/INST]", "[TOOL_CALLS]"})
      json["added_tokens"].push_back({{"id", id++},
                                      {"content", token},
                                      {"special", true},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false}});
    Tokenizer tokenizer = Tokenizer::parse(json.dump(), "bytes");
    tokenizer.set_chat_template(std::move(chat));
    return tokenizer;
  }
  // What is trained on, one answer after the other.
  static std::vector<std::string> trained(const Tokenizer& tokenizer,
                                          const Conversation& conversation) {
    const ChatTokens tokens = ChatFormat(tokenizer, std::nullopt).render(conversation, "f:1");
    std::vector<std::string> answers;
    for (size_t i = 0; i < tokens.tokens.size(); ++i) {
      if (!tokens.counted[i]) continue;
      if (i == 0 || !tokens.counted[i - 1]) answers.emplace_back();
      answers.back() += tokenizer.decode({&tokens.tokens[i], 1});
    }
    return answers;
  }
  static std::vector<std::string> trained(const std::string& name, const std::string& line) {
    return trained(with_template(golden_template(name)), conversation_of(line));
  }
  static std::string refusal(ChatTemplateText chat, const std::string& line) {
    return error_text([&] { trained(with_template(std::move(chat)), conversation_of(line)); });
  }
  using Texts = std::vector<std::string>;
};

TEST_F(ChatTools, CallsAreTrainedOnAndWhatToolsReturnIsNot) {
  const std::string line = line_with(R"({"b": 1, "a": "x"})", kTools);
  EXPECT_EQ(trained("tags", line),
            (Texts{"<tool_call>\n{\"name\": \"look\", \"arguments\": {\"b\": 1, \"a\": \"x\"}}\n"
                   "</tool_call><|im_end|>",
                   "A<|im_end|>"}));
  EXPECT_EQ(trained("thinking", line),
            (Texts{"<tool_call>\n{\"name\": \"look\", \"arguments\": {\"b\": 1, \"a\": \"x\"}}\n"
                   "</tool_call><|im_end|>",
                   "<think>\n\n</think>\n\nA<|im_end|>"}));
  EXPECT_EQ(trained("headers", line),
            (Texts{"{\"name\": \"look\", \"parameters\": {\"b\": 1, \"a\": \"x\"}}<|eot_id|>",
                   "A<|eot_id|>"}));
  EXPECT_EQ(trained("brackets", line),
            (Texts{"[TOOL_CALLS] [{\"name\": \"look\", \"arguments\": {\"b\": 1, \"a\": \"x\"}, "
                   "\"id\": \"123456789\"}]</s>",
                   " A</s>"}));
  EXPECT_EQ(trained("compact", line),
            (Texts{"<|call|>look {\"a\": \"x\", \"b\": 1}<|end|>", "A<|end|>"}));
}

// The tools stand before the last question: before an earlier answer there were none.
TEST_F(ChatTools, AnswersBeforeTheQuestionWithTheToolsAreFound) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
          {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
          {"role": "user", "content": "e"}, {"role": "assistant", "content": "f"}])" +
      std::string(kTools) + "}";
  EXPECT_EQ(trained("brackets", line), (Texts{" b</s>", " d</s>", " f</s>"}));
}

// The last answer is rendered with what was thought, an earlier one without.
TEST_F(ChatTools, CallsFromWhichATemplateDropsThoughtsAreFound) {
  const std::string line = tool_goldens()["lines"][11].get<std::string>();
  ASSERT_TRUE(contains(line, "reasoning_content"));
  const std::string call =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"A\"}}\n</tool_call>"
      "<|im_end|>";
  EXPECT_EQ(trained("thinking", line),
            (Texts{call, "First.<|im_end|>", call, "<think>\nah\n</think>\n\nSecond.<|im_end|>"}));
}

TEST_F(ChatTools, ACallMayBeLeftOut) {
  Conversation conversation = conversation_of(line_with("{}", kTools));
  conversation.messages[1].counted = false;
  for (const char* name : {"tags", "brackets", "headers", "compact"})
    EXPECT_EQ(trained(with_template(golden_template(name)), conversation).size(), 1u) << name;
}

// Left out, they would teach something else.
TEST_F(ChatTools, ATemplateThatNeverLooksAtThemRefusesThem) {
  const ChatTemplateText plain = {
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}",
      "plain.jinja", Json::object()};
  expect_in(refusal(plain, line_with("{}", kTools)),
            {"f:1: the template plain.jinja does not read \"tools\"", "remove the key"});
  expect_in(refusal(plain, line_with("{}")),
            {"f:1: message 2 has \"tool_calls\", which the template plain.jinja does not read"});
  const auto answer = [](const std::string& more) {
    return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a")" +
           more + "}]}";
  };
  for (const std::string key : {"reasoning_content", "thinking", "reasoning"})
    expect_in(refusal(plain, answer(", \"" + key + "\": \"hm\"")),
              {"f:1: message 2 has \"reasoning_content\""});
  expect_in(refusal(plain, answer(R"(, "function_call": {"name": "f"})")),
            {"f:1: message 2 has \"function_call\""});
  // Nothing is said with these.
  for (const std::string more : {R"(, "tool_calls": [])", R"(, "thinking": "")",
                                 R"(, "reasoning_content": null, "function_call": null, "id": 7)"})
    EXPECT_EQ(refusal(plain, answer(more)), "") << more;
  // A role that it does not name is shown, or refused.
  const std::string result =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "tool", "content": "R42"}]})";
  EXPECT_EQ(refusal(plain, result), "");
  ChatTemplateText silent = plain;
  silent.text =
      "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.content }}{% endif %}"
      "{% endfor %}";
  expect_in(refusal(silent, result),
            {"message 2", "plain.jinja leaves out what the role \"tool\" says"});
  expect_in(refusal(plain, R"({"messages": [{"role": "asistant", "content": "R"}]})"),
            {"message 1: the role \"asistant\" is none that the template plain.jinja names"});
}

TEST_F(ChatTools, MarkersRefuseThem) {
  const auto refused = [](const std::string& line) {
    return error_text([&] { ChatMarkers::chatml().require_shown(conversation_of(line), "f:1"); });
  };
  expect_in(refused(line_with("{}", kTools)), {"f:1 has \"tools\"", "only a template renders"});
  expect_in(refused(line_with("{}")), {"f:1: message 2 has \"tool_calls\""});
  ChatMarkers markers = ChatMarkers::chatml();
  markers.roles["tool"] = {"<t>", "</t>"};
  EXPECT_ERROR(
      markers.require_shown(
          conversation_of(R"({"messages": [{"role": "tool", "content": {"a": 1}}]})"), "f:1"),
      "f:1: the content of message 1 is an object");
}

TEST_F(ChatTools, WhatIsNoListOfToolsIsRefused) {
  const auto error = [](const std::string& line) {
    return error_text([&] { conversation_of(line); });
  };
  expect_in(error(line_with("{}", R"(, "tools": {"a": 1})")), {"\"tools\" is an object", "a list"});
  expect_in(error(line_with("{}", R"(, "tools": ["look"])")),
            {"entry 1 of \"tools\" is a string where an object is needed"});
  expect_in(error(line_with("{}", R"(, "tools": "look")")),
            {"\"tools\" is a text that is not JSON"});
  expect_in(error(line_with("{}", R"(, "functions": [{"name": "look"}])")),
            {"f:1 has \"functions\"", "write them as \"tools\""});
  expect_in(error(R"({"messages": [{"role": "assistant", "tool_calls": "look"}]})"),
            {"f:1: message 1: \"tool_calls\" is a string where a list is needed"});
  expect_in(error(R"({"messages": [{"role": "user", "content": "", "tool_calls": [{"a": 1}]}]})"),
            {"message 1 has \"tool_calls\", and its role is \"user\""});
  // Datasets whose columns have one type each hold tools as a text.
  EXPECT_EQ(conversation_of(line_with("{}", R"(, "tools": "[{\"name\": \"x\"}]")")).tools.dump(),
            R"([{"name":"x"}])");
  EXPECT_TRUE(conversation_of(line_with("{}", R"(, "tools": "")")).tools.is_null());
  EXPECT_TRUE(conversation_of(line_with("{}", R"(, "tools": "null")")).tools.is_null());
}

// As Python's json module reads them, or an error.
TEST_F(ChatTools, HostileArgumentsPassOrAreRefused) {
  const auto call = [](const std::string& arguments) {
    const Texts answers = trained("tags", line_with(arguments, kTools));
    const std::string& first = answers.at(0);
    const size_t begin = first.find("arguments\": ") + 12;
    return first.substr(begin, first.rfind("}\n") - begin);
  };
  EXPECT_EQ(call(R"({"a": 1, "b": 2, "a": {"c": 3, "c": 4}})"), R"({"a": {"c": 4}, "b": 2})");
  EXPECT_EQ(call(R"("{ no JSON")"), R"("{ no JSON")");
  EXPECT_EQ(call("[123456789012345678901234567890, -0.0, 1e-7, 1E16]"),
            "[123456789012345678901234567890, -0.0, 1e-07, 1e+16]");
  EXPECT_EQ(call(R"("\ud83d\ude00\u0000")"), R"("😀\u0000")");
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_EQ(call(nested(200)), nested(200));
  const auto error = [](const std::string& line) {
    return error_text([&] { conversation_of(line); });
  };
  expect_in(error(line_with(nested(300))), {"more than 256 levels deep"});
  expect_in(error(line_with(nested(1'000'000))), {"more than 256 levels deep"});
  expect_in(error(line_with("1e400")), {"1e400"});
  expect_in(error(line_with("NaN")), {"invalid literal"});
  expect_in(error(line_with(R"("\ud83d")")), {"surrogate"});
}

// An indent makes much of little: no template writes without end.
TEST_F(ChatTools, AnIndentedTextIsBounded) {
  Json deep = Json::array();
  for (int i = 0; i < 200'000; ++i) deep.push_back(nullptr);
  for (int i = 0; i < 50; ++i) deep = Json::array({std::move(deep)});
  const JinjaTemplate text("{{ x | tojson(indent=100) }}", "t");
  EXPECT_ERROR(text.render({{"x", std::move(deep)}}), "t:1: a text becomes too long");
}

// An attribute of a dictionary is first Python's method, an entry in brackets first the key's.
TEST_F(ChatTools, KeysNamedLikeMethodsAreFoundAsInPython) {
  const Json variables = {{"d", {{"items", 5}, {"keys", {{"values", 6}}}, {"x", 7}}}};
  const auto text = [&](const std::string& source) {
    return JinjaTemplate(source, "t").render(variables).text;
  };
  EXPECT_EQ(text("{{ d['items'] }}{{ d['keys']['values'] }}{{ d.x }}"), "567");
  EXPECT_EQ(text("{{ d.items is number }}{{ d.items is defined }}{{ d.items.type is defined }}"),
            "FalseTrueFalse");
  EXPECT_EQ(text("{{ [d] | map(attribute='items') | list }}"), "[5]");
  EXPECT_EQ(text("{% for k, v in d.items() %}{{ k }},{% endfor %}"), "items,keys,x,");
  EXPECT_ERROR(text("{{ d.items }}"), "t:1: a function cannot be written");
  EXPECT_ERROR(text("{% set f = d.items %}{{ f() }}"), "t:1: a function cannot be called");
}

TEST(ChatToolsFiles, ATemplateOfItsOwnRendersConversationsWithTools) {
  const ScratchFolder folder;
  folder.write("tokenizer.json", Tokenizer::bytes().to_json());
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "default", "template": "plain"},
                                     {"name": "tool_use", "template": "{{ tools | tojson }}"}]})");
  const auto rendered = [&](const Json& tools) {
    const Tokenizer tokenizer = load_tokenizer(folder.path("tokenizer.json"));
    return ChatTemplate(*tokenizer.chat_template())
        .render({.messages = {{"user", "q"}}, .tools = tools}, false);
  };
  const Json tools = Json::array({{{"name", "f"}}});
  EXPECT_EQ(rendered(nullptr), "plain");
  EXPECT_EQ(rendered(Json::array()), "[]");
  EXPECT_EQ(rendered(tools), R"([{"name": "f"}])");
  // One that cannot be interpreted does no harm to others.
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "default", "template": "plain"},
                                     {"name": "tool_use", "template": "{% include 'x' %}"}]})");
  EXPECT_EQ(rendered(nullptr), "plain");
  EXPECT_ERROR(rendered(tools), "(tool_use):1:", "include");
  folder.write("chat_template.jinja", "other");
  EXPECT_EQ(rendered(nullptr), "other");
  EXPECT_ERROR(rendered(tools), "does not read \"tools\"");
  std::filesystem::create_directory(folder.path("additional_chat_templates"));
  folder.write("additional_chat_templates/tool_use.jinja", "{{ tools | tojson }}");
  EXPECT_EQ(rendered(nullptr), "other");
  EXPECT_ERROR(rendered(tools), "tool_use.jinja", "is not read");
}

// From the file to the tokens, with bad lines left out and counted.
TEST(ChatToolsFiles, BadLinesAreCounted) {
  const ScratchFolder folder;
  Tokenizer tokenizer = Tokenizer::bytes();
  tokenizer.set_chat_template(golden_template("tags"));
  const std::string good = line_with(R"({"a": 1})", kTools);
  DataSource source = {
      .paths = {folder.write("c.jsonl", good + "\n" + line_with("1e400") + "\n" + good + "\n{]\n")},
      .format = DataFormat::kChat,
      .skip_bad = true};
  const auto visit = [&] {
    int64_t documents = 0;
    const DocumentReport report = for_each_document(source, [&](const Document& document) {
      EXPECT_TRUE(contains(std::string(document.text), "look"));
      ++documents;
    });
    return std::pair(documents, report.skipped);
  };
  EXPECT_EQ(visit(), (std::pair<int64_t, int64_t>(2, 2)));
  source.chat = ChatMarkers::chatml();  // which have no words for tools
  EXPECT_EQ(visit(), (std::pair<int64_t, int64_t>(0, 4)));
}

}  // namespace
}  // namespace onefold
