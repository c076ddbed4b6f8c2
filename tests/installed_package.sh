#!/usr/bin/env bash
# Installs Onefold from a build tree into a scratch folder, and builds and runs examples/embed against that alone.
set -euo pipefail
build=$1 source=$2
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cmake --install "$build" --prefix "$stage/onefold" > /dev/null
"$stage/onefold/bin/onefold" --version
cmake -S "$source/examples/embed" -B "$stage/build" -DCMAKE_PREFIX_PATH="$stage/onefold" > /dev/null
cmake --build "$stage/build" > /dev/null
"$stage/build/embed"
