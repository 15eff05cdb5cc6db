#!/bin/bash
# tests/bench/gpu_traffic.sh GPUBENCH WEIGHTS [OPTION...]: device-memory traffic of one whole clip, by ncu.
#
# GPUBENCH: tests/kernels/gpubench of either path; WEIGHTS and options are its own (base:1, fp16, --queries 256,
# --tile 256,16). Range replay (of the application: the plain one does not allow what launches call) over the whole clip, after
# two that warm up; caches are neither flushed nor warmed between kernels.
# One line: bytes read from and written to device memory, and what passed between multiprocessors and L2. Needs Nsight
# Compute and the right to read counters; exits with 77 and says so where they are not there.
set -u
program=${1:?usage: gpu_traffic.sh GPUBENCH WEIGHTS [OPTION...]}
shift
metrics=dram__bytes_read.sum,dram__bytes_write.sum,lts__t_bytes.sum
ncu=$(command -v ncu) || { echo "skipped: no ncu"; exit 77; }
text=$("$ncu" --replay-mode app-range --cache-control none --clock-control none --print-units base --metrics "$metrics" \
              "$program" "$@" --range 2>&1)
if grep -q ERR_NVGPUCTRPERM <<<"$text"; then
    echo "skipped: the counters are not open to this user"
    exit 77
fi
awk -v what="$*" '
    /dram__bytes_read.sum / { gsub(",", "", $3); read = $3; n++ }
    /dram__bytes_write.sum / { gsub(",", "", $3); written = $3; n++ }
    /lts__t_bytes.sum / { gsub(",", "", $3); l2 = $3; n++ }
    END {
        if (n != 3)
            exit 1
        printf "%s: device memory %.3f GB (read %.3f, written %.3f); between multiprocessors and L2 %.2f GB\n", what, \
               (read + written) / 1e9, read / 1e9, written / 1e9, l2 / 1e9
    }' <<<"$text" || { echo "ncu gave no figures:"; tail -n 20 <<<"$text"; exit 1; }
