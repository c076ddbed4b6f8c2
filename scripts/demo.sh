#!/usr/bin/env bash
# The demo: learn a vocabulary, train a small GPT with ZeRO-3 on two ranks for about a minute, and read what it writes.
#   scripts/demo.sh BINARY [TEXT]     TEXT defaults to the King James Bible (Debian's bible-kjv)
set -euo pipefail
onefold=$1 text=${2:-}
mkdir -p demo
if [ -n "$text" ]; then
  [ -r "$text" ] || { echo "demo: cannot read $text" >&2; exit 1; }
  cp "$text" demo/text.txt
  prompt=$(head -c 24 demo/text.txt | tr '\n' ' ')
elif command -v bible > /dev/null; then
  bible -f 'gen1:1-rev22:21' | sed -E 's/^[^ ]+ //' > demo/text.txt  # without the verse numbers
  prompt="And it came to pass"
else
  echo "demo: the bible program (Debian's bible-kjv) is not here; name a text: make demo TEXT=my.txt" >&2
  exit 1
fi

"$onefold" tokenize train demo/text.txt --vocab-size 2048 --output demo/tokenizer.json --overwrite
"$onefold" train examples/demo/config.json --ranks 2 --overwrite
echo
echo "What it writes after '$prompt':"
echo
"$onefold" generate demo/run --prompt "$prompt" --tokens 220 --temperature 0.8 --top-k 50
echo
echo "Go on:   $onefold generate demo/run --prompt 'In the beginning' --temperature 0.7"
echo "Curves:  tensorboard --logdir demo/run/tensorboard   (numbers: demo/run/metrics.jsonl)"
