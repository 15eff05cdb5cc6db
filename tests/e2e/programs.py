"""What the end-to-end tests share: the real programs, small videos made by ffmpeg, track files read by NumPy."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("TILETRACK_BIN", SOURCE / "build" / "bin"))
SHARED = pathlib.Path(os.environ.get("TILETRACK_SHARED", SOURCE.parent / "shared"))
TILETRACK = str(BIN / "tiletrack")
SKIP = 77


def run(*arguments, **options):
    """Runs tiletrack; returns the finished process with its output as text."""
    options.setdefault("timeout", 600)
    return subprocess.run([TILETRACK, *map(os.fsencode, map(str_or_bytes, arguments))], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="surrogateescape",
                          **options)


def str_or_bytes(argument):
    return os.fsdecode(argument) if isinstance(argument, (bytes, os.PathLike)) else str(argument)


def sanitized(program="tiletrackd"):
    """Built with a sanitizer, which keeps freed memory aside (its resident memory says nothing), links more and is slow."""
    try:
        code = (BIN / program).read_bytes()
    except OSError:
        return False
    return b"__asan_init" in code or b"__tsan_init" in code


def make_video(path, frames, *options, rate=25):
    """Writes uint8 RGB frames [T,H,W,3] as a video; lossless unless options say otherwise."""
    frames = np.ascontiguousarray(frames, dtype=np.uint8)
    _, height, width, _ = frames.shape
    codec = options or ("-c:v", "ffv1", "-pix_fmt", "bgr0")
    subprocess.run(["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
                    "-r", str(rate), "-i", "-", *codec, os.fsencode(os.fspath(path))], input=frames.tobytes(), check=True)
    return path


def texture(height, width, seed=1, cell=9.0):
    """A smooth random texture, uint8 [H,W,3], that can be sampled anywhere: see `sample`."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    return to_pixels(sample(x, y, seed, cell))


def sample(x, y, seed=1, cell=9.0):
    """The texture's value at any position, floats [..., 3] in 0..1: a sum of waves of many directions and lengths."""
    random = np.random.default_rng(seed)
    value = np.zeros(np.shape(x) + (3,), np.float32)
    for _ in range(40):
        angle, phase = random.uniform(0, 2 * np.pi, 2)
        length = cell * 2 ** random.uniform(0, 3)
        wave = np.sin(2 * np.pi / length * (np.asarray(x) * np.cos(angle) + np.asarray(y) * np.sin(angle)) + phase)
        value += (wave[..., None] * random.uniform(-1, 1, 3)).astype(np.float32)
    return np.clip(0.5 + value / 12, 0, 1)


def to_pixels(value):
    return np.clip(np.round(value * 255), 0, 255).astype(np.uint8)


def shifting(frames, height, width, step_x, step_y, seed=1, cell=9.0):
    """A texture that moves by (step_x, step_y) source pixels a frame, exactly: [T,H,W,3]."""
    y, x = np.mgrid[0:height, 0:width] + 0.5
    return np.stack([to_pixels(sample(x - t * step_x, y - t * step_y, seed, cell)) for t in range(frames)])


def moved(frames, x, y):
    """A wide texture that is cut out with an offset: cheap integer motion for tests that need no sub-pixels."""
    large = texture(256 + 64, 320 + 64)
    return np.stack([large[(y * t) % 64:(y * t) % 64 + 256, (x * t) % 64:(x * t) % 64 + 320] for t in range(frames)])


class Folder(unittest.TestCase):
    """A test in a temporary directory of its own."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tiletrack-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def names(self, folder=None):
        return sorted(os.listdir(os.fsencode(folder or self.folder)))

    def assertNothingPartial(self, folder=None):
        """No temporary file remains, hidden or not."""
        for name in self.names(folder):
            self.assertFalse(name.endswith(b".part") or name.startswith(b".tt-"), name)

    def assertExit(self, process, code):
        self.assertEqual(process.returncode, code, f"stdout: {process.stdout}\nstderr: {process.stderr}")


def main():
    for program in ("ffmpeg",):
        if not shutil.which(program):
            print(f"skipped: {program} is not installed")
            sys.exit(SKIP)
    if not os.access(TILETRACK, os.X_OK):
        print(f"skipped: {TILETRACK} was not built")
        sys.exit(SKIP)
    unittest.main(verbosity=2)
