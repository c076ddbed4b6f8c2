#!/usr/bin/env python3
"""Writes the seeds of the fuzzers' corpus: small files that readers accept, and some that once broke one.

    python3 tests/fuzz/make_corpus.py

Standard library only. What a fuzzer finds is added by hand, named after what it broke.
"""
import base64
import gzip
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"
NEXT_FILE = b"\n%%%%\n"


def put(target, name, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def safetensors(tensors, metadata=None):
    widths = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1}
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape) in tensors.items():
        size = widths[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes(i % 60 for i in range(size))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def token_file(documents, vocabulary, end_of_text, width):
    tokens = [t for document in documents for t in document]
    starts, at = [], 0
    for document in documents:
        starts.append(at)
        at += len(document)
    body = struct.pack(f"<{len(tokens)}{'H' if width == 2 else 'I'}", *tokens)
    body += bytes(-len(body) % 8)
    header = b"ONEFTOK\0" + struct.pack("<IIQQQqQ", 1, width, vocabulary, len(tokens), len(documents), end_of_text, 0)
    return header + bytes(8) + body + struct.pack(f"<{len(starts)}Q", *starts)  # the target puts the checksum right


def sentencepiece(pieces, kind, fallback=True, charsmap=b""):
    """A model of SentencePiece: (text, score, type) of each piece."""
    def field(number, content):
        if isinstance(content, int):
            return bytes([number << 3 & 127 | (128 if number > 15 else 0)] + ([number >> 4] if number > 15 else [])) + bytes([content])
        return bytes([number << 3 | 2, len(content)]) + content
    data = b""
    for text, score, type_ in pieces:
        data += field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + field(3, type_))
    data += field(2, field(3, kind) + field(35, int(fallback)))
    return data + field(3, field(1, b"x") + (field(2, charsmap) if charsmap else b"") + field(3, 1) + field(4, 0))


def seeds_of_sentencepiece():
    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("\u2581", -1, 1), ("a", -2, 1), ("b", -3, 1), ("ab", -4, 1),
              ("\u2581ab", -5, 1), ("é", -6, 4)]
    put("sentencepiece", "bpe", sentencepiece(pieces, 2, False))
    put("sentencepiece", "unigram", sentencepiece(pieces, 1, False))
    put("sentencepiece", "map", sentencepiece(pieces, 1, False, struct.pack("<IIII", 8, 1 << 10, 0, 0)))
    put("sentencepiece", "words", sentencepiece(pieces, 3))


def seeds_of_tensors():
    one = safetensors({"a": ("F32", [2, 3]), "b": ("BF16", [4]), "c": ("I64", [])}, {"format": "pt"})
    put("safetensors", "small", one)
    put("safetensors", "empty_tensors", safetensors({"a": ("F16", [0, 5]), "b": ("U8", [3]), "c": ("F32", [0])}))
    put("safetensors", "none", safetensors({}))
    put("safetensors", "long_header", struct.pack("<Q", 1 << 62) + b"{}")
    put("safetensors", "wide_shape", struct.pack("<Q", 78) +
        b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}    ')
    a, b = safetensors({"x": ("F32", [2])}), safetensors({"y": ("F16", [3]), "z": ("BF16", [1])})
    index = {"metadata": {"total_size": 16}, "weight_map": {"x": "a.safetensors", "y": "b.safetensors",
                                                            "z": "b.safetensors"}}
    put("hf_folder", "two_shards", NEXT_FILE.join([json.dumps(index).encode(), a, b]))
    put("hf_folder", "one_shard", NEXT_FILE.join([b'{"weight_map": {"x": "a.safetensors"}}', a]))
    put("hf_folder", "outside", NEXT_FILE.join([b'{"weight_map": {"x": "../a.safetensors"}}', a]))


