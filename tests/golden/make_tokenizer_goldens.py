#!/usr/bin/env python3
"""What Hugging Face's `tokenizers` makes of awkward texts, for tests/data/tokenizer_golden_test.cpp.

    pip install tokenizers
    python make_tokenizer_goldens.py                   writes tokenizer_{small,llama}.json and tokenizer_cases.json here
    python make_tokenizer_goldens.py --check BYTE SP   the tokenizers that Onefold saved from the first two: compares
                                                       what they make of the texts with tokenizer_cases.json
    python make_tokenizer_goldens.py --fuzz N FILE     writes the same cases with N random texts instead, to FILE
    python make_tokenizer_goldens.py --torture N FILE  the same with N documents: every script, emoji, code, blanks, any character

Each variant is one of the two files with the parts of a published family in place of its own: its normalizer,
pre-tokenizer, post-processor, decoder and added tokens have exactly the structure that the family's tokenizer.json has.
"""

import base64
import json
import pathlib
import random
import struct
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
TORTURE = (HERE / "tokenizer_torture.txt").read_bytes().decode("utf-8")

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


def byte_level(prefix=False, regex=True, trim=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": regex}


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*stages, key="pretokenizers"):
    return {"type": "Sequence", key: list(stages)}


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def metaspace(**more):
    return {"type": "Metaspace", "replacement": "▁", **more}


def added(content, special=False, **more):
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, **more}
    return {"content": content, **options, "special": special}


def template(*tokens):
    """<s> before the text; (name, id) pairs."""
    before = [{"SpecialToken": {"id": name, "type_id": 0}} for name, _ in tokens]
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    pair = [{"SpecialToken": {"id": name, "type_id": 1}} for name, _ in tokens] + [{"Sequence": {"id": "B", "type_id": 1}}]
    special = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in tokens}
    return {"type": "TemplateProcessing", "single": before + text, "pair": before + text + pair, "special_tokens": special}


