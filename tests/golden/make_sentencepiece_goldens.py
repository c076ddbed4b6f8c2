#!/usr/bin/env python3
"""Small models of SentencePiece and ids, for tests/data/hf_tokenizer_test.cpp.

The ids of BPE are SentencePiece's own. Those of Unigram are of `tokenizers`, with the parts that transformers converts such a
model into: SentencePiece adds scores in another precision, and finds no control tokens in text.

  pip install sentencepiece tokenizers
  python3 tests/golden/make_sentencepiece_goldens.py
"""
import io
import json
import pathlib

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

HERE = pathlib.Path(__file__).resolve().parent
TORTURE = (HERE / "tokenizer_torture.txt").read_text(encoding="utf-8")
# Other scripts become bytes.
CORPUS = [line for line in TORTURE.split("\n") if line.strip() and max(map(ord, line)) < 0x180] * 2


def converted(processor):
    pieces = [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.get_piece_size())]
    tokenizer = Tokenizer(models.Unigram(pieces, processor.unk_id(), True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "\u2581")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def main():
    (HERE / "sentencepiece").mkdir(exist_ok=True)
    cases = {}
    options = dict(vocab_size=480, byte_fallback=True, normalization_rule_name="identity", character_coverage=1.0,
                   hard_vocab_limit=False, minloglevel=2, user_defined_symbols=["<tool>"])
    for kind, spaces in (("bpe", False), ("unigram", True)):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=model, model_type=kind,
                                                 remove_extra_whitespaces=spaces, **options)
        (HERE / "sentencepiece" / f"{kind}.model").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        texts = [line for line in TORTURE.split("\n") if line]
        texts = [text for text in texts if "\u2581" not in text]
        encode = converted(processor) if kind == "unigram" else processor.encode
        cases[kind] = [[text, encode(text)] for text in texts]
    (HERE / "sentencepiece" / "cases.json").write_text(json.dumps(cases) + "\n", encoding="utf-8")


main()