def seeds_of_adapters():
    module = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    weights = NEXT_FILE + safetensors({module + "A.weight": ("F32", [2, 4]), module + "B.weight": ("BF16", [4, 2])})
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "lora_dropout": 0.1, "base_model_name_or_path": "base"}
    put("adapter", "plain", json.dumps(config).encode() + weights)
    put("adapter", "scaled", json.dumps(config | {"use_rslora": True, "bias": "none", "target_modules": ["q_proj"]}).encode() + weights)
    put("adapter", "dora", json.dumps(config | {"use_dora": True, "rank_pattern": {"q_proj": 1}}).encode() + weights)


def seeds_of_checkpoints():
    ranks = [safetensors({"parameters/w": ("F32", [3]), "moment/w": ("F32", [3])}),
             safetensors({"parameters/w": ("F32", [1]), "moment/w": ("F32", [1])})]
    manifest = {"format": "onefold-checkpoint", "version": 1, "step": 7, "run": {"onefold": "0.1.0"},
                "files": [{"name": f"rank-0000{i}.safetensors", "bytes": len(file), "xxh3": "0" * 16}
                          for i, file in enumerate(ranks)],
                "tensors": {"w": {"shape": [2, 2], "states": ["parameters", "moment"],
                                  "pieces": [[0, 0, 3], [1, 3, 1]]}}}
    put("checkpoint", "version_1", NEXT_FILE.join([json.dumps(manifest).encode(), *ranks]))
    flat = manifest

    def state(name, elements, dtype="F32", **more):
        return {"name": name, "dtype": dtype, "elements": elements, "block": 1} | more

    manifest = flat | {"version": 2, "tensors": {"w": {
        "shape": [2, 2], "states": [state("parameters", 4), state("moment", 4)],
        "pieces": [[0, 0, 0, 0, 1, 2], [0, 2, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1]]}}}
    put("checkpoint", "two_ranks", NEXT_FILE.join([json.dumps(manifest).encode(), *ranks]))
    # Split by columns, in other types, with a state in blocks and a vector.
    ranks = [safetensors({"parameters/w": ("BF16", [6]), "moment/w": ("U8", [6]), "scale/w": ("F32", [3]),
                          "parameters/b": ("F16", [2])}),
             safetensors({"parameters/w": ("BF16", [3]), "moment/w": ("U8", [3]), "parameters/b": ("F16", [1])})]
    manifest = manifest | {
        "files": [entry | {"bytes": len(file)} for entry, file in zip(manifest["files"], ranks)],
        "tensors": {
            "w": {"shape": [3, 3],
                  "states": [state("parameters", 9, "BF16"), state("moment", 9, "U8"),
                             state("scale", 3, block=4, pieces=[[0, 0, 0, 0, 1, 3]])],
                  "pieces": [[0, 0, 0, 0, 3, 1], [1, 0, 0, 1, 3, 1], [0, 3, 0, 2, 3, 1]]},
            "b": {"shape": [3], "states": [state("parameters", 3, "F16")],
                  "pieces": [[1, 0, 0, 2, 1, 1], [0, 0, 0, 0, 1, 2]]}}}
    put("checkpoint", "columns", NEXT_FILE.join([json.dumps(manifest).encode(), *ranks]))
    # A state that is cut by itself: what two ranks keep back of their columns.
    ranks = [safetensors({"parameters/w": ("F32", [2]), "residual.0/w": ("F32", [2])}),
             safetensors({"parameters/w": ("F32", [2]), "residual.0/w": ("F32", [2])})]
    manifest = manifest | {
        "files": [entry | {"bytes": len(file)} for entry, file in zip(manifest["files"], ranks)],
        "tensors": {"w": {"shape": [2, 2],
                          "states": [state("parameters", 4),
                                     state("residual.0", 4, pieces=[[0, 0, 0, 0, 2, 1], [1, 0, 0, 1, 2, 1]])],
                          "pieces": [[0, 0, 0, 0, 1, 2], [1, 0, 1, 0, 1, 2]]}}}
    put("checkpoint", "own_pieces", NEXT_FILE.join([json.dumps(manifest).encode(), *ranks]))
    manifest = flat
    manifest["tensors"]["w"] = {"shape": [0.5], "states": ["parameters"], "pieces": []}  # divided by zero
    put("checkpoint", "half_a_row", json.dumps(manifest))
    manifest["tensors"]["w"] = {"shape": [1], "states": ["parameters"], "pieces": [[1 << 32, 0, 1]]}  # was taken for file 0
    put("checkpoint", "file_beyond_int", json.dumps(manifest))
    put("checkpoint", "nothing", json.dumps(manifest | {"files": [], "tensors": {}}))


