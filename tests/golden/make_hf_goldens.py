#!/usr/bin/env python3
"""Tiny Hugging Face models and what transformers computes with them, for tests/inspect/hf_test.cpp
and hf_training_test.cpp.

Each case is a folder hf/<case> as save_pretrained writes it, and in it expected.safetensors:
  tokens   I32 [B, T]     inputs
  targets  I32 [B, T]     the next tokens; -1 is ignored, and the loss is the mean over the others
  logits   F32 [B, T, V]  computed in float64 from the stored weights, rounded once
  loss     F32 [1]        the same

Of the cases in TRAINED there are also, all computed in float64:
  batches    I32 [S, B, T + 1]  tokens of S steps of AdamW; targets are the next ones
  losses     F32 [S]            before each step
  generated  I32 [P + G]        a prompt of P tokens and the G that follow greedily
and hf_gradients/<case>, a folder like the model's own whose weights are the gradients of `loss`.

Weights are random in every element, biases and norms too: a tensor that is taken for another, cut
in the wrong place or not transposed changes the loss. Sizes are odd, and heads are shared.

    pip install torch transformers safetensors
    python make_hf_goldens.py [CASE...]

Made with transformers 5.22 and PyTorch 2.15 (those with experts: 5.23). The bytes of config.json depend on the version.
"""

import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

OUTPUT = pathlib.Path(__file__).parent / "hf"
GRADIENTS = OUTPUT.parent / "hf_gradients"
VOCABULARY, BATCH, LENGTH = 53, 2, 13

LLAMA = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=37, num_hidden_layers=2,
             num_attention_heads=6, num_key_value_heads=2, head_dim=6, max_position_embeddings=29,
             attention_dropout=0.0, bos_token_id=None, eos_token_id=None)
EXPERTS = LLAMA | {"hidden_size": 20, "intermediate_size": 13, "num_attention_heads": 4}
GPT2 = dict(vocab_size=VOCABULARY, n_head=3, bos_token_id=None, eos_token_id=None)
LLAMA3_ROPE = {"rope_type": "llama3", "rope_theta": 700.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 16}

# Of TRAINED: smaller, and with room for what is generated. Windows are shorter than sequences.
STEPS, PROMPT, GENERATED = 10, 7, 64
OTHER = dict(vocab_size=VOCABULARY, max_position_embeddings=96, bos_token_id=None,
             eos_token_id=None, pad_token_id=None)
SMALL = OTHER | dict(hidden_size=16, intermediate_size=19, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.0)
NEOX = OTHER | dict(hidden_size=18, intermediate_size=23, num_hidden_layers=2, num_attention_heads=3)
FALCON = OTHER | dict(hidden_size=24, ffn_hidden_size=29, num_hidden_layers=2, num_attention_heads=6)


