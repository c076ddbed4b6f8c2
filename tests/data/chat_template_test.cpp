// Templates of conversations: rendered as transformers renders them, bounded, and answers found in
// them. tests/golden/README.md says how the golden file was made.
#include "data/chat_template.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "base/json.h"
#include "data/chat.h"
#include "data/hf_tokenizer.h"
#include "data/jinja.h"
#include "data/scratch.h"
#include "error_text.h"
#include "sanitized.h"

namespace onefold {
namespace {

const Json& chat_goldens() {
  // The script writes others than those in the repository.
  const char* const other = std::getenv("ONEFOLD_CHAT_GOLDENS");
  static const Json kGoldens =
      read_json(other ? other : std::string(ONEFOLD_GOLDEN_DIR) + "/chat_templates.json");
  return kGoldens;
}

std::string jinja_text(const std::string& text, const Json& variables = Json::object()) {
  return JinjaTemplate(text, "t.jinja").render(variables).text;
}

TEST(ChatTemplateGolden, EveryConversationIsRenderedAsTransformersDoes) {
  const Json& goldens = chat_goldens();
  int rendered = 0;
  for (const auto& [name, golden] : goldens["templates"].items()) {
    const JinjaTemplate chat(golden["template"].get<std::string>(), name);
    for (size_t c = 0; c < goldens["conversations"].size(); ++c)
      for (const bool prompt : {false, true}) {
        Json variables = goldens["tokens"];
        variables["messages"] = goldens["conversations"][c];
        variables["add_generation_prompt"] = prompt;
        variables["tools"] = variables["documents"] = nullptr;
        const Json& wanted = golden["rendered"][c][prompt ? 1 : 0];
        std::string text;
        const std::string error = error_text([&] { text = chat.render(variables).text; });
        if (wanted.is_null()) {
          EXPECT_NE(error, "") << name << " " << c;
          continue;
        }
        EXPECT_EQ(error, "") << name << " " << c;
        EXPECT_EQ(text, wanted.get<std::string>()) << name << " " << c;
        ++rendered;
      }
  }
  EXPECT_GE(rendered, 1000);
}

TEST(ChatTemplateGolden, EverySnippetIsWhatJinjaMakesOfIt) {
  for (const Json& snippet : chat_goldens()["snippets"]) {
    const auto source = snippet["template"].get<std::string>();
    std::string text;
    const std::string error =
        error_text([&] { text = jinja_text(source, chat_goldens()["variables"]); });
    if (snippet.contains("error")) {
      EXPECT_TRUE(error.starts_with("t.jinja:1: ")) << source << ": " << error;
    } else {
      EXPECT_EQ(error, "") << source;
      EXPECT_EQ(text, snippet["text"].get<std::string>()) << source;
    }
  }
}

// As Jinja's default Undefined: printed as nothing, and no JSON.
TEST(Jinja, WhatIsUndefinedStaysSoInAList) {
  const Json parts = {{"parts", {{{"text", "a"}}, {{"image", 1}}, {{"text", "b"}}}}};
  const auto text = [&](const std::string& source) { return jinja_text(source, parts); };
  EXPECT_EQ(text("{{ parts | map(attribute='text') | join('') }}"), "ab");
  EXPECT_EQ(
      text("{% for t in parts | map(attribute='text') %}[{{ t }}{{ t is defined }}]{% endfor %}"),
      "[aTrue][False][bTrue]");
  EXPECT_EQ(text("{{ parts | map(attribute='text') | select | list }}"), "['a', 'b']");
  EXPECT_EQ(text("{{ parts | map(attribute='text') | list }}"), "['a', Undefined, 'b']");
  EXPECT_EQ(text("{{ parts | map(attribute='text', default='-') | join }}"), "a-b");
  EXPECT_EQ(error_text([&] { text("{{ parts | map(attribute='text') | list | tojson }}"); }),
            "t.jinja:1: an entry of the list is undefined, which has no JSON");
}

TEST(Jinja, LinesAndDoublesAreThoseOfPython) {
  EXPECT_EQ(jinja_text("{{ s.splitlines() }}", {{"s",
                                                 "a\x1c"
                                                 "b\u0085c\u2028d\re\r\nf\n\ng\v\f"}}),
            "['a', 'b', 'c', 'd', 'e', 'f', '', 'g', '']");
  EXPECT_EQ(jinja_text("{{ ['b', 'a', 'B', 1, 1] | unique | list }}"), "['b', 'a', 1]");
  EXPECT_EQ(jinja_text("{{ {'a': [1]} | tojson(none, 1) }}"), "{\n \"a\": [\n  1\n ]\n}");
  const auto error = [](const std::string& text) { return error_text([&] { jinja_text(text); }); };
  EXPECT_EQ(error("{{ nothing | tojson }}"),
            "t.jinja:1: \"nothing\" is undefined, which has no JSON");
  EXPECT_EQ(error("{{ '0x1f' | int(base=16) }}"), "t.jinja:1: int with a base is not interpreted");
  EXPECT_EQ(error("{{ [] | unique(attribute='a') | list }}"),
            "t.jinja:1: unique with arguments is not interpreted");
  EXPECT_EQ(error("{{ [1] | sum(start=5) }}"), "t.jinja:1: sum with arguments is not interpreted");
  EXPECT_EQ(error("{{ {'a': 1} | dictsort(by='value') }}"),
            "t.jinja:1: dictsort with arguments is not interpreted");
  EXPECT_EQ(jinja_text("{{ ['a', 'B'] | min }}{{ ['a', 'B'] | max }}"), "aB");
}

// Beyond the characters whose places are remembered, of one byte and of more, and bytes of none.
TEST(Jinja, CharactersOfLongTextsAreCounted) {
  const auto text = [](const std::string& source, const std::string& s) {
    return jinja_text(source, {{"s", s}});
  };
  for (const std::string unit : {"abc", "\u00e9\u4e2d\U0001f600", "a\u4e2d\xff"}) {
    std::string all;
    for (int i = 0; i < 1000; ++i) all += unit;
    EXPECT_EQ(text("{{ s | length }}", all), "3000");
    EXPECT_EQ(text("{{ s[3:-3] | length }}{{ (s[2994:] + '!').endswith(s[:6] + '!') }}", all),
              "2994True");
    for (const int i : {0, 63, 64, 65, 127, 128, 1920, 2999}) {
      const std::string at = std::to_string(i), third = std::to_string(i % 3);
      EXPECT_EQ(text("{{ s[" + at + "] == s[" + third + "] }}", all), "True") << unit << i;
    }
    EXPECT_EQ(text("{{ s[::3] == s[0] * 1000 }}{{ s[::-1][2999] == s[0] }}", all), "TrueTrue");
    EXPECT_EQ(text("{{ s[10:5] }}|{{ s[5000:] }}|{{ s[3000] }}", all), "||");
    EXPECT_EQ(text("{{ (' \n' ~ s ~ ' ') | trim == s }}{{ s.find(s[2]) }}", all), "True2");
  }
}

// By Python's repr().
TEST(Jinja, WhatCannotBePrintedIsANumberInAListsText) {
  EXPECT_EQ(jinja_text("{{ [s] }}", {{"s", "\u00e9\u200b\u2028\u0085\u00a0 \U000e0067\x7f\u00ad"}}),
            "['\u00e9\\u200b\\u2028\\x85\\xa0 \\U000e0067\\x7f\\xad']");
}

TEST(Jinja, WhatIsNotInterpretedIsNamedWithItsLine) {
  const auto error = [](const std::string& text) {
    return error_text([&] { jinja_text(text, {{"x", 1}, {"list", {1}}}); });
  };
  EXPECT_EQ(error("a\n\n{% include 'x' %}"),
            "t.jinja:3: the statement {% include %} is not interpreted");
  EXPECT_EQ(error("{{ x\n | nosuch }}"), "t.jinja:2: the filter \"nosuch\" is not interpreted");
  EXPECT_EQ(error("{{ x is nosuch }}"), "t.jinja:1: the test \"is nosuch\" is not interpreted");
  EXPECT_EQ(error("\n{{ 'a'.nosuch() }}"),
            "t.jinja:2: a string has no method nosuch() that is interpreted");
  EXPECT_EQ(error("{{ list.pop() }}"), "t.jinja:1: pop() would change a value; templates may not");
  EXPECT_EQ(error("{{ raise_exception('no ' ~ x) }}"),
            "t.jinja:1: the template refuses the conversation: no 1");
  EXPECT_EQ(error("{% for x in list recursive %}{% endfor %}"),
            "t.jinja:1: {% for ... recursive %} is not interpreted");
  EXPECT_EQ(error("{{ loop.depth }}"),
            "t.jinja:1: \"loop\" is undefined, and its \"depth\" is asked for");
  EXPECT_EQ(error("{{ nothing.at.all }}"),
            "t.jinja:1: \"nothing\" is undefined, and its \"at\" is asked for");
}

// Nothing that a template does takes more than a moment, or more memory than a bound.
// Half a character would be read beyond its end where a text is cut at characters.
TEST(Jinja, WhatIsNoUtf8IsNamedWithItsLine) {
  for (const std::string_view broken : {"\xFF", "\xE4", "\xE4\xB8", "\xED\xA0\x80", "\xC0\x80"})
    for (const std::string_view before : {"", "text\n", "{{ ['\n", "{# \n", "{% raw %}\n"}) {
      const std::string text = std::string(before) + std::string(broken);
      EXPECT_ERROR(JinjaTemplate(text, "template"),
                   before.empty() ? "template:1: the byte" : "template:2: the byte",
                   "a template is UTF-8");
    }
}

TEST(Jinja, IsBounded) {
  static constexpr std::chrono::seconds kMoment(test::kSanitized ? 200 : 20);
  const auto error = [](const std::string& text) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string message = error_text([&] { jinja_text(text); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kMoment) << text;
    return message;
  };
  const auto repeated = [](std::string_view part, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += part;
    return text;
  };
  EXPECT_TRUE(contains(error("{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}"
                             "{% endfor %}"),
                       "more than 1000000 steps"));
  EXPECT_TRUE(contains(error("{% set ns = namespace(s='x') %}{% for i in range(99) %}"
                             "{% set ns.s = ns.s ~ ns.s %}{% endfor %}"),
                       "steps"));
  EXPECT_TRUE(contains(error("{{ 'x' * 999999999999 }}"), "too long"));
  EXPECT_TRUE(contains(error("{{ ('x' * 2000000) | join(', ') }}"), "too long for a list"));
  EXPECT_TRUE(
      contains(error("{% for i in range(99) %}{{ ('x' * 1000000) | last }}{% endfor %}"), "steps"));
  EXPECT_TRUE(contains(error("{% set s = 'x' * 1000000 %}{% for i in range(99) %}"
                             "{% set t = ''.join(s) %}{% endfor %}"),
                       "steps"));
  EXPECT_TRUE(contains(error("{% set ns = namespace(l=[1]) %}{% for i in range(99) %}"
                             "{% set ns.l = [ns.l, ns.l] %}{% endfor %}"),
                       "steps"));
  EXPECT_TRUE(contains(error("{% set ns = namespace(l=[1]) %}{% for i in range(99) %}"
                             "{% set ns.l = [ns.l] %}{% endfor %}"),
                       "too deep"));
  EXPECT_TRUE(contains(error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "too deeply"));
  EXPECT_TRUE(
      contains(error("{{ " + repeated("(", 200) + "1" + repeated(")", 200) + " }}"), "too deep"));
  EXPECT_TRUE(contains(error("{{ 1" + repeated(" + 1", 5000) + " }}"), "too long"));
  EXPECT_TRUE(
      contains(error(repeated("{% if true %}", 500) + repeated("{% endif %}", 500)), "too deep"));
  EXPECT_TRUE(contains(error("{{ 9223372036854775807 + 1 }}"), "too large"));
  EXPECT_TRUE(contains(error("{{ (-9223372036854775807 - 1) // -1 }}"), "too large"));
  EXPECT_TRUE(contains(error("{{ range(1000001) }}"), "range()"));
  EXPECT_TRUE(contains(error("{% set ns = namespace() %}{% set ns.a = ns %}"), "namespace"));
  EXPECT_EQ(jinja_text("{{ 'abc'[::9223372036854775807] }}{{ 'abc'[::-9223372036854775807] }}"),
            "ac");
}

// A tokenizer of bytes with the special tokens of all these templates.
class ChatTemplateTokens : public testing::Test {
 protected:
  static Tokenizer with_template(const std::string& name) {
    Json json = Json::parse(Tokenizer::bytes().to_json());
    int64_t id = 257;
    for (const char* token :
         {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>",
          "<|end_header_id|>", "<start_of_turn>", "<end_of_turn>", "<|end|>", "<|user|>",
          "<|assistant|>", "<|system|>", "[INST]", "[/INST]", "<\uff5cUser\uff5c>",
          "<\uff5cAssistant\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"})
      json["added_tokens"].push_back({{"id", id++},
                                      {"content", token},
                                      {"special", true},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false}});
    Tokenizer tokenizer = Tokenizer::parse(json.dump(), "bytes");
    tokenizer.set_chat_template({chat_goldens()["templates"][name]["template"].get<std::string>(),
                                 name, chat_goldens()["tokens"]});
    return tokenizer;
  }
  // What is trained on, one answer after the other.
  static std::vector<std::string> trained(const Tokenizer& tokenizer, const ChatTokens& tokens) {
    std::vector<std::string> answers;
    for (size_t i = 0; i < tokens.tokens.size(); ++i) {
      if (!tokens.counted[i]) continue;
      if (i == 0 || !tokens.counted[i - 1]) answers.emplace_back();
      answers.back() += tokenizer.decode({&tokens.tokens[i], 1});
    }
    return answers;
  }
  const Conversation turns_ = {
      .messages = {
          {"user", "Hi"}, {"assistant", "Hello."}, {"user", "Why?"}, {"assistant", "Because."}}};
};

TEST_F(ChatTemplateTokens, AnswersAndTheirEndsAreTrainedOn) {
  const std::map<std::string, std::pair<std::string, std::string>> wanted = {
      {"chatml", {"Hello.<|im_end|>", "Because.<|im_end|>"}},
      {"chatml_system", {"Hello.<|im_end|>", "Because.<|im_end|>"}},
      {"marked", {"Hello.<|end|>\n", "Because.<|end|>\n"}},  // as it is marked
      {"llama2", {" Hello. </s>", " Because. </s>"}},
      {"llama3", {"Hello.<|eot_id|>", "Because.<|eot_id|>"}},
      {"llama31", {"Hello.<|eot_id|>", "Because.<|eot_id|>"}},
      {"mistral", {" Hello.</s>", " Because.</s>"}},
      {"gemma", {"Hello.<end_of_turn>", "Because.<end_of_turn>"}},
      {"gemma3", {"Hello.<end_of_turn>", "Because.<end_of_turn>"}},
      {"qwen25", {"Hello.<|im_end|>", "Because.<|im_end|>"}},
      {"qwen3", {"Hello.<|im_end|>", "<think>\n\n</think>\n\nBecause.<|im_end|>"}},
  };
  for (const auto& [name, answers] : wanted) {
    SCOPED_TRACE(name);
    const Tokenizer tokenizer = with_template(name);
    const ChatFormat format(tokenizer, std::nullopt);
    EXPECT_TRUE(format.has_template());
    const ChatTokens tokens = format.render(turns_, "here");
    const ChatTemplate chat(*tokenizer.chat_template());
    EXPECT_EQ(tokenizer.decode(tokens.tokens), chat.render(turns_, false));
    EXPECT_EQ(trained(tokenizer, tokens),
              (std::vector<std::string>{answers.first, answers.second}));
    EXPECT_EQ(tokenizer.decode(format.prompt(turns_)), chat.render(turns_, true));
    if (name != "marked") {
      EXPECT_GE(format.end_of_answer(), 257);
    }
  }
}

// Its prompt begins to think, which an answer that is there does not.
TEST_F(ChatTemplateTokens, ATemplateThatHidesAnswersStillConverses) {
  const Tokenizer tokenizer = with_template("deepseek");
  const ChatFormat format(tokenizer, std::nullopt);
  EXPECT_ERROR(format.render(turns_, "here"), "here: message 2", "{% generation %}");
  EXPECT_TRUE(tokenizer
                  .decode(format.prompt(
                      {.messages = {turns_.messages.begin(), turns_.messages.begin() + 3}}))
                  .ends_with("<think>\n"));
  ASSERT_GE(format.end_of_answer(), 257);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{format.end_of_answer()}),
            "<\uff5cend\u2581of\u2581sentence\uff5c>");
}

