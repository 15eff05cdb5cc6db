#!/usr/bin/env python3
"""translate.py IN.cu OUT.cpp: a kernel's source for the CPU (emulate.h).

Launches, dynamic shared memory and instructions written in asm become calls; what is left of these is an error.
"""
import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
rules = [
    (r"#if __CUDA_ARCH__ >= \d+.*?#else(.*?)#endif", r"\1"),
    (r"asm volatile\(\"\"[^;]*;", ""),
    (r"(\w+(?:<[\w, ]+>)?)<<<([^;]*?),\s*([^,;]*?),\s*([\w:]+),\s*\(cudaStream_t\)stream>>>\(\*(\w+)(, \w+)?\);",
     r"emulate_launch(\2, \3, \4, [=] { \1(*\5\6); });"),
    (r"extern __shared__ [^;]*? shared\[\];", r"unsigned char *shared = emulate_shared;"),
]
for pattern, replacement in rules:
    text = re.sub(pattern, replacement, text, flags=re.S)
if re.search(r"\basm\b|<<<", text):
    sys.exit(f"{sys.argv[1]}: an instruction or launch that translate.py does not know")
open(sys.argv[2], "w", encoding="utf-8").write(text)
