#!/usr/bin/python3
"""Which way of making frames 256x256 tracks better: antialiased area or bilinear.

    tests/bench/resize.py [--windows N]        prints a Markdown table

The same truth and measure as truth.py, and the demo clip (whole, exact truth): the real program with `--resize area` and with
`--resize bilinear`, nothing else changed. With N > 1, N windows spread over each video that is long enough, besides truth.py's;
a video's figure is the mean over its windows. Exits with 77 where the shared data is missing.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import truth

WAYS = ("area", "bilinear")
CLIP = truth.SOURCE / "packaging/demo-clip"


def demo_figures(way, folder):
    """delta_avg and median error (pixels of 256x256) of the demo clip."""
    sys.path.insert(0, str(CLIP))
    import points

    tracks = folder / f"demo-{way}.npz"
    subprocess.run([truth.BIN / "tiletrack", "track", "--device", "cpu", "--quiet", "--resize", way, "-o", tracks,
                    CLIP / "demo.mp4"], check=True, stdin=subprocess.DEVNULL)  # fmt: skip
    return points.measure(points.load(tracks), points.load(CLIP / "demo.truth.npz"))


def windows(name, count):
    """truth.py's window of a video, and others spread over it, overlapping by half at most."""
    first = truth.Window(name)
    room = first.length - truth.FRAMES
    count = min(count, 1 + 2 * room // truth.FRAMES)
    starts = {round(i * room / (count - 1)) for i in range(count)} if count > 1 else set()
    others = [truth.Window(name, start) for start in sorted(starts) if abs(start - first.first) > truth.FRAMES // 2]
    return [first, *(window for window in others if window.points)]


def both(window):
    """delta_avg and median (256x256) of area and of bilinear."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if window is None:
            results = [demo_figures(way, folder) for way in WAYS]
        else:
            results = [window.measure(truth.tiletrack(window, folder, ["--resize", way])) for way in WAYS]
    return [r["delta_avg"] for r in results] + [r["median_256"] for r in results]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=1, help="windows a video (default: 1)")
    options = parser.parse_args()
    truth.require_shared()
    print("| video | windows | delta_avg, area | delta_avg, bilinear | median px, area | median px, bilinear |\n"
          "|---|---|---|---|---|---|")  # fmt: skip
    rows = []
    for name in [*truth.PYTORCH, "demo"]:
        figures = [both(window) for window in ([None] if name == "demo" else windows(name, options.windows))]
        rows.append([sum(column) / len(figures) for column in zip(*figures)])
        print(f"| {name} | {len(figures)} | " + " | ".join(f"{x:.3f}" for x in rows[-1]) + " |", flush=True)
    print("| mean of videos | | " + " | ".join(f"{sum(column) / len(rows):.3f}" for column in zip(*rows)) + " |")


if __name__ == "__main__":
    main()
