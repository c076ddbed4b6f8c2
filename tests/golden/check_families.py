#!/usr/bin/env python3
"""Every family on three odd shapes: what transformers computes in double, for Onefold to compare with,
and what Onefold exports, for transformers to load.

    pip install torch transformers safetensors
    python tests/golden/check_families.py make shapes [CASE...]
    ONEFOLD_HF_GOLDENS=shapes build/release/tests/inspect_tests --gtest_filter='*HfTraining*'
    python tests/golden/check_families.py export shapes build/release/onefold

`make` writes folders like those of make_hf_goldens.py, too many to keep: FAMILY_SHAPE in shapes/hf, with
tokens, loss, logits, ten steps of AdamW and 64 greedy tokens, and its gradients in shapes/hf_gradients.
`export` lets Onefold read and write each of them, and fails unless transformers finds every tensor
and no other, and computes the same logits from them.
"""

import pathlib
import shutil
import subprocess
import sys
import types

import torch
import transformers
from safetensors.torch import load_file

import make_hf_goldens as goldens

# Sizes of a model and of its batches. Heads share keys, all of them one, or not at all; `heads * head` is
# the width where a family has no other (`own_width` is that of those that have).
SHAPES = {
    "a": dict(vocab=53, own_width=30, inner=19, layers=3, heads=6, kv=2, head=4, batch=2, length=13, window=5),
    "b": dict(vocab=101, own_width=35, inner=50, layers=4, heads=5, kv=1, head=6, batch=1, length=31, window=7),
    "c": dict(vocab=31, own_width=33, inner=11, layers=1, heads=3, kv=3, head=10, batch=5, length=7, window=2),
}
POSITIONS = 96
# Of weights. With 0.25, as in the goldens, signals grow from layer to layer: then gradients of four layers are ill-conditioned, and what
# transformers compute in fp32 even in a model of doubles (rotary angles, softmax) moves them by 1e-5.
STD = 0.15


