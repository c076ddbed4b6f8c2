#include "fuzz/targets.h"

#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/gguf.h"
#include "base/json.h"
#include "config/config.h"
#include "data/byte_input.h"
#include "data/byte_level.h"
#include "data/dataset.h"
#include "data/gguf_tokenizer.h"
#include "data/hf_tokenizer.h"
#include "data/jinja.h"
#include "data/sentencepiece.h"
#include "data/tiktoken.h"
#include "data/tokenizer.h"
#include "fuzz/files.h"
#include "inspect/adapter.h"
#include "io/checkpoint.h"
#include "io/half.h"
#include "io/hf_folder.h"
#include "io/quantized.h"
#include "io/safetensors.h"
#include "io/torch_file.h"
#include "model/gguf_model.h"

namespace onefold::fuzz {
namespace {

// What a reader hands out must be there: every byte is looked at.
void touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<unsigned>(byte);
  [[maybe_unused]] volatile unsigned kept = sum;  // so that the loop stays
}

void read_safetensors(std::string_view input) {
  static const MemoryFile file;
  file.fill(input);
  const SafetensorsFile tensors(file.path());
  for (const SafetensorsEntry& entry : tensors.entries()) {
    touch(tensors.bytes(entry));
    require(tensors.entry(entry.name).elems() == entry.elems(), "another tensor of that name");
    tensors.release(entry);
  }
}

// pytorch_model.bin. Most seeds have no sums (a CRC-32 of 0 is not compared): damage to them is
// read, and not refused as damage.
void read_torch(std::string_view input) {
  static const MemoryFile file;
  file.fill(input);
  const TorchFile tensors(file.path());
  for (const SafetensorsEntry& entry : tensors.entries()) {
    touch(tensors.bytes(entry));
    tensors.release(entry);
  }
}

// A GGUF file: its tensors, its model and its tokenizer, each of which may be refused.
void read_gguf(std::string_view input) {
  static const MemoryFile memory;
  memory.fill(input);
  const GgufFile file(memory.path());
  for (const GgufTensor& tensor : file.tensors()) {
    touch(file.bytes(tensor));
    const std::string type(tensor.type->name);
    if (!is_readable_dtype(type) || tensor.bytes == 0) continue;
    std::vector<float> values(static_cast<size_t>(tensor.type->elems) + 3);
    const auto elems = static_cast<int64_t>(tensor.bytes) / tensor.type->bytes * tensor.type->elems;
    values.resize(std::min(values.size(), static_cast<size_t>(elems)));
    read_values(type, file.bytes(tensor), elems - static_cast<int64_t>(values.size()), values);
  }
  try {
    spec_from_hf_config(hf_config_of_gguf(file), "model").complete("model");
  } catch (const UserError&) {
  }
  if (!has_gguf_tokenizer(file)) return;
  const Tokenizer tokenizer = load_gguf_tokenizer(file);
  tokenizer.decode(tokenizer.encode("The 2 words \xC3\xA9 <s>", Tokenizer::Specials::kMatch));
}

// A template of conversations, then the names that it may use.
void read_chat_template(std::string_view input) {
  const size_t end = std::min(input.find(kNextFile), input.size());
  Json variables = Json::object();
  if (end < input.size()) variables = parse_json(input.substr(end + kNextFile.size()), "variables");
  if (!variables.is_object()) return;
  const JinjaTemplate chat(input.substr(0, end), "template");
  const JinjaTemplate::Rendered rendered = chat.render(variables);
  for (const JinjaTemplate::Span& span : rendered.generated)
    require(span.begin <= span.end && span.end <= rendered.text.size(), "a span of {} to {}",
            span.begin, span.end);
  require(chat.render(variables).text == rendered.text || input.find("strftime") != input.npos,
          "a template renders two texts");
}

// A model in shards: the index, then the files that it may name.
void read_hf_folder(std::string_view input) {
  static const MemoryFolder folder({kHfIndex, "a.safetensors", "b.safetensors"});
  folder.fill(input);
  const TensorFiles tensors = TensorFiles::open_hf_folder(folder.path());
  for (const std::string& name : tensors.names()) {
    touch(tensors.bytes(name));
    if (!is_model_dtype(tensors.entry(name).dtype)) continue;
    std::vector<float> values(static_cast<size_t>(tensors.entry(name).elems()));
    tensors.read(name, 0, values);
  }
}

// adapter_config.json and adapter_model.safetensors of PEFT's, for a model of one block.
void read_adapter(std::string_view input) {
  static const MemoryFolder folder({kPeftConfig, kPeftWeights});
  static const ModelSpec base = spec_from_json({{"vocab_size", 3},
                                                {"hidden_size", 4},
                                                {"num_layers", 1},
                                                {"num_heads", 2},
                                                {"norm", "rmsnorm"},
                                                {"positions", "rope"},
                                                {"activation", "swiglu"}},
                                               "model");
  folder.fill(input);
  const AdapterWeights adapter = read_peft(folder.path(), base);
  for (const auto& [name, values] : adapter.values) touch(std::as_bytes(std::span(values)));
}

// A checkpoint: the manifest, then the files of two ranks.
void read_checkpoint(std::string_view input) {
  static const MemoryFolder folder({kManifest, checkpoint_file_name(0), checkpoint_file_name(1)});
  const size_t end = std::min(input.find(kNextFile), input.size());
  Json json = parse_json(input.substr(0, end), kManifest);
  if (json.is_object()) json["xxh3"] = manifest_checksum(json);  // which no mutation would hit
  folder.fill(json.dump(-1, ' ', false, Json::error_handler_t::replace) +
              std::string(input.substr(end)));
  const std::string path = folder.path() + "/" + kManifest;
  const Manifest manifest = Manifest::from_json(read_json(path), path);
  const Json written = manifest.to_json();
  require(Manifest::from_json(written, "written").to_json() == written,
          "a manifest does not read back to itself");
  const Checkpoint checkpoint(folder.path());
  for (const auto& [name, tensor] : checkpoint.manifest().tensors)
    for (const CheckpointState& state : tensor.states) {
      if (!state.obstacle().empty()) continue;
      if (state.is_coded()) {  // with the scales that it should have, or an error
        std::vector<float> values(static_cast<size_t>(tensor.elems()));
        if (tensor.state(state.name + ".scale")) checkpoint.read(state.name, name, 0, values);
        continue;
      }
      std::vector<float> values(static_cast<size_t>(tensor.elems())), columns(values);
      checkpoint.read(state.name, name, 0, values);
      if (values.empty()) continue;
      const Box left{0, 0, tensor.rows(), 1}, right{0, 1, tensor.rows(), tensor.cols() - 1};
      const auto middle = static_cast<size_t>(left.elems());
      checkpoint.read(state.name, name, left, std::span(columns).first(middle));
      checkpoint.read(state.name, name, right, std::span(columns).subspan(middle));
      require(std::memcmp(&columns[0], &values[0], sizeof(float)) == 0 &&
                  std::memcmp(&columns.back(), &values.back(), sizeof(float)) == 0,
              "a box of {} has other elements than a range", name);
    }
}

void read_config(std::string_view input) {
  const Config config = Config::from_json(parse_json(input, "config.json"));
  const Json effective = config.effective();
  require(Config::from_json(effective).effective() == effective,
          "a configuration does not read back to itself: {}", effective.dump());
}

// config.json of a Hugging Face model.
void read_model_config(std::string_view input) {
  spec_from_hf_config(parse_json(input, "config.json"), "config.json").complete("model");
}

// A tokenizer.json, then a text for it to encode.
void read_tokenizer(std::string_view input) {
  const size_t end = input.find(kNextFile);
  const Tokenizer tokenizer = Tokenizer::parse(input.substr(0, end), "tokenizer.json");
  const std::string json = tokenizer.to_json();
  require(Tokenizer::parse(json, "saved").to_json() == json,
          "a tokenizer does not read back to itself: {}", json);
  std::string_view text = "The 2 words, \xE2\x96\x81\xC3\xA9 \xFF\xF0\x9F <s>";
  if (end != std::string_view::npos) text = input.substr(end + kNextFile.size());
  for (const auto specials : {Tokenizer::Specials::kAsText, Tokenizer::Specials::kMatch}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, specials);
    for (const int32_t id : ids)
      require(id >= 0 && id < tokenizer.vocab_size(), "id {} of {}", id, tokenizer.vocab_size());
    tokenizer.decode(ids);
    tokenizer.decode_text(ids, true);
  }
  const size_t cut = tokenizer.safe_cut(text, text.size() / 2);
  require(cut <= text.size(), "a cut at {} of {}", cut, text.size());
}

