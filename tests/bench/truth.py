#!/usr/bin/python3
"""How far tracks are from hand-made truth on real video: tiletrack beside pyramidal Lucas-Kanade.

    tests/bench/truth.py [--json FILE] [VIDEO...]      prints a Markdown table

From each video of $TILETRACK_SHARED/truth one window of 47 frames is tracked by the real program (`tiletrack track`). A
point's query is its first visible annotation in the window; it is compared in all other annotated, visible frames of the
window. delta_avg is TAP-Vid's: the share of positions within 1, 2, 4, 8, 16 px once both are scaled to 256x256, averaged over
the five thresholds. The median error is in pixels of 256x256 too.

Lucas-Kanade (Debian's python3-opencv) works in full resolution, 21x21 windows, 4 levels (maxLevel 3), from the query forwards
and backwards, frame by frame; a point counts as lost once a step back does not return within 1.5 px, which is reported but
does not change its position.

Needs Debian's python3-numpy, python3-opencv and ffmpeg. Exits with 77 where the shared data is missing.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("TILETRACK_BIN", SOURCE / "build/bin"))
SHARED = pathlib.Path(os.environ.get("TILETRACK_SHARED", SOURCE.parent / "shared"))

FRAMES = 47
THRESHOLDS = (1, 2, 4, 8, 16)
FIRST_FRAME = {"dreem_two_flies": 50, "sleap_flies_clip": 1050}  # where the window begins; 0 elsewhere
# delta_avg that the public PyTorch code gave with shared/weights, our first ones (shared/training/NOTES.md).
PYTORCH = {
    "charuco_hand47": 0.995, "caliscope_board_cam0": 0.933, "cmu_house": 0.932, "badja_bear": 0.421,
    "dreem_two_flies": 0.965, "sleap_flies_clip": 0.917,
}  # fmt: skip


class Window:
    """47 frames of a video and what is known of its points there, in the raster convention (pixel centres at .5)."""

    def __init__(self, name, first=None):
        self.name, self.first = name, FIRST_FRAME.get(name, 0) if first is None else first
        truth = json.loads((SHARED / "truth" / f"{name}.json").read_text())
        self.video = SHARED / "videos" / truth["video"]
        self.size = truth["width"], truth["height"]
        self.length = truth["frames"]
        self.frames = min(FRAMES, self.length - self.first)
        self.queries, self.points = [], []  # (t, x, y); [(t, x, y), ...] without the query
        for point in truth["points"]:
            seen = [(frame - self.first, x + 0.5, y + 0.5) for frame, x, y, visible in point["obs"]
                    if visible and 0 <= frame - self.first < self.frames]  # fmt: skip
            if len(seen) > 1:
                self.queries.append(seen[0])
                self.points.append(seen[1:])

    def measure(self, tracks):
        """delta_avg, median errors in source pixels and in pixels of 256x256, positions compared."""
        off = np.array([tracks[i, t] - (x, y) for i, seen in enumerate(self.points) for t, x, y in seen])
        scaled = np.hypot(*(off * 256 / self.size).T)
        within = [float((scaled < limit).mean()) for limit in THRESHOLDS]
        return {"delta_avg": float(np.mean(within)), "within": within, "median_px": float(np.median(np.hypot(*off.T))),
                "median_256": float(np.median(scaled)), "positions": len(off)}  # fmt: skip


def cut(window, folder):
    """The window as a video of its own, without loss (FFV1 in the video's own pixel format), if it is not the beginning."""
    if window.first == 0:
        return window.video
    path = folder / f"{window.name}.mkv"
    if path.exists():
        return path
    chosen = f"select='between(n,{window.first},{window.first + window.frames - 1})',setpts=N/FRAME_RATE/TB"
    subprocess.run(["ffmpeg", "-v", "error", "-i", window.video, "-vf", chosen, "-vsync", "0", "-c:v", "ffv1", path],
                   check=True, stdin=subprocess.DEVNULL)  # fmt: skip
    return path


def tiletrack(window, folder, options):
    """Tracks [N, frames, 2] by the real program."""
    queries, result = folder / f"{window.name}.csv", folder / f"{window.name}.npz"
    queries.write_text("frame,x,y\n" + "".join(f"{t},{x:.4f},{y:.4f}\n" for t, x, y in window.queries))
    subprocess.run([BIN / "tiletrack", "track", "--device", "cpu", "--quiet", "--max-frames", str(window.frames), "--queries",
                    queries, "-o", result, *options, "--", cut(window, folder)], check=True, stdin=subprocess.DEVNULL)  # fmt: skip
    with np.load(result, allow_pickle=False) as file:
        tracks, size = file["tracks"], tuple(int(n) for n in file["frame_size"])
    if tracks.shape != (len(window.queries), window.frames, 2) or size != window.size:
        raise SystemExit(f"{window.name}: {tracks.shape} tracks in a {size} frame; {window.frames} of {window.size} expected")
    return tracks.astype(float)


def gray_frames(window, folder):
    import cv2

    width, height = window.size
    data = subprocess.run(["ffmpeg", "-v", "error", "-i", cut(window, folder), "-frames:v", str(window.frames), "-vf",
                           "setpts=N/FRAME_RATE/TB", "-vsync", "0", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], check=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout  # fmt: skip
    frames = np.frombuffer(data, np.uint8).reshape(-1, height, width, 3)
    assert len(frames) == window.frames, (len(frames), window.frames)
    return [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames]


def lucas_kanade(window, folder):
    """Tracks [N, frames, 2] and which of them are lost [N, frames]. OpenCV's pixel centres are whole numbers."""
    import cv2

    frames, count = gray_frames(window, folder), len(window.queries)
    settings = {"winSize": (21, 21), "maxLevel": 3,
                "criteria": (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 30, 0.01)}  # fmt: skip
    begin = np.array([t for t, _, _ in window.queries])
    start = np.array([(x, y) for _, x, y in window.queries], np.float32) - 0.5
    tracks, lost = np.zeros((count, len(frames), 2)), np.zeros((count, len(frames)), bool)
    for step in (1, -1):
        now, gone = start.copy(), np.zeros(count, bool)
        for t in range(len(frames)) if step == 1 else reversed(range(len(frames))):
            active = np.flatnonzero(begin <= t if step == 1 else begin >= t)
            tracks[active, t], lost[active, t] = now[active] + 0.5, gone[active]
            if not 0 <= t + step < len(frames) or not len(active):
                continue
            here = now[active, None].copy()
            there, found, _ = cv2.calcOpticalFlowPyrLK(frames[t], frames[t + step], here, None, **settings)
            back, returned, _ = cv2.calcOpticalFlowPyrLK(frames[t + step], frames[t], there, None, **settings)
            outside = ((there < -0.5) | (there >= np.array(window.size) - 0.5)).any(-1)[:, 0]
            gone[active] |= (found[:, 0] == 0) | (returned[:, 0] == 0) | outside
            gone[active] |= np.hypot(*(back - here)[:, 0].T) > 1.5
            now[active] = there[:, 0]
    return tracks, lost


def require_shared():
    """Ends with 77 and a reason where something that the figures need is missing."""
    try:
        import cv2  # noqa: F401
    except ImportError:
        print("skipped: OpenCV is not installed for this Python (Debian: python3-opencv)")
        sys.exit(77)
    for path in (SHARED / "truth", SHARED / "videos"):
        if not path.is_dir():
            print(f"skipped: {path} is missing (set TILETRACK_SHARED)")
            sys.exit(77)
    if not os.access(BIN / "tiletrack", os.X_OK):
        print(f"skipped: {BIN / 'tiletrack'} was not built")
        sys.exit(77)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", nargs="*", metavar="VIDEO", help="names in shared/truth (default: all)")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures there too")
    parser.add_argument("--option", action="append", default=[], help="passed to tiletrack track (--option=--resize=area)")
    parser.add_argument("--check", action="store_true",
                        help="fail where delta_avg is more than 0.01 below what PyTorch gave with the first weights")  # fmt: skip
    options = parser.parse_args()
    require_shared()
    figures, below = {}, []
    print("| video | points | positions | tiletrack delta_avg | PyTorch, first weights | LK delta_avg | tiletrack median px "
          "| LK median px | LK lost |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name in options.videos or PYTORCH:
        window = Window(name)
        with tempfile.TemporaryDirectory() as folder:
            ours = window.measure(tiletrack(window, pathlib.Path(folder), options.option))
            tracks, lost = lucas_kanade(window, pathlib.Path(folder))
        theirs = window.measure(tracks)
        share = float(np.mean([lost[i, t] for i, seen in enumerate(window.points) for t, _, _ in seen]))
        figures[name] = {"tiletrack": ours, "lucas_kanade": {**theirs, "lost": share}, "pytorch_delta_avg": PYTORCH.get(name)}
        print(f"| {name} | {len(window.points)} | {ours['positions']} | {ours['delta_avg']:.3f} | {PYTORCH.get(name, '-')} "
              f"| {theirs['delta_avg']:.3f} | {ours['median_256']:.2f} | {theirs['median_256']:.2f} | {share:.0%} |", flush=True)  # fmt: skip
        if ours["delta_avg"] < PYTORCH.get(name, 0) - 0.01:
            below.append(name)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.check and below:
        sys.exit(f"below what PyTorch gave with the first weights: {', '.join(below)}")


if __name__ == "__main__":
    main()
