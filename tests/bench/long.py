#!/usr/bin/python3
"""How well tracks hold across seams and over long videos, for several ways to carry them: the tables of docs/LONG_VIDEOS.md.

    tests/bench/long.py [--scene mixed|still] [--frames 300] [--seeds 1,2] [--weights FILE] [--backend cpu|cuda] [WAY...]
    tests/bench/long.py --program [--scene ...] [--frames ...] [--seeds ...]

With the ways of tests/bench/long_ways.c (which computes the features once for all of them), or with the real program. The
videos are those of long_scenes.py, with exact truth. Prints a Markdown table, a row a way, and with --groups a row a way and
kind of motion.

Errors are in pixels of 256x256, of positions that truly are visible and that can be judged (not within 2 px of an outline), the
query's own frame left out. A frame is said to be visible where the confidence exceeds 0.5.

  inside, overlap   median error in frames of one window only, and in frames that two windows share
  jump, >1 px       of neighbouring frames that are visible and said to be so: the largest change of the error from one to the
                    next, and how many are larger than a pixel
  found             share of the reappearances (after at least 5 frames out of sight) with, in the first 5 frames, one
                    that is said to be visible and less than 4 px off
  < 4 px, flags     share of visible positions; share of frames whose visibility is told rightly
  drift             scene still: the largest distance of a point's mean position in the last 100 frames from that in the
                    first 100
  track s           the ways' own time, without decoding and features (of the program: with features)

Needs Debian's python3-numpy and ffmpeg.
"""
import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import long_scenes

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("TILETRACK_BIN", SOURCE / "build/bin"))
CLIP = 47
DEFAULT_WAYS = [
    "alone,init=none", "before", "before-sure,init=sure", "weighed,blend=weighed", "best,blend=best", "overlap16,overlap=16",
    "overlap23,overlap=23", "back,back", "fresh,supports=fresh", "rescue,supports=rescue", "seam,supports=seam,blend=pass,doubt",
]  # fmt: skip


def overlaps(frames, overlap):
    """Which frames two windows share."""
    shared = np.zeros(frames, bool)
    starts = list(range(0, max(frames - CLIP, 0) + 1, CLIP - overlap))
    if starts[-1] + CLIP < frames:
        starts.append(frames - CLIP)
    for before, start in zip(starts, starts[1:]):
        shared[start : before + CLIP] = True
    return shared


def reappearances(scene, visible):
    """(point, frame) where a point is visible again after at least 5 frames, behind its query and 5 before the end."""
    return [(i, t) for i, query in enumerate(scene.queries) for t in range(max(query[0] + 1, 5), visible.shape[1] - 4)
            if visible[i, t] and not visible[i, t - 5 : t].any()]  # fmt: skip


class Sample:
    """Figures' raw material: of one scene and way, or of several joined."""

    def __init__(self, inside=(), shared=(), jumps=(), found=(), flags=(), drift=()):
        self.inside, self.shared, self.jumps, self.found, self.flags, self.drift = map(
            lambda part: np.asarray(part, float), (inside, shared, jumps, found, flags, drift))  # fmt: skip

    def join(self, other):
        return Sample(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in vars(self)))

    def figures(self):
        error = np.concatenate([self.inside, self.shared])
        of = lambda values, function: float(function(values)) if len(values) else float("nan")
        return {
            "inside": of(self.inside, np.median),
            "overlap": of(self.shared, np.median),
            "jump": of(self.jumps, np.max),
            "jumps": int((self.jumps > 1).sum()),
            "found": of(self.found, np.mean),
            "within": of(error < 4, np.mean),
            "flags": of(self.flags, np.mean),
            "drift": of(self.drift, np.max),
        }


def measure(scene, tracks, claimed, overlap=8, group=None):
    """A Sample: tracks [N,T,2] in pixels of 256x256, claimed [N,T] visible; of one kind of motion, or of all points."""
    truth, visible, judged = scene.truth()
    chosen = np.array([group in (None, name) for name in scene.groups])
    off = tracks - truth
    error = np.hypot(off[..., 0], off[..., 1])
    use = judged & chosen[:, None]
    for i, query in enumerate(scene.queries):
        use[i, query[0]] = False
    shared = overlaps(scene.frames, overlap)
    seen = use & visible
    steps = np.hypot(*np.moveaxis(np.diff(off, axis=1), -1, 0))
    both = seen & claimed
    found = [bool((claimed[i, t : t + 5] & (error[i, t : t + 5] < 4)).any()) for i, t in reappearances(scene, visible) if chosen[i]]
    drift = []
    if scene.name == "still" and scene.frames >= 200:
        ends = tracks[chosen, -100:].mean(1) - tracks[chosen, :100].mean(1)
        drift = np.hypot(ends[:, 0], ends[:, 1])
    return Sample(error[:, ~shared][seen[:, ~shared]], error[:, shared][seen[:, shared]],
                  steps[both[:, 1:] & both[:, :-1]], found, (claimed == visible)[use], drift)  # fmt: skip


