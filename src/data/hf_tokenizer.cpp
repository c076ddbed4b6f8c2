#include "data/hf_tokenizer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/byte_level.h"
#include "data/gguf_tokenizer.h"
#include "data/sentencepiece.h"
#include "data/tiktoken.h"

namespace onefold {
namespace {

constexpr const char* kTokenizerJson = "tokenizer.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kSpecialTokens = "special_tokens_map.json";
constexpr const char* kAddedTokens = "added_tokens.json";
constexpr const char* kVocab = "vocab.json";
constexpr const char* kMerges = "merges.txt";
constexpr const char* kSentencePiece = "tokenizer.model";
constexpr const char* kTekken = "tekken.json";
constexpr const char* kTiktoken = ".tiktoken";
constexpr const char* kChatTemplate = "chat_template.jinja";
constexpr const char* kChatTemplateJson = "chat_template.json";
constexpr const char* kToolsTemplate = "additional_chat_templates/tool_use.jinja";
constexpr const char* kMakeJson =
    "load it with AutoTokenizer of transformers and save_pretrained(), which writes tokenizer.json";

constexpr std::array<std::string_view, 10> kCompanions = {
    kTokenizerJson, kTokenizerConfig, kSpecialTokens, kAddedTokens,      kVocab,
    kMerges,        kSentencePiece,   kChatTemplate,  kChatTemplateJson, kHfGeneration};

std::string in(const std::string& folder, std::string_view name) {
  return fmt::format("{}/{}", folder, name);
}

// An object, empty if there is no such file.
Json object_in(const std::string& folder, std::string_view name) {
  const std::string path = in(folder, name);
  if (!path_exists(path)) return Json::object();
  Json object = read_plain_json(path);
  if (!object.is_object())
    user_error("{} holds {} where an object is needed", path, json_kind(object));
  return object;
}

// config.json beside a tokenizer may be anything: a model's names its model_type. What is wrong
// with it is told by whoever needs the model.
Json model_config_in(const std::string& folder) {
  try {
    Json config = object_in(folder, "config.json");
    if (config.contains("model_type") && config["model_type"].is_string()) return config;
  } catch (const UserError&) {
  }
  return object_in(folder, kHfConfigKept);
}

// "<s>", or {"content": "<s>", ...}; "" for null.
std::string token_text(const Json& value, const std::string& where) {
  if (value.is_null()) return "";
  const Json& text = value.is_object() && value.contains("content") ? value["content"] : value;
  if (!text.is_string()) user_error("{} is {}, not a token", where, brief_json(value));
  return text.get<std::string>();
}

std::string named_token(const Json& object, const char* key, const std::string& path) {
  return object.contains(key) ? token_text(object[key], path + ": " + key) : "";
}

// The id of a token by its text: added tokens are not always spelt as the bytes they stand for.
int32_t id_of(const Tokenizer& tokenizer, const std::string& text) {
  for (const AddedToken& token : tokenizer.added_tokens())
    if (token.text == text) return token.id;
  return tokenizer.token_id(text);
}

// eos_token_id: a number, or a list whose first one ends a text; -1 if there is none.
int64_t first_id(const Json& object, const std::string& path) {
  if (!object.contains("eos_token_id")) return -1;
  const Json& value = object["eos_token_id"];
  const Json& id = value.is_array() && !value.empty() ? value[0] : value;
  if (id.is_null()) return -1;
  if (!id.is_number_integer())
    user_error("{}: eos_token_id is {}, neither an id nor a list of them", path, brief_json(value));
  return id.get<int64_t>();
}

Tokenizer with_end_of_text(Tokenizer tokenizer, const std::string& folder) {
  for (const char* name : {kTokenizerConfig, kSpecialTokens}) {
    const std::string path = in(folder, name);
    const std::string text = named_token(object_in(folder, name), "eos_token", path);
    if (text.empty()) continue;
    const int32_t id = id_of(tokenizer, text);
    if (id < 0)
      user_error("{}: eos_token is \"{}\", and the tokenizer has no such token", path, text);
    tokenizer.set_end_of_text(id, name);
    return tokenizer;
  }
  const std::pair<const char*, Json> by_id[] = {{kHfGeneration, object_in(folder, kHfGeneration)},
                                                {"config.json", model_config_in(folder)}};
  for (const auto& [name, object] : by_id) {
    const int64_t id = first_id(object, in(folder, name));
    if (id < 0) continue;
    if (id >= tokenizer.vocab_size() || tokenizer.token_text(static_cast<int32_t>(id)).empty())
      user_error("{}: eos_token_id is {}, and the tokenizer has no such token", in(folder, name),
                 id);
    tokenizer.set_end_of_text(static_cast<int32_t>(id), name);
    return tokenizer;
  }
  return tokenizer;
}

// vocab.json, merges.txt and what the other files add, put together as a tokenizer.json.
class VocabularyFolder {
 public:
  explicit VocabularyFolder(const std::string& folder)
      : folder_(folder),
        config_(object_in(folder, kTokenizerConfig)),
        specials_(object_in(folder, kSpecialTokens)) {}

