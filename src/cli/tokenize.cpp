// onefold tokenize: learn a vocabulary, encode text into a token file, look at tokens.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "base/say.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/data_flags.h"
#include "data/bpe_trainer.h"
#include "data/hf_tokenizer.h"
#include "data/tokenize.h"
#include "run/session.h"
#include "run/signals.h"

namespace onefold::cli {
namespace {

struct TokenizeArguments {
  std::vector<std::string> inputs;
  std::string output, tokenizer = "bytes", text;
  DataFlags data;
  int64_t vocab_size = 4096, min_frequency = 2;
  int threads = 0;
  bool add_template = false, overwrite = false, json = false;
};

// A line on the terminal that is drawn over itself: a bar, the share done, the rate and the time
// left.
class ProgressBar {
 public:
  explicit ProgressBar(bool show) : show_(show), begin_(now_seconds()) {}
  ~ProgressBar() { clear(); }

  void draw(int64_t done, int64_t total) {
    const double now = now_seconds();
    if (!show_ || total == 0 || (drawn_ && now - last_ < 0.1)) return;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    const double seconds = std::max(now - begin_, 1e-3);
    const int filled = static_cast<int>(share * kWidth);
    say("\r\x1b[K[{:#<{}}{:.<{}}] {:3.0f}%  {}  {:.1f} MB/s  ETA {}", "", filled, "",
        kWidth - filled, 100 * share, format_bytes(done), static_cast<double>(done) / seconds / 1e6,
        share > 0 ? format_duration(seconds / share - seconds) : "?");
    last_ = now;
    drawn_ = true;
  }
  void clear() {
    if (drawn_) say("\r\x1b[K");
    drawn_ = false;
  }

