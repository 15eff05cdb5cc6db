#!/usr/bin/python3
"""report.py VIDEO TRACKS.npz TRUTH.npz SHEET.png: prints how far a track file is from exact tracks and draws a contact
sheet of six frames. The lines printed are for people; `--json` prints one JSON object instead."""
import argparse
import json
import sys

import points


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("video", "tracks", "truth", "sheet"):
        parser.add_argument(name)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ours, truth = points.load(options.tracks), points.load(options.truth)
    figures = points.measure(ours, truth)
    frames = truth["tracks"].shape[1]
    numbers = [int((i + 0.5) * frames / 6) for i in range(6)]
    points.contact_sheet(options.video, ours, numbers, 2).save(options.sheet)
    if options.json:
        json.dump(figures, sys.stdout)
        print()
        return
    count, width, height = len(truth["tracks"]), *truth["frame_size"]
    print(f"  {count} points, {frames} frames of {width}x{height}; {figures['positions']} visible positions compared")
    print(f"  median error         {figures['median_px']:.2f} px")
    print(f"  delta_avg            {figures['delta_avg']:.3f}   (within 1, 2, 4, 8, 16 px at 256x256: "
          + ", ".join(f"{share:.0%}" for share in figures["within"].values()) + ")")
    print(f"  occlusion accuracy   {figures['occlusion_accuracy']:.3f}")


if __name__ == "__main__":
    main()
