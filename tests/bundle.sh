#!/usr/bin/env bash
# Packs a build, unpacks it elsewhere and runs it: every library but the C library's comes from the bundle.
set -euo pipefail
build=$1 source=$2
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
"$source/scripts/bundle.sh" "$build" "$stage/packed"
mkdir "$stage/elsewhere"
tar -C "$stage/elsewhere" -xzf "$stage"/packed/onefold-*.tar.gz
program=$(echo "$stage"/elsewhere/onefold-*/bin/onefold)

outside=$(env -i ldd "$program" | awk '$3 ~ /^\// {print $3}' | grep -v "^$stage/elsewhere/" |
  grep -Ev '/(libc|libm|libdl|libpthread|librt|libresolv)\.so' || true)
[ -z "$outside" ] || { echo "these come from the system: $outside"; exit 1; }

cd "$stage"
env -i HOME="$stage" "$program" --version
printf '%s' '{"model": "gpt2-tiny", "train_batch_size": 1, "data": {"train": "text.txt", "sequence_length": 16},
  "run": {"steps": 2, "output": "run"}}' > config.json
seq 2000 > text.txt
env -i HOME="$stage" "$program" train config.json --quiet
env -i HOME="$stage" "$program" generate run --prompt 12 --tokens 4 > /dev/null
grep -q '^.SH COMMANDS' "$stage"/elsewhere/onefold-*/share/man/man1/onefold.1
