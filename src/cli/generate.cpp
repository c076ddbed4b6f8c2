// onefold generate: continues prompts, or holds a conversation, with a model's weights.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/say.h"
#include "cli/cli.h"
#include "cli/prompts.h"
#include "data/chat.h"
#include "data/growing_text.h"
#include "engine/generate.h"
#include "inspect/hf_export.h"
#include "run/model_folder.h"

namespace onefold::cli {
namespace {

struct GenerateArguments {
  std::string folder, adapter, prompt, prompt_file, prompts, prompt_format, system;
  std::vector<std::string> stops;
  ChatMarkers::Around system_marks{"", "\n"}, user_marks{"", "\n"}, assistant_marks{"", "\n"};
  GenerateOptions options;
  std::string device = "cpu";
  int threads = 0;
  bool greedy = false, json = false, chat = false, special = false;
};

// A piece of text as soon as it is whole.
void put(std::string_view text) {
  fmt::print("{}", text);
  std::fflush(stdout);
}

// One JSON object on a line of its own. Bytes that are not UTF-8 become U+FFFD.
void put_line(const Json& json) {
  put(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  const char* finish = "end";  // or "length", "positions"
  double seconds = 0;
};

using GenerateTokens = std::function<std::vector<int32_t>(std::span<const int32_t> prompt,
                                                          const GenerateOptions& options,
                                                          const std::function<bool(int32_t)>&)>;

// `show` gets the text as it comes; a prompt that is refused shows nothing.
Answer answer(const GenerateTokens& generate_tokens, const ModelFolder& model,
              const GenerateOptions& options, const std::vector<std::string>& stops,
              std::span<const int32_t> prompt, const std::function<void(std::string_view)>& show) {
  const double begin = now_seconds();
  GrowingText text(model.require_tokenizer(), stops);
  Answer result;
  result.tokens = generate_tokens(prompt, options, [&](int32_t token) {
    show(text.add(token));
    return !text.stopped();
  });
  if (!text.stopped()) show(text.finish());
  result.text = text.text();
  const auto made = static_cast<int64_t>(result.tokens.size());
  if (!text.stopped() && made >= options.max_tokens)
    result.finish = "length";
  else if (!text.stopped() &&
           static_cast<int64_t>(prompt.size()) + made >= model.spec().max_sequence_length)
    result.finish = "positions";
  result.seconds = now_seconds() - begin;
  return result;
}

// Why fewer tokens came than were asked for, if the model had no room for more.
void note_full(const ModelFolder& model, const Answer& made) {
  if (made.finish == std::string_view("positions"))
    say("note: stopped at the model's {}\n", model.spec().positions_text());
}

Json answer_json(const Prompt& prompt, size_t prompt_tokens, const Answer& made,
                 const ModelFolder& model) {
  return {{"prompt", prompt.text},  {"text", made.text},
          {"tokens", made.tokens},  {"prompt_tokens", prompt_tokens},
          {"finish", made.finish},  {"passed_over", model.passed_over},
          {"seconds", made.seconds}};
}

std::unique_ptr<Prompts> prompts_for(const GenerateArguments& arguments) {
  if (!arguments.prompts.empty()) return prompts_of(arguments.prompts, arguments.prompt_format);
  return one_prompt(arguments.prompt_file.empty() ? arguments.prompt
                                                  : read_whole(arguments.prompt_file));
}

void continue_prompts(Engine& engine, const ModelFolder& model,
                      const GenerateArguments& arguments) {
  const GenerateTokens tokens = [&](std::span<const int32_t> prompt, const GenerateOptions& options,
                                    const std::function<bool(int32_t)>& emit) {
    return generate(engine, prompt, options, emit);
  };
  const std::unique_ptr<Prompts> prompts = prompts_for(arguments);
  bool first = true;
  while (const std::optional<Prompt> prompt = prompts->next()) {
    const std::vector<int32_t> ids =
        model.prompt_tokens(prompt->text, arguments.special ? Tokenizer::Specials::kMatch
                                                            : Tokenizer::Specials::kAsText);
    std::string pending = (first ? "" : "\n") + prompt->text;
    const auto show = [&](std::string_view text) {
      if (!arguments.json) put(std::exchange(pending, "") + std::string(text));
    };
    Answer made;
    try {
      made = answer(tokens, model, arguments.options, arguments.stops, ids, show);
    } catch (const UserError& error) {
      if (prompt->place.empty()) throw;
      user_error("{}: {}", prompt->place, error.what());
    }
    first = false;
    if (arguments.json) {
      const Json json = answer_json(*prompt, ids.size(), made, model);
      if (arguments.prompts.empty())
        print_json(json);
      else
        put_line(json);
    } else {
      show("\n");
      note_full(model, made);
    }
  }
}

// "\n" and "\t" of the command line.
std::string unescaped(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size(); ++at) {
    const char next = at + 1 < text.size() ? text[at + 1] : ' ';
    const bool escape = text[at] == '\\' && (next == 'n' || next == 't' || next == '\\');
    result += !escape ? text[at] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    at += escape;
  }
  return result;
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kSpaces) - first + 1));
}

