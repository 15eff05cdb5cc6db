#!/bin/bash
# tests/kernels/session.sh [BINARIES] [STEP...]: everything that a session on a GPU runs, fail-soft; full logs under $OUT.
#
# BINARIES: a folder with programs built elsewhere, and where they were: the files `commit` and `cuda.hash` (as cuda-hash.sh
# prints it); where they do not run, or without it, all is built here. Golden tensors and weights are read from $KERN_DATA,
# clips that clips.py unpacked from $KERN_CLIPS; what is missing is skipped. STEPs, all without any: check golden selftest
# clips bench memcheck. Writes $OUT/gpu-tests.log: commit, hash of cuda/, device, and every program's counts. That file goes
# to docs/gpu-tests.log; a test holds its hash against cuda/.
set -u
cd "$(dirname "$0")/../.." || exit 1
out=${OUT:-build-gpu/out}
mkdir -p "$out"
bin=${1:-}
shift
steps=${*:-check golden selftest clips bench memcheck}
data=${KERN_DATA:-../shared}
clips=${KERN_CLIPS:-}
log=$out/gpu-tests.log

if [ -z "$bin" ] || ldd "$bin/checkkern-native" 2>&1 | grep -q 'not found\|No such'; then
    bin=build-gpu
    { cmake -S tests/kernels -B "$bin" && cmake --build "$bin" -j16; } >"$out/build.txt" 2>&1 || tail -20 "$out/build.txt"
    git log -1 --format=%h >"$bin/commit" 2>/dev/null
    tests/kernels/cuda-hash.sh >"$bin/cuda.hash"
fi
{
    echo "commit $(cat "$bin/commit")"
    echo "cuda $(cat "$bin/cuda.hash")"
    echo "device $(nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader -i 0)"
    echo "date $(date -u +%Y-%m-%dT%H:%MZ)"
} | tee "$log"

wanted() {
    [[ " $steps " == *" $1 "* ]]
}

step() { # LOG NAME SECONDS COMMAND...: appends to $out/LOG.txt, and its counts to the log
    local text=$out/$1.txt name=$2 limit=$3 start before=0 code counts
    shift 3
    start=$(date +%s)
    [ -f "$text" ] && before=$(wc -l <"$text")
    echo "== $name" >>"$text"
    timeout "$limit" "$@" >>"$text" 2>&1
    code=$?
    counts=$(tail -n +$((before + 2)) "$text" | grep -E '[0-9]+ passed, [0-9]+ failed|^skipped|ERROR SUMMARY' | tail -n 1)
    echo "$name: ${counts:-no counts}, exit code $code, $(($(date +%s) - start)) s" | tee -a "$log"
    tail -n +$((before + 2)) "$text" | grep -E '^FAIL' | head -20 | tee -a "$log"
}

small=$data/weights/tiletrack-small.safetensors
if wanted check; then
    for path in sm75 native; do
        step check "check-$path" 40 "$bin/checkkern-$path"
    done
fi
if wanted golden; then
    for path in sm75 native; do
        for precision in fp32 fp16; do
            step golden "golden-small-$precision-$path" 40 "$bin/goldenkern-$path" \
                "$data/golden/small-teddy47.golden.safetensors" "$small" "$precision"
            step golden "golden-base-$precision-$path" 40 "$bin/goldenkern-$path" \
                "$data/golden/base-bear8.golden.safetensors" base:11 "$precision"
        done
    done
fi
wanted selftest && step selftest plug-in 60 "$bin/selftestkern" "$bin/tiletrack-cuda.so" "$small"
if wanted clips && [ -n "$clips" ]; then
    for path in sm75 native; do
        step clips "clips-$path" 60 "$bin/clipkern-$path" "$clips" "$small"
    done
fi
if wanted bench; then
    for path in sm75 native; do
        step "bench-$path" "bench-$path" 60 "$bin/benchkern-$path" >/dev/null
    done
    cat "$out"/bench-sm75.txt "$out"/bench-native.txt
fi
if wanted memcheck; then
    for tool in memcheck racecheck initcheck; do
        step sanitizer "$tool" 50 compute-sanitizer --tool "$tool" "$bin/checkkern-native"
    done
fi
cat "$log"
