#include "run/eval_tasks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

namespace onefold {
namespace {

constexpr std::array<const char*, 3> kTasks = {"loss", "choices", "last-word"};
constexpr std::string_view kSpaces = " \t\r\n\f\v";

std::string fields_of(const Json& object) {
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) names.push_back("\"" + key + "\"");
  return names.empty() ? "none" : join(names, ", ");
}

// Calls visit(object, "file:line") for each line that is not blank, until it returns false.
void for_each_line(std::span<const std::string> paths,
                   const std::function<bool(const Json&, const std::string&)>& visit) {
  for (const std::string& path : paths) {
    const MappedFile file(path);
    std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
    for (int64_t number = 1; !text.empty(); ++number) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      if (line.find_first_not_of(kSpaces) == std::string_view::npos) continue;
      const std::string place = fmt::format("{}:{}", path, number);
      Json object;
      try {
        object = Json::parse(line);
      } catch (const Json::exception& error) {
        user_error("{}: this line is not JSON ({}); a JSONL file has one JSON object on each line",
                   place, json_reason(error.what()));
      }
      if (!object.is_object())
        user_error("{}: this line holds {} where a JSON object is needed", place,
                   json_kind(object));
      if (!visit(object, place)) return;
    }
  }
}

const std::string& text_field(const Json& object, const std::string& name,
                              const std::string& place) {
  const auto found = object.find(name);
  if (found == object.end())
    user_error("{}: there is no field \"{}\" on this line; its fields are {}", place, name,
               fields_of(object));
  if (!found->is_string())
    user_error("{}: the field \"{}\" is {}, where a text is needed", place, name,
               json_kind(*found));
  return found->get_ref<const std::string&>();
}

std::string prompt_of(const Json& object, const std::string& place) {
  std::string prompt;
  bool any = false;
  for (const char* name : {"context", "question", "prompt"}) {
    if (!object.contains(name)) continue;
    if (any) prompt += "\n";
    prompt += text_field(object, name, place);
    any = true;
  }
  if (!any)
    user_error(
        "{}: there is no field \"prompt\", \"question\" or \"context\" on this line; its fields "
        "are {}",
        place, fields_of(object));
  return prompt;
}