# Llama 2 and Mistral before 0.3: the space in front comes from the normalizer.
PREPEND = sequence({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"), key="normalizers")
LLAMA_DECODER = sequence(
    replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    key="decoders",
)
LLAMA_TEMPLATE = template(("<s>", 1))
OPTIONS = [  # every way to look for an added token
    added("[left]", lstrip=True), added("[right]", rstrip=True), added("[both]", lstrip=True, rstrip=True),
    added("word", single_word=True), added("the one", single_word=True, lstrip=True), added("[n]", normalized=True),
    added("é!", normalized=True), added("<tool>er", special=True), added("[sp]", special=True, rstrip=True, lstrip=True),
    added("  two", normalized=True), added("<ta", special=False), added("<tag>", special=True),
]

VARIANTS = {
    "gpt2": dict(base="small", pre_tokenizer=byte_level(), post_processor=byte_level(prefix=True, trim=False)),
    "gpt2 with special tokens": dict(base="small", match_special=True),
    "prefix space": dict(base="small", pre_tokenizer=byte_level(prefix=True)),
    "no pattern": dict(base="small", pre_tokenizer=byte_level(regex=False)),
    "llama 3": dict(
        base="small", pre_tokenizer=sequence(split(LLAMA3), byte_level(regex=False)), model={"ignore_merges": True},
        added=[added("<|begin_of_text|>", special=True), added("<|end_of_text|>", special=True)], match_special=True,
        post_processor=sequence(byte_level(), template(("<|begin_of_text|>", 701)), key="processors"),
    ),
    "qwen 2": dict(
        base="small", normalizer={"type": "NFC"},
        pre_tokenizer=sequence(split(QWEN2), byte_level(regex=False, trim=False)),
        post_processor=byte_level(trim=False, regex=False), decoder=byte_level(trim=False, regex=False),
        added=[added("<|im_start|>", special=True), added("<|im_end|>", special=True), added("<think>")], match_special=True,
    ),
    "digits": dict(base="small", pre_tokenizer=sequence({"type": "Digits", "individual_digits": True}, byte_level())),
    "digit groups": dict(base="small", pre_tokenizer=sequence({"type": "Digits", "individual_digits": False}, byte_level())),
    "removed, inverted": dict(base="small", pre_tokenizer=sequence(split(LLAMA3, "Removed", True), byte_level(regex=False))),
    "removed": dict(base="small", pre_tokenizer=sequence(split(r"\p{L}e+", "Removed"), byte_level(regex=False))),
    "merged with previous": dict(base="small", pre_tokenizer=sequence(split(r"\s|\p{N}", "MergedWithPrevious"), byte_level(regex=False))),
    "merged with next": dict(base="small", pre_tokenizer=sequence(split(r"\s|\p{N}", "MergedWithNext"), byte_level(regex=False))),
    "contiguous": dict(base="small", pre_tokenizer=sequence(split(r"\p{L}|\p{N}", "Contiguous"), byte_level(regex=False))),
    "string, isolated": dict(base="small", pre_tokenizer=sequence(split(". ", kind="String"), byte_level())),
    "added token options": dict(base="small", normalizer={"type": "NFC"}, added=OPTIONS),
    "added token options with special tokens": dict(base="small", normalizer={"type": "NFC"}, added=OPTIONS, match_special=True),
    "no decoder": dict(base="small", decoder=None),
    "llama 2": dict(base="llama"),
    "llama 2 with special tokens": dict(base="llama", match_special=True),
    "llama 2, old special tokens": dict(base="llama", match_special=True, special_normalized=True),
    "mistral 0.3": dict(
        base="llama", normalizer=None, pre_tokenizer=metaspace(prepend_scheme="first", split=False), match_special=True,
        added=[added("[INST]", special=True), added("[/INST]", special=True)],
    ),
    "metaspace, old": dict(base="llama", normalizer=None, pre_tokenizer=metaspace(add_prefix_space=True), decoder=metaspace(add_prefix_space=True), match_special=True),
    "metaspace, always": dict(base="llama", normalizer=None, pre_tokenizer=metaspace(prepend_scheme="always", split=False), decoder=metaspace(prepend_scheme="always", split=False), match_special=True),
    "metaspace, first, split": dict(base="llama", normalizer=None, pre_tokenizer=metaspace(prepend_scheme="first", split=True), match_special=True),
    "metaspace, never": dict(base="llama", normalizer=None, pre_tokenizer=metaspace(prepend_scheme="never", split=True), decoder=metaspace(prepend_scheme="never", split=True)),
    "gemma": dict(base="llama", normalizer=replace(" ", "▁"), pre_tokenizer=split(" ", "MergedWithPrevious", kind="String"), decoder=sequence(replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}, key="decoders")),
    "unknown, fused": dict(base="llama", model={"byte_fallback": False}),
    "unknown, one by one": dict(base="llama", model={"byte_fallback": False, "fuse_unk": False}),
    "sentencepiece, ignore merges": dict(base="llama", normalizer=None, pre_tokenizer=metaspace(prepend_scheme="always", split=True), model={"ignore_merges": True}),
    "sentencepiece, added token options": dict(base="llama", added=OPTIONS, match_special=True),
    "merges across spaces": dict(base="llama", crossing=True),
}

# Patterns that engines understand differently; each is run by Oniguruma, as `tokenizers` does it.
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])
DEEPSEEK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "kimi k2": KIMI,
    "cl100k": CL100K,
    "o200k": O200K,
    "words": r"\w+|[^\w\s]+",
    "no words": r"\W+|\w",
    "line ends": r"$|^a|\A.|\z",
    "hexadecimal": r"\h+|\H",
    "posix": r"[[:alpha:]]+|[[:digit:]]+|[[:space:]]+|[[:punct:]]+",
    "not posix": r"[[:^alpha:]]+|[^[:^upper:]]+",
    "nested": r"[a-z&&[^aeiou]]+|[\p{L}[0-9]]+|[^[a-z][0-9]]",
    "scripts": r"\p{Arabic}+|\p{Cyrillic}+|[\p{Han}\p{Hiragana}\p{Katakana}]+|\p{^Latin}",
    "sharp s": r"(?i)ß|straße|ſ",
    "empty": r"x*|",
    "digits and unassigned": r"\d+|\D|\p{Cn}+|\P{L}+",
    "dot and any": r".\n?|\R|\p{Any}",
    "atomic": r"(?>\p{L}+)e|\p{N}{2}+|(a|b)\1|\p{L}*?\K.",
}
for name, pattern in PATTERNS.items():
    VARIANTS[name] = dict(base="small", pre_tokenizer=sequence(split(pattern), byte_level(regex=False)))