def layers(pattern):
    """s: a layer with a window, f: one without."""
    kinds = {"s": "sliding_attention", "f": "full_attention"}
    return dict(num_hidden_layers=len(pattern), layer_types=[kinds[kind] for kind in pattern])


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
    "mixtral": (transformers.MixtralConfig(
        **EXPERTS, num_local_experts=5, num_experts_per_tok=2, rope_theta=1e4), torch.float32, "20KB"),
    "qwen2_moe": (transformers.Qwen2MoeConfig(
        **{key: value for key, value in EXPERTS.items() if key != "head_dim"} | {"hidden_size": 24, "num_hidden_layers": 3}, num_experts=4, num_experts_per_tok=3,
        moe_intermediate_size=7, shared_expert_intermediate_size=11, mlp_only_layers=[1]), torch.bfloat16, "1GB"),
    "qwen3_moe": (transformers.Qwen3MoeConfig(
        **EXPERTS | {"num_hidden_layers": 4}, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=7,
        decoder_sparse_step=2, norm_topk_prob=True), torch.float32, "1GB"),
}
TRAINED = {
    "mistral_window": (transformers.MistralConfig(
        **SMALL, head_dim=6, sliding_window=5), torch.float32, "1GB"),
    "ministral": (transformers.MinistralConfig(
        **SMALL | layers("sfsf"), head_dim=4, sliding_window=3), torch.bfloat16, "1GB"),
    "olmo2": (transformers.Olmo2Config(**SMALL), torch.float32, "1GB"),
    "gemma": (transformers.GemmaConfig(**SMALL, head_dim=6), torch.float32, "1GB"),
    "gemma2": (transformers.Gemma2Config(
        **SMALL | layers("sfs"), head_dim=6, query_pre_attn_scalar=5, sliding_window=4,
        attn_logit_softcapping=3.0, final_logit_softcapping=2.0), torch.float32, "1GB"),
    "gemma3": (transformers.Gemma3TextConfig(
        **SMALL | layers("ssfs"), head_dim=6, query_pre_attn_scalar=7, sliding_window=4,
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 900.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}),
        torch.float32, "1GB"),
    "granite": (transformers.GraniteConfig(
        **SMALL, embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.22,
        logits_scaling=1.7), torch.float32, "1GB"),
    "gpt_neox": (transformers.GPTNeoXConfig(**NEOX, rotary_pct=0.67), torch.float32, "1GB"),
    "gpt_neox_sequential": (transformers.GPTNeoXConfig(
        **NEOX, rotary_pct=0.34, use_parallel_residual=False), torch.float16, "1GB"),
    "gptj": (transformers.GPTJConfig(
        vocab_size=VOCABULARY, n_positions=96, n_embd=18, n_inner=23, n_layer=2, n_head=3,
        rotary_dim=4, bos_token_id=None, eos_token_id=None), torch.float32, "1GB"),
    "opt": (transformers.OPTConfig(
        **OTHER, hidden_size=15, ffn_dim=23, num_hidden_layers=2, num_attention_heads=3,
        dropout=0.0), torch.float32, "1GB"),
    "cohere": (transformers.CohereConfig(**SMALL, logit_scale=0.3), torch.float32, "1GB"),
    "cohere2": (transformers.Cohere2Config(
        **SMALL | layers("ssfs"), sliding_window=4, logit_scale=0.3), torch.float32, "1GB"),
    "falcon": (transformers.FalconConfig(**FALCON), torch.float32, "1GB"),
    "falcon_new": (transformers.FalconConfig(
        **FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True), torch.float32, "1GB"),
    "llama_yarn": (transformers.LlamaConfig(
        **SMALL, head_dim=10, rope_parameters={
            "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
            "original_max_position_embeddings": 24}), torch.float32, "1GB"),
    # Batches are shorter than the original context, and what is generated crosses it.
    "phi3_long": (transformers.Phi3Config(
        **SMALL | {"num_attention_heads": 2, "hidden_size": 20}, original_max_position_embeddings=24,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.6,
            "short_factor": [1.0, 1.1, 1.7], "long_factor": [1.3, 2.9, 5.1]}), torch.float32, "1GB"),
    # Longer ones.
    "llama_longrope": (transformers.LlamaConfig(
        **SMALL, head_dim=6, rope_parameters={
            "rope_type": "longrope", "rope_theta": 100.0, "factor": 6.0, "short_factor": [1.0, 1.2, 1.3],
            "long_factor": [1.5, 2.5, 4.5], "original_max_position_embeddings": 9}), torch.float32, "1GB"),
    "bloom": (transformers.BloomConfig(
        vocab_size=VOCABULARY, seq_length=96, hidden_size=18, n_layer=2, n_head=6, bos_token_id=None,
        eos_token_id=None, pad_token_id=None), torch.float32, "1GB"),
    "mpt": (transformers.MptConfig(
        vocab_size=VOCABULARY, max_seq_len=96, d_model=15, n_layers=2, n_heads=3,
        attn_config={"softmax_scale": 0.3}), torch.float32, "1GB"),
    # Of 4 heads, so that bf16 holds its slopes, which transformers keep in that.
    "falcon_alibi": (transformers.FalconConfig(
        **FALCON | {"num_attention_heads": 4}, alibi=True, parallel_attn=False, multi_query=False,
        bias=True), torch.float32, "1GB"),
    # Of families that have larger cases above, which are not trained.
    "gpt2_trained": (transformers.GPT2Config(
        **GPT2, n_embd=15, n_inner=23, n_layer=2, n_positions=96, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0), torch.float32, "1GB"),
    "llama_trained": (transformers.LlamaConfig(**SMALL, head_dim=6), torch.float32, "1GB"),
    "qwen2_trained": (transformers.Qwen2Config(**SMALL, tie_word_embeddings=True), torch.float32, "1GB"),
    "qwen3_trained": (transformers.Qwen3Config(**SMALL, head_dim=6), torch.float32, "1GB"),
    "phi3_trained": (transformers.Phi3Config(**SMALL, sliding_window=5), torch.float32, "1GB"),
    "smollm3_trained": (transformers.SmolLM3Config(
        **SMALL | {"num_hidden_layers": 3}, no_rope_layer_interval=2), torch.float32, "1GB"),
    "starcoder2_trained": (transformers.Starcoder2Config(**SMALL, sliding_window=5), torch.float32, "1GB"),
}
CASES |= TRAINED