// None: the model's own template marks roles.
std::optional<ChatMarkers> markers_for(const GenerateArguments& arguments,
                                       const Tokenizer& tokenizer) {
  const bool user = !arguments.user_marks.before.empty(),
             assistant = !arguments.assistant_marks.before.empty();
  if (!user && !assistant) {
    if (tokenizer.chat_template()) return std::nullopt;
    if (tokenizer.token_id("<|im_start|>") >= 0) return ChatMarkers::chatml();
    user_error(
        "the model comes with no chat template, and its tokenizer has no token <|im_start|>, so "
        "roles cannot be marked as in ChatML; say how "
        "the model was taught to tell them apart, like --user-prefix 'User: ' --assistant-prefix "
        "'Assistant: '");
  }
  if (!user || !assistant)
    user_error(
        "{} is missing: with markers of your own both --user-prefix and --assistant-prefix "
        "are needed",
        user ? "--assistant-prefix" : "--user-prefix");
  if (!arguments.system.empty() && arguments.system_marks.before.empty() &&
      arguments.system_marks.after.empty())
    user_error("--system needs --system-prefix or --system-suffix: nothing would mark its end");
  const auto marks = [](const ChatMarkers::Around& given) {
    return ChatMarkers::Around{unescaped(given.before), unescaped(given.after)};
  };
  return ChatMarkers{.roles = {{kChatSystem, marks(arguments.system_marks)},
                               {kChatUser, marks(arguments.user_marks)},
                               {kChatAssistant, marks(arguments.assistant_marks)}},
                     .between = ""};
}

// A conversation: one message of the user on each line of standard input, and after it the reply.
class ChatSession {
 public:
  ChatSession(Engine& engine, const ModelFolder& model, const GenerateArguments& arguments)
      : generator_(engine),
        model_(model),
        arguments_(arguments),
        options_(arguments.options),
        markers_(markers_for(arguments, model.require_tokenizer())),
        format_(model.require_tokenizer(), markers_),
        stops_(arguments.stops) {
    if (!arguments.system.empty()) messages().push_back({kChatSystem, arguments.system});
    if (!markers_) {
      if (const int32_t token = format_.end_of_answer(); token >= 0)
        options_.end_tokens.push_back(token);
      return;
    }
    // A model that goes on as the user has said what it had to say.
    for (const std::string& mark : {trimmed(markers_->roles.at(kChatAssistant).after),
                                    trimmed(markers_->roles.at(kChatUser).before)}) {
      if (mark.empty()) continue;
      stops_.push_back(mark);
      if (const int32_t token = model.tokenizer->token_id(mark); token >= 0)
        options_.end_tokens.push_back(token);
    }
  }

