// onefold data: checks of the data before a run.
#include <fmt/format.h>

#include <memory>

#include "base/clock.h"
#include "base/say.h"
#include "base/text.h"
#include "cli/cli.h"
#include "config/config.h"
#include "data/contamination.h"
#include "run/session.h"

namespace onefold::cli {
namespace {

struct CheckArguments {
  std::string config;
  std::vector<std::string> overrides;
  int64_t ngram = 13;
  double share = 0.5;
  bool json = false;
};

constexpr size_t kExamples = 5;

// The parts of a run's data, and the files that each was read from.
struct CheckedData {
  TokenSubset train;
  std::optional<TokenSubset> validation;
  DataSource train_source, validation_source;
};

CheckedData open_parts(const Config& config) {
  ThreadPool pool(config.run.threads);
  const std::optional<Tokenizer> tokenizer = open_tokenizer(config.data.tokenizer);
  const auto open = [&](const DataSource& source) {
    return Dataset::open(source, tokenizer ? &*tokenizer : nullptr, pool);
  };
  CheckedData data;
  data.train_source = config.data.train;
  data.train_source.vocab_size = config.model.vocab_size;
  data.validation_source = data.train_source;
  const Dataset train = open(data.train_source);
  const DataSplit split = split_dataset(train, config.data.validation_fraction);
  data.train = {train, split.train};
  if (split.validation.tokens() > 0) data.validation = {train, split.validation};
  if (config.data.validation.empty()) return data;
  data.validation_source.paths = config.data.validation;
  data.validation_source.weights.clear();
  const Dataset held_out = open(data.validation_source);
  held_out.require_tokenizer_of(train);
  data.validation = {held_out, {0, held_out.tokens()}};
  return data;
}

// A line on the terminal that is drawn over itself.
class CheckBar {
 public:
  CheckBar(const char* what, bool show) : what_(what), show_(show) {}
  ~CheckBar() {
    if (drawn_) say("\r\x1b[K");
  }
  void draw(int64_t done, int64_t total) {
    constexpr int kWidth = 30;
    if (!show_ || total == 0 || now_seconds() - last_ < 0.1) return;
    last_ = now_seconds();
    drawn_ = true;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    const int filled = static_cast<int>(share * kWidth);
    say("\r\x1b[K{} [{:#<{}}{:.<{}}] {:3.0f}%", what_, "", filled, "", kWidth - filled,
        100 * share);
  }

