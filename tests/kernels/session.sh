#!/bin/bash
# tests/kernels/session.sh [BINARIES]: everything that a session on a GPU runs, fail-soft; full logs under $OUT.
#
# BINARIES: a folder with programs built elsewhere (build-kernels); where they do not run, or without it, all is
# built here. Golden tensors and weights are read from $KERN_DATA where they are there.
set -u
cd "$(dirname "$0")/../.." || exit 1
out=${OUT:-build-gpu/out}
mkdir -p "$out"
bin=${1:-}
data=${KERN_DATA:-../shared}
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader | tee "$out/device.txt"
git log -1 --format='commit %h' 2>/dev/null | tee -a "$out/device.txt"

if [ -z "$bin" ] || ldd "$bin/checkkern-native" 2>&1 | grep -q 'not found\|No such'; then
    bin=build-gpu
    { cmake -S tests/kernels -B "$bin" && cmake --build "$bin" -j16; } >"$out/build.txt" 2>&1 || tail -20 "$out/build.txt"
fi

step() { # LOG NAME SECONDS COMMAND...: appends to $out/LOG.txt
    local log=$out/$1.txt name=$2 limit=$3 start before=0
    shift 3
    start=$(date +%s)
    [ -f "$log" ] && before=$(wc -l <"$log")
    echo "== $name" >>"$log"
    timeout "$limit" "$@" >>"$log" 2>&1
    echo "== $name: exit code $?, $(($(date +%s) - start)) s"
    tail -n +$((before + 2)) "$log" | grep -v '^ok' | head -30
}

for path in sm75 native; do
    step check "check-$path" 40 "$bin/checkkern-$path"
done
for path in sm75 native; do
    step golden "golden-small-$path" 40 "$bin/goldenkern-$path" "$data/golden/small-teddy47.golden.safetensors" \
        "$data/weights/tiletrack-small.safetensors"
done
for path in sm75 native; do
    step golden "golden-small-fp16-$path" 40 "$bin/goldenkern-$path" "$data/golden/small-teddy47.golden.safetensors" \
        "$data/weights/tiletrack-small.safetensors" fp16
done
step golden golden-base-native 40 "$bin/goldenkern-native" "$data/golden/base-bear8.golden.safetensors" base:11
step selftest plug-in 60 "$bin/selftestkern" "$bin/tiletrack-cuda.so" "$data/weights/tiletrack-small.safetensors"
for path in sm75 native; do
    step "bench-$path" "bench-$path" 60 "$bin/benchkern-$path" >/dev/null
done
step memcheck memcheck 50 compute-sanitizer --tool memcheck "$bin/checkkern-native" | tail -n 5
cat "$out"/bench-sm75.txt "$out"/bench-native.txt
grep -h -e '^== ' -e ' passed, ' "$out"/check.txt "$out"/golden.txt "$out"/selftest.txt
