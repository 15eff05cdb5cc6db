#!/usr/bin/env python3
"""translate.py IN.cu OUT.cpp: a kernel's source for the CPU (emulate.h).

Launches, dynamic shared memory and instructions written in asm become calls; what is left of these is an error.
"""
import re
import sys

text = open(sys.argv[1], encoding="utf-8").read()
rules = [
    (r"#if __CUDA_ARCH__ >= \d+.*?#else(.*?)#endif", r"\1"),
    (r"asm\(\"mma\.sync\.aligned\.m16n8k8[^;]*; *\"[^;]*\);", "const uint32_t a[4] = {a0, a1, 0, 0}; emulate_mma(c, a, b, 0);"),
    (r"asm volatile\(\"\"[^;]*;", ""),
    (r"uint4 v;\s*asm volatile\(.*?@p ld\.global.*?\);\s*return v;", "return there ? *(const uint4 *)from : uint4();"),
    (r"(\w+(?:<[\w, ]+>)?)<<<([^;]*?),\s*([^,;]*?),\s*([\w:]+),\s*\(cudaStream_t\)stream>>>\(\*(\w+)(, \w+)?\);",
     r"emulate_launch(\2, \3, \4, [=] { \1(*\5\6); });"),
    (r"extern __shared__ [^;]*? shared\[\];", r"unsigned char *shared = emulate_shared;"),
    (r"uint32_t x;\s*asm volatile\(\"movmatrix.*?\(tt_pack\((.*?)\)\)\);\s*return x;",
     r"return emulate_transpose(tt_pack(\1));"),
]
for pattern, replacement in rules:
    text = re.sub(pattern, replacement, text, flags=re.S)
if re.search(r"\basm\b|<<<", text):
    sys.exit(f"{sys.argv[1]}: an instruction or launch that translate.py does not know")
open(sys.argv[2], "w", encoding="utf-8").write(text)