for behavior in ("Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
    VARIANTS["empty, " + behavior] = dict(base="small", pre_tokenizer=sequence(split(r"x*|(?=e)", behavior), byte_level(regex=False)))
VARIANTS["deepseek 3"] = dict(
    base="small",
    pre_tokenizer=sequence(split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK), byte_level(regex=False)),
)

# Other models. Their vocabularies are made below; a map of SentencePiece's is in the file.
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
WORD_PIECE_DECODER = {"type": "WordPiece", "prefix": "##", "cleanup": True}


def form(name, **more):
    return {"type": name, **more}


def regex_replace(pattern, content):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


VARIANTS.update({
    "bert": dict(base="bert", match_special=True),
    "bert, cased": dict(base="bert", normalizer={**BERT, "lowercase": False}, decoder={**WORD_PIECE_DECODER, "cleanup": False}),
    "bert, accents": dict(base="bert", normalizer={**BERT, "strip_accents": False, "clean_text": False, "handle_chinese_chars": False}),
    "whitespace": dict(base="bert", normalizer=form("Lowercase"), pre_tokenizer=form("Whitespace")),
    "delimiter": dict(base="bert", normalizer=None, pre_tokenizer=sequence(form("CharDelimiterSplit", delimiter="e"), form("WhitespaceSplit"), form("Punctuation", behavior="Contiguous"))),
    "word level": dict(base="words", match_special=True),
    "t5": dict(base="t5", match_special=True),
    "xlm-roberta": dict(base="t5", pre_tokenizer=metaspace(prepend_scheme="always"), normalizer=sequence(form("Nmt"), form("NFKC"), regex_replace(" {2,}", " "), key="normalizers")),
    "unigram, bytes": dict(base="t5", model={"byte_fallback": True}, pre_tokenizer=metaspace(prepend_scheme="first", split=False)),
    "clip": dict(base="clip", match_special=True),
    "roberta": dict(base="small", post_processor={"type": "RobertaProcessing", "sep": ["<|pad|>", 1], "cls": ["<|endoftext|>", 0], "trim_offsets": True, "add_prefix_space": False}),
    "punctuation": dict(base="small", pre_tokenizer=sequence(form("Punctuation"), form("Digits", individual_digits=True), byte_level())),
    "nfd": dict(base="small", normalizer=form("NFD")),
    "nfkc": dict(base="small", normalizer=form("NFKC")),
    "nfkd, no accents": dict(base="small", normalizer=sequence(form("NFKD"), form("StripAccents"), form("Lowercase"), key="normalizers")),
    "stripped": dict(base="small", normalizer=sequence(form("Strip", strip_left=True, strip_right=True), regex_replace(r"\s+", " "), key="normalizers")),
    "nmt": dict(base="small", normalizer=form("Nmt")),
    "empty token": dict(base="small", empty_token=True),
    "pieces with prefix": dict(base="llama", model={"continuing_subword_prefix": "", "end_of_word_suffix": ""}),
})

FAMILIES = ["gpt2", "llama 3", "qwen 2", "llama 2", "mistral 0.3"]  # the others vary one part each

SPACES = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x1C, 0x1F, 0x85, 0xA0, 0x1680, 0x180E, 0x2003, 0x200B, 0x2028, 0x202F, 0x3000, 0xFEFF]
PIECES = list("aZ09 '!\n\t\r_e") + [
    "'s", "'LL", "  ", " é", "é", "Ж", "模", "型", "ー", "한", "😀", "\u0301", "\u0327", "½", "٣", "\u00a0", "\u3000", "\u180e", "\u200d",
    "“", "—", "▁", " the", "program", "the one", "word", " [left] ", " [right] ", "[both]", "[n]", "é!", "e\u0301!", "<tool>", "er", "<ta",
    "g>", "[sp]", " two", "<s>", "</s>", "<unk>", "<|endoftext|>", "[INST]", "<|im_start|>", "<think>", "\r\n", "12345",
]  # fmt: skip


