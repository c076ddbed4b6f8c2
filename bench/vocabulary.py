#!/usr/bin/env python3
"""Learning a vocabulary, beside Hugging Face's `tokenizers` (pip install tokenizers).

Texts of several kinds are made of random words by Zipf's law: English-like words between spaces; Chinese and Thai, whose clauses
have no spaces; code; and a mixture. Both learn byte-level BPE of the same size from the same lines, in turn. Prints seconds of wall and of
processor time, and the ratio of the latter, which other work on the machine hardly changes, for each kind, or for each file of --texts.

  python3 bench/vocabulary.py --onefold build/release/onefold --megabytes 50
"""
import argparse
import json
import os
import random
import resource
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


def clocks():
    """Wall time, and processor time of this process and of those that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.monotonic(), sum(usage.ru_utime + usage.ru_stime for usage in usages)


def timed(work):
    begin = clocks()
    work()
    return [after - before for before, after in zip(begin, clocks())]


def ours(args, text, folder):
    output = os.path.join(folder, "tokenizer.json")
    command = [args.onefold, "tokenize", "train", text, "--vocab-size", str(args.vocab_size), "--output", output, "--overwrite"]
    return timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))


def theirs(args, text):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=args.vocab_size, min_frequency=2, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    return timed(lambda: tokenizer.train([text], trainer))


def compare(args, name, text, folder):
    (wall, cpu), (their_wall, their_cpu) = ours(args, text, folder), theirs(args, text)
    if not args.json:
        print(f"{name:12} {os.path.getsize(text) / 1e6:5.1f} MB: {wall:7.2f} s, processor {cpu:7.2f} s; tokenizers {their_wall:7.2f} s, "
              f"processor {their_cpu:7.2f} s; ratio {their_cpu / cpu:.1f}", flush=True)
    return {"onefold_s": wall, "onefold_cpu_s": cpu, "tokenizers_s": their_wall, "tokenizers_cpu_s": their_cpu}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--onefold", default="build/release/onefold")
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--vocab-size", type=int, default=16000)
    parser.add_argument("--kinds", default="english,chinese,thai,code,mixed")
    parser.add_argument("--texts", nargs="*", default=[])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in [] if args.texts else args.kinds.split(","):
            text = os.path.join(folder, kind + ".txt")
            write_text(text, kind, args.megabytes)
            results[kind] = compare(args, kind, text, folder)
        for text in args.texts:
            results[text] = compare(args, os.path.basename(text), text, folder)
    if args.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
