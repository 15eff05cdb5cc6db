#!/bin/bash
# tests/kernels/clips.sh CLIPKERN WEIGHTS: decodes and packs the clips, unpacks them and runs clipkern on them. Needs the main
# tree's programs (TILETRACK_BIN) and the shared videos; skips without them.
here=$(dirname "$0")
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
if ! { "${TT_PYTHON:-/usr/bin/python3}" "$here/clips.py" pack "$folder/packed" &&
       "${TT_PYTHON:-/usr/bin/python3}" "$here/clips.py" unpack "$folder/packed" "$folder"; } >"$folder/log" 2>&1; then
    echo "skipped: the clips could not be decoded: $(tail -n 1 "$folder/log")"
    exit 77
fi
"$1" "$folder" "$2"