def seeds_of_configurations():
    put("config", "preset", json.dumps({
        "model": "gpt2-tiny", "train_batch_size": 8, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 100}},
        "gradient_clipping": 1.0, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8},
        "data": {"train": ["a.jsonl"], "field": "body", "sequence_length": 64, "documents": "separated"},
        "run": {"output": "runs/a", "steps": 100, "eval_every": 10, "memory": "1GiB", "save_every": 5}}))
    put("config", "fields", json.dumps({
        "model": {"vocab_size": 300, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2,
                  "norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "tie_embeddings": False},
        "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
        "data": {"train": "a.tokens", "validation": "b.tokens"}, "run": {"epochs": 1.5, "seed": 3, "freeze": ["embedding"]}}))
    put("config", "not_known", '{"model": "gpt2-tiny", "optimiser": {} /* with a comment */}')
    put("config", "deep", '{"model": ' + "[" * 5000 + "]" * 5000 + "}")  # copied by recursion
    golden = pathlib.Path(__file__).parent.parent / "golden" / "hf"
    for family in ("gpt2", "llama3", "qwen3", "gemma2", "gemma3", "granite", "cohere2", "gpt_neox", "gptj", "opt",
                   "falcon_new", "llama_yarn"):
        put("model_config", family, json.dumps(json.loads((golden / family / "config.json").read_text())))


def seeds_of_tokenizers():
    characters = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "c", "\u2581a", "ab", "abc"]
    added = [{"id": i, "content": characters[i], "single_word": False, "lstrip": i == 1, "rstrip": False,
              "normalized": False, "special": True} for i in range(3)]
    model = {"type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": False,
             "vocab": {c: i for i, c in enumerate(characters)}, "merges": ["\u2581 a", "a b", ["ab", "c"]]}
    sentencepiece = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"}, {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": None,
        "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": model}
    put("tokenizer", "sentencepiece", json.dumps(sentencepiece).encode() + NEXT_FILE + b"abc a cab <s> \xff x")
    split = sentencepiece | {
        "normalizer": None, "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True},
            {"type": "Split", "pattern": {"Regex": "\\s+|[ab]+"}, "behavior": "MergedWithPrevious", "invert": False},
            {"type": "Digits", "individual_digits": True}]}}
    put("tokenizer", "stages", json.dumps(split).encode() + NEXT_FILE + b"ab 12 abc\n\nb")
    grows = sentencepiece | {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"}] * 20}}  # 8^20 bytes for one
    put("tokenizer", "grows", json.dumps(grows).encode() + NEXT_FILE + b"a")

    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    alphabet = [chr(b) for b in shown] + [chr(256 + i) for i in range(len(hidden))]
    vocab = {c: i for i, c in enumerate(alphabet + ["Th", "The"])}
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": {"content": "<|im_end|>"},
              "added_tokens_decoder": {"258": {"content": "<|im_end|>", "special": True}}}
    for name, files in {
            "qwen": [vocab, "#version: 0.2\nT h\nTh e\n", config, {}],
            "gpt2": [vocab, "T h\r\n", {"tokenizer_class": "GPT2Tokenizer"}, {"<tool>": 258}],
            "no_class": [vocab, "T h\n", {}, {}]}.items():
        parts = [f if isinstance(f, str) else json.dumps(f) for f in files]
        put("vocabulary", name, NEXT_FILE.join(p.encode() for p in parts))


