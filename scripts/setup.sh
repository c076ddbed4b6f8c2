#!/usr/bin/env bash
# Installs what building, testing and the demo need, and the packages named as arguments, if they are missing. Debian 12
# and relatives; elsewhere, it says what to install by hand (docs/dependencies.md gives the reason for each).
set -euo pipefail

packages=(
  cmake ninja-build g++ pkg-config
  libdnnl-dev libhwy-dev libfmt-dev nlohmann-json3-dev libcli11-dev libonig-dev libutf8proc-dev
  libxxhash-dev libhwloc-dev liburing-dev zlib1g-dev libzstd-dev libopenmpi-dev openmpi-bin
  libgtest-dev clang-format bible-kjv
  "$@"
)
mkdir -p build

missing=()
if command -v dpkg-query > /dev/null; then
  for package in "${packages[@]}"; do
    dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2> /dev/null | grep -q '^ii' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && exit 0
fi
if ! command -v apt-get > /dev/null; then
  echo "setup: no apt-get here; if the build fails, install the counterparts of: ${packages[*]}" >&2
  exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo > /dev/null || { echo "setup: run as root: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=build/setup.log
if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" apt-get install -y --no-install-recommends "${missing[@]}"; } \
  > "$log" 2>&1; then
  tail -20 "$log" >&2
  echo "setup: apt-get failed; the whole log is in $log" >&2
  exit 1
fi
