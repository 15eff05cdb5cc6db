#!/usr/bin/python3
"""What --refine native gives on real video with hand-made truth, what it costs, and what other ways would give.

    tests/bench/refine.py [--others] [--crops N] [--cost] [VIDEO...]      prints Markdown tables

The windows, points, figures and Lucas-Kanade are those of truth.py. delta_avg is given twice: with thresholds of 1, 2, 4, 8, 16
pixels of 256x256, and with the same numbers of the video's own pixels. Medians are in the video's own pixels. "Offset aside"
takes each point's median error vector off first: what remains once the query itself, a hand-made annotation like the others, is
not exactly where the other annotations are.

--others: registration by OpenCV's Lucas-Kanade (shift only, 21x21) of the query's patch and of the last patch, both begun at the
network's place and given up for it where they end further than 2 px of 256x256 from it.
--crops N: the network once more on crops of 256x256 of the video's own pixels that follow its first track, a clip for each of
the first N points (all of the video's figures are then for these points).
--cost: processor seconds of a clip of 47 frames with 256 query points, on the CPU, with and without.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import truth
from truth import BIN, PYTORCH, THRESHOLDS, Window

NEAR_256 = 2  # pixels of 256x256


def figures(window, tracks):
    off = np.concatenate([[tracks[i, t] - (x, y) for t, x, y in seen] for i, seen in enumerate(window.points)])
    free = np.concatenate([np.array([tracks[i, t] - (x, y) for t, x, y in seen])
                           - np.median([tracks[i, t] - (x, y) for t, x, y in seen], 0) for i, seen in enumerate(window.points)])  # fmt: skip
    scaled, native = np.hypot(*(off * 256 / window.size).T), np.hypot(*off.T)
    return {"delta_avg": np.mean([(scaled < limit).mean() for limit in THRESHOLDS]),
            "delta_avg_native": np.mean([(native < limit).mean() for limit in THRESHOLDS]),
            "median_px": np.median(native), "median_free_px": np.median(np.hypot(*free.T))}  # fmt: skip


def text(f, free=False):
    return f"{f['delta_avg']:.3f} | {f['delta_avg_native']:.3f} | {f['median_px']:.2f}" + (f" | {f['median_free_px']:.2f}" if free else "")


def rgb_frames(window, folder):
    width, height = window.size
    data = subprocess.run(["ffmpeg", "-v", "error", "-i", truth.cut(window, folder), "-frames:v", str(window.frames), "-vf",
                           "setpts=N/FRAME_RATE/TB", "-vsync", "0", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], check=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE).stdout  # fmt: skip
    return np.frombuffer(data, np.uint8).reshape(-1, height, width, 3)


def by_opencv(window, tracks, folder, updated):
    """Registration by OpenCV, of the query's patch or (updated) of the last one, from the query forwards."""
    import cv2

    frames, made = truth.gray_frames(window, folder), tracks.copy()
    scale = max(window.size) / 256
    settings = {"winSize": (21, 21), "maxLevel": int(np.log2(max(1, scale / 2))), "flags": cv2.OPTFLOW_USE_INITIAL_FLOW,
                "criteria": (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 30, 0.01)}  # fmt: skip
    for i, (begin, x, y) in enumerate(window.queries):
        made[i, begin] = x, y
        for t in range(begin + 1, len(frames)):
            source = t - 1 if updated else begin
            here = np.float32([made[i, source] - 0.5])
            guess = np.float32([(made[i, t - 1] + tracks[i, t] - tracks[i, t - 1] if updated else tracks[i, t]) - 0.5])
            there, found, _ = cv2.calcOpticalFlowPyrLK(frames[source], frames[t], here, guess, **settings)
            if found[0, 0] and np.hypot(*(there[0] + 0.5 - tracks[i, t])) <= NEAR_256 * scale:
                made[i, t] = there[0] + 0.5
    return made


