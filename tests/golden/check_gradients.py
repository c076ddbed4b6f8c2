#!/usr/bin/env python3
"""How far Onefold's gradients of a real model are from PyTorch's in double precision.

One step of plain SGD with a large learning rate leaves the gradient in the weights: it is the
difference to where they started, divided by the rate. For a GPT-2 in the folder `start`:

    onefold train sgd.json --set run.output=stepped
    onefold export stepped stepped-hf
    check_gradients.py --start start --tokenizer tokenizer.json --text text.txt stepped-hf

with sgd.json of one step of SGD at --rate, without clipping, on the first --batch sequences of
text.txt (`"shuffle": false`), from `"model": {"weights": "start"}`. Prints, for PyTorch's own fp32
and for each folder, the median and the largest error of a tensor, relative to its norm. Needs
torch, transformers and safetensors.
"""
import argparse
import glob
import os
import statistics

import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast


def weights(folder):
    tensors = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        for name, tensor in load_file(path).items():
            tensors[name.removeprefix("transformer.")] = tensor.double()
    return tensors


def gradients(folder, dtype, tokens, targets):
    model = GPT2LMHeadModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    model.train(False)  # no dropout
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return {name.removeprefix("transformer."): p.grad.double()
            for name, p in model.named_parameters()}


def report(label, actual, exact):
    errors = [((actual[name] - g).norm() / g.norm()).item()
              for name, g in exact.items() if g.norm() > 0]
    print(f"{label}: {len(errors)} tensors, median {statistics.median(errors):.1e}, "
          f"largest {max(errors):.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--rate", type=float, default=1e4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("stepped", nargs="+")
    arguments = parser.parse_args()

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=arguments.tokenizer)
    with open(arguments.text) as file:
        ids = tokenizer(file.read())["input_ids"]
    count = arguments.batch * arguments.sequence
    shape = (arguments.batch, arguments.sequence)
    tokens = torch.tensor(ids[:count]).reshape(shape)
    targets = torch.tensor(ids[1:count + 1]).reshape(shape)

    exact = gradients(arguments.start, torch.float64, tokens, targets)
    report("PyTorch fp32", gradients(arguments.start, torch.float32, tokens, targets), exact)
    start = weights(arguments.start)
    for folder in arguments.stepped:
        end = weights(folder)
        report(folder, {name: (start[name] - end[name]) / arguments.rate for name in exact}, exact)


if __name__ == "__main__":
    main()