TEST_F(ChatTemplateTokens, AnAnswerMayBeLeftOut) {
  const Tokenizer tokenizer = with_template("chatml");
  Conversation turns = turns_;
  turns.messages[1].counted = false;
  const ChatTokens tokens = ChatFormat(tokenizer, std::nullopt).render(turns, "here");
  EXPECT_EQ(trained(tokenizer, tokens), (std::vector<std::string>{"Because.<|im_end|>"}));
}

TEST_F(ChatTemplateTokens, WhatCannotBeFoundOrIsRefusedIsSaid) {
  Tokenizer tokenizer = with_template("gemma");
  const Conversation system = {.messages = {{"system", "x"}, {"user", "y"}}};
  EXPECT_ERROR(ChatFormat(tokenizer, std::nullopt).render(system, "file:3"),
               "file:3: gemma:1:", "System role not supported");
  // The prompt has what the answer later has not.
  tokenizer.set_chat_template(
      {"{% for m in messages %}<{{ m.content }}>{% endfor %}"
       "{% if add_generation_prompt %}!{% endif %}",
       "odd", Json::object()});
  EXPECT_ERROR(ChatFormat(tokenizer, std::nullopt).render(turns_, "file:4"), "file:4: message 2",
               "{% generation %}");
  tokenizer.set_chat_template({"{% for x in", "broken", Json::object()});
  EXPECT_ERROR(ChatFormat(tokenizer, std::nullopt), "broken:1:");
}

