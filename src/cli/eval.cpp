// onefold eval: a model's loss on data, or how often it is right.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/process.h"
#include "base/say.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/data_flags.h"
#include "data/dataset.h"
#include "engine/launch.h"
#include "inspect/hf_export.h"
#include "run/eval_tasks.h"
#include "run/evaluation.h"
#include "run/model_folder.h"
#include "run/plan.h"
#include "run/session.h"

namespace onefold::cli {
namespace {

struct EvalArguments {
  std::string model, adapter, task, documents, tokenizer, device = "cpu";
  std::vector<std::string> inputs;
  DataFlags data;
  int64_t sequence = 0, batch = 8, limit = 0;
  int ranks = 0, threads = 0;
  bool shard = false, quiet = false, json = false;
};

// All that is known before a rank starts.
struct Evaluation {
  ModelFolder model;
  EvalTask task = EvalTask::kLoss;
  EngineOptions options;
  std::optional<ValidationLoader> sequences;  // loss
  std::vector<int32_t> token_bytes;           // loss: what each token stands for; may be empty
  std::vector<ChoiceQuestion> choices;
  std::vector<LastWordQuestion> last_words;
  EncodedQuestions questions;
};

// What is done and how long the rest takes: drawn over itself on a terminal, elsewhere a line now
// and then.
class EvalProgress {
 public:
  EvalProgress(bool show, const char* what)
      : show_(show), terminal_(redraws(Stream::err)), what_(what), begin_(now_seconds()) {}
  ~EvalProgress() {
    if (terminal_ && drawn_) say("\r\x1b[K");
  }

  void draw(int64_t done, int64_t total) {
    const double now = now_seconds();
    if (!show_ || total == 0 || done == total || now - last_ < (terminal_ ? 0.1 : 10)) return;
    last_ = now;
    drawn_ = true;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    say("{}eval  {} of {} {}  {:.0f}%  ETA {}{}", terminal_ ? "\r\x1b[K" : "", done, total, what_,
        100 * share, format_duration((now - begin_) / share * (1 - share)), terminal_ ? "" : "\n");
  }

