#!/usr/bin/python3
"""Makes the demo clip beside this file: demo.mp4, its query points demo.queries.csv, its exact tracks demo.truth.npz.

Needs Debian's python3-numpy and ffmpeg; takes about four minutes on two cores. The three files are committed, so nobody
has to run this; a test renders a frame again and compares it with the committed clip. `--truth` writes only the points.
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys

import numpy as np

import scene

HERE = pathlib.Path(__file__).resolve().parent

# Query points: frame, body, how many. Every body is there, and a later frame asks for what an earlier one hides.
QUERIES = [
    (0, "floor", 5), (0, "wall", 5), (0, "globe", 4), (0, "cube", 3), (0, "painting", 3), (0, "pole", 3),
    (22, "ball", 4), (22, "wagon", 2), (22, "cube", 2),
    (46, "wagon", 4), (46, "wheel1", 1), (46, "wheel2", 1), (46, "globe", 3),
    (70, "ball", 2), (70, "cube", 3), (70, "floor", 2), (70, "wall", 2),
    (95, "globe", 2), (95, "painting", 2), (95, "wagon", 1),
]  # fmt: skip
MARGIN = 5  # a query point's neighbourhood of this many pixels shows the same body and no edge of it
BORDER = 16


def candidates(world, frame, number):
    """Pixel positions (hundredths) in `frame` that lie well inside the image of one smooth part of the body."""
    random = scene.lattice(1000 + frame, 20000, 2)
    x = np.round(BORDER + random[:, 0] * (scene.WIDTH - 2 * BORDER), 2)
    y = np.round(BORDER + random[:, 1] * (scene.HEIGHT - 2 * BORDER), 2)
    hit, _, _, normal = world.cast(frame, x, y)
    good = hit == number
    for angle in np.arange(8) * np.pi / 4:
        other, _, _, its_normal = world.cast(frame, x + MARGIN * np.cos(angle), y + MARGIN * np.sin(angle))
        good &= (other == number) & ((normal * its_normal).sum(-1) > 0.9)
    return np.stack([x, y], -1)[good]


def choose(world):
    """The query points: a list of (frame, x, y, label, body number, local point). Each is the one of eight candidates
    that is farthest from those before it: spread out, but not driven to the body's edge."""
    chosen, counts = [], {}
    for frame, name, count in QUERIES:
        number = world.number(name)
        places = candidates(world, frame, number)
        assert len(places) >= 8 * count, f"frame {frame} shows too little of the {name}"
        taken = [places[0]]
        while len(taken) < count:
            eight = places[8 * len(taken) :][:8]
            gaps = np.min([np.hypot(*(eight - place).T) for place in taken], axis=0)
            taken.append(eight[gaps.argmax()])
        _, _, local, _ = world.cast(frame, *np.array(taken).T)
        for (x, y), point in zip(taken, local):
            counts[name] = counts.get(name, 0) + 1
            chosen.append((frame, x, y, f"{name}-{counts[name]}", number, point))
    return chosen


def tracks_of(world, points):
    """Exact tracks [N, T, 2] in pixels and occlusion [N, T] of (body number, local point) pairs. A point is occluded
    where it is out of the frame or where the ray through its pixel meets something else first."""
    tracks = np.zeros((len(points), scene.FRAMES, 2))
    depth = np.zeros(tracks.shape[:2])
    occluded = np.zeros(tracks.shape[:2], bool)
    numbers = np.array([number for number, _ in points])
    for frame in range(scene.FRAMES):
        for i, (number, local) in enumerate(points):
            *tracks[i, frame], depth[i, frame] = world.project(frame, number, local)
        x, y = tracks[:, frame].T
        hit, distance, _, _ = world.cast(frame, x, y)
        outside = (x < 0) | (x >= scene.WIDTH) | (y < 0) | (y >= scene.HEIGHT)
        occluded[:, frame] = outside | (hit != numbers) | (np.abs(distance - depth[:, frame]) > 1e-6)
    return tracks, occluded


def write_points(world, folder):
    queries = choose(world)
    tracks, occluded = tracks_of(world, [(number, local) for *_, number, local in queries])
    lines = ["frame,x,y,label"] + [f"{frame},{x:.2f},{y:.2f},{label}" for frame, x, y, label, *_ in queries]
    (folder / "demo.queries.csv").write_text("\n".join(lines) + "\n")
    np.savez_compressed(
        folder / "demo.truth.npz",
        tracks=tracks.astype(np.float32),
        occluded=occluded,
        query_points=np.array([(frame, y, x) for frame, x, y, *_ in queries], np.float32),
        frame_size=np.array([scene.WIDTH, scene.HEIGHT], np.int32),
        labels=np.array([label for _, _, _, label, *_ in queries]),
    )
    print(f"{len(queries)} query points; occluded or outside: {occluded.mean():.0%} of the positions")


def render_frame(frame):
    return scene.Scene().render(frame).tobytes()


def write_video(folder):
    """H.264, BT.709, one thread so that the same ffmpeg writes the same bytes."""
    command = [
        "ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{scene.WIDTH}x{scene.HEIGHT}",
        "-r", str(scene.FPS), "-i", "-", "-vf", "scale=out_color_matrix=bt709:out_range=tv:flags=accurate_rnd,format=yuv420p",
        "-c:v", "libx264", "-preset", "veryslow", "-crf", "21", "-threads", "1", "-colorspace", "bt709",
        "-color_primaries", "bt709", "-color_trc", "bt709", "-color_range", "tv", "-fflags", "+bitexact",
        "-movflags", "+faststart", str(folder / "demo.mp4"),
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE) as ffmpeg, concurrent.futures.ProcessPoolExecutor() as pool:
        for frame, picture in enumerate(pool.map(render_frame, range(scene.FRAMES))):
            ffmpeg.stdin.write(picture)
            print(f"\rframe {frame + 1} of {scene.FRAMES}", end="", file=sys.stderr, flush=True)
        ffmpeg.stdin.close()
    print(file=sys.stderr)
    if ffmpeg.returncode:
        sys.exit("ffmpeg failed")
    print(f"demo.mp4: {os.path.getsize(folder / 'demo.mp4')} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", action="store_true", help="write the query points and tracks, not the video")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=HERE, help="folder (default: beside this file)")
    options = parser.parse_args()
    write_points(scene.Scene(), options.output)
    if not options.truth:
        write_video(options.output)


if __name__ == "__main__":
    main()