  Tokenizer load() {
    read_vocabulary();
    nlohmann::json root = parts_of_class();
    root["added_tokens"] = added_tokens();
    root["model"] = {{"type", "BPE"}, {"merges", merges()}, {"vocab", std::move(vocab_)}};
    return Tokenizer::parse(root.dump(), in(folder_, kVocab));
  }

 private:
  void read_vocabulary() {
    const std::string path = in(folder_, kVocab);
    try {
      vocab_ = nlohmann::json::parse(read_plain_file(path));
    } catch (const nlohmann::json::exception& error) {
      user_error("{} is not a vocabulary: {}", path, json_reason(error.what()));
    }
    if (!vocab_.is_object()) user_error("{} is not a vocabulary: it holds no JSON object", path);
  }

  // "a b" on each line, after one that names the version.
  nlohmann::json merges() const {
    const std::string path = in(folder_, kMerges), text = read_plain_file(path);
    nlohmann::json list = nlohmann::json::array();
    std::string_view rest = text;
    for (int64_t line = 1; !rest.empty(); ++line) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view merge = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (merge.ends_with('\r')) merge.remove_suffix(1);
      if (merge.empty() || (line == 1 && merge.starts_with("#version"))) continue;
      if (utf8_prefix(merge) != merge.size()) user_error("{}:{}: is not UTF-8", path, line);
      const size_t space = merge.find(' ');
      if (space == 0 || space + 1 >= merge.size() || merge.find(' ', space + 1) != merge.npos)
        user_error("{}:{}: a line must hold two tokens with one space between them", path, line);
      list.push_back(std::string(merge));
    }
    return list;
  }

  std::string tokenizer_class() const {
    if (config_.contains("tokenizer_class") && config_["tokenizer_class"].is_string())
      return config_["tokenizer_class"].get<std::string>();
    const Json model = model_config_in(folder_);
    const std::string type = model.value("model_type", Json("")).is_string()
                                 ? model.value("model_type", std::string())
                                 : std::string();
    if (type == "gpt2") return "GPT2Tokenizer";
    if (type == "qwen2" || type == "qwen3") return "Qwen2Tokenizer";
    user_error(
        "{} has {} and {} but nothing that says how words are cut: neither tokenizer_class in {} "
        "nor a model_type of gpt2, qwen2 or qwen3 in config.json; {}",
        folder_, kVocab, kMerges, kTokenizerConfig, kMakeJson);
  }

  nlohmann::json parts_of_class() const {
    const std::string name = tokenizer_class();
    const auto byte_level = [](bool prefix, bool regex) {
      return nlohmann::json{{"type", "ByteLevel"},
                            {"add_prefix_space", prefix},
                            {"trim_offsets", true},
                            {"use_regex", regex}};
    };
    const bool prefix = config_.contains("add_prefix_space") &&
                        config_["add_prefix_space"].is_boolean() &&
                        config_["add_prefix_space"].get<bool>();
    nlohmann::json root = {{"version", "1.0"}, {"decoder", byte_level(false, true)}};
    if (name == "GPT2Tokenizer" || name == "GPT2TokenizerFast") {
      root["pre_tokenizer"] = byte_level(prefix, true);
    } else if (name == "Qwen2Tokenizer" || name == "Qwen2TokenizerFast") {
      const nlohmann::json split = {{"type", "Split"},
                                    {"pattern", {{"Regex", std::string(kQwen2Pattern)}}},
                                    {"behavior", "Isolated"},
                                    {"invert", false}};
      root["normalizer"] = {{"type", "NFC"}};
      root["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers", nlohmann::json::array({split, byte_level(prefix, false)})}};
    } else {
      user_error(
          "{}: tokenizer_class is \"{}\"; of folders without tokenizer.json, those of "
          "GPT2Tokenizer "
          "and Qwen2Tokenizer are read. For this one, {}",
          in(folder_, kTokenizerConfig), name, kMakeJson);
    }
    return root;
  }

