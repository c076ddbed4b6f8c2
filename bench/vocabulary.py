#!/usr/bin/env python3
"""Learning a vocabulary, beside Hugging Face's `tokenizers` (pip install tokenizers).

Texts of several kinds are made of random words by Zipf's law: English-like words between spaces; Chinese and Thai, whose clauses
have no spaces; code; and a mixture. Both learn byte-level BPE of the same size from the same lines, in turn. Prints seconds and the
ratio for each kind.

  python3 bench/vocabulary.py --onefold build/release/onefold --megabytes 10
"""
import argparse
import json
import os
import random
import subprocess
import tempfile
import time


def words(rng, letters, count, shortest, longest):
    return ["".join(rng.choice(letters) for _ in range(rng.randint(shortest, longest))) for _ in range(count)]


def zipf(rng, vocabulary):
    weights = [1 / (rank + 2) for rank in range(len(vocabulary))]
    while True:
        yield from rng.choices(vocabulary, weights, k=10000)


def lines(kind, rng):
    """Endless lines of a kind of text."""
    chinese = [chr(rng.randint(0x4E00, 0x9FA5)) for _ in range(3000)]
    sources = {
        "english": (words(rng, "etaoinshrdlu", 30000, 2, 9), " ", 12),
        "chinese": (words(rng, chinese, 30000, 1, 3), "", 14),
        "thai": (words(rng, [chr(c) for c in range(0x0E01, 0x0E31)], 20000, 2, 6), "", 12),
        "code": (words(rng, "abcdefgxyz_", 5000, 2, 8) + ["(", ")", " = ", "{", "}", ";", ".", "->", "  ", "0", "1"] * 20, "", 10),
    }
    kinds = list(sources) if kind == "mixed" else [kind]
    streams = {name: zipf(rng, sources[name][0]) for name in kinds}
    while True:
        name = rng.choice(kinds)
        _, space, length = sources[name]
        yield space.join(next(streams[name]) for _ in range(rng.randint(3, 2 * length)))


def write_text(path, kind, megabytes):
    source, size = lines(kind, random.Random(kind)), 0
    with open(path, "w", encoding="utf-8") as file:
        while size < megabytes * 1e6:
            line = next(source) + "\n"
            size += len(line.encode())
            file.write(line)


def ours(args, text, folder):
    output = os.path.join(folder, "tokenizer.json")
    begin = time.monotonic()
    subprocess.run([args.onefold, "tokenize", "train", text, "--vocab-size", str(args.vocab_size), "--output", output, "--overwrite"],
                   check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def theirs(args, text):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=args.vocab_size, min_frequency=2, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    begin = time.monotonic()
    tokenizer.train([text], trainer)
    return time.monotonic() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", default="build/release/onefold")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--vocab-size", type=int, default=16000)
    parser.add_argument("--kinds", default="english,chinese,thai,code,mixed")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.kinds.split(","):
            text = os.path.join(folder, kind + ".txt")
            write_text(text, kind, args.megabytes)
            results[kind] = {"onefold_s": ours(args, text, folder), "tokenizers_s": theirs(args, text)}
            if not args.json:
                mine, peer = results[kind].values()
                print(f"{kind:8} {args.megabytes:g} MB: {mine:7.2f} s, tokenizers {peer:7.2f} s, ratio {peer / mine:.1f}", flush=True)
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
