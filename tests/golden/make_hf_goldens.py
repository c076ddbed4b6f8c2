#!/usr/bin/env python3
"""Tiny Hugging Face models and what transformers computes with them, for tests/inspect/hf_test.cpp.

Each case is a folder hf/<case> as save_pretrained writes it, and in it expected.safetensors:
  tokens   I32 [B, T]     inputs
  targets  I32 [B, T]     the next tokens; -1 is ignored, and the loss is the mean over the others
  logits   F32 [B, T, V]  computed in float64 from the stored weights, rounded once
  loss     F32 [1]        the same

Weights are random in every element, biases and norms too: a tensor that is taken for another, cut
in the wrong place or not transposed changes the loss. Sizes are odd, and heads are shared.

    pip install torch transformers safetensors
    python make_hf_goldens.py [CASE...]

Made with transformers 5.22 and PyTorch 2.15. The bytes of config.json depend on the version.
"""

import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

OUTPUT = pathlib.Path(__file__).parent / "hf"
VOCABULARY, BATCH, LENGTH = 53, 2, 13

LLAMA = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=37, num_hidden_layers=2,
             num_attention_heads=6, num_key_value_heads=2, head_dim=6, max_position_embeddings=29,
             attention_dropout=0.0, bos_token_id=None, eos_token_id=None)
GPT2 = dict(vocab_size=VOCABULARY, n_head=3, bos_token_id=None, eos_token_id=None)
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 700.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 16}

# name: (configuration, type of the weights, largest shard)
CASES = {
    "gpt2": (transformers.GPT2Config(
        **GPT2, n_embd=15, n_inner=37, n_layer=3, n_positions=29, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0), torch.float32, "1GB"),
    "gpt2_untied": (transformers.GPT2Config(
        **GPT2, n_embd=21, n_layer=1, n_positions=17,
        activation_function="relu", tie_word_embeddings=False), torch.bfloat16, "1GB"),
    "llama": (transformers.LlamaConfig(
        **LLAMA, rope_theta=500.0, rms_norm_eps=1e-5), torch.float32, "20KB"),
    "llama_biased": (transformers.LlamaConfig(
        **LLAMA, attention_bias=True, mlp_bias=True, tie_word_embeddings=True), torch.float16,
        "1GB"),
    "llama3": (transformers.LlamaConfig(
        **LLAMA, rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True), torch.bfloat16, "8KB"),
    "mistral": (transformers.MistralConfig(**LLAMA, sliding_window=None), torch.float16, "1GB"),
    "qwen2": (transformers.Qwen2Config(
        **LLAMA, rope_theta=1e6, tie_word_embeddings=True), torch.float32, "1GB"),
    "qwen3": (transformers.Qwen3Config(**LLAMA | {"hidden_size": 22}, rope_theta=1e6), torch.bfloat16, "1GB"),
    "phi3": (transformers.Phi3Config(
        **{key: value for key, value in LLAMA.items() if key != "head_dim"}, pad_token_id=None, sliding_window=13), torch.float32, "1GB"),
    "smollm3": (transformers.SmolLM3Config(
        **LLAMA | {"num_hidden_layers": 5}, no_rope_layer_interval=2, pad_token_id=None), torch.bfloat16, "1GB"),
    "starcoder2": (transformers.Starcoder2Config(
        **{key: value for key, value in LLAMA.items() if key != "head_dim"}, rope_theta=1e5, sliding_window=13), torch.float32, "1GB"),
}


def randomize(model, generator):
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data.copy_(1 + 0.2 * noise if norm else 0.25 * noise)


def expected(folder, tokens, targets):
    """From the files, as a stranger would load them; only the type is widened."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    return logits, loss


def main():
    torch.set_num_threads(1)
    for seed, (name, (config, dtype, shard)) in enumerate(CASES.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        folder = OUTPUT / name
        shutil.rmtree(folder, ignore_errors=True)
        generator = torch.Generator().manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        randomize(model, generator)
        model.to(dtype).save_pretrained(folder, max_shard_size=shard)
        draw = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        tokens, targets = draw[:, :-1].contiguous(), draw[:, 1:].clone()
        targets[1, 3:6] = -1
        logits, loss = expected(folder, tokens, targets)
        save_file({"tokens": tokens.int(), "targets": targets.int(), "logits": logits.float(),
                   "loss": loss.float().reshape(1)}, folder / "expected.safetensors")
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{name:14} loss {loss:.6f}  {size} bytes in {len(list(folder.iterdir()))} files")


if __name__ == "__main__":
    main()
