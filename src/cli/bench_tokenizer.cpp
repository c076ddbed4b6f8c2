#include "cli/bench_tokenizer.h"

#include <time.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "data/tokenizer.h"
#include "run/session.h"

namespace onefold::cli {
namespace {

struct TokenizerBench {
  std::string input, tokenizer = "bytes";
  int rounds = 5;
  bool json = false;
};

// The file in pieces as `onefold tokenize` encodes it, through one cache: what one thread does.
std::vector<std::string_view> pieces_of(std::string_view text, const Tokenizer& tokenizer) {
  constexpr size_t kPieceBytes = size_t{1} << 18;
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t cut =
        text.size() <= kPieceBytes ? text.size() : tokenizer.safe_cut(text, kPieceBytes);
    pieces.push_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  return pieces;
}

int run_tokenizer(const TokenizerBench& b) {
  const std::string text = read_file(b.input);
  if (text.empty()) user_error("{} is empty; give a file with text", b.input);
  const Tokenizer tokenizer = open_tokenizer(b.tokenizer).value();
  const std::vector<std::string_view> pieces = pieces_of(text, tokenizer);
  std::vector<double> encode, decode;
  std::vector<int32_t> ids;
  int64_t tokens = 0;
  for (int round = 0; round < b.rounds; ++round) {
    WordCache cache;  // cold in every round
    double begin = thread_seconds(), decoding = 0;
    tokens = 0;
    for (const std::string_view& piece : pieces) {
      ids.clear();
      tokenizer.encode(
          piece, Tokenizer::Specials::kAsText, cache, ids,
          &piece == pieces.data() ? Tokenizer::Place::kBegin : Tokenizer::Place::kContinue);
      tokens += static_cast<int64_t>(ids.size());
      const double middle = thread_seconds();
      tokenizer.decode(ids);
      decoding += thread_seconds() - middle;
    }
    encode.push_back(thread_seconds() - begin - decoding);
    decode.push_back(decoding);
  }
  const auto megabytes = static_cast<double>(text.size()) / 1e6;
  const auto best = [&](const std::vector<double>& seconds) {
    return megabytes / *std::min_element(seconds.begin(), seconds.end());
  };
  if (b.json) {
    print_json({{"input", b.input},
                {"tokenizer", b.tokenizer},
                {"bytes", text.size()},
                {"tokens", tokens},
                {"encode_mb_per_s", best(encode)},
                {"decode_mb_per_s", best(decode)},
                {"encode_seconds", encode},
                {"decode_seconds", decode}});
    return kOk;
  }
  fmt::print("{}: {} into {} tokens with {}, one thread, best of {}\n", b.input,
             format_bytes(static_cast<int64_t>(text.size())), format_count(tokens), b.tokenizer,
             b.rounds);
  fmt::print("  encode {:.1f} MB/s, decode {:.1f} MB/s\n", best(encode), best(decode));
  return kOk;
}

}  // namespace

void add_bench_tokenizer(CLI::App& bench, Run& run) {
  auto b = std::make_shared<TokenizerBench>();
  CLI::App* command =
      bench.add_subcommand("tokenizer", "Encoding and decoding of a text, on one core");
  command->add_option("input", b->input, "A text file")->required();
  command->add_option("--tokenizer", b->tokenizer, "A tokenizer.json, or \"bytes\"")
      ->capture_default_str();
  command->add_option("--rounds", b->rounds, "Times to encode the text; the best counts")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_flag("--json", b->json, "One JSON object instead of text");
  command->footer("Example:\n  onefold bench tokenizer book.txt --tokenizer tokenizer.json");
  command->callback([b, &run] { run = [b] { return run_tokenizer(*b); }; });
}

}  // namespace onefold::cli