# A conversation with a call of a tool, and what it returned.
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "messages": [
    {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1.5}}}]},
    {"role": "tool", "content": {"b": [12345678901234567890123]}}]}


def seeds_of_data():
    put("token_file", "narrow", token_file([[5, 6, 7, 0], [8, 0], [9, 9, 0]], 10, 0, 2))
    put("token_file", "wide", token_file([[70000, 1]], 70001, -1, 4))
    put("token_file", "outside", token_file([[11, 0]], 10, 0, 2))
    masked = bytearray(token_file([[5, 6, 7, 0], [8, 0]], 10, 0, 2) + bytes([0b101100]) + bytes(7))
    masked[8] = 2
    put("token_file", "masked", bytes(masked))
    for name, magic, code in (("llmc_gpt2", 20240520, "H"), ("llmc_llama3", 20240801, "I")):
        put("token_file", name, struct.pack("<256i", magic, 1, 4, *[0] * 253) + struct.pack(f"<4{code}", 7, 8, 299, 0))
    chat = {"messages": [{"role": "user", "content": "a"},
                         {"role": "assistant", "content": [{"type": "text", "text": "b"}], "weight": 0}]}
    share_gpt = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    put("documents", "tools", "c" + json.dumps(TOOLS) + "\n")
    put("documents", "chat", "c" + json.dumps(chat) + "\n" + json.dumps(share_gpt) + "\n")
    put("documents", "gzip", b"l" + gzip.compress(b"one\ntwo\n", mtime=0))
    put("compressed", "gzip", gzip.compress(b"one\r\n\ntwo" * 50, mtime=0))
    put("compressed", "members", gzip.compress(b"one", mtime=0) + gzip.compress(b"\ntwo\n", mtime=0) + bytes(5))
    put("compressed", "plain", b"one\r\ntwo\r")
    # printf 'one\\ntwo\\n' | zstd
    put("compressed", "zstd", bytes.fromhex("28b52ffd0458410000") + b"one\ntwo\n" + bytes.fromhex("e6a60e40"))
    put("documents", "jsonl", 'j{"text": "one"}\n{"id": 3, "text": "two\\n\\u00e9"}\r\n\n{"text": ""}\n')
    put("documents", "lines", "lfirst\r\nsecond\n\nthird")
    put("documents", "paragraphs", "pone\ntwo\n \t\nthree\n\n\nfour\n")