def run_ways(scene, folder, options):
    """[(name, seconds, overlap, tracks, claimed)] of all ways."""
    scene.write_raw(folder / "frames.rgb")
    (folder / "queries.txt").write_text("".join(f"{frame} {x} {y}\n" for frame, x, y in scene.queries))
    program = os.environ.get("LONG_WAYS", BIN.parent / "tests/long_ways")
    process = subprocess.run([program, options.weights, options.backend, "frames.rgb", "queries.txt", "out", *options.ways],
                             cwd=folder, stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
    (folder / "frames.rgb").unlink()
    told = [json.loads(line) for line in process.stdout.splitlines()]
    out = np.fromfile(folder / "out", np.float32).reshape(len(told), len(scene.queries), scene.frames, 4).astype(float)
    confidence = 1 / ((1 + np.exp(out[..., 2])) * (1 + np.exp(out[..., 3])))
    return [(way["name"], way["track_s"], way["overlap"], out[i, ..., :2], confidence[i] > 0.5) for i, way in enumerate(told)]


def run_program(scene, folder, options):
    """The same of `tiletrack track`."""
    scene.write_video(folder / "long.mkv")
    scene.write_queries(folder / "long.queries.csv")
    process = subprocess.run([BIN / "tiletrack", "track", f"--model={options.weights}", "--device", options.backend, "--json",
                              folder / "long.mkv"], stdout=subprocess.PIPE, text=True, check=True)  # fmt: skip
    with np.load(folder / "long.tracks.npz") as made:
        return [("tiletrack track", json.loads(process.stdout)["track_ms"] / 1000, 8, made["tracks"].astype(float), ~made["occluded"])]


def row(name, figures, seconds):
    drift = "" if np.isnan(figures["drift"]) else f"{figures['drift']:.3f}"
    found = "" if np.isnan(figures["found"]) else f"{figures['found']:.2f}"
    return (f"| {name} | {figures['inside']:.3f} | {figures['overlap']:.3f} | {figures['jump']:.2f} | {figures['jumps']} | {found} | "
            f"{figures['within']:.3f} | {figures['flags']:.3f} | {drift} | {seconds:.0f} |")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scene", choices=list(long_scenes.QUERIES), default="mixed")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--weights", type=pathlib.Path, default=SOURCE / "models/tiletrack-small.safetensors")
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--program", action="store_true", help="the real program instead of the ways")
    parser.add_argument("--groups", action="store_true", help="a row for each kind of motion too")
    parser.add_argument("ways", nargs="*", metavar="WAY")
    options = parser.parse_args()
    options.weights = options.weights.resolve()
    options.ways = options.ways or DEFAULT_WAYS
    samples, seconds = {}, {}
    for seed in map(int, options.seeds.split(",")):
        scene = long_scenes.Scene(options.scene, options.frames, seed)
        with tempfile.TemporaryDirectory() as folder:
            results = (run_program if options.program else run_ways)(scene, pathlib.Path(folder), options)
        for name, took, overlap, tracks, claimed in results:
            seconds[name] = seconds.get(name, 0) + took
            for group in [None, *dict.fromkeys(scene.groups)]:
                sample = measure(scene, tracks, claimed, overlap, group)
                samples[name, group] = samples.get((name, group), Sample()).join(sample)
    digest = hashlib.sha256(options.weights.read_bytes()).hexdigest()[:8]
    print(f"{options.scene}, {options.frames} frames, seeds {options.seeds}, {options.backend}, weights {digest}\n")
    print("| way | inside | overlap | jump | >1 px | found | < 4 px | flags | drift | track s |\n" + "|---" * 10 + "|")
    for (name, group), sample in samples.items():
        if group is None or options.groups:
            print(row(f"{name}: {group}" if group else name, sample.figures(), seconds[name]))


if __name__ == "__main__":
    main()