  void hold() {
    const bool terminal = isatty(STDIN_FILENO) && !arguments_.json;
    const auto ask = [&] {
      if (terminal) say("> ");
    };
    ask();
    for (std::string line; std::getline(std::cin, line); ask()) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) reply_to(line);
    }
    if (terminal) say("\n");
  }

 private:
  std::vector<ChatMessage>& messages() { return conversation_.messages; }

  void reply_to(const std::string& line) {
    messages().push_back({kChatUser, line});
    const std::vector<int32_t> prompt = fitting_prompt();
    const GenerateTokens tokens = [&](std::span<const int32_t> text, const GenerateOptions& options,
                                      const std::function<bool(int32_t)>& emit) {
      return generator_.generate(text, options, emit);
    };
    const Answer made =
        answer(tokens, model_, options_, stops_, prompt, [&](std::string_view text) {
          if (!arguments_.json) put(text);
        });
    messages().push_back({kChatAssistant, trimmed(made.text)});
    if (arguments_.json) return put_line(answer_json({line, ""}, prompt.size(), made, model_));
    put("\n");
    note_full(model_, made);
  }

  std::vector<int32_t> encoded() const {
    std::vector<int32_t> tokens = model_.text_begin;
    const std::vector<int32_t> chat = format_.prompt(conversation_);
    if (format_.has_template()) return chat;
    // A template of the tokenizer may begin with the same token as the marks.
    const bool twice = !tokens.empty() && chat.size() >= tokens.size() &&
                       std::equal(tokens.begin(), tokens.end(), chat.begin());
    if (twice) return chat;
    tokens.insert(tokens.end(), chat.begin(), chat.end());
    return tokens;
  }

  // Leaves out the oldest messages where the conversation no longer fits with a reply.
  std::vector<int32_t> fitting_prompt() {
    const int64_t positions = model_.spec().max_sequence_length;
    const int64_t reply = std::min(options_.max_tokens, positions / 2);
    const size_t first = arguments_.system.empty() ? 0 : 1;
    std::vector<int32_t> tokens = encoded();
    bool cut = false;
    while (static_cast<int64_t>(tokens.size()) + reply > positions &&
           messages().size() > first + 1) {
      const auto oldest = messages().begin() + static_cast<ptrdiff_t>(first);
      messages().erase(oldest, oldest + 2);  // with the reply to it
      tokens = encoded();
      cut = true;
    }
    if (cut)
      say("note: the oldest messages of the conversation are left out; it is longer than the "
          "model's {}\n",
          model_.spec().positions_text());
    return tokens;
  }

  Generator generator_;
  const ModelFolder& model_;
  const GenerateArguments& arguments_;
  GenerateOptions options_;
  const std::optional<ChatMarkers> markers_;
  const ChatFormat format_;
  std::vector<std::string> stops_;
  Conversation conversation_;
};

int run_generate(GenerateArguments& arguments) {
  ModelFolder model = open_model_folder(arguments.folder);
  model.require_tokenizer();
  if (!arguments.adapter.empty()) model.source = with_adapter(model.source, arguments.adapter);
  GenerateOptions& options = arguments.options;
  if (arguments.greedy) options.sampling.temperature = 0;
  options.end_tokens = model.text_ends;
  check_sampling(options.sampling);
  if (arguments.chat) markers_for(arguments, *model.tokenizer);  // before the weights are read

  EngineOptions engine_options =
      generation_engine_options(model.spec(), options.beams, arguments.threads);
  engine_options.device = arguments.device;
  engine_options.initial = reader_of(model.source);
  Engine engine(model.spec(), engine_options);
  for (const std::string& problem : model.passed_over)
    say("onefold: warning: passed over: {}\n", problem);
  if (arguments.chat)
    ChatSession(engine, model, arguments).hold();
  else
    continue_prompts(engine, model, arguments);
  return kOk;
}

void add_sampling(CLI::App* command, GenerateArguments& a, CLI::Option* greedy,
                  CLI::Option* beams) {
  SamplingOptions& s = a.options.sampling;
  // Options of sampling, which neither of the other two does.
  const auto sampling = [&](CLI::Option* option) {
    option->excludes(greedy)->excludes(beams)->capture_default_str();
    return option;
  };
  sampling(command->add_option("--temperature", s.temperature,
                               "Below 1 bold choices are rarer, above 1 more frequent"));
  sampling(command->add_option("--top-k", s.top_k, "Choose among the k likeliest tokens; 0: all"));
  sampling(command->add_option("--top-p", s.top_p,
                               "Choose among the likeliest tokens of this total probability"));
  sampling(command->add_option("--seed", s.seed, "The same seed draws the same text"))
      ->check(at_least(0));
  command
      ->add_option("--repetition-penalty", s.repetition_penalty,
                   "Above 1 tokens already present are rarer")
      ->capture_default_str();
}