def texts():
    """Compared id by id in the families' own variants, and by a hash of their ids in the others."""
    yield from CORPUS
    yield from TORTURE.split("\n")
    yield "I'm you're he's we've they'll I'd can't 'S 'T 'RE o'clock rock'n'roll 'sa 'lla ''s ' s"
    yield "a  b   c\n\nd \n e\t\tf \r\n\r\ng  "
    yield "<|endoftext|> text <|endoftext|><|pad|> <tool> and <|endof"
    yield "a [left]  [right]  b\t[both]\u3000 [n]word words word.the one  the ones e\u0301! é! <tool>er<ta<tag>  two  [sp] <s> </s>x<unk> "
    yield "x" * 300 + " " + "the " * 40
    yield "".join(chr(c) for c in range(128))


def random_texts(count, seed=7):
    """Compared by a hash of their ids."""
    yield TORTURE
    yield TORTURE.replace("\n", "\r\n")
    yield " ".join(chr(c) + "a" for c in SPACES)
    yield "".join("a" + chr(c) + chr(d) + "é" for c in SPACES for d in SPACES)
    rng = random.Random(seed)
    for i in range(count):
        if i % 4 == 3:  # any code point that is not a surrogate; in fuzzing, one that this Python's Unicode knows
            points = (rng.choice([rng.randrange(0x80, 0x3000), rng.randrange(0x20000)]) for _ in range(20))
            yield "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000 and (seed or unicodedata.category(chr(p)) != "Cn"))
        else:
            yield "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 30)))


# Blocks of scripts that are written today, and some that are new in Unicode: 15 (Kawi, Nag Mundari), 16 (Garay, Tulu-Tigalari, Todhri,
# Sunuwar, Gurung Khema, Kirat Rai, Ol Onal) and 17 (Sidetic, Tolong Siki, Beria Erfe, Tai Yo).
SCRIPTS = [
    (0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x250, 0x2FF), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F), (0x5D0, 0x5F4), (0x600, 0x6FF),
    (0x700, 0x74F), (0x780, 0x7B1), (0x7C0, 0x7FA), (0x900, 0x97F), (0x980, 0x9FE), (0xA01, 0xA76), (0xA81, 0xAFF), (0xB01, 0xB77),
    (0xB82, 0xBFA), (0xC00, 0xC7F), (0xC80, 0xCF3), (0xD00, 0xD7F), (0xD81, 0xDF4), (0xE01, 0xE5B), (0xE81, 0xEDF), (0xF00, 0xFDA),
    (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x139F), (0x13A0, 0x13FD), (0x1400, 0x167F), (0x1780, 0x17F9),
    (0x1800, 0x18AA), (0x1E00, 0x1EFF), (0x1F00, 0x1FFE), (0x3040, 0x309F), (0x30A0, 0x30FF), (0x3105, 0x312F), (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF), (0xA000, 0xA48C), (0xA500, 0xA62B), (0xAC00, 0xD7A3), (0xF900, 0xFAD9), (0xFB00, 0xFDFF), (0xFE70, 0xFEFC),
    (0xFF00, 0xFFEF), (0x10A00, 0x10A58), (0x10D40, 0x10D8F), (0x10940, 0x1095F), (0x105C0, 0x105FF), (0x11380, 0x113FF), (0x11BC0, 0x11BFF), (0x11DB0, 0x11DEF),
    (0x11F00, 0x11F59), (0x16100, 0x1613F), (0x16D40, 0x16D7F), (0x16EA0, 0x16EDF), (0x1D400, 0x1D7FF), (0x1E4D0, 0x1E4F9), (0x1E5D0, 0x1E5FF), (0x1E6C0, 0x1E6FF), (0x1E900, 0x1E95F),
    (0x20000, 0x2A6DF), (0x30000, 0x323AF), (0x323B0, 0x33479),
]
EMOJI = ["😀", "👍", "👩", "👨", "👧", "🧑", "❤", "☺", "✋", "🏴", "🚀", "🫨", "🫩", "🪾", "🧿", "5", "#", "©", "🇫", "🇷", "🇩", "🇪"]
JOINERS = ["\u200d", "\ufe0f", "\ufe0e", "\u20e3", "🏻", "🏾", "\U000e0067", "\U000e007f", ""]
CODE = [
    "def f(x, *args, **kwargs):", "    return x ** 2 if x else None", "for(int i=0;i<n;++i){", "}\n\n", "\t\tif err != nil {", "// what",
    "/* a */", "#include <vector>", "std::vector<std::pair<int, float>> v;", "self.assertEqual(a[1:-1], {'k': 0x1F})", "=>", "===", "!==", "&&",
    "<div class=\"a-b\">&nbsp;</div>", "SELECT * FROM t WHERE id = 1;", "camelCaseName", "snake_case_name", "SCREAMING_CASE", "HTTPServer2",
    "3.14e-10", "1_000_000", "0b1010", "\\n\\t\\\\", "$x = @{$y};", "a.b.c()", "'it''s'", "\r\n", "\n        ", "\n\t", "https://a.b/c?d=e&f#g",
]
BLANKS = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\r", "\u00a0", "\u3000", "\u2009", "\u200b", "\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\ufeff", "\x00", "a"]


