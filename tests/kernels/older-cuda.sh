#!/bin/bash
# tests/kernels/older-cuda.sh CUDA [CLANG]: do the sources compile with an older CUDA? Needs no nvcc and no GPU.
#
# CUDA: a folder with that toolkit's include, nvvm/libdevice and bin/ptxas (they come with the packages nvidia-cuda-runtime-cu12
# and nvidia-cuda-nvcc-cu12 too). Clang compiles every kernel for sm_75, sm_80 and sm_90 against its headers, its ptxas makes
# machine code; gcc compiles the host's C files against its headers. Clang is not nvcc: this finds what the headers, the
# instructions and ptxas do not have.
set -u
cd "$(dirname "$0")/../.." || exit 1
cuda=${1:?usage: older-cuda.sh CUDA [CLANG]}
clang=${2:-clang++-19}
command -v "$clang" >/dev/null || { echo "skipped: no $clang"; exit 77; }
sed -n 's/^#define CUDART_VERSION */CUDART_VERSION /p' "$cuda/include/cuda_runtime_api.h"
"$cuda/bin/ptxas" --version | tail -n 1
failed=0
for file in cuda/*.cu; do
    for arch in sm_75 sm_80 sm_90; do
        "$clang" -x cuda --cuda-path="$cuda" --cuda-gpu-arch=$arch --cuda-device-only -std=c++17 -O1 -w -I. -c "$file" \
                 -o /dev/null || { echo "FAIL $file $arch"; failed=$((failed + 1)); }
    done
done
for file in cuda/*.c; do
    gcc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -I. -isystem "$cuda/include" -fsyntax-only "$file" ||
        { echo "FAIL $file"; failed=$((failed + 1)); }
done
echo "$failed failed"
exit $((failed > 0))
