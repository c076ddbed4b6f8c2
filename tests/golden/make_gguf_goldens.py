#!/usr/bin/env python3
"""GGUF files as the reference package writes them, for tests/inspect/gguf_test.cpp and tests/io/quantized_test.cpp.

  gguf/llama_{f32,f16,bf16}.gguf       the model of hf/llama under llama.cpp's names, rows of queries and keys exchanged
  gguf/blocks.gguf                     tensors of Q8_0 and Q4_K with random bytes, and as F32 the values that the package
                                       makes of them ("q8_0", "q8_0.values", ...)

    pip install gguf numpy safetensors
    python make_gguf_goldens.py

Made with gguf 0.19.
"""

import json
import pathlib

import gguf
import numpy as np
from safetensors.numpy import load_file

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "gguf"
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down"}


def renamed(name):
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        return f"{NAMES[name]}.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def exchanged(weight, heads):
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_llama(name, kind):
    config = json.loads((HERE / "hf/llama/config.json").read_text())
    writer = gguf.GGUFWriter(OUTPUT / name, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    for path in sorted((HERE / "hf/llama").glob("model-*.safetensors")):
        for key, weight in load_file(path).items():
            if "q_proj" in key or "k_proj" in key:
                weight = exchanged(weight, config["num_attention_heads" if "q_proj" in key else "num_key_value_heads"])
            own = kind if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
            data = gguf.quants.quantize(np.ascontiguousarray(weight, np.float32), own)
            writer.add_tensor(renamed(key), data, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_blocks():
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(OUTPUT / "blocks.gguf", "blocks")
    for kind, halves in ((gguf.GGMLQuantizationType.Q8_0, 1), (gguf.GGMLQuantizationType.Q4_K, 2)):
        elems, width = gguf.GGML_QUANT_SIZES[kind]
        data = random.integers(0, 256, (3, 2, width), dtype=np.uint8)
        scales = random.standard_normal((3, 2, halves)).astype(np.float16)  # the first bytes of a block
        scales[0, 0] = np.float16(6e-8)  # the smallest
        data[:, :, :2 * halves] = scales.view(np.uint8).reshape(3, 2, 2 * halves)
        data = data.reshape(3, 2 * width)
        name = kind.name.lower()
        writer.add_tensor(name, data, raw_dtype=kind)
        writer.add_tensor(f"{name}.values", gguf.quants.dequantize(data, kind).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    OUTPUT.mkdir(exist_ok=True)
    for kind in ("F32", "F16", "BF16"):
        write_llama(f"llama_{kind.lower()}.gguf", gguf.GGMLQuantizationType[kind])
    write_blocks()
