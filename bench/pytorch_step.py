#!/usr/bin/env python3
"""Times training steps of GPT-2 124M in PyTorch on the CPU: the peer that `onefold bench step` is
measured against. One step is forward, backward, clipping and AdamW, in fp32 or with bf16 products
(--autocast), on random tokens.

    python pytorch_step.py --batch 4 --sequence 256 --threads 2 --json
    python pytorch_step.py --batch 1 --sequence 1024 --threads 2 --compile --json
    python pytorch_step.py --model tiny --steps 3        for trying it out

It is written as someone would who wants PyTorch to be fast. What was tried, with the effect at
4 x 256 on two Zen 4 cores, PyTorch 2.15 with MKL (eager, as installed: 190 to 205 tokens/s):

- Keeping freed memory in the process (--malloc keep): 219. Without it a step takes 340,000 page
  faults. It costs about 0.5 GB of resident set, lost to fragmentation. Huge pages
  (THP_MEM_ALLOC_ENABLE=1) remove the faults but not the time: the kernel still zeroes every page.
- Letting MKL use its AVX-512 kernels on AMD (a library that answers `mkl_serv_intel_cpu_true`,
  preloaded; vs_pytorch.py builds it), with --malloc keep: 240. Products go from 140-200 to
  210-220 GFLOP/s; the head's, whose rows have an odd length, gains most.
  MKL_ENABLE_INSTRUCTIONS makes no difference.
- torch.compile (needs a C++ compiler; takes about 40 s): with freed memory kept, within 2 % of
  eager, and 0.5 GB smaller. The products dominate and are MKL's either way.
- Chunked loss: as fast as the full one in chunks of 512 rows, and 0.5 GB smaller; with chunks of
  the default size a step takes 1.5 times as long.
- Fused AdamW takes 40 ms and clipping 30 ms of a step of more than four seconds.
- Flushing denormals makes no difference: there are none to speak of.
- PyTorch 1.13 as Debian builds it (OpenBLAS, no fused attention): about 160.

Not tried: padding the vocabulary to 50304, which changes the model.
"""

import argparse
import contextlib
import ctypes
import json
import os
import resource
import statistics
import sys
import time

MODELS = {
    "gpt2": dict(vocab=50257, width=768, layers=12, heads=12, context=1024),
    "tiny": dict(vocab=1009, width=64, layers=2, heads=2, context=1024),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="gpt2")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    parser.add_argument("--autocast", action="store_true",
                        help="products in bf16, by torch.autocast; parameters stay fp32")
    parser.add_argument("--malloc", choices=["keep", "system"], default="keep",
                        help="keep: freed memory stays with the process; system: glibc's defaults")
    parser.add_argument("--loss", choices=["full", "chunked"], default="full",
                        help="chunked: never hold all logits at once (linear_cross_entropy)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def keep_freed_memory():
    """glibc returns every large block to the kernel when it is freed, so each step would fault in
    and zero its gigabytes of activations and gradients again. The same can be had from outside
    with MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_ and MALLOC_TOP_PAD_, or with jemalloc."""
    m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
    with contextlib.suppress(AttributeError, OSError):  # no glibc, no mallopt
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 2**31 - 1)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_top_pad, 256 << 20)


def peak_rss_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


arguments = parse_arguments()
if arguments.malloc == "keep":
    keep_freed_memory()  # before PyTorch allocates anything

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

BASELINE_RSS_BYTES = peak_rss_bytes()
HAS_SDPA = hasattr(F, "scaled_dot_product_attention")
CHUNK_ROWS = 512  # of logits at once; see the top


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x, mask):
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, length, head_dim]
        if HAS_SDPA:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            # baddbmm adds the mask in the product's own pass; q is scaled because it is smaller
            # than the scores.
            q, k, v = (t.reshape(batch * self.heads, length, -1) for t in (q, k, v))
            scores = torch.baddbmm(mask, q * q.shape[-1]**-0.5, k.transpose(1, 2))
            y = (scores.softmax(-1) @ v).view(batch, self.heads, length, -1)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x, mask):
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, vocab, width, layers, heads, context):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)  # also the head: tied
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets, mask):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x, mask)
        x = self.norm(x).flatten(0, 1)
        if arguments.loss == "chunked":
            options = nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK_ROWS,
                                                   chunking_method=None)
            return F.linear_cross_entropy(x, self.tokens.weight, targets.flatten(), options=options)
        return F.cross_entropy(F.linear(x, self.tokens.weight), targets.flatten())


def make_optimizer(model):
    """AdamW and the name of its fastest implementation here. Before 2.4 there was no fused one for
    the CPU; foreach then takes longer than the plain loop (190 ms, not 145) and more memory."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    settings = dict(lr=3e-4, betas=(0.9, 0.95))
    try:
        probe = torch.zeros(1, requires_grad=True)
        probe.grad = torch.zeros(1)
        torch.optim.AdamW([probe], fused=True).step()
        return torch.optim.AdamW(groups, fused=True, **settings), "fused"
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(groups, foreach=False, **settings), "loop"


def main():
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    shape = MODELS[arguments.model]
    model = Model(**shape)
    parameters = list(model.parameters())
    optimizer, optimizer_kind = make_optimizer(model)
    if arguments.compile and not hasattr(torch, "compile"):
        sys.exit(f"pytorch_step.py: PyTorch {torch.__version__} has no torch.compile")
    if arguments.loss == "chunked" and not hasattr(nn, "LinearCrossEntropyOptions"):
        sys.exit(f"pytorch_step.py: PyTorch {torch.__version__} has no chunked loss")
    forward = torch.compile(model, dynamic=False) if arguments.compile else model
    mask = None
    if not HAS_SDPA:
        mask = torch.full((arguments.sequence, arguments.sequence), float("-inf")).triu(1)

    def step():
        data = torch.randint(shape["vocab"], (2, arguments.batch, arguments.sequence))
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.autocast):
            loss = forward(data[0], data[1], mask)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start, loss.item()

    warmup = [step() for _ in range(arguments.warmup)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    timed = [step() for _ in range(arguments.steps)]
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    seconds = [s for s, _ in timed]
    result = {
        "torch": torch.__version__,
        "mode": "compiled" if arguments.compile else "eager",
        "precision": "bf16" if arguments.autocast else "fp32",
        "model": arguments.model,
        "parameters": sum(p.numel() for p in parameters),
        "batch": arguments.batch,
        "sequence": arguments.sequence,
        "threads": arguments.threads,
        "attention": "sdpa" if HAS_SDPA else "manual",
        "optimizer": optimizer_kind,
        "loss_kind": arguments.loss,
        "malloc": arguments.malloc,
        "preload": os.environ.get("LD_PRELOAD", ""),
        "tokens_per_second": arguments.batch * arguments.sequence / statistics.median(seconds),
        "step_seconds": seconds,
        "warmup_seconds": [s for s, _ in warmup],
        "page_faults_per_step": faults // max(1, arguments.steps),
        "peak_rss_bytes": peak_rss_bytes(),
        "baseline_rss_bytes": BASELINE_RSS_BYTES,
        "losses": [loss for _, loss in warmup + timed],
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"PyTorch {result['torch']} {result['mode']}: {result['tokens_per_second']:.1f} "
              f"tokens/s, peak {result['peak_rss_bytes'] / 2**30:.2f} GiB "
              f"({BASELINE_RSS_BYTES / 2**30:.2f} GiB after import)")


if __name__ == "__main__":
    main()
