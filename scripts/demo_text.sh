#!/usr/bin/env bash
# The text that the demo trains on, as demo/text.txt: TEXT, or the King James Bible (Debian's bible-kjv). Prints a prompt.
#   scripts/demo_text.sh [TEXT]
set -euo pipefail
text=${1:-}
mkdir -p demo
if [ -n "$text" ]; then
  [ -r "$text" ] || { echo "demo: cannot read $text" >&2; exit 1; }
  cp "$text" demo/text.txt
  head -c 24 demo/text.txt | tr '\n' ' '
elif command -v bible > /dev/null; then
  bible -f 'gen1:1-rev22:21' | sed -E 's/^[^ ]+ //' > demo/text.txt  # without the verse numbers
  echo "And it came to pass"
else
  echo "demo: the bible program (Debian's bible-kjv) is not here; name a text: make demo TEXT=my.txt" >&2
  exit 1
fi