def scripts(rng):
    """Words of one to three scripts, with digits, marks and punctuation of any."""
    chosen = [rng.choice(SCRIPTS) for _ in range(rng.randrange(1, 4))]
    for _ in range(rng.randrange(1, 20)):
        first, last = rng.choice(chosen)
        yield "".join(chr(rng.randint(first, last)) for _ in range(rng.randrange(1, 9)))
        if rng.random() < 0.2:
            yield rng.choice(["'s", "’t", "1", "2024", "٣", "१२", "Ⅷ", "½", "²", "\u0301", "\u0308", ",", "。", "،", "!", "...", "—", "«", "€", "+", "_"])
        yield rng.choice(["", " ", " ", " ", "  ", "\n"])


def any_character(rng):
    """Of every plane, assigned or not, but for surrogates."""
    for _ in range(rng.randrange(1, 40)):
        point = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x20000), rng.randrange(0x110000)])
        if not 0xD800 <= point < 0xE000:
            yield chr(point)


def torture_texts(count):
    rng = random.Random(20)
    kinds = [
        scripts, scripts, scripts, any_character,
        lambda rng: (rng.choice(EMOJI) + rng.choice(JOINERS) for _ in range(rng.randrange(1, 30))),
        lambda rng: (rng.choice(CODE) + rng.choice(["", " ", "\n", "\n    "]) for _ in range(rng.randrange(1, 15))),
        lambda rng: (rng.choice(BLANKS) * rng.choice([1, 1, 2, 3, 17]) for _ in range(rng.randrange(1, 15))),
        lambda rng: (rng.choice(PIECES) for _ in range(rng.randrange(1, 30))),
        lambda rng: (rng.choice(" ".join(CORPUS).split(" ")) + rng.choice([" ", " ", "  ", ""]) for _ in range(rng.randrange(1, 30))),
    ]
    for _ in range(count):
        yield "".join("".join(kind(rng)) for kind in rng.sample(kinds, rng.choice([1, 1, 2, 3])))


def train_byte_level():
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
    return json.loads(tokenizer.to_str())


