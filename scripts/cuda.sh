#!/usr/bin/env bash
# Where there is an NVIDIA card and no CUDA toolkit, installs NVIDIA's wheels into build/cuda, where CMake looks for them:
# compiler, headers and libraries, about 4 GB. ONEFOLD_CUDA=off leaves it out. Without a card, or with a toolkit, nothing
# happens; if the wheels cannot be had, the build goes on without the device cuda.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=${ONEFOLD_CUDA_FOLDER:-build/cuda}
wheels=(nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cublas)
extras=(nvidia-cudnn-cu13 nvidia-cudnn-frontend nvidia-nccl-cu13 nvidia-nvtx)

has_card() { command -v nvidia-smi > /dev/null && nvidia-smi -L 2> /dev/null | grep -q '^GPU '; }

# 13 or later, on the PATH or where NVIDIA's packages put it.
has_toolkit() {
  local nvcc release
  for nvcc in "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc"; do
    [ -x "$nvcc" ] || continue
    release=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    [ "${release:-0}" -ge 13 ] && return 0
  done
  return 1
}

[ "${ONEFOLD_CUDA:-on}" = off ] && exit 0
has_card || exit 0
has_toolkit && exit 0
[ -e "$folder/complete" ] && exit 0

mkdir -p build "$folder"
log=build/cuda.log
echo "cuda: a card and no toolkit: installing NVIDIA's wheels into $folder (about 4 GB; ONEFOLD_CUDA=off leaves that out)"
python3 -m pip --version > /dev/null 2>&1 || scripts/setup.sh python3-pip
pinned=()
for wheel in "${wheels[@]}"; do pinned+=("$wheel==13.*"); done
if ! python3 -m pip install --quiet --no-deps --upgrade --target "$folder" "${pinned[@]}" "${extras[@]}" > "$log" 2>&1; then
  tail -5 "$log" >&2
  echo "cuda: the wheels could not be installed (the whole log is in $log); going on without the device cuda" >&2
  exit 0
fi

# Wheels have the libraries under the names that programs load; linking looks for the plain ones, in lib64.
toolkit=$folder/nvidia/cu13
for library in cudart cublas cublasLt; do ln -sfn "lib$library.so.13" "$toolkit/lib/lib$library.so"; done
ln -sfn lib "$toolkit/lib64"
touch "$folder/complete"
