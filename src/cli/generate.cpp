// onefold generate: continues a prompt from a run's weights.
#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/file.h"
#include "base/say.h"
#include "cli/cli.h"
#include "engine/generate.h"
#include "inspect/hf_export.h"
#include "inspect/saved_run.h"

namespace onefold::cli {
namespace {

struct GenerateArguments {
  std::string folder, adapter, prompt, prompt_file;
  GenerateOptions options;
  int threads = 0;
  bool greedy = false, json = false;
};

// A model may have more tokens than its tokenizer; those have no text.
std::string text_of(const Tokenizer& tokenizer, std::span<const int32_t> tokens) {
  std::string text;
  for (const int32_t& token : tokens)
    text += token < tokenizer.vocab_size() ? tokenizer.decode({&token, 1}) : "\uFFFD";
  return text;
}

std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> tokens = tokenizer.encode(text);
  // Without a prompt, a document begins: after the end of another.
  if (tokens.empty() && tokenizer.end_of_text() >= 0) tokens.push_back(tokenizer.end_of_text());
  return tokens;
}

// The text as it comes, after its prompt, which waits for the first token: a prompt that is refused
// is not printed.
std::vector<int32_t> print_text(Engine& engine, const Tokenizer& tokenizer,
                                const GenerateArguments& arguments,
                                std::span<const int32_t> prompt) {
  std::string pending = arguments.prompt;
  const auto put = [&](std::string_view text) {
    fmt::print("{}{}", std::exchange(pending, ""), text);
    std::fflush(stdout);
  };
  std::vector<int32_t> tokens = generate(engine, prompt, arguments.options, [&](int32_t token) {
    put(text_of(tokenizer, {&token, 1}));
    return true;
  });
  put("\n");
  return tokens;
}

// Why fewer tokens came than were asked for, if the model had no room for more.
void note_full(const ModelSpec& spec, size_t prompt, size_t tokens, int64_t wanted) {
  const auto used = static_cast<int64_t>(prompt + tokens);
  if (static_cast<int64_t>(tokens) < wanted && used >= spec.max_sequence_length)
    say("note: stopped at the model's {} positions\n", spec.max_sequence_length);
}

// Of a run or of one of its checkpoints; of a Hugging Face folder, its own.
std::optional<Tokenizer> tokenizer_of(const std::string& folder) {
  const auto has = [&](const std::string& name) { return path_exists(folder + "/" + name); };
  if (has(kManifest)) return SavedRun(run_of_checkpoint(folder)).tokenizer();
  if (!has(kRunModel) && has(kRunTokenizer)) return Tokenizer::load(folder + "/" + kRunTokenizer);
  return SavedRun(folder).tokenizer();
}

int run_generate(GenerateArguments& arguments) {
  const std::optional<Tokenizer> tokenizer = tokenizer_of(arguments.folder);
  if (!tokenizer)
    user_error(
        "{} has no tokenizer.json: the model was trained on a token file without data.tokenizer",
        arguments.folder);
  if (!arguments.prompt_file.empty()) arguments.prompt = read_file(arguments.prompt_file);
  GenerateOptions& options = arguments.options;
  if (arguments.greedy) options.sampling.temperature = 0;
  options.end_token = tokenizer->end_of_text();
  check_sampling(options.sampling);

  const ModelOnDisk model = open_model(arguments.folder);
  const auto source =
      arguments.adapter.empty() ? model.source : with_adapter(model.source, arguments.adapter);
  const ModelSpec spec = source->model();
  Engine engine(spec, generation_engine_options(spec, options.beams, arguments.threads));
  engine.state().write_parameters(reader_of(source));
  for (const std::string& problem : model.passed_over)
    say("onefold: warning: passed over: {}\n", problem);
  const std::vector<int32_t> prompt = prompt_tokens(*tokenizer, arguments.prompt);
  const double begin = now_seconds();
  const std::vector<int32_t> tokens = arguments.json
                                          ? generate(engine, prompt, options)
                                          : print_text(engine, *tokenizer, arguments, prompt);
  if (arguments.json)
    print_json({{"prompt", arguments.prompt},
                {"text", text_of(*tokenizer, tokens)},
                {"tokens", tokens},
                {"prompt_tokens", prompt.size()},
                {"passed_over", model.passed_over},
                {"seconds", now_seconds() - begin}});
  else
    note_full(spec, prompt.size(), tokens.size(), options.max_tokens);
  return kOk;
}

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  auto a = std::make_shared<GenerateArguments>();
  SamplingOptions& s = a->options.sampling;
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt from a run's weights");
  command
      ->add_option("run", a->folder,
                   "The run's folder (run.output of its configuration), a checkpoint's, or a "
                   "Hugging Face model's")
      ->required();
  command->add_option("--adapter", a->adapter,
                      "Adds LoRA adapters to the model's weights: a folder of PEFT's, or a run's");
  auto* prompt = command->add_option("--prompt", a->prompt,
                                     "The text to continue; none begins a new document");
  command->add_option("--prompt-file", a->prompt_file, "A file with the text to continue")
      ->excludes(prompt);
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
  beams->excludes(greedy);
  command
      ->add_option("--length-penalty", a->options.length_penalty,
                   "Beam search: above 1 favours longer texts")
      ->needs(beams)
      ->capture_default_str();
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
  command->add_option("--threads", a->threads, "Threads; 0 takes all cores")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_flag("--json", a->json, "One JSON object with text and tokens instead of text");
  command->footer(
      "Examples:\n"
      "  onefold generate runs/demo --prompt 'In the beginning' --tokens 200 --temperature 0.8 "
      "--top-k 50\n"
      "  onefold generate runs/demo --prompt 'And he said' --beams 4 --length-penalty 1.2");
  command->callback([a, &run] { run = [a] { return run_generate(*a); }; });
}

}  // namespace onefold::cli
