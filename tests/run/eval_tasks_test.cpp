// Questions from lines of JSON, what is scored of them, and how they are judged.
#include "run/eval_tasks.h"

#include <cmath>

#include "run/support.h"

namespace onefold {
namespace {

class EvalTasks : public RunTest {
 protected:
  EvalTasks() { model_.tokenizer = Tokenizer::bytes(); }

  std::vector<std::string> file(const std::string& content) const {
    return {folder_.write("questions.jsonl", content)};
  }
  ChoiceQuestion choice(const std::string& line) const {
    return read_choices(file("\n" + line + "\n"), 0).at(0);
  }
  std::string text_of(const ScoredText& text, bool scored) const {
    const auto cut = text.tokens.begin() + static_cast<ptrdiff_t>(text.given);
    return model_.tokenizer->decode(scored ? std::vector<int32_t>(cut, text.tokens.end())
                                           : std::vector<int32_t>(text.tokens.begin(), cut));
  }

  ModelFolder model_;
};

TEST_F(EvalTasks, AnAnswerIsAnIndexALetterOrTheText) {
  const auto answer = [&](const std::string& value) {
    return choice(R"({"prompt": "2 + 2 =", "choices": ["3", "four", "5"], "answer": )" + value +
                  "}")
        .answer;
  };
  EXPECT_EQ(answer("1"), 1u);
  EXPECT_EQ(answer("\"B\""), 1u);
  EXPECT_EQ(answer("\"b\""), 1u);
  EXPECT_EQ(answer("\"four\""), 1u);
  EXPECT_EQ(answer("\"5\""), 2u);  // the text comes before the number
  EXPECT_EQ(answer("\"1\""), 1u);
  for (const char* wrong : {"3", "-1", "\"D\"", "\"seven\"", "1.5", "null"})
    EXPECT_ERROR(answer(wrong), "questions.jsonl:2", "\"answer\" is ", "none of the 3 choices");
}

TEST_F(EvalTasks, LabelsOfChoicesNameTheAnswer) {
  const ChoiceQuestion question = choice(
      R"({"question": "Which?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"})");
  EXPECT_EQ(question.prompt, "Which?");
  EXPECT_EQ(question.choices, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(question.answer, 1u);
}

TEST_F(EvalTasks, ContextQuestionAndPromptFollowEachOther) {
  const ChoiceQuestion question =
      choice(R"({"question": "Who?", "context": "A and B.", "choices": ["a", "b"], "label": 0})");
  EXPECT_EQ(question.prompt, "A and B.\nWho?");
}

TEST_F(EvalTasks, WhatIsWrongNamesLineAndField) {
  EXPECT_ERROR(choice("{"), "questions.jsonl:2", "not JSON");
  EXPECT_ERROR(choice("[1]"), "questions.jsonl:2", "a JSON object is needed");
  EXPECT_ERROR(choice(R"({"choices": ["a", "b"], "answer": 0})"), "questions.jsonl:2",
               "\"prompt\", \"question\" or \"context\"", "its fields are \"choices\", \"answer\"");
  EXPECT_ERROR(choice(R"({"prompt": 3, "choices": ["a", "b"], "answer": 0})"), "questions.jsonl:2",
               "\"prompt\" is a number");
  EXPECT_ERROR(choice(R"({"prompt": "x", "answer": 0})"), "no field \"choices\"");
  EXPECT_ERROR(choice(R"({"prompt": "x", "choices": "ab", "answer": 0})"),
               "\"choices\" is a string", "a list of texts is needed");
  EXPECT_ERROR(choice(R"({"prompt": "x", "choices": ["a", 2], "answer": 0})"),
               "\"choices\" holds a number");
  EXPECT_ERROR(choice(R"({"prompt": "x", "choices": ["a"], "answer": 0})"), "at least two");
  EXPECT_ERROR(choice(R"({"prompt": "x", "choices": ["a", ""], "answer": 0})"), "an empty text");
  EXPECT_ERROR(choice(R"({"prompt": "x", "choices": ["a", "b"]})"), "no field \"answer\"");
  EXPECT_ERROR(read_choices(file("\n\n"), 0), "no line in it");
  EXPECT_ERROR(read_last_words(file("{\"txt\": \"a b\"}"), "text", 0), "questions.jsonl:1",
               "no field \"text\"", "\"txt\"");
  EXPECT_ERROR(read_last_words(file("{\"text\": \" word \"}"), "text", 0), "one word",
               "at least two");
}

TEST_F(EvalTasks, TheTaskIsToldByTheFieldsOfTheFirstLine) {
  EXPECT_EQ(eval_task_of(file("\n{\"choices\": 1}\n")[0]), EvalTask::kChoices);
  EXPECT_EQ(eval_task_of(file("{\"text\": \"a b\"}\n{\"choices\": 1}\n")[0]), EvalTask::kLoss);
  EXPECT_EQ(parse_eval_task("last-word", "--task"), EvalTask::kLastWord);
  EXPECT_ERROR(parse_eval_task("last", "--task"), "--task", "loss, choices, last-word");
}

TEST_F(EvalTasks, ALimitEndsTheReadingBeforeWhatIsWrong) {
  const std::string good = R"({"prompt": "x", "choices": ["a", "b"], "answer": 0})";
  EXPECT_EQ(read_choices(file(good + "\n" + good + "\nnonsense\n"), 2).size(), 2u);
  EXPECT_EQ(read_last_words(file("{\"text\": \"a b\"}\n\nnonsense\n"), "text", 1).size(), 1u);
}

// One space joins what has none between, and space belongs to what follows it.
TEST_F(EvalTasks, AChoiceIsScoredWithTheSpaceBeforeIt) {
  const std::vector<ChoiceQuestion> questions = {{"", "The sky is", {"blue", " red"}, 0},
                                                 {"", "The sky is ", {"blue"}, 0},
                                                 {"", "", {"x"}, 0}};
  const EncodedQuestions encoded = encode_choices(questions, model_, 100);
  ASSERT_EQ(encoded.texts.size(), 4u);
  for (const size_t i : {0u, 2u}) {
    EXPECT_EQ(text_of(encoded.texts[i], false), "The sky is");
    EXPECT_EQ(text_of(encoded.texts[i], true), " blue");
  }
  EXPECT_EQ(text_of(encoded.texts[1], true), " red");
  EXPECT_EQ(encoded.texts[3].tokens, (std::vector<int32_t>{256, 'x'}));  // a document begins
  EXPECT_EQ(encoded.truncated, 0);
}

TEST_F(EvalTasks, WhatTheTokenizersTemplateAddsComesFirst) {
  model_.text_begin = {7, 8};
  const std::vector<LastWordQuestion> questions = {{"", "a b", " c"}};
  const ScoredText text = encode_last_words(questions, model_, 100).texts.at(0);
  EXPECT_EQ(text.tokens, (std::vector<int32_t>{7, 8, 'a', ' ', 'b', ' ', 'c'}));
  EXPECT_EQ(text.given, 5u);
}

TEST_F(EvalTasks, LongTextsLoseTheirBeginningAndNeverTheirEnd) {
  const std::vector<LastWordQuestion> questions = {{"here", "one two", " end"}};
  const EncodedQuestions encoded = encode_last_words(questions, model_, 6);
  EXPECT_EQ(encoded.truncated, 1);
  EXPECT_EQ(text_of(encoded.texts[0], false), "two");
  EXPECT_EQ(text_of(encoded.texts[0], true), " end");
  EXPECT_ERROR(encode_last_words(questions, model_, 3), "here", "4 tokens are to be scored",
               "a sequence has 3");
}

TEST_F(EvalTasks, TheLastWordIsWhatFollowsTheLastSpace) {
  const auto question =
      read_last_words(file(R"({"text": "He said:\n \"Go  home.\" \n"})"), "text", 0).at(0);
  EXPECT_EQ(question.context, "He said:\n \"Go");
  EXPECT_EQ(question.word, "  home.\"");
}

TEST_F(EvalTasks, TheHighestScoreIsTheChoiceWithAndWithoutItsLength) {
  const std::vector<ChoiceQuestion> questions = {
      {"", "", {"ab", "\u00e4bcdefgh"}, 0}, {"", "", {"a", "b", "c"}, 2}, {"", "", {"a", "b"}, 1}};
  // By characters: -1 and -0.5; the second question is a tie of the last two.
  const std::vector<TextScore> scores = {{-2}, {-4}, {-3}, {-1}, {-1}, {-2}, {-1}};
  const ChoiceResult result = judge_choices(questions, scores);
  EXPECT_EQ(result.questions, 3);
  EXPECT_EQ(result.correct, 2);             // the first and the last
  EXPECT_EQ(result.correct_normalised, 1);  // the last
}

TEST_F(EvalTasks, LastWordsAreCountedWhereEveryTokenIsTheLikeliest) {
  const std::vector<TextScore> scores = {{-1, true}, {-2, false}, {-3, true}, {-4, true}};
  const LastWordResult result = judge_last_words(scores);
  EXPECT_EQ(result.questions, 4);
  EXPECT_EQ(result.correct, 3);
  EXPECT_EQ(result.log_probability, -10);
  EXPECT_NEAR(standard_error(3, 4), std::sqrt(0.75 * 0.25 / 3), 1e-15);
}

}  // namespace
}  // namespace onefold