 private:
  const bool show_, terminal_;
  const char* const what_;
  const double begin_;
  double last_ = now_seconds();
  bool drawn_ = false;
};

EvalTask task_of(const EvalArguments& arguments, const DataSource& source) {
  const bool lines = source.format == DataFormat::kJsonl;
  if (arguments.task.empty()) return lines ? eval_task_of(source.paths[0]) : EvalTask::kLoss;
  const EvalTask task = parse_eval_task(arguments.task, "--task");
  if (task != EvalTask::kLoss && !lines)
    user_error(
        "--task {} needs lines of JSON, and {} is not a .jsonl file; if it holds them all "
        "the same, set --format jsonl",
        arguments.task, source.paths[0]);
  return task;
}

int64_t sequence_of(const EvalArguments& arguments, const ModelFolder& model, EvalTask task) {
  constexpr int64_t kDefault = 1024;
  const int64_t most = model.spec().max_sequence_length;
  if (arguments.sequence > most)
    user_error("--sequence is {}, and the model has {}", arguments.sequence,
               model.spec().positions_text());
  if (arguments.sequence > 0) return arguments.sequence;
  if (task != EvalTask::kLoss) return most;
  return model.sequence_length > 0 ? std::min(model.sequence_length, most)
                                   : std::min(most, kDefault);
}

// Bytes of each token; none of a token that only marks a place.
std::vector<int32_t> bytes_of_tokens(const Tokenizer& tokenizer, int64_t vocabulary) {
  std::vector<int32_t> bytes(static_cast<size_t>(vocabulary));
  for (int32_t id = 0; id < std::min(vocabulary, tokenizer.vocab_size()); ++id)
    bytes[static_cast<size_t>(id)] = static_cast<int32_t>(tokenizer.token_text(id).size());
  for (const AddedToken& token : tokenizer.added_tokens())
    if (token.special && token.id < vocabulary) bytes[static_cast<size_t>(token.id)] = 0;
  return bytes;
}

void open_sequences(const EvalArguments& arguments, const DataSource& source, int64_t length,
                    Evaluation& evaluation) {
  const ModelFolder& model = evaluation.model;
  if (source.format != DataFormat::kTokens) model.require_tokenizer();
  const Tokenizer* tokenizer = model.tokenizer ? &*model.tokenizer : nullptr;
  ThreadPool pool(arguments.threads);
  const Dataset dataset = Dataset::open(source, tokenizer, pool);
  dataset.check_vocabulary(model.spec().vocab_size);
  const DocumentMode mode = arguments.documents.empty()
                                ? model.documents
                                : parse_document_mode(arguments.documents, "--documents");
  SequenceSet set(dataset, {0, dataset.tokens()}, length, mode, "evaluation data",
                  /*keep_tail=*/true);
  const int64_t rows = arguments.limit > 0 ? std::min(arguments.limit, set.count()) : set.count();
  evaluation.options.micro_batch = std::min(arguments.batch, rows);
  evaluation.options.sequence = length;
  evaluation.options.documents = mode == DocumentMode::kIsolated;
  evaluation.sequences.emplace(std::move(set), evaluation.options.micro_batch, arguments.limit);
  if (tokenizer) evaluation.token_bytes = bytes_of_tokens(*tokenizer, model.spec().vocab_size);
}

void open_questions(const EvalArguments& arguments, const DataSource& source, int64_t length,
                    Evaluation& evaluation) {
  if (!arguments.documents.empty())
    user_error("--documents has no effect: it is for the loss, and the task is {}",
               eval_task_name(evaluation.task));
  if (evaluation.task == EvalTask::kChoices) {
    if (!arguments.data.field.empty())
      user_error("--field has no effect: the fields of choices have names of their own");
    evaluation.choices = read_choices(source.paths, arguments.limit);
    evaluation.questions = encode_choices(evaluation.choices, evaluation.model, length);
  } else {
    evaluation.last_words = read_last_words(source.paths, source.field, arguments.limit);
    evaluation.questions = encode_last_words(evaluation.last_words, evaluation.model, length);
  }
  int64_t longest = 1;
  for (const ScoredText& text : evaluation.questions.texts) {
    longest = std::max(longest, static_cast<int64_t>(text.tokens.size()) - 1);
    for (const int32_t token : text.tokens)
      if (token >= evaluation.model.spec().vocab_size)
        user_error("the tokenizer makes token {}, and the model has a vocabulary of {}", token,
                   evaluation.model.spec().vocab_size);
  }
  evaluation.options.sequence = longest;
  evaluation.options.micro_batch =
      std::min<int64_t>(arguments.batch, static_cast<int64_t>(evaluation.questions.texts.size()));
}

void require_memory(const Evaluation& evaluation, const Ranks& ranks) {
  const std::string& device = evaluation.options.device;
  const Hardware machine = this_machine(ranks.cores(), device, ranks.ranks_here());
  const RankPlan plan = plan_rank(evaluation.model.spec(), evaluation.options, ranks.count(),
                                  ranks.scratch_bytes(device), machine);
  const bool on_host = machine.device == "cpu";
  const int64_t needed = plan.peak_bytes * (on_host ? ranks.ranks_here() : 1);
  const int64_t available = on_host ? available_memory_bytes() : machine.available_bytes();
  if (available > 0 && needed > available)
    user_error(
        "this evaluation needs {} of memory and {} has {} left; lower --batch or --sequence{}",
        format_bytes(needed), on_host ? "the machine" : "each rank's card", format_bytes(available),
        ranks.count() > 1 && evaluation.options.zero.stage < 3
            ? ", or divide the model among the ranks with --shard"
            : "");
}

Evaluation open_evaluation(const EvalArguments& arguments, const Ranks& ranks) {
  Evaluation evaluation;
  const DataSource source = source_of(arguments.inputs, arguments.data);
  evaluation.model = open_model_folder(arguments.model);
  ModelFolder& model = evaluation.model;
  if (!arguments.adapter.empty()) model.source = with_adapter(model.source, arguments.adapter);
  if (!arguments.tokenizer.empty()) model.tokenizer = open_tokenizer(arguments.tokenizer);
  evaluation.task = task_of(arguments, source);
  EngineOptions& options = evaluation.options;
  options.device = arguments.device;
  options.threads = arguments.threads > 0 ? arguments.threads : ranks.cores();
  options.training = false;
  options.zero.stage = arguments.shard ? 3 : 0;
  options.initial = reader_of(model.source);
  const int64_t length = sequence_of(arguments, model, evaluation.task);
  if (evaluation.task == EvalTask::kLoss)
    open_sequences(arguments, source, length, evaluation);
  else
    open_questions(arguments, source, length, evaluation);
  require_memory(evaluation, ranks);
  return evaluation;
}

Json loss_json(const Evaluation& evaluation, const LossSum& sum) {
  return {
      {"loss", sum.mean()},
      {"perplexity", std::exp(sum.mean())},
      {"bits_per_byte",
       sum.bytes > 0 ? Json(sum.loss / std::log(2.0) / static_cast<double>(sum.bytes)) : Json()},
      {"tokens", sum.tokens},
      {"bytes", sum.bytes > 0 ? Json(sum.bytes) : Json()},
      {"sequences", evaluation.sequences->rows()},
      {"sequence_length", evaluation.options.sequence}};
}

Json share_of(int64_t correct, int64_t count) {
  return static_cast<double>(correct) / static_cast<double>(count);
}

Json choices_json(const Evaluation& evaluation, const std::vector<TextScore>& scores) {
  const ChoiceResult result = judge_choices(evaluation.choices, scores);
  return {
      {"accuracy", share_of(result.correct, result.questions)},
      {"accuracy_error", standard_error(result.correct, result.questions)},
      {"accuracy_normalised", share_of(result.correct_normalised, result.questions)},
      {"accuracy_normalised_error", standard_error(result.correct_normalised, result.questions)},
      {"questions", result.questions},
      {"texts", scores.size()},
      {"truncated", evaluation.questions.truncated}};
}

Json last_words_json(const Evaluation& evaluation, const std::vector<TextScore>& scores) {
  const LastWordResult result = judge_last_words(scores);
  return {{"accuracy", share_of(result.correct, result.questions)},
          {"accuracy_error", standard_error(result.correct, result.questions)},
          {"perplexity", std::exp(-result.log_probability / static_cast<double>(result.questions))},
          {"questions", result.questions},
          {"truncated", evaluation.questions.truncated}};
}

Json evaluate(Engine& engine, const Evaluation& evaluation, bool show) {
  const bool loss = evaluation.task == EvalTask::kLoss;
  EvalProgress bar(show && engine.rank() == 0, loss ? "sequences" : "texts");
  const EvaluationProgress progress = [&](int64_t done, int64_t total) { bar.draw(done, total); };
  if (loss)
    return loss_json(evaluation,
                     sum_losses(engine, *evaluation.sequences, evaluation.token_bytes, progress));
  const std::vector<TextScore> scores = score_texts(engine, evaluation.questions.texts, progress);
  return evaluation.task == EvalTask::kChoices ? choices_json(evaluation, scores)
                                               : last_words_json(evaluation, scores);
}

std::string accuracy_line(const char* name, const Json& result, const std::string& key) {
  return fmt::format("{:<15} {:.2f} %  +- {:.2f}\n", name, 100 * result[key].get<double>(),
                     100 * result[key + "_error"].get<double>());
}

std::string eval_text(const Evaluation& evaluation, const Json& result) {
  std::string text;
  if (evaluation.task == EvalTask::kLoss) {
    text = fmt::format("{:<15} {:.4f}\n{:<15} {:.4f}\n", "loss", result["loss"].get<double>(),
                       "perplexity", result["perplexity"].get<double>());
    if (!result["bits_per_byte"].is_null())
      text +=
          fmt::format("{:<15} {:.4f}\n", "bits per byte", result["bits_per_byte"].get<double>());
    text += fmt::format(
        "{:<15} {} in {} of {}\n", "tokens", result["tokens"].dump(),
        result["sequences"] == 1 ? "1 sequence" : result["sequences"].dump() + " sequences",
        result["sequence_length"].dump());
  } else {
    text = accuracy_line("accuracy", result, "accuracy");
    if (evaluation.task == EvalTask::kChoices)
      text += accuracy_line("normalised", result, "accuracy_normalised");
    else
      text += fmt::format("{:<15} {:.4f}\n", "perplexity", result["perplexity"].get<double>());
    text += fmt::format("{:<15} {}\n", "questions", result["questions"].dump());
  }
  return text + fmt::format("{:<15} {} on {} rank{}\n", "time",
                            format_duration(result["seconds"].get<double>()),
                            result["ranks"].dump(), result["ranks"] == 1 ? "" : "s");
}

// What ranks over MPI must have been told alike.
Json eval_ground(const EvalArguments& arguments, const Evaluation& evaluation) {
  return {{"version", ONEFOLD_VERSION},
          {"model", evaluation.model.spec().to_json()},
          {"task", eval_task_name(evaluation.task)},
          {"data", arguments.inputs},
          {"batch", evaluation.options.micro_batch},
          {"sequence", evaluation.options.sequence},
          {"stage", evaluation.options.zero.stage},
          {"sequences", evaluation.sequences ? evaluation.sequences->rows() : 0},
          {"texts", evaluation.questions.texts.size()}};
}

int run_eval(const EvalArguments& arguments) {
  Ranks ranks(arguments.ranks, {.check = false});
  if (arguments.shard && ranks.count() == 1)
    user_error("--shard has no effect: it divides the model among ranks, and there is one");
  Evaluation evaluation;
  ranks.after_leader([&] { evaluation = open_evaluation(arguments, ranks); });
  ranks.require_alike(eval_ground(arguments, evaluation));
  if (ranks.leads()) {
    for (const std::string& problem : evaluation.model.passed_over)
      say("onefold: warning: passed over: {}\n", problem);
    if (evaluation.questions.truncated > 0)
      say("note: of {} of {} texts the beginning is left out, to fit {} tokens\n",
          evaluation.questions.truncated, evaluation.questions.texts.size(),
          evaluation.options.sequence);
  }
  Json result;
  const double begin = now_seconds();
  ranks.run([&](std::shared_ptr<Communicator> communicator) {
    Engine engine(evaluation.model.spec(), evaluation.options, std::move(communicator));
    Json mine = evaluate(engine, evaluation, !arguments.quiet);
    if (engine.rank() == 0) result = std::move(mine);
  });
  if (!ranks.leads()) return kOk;
  if (result.contains("loss") && !std::isfinite(result["loss"].get<double>()))
    user_error(
        "the loss is {}: the model's weights hold NaN or infinities, or numbers that overflow",
        result["loss"].get<double>());
  Json all = {{"model", arguments.model},
              {"task", eval_task_name(evaluation.task)},
              {"data", arguments.inputs}};
  all.update(result);
  all.update({{"ranks", ranks.count()},
              {"passed_over", evaluation.model.passed_over},
              {"seconds", now_seconds() - begin}});
  if (arguments.json)
    print_json(all);
  else
    fmt::print("{}", eval_text(evaluation, all));
  return kOk;
}

}  // namespace

void add_eval(CLI::App& app, Run& run) {
  auto a = std::make_shared<EvalArguments>();
  CLI::App* command =
      app.add_subcommand("eval", "A model's loss on data, or how often its answers are right");
  command
      ->add_option("model", a->model,
                   "The folder of a run, a checkpoint or a Hugging Face model, or a GGUF file")
      ->required();
  command->add_option("--data", a->inputs, "Text, JSONL or token files")->required();
  command->add_option("--adapter", a->adapter,
                      "Adds LoRA adapters to the model's weights: a folder of PEFT's, or a run's");
  command->add_option("--task", a->task,
                      "loss, choices or last-word; by default choices where the lines have such a "
                      "field, else loss");
  command
      ->add_option("--sequence", a->sequence,
                   "Tokens of a sequence; by default the run's (loss), or the model's positions")
      ->check(at_least(1));
  command->add_option("--batch", a->batch, "Sequences that a rank computes at a time")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--limit", a->limit, "The first so many sequences or questions; 0: all")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--documents", a->documents,
                      "packed, isolated or separated; by default as the run was trained");
  command->add_option("--tokenizer", a->tokenizer,
                      "A tokenizer.json, or \"bytes\"; by default the model's own");
  add_data_flags(command, a->data, "text, jsonl or tokens");
  command
      ->add_option("--ranks", a->ranks,
                   "Run this many ranks as threads of one process, cores divided among them")
      ->check(at_least(1));
  command->add_flag("--shard", a->shard, "Divide the model's parameters among the ranks");
  command->add_option("--device", a->device, "cpu, cuda (a card for each rank) or cuda:N")
      ->capture_default_str();
  command->add_option("--threads", a->threads, "Threads of each rank; 0 takes all cores")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_flag("--quiet", a->quiet, "No progress");
  command->add_flag("--json", a->json, "One JSON object instead of text");
  command->footer(
      "Examples:\n"
      "  onefold eval runs/demo --data held_out.txt\n"
      "  onefold eval models/gpt2 --data arc.jsonl\n"
      "  onefold eval models/gpt2 --data lambada.jsonl --task last-word --limit 500\n"
      "  mpirun -n 4 onefold eval models/gpt2 --data wiki.tokens --sequence 1024 --shard");
  command->callback([a, &run] { run = [a] { return run_eval(*a); }; });
}

}  // namespace onefold::cli