  // Tokens that are special because the files say so, in the order in which they do.
  std::vector<std::string> special_names() const {
    std::vector<std::string> names;
    const auto add = [&](const std::string& text) {
      if (!text.empty() && std::find(names.begin(), names.end(), text) == names.end())
        names.push_back(text);
    };
    const std::pair<const Json*, std::string> files[] = {{&config_, in(folder_, kTokenizerConfig)},
                                                         {&specials_, in(folder_, kSpecialTokens)}};
    for (const auto& [object, path] : files) {
      for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"})
        add(named_token(*object, key, path));
      if (!object->contains("additional_special_tokens")) continue;
      const Json& more = (*object)["additional_special_tokens"];
      if (!more.is_array()) continue;
      for (const Json& token : more) add(token_text(token, path + ": additional_special_tokens"));
    }
    // Both classes have this one unless the files say otherwise.
    if (vocab_.contains(kEndOfText)) add(std::string(kEndOfText));
    return names;
  }

  // Those with an id first, in order; then special tokens that no file has numbered.
  nlohmann::json added_tokens() const {
    const std::vector<std::string> specials = special_names();
    const auto is_special = [&](const std::string& text) {
      return std::find(specials.begin(), specials.end(), text) != specials.end();
    };
    std::map<int64_t, nlohmann::json> by_id;
    std::set<std::string> seen;
    int64_t next = static_cast<int64_t>(vocab_.size());
    const auto add = [&](int64_t id, nlohmann::json token) {
      if (!seen.insert(token["content"].get<std::string>()).second) return;
      token["id"] = id;
      if (!by_id.emplace(id, std::move(token)).second)
        user_error("{}: the files give the id {} to two added tokens", folder_, id);
      next = std::max(next, id + 1);
    };
    const auto plain = [&](const std::string& text) {
      return nlohmann::json{{"content", text}, {"special", is_special(text)}};
    };
    for_each_described([&](int64_t id, nlohmann::json token) { add(id, std::move(token)); });
    const Json more = object_in(folder_, kAddedTokens);
    for (const auto& [text, id] : more.items()) {
      if (!id.is_number_integer())
        user_error("{}: \"{}\" has {} for an id", in(folder_, kAddedTokens), text, brief_json(id));
      add(id.get<int64_t>(), plain(text));
    }
    for (const std::string& text : specials) {
      const auto known = vocab_.find(text);
      const bool numbered = known != vocab_.end() && known->is_number_integer();
      add(numbered ? known->get<int64_t>() : next, plain(text));
    }
    nlohmann::json list = nlohmann::json::array();
    for (auto& [id, token] : by_id) list.push_back(std::move(token));
    return list;
  }

  // added_tokens_decoder of tokenizer_config.json: {"151643": {"content": ...}, ...}
  void for_each_described(const std::function<void(int64_t, nlohmann::json)>& visit) const {
    if (!config_.contains("added_tokens_decoder")) return;
    const std::string where = in(folder_, kTokenizerConfig) + ": added_tokens_decoder";
    const Json& table = config_["added_tokens_decoder"];
    if (!table.is_object()) user_error("{} is not an object", where);
    for (const auto& [key, value] : table.items()) {
      int64_t id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || !value.is_object() ||
          !value.contains("content") || !value["content"].is_string())
        user_error("{}: \"{}\" is not an id with a token", where, key);
      nlohmann::json token = {{"content", value["content"].get<std::string>()}};
      for (const char* option : {"lstrip", "rstrip", "single_word", "normalized", "special"})
        if (value.contains(option) && value[option].is_boolean())
          token[option] = value[option].get<bool>();
      visit(id, std::move(token));
    }
  }

  const std::string folder_;
  const Json config_, specials_;
  nlohmann::json vocab_;
};