TEST_F(ChatTemplateTokens, MarkersOfOnesOwnComeFirst) {
  const Tokenizer tokenizer = with_template("llama3");
  const ChatFormat format(tokenizer, ChatMarkers::chatml());
  EXPECT_FALSE(format.has_template());
  EXPECT_TRUE(contains(tokenizer.decode(format.render(turns_, "here").tokens), "<|im_start|>"));
}

TEST(ChatTemplateFiles, AFoldersTemplateComesWithItsTokenizer) {
  const ScratchFolder folder;
  const std::string json = Tokenizer::bytes().to_json();
  folder.write("tokenizer.json", json);
  const auto loaded = [&] { return load_tokenizer(folder.path("tokenizer.json")); };
  EXPECT_EQ(loaded().chat_template(), nullptr);
  folder.write("tokenizer_config.json",
               R"({"eos_token": "<|endoftext|>", "bos_token": {"content": "<|endoftext|>"},
                   "chat_template": [{"name": "tool_use", "template": "no"},
                                     {"name": "default", "template": "{{ bos_token }}!"}]})");
  const Tokenizer first = loaded();
  ASSERT_NE(first.chat_template(), nullptr);
  EXPECT_EQ(ChatTemplate(*first.chat_template()).render({}, false), "<|endoftext|>!");
  folder.write("chat_template.json", R"({"chat_template": "second"})");
  const Tokenizer second = loaded();
  EXPECT_EQ(second.chat_template()->text, "second");
  folder.write("chat_template.jinja", "third");
  const Tokenizer third = loaded();
  EXPECT_EQ(third.chat_template()->text, "third");
  EXPECT_TRUE(contains(third.chat_template()->source, "chat_template.jinja"));
}

}  // namespace
}  // namespace onefold
