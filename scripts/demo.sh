#!/usr/bin/env bash
# The demo: learn a vocabulary, train a small GPT with ZeRO-3 on two ranks for about a minute, and read what it writes.
#   scripts/demo.sh BINARY [TEXT]     TEXT defaults to the King James Bible (Debian's bible-kjv)
set -euo pipefail
onefold=$1 text=${2:-}
prompt=$("$(dirname "$0")/demo_text.sh" "$text")

"$onefold" tokenize train demo/text.txt --vocab-size 2048 --output demo/tokenizer.json --overwrite
# On the first card, if there is one that this build can use.
device=()
if "$onefold" train examples/demo/config.json --ranks 2 --device cuda:0 --plan-only > /dev/null 2>&1; then
  device=(--device cuda:0)
fi
"$onefold" train examples/demo/config.json --ranks 2 --overwrite "${device[@]}"
echo
echo "What it writes after '$prompt':"
echo
"$onefold" generate demo/run --prompt "$prompt" --tokens 220 --temperature 0.8 --top-k 50
echo
echo "Go on:   $onefold generate demo/run --prompt 'In the beginning' --temperature 0.7"
echo "Curves:  tensorboard --logdir demo/run/tensorboard   (numbers: demo/run/metrics.jsonl)"