void add_prompts(CLI::App* command, GenerateArguments& a) {
  auto* prompt =
      command->add_option("--prompt", a.prompt, "The text to continue; none begins a new document");
  auto* file = command->add_option("--prompt-file", a.prompt_file,
                                   "A file with the text to continue; - is standard input");
  auto* prompts =
      command->add_option("--prompts", a.prompts,
                          "A file with a text to continue on each line, or JSON lines with "
                          "\"prompt\"; - is standard input");
  file->excludes(prompt);
  prompts->excludes(prompt)->excludes(file);
  command
      ->add_option("--prompt-format", a.prompt_format,
                   "lines or jsonl; by default told by the name")
      ->needs(prompts);
  auto* special = command->add_flag("--special", a.special,
                                    "Special tokens that a prompt spells are those tokens");
  command->add_option("--stop", a.stops, "Ends a text before this one; may be repeated")
      ->allow_extra_args(false);
  auto* chat =
      command->add_flag("--chat", a.chat, "Converse: a message on each line of standard input");
  chat->excludes(prompt)->excludes(file)->excludes(prompts)->excludes(special);
  const auto of_chat = [&](const char* name, std::string& value, const char* what) {
    command->add_option(name, value, what)->needs(chat);
  };
  of_chat("--system", a.system, "What the model is told before the conversation");
  of_chat("--user-prefix", a.user_marks.before,
          "Before a message of the user; default: the model's own template, else ChatML, if the "
          "tokenizer has it");
  of_chat("--user-suffix", a.user_marks.after, "After it; default: a line break");
  of_chat("--assistant-prefix", a.assistant_marks.before, "Before a reply");
  of_chat("--assistant-suffix", a.assistant_marks.after, "After it; default: a line break");
  of_chat("--system-prefix", a.system_marks.before, "Before --system");
  of_chat("--system-suffix", a.system_marks.after, "After it; default: a line break");
}

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  auto a = std::make_shared<GenerateArguments>();
  CLI::App* command =
      app.add_subcommand("generate", "Continue prompts, or converse, with a model's weights");
  command
      ->add_option("model", a->folder,
                   "The folder of a run, a checkpoint or a Hugging Face model, or a GGUF file")
      ->required();
  command->add_option("--adapter", a->adapter,
                      "Adds LoRA adapters to the model's weights: a folder of PEFT's, or a run's");
  add_prompts(command, *a);
  command->add_option("--tokens", a->options.max_tokens, "Tokens to generate at most")
      ->check(at_least(1))
      ->capture_default_str();
  auto* greedy =
      command->add_flag("--greedy", a->greedy, "Always the likeliest token (temperature 0)");
  auto* beams =
      command
          ->add_option("--beams", a->options.beams, "Beam search with this many beams; 1: sampling")
          ->check(at_least(1))
          ->capture_default_str();
  beams->excludes(greedy)->excludes("--chat");
  command
      ->add_option("--length-penalty", a->options.length_penalty,
                   "Beam search: above 1 favours longer texts")
      ->needs(beams)
      ->capture_default_str();
  add_sampling(command, *a, greedy, beams);
  command->add_option("--device", a->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_option("--threads", a->threads, "Threads; 0 takes all cores")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_flag("--json", a->json,
                    "One JSON object with text and tokens instead of text; one on each line with "
                    "--prompts and --chat");
  command->footer(
      "Examples:\n"
      "  onefold generate runs/demo --prompt 'In the beginning' --tokens 200 --temperature 0.8 "
      "--top-k 50\n"
      "  onefold generate runs/demo --prompt 'And he said' --beams 4 --length-penalty 1.2\n"
      "  onefold generate models/gpt2 --prompts questions.txt --greedy --json\n"
      "  onefold generate models/qwen2.5-0.5b-instruct --chat --system 'Be brief.'");
  command->callback([a, &run] { run = [a] { return run_generate(*a); }; });
}

}  // namespace onefold::cli
