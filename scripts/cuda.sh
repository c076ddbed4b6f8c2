#!/usr/bin/env bash
# Where there is an NVIDIA card and no CUDA toolkit, installs NVIDIA's wheels into build/cuda, where CMake looks for them:
# compiler, headers and libraries, about 4 GB. With a toolkit, installs what toolkits lack and attention is several times
# as fast with: cuDNN and the headers of its frontend, unless the system has them. ONEFOLD_CUDA=off leaves it out. Without a
# card nothing happens; if the wheels cannot be had, the build goes on without the device cuda, or with slower attention.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${ONEFOLD_CUDA_FOLDER:-build/cuda}
wheels=(nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cublas)
extras=(nvidia-cudnn-cu13 nvidia-cudnn-frontend nvidia-nccl-cu13 nvidia-nvtx)
log=build/cuda.log

has_card() { command -v nvidia-smi > /dev/null && nvidia-smi -L 2> /dev/null | grep -q '^GPU '; }

# 13 or later, on the PATH or where NVIDIA's packages put it: its folder is in `toolkit`.
has_toolkit() {
  local nvcc release
  for nvcc in "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    [ -x "$nvcc" ] || continue
    release=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    [ "${release:-0}" -ge 13 ] && return 0
  done
  return 1
}

has_header() {
  local folder
  for folder in "$toolkit/include" ${ONEFOLD_SYSTEM_INCLUDE:-/usr/include /usr/local/include "/usr/include/$(uname -m)-linux-gnu"}; do
    [ -e "$folder/$1" ] && return 0
  done
  return 1
}

install_wheels() {
  mkdir -p build "$folder"
  python3 -m pip --version > /dev/null 2>&1 || scripts/setup.sh python3-pip
  python3 -m pip install --quiet --no-deps --upgrade --target "$folder" "$@" > "$log" 2>&1 && return 0
  tail -5 "$log" >&2
  return 1
}

complete_toolkit() {
  local lacking=()
  [ -e "$folder/cudnn" ] && return 0
  has_header cudnn.h || lacking+=(nvidia-cudnn-cu13)
  has_header cudnn_frontend.h || lacking+=(nvidia-cudnn-frontend)
  [ ${#lacking[@]} -eq 0 ] && return 0
  echo "cuda: the toolkit lacks ${lacking[*]}: installing NVIDIA's wheels into $folder (ONEFOLD_CUDA=off leaves that out)"
  if install_wheels "${lacking[@]}"; then
    touch "$folder/cudnn"
  else
    echo "cuda: the wheels could not be installed (the whole log is in $log); attention in 16 bits will run on slower kernels" >&2
  fi
}

[ "${ONEFOLD_CUDA:-on}" = off ] && exit 0
has_card || exit 0
if has_toolkit; then
  complete_toolkit
  exit 0
fi
[ -e "$folder/complete" ] && exit 0

echo "cuda: a card and no toolkit: installing NVIDIA's wheels into $folder (about 4 GB; ONEFOLD_CUDA=off leaves that out)"
pinned=()
for wheel in "${wheels[@]}"; do pinned+=("$wheel==13.*"); done
if ! install_wheels "${pinned[@]}" "${extras[@]}"; then
  echo "cuda: the wheels could not be installed (the whole log is in $log); going on without the device cuda" >&2
  exit 0
fi

# Wheels have the libraries under the names that programs load; linking looks for the plain ones, in lib64.
toolkit=$folder/nvidia/cu13
for library in cudart cublas cublasLt; do ln -sfn "lib$library.so.13" "$toolkit/lib/lib$library.so"; done
ln -sfn lib "$toolkit/lib64"
touch "$folder/complete"