// Tokens that a folder adds to the model are not in the file, and would change ids if left out.
Tokenizer load_sentencepiece(const std::string& path, const std::string& folder) {
  const std::string content = read_plain_file(path);
  if (is_tiktoken(content))  // Llama 3's
    return Tokenizer::parse(tokenizer_json_of_tiktoken(content, kSentencePiece, path), path);
  Tokenizer tokenizer = Tokenizer::parse(tokenizer_json_of_sentencepiece(content, path), path);
  const Json added = object_in(folder, kAddedTokens);
  for (const auto& [text, id] : added.items())
    if (id_of(tokenizer, text) < 0)
      user_error("{} adds \"{}\" to the tokens of {}, which is not supported; {}",
                 in(folder, kAddedTokens), text, kSentencePiece, kMakeJson);
  return tokenizer;
}

std::string name_of(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// A tokenizer's own file, whatever its kind; a folder's is tokenizer_in_folder's.
Tokenizer load_file(const std::string& path, const std::string& folder) {
  if (path.ends_with(".model")) return load_sentencepiece(path, folder);
  if (path.ends_with(kTiktoken))
    return Tokenizer::parse(tokenizer_json_of_tiktoken(read_plain_file(path), name_of(path), path),
                            path);
  if (name_of(path) == kTekken)
    return Tokenizer::parse(tokenizer_json_of_tekken(read_plain_file(path), path), path);
  return Tokenizer::load(path);
}

// The only file of tiktoken's in a folder; "" if there is none, or several.
std::string tiktoken_in(const std::string& folder) {
  std::vector<std::string> found;
  for (const Files::Entry& entry : list_folder(folder))
    if (entry.name.ends_with(kTiktoken)) found.push_back(in(folder, entry.name));
  return found.size() == 1 ? found[0] : "";
}

// What the folder of the same tokenizer would hold.
std::map<std::string, std::string> gguf_companions(const GgufFile& file) {
  std::map<std::string, std::string> files;
  if (!has_gguf_tokenizer(file)) return files;
  const Tokenizer tokenizer = load_gguf_tokenizer(file);
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  config["clean_up_tokenization_spaces"] = false;  // it would change the text
  if (tokenizer.template_before().size() == 1)
    config["bos_token"] = tokenizer.token_text(tokenizer.template_before()[0]);
  if (tokenizer.end_of_text() >= 0)
    config["eos_token"] = tokenizer.token_text(tokenizer.end_of_text());
  if (const ChatTemplateText* chat = tokenizer.chat_template(); chat && chat->tools_text.empty())
    config["chat_template"] = chat->text;
  else if (chat)
    config["chat_template"] = {{{"name", kPlainChat}, {"template", chat->text}},
                               {{"name", kToolsChat}, {"template", chat->tools_text}}};
  files[kTokenizerJson] = tokenizer_json_of_gguf(file);
  files[kTokenizerConfig] = config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return files;
}

}  // namespace

std::string chat_template_of(const std::map<std::string, std::string>& files,
                             std::string_view kind) {
  const auto text = [&](const char* name) {
    const auto found = files.find(name);
    return found == files.end() ? std::string() : found->second;
  };
  const bool plain = kind == kPlainChat;
  if (files.contains(kChatTemplate)) return plain ? text(kChatTemplate) : "";
  for (const char* name : {kChatTemplateJson, kTokenizerConfig}) {
    if (!files.contains(name)) continue;
    const Json json = parse_json(text(name), name);
    const Json found = json.is_object() ? json.value("chat_template", Json()) : Json();
    if (found.is_string()) return plain ? found.get<std::string>() : "";
    for (const Json& one : found.is_array() ? found : Json::array())
      if (one.is_object() && one.value("name", Json()) == Json(kind) &&
          one.value("template", Json()).is_string())
        return one["template"].get<std::string>();
  }
  return "";
}

std::span<const std::string_view> hf_companion_names() { return kCompanions; }

static bool has_vocabulary(const std::string& folder) {
  return path_exists(in(folder, kVocab)) && path_exists(in(folder, kMerges));
}

