// What can be asked of a model besides its loss, from lines of JSON: which of several choices
// follows a prompt, and which word ends a text. Questions become texts to be scored
// (run/evaluation.h), and scores become accuracies.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "run/evaluation.h"
#include "run/model_folder.h"

namespace onefold {

enum class EvalTask { kLoss, kChoices, kLastWord };
// "loss", "choices", "last-word". Errors name `what` and the choices.
EvalTask parse_eval_task(std::string_view name, std::string_view what);
const char* eval_task_name(EvalTask task);
// By the first line of a file of JSON lines: choices if it has that field, else the loss.
EvalTask eval_task_of(const std::string& path);

// A prompt and what may follow it. Fields: "context", "question" and "prompt", those that are there
// with a line break between them; "choices", a list of texts; "answer" (or "answerKey", "label"),
// an index from 0, a letter, or the text of a choice. Choices may also be {"text": [...], "label":
// [...]}, the answer one of the labels.
struct ChoiceQuestion {
  std::string place;  // "file:line"
  std::string prompt;
  std::vector<std::string> choices;
  size_t answer = 0;
};
// The first `limit` (0: all) of these files. UserErrors name file, line and field.
std::vector<ChoiceQuestion> read_choices(std::span<const std::string> paths, int64_t limit);

// A text without its last word, and that word with the white space before it.
struct LastWordQuestion {
  std::string place;
  std::string context, word;
};
std::vector<LastWordQuestion> read_last_words(std::span<const std::string> paths,
                                              const std::string& field, int64_t limit);

// The texts to score: those of a question's choices follow each other. White space at the end of a
// prompt belongs to what follows it; between a prompt and a choice with none, there is one space.
struct EncodedQuestions {
  std::vector<ScoredText> texts;
  int64_t truncated = 0;  // texts of which the beginning was left out, to fit `longest` tokens
};
EncodedQuestions encode_choices(std::span<const ChoiceQuestion> questions, const ModelFolder& model,
                                int64_t longest);
EncodedQuestions encode_last_words(std::span<const LastWordQuestion> questions,
                                   const ModelFolder& model, int64_t longest);

struct ChoiceResult {
  int64_t questions = 0;
  int64_t correct = 0;             // the answer has the highest log-probability; of equal ones the
                                   // first counts
  int64_t correct_normalised = 0;  // divided by the number of characters of each choice
};
ChoiceResult judge_choices(std::span<const ChoiceQuestion> questions,
                           std::span<const TextScore> scores);

struct LastWordResult {
  int64_t questions = 0;
  int64_t correct = 0;         // greedy decoding would write the word
  double log_probability = 0;  // of the words, summed
};
LastWordResult judge_last_words(std::span<const TextScore> scores);

// Of a share of `correct` among `count`.
double standard_error(int64_t correct, int64_t count);

}  // namespace onefold
