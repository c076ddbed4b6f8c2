#!/usr/bin/env bash
# Installs Onefold from a build tree into a scratch folder, and builds and runs examples/embed against that alone, found by
# CMake and by pkg-config. Looks for what an installation has besides.
set -euo pipefail
build=$1 source=$2
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
cmake --install "$build" --prefix "$stage/onefold" > /dev/null
"$stage/onefold/bin/onefold" --version
cmake -S "$source/examples/embed" -B "$stage/build" -DCMAKE_PREFIX_PATH="$stage/onefold" > /dev/null
cmake --build "$stage/build" > /dev/null
"$stage/build/embed"

# Moved, as packages are.
mv "$stage/onefold" "$stage/moved"
export PKG_CONFIG_PATH=$(dirname "$(find "$stage/moved" -name onefold.pc)")
c++ -std=c++20 "$source/examples/embed/main.cpp" $(pkg-config --cflags --libs onefold) -o "$stage/embed"
LD_LIBRARY_PATH=$(pkg-config --variable=libdir onefold) "$stage/embed" > /dev/null
[ "$(pkg-config --modversion onefold)" = "$("$stage/moved/bin/onefold" --version | cut -d ' ' -f 2)" ]

share=$stage/moved/share
grep -q '^.SH COMMANDS' "$share/man/man1/onefold.1"
grep -q '^#compdef onefold' "$share/zsh/site-functions/_onefold"
grep -q '^complete -c onefold' "$share/fish/vendor_completions.d/onefold.fish"
(source "$share/bash-completion/completions/onefold" && complete -p onefold)
