#!/usr/bin/env python3
"""Vocabularies of tiktoken's kind and the ids that tiktoken gives, for tests/data/tiktoken_test.cpp.

  tiktoken/qwen.tiktoken    ranks learnt from this folder's texts and random merges of them
  tiktoken/tokenizer.model  the same, as Llama 3 names it
  tiktoken/tekken.json      the same as Mistral writes it, with a pattern of its own
  tiktoken/cases.json       texts, and their ids for each file

    pip install tiktoken
    python make_tiktoken_goldens.py

Made with tiktoken 0.14.
"""

import base64
import json
import pathlib
import random
import unicodedata

import tiktoken

HERE = pathlib.Path(__file__).parent
OUTPUT = HERE / "tiktoken"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = 20


def ranks_of(lines, size):
    """Bytes in an odd order, frequent neighbours, then neighbours of any kind."""
    random_bytes = list(range(256))
    random.Random(1).shuffle(random_bytes)
    ranks = {bytes([byte]): rank for rank, byte in enumerate(random_bytes)}
    choose = random.Random(2)
    words = [word.encode() for line in lines for word in line.replace(" ", "\n ").split("\n") if word]
    words = [word for word in words if not word.startswith(b"<")]  # which special tokens do
    while len(ranks) < size:
        word = choose.choice(words)
        begin = choose.randrange(len(word))
        piece = word[begin:begin + choose.choice((2, 2, 2, 3, 3, 4, 5, 8))]
        if len(piece) > 1 and any(piece[:i] in ranks and piece[i:] in ranks for i in range(1, len(piece))):
            ranks.setdefault(piece, len(ranks))
    return ranks


def normalized(name, text):
    return unicodedata.normalize("NFC", text) if name.startswith("qwen") else text


def main():
    OUTPUT.mkdir(exist_ok=True)
    lines = (HERE / "tokenizer_torture.txt").read_text().split("\n")
    ranks = ranks_of(lines, 1500)
    text = "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    for name in ("qwen.tiktoken", "tokenizer.model"):
        (OUTPUT / name).write_text(text)
    tekken = {"config": {"pattern": TEKKEN, "num_vocab_tokens": len(ranks), "default_vocab_size": len(ranks) + SPECIALS - 7,
                         "default_num_special_tokens": SPECIALS, "version": "v3"},
              "vocab": [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
                        for token, rank in ranks.items()]}
    (OUTPUT / "tekken.json").write_text(json.dumps(tekken))
    kept = {token: rank for token, rank in ranks.items() if rank < len(ranks) - 7}
    encodings = {"qwen.tiktoken": (QWEN, ranks, 0), "tokenizer.model": (LLAMA3, ranks, 0), "tekken.json": (TEKKEN, kept, SPECIALS)}
    texts = lines + ["don't WE'LL 2024 12345", "a\n\n b  \r\n\tc", "  ", "x" * 200]
    cases = {"texts": texts, "ids": {}}
    for name, (pattern, own, first) in encodings.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=own, special_tokens={})
        cases["ids"][name] = [[first + token for token in encoding.encode_ordinary(normalized(name, text))]
                              for text in texts]
    (OUTPUT / "cases.json").write_text(json.dumps(cases, ensure_ascii=False))


if __name__ == "__main__":
    main()