// The header's checksum, which no fuzzer finds, put right.
std::string with_checksum(std::string_view input) {
  constexpr size_t kSummed = 56;
  std::string bytes(input);
  if (bytes.size() < kSummed + sizeof(uint64_t)) return bytes;
  const uint64_t checksum = fnv1a64(std::string_view(bytes).substr(0, kSummed));
  std::memcpy(bytes.data() + kSummed, &checksum, sizeof(checksum));
  return bytes;
}

void read_token_file(std::string_view input) {
  static const MemoryFile file;
  static ThreadPool pool(1);
  file.fill(with_checksum(input));
  const Dataset data = Dataset::open(
      {.paths = {file.path()}, .format = DataFormat::kTokens, .vocab_size = 300}, nullptr, pool);
  for (int64_t d = 0; d < data.documents(); ++d)
    require(data.document_of(data.document_start(d)) == d, "document {} starts elsewhere", d);
  std::vector<int32_t> tokens(static_cast<size_t>(data.tokens()));
  data.read(0, tokens);
  data.read_targets(0, tokens);
}

// Bytes that may be gzip's or zstd's: what they become, and the lines of it. Short lines, and no
// more of them than need a second of the reader's blocks (64 KiB): a few bytes become megabytes,
// which took nearly all the time.
void read_compressed(std::string_view input) {
  static const MemoryFile file;
  file.fill(input);
  ByteInput bytes(file.path());
  LineReader lines(bytes, size_t{1} << 15);
  constexpr int64_t kMost = int64_t{5} << 14;
  int64_t position = 0;
  while (lines.next()) {
    require(lines.position() == position, "a line at byte {}, not {}", lines.position(), position);
    touch(std::as_bytes(std::span(lines.line())));
    position += static_cast<int64_t>(lines.line().size() + lines.end().size());
    if (lines.end().empty() || position > kMost) break;  // a last "\r" is cut off
  }
}

