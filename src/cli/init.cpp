// onefold init: writes a configuration to begin with, sized for a model, a text and a memory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/json_text.h"
#include "base/process.h"
#include "base/say.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "cli/cli.h"
#include "config/config.h"
#include "data/dataset.h"
#include "data/documents.h"
#include "device/hardware.h"
#include "io/hf_folder.h"
#include "run/plan.h"

namespace onefold::cli {
namespace {

namespace fs = std::filesystem;

struct InitArguments {
  std::string model, memory, tokenizer, output = "config.json";
  std::vector<std::string> data;
  bool json = false;
};

// All that the file will say.
struct Draft {
  Json model;
  std::string tokenizer;   // "": not written
  bool tunes = false;      // the weights come from a folder
  bool converses = false;  // the data is conversations
  int64_t parameters = 0, tokens = 0, vocabulary = 0;
  int64_t sequence = 0, batch = 0, micro = 0;
  bool recompute = false, validates = false;
  double rate = 0, epochs = 0;
  int64_t steps = 0, warmup = 0, limit = 0;
  std::string run_folder;
};

std::string quoted_json(const std::string& text) { return Json(text).dump(); }

// The configuration, as far as it is settled, as train would read it.
Json draft_json(const InitArguments& arguments, const Draft& draft) {
  Json json = {{"model", draft.model}, {"data", {{"train", arguments.data}}}};
  if (!draft.tokenizer.empty()) json["data"]["tokenizer"] = draft.tokenizer;
  if (draft.converses) json["data"]["format"] = "chat";
  if (draft.sequence > 0) json["data"]["sequence_length"] = draft.sequence;
  json["train_batch_size"] = std::max<int64_t>(1, draft.batch);
  json["train_micro_batch_size_per_gpu"] = std::max<int64_t>(1, draft.micro);
  json["run"] = {{"recompute", draft.recompute}, {"epochs", 1}};
  return json;
}

// A training set as large as this has enough to hold some of it out.
constexpr double kHeldOut = 0.05;

// What the data is: its tokens, and the vocabulary that a new model needs.
void look_at_data(const InitArguments& arguments, Draft& draft) {
  const std::string& first = arguments.data[0];
  draft.converses = format_by_name(first) == DataFormat::kJsonl && holds_conversations(first);
  const Config config = Config::from_json(draft_json(arguments, draft));
  ThreadPool pool(0);
  const std::optional<Tokenizer> tokenizer = open_tokenizer(config.data.tokenizer);
  const Dataset data = Dataset::open(config.data.train, tokenizer ? &*tokenizer : nullptr, pool);
  draft.tokens = data.tokens();
  draft.tunes = !config.model_weights.empty();
  ModelSpec spec = config.model;
  // A preset's own vocabulary belongs to weights that are not here.
  if (!draft.tunes && draft.model.is_string() && spec.vocab_size != data.vocab_size() &&
      draft.model == config.model_source) {
    if (spec.vocab_size > 0)
      draft.model = {{"preset", draft.model}, {"vocab_size", data.vocab_size()}};
    spec.vocab_size = data.vocab_size();
  }
  if (spec.vocab_size < data.vocab_size())
    user_error(
        "{} has a vocabulary of {}, and the data one of {}: name the model's own tokenizer with "
        "--tokenizer",
        arguments.model, spec.vocab_size, data.vocab_size());
  spec.complete("model");
  draft.vocabulary = spec.vocab_size;
  draft.parameters = spec.parameter_count();

  constexpr int64_t kLongest = 1024, kShortest = 16, kSequences = 64;
  draft.sequence = std::min(kLongest, spec.max_sequence_length);
  while (draft.sequence > kShortest && draft.tokens / draft.sequence < kSequences)
    draft.sequence /= 2;
}

// Larger models have less noise to average out for the same loss, but take larger batches well:
// some thousand tokens for the small ones, a hundred thousand for the large. Of little data at
// least twenty steps a pass.
void choose_batch(Draft& draft) {
  const int64_t tokens = draft.parameters < 30'000'000    ? 8192
                         : draft.parameters < 300'000'000 ? 32768
                                                          : 131072;
  const int64_t sequences = draft.tokens / draft.sequence;
  const int64_t most = std::max<int64_t>(1, std::min(tokens / draft.sequence, sequences / 20));
  draft.batch = 1;
  while (draft.batch * 2 <= most) draft.batch *= 2;
}

int64_t planned_peak_of(const InitArguments& arguments, const Draft& draft) {
  const Config config = Config::from_json(draft_json(arguments, draft));
  ModelSpec spec = config.model;
  spec.vocab_size = draft.vocabulary;
  spec.complete("model");
  const int threads = threads_by_environment();
  const FitContext context{.hardware = this_machine(threads > 0 ? threads : available_cores())};
  return plan_rank(spec, settled_options(config, spec, context, 0), 1, 0, context.hardware)
      .peak_bytes;
}

// The largest micro-batch that fits; with recomputation only where none does without; with shorter
// sequences only where that is not enough. Returns the planned peak.
int64_t choose_memory(const InitArguments& arguments, Draft& draft) {
  constexpr int64_t kMostTokens = 8192, kShortest = 128;
  int64_t peak = 0;
  for (const int64_t longest = draft.sequence;; draft.sequence /= 2) {
    draft.batch *= draft.sequence == longest ? 1 : 2;  // as many tokens a step
    for (const bool recompute : {false, true}) {
      draft.recompute = recompute;
      draft.micro = 1;
      while (draft.micro * 2 <= draft.batch && draft.micro * 2 * draft.sequence <= kMostTokens)
        draft.micro *= 2;
      for (; draft.micro >= 1; draft.micro /= 2)
        if ((peak = planned_peak_of(arguments, draft)) <= draft.limit) return peak;
    }
    if (draft.sequence / 2 < std::min(longest, kShortest)) break;
  }
  user_error(
      "{} does not fit {}: {} are needed for one sequence of {} tokens, with recomputation. Name "
      "more with --memory, take a smaller model, or divide it among ranks: onefold plan says what "
      "each would hold",
      arguments.model, format_bytes(draft.limit), format_bytes(peak), draft.sequence);
}

// The rates at which models of these sizes were trained well, by GPT-3's table and small models
// here; weights that are there already are changed with a tenth of it or less.
double rate_of(int64_t parameters, bool tunes) {
  struct Row {
    int64_t parameters;
    double fresh, tuned;
  };
  static constexpr Row kRows[] = {{10'000'000, 3e-3, 3e-4},    {60'000'000, 1e-3, 1e-4},
                                  {250'000'000, 6e-4, 5e-5},   {600'000'000, 3e-4, 3e-5},
                                  {2'000'000'000, 2e-4, 2e-5}, {INT64_MAX, 1e-4, 1e-5}};
  for (const Row& row : kRows)
    if (parameters <= row.parameters) return tunes ? row.tuned : row.fresh;
  return 0;
}

// How long, and what follows from that.
void choose_length(Draft& draft) {
  const double trained = static_cast<double>(draft.tokens) * (draft.validates ? 1 - kHeldOut : 1);
  // Twenty tokens for each parameter of a new model; but little data is soon learned by heart.
  const double wanted = 20.0 * static_cast<double>(draft.parameters) / trained;
  draft.epochs = draft.tunes ? 3 : std::clamp(std::ceil(wanted), 1.0, 10.0);
  draft.steps =
      std::max<int64_t>(1, static_cast<int64_t>(draft.epochs * trained /
                                                static_cast<double>(draft.batch * draft.sequence)));
  draft.warmup = std::min<int64_t>(2000, draft.steps / 20);
  draft.rate = rate_of(draft.parameters, draft.tunes);
}

// A folder that is not there yet.
std::string free_run_folder(const InitArguments& arguments) {
  const fs::path model = fs::path(arguments.model + "/").parent_path().filename();
  const std::string base =
      fmt::format("runs/{}-{}", model.string(), fs::path(arguments.data[0]).stem().string());
  std::string folder = base;
  for (int number = 2; path_exists(folder); ++number) folder = fmt::format("{}-{}", base, number);
  return folder;
}

// One line of the file: `text`, and a comment behind it.
void add_line(std::string& file, const std::string& text, const std::string& comment) {
  constexpr size_t kColumn = 52;
  file += fmt::format("{:<{}}  // {}\n", text, kColumn, comment);
}

void add_data_section(std::string& file, const InitArguments& arguments, const Draft& draft) {
  file += "  \"data\": {\n";
  std::vector<std::string> paths;
  for (const std::string& path : arguments.data) paths.push_back(quoted_json(path));
  const std::string train = paths.size() == 1 ? paths[0] : "[" + join(paths, ", ") + "]";
  add_line(file, fmt::format("    \"train\": {},", train),
           format_count(draft.tokens) + " tokens; text, .jsonl or .tokens");
  if (draft.converses)
    add_line(file, "    \"format\": \"chat\",", "conversations: the loss is on the answers");
  if (!draft.tokenizer.empty())
    add_line(file, fmt::format("    \"tokenizer\": {},", quoted_json(draft.tokenizer)),
             "a tokenizer.json, or \"bytes\"");
  if (draft.validates)
    add_line(file, fmt::format("    \"validation_fraction\": {},", kHeldOut),
             "the end of it is held out, to evaluate on");
  add_line(file, fmt::format("    \"sequence_length\": {}", draft.sequence),
           "tokens that the model sees at once");
  file += "  },\n";
}

void add_run_section(std::string& file, const Draft& draft, bool limited) {
  file += "  \"run\": {\n";
  add_line(file, fmt::format("    \"output\": {},", quoted_json(draft.run_folder)),
           "checkpoints, weights, metrics");
  add_line(file, fmt::format("    \"steps\": {},", draft.steps),
           fmt::format("{:g} passes over the data; or \"epochs\", or \"tokens\"", draft.epochs));
  if (draft.validates)
    add_line(file, fmt::format("    \"eval_every\": {},", std::max<int64_t>(1, draft.steps / 20)),
             "steps between evaluations");
  add_line(file, fmt::format("    \"save_every\": {},", std::max<int64_t>(1, draft.steps / 10)),
           "steps between checkpoints; --resume goes on from the last");
  if (limited)
    add_line(file, fmt::format("    \"memory\": {},", draft.limit),
             format_bytes(draft.limit) + ": a run that would need more does not start");
  add_line(file, fmt::format("    \"recompute\": {},", draft.recompute),
           "true: less memory, a third more time");
  add_line(file, "    \"seed\": 1", "another seed: other first weights and order of the data");
  file += "  }\n";
}

std::string file_text(const InitArguments& arguments, const Draft& draft, int64_t peak) {
  std::string file = fmt::format(
      "// Written by onefold init for {} and {}: {} parameters, {} planned.\n"
      "// Every key: docs/config.md. The plan: onefold train {} --plan-only\n{{\n",
      arguments.model, join(arguments.data, ", "), format_count(draft.parameters),
      format_bytes(peak), arguments.output);
  const std::string model = draft.model.is_string()
                                ? draft.model.dump()
                                : fmt::format("{{\"preset\": {}, \"vocab_size\": {}}}",
                                              draft.model["preset"].dump(), draft.vocabulary);
  add_line(file, fmt::format("  \"model\": {},", model),
           draft.tunes ? "training begins with the weights of this folder"
                       : "a new model, with random weights");
  add_data_section(file, arguments, draft);
  add_line(file, fmt::format("  \"train_batch_size\": {},", draft.batch),
           fmt::format("sequences of a step: {} tokens", draft.batch * draft.sequence));
  add_line(file, fmt::format("  \"train_micro_batch_size_per_gpu\": {},", draft.micro),
           "of these at a time; less takes less memory");
  add_line(file, "  \"gradient_clipping\": 1.0,", "the largest norm of all gradients");
  add_line(file, "  \"optimizer\": {", "AdamW: two moments for each parameter");
  add_line(file, "    \"type\": \"AdamW\",", "or \"SGD\"");
  file += "    \"params\": {\n";
  add_line(file, fmt::format("      \"lr\": {:g},", draft.rate),
           draft.tunes ? "usual for tuning a model of this size; try others"
                       : "usual for a new model of this size; try others");
  add_line(file, "      \"betas\": [0.9, 0.95],", "how slowly the moments follow the gradients");
  add_line(file, fmt::format("      \"weight_decay\": {}", draft.tunes ? 0.01 : 0.1),
           "of matrices, not of norms and biases");
  file += "    }\n  },\n";
  add_line(file, "  \"scheduler\": {", "the learning rate rises, then falls along a cosine");
  add_line(file, "    \"type\": \"cosine\",", "or constant, linear, wsd");
  add_line(
      file,
      fmt::format("    \"params\": {{\"warmup_steps\": {}, \"min_lr_ratio\": 0.1}}", draft.warmup),
      "steps it rises; where it ends, as a part of lr");
  file += "  },\n";
  add_line(file, "  \"steps_per_print\": 10,", "steps from one printed line to the next");
  add_run_section(file, draft, !arguments.memory.empty());
  return file + "}\n";
}

int run_init(InitArguments arguments) {
  require_output({"--output", "name another file, or remove it"}, arguments.output, arguments.data,
                 false);
  for (const std::string& path : arguments.data)
    if (!path_exists(path)) user_error("--data: there is no {}", path);
  Draft draft;
  draft.model = arguments.model;
  draft.tokenizer = arguments.tokenizer;
  look_at_data(arguments, draft);
  // What happens to be free changes from hour to hour; three quarters of all is free on most.
  constexpr double kShare = 0.75;
  draft.limit = arguments.memory.empty()
                    ? static_cast<int64_t>(kShare * static_cast<double>(total_memory_bytes()))
                    : parse_bytes(arguments.memory, "--memory");
  choose_batch(draft);
  const int64_t peak = choose_memory(arguments, draft);
  draft.validates = kHeldOut * static_cast<double>(draft.tokens) >
                    2.0 * static_cast<double>(draft.sequence * draft.micro);
  choose_length(draft);
  draft.run_folder = free_run_folder(arguments);

  const std::string text = file_text(arguments, draft, peak);
  const Config config = Config::from_json(parse_json(text, arguments.output));
  config.require_training();
  write_file(arguments.output, text);
  if (arguments.json) {
    print_json({{"output", arguments.output},
                {"parameters", draft.parameters},
                {"tokens", draft.tokens},
                {"steps", draft.steps},
                {"planned_peak_bytes", peak},
                {"configuration", config.effective()}});
    return kOk;
  }
  fmt::print(
      "wrote {0}: {1} parameters, {2} steps of {3} tokens, {4} of memory\nnext: onefold train "
      "{0}\n",
      arguments.output, format_count(draft.parameters), draft.steps, draft.batch * draft.sequence,
      format_bytes(peak));
  return kOk;
}

}  // namespace

void add_init(CLI::App& app, Run& run) {
  auto arguments = std::make_shared<InitArguments>();
  CLI::App* init = app.add_subcommand("init", "Write a configuration for a model and a text");
  init->add_option("model", arguments->model,
                   "A preset (like gpt2), the folder of a Hugging Face model, or of a run")
      ->required();
  init->add_option("--data", arguments->data, "The file or files to train on")
      ->required()
      ->type_name("FILE");
  init->add_option("--tokenizer", arguments->tokenizer,
                   "A tokenizer.json, or bytes; default: the folder's, else bytes")
      ->type_name("FILE");
  init->add_option("--memory", arguments->memory,
                   "The most memory that training may use, like 8GiB; default: three quarters of "
                   "the machine's")
      ->type_name("SIZE");
  init->add_option("--output", arguments->output, "The file to write; it must not be there yet")
      ->type_name("FILE")
      ->capture_default_str();
  init->add_flag("--json", arguments->json, "One JSON object instead of text");
  init->footer(
      "Examples:\n"
      "  onefold init gpt2 --data book.txt --memory 8GiB\n"
      "  onefold init models/qwen --data notes.jsonl --output tune.json\n\n"
      "The data is read once, to count its tokens. Batch, sequence and recomputation are chosen\n"
      "from plans, so that the run fits; every line of the file has a comment.");
  init->callback([arguments, &run] { run = [arguments] { return run_init(*arguments); }; });
}

}  // namespace onefold::cli
