#!/bin/bash
# tests/kernels/on-gpu.sh COMMAND...: runs the command where there is an NVIDIA GPU; otherwise says so and exits with 77.
if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    echo "skipped: no NVIDIA GPU on this machine"
    exit 77
fi
exec "$@"
