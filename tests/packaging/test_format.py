"""clang-format decides the layout of every C and CUDA file (the rules stand in .clang-format)."""
import pathlib
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    if not shutil.which("clang-format"):
        print("skipped: clang-format is not installed")
        sys.exit(77)
    files = [str(path) for folder in ("core", "cuda", "config", "daemon", "tests")
             for path in sorted((SOURCE / folder).rglob("*")) if path.suffix in (".c", ".h", ".cu", ".cuh")]
    print(f"{len(files)} files")
    sys.exit(subprocess.call(["clang-format", "--dry-run", "--Werror", *files]))
