#!/usr/bin/env python3
"""LoRA adapters as PEFT saves them, and what PEFT computes with them, for tests/run/lora_golden_test.cpp.

Each case is a folder lora/<case> with adapter_model.safetensors and adapter_config.json as
save_pretrained writes them, over the base model in hf/<base>, and expected.safetensors:
  tokens   I32 [10, B, T]  inputs; step s uses slice s
  targets  I32 [10, B, T]  the next tokens; -1 is ignored, and the loss is the mean over the others
  logits   F32 [B, T, V]   of slice 0, with the saved adapter
  loss     F32 [1]         the same
  grad/<tensor>   F32      gradients of `loss` by the adapter's tensors, before clipping
  losses   F32 [10]        loss before each of ten updates
  final/<tensor>  F32      the adapter's tensors after them
The updates are AdamW's, with the constants below. Everything is computed in float64 from the files,
and rounded once. Both matrices of an adapter are random: with PEFT's B of zeros, A would have no
gradient.

    pip install torch transformers peft safetensors
    python make_lora_goldens.py [CASE...]
    python make_lora_goldens.py --check FOLDER EXPECTED.safetensors

The second reads an adapter that Onefold has exported (its base is named in adapter_config.json), and
compares PEFT's logits with those in the file; see README.md.
"""

import argparse
import pathlib
import shutil

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
STEPS, BATCH, LENGTH = 10, 2, 13
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
CLIP = 1.0
# Of the adapters' elements. With three times as much, B A would outweigh the base, and a model so far from
# what any training makes amplifies the rounding of fp32 tenfold.
SPREAD = 0.1

# name: (base, options of LoraConfig)
CASES = {
    "gpt2": ("gpt2", dict(r=4, lora_alpha=6, target_modules=["c_attn", "c_proj", "c_fc"],
                          fan_in_fan_out=True)),
    "llama": ("llama", dict(r=3, lora_alpha=8, target_modules="all-linear")),
    "qwen2": ("qwen2", dict(r=2, lora_alpha=2, target_modules=["q_proj", "v_proj"])),
    "qwen3": ("qwen3", dict(r=5, lora_alpha=10, target_modules=["k_proj", "o_proj", "up_proj"])),
    "gpt_neox": ("gpt_neox", dict(r=3, lora_alpha=6, target_modules="all-linear")),
    "gptj": ("gptj", dict(r=2, lora_alpha=3, target_modules=["q_proj", "k_proj", "fc_out"])),
    "opt": ("opt", dict(r=2, lora_alpha=4, target_modules="all-linear")),
    "falcon_new": ("falcon_new", dict(r=3, lora_alpha=3, target_modules=["query_key_value", "dense"])),
    "cohere": ("cohere", dict(r=2, lora_alpha=4, target_modules="all-linear")),
    "bloom": ("bloom", dict(r=2, lora_alpha=4, target_modules=["query_key_value", "dense_4h_to_h"])),
    "phi3_long": ("phi3_long", dict(r=2, lora_alpha=4, target_modules=["qkv_proj", "down_proj"])),
}


def load_base(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager").eval()


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def saved_name(name):
    """Of a parameter, in adapter_model.safetensors."""
    return name.replace(".default.", ".")


def make(name, base, options, seed):
    folder = HERE / "lora" / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    config = peft.LoraConfig(task_type="CAUSAL_LM", **options)
    model = peft.get_peft_model(load_base(HERE / "hf" / base), config)
    model.peft_config["default"].base_model_name_or_path = f"tests/golden/hf/{base}"
    for parameter in model.parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data.copy_((SPREAD * noise).float().double())
    model.to(torch.float32).save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)

    model = peft.PeftModel.from_pretrained(
        load_base(HERE / "hf" / base), folder, is_trainable=True, autocast_adapter_dtype=False)
    model.to(torch.float64).eval()
    trained = {saved_name(n): p for n, p in model.named_parameters() if p.requires_grad}
    vocabulary = model.config.vocab_size
    draw = torch.randint(vocabulary, (STEPS, BATCH, LENGTH + 1), generator=generator)
    tokens, targets = draw[..., :-1].contiguous(), draw[..., 1:].clone()
    targets[0, 1, 3:6] = -1

    expected = {"tokens": tokens.int(), "targets": targets.int()}
    logits = model(tokens[0]).logits
    loss = loss_of(logits, targets[0])
    loss.backward()
    expected["logits"], expected["loss"] = logits.detach().float(), loss.detach().float().reshape(1)
    for tensor, parameter in trained.items():
        expected[f"grad/{tensor}"] = parameter.grad.float().contiguous()

    optimizer = torch.optim.AdamW(trained.values(), **ADAMW)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(tokens[step]).logits, targets[step])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), CLIP)
        optimizer.step()
        losses.append(loss.detach())
    expected["losses"] = torch.stack(losses).float()
    for tensor, parameter in trained.items():
        expected[f"final/{tensor}"] = parameter.detach().float().contiguous()
    save_file(expected, folder / "expected.safetensors")
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name:8} loss {expected['loss'].item():.6f}, {len(trained)} tensors, {size} bytes")


def check(folder, expected):
    """Logits of an exported adapter, against those that Onefold computed while it trained it."""
    config = peft.PeftConfig.from_pretrained(folder)
    model = peft.PeftModel.from_pretrained(
        load_base(config.base_model_name_or_path), folder, autocast_adapter_dtype=False)
    model.to(torch.float64).eval()
    wanted = load_file(expected)
    with torch.no_grad():
        logits = model(wanted["tokens"].long()).logits
    print(f"{folder}: logits up to {logits.abs().max():.2f}, largest error "
          f"{(logits - wanted['logits'].double()).abs().max():.1e}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--check", nargs=2, metavar=("FOLDER", "EXPECTED"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.check:
        return check(*arguments.check)
    for seed, (name, (base, options)) in enumerate(CASES.items()):
        if arguments.cases and name not in arguments.cases:
            continue
        make(name, base, options, seed)


if __name__ == "__main__":
    main()
