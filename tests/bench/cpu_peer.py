#!/usr/bin/env python3
"""Times the CPU backend beside the public PyTorch code, in one run, alternating.

cpu_peer.py CHECKOUT CPU_BENCH WEIGHTS [--clip FILE] [--queries 25,256] [--repeats 3] [--threads 2] [--skip-peer]

CHECKOUT: folder locotrack_pytorch of a checkout of cvlab-kaist/locotrack. CPU_BENCH: the built tests/bench/cpu_bench. WEIGHTS:
our safetensors file (the small model). --clip: raw RGB frames, 256×256, 47 of them; without it a clip made of drifting noise.
Query points are a grid in frame 0 (25 is 5×5, 256 is 16×16). Needs NumPy, PyTorch (1.13 suffices) and einops for the peer.

Each repeat starts both programs anew. Prints a Markdown table: median (and range) of the seconds for features and tracks
(opening the model is left out on both sides), the processors' time, which says more on a busy machine, the peak resident memory, and how far the tracks are apart.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

FRAMES = 47


def grid(count):
    side = int(np.ceil(np.sqrt(count)))
    return [(0, (i % side + 0.5) * 256 / side, (i // side + 0.5) * 256 / side) for i in range(count)]


def made_clip():
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (24, 24, 3)).astype("f4")
    fine = rng.integers(0, 256, (96, 96, 3)).astype("f4")
    y, x = np.mgrid[:256, :256].astype("f4")
    clip = np.zeros((FRAMES, 256, 256, 3), "u1")
    for f in range(FRAMES):
        value = 0
        for noise, cell, weight in ((coarse, 16, 0.6), (fine, 4, 0.4)):
            u, v = (x + 1.5 * f) / cell, (y + 0.7 * f) / cell
            i, j = u.astype(int), v.astype(int)
            a, b = (u - i)[..., None], (v - j)[..., None]
            i, j, i1, j1 = (k % len(noise) for k in (i, j, i + 1, j + 1))
            value += weight * ((noise[j, i] * (1 - a) + noise[j, i1] * a) * (1 - b) +
                               (noise[j1, i] * (1 - a) + noise[j1, i1] * a) * b)
        clip[f] = value
    return clip


def peer(arguments):
    """Runs in a process of its own: prints what cpu_bench prints."""
    checkout, weights, clip, count, threads = arguments
    golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "make_golden.py")
    helpers = {"__name__": "helpers"}
    exec(compile(open(golden).read(), golden, "exec"), helpers)
    import torch

    torch.set_num_threads(int(threads))
    helpers["supply_what_old_torch_lacks"]()
    sys.path.insert(0, checkout)
    from models.locotrack_model import LocoTrack

    model = LocoTrack(model_size="small").eval()
    model.load_state_dict({name: torch.from_numpy(array.astype("f4"))
                           for name, array in helpers["read_tensors"](weights).items()})
    video = np.fromfile(clip, "u1").reshape(1, -1, 256, 256, 3)
    queries = torch.tensor([[(t, y, x) for t, x, y in grid(int(count))]], dtype=torch.float32)
    with torch.no_grad():
        begin, cpu = time.monotonic(), time.process_time()
        out = model(torch.from_numpy(video).float() / 255.0 * 2 - 1, queries)
        wall, cpu = time.monotonic() - begin, time.process_time() - cpu
    print(json.dumps({"wall_s": wall, "cpu_s": cpu, "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                      "tracks": out["tracks"][0].flatten().tolist()}))


def ours(options, clip, count):
    result = json.loads(subprocess.run([options.cpu_bench, options.weights, clip, str(count), str(options.threads), "1"],
                                       check=True, capture_output=True).stdout)
    part = result["repeats"][0]
    return {"wall_s": part["features_wall_s"] + part["track_wall_s"], "peak_rss_mb": result["peak_rss_mb"],
            "cpu_s": part["features_cpu_s"] + part["track_cpu_s"], "tracks": result["tracks"]}


def theirs(options, clip, count):
    return json.loads(subprocess.run([sys.executable, os.path.abspath(__file__), "--peer", options.checkout,
                                      options.weights, clip, str(count), str(options.threads)],
                                     check=True, capture_output=True).stdout)


def row(name, count, runs, apart):
    seconds = sorted(run["wall_s"] for run in runs)
    cpu = statistics.median(run["cpu_s"] for run in runs)
    memory = max(run["peak_rss_mb"] for run in runs)
    print(f"| {name} | {count} | {statistics.median(seconds):.1f} ({seconds[0]:.1f} to {seconds[-1]:.1f}) | "
          f"{cpu:.1f} | {memory:.0f} | {apart} |", flush=True)


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout")
    parser.add_argument("cpu_bench")
    parser.add_argument("weights")
    parser.add_argument("--clip")
    parser.add_argument("--queries", default="25,256")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--skip-peer", action="store_true")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile(suffix=".rgb") as file:
        clip = options.clip
        if not clip:
            file.write(made_clip().tobytes())
            file.flush()
            clip = file.name
        print(f"{options.threads} threads, {FRAMES} frames, {options.repeats} repeats\n")
        print("| | query points | seconds, median (range) | CPU seconds | peak RSS, MB | largest distance of tracks, px |")
        print("|---|---|---|---|---|---|")
        for count in map(int, options.queries.split(",")):
            mine, peers = [], []
            for _ in range(options.repeats):
                mine.append(ours(options, clip, count))
                if not options.skip_peer:
                    peers.append(theirs(options, clip, count))
            apart = "" if options.skip_peer else "%.3f" % np.abs(
                np.array(mine[0]["tracks"]) - np.array(peers[0]["tracks"])).max()
            row("tiletrack", count, mine, apart)
            if peers:
                row("public PyTorch code", count, peers, "")


main()
