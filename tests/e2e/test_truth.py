"""Real video with hand-made truth: delta_avg at most 0.01 below what the public code gave with the same weights, each video.

The weights are the shared ones, which the public code's figures belong to, whatever models/ holds by now.
"""
import subprocess
import sys

from programs import SHARED, SOURCE

if __name__ == "__main__":
    weights = SHARED / "weights" / "tiletrack-small.safetensors"
    sys.exit(subprocess.call([sys.executable, SOURCE / "tests/bench/truth.py", "--check", f"--option=--model={weights}"]))
