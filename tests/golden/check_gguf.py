#!/usr/bin/env python3
"""Files that Onefold exports for llama.cpp, run there and compared with transformers in double.

    cmake -B build -DLLAMA_BUILD_TOOLS=OFF ... && cmake --build build --target llama     (in llama.cpp)
    pip install torch transformers safetensors numpy
    python tests/golden/check_gguf.py LLAMA_CPP build/release/onefold [FAMILY...]

A small random model of each family is made by transformers, exported as each type, and run by llama.cpp. The same file is
exported back as a Hugging Face folder, which has the values that the type left; what transformers computes of those in
double is the reference. So the difference is llama.cpp's arithmetic alone, or a tensor that one of the two takes for
another. It multiplies by F16 and BF16 in that type and by the others with values of 8 bits: errors are given, of the largest
logit, and F32 (whose GELU is a table of f16) and F16 are held to 1e-3.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers

HERE = pathlib.Path(__file__).parent
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_K"]
BOUND = 1e-3
VOCABULARY, LENGTH, WINDOW = 61, 24, 9

COMMON = dict(vocab_size=VOCABULARY, bos_token_id=None, eos_token_id=None)
PLAIN = COMMON | dict(
    hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=64, pad_token_id=None)
WIDE = PLAIN | dict(head_dim=32)
BESIDE = COMMON | dict(hidden_size=256, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=64)
YARN = {"rope_type": "yarn", "rope_theta": 1e3, "factor": 4.0, "original_max_position_embeddings": 16}


def kinds(layers, period):
    return dict(num_hidden_layers=layers, sliding_window=WINDOW, layer_types=[
        "full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(layers)])


FAMILIES = {
    "gpt2": lambda: transformers.GPT2Config(**COMMON, n_embd=256, n_inner=512, n_layer=3, n_head=4, n_positions=64),
    "llama": lambda: transformers.LlamaConfig(**WIDE),
    "llama_biased": lambda: transformers.LlamaConfig(**PLAIN, attention_bias=True, mlp_bias=True),
    "llama3": lambda: transformers.LlamaConfig(**WIDE, tie_word_embeddings=True, rope_parameters={
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32}),
    "llama_linear": lambda: transformers.LlamaConfig(
        **WIDE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "llama_yarn": lambda: transformers.LlamaConfig(**WIDE, rope_parameters=YARN),
    "mistral": lambda: transformers.MistralConfig(**WIDE, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**PLAIN),
    "qwen2_yarn": lambda: transformers.Qwen2Config(**PLAIN, rope_parameters=YARN),
    "qwen3": lambda: transformers.Qwen3Config(**WIDE),
    "qwen3_yarn": lambda: transformers.Qwen3Config(**WIDE, rope_parameters=YARN),
    "phi3": lambda: transformers.Phi3Config(**PLAIN, sliding_window=None),
    # llama.cpp takes the second list of factors by the context that it is asked for, which it rounds up to 256.
    "phi4_mini": lambda: transformers.Phi3Config(
        **PLAIN | {"max_position_embeddings": 1024}, tie_word_embeddings=True, original_max_position_embeddings=256, rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
            "short_factor": [1.0 + 0.05 * i for i in range(24)], "long_factor": [1.3 + 0.2 * i for i in range(24)]}),
    "phi3_long": lambda: transformers.Phi3Config(
        **PLAIN, original_max_position_embeddings=16, rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4,
            "short_factor": [1.0 + 0.05 * i for i in range(32)], "long_factor": [1.3 + 0.2 * i for i in range(32)]}),
    "smollm3": lambda: transformers.SmolLM3Config(**PLAIN | {"num_hidden_layers": 5}, no_rope_layer_interval=4),
    "starcoder2": lambda: transformers.Starcoder2Config(**PLAIN, sliding_window=None),
    "gemma": lambda: transformers.GemmaConfig(**WIDE),
    "gemma2": lambda: transformers.Gemma2Config(
        **WIDE | kinds(4, 2), query_pre_attn_scalar=32, attn_logit_softcapping=5.0, final_logit_softcapping=3.0),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **WIDE | kinds(7, 6), query_pre_attn_scalar=32, rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "gemma3_linear": lambda: transformers.Gemma3TextConfig(
        **WIDE | kinds(7, 6), query_pre_attn_scalar=32, rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "olmo2": lambda: transformers.Olmo2Config(**PLAIN),
    "granite": lambda: transformers.GraniteConfig(
        **PLAIN, embedding_multiplier=3.0, attention_multiplier=0.15, residual_multiplier=0.22, logits_scaling=1.7),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**BESIDE, intermediate_size=512, rotary_pct=0.25),
    "gpt_neox_sequential": lambda: transformers.GPTNeoXConfig(
        **BESIDE, intermediate_size=512, rotary_pct=1.0, use_parallel_residual=False),
    "cohere": lambda: transformers.CohereConfig(**PLAIN, logit_scale=0.3),
    "cohere2": lambda: transformers.Cohere2Config(**PLAIN | kinds(5, 4), logit_scale=0.3),
    "falcon": lambda: transformers.FalconConfig(**BESIDE, ffn_hidden_size=1024),
    "falcon_new": lambda: transformers.FalconConfig(
        **BESIDE, ffn_hidden_size=1024, new_decoder_architecture=True, num_kv_heads=2),
    "bloom": lambda: transformers.BloomConfig(**COMMON, seq_length=64, hidden_size=256, n_layer=3, n_head=4),
    "mpt": lambda: transformers.MptConfig(vocab_size=VOCABULARY, max_seq_len=64, d_model=256, n_layers=3, n_heads=4),
}


def randomize(model, generator):
    """Signals keep their size from layer to layer; biases and norms are random too."""
    one = 0 if model.config.model_type.startswith("gemma") else 1  # which it adds itself
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.data.copy_(noise / parameter.shape[-1] ** 0.5)
        else:
            parameter.data.copy_(one + 0.2 * noise if name.endswith("weight") else 0.1 * noise)


def reference(folder, tokens):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
    problems = [value for value in report.values() if value]
    assert not problems, problems
    with torch.no_grad():
        return model.eval()(torch.tensor([tokens])).logits[0].numpy()


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no reason given"])[-1])


def build(llama, folder):
    program = folder / "llama_logits"
    libraries = llama / "build" / "bin"
    run("g++", "-std=c++17", "-O1", HERE / "llama_logits.cpp", f"-I{llama}/include", f"-I{llama}/ggml/include", "-o",
        program, f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}")
    return program


def compare(source, kind, tokens, tools, folder):
    """The largest logit, and the largest error of one."""
    onefold, program = tools
    file, back = folder / "model.gguf", folder / "back"
    shutil.rmtree(back, ignore_errors=True)
    run(onefold, "export", source, file, "--format", "gguf", "--type", kind, "--overwrite")
    run(onefold, "export", file, back)
    run(program, file, folder / "logits", *tokens)
    wanted = reference(back, tokens)
    got = numpy.fromfile(folder / "logits", numpy.float32).reshape(wanted.shape)
    size = numpy.abs(wanted).max()
    if kind == "F32" and numpy.abs(wanted - reference(source, tokens)).max() > 1e-6 * size:
        raise RuntimeError("the file does not hold the model")
    return size, numpy.abs(got - wanted).max()


def check(name, seed, tools, folder):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (LENGTH,), generator=generator).tolist()
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[name]())
    randomize(model, generator)
    model.save_pretrained(folder / name)
    try:
        results = [compare(folder / name, kind, tokens, tools, folder) for kind in TYPES]
    except RuntimeError as why:
        print(f"{name:20} FAILED: {why}", flush=True)
        return False
    errors = [error / size for size, error in results]
    good = max(errors[:2]) <= BOUND
    row = " ".join(f"{error:8.1e}" for error in errors)
    print(f"{name:20} {results[0][0]:6.2f} {row}  {'ok' if good else 'FAILED'}", flush=True)
    return good


def main():
    torch.set_num_threads(1)
    llama, onefold, wanted = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        program = build(llama, folder)
        print(f"{'':20} {'logit':>6} {' '.join(f'{kind:>8}' for kind in TYPES)}")
        results = [check(name, seed, (onefold, program), folder)
                   for seed, name in enumerate(FAMILIES) if not wanted or name in wanted]
    print(f"{sum(results)} of {len(results)} agree to {BOUND} (transformers {transformers.__version__})")
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main()
