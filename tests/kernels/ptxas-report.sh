#!/bin/bash
# tests/kernels/ptxas-report.sh [LAUNCHES]: registers, spills, shared memory and occupancy of every kernel on a T4 (sm_75).
#
# One line a kernel, from what the compiler says and, with LAUNCHES (the program launches.c), from what the network asks for
# when it launches it: threads of a block, dynamic shared memory, blocks of its smallest and largest launch, and how many
# warps a multiprocessor holds: 65,536 registers in units of 256 a warp, 64 KiB of shared memory, 32 warps, 16 blocks. A
# kernel that the network does not launch on a T4 has none of these. Fails where a kernel spills, has a stack frame, or takes
# more than 64 KiB of shared memory. Skips (77) without nvcc.
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
nvcc=$(command -v "${NVCC:-nvcc}" || ls /usr/local/cuda/bin/nvcc 2>/dev/null) || { echo "skipped: no nvcc"; exit 77; }
launched=$(mktemp) said=$(mktemp)
trap 'rm -f "$launched" "$said"' EXIT
if [ $# -gt 0 ]; then
    "$1" >"$launched" || exit 1
fi
for file in cuda/*.cu; do
    "$nvcc" -I. -std=c++17 -O3 -gencode arch=compute_75,code=sm_75 -Xptxas -v -c "$file" -o /dev/null || exit 1
done >"$said" 2>&1 || { tail -n 20 "$said"; exit 1; }
awk -v launched="$launched" '
    BEGIN {
        while ((getline line <launched) > 0) {
            split(line, f, "\t")
            threads[f[1]] = f[2]; dynamic[f[1]] = f[3]; least[f[1]] = f[4]; most[f[1]] = f[5]
        }
    }
    function smaller(a, b) { return a < b ? a : b }
    /Compiling entry function/ { name = $0; sub(/.*function ./, "", name); sub(/. for .sm_75.*/, "", name) }
    /bytes stack frame/ { stack = $1; spill = $5 + $9 }
    /Used [0-9]+ registers/ {
        regs = $5; shared = 0
        for (i = 1; i < NF; i++) if ($(i + 2) ~ /^smem/) shared = $i
        all = shared + dynamic[name]
        bad = spill > 0 || stack > 0 || all > 65536
        printf "%s\t%s\t%d registers, %d B spilled, %d B stack, %d + %d B shared", bad ? "FAIL" : "ok", name, regs, spill, \
               stack, shared, dynamic[name]
        if (name in threads) {
            warps = int((threads[name] + 31) / 32)
            blocks = smaller(16, int(32 / warps))
            blocks = smaller(blocks, int(65536 / (int((regs * 32 + 255) / 256) * 256 * warps)))
            if (all > 0) blocks = smaller(blocks, int(65536 / all))
            bad = bad || blocks == 0
            printf "; %d threads, %d warps of 32 a multiprocessor, launches of %d to %d blocks", threads[name], \
                   blocks * warps, least[name], most[name]
        }
        printf "\n"
        failed += bad; n++
    }
    END { printf "%d kernels, %d failed\n", n, failed; exit failed > 0 || n == 0 }' "$said" | c++filt |
    sed -e 's/(anonymous namespace):://g' -e 's/\tvoid /\t/' -e 's/(enum\|(bool)//g' | sed -E 's/\t([^\t]*)\([^\t]*\)\t/\t\1\t/; s/\t/  /g'
