// A model to be used and not trained: a run's folder, a checkpoint's, a Hugging Face folder or a
// GGUF file, with its tokenizer, the tokens that begin and end its texts, and how it was trained,
// where that is known.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/sequences.h"
#include "data/tokenizer.h"
#include "inspect/parameter_source.h"

namespace onefold {

struct ModelFolder {
  std::string path;
  std::shared_ptr<const ParameterSource> source;
  std::optional<Tokenizer> tokenizer;
  // What comes before every text: of a Hugging Face folder, what its tokenizer's template adds
  // (Llama's <s>), as transformers does. Runs are trained without.
  std::vector<int32_t> text_begin;
  // Where a text ends: eos_token_id of generation_config.json and config.json, one or a list, and
  // the tokenizer's end of text. Sorted.
  std::vector<int32_t> text_ends;
  // As the run was trained; 0 and packed where that is not known.
  int64_t sequence_length = 0;
  DocumentMode documents = DocumentMode::kPacked;
  std::vector<std::string> passed_over;  // newer checkpoints of a run, and why

  const ModelSpec& spec() const { return source->model(); }
  // The tokenizer; UserError that says where one is expected if there is none.
  const Tokenizer& require_tokenizer() const;
  // A text as the model is given it. One that is empty begins a document: after the end of another.
  std::vector<int32_t> prompt_tokens(
      const std::string& text, Tokenizer::Specials specials = Tokenizer::Specials::kAsText) const;
};

// UserError that names what is missing if `path` is none of these.
ModelFolder open_model_folder(const std::string& path);

}  // namespace onefold