 private:
  const char* what_;
  const bool show_;
  bool drawn_ = false;
  double last_ = 0;
};

std::string place_of(const CheckedData& data, const DocumentPlace& at) {
  const TokenSubset& part = at.validation ? *data.validation : data.train;
  return locate_documents(at.validation ? data.validation_source : data.train_source, part.dataset,
                          {at.document})[0];
}

Json duplicates_json(const CheckedData& data, const DuplicateReport& report) {
  Json examples = Json::array();
  for (const auto& [copy, original] : report.examples)
    examples.push_back({{"copy", place_of(data, copy)}, {"original", place_of(data, original)}});
  return {{"train_documents", report.train_documents},
          {"validation_documents", report.validation_documents},
          {"in_train", report.in_train},
          {"in_validation", report.in_validation},
          {"shared", report.shared},
          {"examples", examples}};
}

Json overlap_json(const CheckedData& data, const OverlapReport& report,
                  const CheckArguments& arguments) {
  Json worst = Json::array();
  for (const OverlapReport::Window& window : report.worst)
    worst.push_back({{"document", place_of(data, {true, window.document})},
                     {"first_token", window.first_token},
                     {"tokens", window.tokens},
                     {"share", window.share()}});
  return {{"ngram", arguments.ngram},
          {"share", arguments.share},
          {"windows", report.windows},
          {"short_windows", report.short_windows},
          {"contaminated", report.contaminated},
          {"mean_share", report.mean_share},
          {"ngrams", report.ngrams},
          {"train_ngrams", report.train_ngrams},
          {"sampling", report.sampling},
          {"expected_accidents", report.expected_accidents},
          {"worst", worst}};
}

std::string duplicates_text(const Json& found) {
  std::string text = fmt::format(
      "duplicates  {} of {} training documents repeat an earlier one\n"
      "            {} of {} validation documents repeat an earlier one, and {} are in the training "
      "data\n",
      found["in_train"].dump(), found["train_documents"].dump(), found["in_validation"].dump(),
      found["validation_documents"].dump(), found["shared"].dump());
  for (const Json& example : found["examples"])
    text += fmt::format("  {} is {}\n", example["copy"].get<std::string>(),
                        example["original"].get<std::string>());
  return text;
}

std::string overlap_text(const Json& found) {
  if (found.is_null()) return "overlap     not looked for: there is no validation data\n";
  std::string text = fmt::format(
      "overlap     {} of {} validation windows have {:.0f} % or more of their {}-grams in the "
      "training data\n            on average, a window has {:.1f} % of them there ({:.1g} n-grams "
      "are "
      "expected by accident)\n",
      found["contaminated"].dump(), found["windows"].dump(), 100 * found["share"].get<double>(),
      found["ngram"].dump(), 100 * found["mean_share"].get<double>(),
      found["expected_accidents"].get<double>());
  if (found["sampling"] > 1)
    text += fmt::format("            one n-gram in {} was looked for\n", found["sampling"].dump());
  for (const Json& window : found["worst"])
    text += fmt::format("  {}, tokens {} to {}: {:.0f} %\n", window["document"].get<std::string>(),
                        window["first_token"].dump(),
                        window["first_token"].get<int64_t>() + window["tokens"].get<int64_t>(),
                        100 * window["share"].get<double>());
  return text;
}

int run_check(const CheckArguments& arguments) {
  const Json root = read_config(arguments.config, arguments.overrides);
  const Config config = config_of(root, arguments.config, mesh_ranks(root));
  if (config.data.train.paths.empty())
    user_error("{}: data.train is missing: name the file or files to check", arguments.config);
  const bool show = !arguments.json && redraws(Stream::err);
  const CheckedData data = open_parts(config);
  const TokenSubset* validation = data.validation ? &*data.validation : nullptr;
  DuplicateReport duplicates;
  {
    CheckBar bar("documents", show);
    duplicates = find_duplicates(data.train, validation, kExamples,
                                 [&](int64_t done, int64_t all) { bar.draw(done, all); });
  }
  OverlapReport overlap;
  if (validation) {
    CheckBar bar("overlap", show);
    const OverlapOptions options{.ngram = arguments.ngram,
                                 .window = config.data.sequence_length,
                                 .share = arguments.share,
                                 .most_examples = kExamples};
    overlap = find_overlap(data.train, *validation, options,
                           [&](int64_t done, int64_t all) { bar.draw(done, all); });
  }
  const bool clean = duplicates.count() == 0 && overlap.contaminated == 0;
  const Json result = {{"clean", clean},
                       {"train_tokens", data.train.range.tokens()},
                       {"validation_tokens", validation ? validation->range.tokens() : 0},
                       {"duplicates", duplicates_json(data, duplicates)},
                       {"overlap", validation ? overlap_json(data, overlap, arguments) : Json()}};
  if (arguments.json)
    print_json(result);
  else
    fmt::print("{}{}{}", duplicates_text(result["duplicates"]), overlap_text(result["overlap"]),
               clean ? "nothing was found\n" : "");
  return clean ? kOk : kFindings;
}

}  // namespace

void add_data(CLI::App& app, Run& run) {
  CLI::App* data = app.add_subcommand("data", "Look at the data of a configuration");
  data->require_subcommand(1);
  auto arguments = std::make_shared<CheckArguments>();
  CLI::App* check = data->add_subcommand(
      "check", "Find repeated documents, and validation text that is in the training data");
  check->add_option("config", arguments->config, "The configuration (JSON), for its data section")
      ->required();
  check->add_option("--set", arguments->overrides, "Override a key: --set data.train=other.jsonl")
      ->type_name("KEY=VALUE");
  check->add_option("--ngram", arguments->ngram, "Tokens of the n-grams that are compared")
      ->capture_default_str()
      ->check(at_least(1));
  check
      ->add_option("--share", arguments->share,
                   "Part of a window's n-grams in the training data from which it counts")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  check->add_flag("--json", arguments->json, "One JSON object instead of text");
  check->footer("Exit codes: 0 if nothing was found, 5 if something was.");
  check->callback([arguments, &run] { run = [arguments] { return run_check(*arguments); }; });
}

}  // namespace onefold::cli
