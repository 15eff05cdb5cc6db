#!/usr/bin/python3
"""Reliability of the confidences that the real program writes: of the point-frames with confidence c, which share lies
within 6 px (of 256x256) of the truth and is visible?

    tests/bench/calibration.py [--option ARG]... [--clips DIR --tracks DIR] [--keep DIR] [--limit ECE] [--whole] [VIDEO]...

Tracks one window of 47 frames (--whole: all frames) of every video of $TILETRACK_SHARED/truth (as truth.py does) and prints a Markdown table of
the reliability diagram and the expected calibration error (ten equal bins, weighted by their point-frames). The hand-made
truth knows only frames in which the point is seen, so a share there can only be too high. With --clips and --tracks also
that of a held-out set (models/training/tool.py evaluate --write) that was tracked before. --limit: fail above it.

Needs Debian's python3-numpy, python3-opencv and ffmpeg. Exits with 77 where the shared data is missing.
"""
import argparse
import pathlib
import sys
import tempfile

import numpy as np

import truth

sys.path.insert(0, str(truth.SOURCE / "models/training"))
import calibrate


def real_pairs(window, folder, options):
    """Confidences of the annotated positions of a window, and whether the track was within 6 px."""
    if not (folder / f"{window.name}.npz").exists():
        truth.tiletrack(window, folder, options)
    with np.load(folder / f"{window.name}.npz", allow_pickle=False) as file:
        tracks, confidence = file["tracks"].astype(float), file["confidence"].astype(float)
    known = [(i, t, x, y) for i, seen in enumerate(window.points) for t, x, y in seen]
    off = np.array([tracks[i, t] - (x, y) for i, t, x, y in known]) * 256 / window.size
    return np.array([confidence[i, t] for i, t, _, _ in known]), np.hypot(*off.T) < calibrate.FAR


def report(title, confidence, good):
    error, rows = calibrate.reliability(confidence, good)
    print(f"{title}: {len(good)} point-frames, expected calibration error {error:.4f}\n\n{calibrate.table(rows)}\n", flush=True)
    return error


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--option", action="append", default=[], help="passed to tiletrack track (--option=--model=FILE)")
    parser.add_argument("--clips", help="held-out clips")
    parser.add_argument("--tracks", help="their track files, NAME.tracks.npz")
    parser.add_argument("--keep", type=pathlib.Path, help="keep the real videos' track files there; those there are used")
    parser.add_argument("--limit", type=float, default=1.0)
    parser.add_argument("--whole", action="store_true", help="all frames of the videos, across the seams of windows")
    parser.add_argument("videos", nargs="*", metavar="VIDEO", help="names in shared/truth (default: all)")
    options = parser.parse_args()
    if options.whole:
        truth.FRAMES = 1 << 20
    errors = []
    if options.clips:
        errors.append(report("Held-out clips", *calibrate.pairs(options.clips, options.tracks)))
    truth.require_shared()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        pairs = {name: real_pairs(truth.Window(name, 0 if options.whole else None), folder, options.option)
                 for name in options.videos or truth.PYTORCH}  # fmt: skip
    print("| video | point-frames | mean confidence | share that is good |\n|---|---|---|---|")
    for name, (confidence, good) in pairs.items():
        print(f"| {name} | {len(good)} | {confidence.mean():.3f} | {good.mean():.3f} |")
    print()
    errors.append(report("Real truth", *(np.concatenate(p) for p in zip(*pairs.values()))))
    if max(errors) > options.limit:
        sys.exit(f"expected calibration error {max(errors):.4f} above {options.limit}")


if __name__ == "__main__":
    main()
