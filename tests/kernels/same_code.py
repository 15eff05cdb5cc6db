#!/usr/bin/env python3
"""same_code.py OLD [NEW]: does the GPU get the same from cuda/ at commit OLD and at NEW (default: the working tree)?

Needs nvcc and git, no GPU. Two questions, each answered kernel by kernel and line by line:

code: the PTX that the compiler makes of every kernel for compute_75, 80 and 90. Where it is the same, so is everything that
is made of it. Where it differs (but for what hangs on a file's path and contents: names of its anonymous namespace, numbers of
labels), ptxas makes the machine code of both for each card that we build for, and of compute_75 for sm_90, the tests' T4 path;
instructions, registers, shared memory, parameters and constants are compared byte by byte. A file that differs in comments and
blanks only, with all that it includes, is compiled once; where all of cuda/ does, nothing is.

A file of kernels that is gone is no difference by itself; that nobody launched them is what the launches say.

launches: what record.c writes down of whole clips: every launch with its arguments, every copy with what the host sends (so
the packed weights too), events, graphs and memory, in order. core/ is the working tree's on both sides.

Prints what differs; exit status 0: nothing, 1: something, 77: a tool or the commit is missing.
"""
import concurrent.futures
import difflib
import functools
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
VIRTUAL = ("75", "80", "90")
ASSEMBLED = (("75", "75"), ("75", "90"), ("80", "80"), ("90", "90"))
CORE = ("calibration", "formula", "plan", "plan_cuda", "status", "model", "weights", "sha256")
SHOWN = 12


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def tool(name):
    found = shutil.which(name, path=os.environ["PATH"] + ":/usr/local/cuda/bin")
    return found or skip(f"no {name}")


def run(*command, **keywords):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **keywords)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


@functools.lru_cache(maxsize=None)
def short(name):
    """A name without what a file's path and contents put into it: the hashes of its anonymous namespace."""
    length = re.match(r"\d+", name)[0]
    scope, rest = name[len(length):][:int(length)], name[len(length):][int(length):]
    return re.sub(r"^_GLOBAL__N__[0-9a-f]{8}_\d+_(\w+)_[0-9a-f]{8}$", r"_\1_", scope) + rest


def plain(text):
    return re.sub(r"\d+_GLOBAL__N__\w*", lambda match: short(match[0]), text)