def randomize(model, generator, std):
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        norm = parameter.dim() == 1 and name.endswith("weight")
        one = 0 if model.config.model_type.startswith("gemma") else 1  # which it adds itself
        parameter.data.copy_(one + 0.2 * noise if norm else std * noise)


def expected(folder, tokens, targets):
    """From the files, as a stranger would load them; only the type is widened."""
    model = opened(folder)
    with torch.no_grad():
        logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    return logits, loss


def loss_of(model, tokens, targets):
    logits = model(tokens).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def generated(model, prompt):
    """Without a cache."""
    tokens = prompt.tolist()
    with torch.no_grad():
        for _ in range(GENERATED):
            tokens.append(model(torch.tensor([tokens])).logits[0, -1].argmax().item())
    return torch.tensor(tokens)


def attention_of(name):
    # Falcon's other implementation adds its bias twice.
    return "sdpa" if name.startswith("falcon_alibi") else "eager"


def opened(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation=attention_of(folder.name),
        experts_implementation="eager").eval()


def write_gradients(folder, name, tokens, targets):
    model = opened(folder)
    loss_of(model, tokens, targets).backward()
    for parameter in model.parameters():
        parameter.data = parameter.grad
    shutil.rmtree(GRADIENTS / name, ignore_errors=True)
    model.float().save_pretrained(GRADIENTS / name)
    (GRADIENTS / name / "generation_config.json").unlink()


def steps_of(model, batches):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch[:, :-1], batch[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def training(folder, name, tokens, targets, generator, vocabulary):
    """Writes the gradients; what else there is of a case in TRAINED."""
    model = opened(folder)
    batch, length = tokens.shape
    prompt = torch.randint(vocabulary, (PROMPT,), generator=generator)
    batches = torch.randint(vocabulary, (STEPS, batch, length + 1), generator=generator)
    tokens_out = generated(model, prompt)
    write_gradients(folder, name, tokens, targets)
    return {"batches": batches.int(), "losses": steps_of(model, batches).float(),
            "generated": tokens_out.int()}


def write_case(name, config, seed, dtype=torch.float32, shard="1GB", trained=False,
               std=0.25, sizes=(VOCABULARY, BATCH, LENGTH)):
    """Writes hf/<name>, and hf_gradients/<name> of one in TRAINED."""
    vocabulary, batch, length = sizes
    folder = OUTPUT / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomize(model, generator, std)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    draw = torch.randint(vocabulary, (batch, length + 1), generator=generator)
    tokens, targets = draw[:, :-1].contiguous(), draw[:, 1:].clone()
    targets[-1, 3:6] = -1
    logits, loss = expected(folder, tokens, targets)
    tensors = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.float(),
               "loss": loss.float().reshape(1)}
    if trained:
        tensors |= training(folder, name, tokens, targets, generator, vocabulary)
    save_file(tensors, folder / "expected.safetensors")
    return loss


def main():
    torch.set_num_threads(1)
    for seed, (name, (config, dtype, shard)) in enumerate(CASES.items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        loss = write_case(name, config, seed, dtype, shard, name in TRAINED)
        folder = OUTPUT / name
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{name:14} loss {loss:.6f}  {size} bytes in {len(list(folder.iterdir()))} files")


if __name__ == "__main__":
    main()
