#!/bin/bash
# tests/kernels/ptxas-report.sh [NVCC]: registers, spills and static shared memory of every kernel for a T4 (sm_75).
#
# One line a kernel; fails where one spills, has a stack frame, or takes more than 64 KB of static shared memory.
# Dynamic shared memory is limited by tt_shared() in cuda/common.cuh at launch. Blocks a T4 multiprocessor holds by
# registers (65,536, in units of 256 a warp) follow from the block's size, which the last column leaves to the reader:
# warps that fit.
set -u
cd "$(dirname "$0")/../.." || exit 1
nvcc=$(command -v "${1:-nvcc}" || ls /usr/local/cuda/bin/nvcc 2>/dev/null) || { echo "skipped: no nvcc"; exit 77; }
for file in cuda/*.cu; do
    "$nvcc" -I. -std=c++17 -O3 -gencode arch=compute_75,code=sm_75 -Xptxas -v -c "$file" -o /dev/null 2>&1 || exit 1
done | c++filt | awk '
    /Compiling entry function/ { name = $0; sub(/.*function ./, "", name); sub(/. for .sm_75.*/, "", name)
                                 gsub(/\(anonymous namespace\)::/, "", name); sub(/^void /, "", name)
                                 sub(/\(.*/, "", name) }
    /bytes stack frame/ { stack = $1; spill = $5 + $9 }
    /Used [0-9]+ registers/ {
        regs = $5; shared = 0
        for (i = 1; i < NF; i++) if ($(i + 2) ~ /^smem/) shared = $i
        warps = int(65536 / (int((regs * 32 + 255) / 256) * 256)); if (warps > 32) warps = 32
        bad = spill > 0 || stack > 0 || shared > 65536
        printf "%-4s %-60s %3d registers %5d B spilled %3d B stack %6d B static shared, %2d warps\n", \
               bad ? "FAIL" : "ok", name, regs, spill, stack, shared, warps
        failed += bad; n++
    }
    END { printf "%d kernels, %d failed\n", n, failed; exit failed > 0 || n == 0 }'
