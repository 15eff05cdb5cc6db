#!/bin/bash
# tests/kernels/cuda-hash.sh: one hash of everything under cuda/, names and contents. docs/gpu-tests.log carries that of the
# sources that were tested on a device.
cd "$(dirname "$0")/../.." || exit 1
find cuda -type f ! -name '.*' | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum | cut -d ' ' -f 1
