#!/bin/bash
# tests/kernels/base_embed.sh APART FUSED [SECONDS]: base's ways from features to embeddings, in one call of at most SECONDS (25).
#
# Folders of programs as session.sh takes them. APART: of the commit whose correlation and encoder are two kernels and whose
# gpubench knows --volumes; FUSED: of the commit with embed_base_f16.cu in the network. Golden tensors from $KERN_DATA.
# What matters most comes first; a step for which no time is left is named and left out. Into $OUT/base_embed.txt:
#   golden tensors, the new kernel alone, then a line of gpubench (256 query points, medians of 7) or gpu_traffic.sh (ncu) each:
#   fused                  no volumes in memory
#   apart 128 points-first as before it: 75 MB of volumes at a time, all levels of a tile before the next
#   apart 128, 86, 64, 43  one level of all tiles first; 75, 51, 38, 25 MB of volumes at a time
set -u
cd "$(dirname "$0")/../.." || exit 1
apart=${1:?usage: base_embed.sh APART FUSED [SECONDS]}
fused=${2:?usage: base_embed.sh APART FUSED [SECONDS]}
limit=${3:-25}
out=${OUT:-build-gpu/out}
data=${KERN_DATA:-../shared}
mkdir -p "$out"

step() { # NAME COMMAND...
    local left=$((limit - SECONDS)) name=$1
    shift
    if [ $left -lt 2 ]; then
        echo "$name: left out, no time"
        return
    fi
    echo "$name: $(timeout "$left" "$@" 2>&1 | tail -n 8) [$SECONDS s]"
}
time_of() { # NAME PROGRAM ARGUMENT...
    local name=$1 program=$2
    shift 2
    step "$name" "$program" base:11 fp16 --runs 7 "$@"
}
bytes_of() {
    local name=$1 program=$2
    shift 2
    step "$name, bytes" tests/bench/gpu_traffic.sh "$program" base:11 fp16 "$@"
}

{
    for path in native sm75; do
        step "golden, $path" "$fused/goldenkern-$path" "$data/golden/base-bear8.golden.safetensors" base:11 fp16
    done
    time_of "fused, native" "$fused/gpubench-native"
    time_of "apart 128 points-first, native" "$apart/gpubench-native" --volumes 128 --points-first
    bytes_of "fused, native" "$fused/gpubench-native"
    for points in 86 64 43; do
        time_of "apart $points, native" "$apart/gpubench-native" --volumes $points
    done
    bytes_of "apart 64, native" "$apart/gpubench-native" --volumes 64
    bytes_of "apart 43, native" "$apart/gpubench-native" --volumes 43
    time_of "fused, sm_75 path" "$fused/gpubench-sm75"
    time_of "apart 128 points-first, sm_75 path" "$apart/gpubench-sm75" --volumes 128 --points-first
    bytes_of "apart 86, native" "$apart/gpubench-native" --volumes 86
    time_of "apart 128, native" "$apart/gpubench-native" --volumes 128
    bytes_of "apart 128 points-first, native" "$apart/gpubench-native" --volumes 128 --points-first
    for path in native sm75; do # the kernels alone: embed_base_f16 k8 and, native, k16; those of small beside it
        step "alone, $path" "$fused/benchkern-$path" --json embed
    done
} | tee "$out/base_embed.txt"
