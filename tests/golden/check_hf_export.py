#!/usr/bin/env python3
"""Loads exported models in transformers and compares their logits with Onefold's.

    ONEFOLD_EXPORT_DIR=exported build/release/tests/run_tests --gtest_filter='Export.Logits*'
    pip install torch transformers safetensors
    python tests/golden/check_hf_export.py exported

Each folder has what `onefold export` wrote, and expected.safetensors with tokens and the logits that
Onefold computed before the export. transformers computes in float32 from the stored weights. Fails
if a logit is off by more than 1e-5, if a weight of the files is unused or one of the model's is not
in them, or if the tokenizer does not load.
"""

import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file

TOLERANCE = 1e-5
TEXT = "In the beginning: \u00e4 \u4e16 12 \n"


def check(folder):
    expected = load_file(folder / "expected.safetensors")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True,
        experts_implementation="eager")  # the other ways want even sizes
    problems = {key: value for key, value in report.items() if value}
    with torch.no_grad():
        logits = model.eval()(expected["tokens"].long()).logits
    error = (logits - expected["logits"]).abs().max().item()
    stored = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT)["input_ids"]
    text = (tokenizer.decode(ids) == TEXT and tokenizer.eos_token_id == 256
            and model.generation_config.eos_token_id == 256)
    good = error <= TOLERANCE and not problems and text
    print(f"{folder.name:24} {type(model).__name__:22} {str(stored):15} "
          f"largest error {error:.1e} of {expected['logits'].abs().max():.1f}  "
          f"{'ok' if good else 'FAILED'}  {problems or ''}{'' if text else ' tokenizer'}")
    return good


def main():
    folders = sorted(path for path in pathlib.Path(sys.argv[1]).iterdir() if path.is_dir())
    results = [check(folder) for folder in folders]
    print(f"{sum(results)} of {len(results)} agree to {TOLERANCE} "
          f"(transformers {transformers.__version__})")
    sys.exit(0 if results and all(results) else 1)


if __name__ == "__main__":
    main()