class Tree:
    """cuda/ at a commit (None: the working tree), compiled."""

    def __init__(self, commit, folder):
        self.folder = folder.resolve()
        folder.mkdir()
        for name in ("core", "tests"):
            (folder / name).symlink_to(SOURCE / name)
        if commit:
            archive = subprocess.run(["git", "-C", SOURCE, "archive", commit, "cuda"], capture_output=True)
            if archive.returncode:
                skip(f"commit {commit} is not here: {archive.stderr.decode().strip()}")
            subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        else:
            shutil.copytree(SOURCE / "cuda", folder / "cuda")
        self.kernels = sorted(path.stem for path in (folder / "cuda").glob("*.cu"))

    def tokens(self, name):
        """A file of cuda/ without comments and blanks, and after it those that it includes."""
        text = (self.folder / "cuda" / name).read_text()
        text = re.sub(r"/\*.*?\*/|//[^\n]*|(\"(?:\\.|[^\"\\])*\")", r"\1 ", text, flags=re.S)
        own = re.findall(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*\n|\w+|\"(?:\\.|[^\"\\])*\"|[^\w\s\"]+", text, re.M)
        return [own] + [self.tokens(file) for file in re.findall(r'#include "cuda/(.*?)"', text)]

    def files(self):
        return {path.name for path in (self.folder / "cuda").iterdir() if path.suffix in (".c", ".h", ".cu", ".cuh")}

    def take(self, name, other):
        """Another tree's kernels of the same file."""
        (self.folder / name).symlink_to(other.folder / name)

    def compile_kernels(self, name):
        (self.folder / name).mkdir()
        codes = [word for arch in VIRTUAL for word in ("-gencode", f"arch=compute_{arch},code=compute_{arch}")]
        run(tool("nvcc"), "-I.", "-std=c++17", "-O3", "-w", *codes, "--keep", "--keep-dir", name, "-c", f"cuda/{name}.cu",
            "-o", f"{name}/{name}.o", cwd=self.folder)

    def compile_host(self, _):
        include = pathlib.Path(tool("nvcc")).resolve().parents[1] / "include"
        files = [path for path in sorted((self.folder / "cuda").glob("*.c")) if path.name != "plugin.c"]
        files += [self.folder / "core" / f"{name}.c" for name in CORE]
        files += [self.folder / "tests/kernels" / name for name in ("record.c", "launching.c")]
        (self.folder / "host").mkdir()
        for file in files:
            run("gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-I.", "-isystem", include, "-c", file, "-o",
                f"host/{file.stem}.o", cwd=self.folder)

    def ptx(self, name, arch):
        return (self.folder / name / f"{name}.compute_{arch}.ptx").read_text()

    def entries(self, name, arch):
        """A file's PTX, one text a kernel, and what stands outside of them."""
        text = re.sub(r"(?m)^\s*//.*\n", "", self.ptx(name, arch))
        parts = re.split(r"(?m)^(?=(?:\.visible |\.weak )?\.entry )", text)
        found = {f"{name}: outside of kernels": parts[0]}
        for part in parts[1:]:
            found[re.search(r"\.entry (\w+)", part)[1]] = re.sub(r"\$L__BB\d+_", "$L_", part)
        return {plain(key): plain(part) for key, part in found.items()}

    def parameters(self):
        """A line a kernel: its name and the sizes of its parameters."""
        lines = []
        for name in self.kernels:
            for entry, arguments in re.findall(r"\.entry (\w+)\(([^)]*)\)", self.ptx(name, "75")):
                sizes = [str(int(count)) if count else str(int(bits) // 8) for bits, count in
                         re.findall(r"\.param (?:\.align \d+ )?\.[a-z](\d+) \w+(?:\[(\d+)\])?", arguments)]
                lines.append(" ".join([entry, *sizes]))
        return "\n".join(lines) + "\n"

    def record(self):
        (self.folder / "parameters").write_text(self.parameters())
        objects = [path for name in (*self.kernels, "host") for path in sorted((self.folder / name).glob("*.o"))]
        run("g++", "-rdynamic", *objects, "-ljansson", "-lm", "-o", "record", cwd=self.folder)
        return plain(run("./record", "parameters", cwd=self.folder)).splitlines()

    def machine_code(self, name, virtual, real):
        cubin = self.folder / name / f"{virtual}-{real}.cubin"
        run(tool("ptxas"), f"-arch=sm_{real}", "-O3", self.folder / name / f"{name}.compute_{virtual}.ptx", "-o", cubin)
        return sections(cubin.read_bytes())


def sections(elf):
    """Of a cubin: section -> what a kernel is on the card: its bytes, size and registers. Without the symbols."""
    at, = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", elf, at + i * size) for i in range(count)]
    text = headers[names][4]
    found = {}
    for name, kind, flags, _, offset, length, _, info, align, _ in headers:
        title = elf[text + name:elf.index(b"\0", text + name)].decode()
        if re.match(r"\.(text|nv\.info|nv\.constant\d|nv\.shared|nv\.local|nv\.global)", title) and title != ".nv.info":
            body = b"" if kind == 8 else elf[offset:offset + length]  # 8: SHT_NOBITS
            found[plain(title)] = (body, length, align, info >> 24 if title.startswith(".text") else 0)
    return found


def compare_code(old, new):
    """Lines of what differs."""
    problems, other_ptx, kernels = [], set(), set()
    problems += [f"cuda/{name}.cu is new" for name in sorted(set(new.kernels) - set(old.kernels))]
    for name in sorted(set(old.kernels) - set(new.kernels)):
        print(f"cuda/{name}.cu is gone: where it was launched, the launches differ")
    for name in sorted(set(old.kernels) & set(new.kernels)):
        for arch in VIRTUAL:
            a, b = old.entries(name, arch), new.entries(name, arch)
            kernels |= {key for key in b if "outside" not in key}
            differ = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
            if differ:
                other_ptx.add(name)
    for name in sorted(other_ptx):
        for virtual, real in ASSEMBLED:
            a, b = old.machine_code(name, virtual, real), new.machine_code(name, virtual, real)
            problems += [f"{name}.cu, compute_{virtual} on sm_{real}: {key} differs"
                         for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]
    text = "the same PTX in every file" if not other_ptx else \
        f"the same PTX but in {', '.join(sorted(other_ptx))}, whose machine code was compared"
    print(f"code: {len(kernels)} kernels, {text}; {len(problems)} differences")
    return problems


def compare_launches(old, new):
    a, b = old.record(), new.record()
    problems = [line for line in difflib.unified_diff(a, b, "old", "new", n=0, lineterm="")] if a != b else []
    launches = sum(line.startswith("_Z") for line in b)
    print(f"launches: {launches} launches among {len(b)} lines; {len(problems)} lines differ")
    return problems


def build(old, new):
    """Compiles both, a file of kernels that is the same in both once."""
    same = {name for name in old.kernels if name in new.kernels and old.tokens(f"{name}.cu") == new.tokens(f"{name}.cu")}
    jobs = [(old.compile_kernels, name) for name in old.kernels] + [(old.compile_host, None), (new.compile_host, None)]
    jobs += [(new.compile_kernels, name) for name in new.kernels if name not in same]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for done in [pool.submit(act, name) for act, name in jobs]:
            done.result()
    for name in same:
        new.take(name, old)


def compare(old, new):
    """Lines of what differs."""
    if old.files() == new.files() and all(old.tokens(name) == new.tokens(name) for name in old.files()):
        print("the sources are the same but for comments and blanks")
        return []
    tool("nvcc")
    build(old, new)
    return compare_code(old, new) + compare_launches(old, new)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    tool("git")
    with tempfile.TemporaryDirectory() as folder:
        problems = compare(Tree(sys.argv[1], pathlib.Path(folder) / "old"),
                           Tree(sys.argv[2] if len(sys.argv) > 2 else None, pathlib.Path(folder) / "new"))
    for line in problems[:SHOWN]:
        print(line[:400])
    if len(problems) > SHOWN:
        print(f"and {len(problems) - SHOWN} more")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
