#!/usr/bin/env python3
"""Weights as PyTorch saves them, for the reader of pytorch_model.bin: needs PyTorch.

  python3 tests/golden/make_torch_goldens.py
"""
import collections
import pathlib

import torch

HERE = pathlib.Path(__file__).resolve().parent / "torch"


class Program:
    def __reduce__(self):
        return (print, ("a program ran",))


def main():
    HERE.mkdir(exist_ok=True)
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) / 8
    state = collections.OrderedDict()
    state["f32"] = base
    state["f64"] = base[0].double() / 3
    state["f16"] = base[1].half()
    state["bf16"] = base[1].bfloat16()
    state["i64"] = torch.tensor([1, -2, 3])
    state["bool"] = torch.tensor([True, False])
    state["scalar"] = torch.tensor(0.5)
    state["none"] = torch.empty(0, 5)
    state["slice"] = base[1]  # shares the storage
    state["parameter"] = torch.nn.Parameter(torch.tensor([[1.5, -2.5]]))
    state["one"] = torch.ones(3, 1).t()  # strides that do not matter
    state._metadata = {"": {"version": 1}}  # what Module.state_dict() leaves there
    torch.save(state, HERE / "state.bin")
    torch.save({"model": {"weight": torch.tensor([1.0, 2.0])}, "epoch": 3, "name": "x", "list": [1, 2.5, None]}, HERE / "nested.bin")
    torch.save({"t": torch.ones(2, 3).t()}, HERE / "transposed.bin")
    torch.save({"weight": torch.ones(2), "program": Program()}, HERE / "program.bin")
    torch.save(torch.nn.Linear(2, 2), HERE / "module.bin")
    torch.save({"weight": torch.ones(2)}, HERE / "legacy.bin", _use_new_zipfile_serialization=False)


main()
