// Logits that llama.cpp computes of a file: check_gguf.py builds and runs it, beside the project.
//
//   llama_logits MODEL.gguf LOGITS TOKEN...
//
// writes the logits of every token as f32, one row after the other. The cache is F32, so that what
// differs is the arithmetic with the weights of the file.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  std::vector<llama_token> tokens;
  for (int i = 3; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
  const auto count = static_cast<int>(tokens.size());

  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_WARN) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* const model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) return 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = static_cast<uint32_t>(count);
  params.n_threads = params.n_threads_batch = 1;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* const context = llama_init_from_model(model, params);
  if (!context) return 1;

  llama_batch batch = llama_batch_init(count, 0, 1);
  for (int i = 0; i < count; ++i) {
    batch.token[i] = tokens[static_cast<size_t>(i)];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  batch.n_tokens = count;
  if (llama_decode(context, batch) != 0) return 1;
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  std::FILE* const file = std::fopen(argv[2], "wb");
  if (!file) return 1;
  for (int i = 0; i < count; ++i)
    std::fwrite(llama_get_logits_ith(context, i), sizeof(float), static_cast<size_t>(vocabulary),
                file);
  return std::fclose(file) == 0 ? 0 : 1;
}
