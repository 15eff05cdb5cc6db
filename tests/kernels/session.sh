#!/bin/bash
# tests/kernels/session.sh [BINARIES] [STEP...]: everything that a session on a GPU runs, fail-soft; full logs under $OUT.
#
# BINARIES: a folder with programs built elsewhere, as cmake -S tests/kernels -DKERN_SHARED=ON makes it (the programs, the
# libraries and the files `commit` and `cuda.hash`, alone or with all else that lies there); where they do not run, or without
# it, all is built here. Golden tensors and weights are read from $KERN_DATA, clips that clips.py unpacked from $KERN_CLIPS;
# what is missing is skipped. STEPs, all but peers without any, 150 s together:
#   check golden selftest clips   the tests
#   bench                         every kernel alone, and the ceilings
#   whole                         whole clips: both sizes and paths at 256 query points, native at 1,024 and 10,000, windows
#   sanitize                      compute-sanitizer's four tools on the kernels' tests, at the same time
#   peers                         whole clips beside PyTorch in one run (150 s): $KERN_PEERS is gpu_peer.py's PEERS
# Writes $OUT/gpu-tests.log: commit, hash of cuda/, device, and every program's counts. That file goes to docs/gpu-tests.log;
# a test holds its hash against cuda/.
set -u
cd "$(dirname "$0")/../.." || exit 1
out=${OUT:-build-gpu/out}
mkdir -p "$out"
bin=${1:-}
shift
steps=${*:-check golden selftest clips bench whole sanitize}
data=${KERN_DATA:-../shared}
clips=${KERN_CLIPS:-}
log=$out/gpu-tests.log

if [ -z "$bin" ] || ldd "$bin/checkkern-native" 2>&1 | grep -q 'not found\|No such'; then
    bin=build-gpu
    { cmake -S tests/kernels -B "$bin" && cmake --build "$bin" -j16; } >"$out/build.txt" 2>&1 || tail -20 "$out/build.txt"
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
        step check "check-$path" 120 "$bin/checkkern-$path"
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
# the weights whose answers are known are those of the repository
wanted selftest && step selftest plug-in 60 "$bin/selftestkern" "$bin/tiletrack-cuda.so" models/tiletrack-small.safetensors
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
whole() { # PATH WEIGHTS ARGUMENT...: a line of gpubench to whole.txt
    local path=$1 weights=$2
    shift 2
    timeout 20 "$bin/gpubench-$path" "$weights" "$@" 2>&1 | tee -a "$out/whole.txt"
}

if wanted whole; then
    for weights in "$small" base:11; do
        for path in native sm75; do
            whole $path "$weights" fp16
        done
        whole native "$weights" fp32
        whole native "$weights" fp16 --queries 1024
        whole native "$weights" fp16 --queries 10000 --runs 3
        whole native "$weights" fp32 --queries 10000 --runs 1
        whole native "$weights" fp16 --windows
    done
fi
if wanted sanitize; then # most of the time is the reference's, on the CPU
    for tool in memcheck racecheck initcheck synccheck; do
        (
            begin=$(date +%s)
            timeout 240 compute-sanitizer --tool "$tool" "$bin/checkkern-native" >"$out/$tool.txt" 2>&1
            code=$?
            echo "$tool: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$tool.txt" | tail -n 1)," \
                "$(grep -E '[0-9]+ passed, [0-9]+ failed' "$out/$tool.txt" | tail -n 1), exit code $code," \
                "$(($(date +%s) - begin)) s" >>"$log"
        ) &
    done
    wait
fi
if [[ " $steps " == *" peers "* ]] && [ -n "${KERN_PEERS:-}" ]; then
    timeout 200 python3 tests/bench/gpu_peer.py "$KERN_PEERS" "$small" --ours "$bin/gpubench-native=native" \
        --ours "$bin/gpubench-sm75=sm_75 path" --queries 256 --ways fast,compiled --seconds 100 2>"$out/peers.err" |
        tee "$out/peers.txt"
fi
cat "$log"
