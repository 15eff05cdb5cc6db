"""What the decoder's tests share: decode-dump, ffmpeg, MP4 display matrices."""
import functools
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("TILETRACK_BIN", SOURCE / "build" / "bin"))
SHARED = pathlib.Path(os.environ.get("TILETRACK_SHARED", SOURCE.parent / "shared"))
VIDEOS = SHARED / "videos"
DECODER = BIN / "tiletrack-decode"
DUMP = BIN.parent / "tests" / "decode-dump"
SKIP = 77


def dump_command(path, *options, program=DECODER):
    return [str(DUMP), "--program", str(program), *map(str, options), "--", os.fsencode(path)]


def dump(path, *options, program=DECODER, raw=None):
    """What decode-dump says of a file; with raw also `rgb`, uint8 [frames,256,256,3]. It must neither crash nor hang,
    and no child may be left behind."""
    if raw:
        options = (*options, "--raw", raw)
    done = subprocess.run(dump_command(path, *options, program=program), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    assert done.returncode in (0, 1), (path, done.returncode, done.stderr.decode())
    result = json.loads(done.stdout)
    assert not result["zombies"], path
    assert (result["status"] == "ok") == (done.returncode == 0) == (result["error"] == ""), result
    if raw and "frames" in result:
        result["rgb"] = np.fromfile(raw, np.uint8).reshape(-1, 256, 256, 3)
    return result


def ffmpeg(*arguments, **options):
    subprocess.run(["ffmpeg", "-v", "error", "-nostdin", "-y", *map(str, arguments)], check=True, **options)


def ffprobe(path, *arguments):
    """JSON of ffprobe, which decodes with one thread."""
    done = subprocess.run(["ffprobe", "-v", "quiet", "-threads", "1", "-of", "json", *arguments, str(path)],
                          stdout=subprocess.PIPE, check=False)
    return json.loads(done.stdout or b"{}")


def write_video(path, frames, *options, rate=25):
    """uint8 RGB [T,H,W,3] as a video; without options lossless RGB (H.264 in MP4, ffv1 elsewhere)."""
    frames = np.ascontiguousarray(frames, np.uint8)
    lossless = ("-c:v", "libx264rgb", "-crf", "0", "-preset", "ultrafast") if str(path).endswith((".mp4", ".mov")) \
        else ("-c:v", "ffv1", "-pix_fmt", "bgr0")
    subprocess.run(["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s",
                    f"{frames.shape[2]}x{frames.shape[1]}", "-r", str(rate), "-i", "-", *(options or lossless),
                    str(path)], input=frames.tobytes(), check=True)
    return path


def set_matrix(path, a, b, c, d):
    """Replaces the display matrix of an MP4's first track: x' = a x + c y, y' = b x + d y."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4
    assert data[at] == 0, "version 0 of tkhd is expected"
    numbers = [round(v * 65536) for v in (a, b)] + [0] + [round(v * 65536) for v in (c, d)] + [0, 0, 0, 1 << 30]
    data[at + 40:at + 76] = struct.pack(">9i", *numbers)
    path.write_bytes(data)


def marked(height, width, seed=0):
    """A picture that no turn or flip maps onto itself: soft noise, four corners of different colours."""
    random = np.random.default_rng(seed)
    coarse = random.integers(60, 196, (height // 16 + 2, width // 16 + 2, 3))
    picture = np.kron(coarse, np.ones((16, 16, 1)))[:height, :width].astype(np.uint8)
    h, w = max(1, height // 8), max(1, width // 8)
    picture[:h, :w], picture[:h, -w:] = (255, 0, 0), (0, 255, 0)
    picture[-h:, :w], picture[-h:, -w:] = (0, 0, 255), (255, 255, 255)
    return picture


def area_weights(size):
    """[256, size]: the share of every source pixel in every output pixel; rows sum to 1."""
    low = np.arange(256)[:, None] * size / 256
    high = (np.arange(256)[:, None] + 1) * size / 256
    pixel = np.arange(size)[None, :]
    cover = np.clip(np.minimum(high, pixel + 1) - np.maximum(low, pixel), 0, None)
    return cover / cover.sum(1, keepdims=True)


def bilinear_weights(size):
    """[256, size]: four taps, align_corners=False, as torch.nn.functional.interpolate documents it."""
    at = np.maximum((np.arange(256) + 0.5) * size / 256 - 0.5, 0)
    first = np.floor(at).astype(int)
    second = np.minimum(first + 1, size - 1)
    weights = np.zeros((256, size))
    np.add.at(weights, (np.arange(256), first), 1 - (at - first))
    np.add.at(weights, (np.arange(256), second), at - first)
    return weights


def resized(picture, weights):
    """float [256,256,3]"""
    rows, columns = weights(picture.shape[0]), weights(picture.shape[1])
    return np.einsum("ay,bx,yxc->abc", rows, columns, picture.astype(float), optimize=True)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tiletrack-decode-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def dump(self, path, *options, **more):
        return dump(path, *options, **more)

    def pixels(self, path, *options, **more):
        result = dump(path, *options, raw=self.folder / "raw", **more)
        self.assertEqual(result["status"], "ok", result["error"])
        return result

    def assert_bad(self, path, *parts, options=()):
        result = dump(path, *options)
        self.assertEqual(result["status"], "bad_input", f"{result.get('frames')} frames, {result['error']}")
        for part in parts:
            self.assertIn(part, result["error"])
        return result


@functools.lru_cache
def has_encoder(name):
    text = subprocess.run(["ffmpeg", "-hide_banner", "-encoders"], stdout=subprocess.PIPE, text=True).stdout
    return f" {name} " in text


def main():
    for needed in (DECODER, DUMP):
        if not needed.exists():
            print(f"skipped: {needed} is not built")
            sys.exit(SKIP)
    if not shutil.which("ffmpeg") or not shutil.which("ffprobe"):
        print("skipped: ffmpeg is not installed")
        sys.exit(SKIP)
    unittest.main(verbosity=2)