// tokenizer.model.
void read_sentencepiece(std::string_view input) {
  const Tokenizer tokenizer = Tokenizer::parse(
      tokenizer_json_of_sentencepiece(input, "tokenizer.model"), "tokenizer.model");
  tokenizer.decode(tokenizer.encode("The 2 words \xC3\xA9 <s>", Tokenizer::Specials::kMatch));
}

// vocab.json, merges.txt, tokenizer_config.json and added_tokens.json.
void read_vocabulary(std::string_view input) {
  static const MemoryFolder folder(
      {"vocab.json", "merges.txt", "tokenizer_config.json", "added_tokens.json"});
  folder.fill(input);
  const Tokenizer tokenizer = load_tokenizer(folder.path());
  require(tokenizer.end_of_text() < tokenizer.vocab_size(), "end-of-text {}",
          tokenizer.end_of_text());
  tokenizer.decode(tokenizer.encode("The 2 words <|im_end|>", Tokenizer::Specials::kMatch));
}

// tekken.json, or a file of tiktoken's.
void read_ranks(std::string_view input) {
  const std::string json = input.starts_with('{')
                               ? tokenizer_json_of_tekken(input, "tekken.json")
                               : tokenizer_json_of_tiktoken(input, "qwen.tiktoken", "ranks");
  const Tokenizer tokenizer = Tokenizer::parse(json, "ranks");
  tokenizer.decode(tokenizer.encode("The 2 words \xC3\xA9 <s>", Tokenizer::Specials::kMatch));
}

// The first byte chooses what a document is; the rest is the file.
void read_documents(std::string_view input) {
  static const MemoryFile file;
  if (input.empty()) return;
  DataSource source{.paths = {file.path()}, .format = DataFormat::kJsonl};
  if (input[0] == 'l') source.text_documents = TextDocuments::kLine;
  if (input[0] == 'p') source.text_documents = TextDocuments::kBlankLine;
  if (input[0] == 'l' || input[0] == 'p') source.format = DataFormat::kText;
  if (input[0] == 'c') source.format = DataFormat::kChat;
  file.fill(input.substr(1));
  const auto bytes = static_cast<int64_t>(input.size() - 1);
  for_each_document(source, [&](const Document& document) {
    require(!document.text.empty(), "an empty document");
    require(document.position >= 0, "a document at byte {}", document.position);
    require(document.read_bytes == bytes, "{} bytes read of {}", document.read_bytes, bytes);
    touch(std::as_bytes(std::span(document.text)));
  });
}

constexpr std::array<Target, 16> kTargets = {{{"safetensors", read_safetensors},
                                              {"hf_folder", read_hf_folder},
                                              {"torch", read_torch},
                                              {"adapter", read_adapter},
                                              {"checkpoint", read_checkpoint},
                                              {"config", read_config},
                                              {"model_config", read_model_config},
                                              {"tokenizer", read_tokenizer},
                                              {"sentencepiece", read_sentencepiece},
                                              {"token_file", read_token_file},
                                              {"documents", read_documents},
                                              {"compressed", read_compressed},
                                              {"vocabulary", read_vocabulary},
                                              {"gguf", read_gguf},
                                              {"chat_template", read_chat_template},
                                              {"ranks", read_ranks}}};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target& target_named(std::string_view name) {
  for (const Target& target : kTargets)
    if (target.name == name) return target;
  throw std::invalid_argument("no fuzz target has this name");
}

void run(const Target& target, std::string_view input) {
  try {
    target.read(input);
  } catch (const UserError&) {
  }
}

}  // namespace onefold::fuzz