def gguf(values, tensors, version=3):
    """(type, content) of each value, as GGUF numbers types; (type, shape, bytes) of each tensor."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()
    def one(kind, value):
        if kind == 8:
            return text(value)
        if isinstance(kind, list):
            return struct.pack("<IQ", kind[0], len(value)) + b"".join(one(kind[0], entry) for entry in value)
        return struct.pack("<" + {4: "I", 5: "i", 6: "f", 7: "?"}[kind], value)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    for key, (kind, value) in values.items():
        head += text(key) + struct.pack("<I", 9 if isinstance(kind, list) else kind) + one(kind, value)
    data = b""
    for name, (kind, shape, content) in tensors.items():
        data += bytes(-len(data) % 32)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(data))
        data += content
    return head + bytes(-len(head) % 32) + data


def seeds_of_gguf():
    sizes = {"general.architecture": (8, "llama")}
    for key, value in {"context_length": 16, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32,
                       "attention.head_count": 2, "attention.head_count_kv": 1}.items():
        sizes[f"llama.{key}"] = (4, value)
    sizes["llama.attention.layer_norm_rms_epsilon"] = (6, 1e-5)
    table = {"token_embd.weight": (8, [3, 32], bytes(range(102))), "rope_freqs.weight": (0, [8], struct.pack("<8f", *[1] * 8)),
             "wide": (12, [1, 256], bytes(range(144)))}
    put("gguf", "llama", gguf(sizes, table))
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + ["a", "b", "ab", "\u2581"]
    put("gguf", "sentencepiece", gguf({**sizes, "tokenizer.ggml.model": (8, "llama"), "tokenizer.ggml.tokens": ([8], pieces),
        "tokenizer.ggml.scores": ([6], [-float(i) for i in range(len(pieces))]), "tokenizer.ggml.bos_token_id": (4, 1),
        "tokenizer.ggml.token_type": ([5], [2, 3, 3] + [6] * 256 + [1] * 4), "tokenizer.ggml.eos_token_id": (4, 2),
        "tokenizer.ggml.add_bos_token": (7, True), "tokenizer.chat_template": (8, "{{ messages }}")}, {}))
    letters = [chr(byte) if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174 else None for byte in range(256)]
    spare = iter(range(256, 400))
    letters = [letter or chr(next(spare)) for letter in letters]
    put("gguf", "byte_level", gguf({**sizes, "tokenizer.ggml.model": (8, "gpt2"), "tokenizer.ggml.pre": (8, "qwen2"),
        "tokenizer.ggml.tokens": ([8], letters + ["ab", "<|end|>"]), "tokenizer.ggml.merges": ([8], ["a b"]),
        "tokenizer.ggml.token_type": ([5], [1] * 257 + [3])}, {}, 2))


def seeds_of_ranks():
    tokens = [bytes([byte]) for byte in range(256)] + [b"ab", b" a", b"abc", "\u00e9".encode()]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    put("ranks", "tiktoken", "\n".join(lines) + "\n")
    put("ranks", "gap", "\n".join(lines[:256]) + "\nYWI= 300\r\n")
    put("ranks", "twice", "IQ== 0\nIQ== 0\n")
    put("ranks", "tekken", json.dumps({"config": {"pattern": "\\\\p{L}+|\\\\s+".replace("\\\\", "\\"), "default_vocab_size": 262,
        "default_num_special_tokens": 4}, "special_tokens": [{"rank": 1, "token_str": "<s>", "is_control": True}],
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for rank, token in enumerate(tokens)]}))


def seeds_of_templates():
    names = NEXT_FILE.decode() + json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b\u00e9"}],
                                             "add_generation_prompt": True, "bos_token": "<s>", "tools": None})
    put("chat_template", "chatml", "{% for m in messages %}{{ '<|' + m.role + '|>\\n' ~ m['content'] | trim }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}" + names)
    put("chat_template", "loops", "{%- set ns = namespace(n=0) -%}\n{%- for m in messages[::-1] if m.role in ['user'] -%}\n{% set ns.n = ns.n + loop.index %}"
        "{{ loop.last }}{% else %}none{% endfor %}{{ ns.n // 2 ** 3 - -1 }}{% generation %}x{% endgeneration %}" + names)
    put("chat_template", "filters", "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') | upper }}"
        "{{ messages | tojson(indent=2) }}{{ 'a b'.split(' ')[-1].startswith('b') }}{{ missing | default('d', true) }}{{ [3, 1] | sort }}" + names)
    put("chat_template", "tools", "{% for t in tools %}{{ t | tojson(indent=1, separators=(';', '=')) }}{% endfor %}{% for m in messages %}{% for c in m.tool_calls %}"
        "{% for k, v in c.function.arguments | items %}{{ k }}{{ v | tojson(true, sort_keys=true) }}{% endfor %}{% endfor %}{% endfor %}" + NEXT_FILE.decode() + json.dumps(TOOLS))
    put("chat_template", "macros", "{% macro m(a, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{% call m(1) %}x{% endcall %}{% filter trim %} y {% endfilter %}"
        "{% set t %}c{% endset %}{{ t if t is defined and t is not none else 1.5e3 }}{# c #}{% raw %}{{ }}{% endraw %}" + names)
    put("chat_template", "refused", "{{ raise_exception('no') }}" + names)


if __name__ == "__main__":
    seeds_of_gguf()
    seeds_of_ranks()
    seeds_of_templates()
    seeds_of_sentencepiece()
    seeds_of_tensors()
    seeds_of_adapters()
    seeds_of_checkpoints()
    seeds_of_configurations()
    seeds_of_tokenizers()
    seeds_of_data()
