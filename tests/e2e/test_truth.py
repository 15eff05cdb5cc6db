"""Real video with hand-made truth: delta_avg at most 0.01 below what the public code gave with the same weights, each video."""
import os
import pathlib
import subprocess
import sys

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))

if __name__ == "__main__":
    sys.exit(subprocess.call([sys.executable, SOURCE / "tests/bench/truth.py", "--check"]))
