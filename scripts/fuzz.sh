#!/usr/bin/env bash
# Builds the fuzz targets' program and runs each for so many seconds, several at a time. Fails if one of them finds something.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-20}

mkdir -p build/fuzz
cmake --preset asan > build/configure-asan.log 2>&1 || { cat build/configure-asan.log; exit 1; }
cmake --build --preset asan -j "$(nproc)" --target fuzz

run() {  # TARGET SECONDS
  local corpus=build/fuzz/corpus/$1 log=build/fuzz/$1.log
  mkdir -p "$corpus"
  if ONEFOLD_FUZZ_TARGET=$1 build/asan/tests/fuzz/fuzz -max_total_time="$2" -timeout=10 -malloc_limit_mb=512 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix=build/fuzz/"$1"- "$corpus" tests/fuzz/corpus/"$1" > "$log" 2>&1; then
    awk -v target="$1" '/number_of_executed_units/ {printf "%-14s %s executions\n", target, $2}' "$log"
  else
    tail -60 "$log"
    echo "fuzz: $1 found something; the input is in build/fuzz, the whole log in $log"
    return 1
  fi
}
export -f run
ls tests/fuzz/corpus | xargs -P "$(nproc)" -I TARGET bash -c "run TARGET $seconds"
