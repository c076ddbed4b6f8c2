// onefold generate: continues a prompt from a run's weights.
#include <fmt/format.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/cli.h"
#include "engine/generate.h"
#include "run/run_folder.h"

namespace onefold::cli {
namespace {

struct GenerateArguments {
  std::string folder, prompt, prompt_file;
  GenerateOptions options;
  int threads = 0;
  bool greedy = false, json = false;
};

int run_generate(GenerateArguments& arguments) {
  const RunFolder folder = RunFolder::open(arguments.folder);
  const std::optional<Tokenizer> tokenizer = folder.tokenizer();
  if (!tokenizer)
    user_error("{} has no tokenizer.json: the model was trained on a token file without data.tokenizer", arguments.folder);
  if (!arguments.prompt_file.empty()) arguments.prompt = read_file(arguments.prompt_file);
  GenerateOptions& options = arguments.options;
  if (arguments.greedy) options.sampling.temperature = 0;
  options.end_token = tokenizer->end_of_text();
  check_sampling(options.sampling);

  const ModelSpec spec = folder.model();
  Engine engine(spec, generation_engine_options(spec, options.beams, arguments.threads));
  folder.load_weights(engine);
  std::vector<int32_t> prompt = tokenizer->encode(arguments.prompt);
  // Without a prompt, a document begins: after the end of another.
  if (prompt.empty() && tokenizer->end_of_text() >= 0) prompt.push_back(tokenizer->end_of_text());
  const double begin = now_seconds();
  if (!arguments.json) fmt::print("{}", arguments.prompt);
  const std::vector<int32_t> tokens = generate(engine, prompt, options, [&](int32_t token) {
    if (!arguments.json) {
      fmt::print("{}", tokenizer->decode({&token, 1}));
      std::fflush(stdout);
    }
    return true;
  });
  const double seconds = now_seconds() - begin;
  if (arguments.json) {
    // Bytes that are no UTF-8 (a token can end inside a character) become U+FFFD.
    const Json result = {{"prompt", arguments.prompt},
                         {"text", tokenizer->decode(tokens)},
                         {"tokens", tokens},
                         {"prompt_tokens", prompt.size()},
                         {"seconds", seconds}};
    fmt::print("{}\n", result.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    fmt::print("\n");
  }
  return kOk;
}

}  // namespace

void add_generate(CLI::App& app, Run& run) {
  auto a = std::make_shared<GenerateArguments>();
  SamplingOptions& s = a->options.sampling;
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt from a run's weights");
  command->add_option("run", a->folder, "The run's folder (run.output of its configuration)")->required();
  auto* prompt = command->add_option("--prompt", a->prompt, "The text to continue; none begins a new document");
  command->add_option("--prompt-file", a->prompt_file, "A file with the text to continue")->excludes(prompt);
  command->add_option("--tokens", a->options.max_tokens, "Tokens to generate at most")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--temperature", s.temperature, "Below 1 bolder choices are rarer; 0 is greedy")->capture_default_str();
  command->add_option("--top-k", s.top_k, "Choose among the k likeliest tokens; 0: all")->capture_default_str();
  command->add_option("--top-p", s.top_p, "Choose among the likeliest tokens of this total probability")->capture_default_str();
  command->add_option("--repetition-penalty", s.repetition_penalty, "Above 1 tokens already present are rarer")->capture_default_str();
  auto* greedy = command->add_flag("--greedy", a->greedy, "Always the likeliest token (temperature 0)");
  auto* beams = command->add_option("--beams", a->options.beams, "Beam search with this many beams; 1: sampling")
                    ->check(CLI::PositiveNumber)
                    ->capture_default_str();
  beams->excludes(greedy);
  command->add_option("--length-penalty", a->options.length_penalty, "Beam search: above 1 favours longer texts")
      ->needs(beams)
      ->capture_default_str();
  command->add_option("--seed", s.seed, "The same seed draws the same text")->capture_default_str();
  command->add_option("--threads", a->threads, "Threads; 0 takes all cores")->check(CLI::NonNegativeNumber)->capture_default_str();
  command->add_flag("--json", a->json, "One JSON object with text and tokens");
  command->footer(
      "Examples:\n"
      "  onefold generate runs/demo --prompt 'In the beginning' --tokens 200 --temperature 0.8 --top-k 50\n"
      "  onefold generate runs/demo --prompt 'And he said' --beams 4 --length-penalty 1.2");
  command->callback([a, &run] { run = [a] { return run_generate(*a); }; });
}

}  // namespace onefold::cli