def by_crops(window, tracks, folder, frames):
    """The network on 256x256 pixels of the video that follow its first track."""
    made = tracks.copy()
    for i, (begin, x, y) in enumerate(window.queries):
        corner = np.clip(np.round(tracks[i]).astype(int) - 128, 0, np.array(window.size) - 256)
        clip = np.stack([frame[top:top + 256, left:left + 256] for frame, (left, top) in zip(frames, corner)])
        video, queries, result = folder / "crop.mkv", folder / "crop.csv", folder / "crop.npz"
        subprocess.run(["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "256x256", "-r", "25", "-i", "-",
                        "-c:v", "ffv1", "-pix_fmt", "bgr0", video], input=clip.tobytes(), check=True)  # fmt: skip
        queries.write_text(f"frame,x,y\n{begin},{x - corner[begin, 0]:.4f},{y - corner[begin, 1]:.4f}\n")
        subprocess.run([BIN / "tiletrack", "track", "--device", "cpu", "--quiet", "--queries", queries, "-o", result, video],
                       check=True, stdin=subprocess.DEVNULL)  # fmt: skip
        with np.load(result) as file:
            made[i] = file["tracks"][0] + corner
    return made


def cost(videos):
    """Processor seconds, the decoders' included: they say the same on a busy machine."""
    print("| video | size | processor seconds of a clip | with --refine native | more by |\n|---|---|---|---|---|")
    for name in videos:
        window = Window(name)
        with tempfile.TemporaryDirectory() as folder:
            seconds = []
            for refine in ("off", "native"):
                process = subprocess.Popen([BIN / "tiletrack", "track", "--device", "cpu", "--quiet", "--grid", "16", "--max-frames",
                                            "47", "--refine", refine, "-o", pathlib.Path(folder) / "out.npz",
                                            truth.cut(window, pathlib.Path(folder))], stdin=subprocess.DEVNULL)  # fmt: skip
                _, status, usage = os.wait4(process.pid, 0)
                assert status == 0, status
                seconds.append(usage.ru_utime + usage.ru_stime)
        print(f"| {name} | {window.size[0]}x{window.size[1]} | {seconds[0]:.2f} | {seconds[1]:.2f} | {seconds[1] / seconds[0] - 1:.0%} |",
              flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", nargs="*", metavar="VIDEO", help="names in shared/truth, or NAME@FIRST_FRAME (default: all)")
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--crops", type=int, default=0, metavar="N")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--check", action="store_true", help="fail where a delta_avg is below Lucas-Kanade's or the unrefined")
    options = parser.parse_args()
    truth.require_shared()
    names, below = options.videos or list(PYTORCH), []
    if options.cost:
        return cost([name.partition("@")[0] for name in names])
    three = "256 | native | median px"
    print(f"| video | way | delta_avg, {three} | offset aside |\n|---|---|---|---|---|---|")
    for given in names:
        name, _, first = given.partition("@")
        window = Window(name, int(first) if first else None)
        if options.crops:
            window.queries, window.points = window.queries[:options.crops], window.points[:options.crops]
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            plain = truth.tiletrack(window, folder, [])
            ways = {"unrefined": plain, "**refined**": truth.tiletrack(window, folder, ["--refine", "native"]),
                    "Lucas-Kanade": truth.lucas_kanade(window, folder)[0]}  # fmt: skip
            if options.others:
                ways["query's patch, shift only"] = by_opencv(window, plain, folder, False)
                ways["last patch"] = by_opencv(window, plain, folder, True)
            if options.crops:
                ways["network on crops"] = by_crops(window, plain, folder, rgb_frames(window, folder))
        results = {way: figures(window, tracks) for way, tracks in ways.items()}
        for way, f in results.items():
            print(f"| {given} | {way} | {text(f, True)} |", flush=True)
        for way in ("unrefined", "Lucas-Kanade"):
            for key in ("delta_avg", "delta_avg_native"):
                if results["**refined**"][key] < results[way][key] - 1e-9:
                    below.append(f"{given}: {key} {results['**refined**'][key]:.4f}, {way} {results[way][key]:.4f}")
    if below:
        print("\nbelow: " + "; ".join(below))
    if options.check and below:
        sys.exit("refined tracks are worse")


if __name__ == "__main__":
    main()