std::vector<std::string> texts_of(const Json& value, const std::string& name,
                                  const std::string& place) {
  if (!value.is_array())
    user_error("{}: the field \"{}\" is {}, where a list of texts is needed", place, name,
               json_kind(value));
  std::vector<std::string> texts;
  for (const Json& one : value) {
    if (!one.is_string())
      user_error("{}: the field \"{}\" holds {}, where a text is needed", place, name,
                 json_kind(one));
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

// "B", "b" or "1" of that many choices; -1 if it is neither.
int64_t letter_or_number(const std::string& answer, size_t choices) {
  int64_t index = -1;
  const auto [end, error] = std::from_chars(answer.data(), answer.data() + answer.size(), index);
  if (error != std::errc() || end != answer.data() + answer.size()) {
    const bool letter = answer.size() == 1 && std::isalpha(static_cast<unsigned char>(answer[0]));
    index = letter ? std::toupper(static_cast<unsigned char>(answer[0])) - 'A' : -1;
  }
  return index >= 0 && index < static_cast<int64_t>(choices) ? index : -1;
}

size_t answer_of(const Json& object, const std::vector<std::string>& choices,
                 const std::vector<std::string>& labels, const std::string& place) {
  const char* name = nullptr;
  for (const char* candidate : {"answer", "answerKey", "label"})
    if (name == nullptr && object.contains(candidate)) name = candidate;
  if (name == nullptr)
    user_error("{}: there is no field \"answer\" on this line; its fields are {}", place,
               fields_of(object));
  const Json& value = object[name];
  int64_t index = -1;
  if (value.is_number_integer()) {
    if (value >= 0 && value < choices.size()) index = value.get<int64_t>();
  } else if (value.is_string()) {
    const auto text = value.get<std::string>();
    for (const std::vector<std::string>* among : {&labels, &choices}) {
      const auto found = std::find(among->begin(), among->end(), text);
      if (index < 0 && found != among->end()) index = found - among->begin();
    }
    if (index < 0 && labels.empty()) index = letter_or_number(text, choices.size());
  }
  if (index < 0)
    user_error(
        "{}: the field \"{}\" is {}, which is none of the {} choices: it is an index from 0, a "
        "letter from A, or the text of a choice",
        place, name, brief_json(value), choices.size());
  return static_cast<size_t>(index);
}

ChoiceQuestion choice_question(const Json& object, const std::string& place) {
  ChoiceQuestion question{.place = place, .prompt = prompt_of(object, place), .choices = {}};
  const auto found = object.find("choices");
  if (found == object.end())
    user_error("{}: there is no field \"choices\" on this line; its fields are {}", place,
               fields_of(object));
  std::vector<std::string> labels;
  if (found->is_object()) {
    if (!found->contains("text") || !found->contains("label"))
      user_error("{}: the field \"choices\" is an object without \"text\" and \"label\"", place);
    question.choices = texts_of((*found)["text"], "choices.text", place);
    labels = texts_of((*found)["label"], "choices.label", place);
    if (labels.size() != question.choices.size())
      user_error("{}: the field \"choices\" has {} texts and {} labels", place,
                 question.choices.size(), labels.size());
  } else {
    question.choices = texts_of(*found, "choices", place);
  }
  if (question.choices.size() < 2)
    user_error("{}: the field \"choices\" has {}; at least two are needed", place,
               question.choices.size());
  for (const std::string& choice : question.choices)
    if (choice.empty()) user_error("{}: the field \"choices\" holds an empty text", place);
  question.answer = answer_of(object, question.choices, labels, place);
  return question;
}

size_t without_spaces_behind(std::string_view text) {
  const size_t last = text.find_last_not_of(kSpaces);
  return last == std::string_view::npos ? 0 : last + 1;
}

LastWordQuestion last_word_question(std::string_view text, const std::string& field,
                                    const std::string& place) {
  text = text.substr(0, without_spaces_behind(text));
  const size_t space = text.find_last_of(kSpaces);
  const size_t context =
      space == std::string_view::npos ? 0 : without_spaces_behind(text.substr(0, space));
  if (context == 0)
    user_error(
        "{}: the field \"{}\" holds {}; it must have at least two, of which the last is to "
        "be predicted",
        place, field, text.empty() ? "no word" : "one word");
  return {place, std::string(text.substr(0, context)), std::string(text.substr(context))};
}

// Both texts are encoded together, since tokens depend on their neighbours; those after as many as
// the first alone has are scored, as lm-evaluation-harness counts.
class PairEncoder {
 public:
  PairEncoder(const ModelFolder& model, int64_t longest)
      : model_(model), tokenizer_(model.require_tokenizer()), longest_(longest) {}

  void add(std::string context, std::string continuation, const std::string& place,
           EncodedQuestions& to) const {
    const size_t kept = without_spaces_behind(context);
    continuation.insert(0, context, kept);
    context.resize(kept);
    ScoredText text{.tokens = model_.text_begin};
    const std::vector<int32_t> all = tokenizer_.encode(context + continuation);
    if (all.empty()) user_error("{}: there is no token in the text", place);
    text.given = text.tokens.size() + std::min(tokenizer_.encode(context).size(), all.size() - 1);
    text.tokens.insert(text.tokens.end(), all.begin(), all.end());
    if (text.given == 0) begin_document(text, place);
    cut(text, place, to);
    to.texts.push_back(std::move(text));
  }

 private:
  void begin_document(ScoredText& text, const std::string& place) const {
    if (tokenizer_.end_of_text() < 0)
      user_error(
          "{}: nothing comes before the first token, and the tokenizer has no token that "
          "begins a text; give a longer prompt",
          place);
    text.tokens.insert(text.tokens.begin(), tokenizer_.end_of_text());
    text.given = 1;
  }

  // What does not fit is left out at the beginning. The last token is only a target.
  void cut(ScoredText& text, const std::string& place, EncodedQuestions& to) const {
    const int64_t over = static_cast<int64_t>(text.tokens.size()) - 1 - longest_;
    if (over <= 0) return;
    if (over >= static_cast<int64_t>(text.given))
      user_error(
          "{}: {} tokens are to be scored, and a sequence has {}; raise --sequence, if the "
          "model has more positions",
          place, text.tokens.size() - text.given, longest_);
    text.tokens.erase(text.tokens.begin(), text.tokens.begin() + over);
    text.given -= static_cast<size_t>(over);
    ++to.truncated;
  }

  const ModelFolder& model_;
  const Tokenizer& tokenizer_;
  const int64_t longest_;
};

// Of UTF-8: bytes that begin one.
double characters(std::string_view text) {
  return static_cast<double>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

bool space_at(std::string_view text, size_t at) {
  return at < text.size() && kSpaces.find(text[at]) != std::string_view::npos;
}

void require_some(bool empty, std::span<const std::string> paths) {
  if (empty)
    user_error("{}: there is no line in it, so there is nothing to evaluate", join(paths, ", "));
}

}  // namespace

EvalTask parse_eval_task(std::string_view name, std::string_view what) {
  for (size_t task = 0; task < kTasks.size(); ++task)
    if (name == kTasks[task]) return static_cast<EvalTask>(task);
  const std::vector<std::string> names(kTasks.begin(), kTasks.end());
  user_error("{}: \"{}\" is none of {}{}", what, name, join(names, ", "),
             did_you_mean(name, names));
}

const char* eval_task_name(EvalTask task) { return kTasks[static_cast<size_t>(task)]; }

EvalTask eval_task_of(const std::string& path) {
  EvalTask task = EvalTask::kLoss;
  for_each_line({&path, 1}, [&](const Json& object, const std::string&) {
    if (object.contains("choices")) task = EvalTask::kChoices;
    return false;
  });
  return task;
}

std::vector<ChoiceQuestion> read_choices(std::span<const std::string> paths, int64_t limit) {
  std::vector<ChoiceQuestion> questions;
  for_each_line(paths, [&](const Json& object, const std::string& place) {
    questions.push_back(choice_question(object, place));
    return static_cast<int64_t>(questions.size()) != limit;
  });
  require_some(questions.empty(), paths);
  return questions;
}

std::vector<LastWordQuestion> read_last_words(std::span<const std::string> paths,
                                              const std::string& field, int64_t limit) {
  std::vector<LastWordQuestion> questions;
  for_each_line(paths, [&](const Json& object, const std::string& place) {
    questions.push_back(last_word_question(text_field(object, field, place), field, place));
    return static_cast<int64_t>(questions.size()) != limit;
  });
  require_some(questions.empty(), paths);
  return questions;
}

EncodedQuestions encode_choices(std::span<const ChoiceQuestion> questions, const ModelFolder& model,
                                int64_t longest) {
  const PairEncoder encoder(model, longest);
  EncodedQuestions encoded;
  for (const ChoiceQuestion& question : questions) {
    const std::string& prompt = question.prompt;
    const bool spaced = prompt.empty() || space_at(prompt, prompt.size() - 1);
    for (const std::string& choice : question.choices)
      encoder.add(prompt, (spaced || space_at(choice, 0) ? "" : " ") + choice, question.place,
                  encoded);
  }
  return encoded;
}

EncodedQuestions encode_last_words(std::span<const LastWordQuestion> questions,
                                   const ModelFolder& model, int64_t longest) {
  const PairEncoder encoder(model, longest);
  EncodedQuestions encoded;
  for (const LastWordQuestion& question : questions)
    encoder.add(question.context, question.word, question.place, encoded);
  return encoded;
}

ChoiceResult judge_choices(std::span<const ChoiceQuestion> questions,
                           std::span<const TextScore> scores) {
  ChoiceResult result;
  size_t first = 0;
  for (const ChoiceQuestion& question : questions) {
    size_t best = 0, best_normalised = 0;
    const auto plain = [&](size_t choice) { return scores[first + choice].log_probability; };
    const auto normalised = [&](size_t choice) {
      return plain(choice) / characters(question.choices[choice]);
    };
    for (size_t choice = 1; choice < question.choices.size(); ++choice) {
      if (plain(choice) > plain(best)) best = choice;
      if (normalised(choice) > normalised(best_normalised)) best_normalised = choice;
    }
    ++result.questions;
    result.correct += best == question.answer;
    result.correct_normalised += best_normalised == question.answer;
    first += question.choices.size();
  }
  return result;
}

LastWordResult judge_last_words(std::span<const TextScore> scores) {
  LastWordResult result;
  for (const TextScore& score : scores) {
    ++result.questions;
    result.correct += score.likeliest;
    result.log_probability += score.log_probability;
  }
  return result;
}

double standard_error(int64_t correct, int64_t count) {
  if (count < 2) return 0;
  const double share = static_cast<double>(correct) / static_cast<double>(count);
  return std::sqrt(share * (1 - share) / static_cast<double>(count - 1));
}

}  // namespace onefold
