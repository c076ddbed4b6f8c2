#!/usr/bin/env bash
# Packs a build into a tarball that runs on another Linux, wherever it is unpacked: the program, its plugins, completions, the
# manual page, and the libraries that a bare system lacks. The C library is the system's (as new as the build's, or
# newer); so is MPI; NVIDIA's libraries are the system's or those of Python's wheels.
#   scripts/bundle.sh BUILD OUTPUT_FOLDER
set -euo pipefail
build=$1 output=$2
version=$("$build/onefold" --version | cut -d ' ' -f 2)
name=onefold-$version-linux-$(uname -m)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

cmake --install "$build" --prefix "$stage/$name" --strip > /dev/null
root=$stage/$name
rm -rf "$root/include"
libraries=$(dirname "$(find "$root" -name 'libonefold.so.*' | head -1)")
find "$root" \( -name cmake -o -name pkgconfig \) -type d -exec rm -rf {} +
find "$root" -name 'libonefold.so*' -delete

# Of the C library, and what must be the machine's own.
system='^(linux-vdso|ld-linux|libc|libm|libdl|libpthread|librt|libresolv)[.-]'
ldd "$root/bin/onefold" | awk '$3 ~ /^\// {print $1, $3}' | while read -r soname path; do
  [[ $soname =~ $system ]] || cp -L "$path" "$libraries/$soname"
done
source=$(cd "$(dirname "$0")/.." && pwd)
cp "$source/LICENSE" "$source/NOTICE" "$source/README.md" "$root/"
mkdir -p "$output"
tar -C "$stage" -czf "$output/$name.tar.gz" "$name"
echo "$output/$name.tar.gz: $(du -h "$output/$name.tar.gz" | cut -f 1); unpack it anywhere and run $name/bin/onefold"