def train_llama():
    """As Llama 2's: <unk>, <s>, </s>, 256 bytes, pieces, characters. SentencePiece's line ends are bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    corpus = [text.replace("\n", " ").replace("\t", " ") for text in CORPUS * 3]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=420, min_frequency=2, show_progress=False))
    learnt = json.loads(tokenizer.to_str())["model"]
    merges = [["▁", "▁"], ["▁▁", "▁▁"], *learnt["merges"]]  # runs of spaces are pieces too
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + [a + b for a, b in merges]
    vocab = {}
    for piece in pieces + [piece for piece in learnt["vocab"] if len(piece) == 1]:
        vocab.setdefault(piece, len(vocab))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **added(text, special=True)} for i, text in enumerate(["<unk>", "<s>", "</s>"])],
        "normalizer": PREPEND,
        "pre_tokenizer": None,
        "post_processor": LLAMA_TEMPLATE,
        "decoder": LLAMA_DECODER,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab, "merges": merges,
        },
    }  # fmt: skip


def train_bert():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(CORPUS * 3, trainers.WordPieceTrainer(vocab_size=400, min_frequency=1, special_tokens=specials, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return json.loads(tokenizer.to_str())


def train_words():
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(CORPUS * 3, trainers.WordLevelTrainer(vocab_size=150, special_tokens=["[UNK]"], show_progress=False))
    return json.loads(tokenizer.to_str())


def charsmap(pairs):
    """SentencePiece's compiled map: a double array over the keys, then the texts."""
    texts, keys = b"", {}
    for key, value in sorted(pairs.items(), key=lambda item: item[0].encode()):
        keys[key.encode()] = len(texts)
        texts += value.encode() + b"\0"
    units, used = {0: 0}, {0}

    def place(prefix, at):
        children = sorted({key[len(prefix)] for key in keys if len(key) > len(prefix) and key.startswith(prefix)})
        labels = ([0] if prefix in keys else []) + children
        offset = next(o for o in range(1, 1 << 20) if all((at ^ o ^ c) not in used for c in labels) and len({at ^ o ^ c for c in labels}) == len(labels))
        used.update(at ^ offset ^ c for c in labels)
        units[at] |= offset << 10 | (0x100 if prefix in keys else 0)
        if prefix in keys:
            units[at ^ offset] = 0x80000000 | keys[prefix]
        for c in children:
            units[at ^ offset ^ c] = c
        for c in children:
            place(prefix + bytes([c]), at ^ offset ^ c)

    place(b"", 0)
    trie = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(max(units) + 256))
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + texts).decode()


