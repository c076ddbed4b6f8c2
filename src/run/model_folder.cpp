#include "run/model_folder.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "data/gguf_tokenizer.h"
#include "data/hf_tokenizer.h"
#include "inspect/hf_export.h"
#include "inspect/saved_run.h"
#include "model/gguf_model.h"

namespace onefold {
namespace {

// A configuration of ours has the same name, and no such field.
bool is_hf_folder(const std::string& path) {
  if (!is_folder(path) || path_exists(path + "/" + kRunModel) ||
      !path_exists(path + "/config.json"))
    return false;
  const Json config = read_plain_json(path + "/config.json");
  return config.is_object() && config.contains("model_type");
}

// eos_token_id is a number or a list of them; what is neither says nothing.
void add_end_tokens(const Json& json, std::vector<int32_t>& ends) {
  if (!json.is_object() || !json.contains("eos_token_id")) return;
  const Json& value = json["eos_token_id"];
  for (const Json& one : value.is_array() ? value : Json::array({value}))
    if (one.is_number_integer() && one >= 0 && one <= INT32_MAX) ends.push_back(one.get<int32_t>());
}

// How the run was trained, of its config.json; that of a later version may not be readable.
void read_training(const std::string& path, ModelFolder& model) {
  if (!path_exists(path)) return;
  const Json config = read_plain_json(path);
  const Json data = config.is_object() ? config.value("data", Json()) : Json();
  if (!data.is_object()) return;
  const Json length = data.value("sequence_length", Json()), mode = data.value("documents", Json());
  if (length.is_number_integer() && length >= 1) model.sequence_length = length.get<int64_t>();
  if (mode.is_string())
    model.documents = parse_document_mode(mode.get<std::string>(), path + ": data.documents");
}

void open_run(const std::string& path, ModelFolder& model) {
  if (path_exists(path + "/" + kRunTokenizer))
    model.tokenizer = Tokenizer::load(path + "/" + kRunTokenizer);
  if (model.tokenizer) take_chat_template(path, *model.tokenizer);
  read_training(path + "/config.json", model);
}

void open_hf(const std::string& path, ModelFolder& model) {
  for (const char* name : {"generation_config.json", "config.json"})
    if (const std::string file = path + "/" + name; path_exists(file))
      add_end_tokens(read_plain_json(file), model.text_ends);
  const std::string tokenizer = tokenizer_in_folder(path);
  if (tokenizer.empty()) return;
  // Whichever token ends a text, the files above have said it.
  model.tokenizer = tokenizer.ends_with("/tokenizer.json") ? Tokenizer::load(tokenizer)
                                                           : load_tokenizer(tokenizer);
  take_chat_template(path, *model.tokenizer);
  model.text_begin = model.tokenizer->template_before();
}

void open_gguf(const std::string& path, ModelFolder& model) {
  const GgufFile file(path);
  add_end_tokens(hf_config_of_gguf(file), model.text_ends);
  if (!has_gguf_tokenizer(file)) return;
  model.tokenizer = load_gguf_tokenizer(file);
  model.text_begin = model.tokenizer->template_before();
}

}  // namespace

const Tokenizer& ModelFolder::require_tokenizer() const {
  if (!tokenizer && GgufFile::is_named(path))
    user_error("{} has no tokenizer: export the model from a folder that has one", path);
  if (!tokenizer)
    user_error(
        "{} has no tokenizer.json{}", path,
        is_hf_folder(path)
            ? ": copy the tokenizer's files into it"
            : ": the model was trained on a token file without data.tokenizer, or the checkpoint "
              "is not in its run's folder");
  return *tokenizer;
}

std::vector<int32_t> ModelFolder::prompt_tokens(const std::string& text,
                                                Tokenizer::Specials specials) const {
  const Tokenizer& words = require_tokenizer();
  std::vector<int32_t> tokens = text_begin;
  const std::vector<int32_t> encoded = words.encode(text, specials);
  tokens.insert(tokens.end(), encoded.begin(), encoded.end());
  if (tokens.empty() && words.end_of_text() >= 0) tokens.push_back(words.end_of_text());
  return tokens;
}

ModelFolder open_model_folder(const std::string& path) {
  ModelFolder model;
  model.path = path;
  if (GgufFile::is_named(path)) {
    model.source = open_model(path).source;
    open_gguf(path, model);
  } else if (is_hf_folder(path)) {
    model.source = open_model(path).source;
    open_hf(path, model);
  } else if (path_exists(path + "/" + kManifest)) {
    model.source = open_model(path).source;
    open_run(run_of_checkpoint(path), model);
  } else {
    model.source = SavedRun(path).weights(&model.passed_over);
    open_run(path, model);
  }
  std::vector<int32_t>& ends = model.text_ends;
  if (model.tokenizer && model.tokenizer->end_of_text() >= 0)
    ends.push_back(model.tokenizer->end_of_text());
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return model;
}

}  // namespace onefold
