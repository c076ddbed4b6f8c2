#!/usr/bin/env python3
"""Token ids from Hugging Face's `tokenizers`, for tests/data/tokenizer_golden_test.cpp.

    pip install tokenizers
    python make_tokenizer_goldens.py             writes tokenizer_small.json and tokenizer_cases.json here
    python make_tokenizer_goldens.py --check F   loads F, a tokenizer saved by Onefold from tokenizer_small.json, and
                                                 compares it with tokenizer_cases.json
"""

import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent

# Written for this file: enough repetition for a few hundred merges in several scripts.
CORPUS = [
    "A training step is a program. The program gathers what it needs, computes, and releases what it gathered.",
    "It's the reader's job to check the writer's numbers; they're written down so that we've something to check.",
    "for (int i = 0; i < count; ++i) {\n  sum += values[i];\n}\nreturn sum / count;\n",
    "In 2024 there were 1,024 ranks; in 2025 there will be 2,048. 3.14159 is not 22/7.",
    "Die Größe des Modells übersteigt den Speicher der Maschine. Die Größe spielt keine Rolle.",
    "Le modèle est plus grand que la mémoire; l'entraînement continue, où qu'il soit.",
    "Модель больше памяти машины. Модель учится, и память не кончается.",
    "模型比机器的内存大。模型在学习。学习模型需要内存。",
    "モデルはメモリより大きい。モデルは学習する。",
    "모델이 기억보다 크다. 모델은 배운다.",
    "نموذج أكبر من ذاكرة الجهاز. نموذج يتعلم.",
    "😀😀 emoji 👩‍👩‍👧 and 🇫🇷 flags 😀",
    "  indented\n\ttabbed\n\n\nblank lines   and trailing spaces   \n",
]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*stages):
    return {"type": "Sequence", "pretokenizers": list(stages)}


VARIANTS = {
    "gpt2": dict(pre_tokenizer=byte_level()),
    "gpt2 with special tokens": dict(pre_tokenizer=byte_level(), match_special=True),
    "prefix space": dict(pre_tokenizer=byte_level(prefix=True)),
    "no pattern": dict(pre_tokenizer=byte_level(regex=False)),
    "llama 3": dict(pre_tokenizer=sequence(split(LLAMA3), byte_level(regex=False)), ignore_merges=True),
    "qwen 2": dict(pre_tokenizer=sequence(split(QWEN2), byte_level(regex=False))),
    "digits": dict(pre_tokenizer=sequence({"type": "Digits", "individual_digits": True}, byte_level())),
}

SPACES = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x1C, 0x1F, 0x85, 0xA0, 0x1680, 0x180E, 0x2003, 0x200B, 0x2028, 0x202F, 0x3000, 0xFEFF]


def texts():
    yield from CORPUS
    yield ""
    yield " "
    yield "I'm you're he's we've they'll I'd can't 'S 'T 'RE o'clock rock'n'roll 'sa 'lla ''s ' s"
    yield "a  b   c\n\nd \n e\t\tf \r\n\r\ng  "
    yield "line one\r\nline two\r\n\r\nline three"
    yield "<|endoftext|> text <|endoftext|><|pad|> <tool> and <|endof"
    yield "x" * 300 + " " + "the " * 40
    yield "123456789 1.5e-3 0x1F ½ ² ٣٤٥ Ⅷ १२३ 3rd"
    yield "naïve café e\u0301 Å A\u030a \u1e9b\u0323 ﬁ ſ's 'ſ"
    yield "".join(chr(c) for c in range(128))
    yield " ".join(chr(c) + "a" for c in SPACES)
    yield "".join("a" + chr(c) + chr(d) + "é" for c in SPACES for d in SPACES)
    rng = random.Random(7)
    pieces = list("aZ09 '!\n\t\r_") + ["'s", "'ll", "  ", " é", "é", "Ж", "模", "型", "ー", "한", "😀", "\u0301", "½", "٣", "\u00a0", "\u3000", "\u180e", "\u200d", "“", "—"]
    for _ in range(60):
        yield "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 40)))
    for _ in range(20):  # any code point that is not a surrogate
        points = (rng.choice([rng.randrange(0x80, 0x3000), rng.randrange(0x20000)]) for _ in range(20))
        yield "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000)


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS * 3,
        trainers.BpeTrainer(
            vocab_size=700,
            min_frequency=2,
            special_tokens=["<|endoftext|>", "<|pad|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def variant_of(base, options):
    changed = json.loads(base)
    changed["pre_tokenizer"] = options["pre_tokenizer"]
    changed["model"]["ignore_merges"] = options.get("ignore_merges", False)
    tokenizer = Tokenizer.from_str(json.dumps(changed))
    tokenizer.encode_special_tokens = not options.get("match_special", False)
    return tokenizer


def make():
    tokenizer = train()
    base = tokenizer.to_str(pretty=False)
    (HERE / "tokenizer_small.json").write_text(json.dumps(json.loads(base), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    all_texts = list(texts())
    variants = []
    for name, options in VARIANTS.items():
        changed = variant_of(base, options)
        ids = [changed.encode(text, add_special_tokens=False).ids for text in all_texts]
        variants.append({"name": name, **options, "ids": ids})
    lines = ",\n".join(json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in variants)
    quoted = ",\n".join(json.dumps(t) for t in all_texts)
    (HERE / "tokenizer_cases.json").write_text(f'{{"texts": [\n{quoted}\n],\n"variants": [\n{lines}\n]}}\n', encoding="utf-8")


def check(path):
    cases = json.loads((HERE / "tokenizer_cases.json").read_text(encoding="utf-8"))
    base = pathlib.Path(path).read_text(encoding="utf-8")
    compared = 0
    for variant in cases["variants"]:
        tokenizer = variant_of(base, variant)
        for text, ids in zip(cases["texts"], variant["ids"], strict=True):
            assert tokenizer.encode(text, add_special_tokens=False).ids == ids, (variant["name"], text)
            compared += 1
    print(f"{path}: {compared} encodings agree")


if len(sys.argv) == 3 and sys.argv[1] == "--check":
    check(sys.argv[2])
else:
    make()