std::string tokenizer_in_folder(const std::string& folder) {
  if (GgufFile::is_named(folder) && !is_folder(folder))
    return has_gguf_tokenizer(GgufFile(folder)) ? folder : "";
  if (path_exists(in(folder, kTokenizerJson))) return in(folder, kTokenizerJson);
  if (has_vocabulary(folder) || path_exists(in(folder, kSentencePiece))) return folder;
  if (path_exists(in(folder, kTekken))) return in(folder, kTekken);
  return is_folder(folder) ? tiktoken_in(folder) : "";
}

std::string folder_of_tokenizer(const std::string& path) {
  if (is_folder(path)) return path;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string describe_end_of_text(int32_t id, const Tokenizer* tokenizer) {
  if (id < 0) return "ended by no token";
  if (!tokenizer || id >= tokenizer->vocab_size()) return fmt::format("ended by token {}", id);
  const bool own = id == tokenizer->end_of_text() && !tokenizer->end_of_text_source().empty();
  return fmt::format("ended by {} ({}{})", tokenizer->token_text(id), id,
                     own ? ", by " + tokenizer->end_of_text_source() : "");
}

Tokenizer load_tokenizer(const std::string& path) {
  if (GgufFile::is_named(path) && !is_folder(path)) return load_gguf_tokenizer(GgufFile(path));
  const std::string folder = folder_of_tokenizer(path);
  const auto load = [&] {
    if (!is_folder(path)) return load_file(path, folder);
    const std::string found = tokenizer_in_folder(path);
    if (found.empty())
      user_error(
          "{} has no tokenizer: neither {} nor {} with {}, nor {}, {} or one file of {}. Name one "
          "in "
          "data.tokenizer; \"bytes\" is for models that were trained on bytes",
          path, kTokenizerJson, kVocab, kMerges, kSentencePiece, kTekken, kTiktoken);
    if (found != path) return load_file(found, folder);
    return has_vocabulary(path) ? VocabularyFolder(path).load()
                                : load_sentencepiece(in(path, kSentencePiece), path);
  };
  Tokenizer tokenizer = with_end_of_text(load(), folder);
  take_chat_template(folder, tokenizer);
  return tokenizer;
}

void take_chat_template(const std::string& folder, Tokenizer& tokenizer) {
  std::map<std::string, std::string> files;
  for (const char* name : {kChatTemplate, kChatTemplateJson, kTokenizerConfig})
    if (path_exists(in(folder, name))) files[name] = read_plain_file(in(folder, name));
  ChatTemplateText text{chat_template_of(files), in(folder, kTokenizerConfig), Json::object()};
  if (text.text.empty()) return;
  text.tools_text = chat_template_of(files, kToolsChat);
  if (files.contains(kChatTemplate)) text.source = in(folder, kChatTemplate);
  if (const std::string other = in(folder, kToolsTemplate); path_exists(other))
    text.tools_problem = fmt::format(
        "{} is for conversations with tools, and is not read; write it as \"{}\" of the list "
        "\"chat_template\" of {}, without {}",
        other, kToolsChat, kTokenizerConfig, kChatTemplate);
  for (const char* name : {kSpecialTokens, kTokenizerConfig}) {
    const Json object = object_in(folder, name);
    for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                            "cls_token", "mask_token"}) {
      const std::string token = named_token(object, key, in(folder, name));
      if (!token.empty()) text.variables[key] = token;
    }
  }
  tokenizer.set_chat_template(std::move(text));
}

std::map<std::string, std::string> tokenizer_companions(const std::string& path) {
  std::map<std::string, std::string> files;
  if (path.empty() || path == "bytes") return files;
  if (GgufFile::is_named(path) && !is_folder(path)) return gguf_companions(GgufFile(path));
  const std::string folder = folder_of_tokenizer(path);
  // A tokenizer.json under another name, or alone among other files, has no companions.
  const bool described = path_exists(in(folder, kTokenizerConfig)) || is_folder(path);
  for (const std::string_view name : kCompanions) {
    const std::string file = in(folder, name);
    const bool generic = name == kVocab || name == kMerges || name == kSentencePiece;
    if (name == kTokenizerJson || (generic && !described) || !is_plain_file(file)) continue;
    files[std::string(name)] = read_plain_file(file);
  }
  const std::string json = is_folder(path) ? tokenizer_in_folder(path) : path;
  if (is_plain_file(json) && json.ends_with(".json") && name_of(json) != kTekken)
    files[kTokenizerJson] = read_plain_file(json);
  return files;
}

}  // namespace onefold