def train_t5():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS * 3, trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", special_tokens=["<pad>", "</s>", "<unk>"], show_progress=False))
    file = json.loads(tokenizer.to_str())
    file["model"]["vocab"] += [[f"<0x{b:02X}>", -20.0] for b in range(256)]
    pairs = {"\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "é": "e", "e\u0301": "é", "ー": "-", "½": "1/2", "\u180e": "", "“": '"', "한": "\u1112\u1161\u11ab", "😀": ":)"}
    file["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap(pairs)}
    file["pre_tokenizer"] = sequence({"type": "WhitespaceSplit"}, metaspace(prepend_scheme="always"))
    file["decoder"] = metaspace(prepend_scheme="always")
    file["post_processor"] = {**template(("</s>", 1)), "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]}
    return file


def train_clip():
    tokenizer = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(vocab_size=600, end_of_word_suffix="</w>", special_tokens=["<|endoftext|>", "<|startoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    file = json.loads(tokenizer.to_str())
    vocab = file["model"]["vocab"]
    for letter in pre_tokenizers.ByteLevel.alphabet():  # as CLIP's, which has them all
        vocab.setdefault(letter + "</w>", len(vocab))
    return file


def file_of(bases, options):
    """The variant's tokenizer.json. tests/data/tokenizer_golden_test.cpp does the same."""
    changed = json.loads(bases[options["base"]])
    for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if key in options:
            changed[key] = options[key]
    changed["model"].update(options.get("model", {}))
    tokens = changed["added_tokens"]
    if options.get("special_normalized"):
        for token in tokens:
            token["normalized"] = True
    vocab = changed["model"]["vocab"]
    if options.get("empty_token"):
        for token in tokens:
            token["id"] += token["content"] not in vocab
        vocab[""] = len(vocab)
    if options.get("crossing"):  # pieces that begin or end inside a word's neighbour
        for left, right in [("e", "▁"), (".", "▁"), ("s▁", "t"), ("s", "▁"), ("é", "▁")]:
            for piece in (left, right, left + right):
                vocab.setdefault(piece, len(vocab))
            merges = changed["model"]["merges"]
            merges.insert(0, f"{left} {right}" if isinstance(merges[0], str) else [left, right])
    first = max(len(vocab), *(token["id"] + 1 for token in tokens))
    for i, token in enumerate(options.get("added", [])):
        tokens.append({"id": first + i, **token})
    return changed


def tokenizer_of(bases, options):
    tokenizer = Tokenizer.from_str(json.dumps(file_of(bases, options)))
    tokenizer.encode_special_tokens = not options.get("match_special", False)
    return tokenizer


def fnv1a64(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def hash_of(ids, text):
    return f"{fnv1a64((' '.join(map(str, ids)) + '|' + text).encode()):016x}"


def measured(tokenizer, seen, unseen, family):
    """Ids and decoded text; null where that is the text again. All but a family's own texts as hashes."""

    def encode(text):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return ids, tokenizer.decode(ids, skip_special_tokens=False)

    both = [encode(text) for text in seen] if family else []
    rng = random.Random(3)
    spelt = [[rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randrange(12))] for _ in range(20)]
    return {
        "ids": [ids for ids, _ in both],
        "decoded": [None if decoded == text else decoded for text, (_, decoded) in zip(seen, both)],
        "hashes": [hash_of(*encode(text)) for text in (unseen if family else seen + unseen)],
        "with_template": tokenizer.encode("A program.").ids,
        "random_ids": spelt,
        "random_hashes": [hash_of(ids, tokenizer.decode(ids, skip_special_tokens=i % 2 == 1)) for i, ids in enumerate(spelt)],
    }


def cases(bases, seen, unseen):
    dump = lambda value: json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    variants = [{"name": name, **options, **measured(tokenizer_of(bases, options), seen, unseen, name in FAMILIES)} for name, options in VARIANTS.items()]
    lists = [f'"{name}": [\n' + ",\n".join(map(dump, items)) + "\n]" for name, items in [("texts", seen), ("random_texts", unseen), ("variants", variants)]]
    return "{" + ",\n".join(lists) + "}\n"


BASES = {"small": train_byte_level, "llama": train_llama, "bert": train_bert, "words": train_words, "t5": train_t5, "clip": train_clip}


def paths():
    return {base: HERE / f"tokenizer_{base}.json" for base in BASES}


def make():
    for base, train in BASES.items():
        tokenizer = train()
        paths()[base].write_text(json.dumps(tokenizer, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    bases = {base: path.read_text(encoding="utf-8") for base, path in paths().items()}
    (HERE / "tokenizer_cases.json").write_text(cases(bases, list(texts()), list(random_texts(80))), encoding="utf-8")


def check(small, llama):
    bases = {base: path.read_text(encoding="utf-8") for base, path in paths().items()}
    bases["small"], bases["llama"] = pathlib.Path(small).read_text(encoding="utf-8"), pathlib.Path(llama).read_text(encoding="utf-8")
    expected = json.loads((HERE / "tokenizer_cases.json").read_text(encoding="utf-8"))
    compared = 0
    for variant in expected["variants"]:
        results = measured(tokenizer_of(bases, variant), expected["texts"], expected["random_texts"], variant["name"] in FAMILIES)
        for key, values in results.items():
            assert values == variant[key], (variant["name"], key)
            compared += len(values)
    print(f"{compared} results agree")


def fuzz(unseen, path):
    bases = {base: p.read_text(encoding="utf-8") for base, p in paths().items()}
    pathlib.Path(path).write_text(cases(bases, [], list(unseen)), encoding="utf-8")


def main():
    command = sys.argv[1:2]
    if command == ["--check"]:
        check(*sys.argv[2:])
    elif command == ["--fuzz"]:
        fuzz(random_texts(int(sys.argv[2]), seed=None), sys.argv[3])
    elif command == ["--torture"]:
        fuzz(torture_texts(int(sys.argv[2])), sys.argv[3])
    else:
        make()


if __name__ == "__main__":
    main()
