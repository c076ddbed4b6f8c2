#!/usr/bin/env python3
"""Tokenizers as models come with them: ids of Onefold and of the library that each file is made for, and their speed.

    pip install tokenizers tiktoken sentencepiece
    python tests/golden/check_tokenizers.py build/release/onefold N FILE...
    python tests/golden/check_tokenizers.py build/release/onefold TEXT FILE...

FILE is a tokenizer.json (compared with `tokenizers`), a tekken.json or *.tiktoken (with `tiktoken`), or a model of SentencePiece's (with
`sentencepiece`). N documents are those of make_tokenizer_goldens.py --torture; prints how many have other ids.
With a TEXT instead, prints MB/s of processor time on one thread, the best of three in turn: the library gets the text's lines, Onefold all of it, where it keeps
the words that come again.
"""

import base64
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

import numpy
import sentencepiece
import tiktoken
import tokenizers

from make_tokenizer_goldens import torture_texts

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def of_tekken(file):
    config = file["config"]
    special = config["default_num_special_tokens"]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in file["vocab"][:config["default_vocab_size"] - special]}
    encoding = tiktoken.Encoding("tekken", pat_str=config["pattern"], mergeable_ranks=ranks, special_tokens={})
    return lambda text: [special + id for id in encoding.encode_ordinary(text)]


def of_tiktoken(path):
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in path.read_bytes().splitlines() if line)}
    encoding = tiktoken.Encoding(path.stem, pat_str=QWEN if path.stem == "qwen" else GPT2, mergeable_ranks=ranks, special_tokens={})
    if path.stem == "qwen":
        compose = tokenizers.normalizers.NFC()  # as its tokenizer.json has it; Python's knows newer characters
        return lambda text: encoding.encode_ordinary(compose.normalize_str(text))
    return encoding.encode_ordinary


def of_sentencepiece(path):
    return sentencepiece.SentencePieceProcessor(model_file=str(path)).encode


def of_json(file):
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(file))
    tokenizer.encode_special_tokens = True  # as Onefold's, unless asked
    tokenizer.no_truncation()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def reference(path):
    if path.suffix == ".tiktoken":
        return of_tiktoken(path)
    if path.suffix != ".json":
        return of_sentencepiece(path)
    file = json.loads(path.read_text(encoding="utf-8"))
    return of_tekken(file) if "config" in file and "vocab" in file else of_json(file)


def ours(onefold, tokenizer, texts, folder):
    """Ids of each document, from the token file."""
    documents, output = folder / "texts.jsonl", folder / "texts.tokens"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    subprocess.run([onefold, "tokenize", "encode", documents, "--tokenizer", tokenizer, "--output", output, "--overwrite"],
                   check=True, stdout=subprocess.DEVNULL)
    data = output.read_bytes()
    width, _, tokens, count, end = struct.unpack_from("<IQQQq", data, 12)
    ids = numpy.frombuffer(data, numpy.uint16 if width == 2 else numpy.uint32, tokens, 64)
    starts = numpy.frombuffer(data, numpy.uint64, count, 64 + -(-tokens * width // 8) * 8).astype(int).tolist() + [tokens]
    return [ids[a:b - (end >= 0)].tolist() for a, b in zip(starts, starts[1:])]


def named(path, folder):
    """A model's name may have more behind it (tokenizer.model.v3)."""
    if path.suffix in (".json", ".tiktoken") and not path.name.startswith("tekken"):
        return path
    link = folder / ("tekken.json" if path.suffix == ".json" else "tokenizer.model")
    link.unlink(missing_ok=True)
    link.symlink_to(path.resolve())
    return link


def check(onefold, path, texts, folder):
    encode = reference(path)
    wanted = [encode(text) for text in texts]
    try:
        got = ours(onefold, named(path, folder), texts, folder)
    except subprocess.CalledProcessError:
        print(f"{path.name:44} refused", flush=True)
        return False
    assert len(got) == len(wanted)
    wrong = [i for i, (a, b) in enumerate(zip(wanted, got)) if a != b]
    print(f"{path.name:44} {len(wrong):6} of {len(texts)} differ", flush=True)
    for i in wrong[:2]:
        first = next((j for j, (a, b) in enumerate(zip(wanted[i], got[i])) if a != b), min(len(wanted[i]), len(got[i])))
        print(f"    {texts[i][:60]!r}: {wanted[i][max(0, first - 2):first + 5]} is {got[i][max(0, first - 2):first + 5]}")
    return not wrong


def speed(onefold, path, text, folder):
    encode, content = reference(path), text.read_text(encoding="utf-8")
    lines, size = content.splitlines(keepends=True), len(content.encode()) / 1e6
    best = [0.0, 0.0]
    for _ in range(3):
        command = [onefold, "bench", "tokenizer", text, "--tokenizer", named(path, folder), "--rounds", "1", "--json"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        begin = time.process_time()
        for line in lines:
            encode(line)
        rates = json.loads(done.stdout)["encode_mb_per_s"], size / (time.process_time() - begin)
        best = [max(pair) for pair in zip(best, rates)]
    print(f"{path.name:44} {best[0]:6.1f} MB/s, the library {best[1]:5.2f}, ratio {best[0] / best[1]:.1f}", flush=True)
    return True


def main():
    onefold, what, paths = sys.argv[1], sys.argv[2], [pathlib.Path(name) for name in sys.argv[3:]]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if what.isdigit():
            texts = [text for text in torture_texts(int(what)) if text]
            results = [check(onefold, path, texts, folder) for path in paths]
        else:
            results = [speed(onefold, path, pathlib.Path(what), folder) for path in paths]
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main()