 private:
  static constexpr int kWidth = 30;
  const bool show_;
  const double begin_;
  double last_ = 0;
  bool drawn_ = false;
};

Tokenizer tokenizer_of(const TokenizeArguments& a) { return open_tokenizer(a.tokenizer).value(); }

void check_output(const TokenizeArguments& a) {
  std::vector<std::string> inputs = expanded({.paths = a.inputs}).paths;
  inputs.push_back(a.tokenizer);
  require_output({"--output", "name another file, or pass --overwrite to replace it"}, a.output,
                 inputs, a.overwrite);
}

void note_skipped(const TokenizeArguments& a, const DocumentReport& report) {
  if (report.skipped == 0 || a.json) return;
  say("note: {} line{} skipped, the first because {}\n", report.skipped,
      report.skipped == 1 ? " was" : "s were", report.first_skipped);
}

int run_train(const TokenizeArguments& a) {
  const double begin = now_seconds();
  check_output(a);
  BpeTrainer trainer;
  int64_t bytes = 0;
  const DocumentReport report =
      for_each_document(source_of(a.inputs, a.data), [&](const Document& document) {
        trainer.add(document.text);
        bytes += static_cast<int64_t>(document.text.size());
      });
  const bool show = !a.json && redraws(Stream::err);
  BpeOptions options{.vocab_size = a.vocab_size, .min_frequency = a.min_frequency};
  options.progress = [&](int64_t tokens, int64_t target) {
    if (show && tokens % 64 == 0) say("\r\x1b[Klearning: {}/{} tokens", tokens, target);
  };
  const Tokenizer tokenizer = trainer.train(options);
  if (show) say("\r\x1b[K");
  tokenizer.save(a.output);
  const double seconds = now_seconds() - begin;
  if (a.json)
    print_json({{"output", a.output},
                {"vocab_size", tokenizer.vocab_size()},
                {"text_bytes", bytes},
                {"skipped_lines", report.skipped},
                {"seconds", seconds}});
  else
    fmt::print("{}: {} tokens learnt from {} of text in {}\n", a.output, tokenizer.vocab_size(),
               format_bytes(bytes), format_duration(seconds));
  note_skipped(a, report);
  if (tokenizer.vocab_size() < a.vocab_size && !a.json)
    say("note: the text has no more pairs to merge; {} tokens were asked for\n", a.vocab_size);
  return kOk;
}

int run_encode(const TokenizeArguments& a) {
  const double begin = now_seconds();
  check_output(a);
  const Tokenizer tokenizer = tokenizer_of(a);
  ThreadPool pool(a.threads);
  if (a.add_template && tokenizer.template_before().empty() && tokenizer.template_after().empty())
    user_error("--add-special-tokens has no effect: {} has no template that adds any", a.tokenizer);
  const StopSignals signals;  // an end by exception or return, which leaves no file behind
  ProgressBar bar(!a.json && redraws(Stream::err));
  DocumentReport report;
  const TokenizeOptions options = {.add_template = a.add_template,
                                   .progress =
                                       [&](int64_t done, int64_t total) {
                                         bar.draw(done, total);
                                         return !signals.stop_wanted();
                                       },
                                   .report = &report};
  const std::optional<TokenFileInfo> info =
      tokenize_to_file(source_of(a.inputs, a.data), tokenizer, pool, a.output, options);
  bar.clear();
  if (!info) {
    say("interrupted: {} was not written\n", a.output);
    return kInterrupted;
  }
  const double seconds = now_seconds() - begin;
  if (a.json)
    print_json({{"output", a.output},
                {"tokens", info->tokens},
                {"documents", info->documents},
                {"vocab_size", info->vocab_size},
                {"token_bytes", info->token_bytes},
                {"end_of_text", info->end_of_text},
                {"masked", info->masked},
                {"skipped_lines", report.skipped},
                {"peak_rss_bytes", peak_rss_bytes()},
                {"seconds", seconds}});
  else
    fmt::print("{}: {} tokens of {} bytes in {} document{}, {}{}; made in {}\n", a.output,
               format_count(info->tokens), info->token_bytes, format_count(info->documents),
               info->documents == 1 ? "" : "s", describe_end_of_text(info->end_of_text, &tokenizer),
               info->masked ? "; loss on the answers alone" : "", format_duration(seconds));
  note_skipped(a, report);
  return kOk;
}

int run_show(const TokenizeArguments& a) {
  const Tokenizer tokenizer = tokenizer_of(a);
  const std::vector<int32_t> ids = tokenizer.encode(
      a.text, a.data.special ? Tokenizer::Specials::kMatch : Tokenizer::Specials::kAsText);
  if (a.json) {
    print_json({{"text", a.text}, {"tokens", ids}});
    return kOk;
  }
  for (const int32_t id : ids) fmt::print("{:>7}  {:?}\n", id, tokenizer.token_text(id));
  return kOk;
}

void add_source(CLI::App* command, TokenizeArguments& a) {
  command
      ->add_option("input", a.inputs,
                   "Text or JSONL files, as they are or compressed (gzip, zstd); patterns like "
                   "'a*.jsonl'; - is standard input")
      ->required();
  add_data_flags(command, a.data, "text, jsonl or chat (JSONL of conversations)");
  command->add_flag("--json", a.json, "One JSON object instead of text");
}

}  // namespace

void add_tokenize(CLI::App& app, Run& run) {
  auto a = std::make_shared<TokenizeArguments>();
  CLI::App* tokenize =
      app.add_subcommand("tokenize", "Learn a byte-level BPE; encode text into a token file");
  tokenize->require_subcommand(1);
  tokenize->footer(
      "Examples:\n"
      "  onefold tokenize train book.txt --vocab-size 4096 --output tokenizer.json\n"
      "  onefold tokenize encode docs.jsonl --field body --tokenizer tokenizer.json --output "
      "docs.tokens\n"
      "  onefold tokenize show 'Hello, world' --tokenizer tokenizer.json");

  CLI::App* train =
      tokenize->add_subcommand("train", "Learn a vocabulary and save it as tokenizer.json");
  add_source(train, *a);
  train->add_option("--vocab-size", a->vocab_size, "Tokens, with the 256 bytes and <|endoftext|>")
      ->check(CLI::Range(257, 1 << 24))
      ->capture_default_str();
  train->add_option("--min-frequency", a->min_frequency, "Pairs seen less often are not merged")
      ->check(at_least(1))
      ->capture_default_str();
  train->add_option("--output", a->output, "Where to write tokenizer.json")->required();
  train->add_flag("--overwrite", a->overwrite, "Replace the file if it is there");
  train->callback([a, &run] { run = [a] { return run_train(*a); }; });

  CLI::App* encode =
      tokenize->add_subcommand("encode", "Encode text or JSONL into a memory-mapped token file");
  add_source(encode, *a);
  encode
      ->add_option("--tokenizer", a->tokenizer,
                   "A tokenizer.json, a folder with a tokenizer, or \"bytes\"")
      ->capture_default_str();
  encode->add_flag("--add-special-tokens", a->add_template,
                   "Put what the tokenizer's template adds (Llama's <s>) around each document");
  encode->add_option("--chat", a->data.chat,
                     "Conversations: markers as data.data.chat has them; by default ChatML's");
  encode->add_flag("--special", a->data.special, "Text that spells a special token becomes its id");
  encode->add_option("--threads", a->threads, "Threads; 0 takes all cores")
      ->check(at_least(0))
      ->capture_default_str();
  encode->add_option("--output", a->output, "Where to write the token file")->required();
  encode->add_flag("--overwrite", a->overwrite, "Replace the file if it is there");
  encode->callback([a, &run] { run = [a] { return run_encode(*a); }; });

  CLI::App* show = tokenize->add_subcommand("show", "Print a text's tokens");
  show->add_option("text", a->text, "The text")->required();
  show->add_option("--tokenizer", a->tokenizer,
                   "A tokenizer.json, a folder with a tokenizer, or \"bytes\"")
      ->capture_default_str();
  show->add_flag("--special", a->data.special, "Text that spells a special token becomes its id");
  show->add_flag("--json", a->json, "One JSON object instead of text");
  show->callback([a, &run] { run = [a] { return run_show(*a); }; });
}

}  // namespace onefold::cli