def common(s):
    return dict(vocab_size=s.vocab, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def plain(s):
    """Families whose heads make up the width."""
    return common(s) | dict(
        hidden_size=s.heads * s.head, intermediate_size=s.inner, num_hidden_layers=s.layers, num_attention_heads=s.heads,
        num_key_value_heads=s.kv, max_position_embeddings=POSITIONS, attention_dropout=0.0)


def wide(s):
    return plain(s) | dict(hidden_size=s.own_width, head_dim=s.head)


def kinds(s, period):
    """Every so many layers one has no window."""
    return dict(sliding_window=s.window, layer_types=[
        "full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(s.layers)])


def beside(s):
    return common(s) | dict(
        hidden_size=s.heads * s.head, num_hidden_layers=s.layers, num_attention_heads=s.heads,
        max_position_embeddings=POSITIONS)


def falcon(s, **more):
    return transformers.FalconConfig(**beside(s) | dict(ffn_hidden_size=s.inner) | more)


def stretched(kind, s, **more):
    return dict(rope_type=kind, rope_theta=200.0, **more)


FAMILIES = {
    "gpt2": lambda s: transformers.GPT2Config(
        **common(s), n_embd=s.heads * s.head, n_inner=s.inner, n_layer=s.layers, n_head=s.heads, n_positions=POSITIONS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "llama": lambda s: transformers.LlamaConfig(**wide(s), rope_theta=500.0),
    "llama3": lambda s: transformers.LlamaConfig(
        **wide(s), tie_word_embeddings=True, rope_parameters=stretched(
            "llama3", s, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)),
    "llama_yarn": lambda s: transformers.LlamaConfig(
        **wide(s), rope_parameters=stretched("yarn", s, factor=4.0, original_max_position_embeddings=24)),
    "mistral": lambda s: transformers.MistralConfig(**wide(s), sliding_window=s.window),
    "ministral": lambda s: transformers.MinistralConfig(**wide(s) | kinds(s, 2)),
    "qwen2": lambda s: transformers.Qwen2Config(**plain(s), rope_theta=1e6, tie_word_embeddings=True),
    "qwen2_window": lambda s: transformers.Qwen2Config(
        **plain(s), use_sliding_window=True, sliding_window=s.window, max_window_layers=0),
    "qwen3": lambda s: transformers.Qwen3Config(**wide(s), rope_theta=1e6),
    "phi3": lambda s: transformers.Phi3Config(**plain(s), sliding_window=s.window),
    "phi4_mini": lambda s: transformers.Phi3Config(
        **plain(s) | {"hidden_size": 8 * s.heads}, tie_word_embeddings=True, original_max_position_embeddings=24,
        rope_parameters=stretched("longrope", s, partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.7],
                                  long_factor=[1.3, 2.9, 5.1])),
    "smollm3": lambda s: transformers.SmolLM3Config(**plain(s), no_rope_layer_interval=2, tie_word_embeddings=True),
    "starcoder2": lambda s: transformers.Starcoder2Config(
        **plain(s), rope_theta=1e5, sliding_window=s.window, residual_dropout=0.0, embedding_dropout=0.0),
    "gemma": lambda s: transformers.GemmaConfig(**wide(s)),
    "gemma2": lambda s: transformers.Gemma2Config(
        **wide(s) | kinds(s, 2), query_pre_attn_scalar=5, attn_logit_softcapping=3.0, final_logit_softcapping=2.0),
    "gemma3": lambda s: transformers.Gemma3TextConfig(
        **wide(s) | kinds(s, 3), query_pre_attn_scalar=7, rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}),
    "olmo2": lambda s: transformers.Olmo2Config(**plain(s)),
    "granite": lambda s: transformers.GraniteConfig(
        **plain(s), embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.22, logits_scaling=1.7,
        tie_word_embeddings=True),
    "gpt_neox": lambda s: transformers.GPTNeoXConfig(
        **beside(s), intermediate_size=s.inner, rotary_pct=(s.head // 4 * 2 + 0.1) / s.head),
    "gpt_neox_sequential": lambda s: transformers.GPTNeoXConfig(
        **beside(s), intermediate_size=s.inner, rotary_pct=1.0, use_parallel_residual=False),
    "gptj": lambda s: transformers.GPTJConfig(
        **{key: value for key, value in common(s).items() if key != "pad_token_id"}, n_positions=POSITIONS,
        n_embd=s.heads * s.head, n_inner=s.inner, n_layer=s.layers, n_head=s.heads, rotary_dim=4),
    "opt": lambda s: transformers.OPTConfig(**beside(s), ffn_dim=s.inner, dropout=0.0),
    "cohere": lambda s: transformers.CohereConfig(**plain(s), logit_scale=0.3),
    "cohere2": lambda s: transformers.Cohere2Config(**plain(s) | kinds(s, 4), logit_scale=0.3),
    "falcon": lambda s: falcon(s),
    "falcon_new": lambda s: falcon(s, new_decoder_architecture=True, num_kv_heads=s.kv, bias=True),
    # Of 4 heads, so that bf16 holds its slopes, which transformers keep in that.
    "falcon_alibi": lambda s: falcon(
        types.SimpleNamespace(**vars(s) | {"heads": 4}), alibi=True, parallel_attn=False, multi_query=False, bias=True),
    "bloom": lambda s: transformers.BloomConfig(
        **common(s), seq_length=POSITIONS, hidden_size=s.heads * s.head, n_layer=s.layers, n_head=s.heads),
    "mpt": lambda s: transformers.MptConfig(
        vocab_size=s.vocab, max_seq_len=POSITIONS, d_model=s.heads * s.head, n_layers=s.layers, n_heads=s.heads),
}
CASES = {f"{family}_{shape}": (make, types.SimpleNamespace(**sizes))
         for family, make in FAMILIES.items() for shape, sizes in SHAPES.items()}


def make(folder, wanted):
    goldens.OUTPUT, goldens.GRADIENTS = folder / "hf", folder / "hf_gradients"
    for seed, (name, (config, sizes)) in enumerate(CASES.items()):
        if wanted and name not in wanted:
            continue
        loss = goldens.write_case(name, config(sizes), 1000 + seed, trained=True, std=STD,
                                  sizes=(sizes.vocab, sizes.batch, sizes.length))
        print(f"{name:24} loss {loss:.6f}", flush=True)


def check_export(folder, exported):
    expected = load_file(folder / "expected.safetensors")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        exported, dtype=torch.float64, attn_implementation=goldens.attention_of(folder.name), output_loading_info=True)
    problems = [f"{key}: {value}" for key, value in report.items() if value]
    with torch.no_grad():
        logits = model.eval()(expected["tokens"].long()).logits
    error = (logits - expected["logits"].double()).abs().max().item()
    if error > 1e-6 * logits.abs().max().item():  # those of the folder are rounded to fp32
        problems.append(f"logits are off by {error:.1e}")
    print(f"{folder.name:24} {type(model).__name__:22} {error:.1e}  {'; '.join(problems) or 'ok'}", flush=True)
    return not problems


def export(folder, program):
    good = total = 0
    for case in sorted((folder / "hf").iterdir()):
        exported = folder / "exported" / case.name
        shutil.rmtree(exported, ignore_errors=True)
        done = subprocess.run([program, "export", case, exported], capture_output=True, text=True)
        total += 1
        if done.returncode != 0:
            print(f"{case.name:24} {done.stderr.strip()}")
        else:
            good += check_export(case, exported)
    print(f"{good} of {total} load with every tensor and give the same logits (transformers {transformers.__version__})")
    return good == total


def main():
    torch.set_num_threads(1)
    if len(sys.argv) < 3 or sys.argv[1] not in ("make", "export"):
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[2])
    if sys.argv[1] == "make":
        make(folder, sys.argv[3:])
    else:
        sys.exit(0 if export(folder, sys.argv[3]) else 1)


if __name__ == "__main__":
    main()
