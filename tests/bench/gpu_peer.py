#!/usr/bin/env python3
"""Times the CUDA backend beside the public PyTorch code and beside the compiled training forward, in one run on one GPU.

gpu_peer.py PEERS WEIGHTS [--ours PROGRAM=LABEL ...] [--sizes small,base] [--queries 256,1024]
            [--ways strict,default,half,compiled,fast] [--seconds 60] [--runs 5]

PEERS: a folder with `models` (of the public code, cvlab-kaist/locotrack, folder locotrack_pytorch), `einops` and, for the way
`fast`, `fast.py` (the shared data's training forward). WEIGHTS: our safetensors file for size small; base has random weights.
--ours: tests/kernels/gpubench, with a label (its build). Nothing of the peers is in this repository.

The clip is noise on the device, 47 frames of 256×256; query points are a grid in frame 0. Ways: strict FP32; PyTorch's default
(TF32 convolutions); half: FP16 autocast; compiled: torch.compile of the FP16 autocast forward; fast: bf16, compiled, and as a CUDA graph. Prints a table:
milliseconds by CUDA events, median (and range) of the runs after a warm-up; peak device memory that PyTorch took for the
forward, and of ours what the backend took. What does not fit into --seconds is left out and said.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import numpy as np

FRAMES = 47


def helpers():
    path = pathlib.Path(__file__).resolve().parents[1] / "golden" / "make_golden.py"
    names = {"__name__": "helpers"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def grid(count, torch):
    side = int(np.ceil(np.sqrt(count)))
    points = [(0, (i // side + 0.5) * 256 / side, (i % side + 0.5) * 256 / side) for i in range(count)]
    return torch.tensor([points], dtype=torch.float32, device="cuda")


def timed(call, runs, torch):
    """Milliseconds of each run, and the peak memory beyond what was there, MB."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    times = []
    for _ in range(runs):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return times, (torch.cuda.max_memory_allocated() - before) / 1e6


def row(name, size, queries, times, memory):
    print(f"| {name} | {size} | {queries} | {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f}) | "
          f"{memory:.0f} |", flush=True)


def ours(options, size, queries):
    weights = options.weights if size == "small" else "base:1"
    for entry in options.ours:
        program, label = entry.split("=", 1)
        for precision in ("fp16", "fp32"):
            done = subprocess.run([program, weights, precision, "--queries", str(queries)], capture_output=True, text=True)
            if done.returncode:
                print(f"| tiletrack {precision}, {label} | {size} | {queries} | {done.stderr.strip()} | |", flush=True)
                continue
            r = json.loads(done.stdout)
            row(f"tiletrack {precision}, {label}", size, queries, [r["all_ms"]], r["device_bytes"] / 1e6)


def peer_model(options, size, torch):
    from models.locotrack_model import LocoTrack

    model = LocoTrack(model_size=size).eval()
    if size == "small":
        tensors = helpers()["read_tensors"](options.weights)
        model.load_state_dict({name: torch.from_numpy(array.astype("f4")) for name, array in tensors.items()})
    return model.cuda()


def fast(model, video, points, torch):
    """The training forward, compiled, and the same as one CUDA graph."""
    import fast as training

    forward = training.Fast(model, compile=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            forward(video, points)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward(video, points)
    return {"fast.py, compiled": lambda: forward(video, points), "fast.py, CUDA graph": graph.replay}


def calls(options, way, model, video, points, torch):
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = way != "strict"
    if way == "fast":
        return fast(model, video, points, torch)
    forward = torch.compile(model) if way == "compiled" else model
    names = {"strict": "public code, strict FP32", "default": "public code, default",
             "half": "public code, FP16 autocast", "compiled": "public code, FP16, torch.compile"}

    def call():
        with torch.autocast("cuda", torch.float16, enabled=way in ("half", "compiled")):
            forward(video, points)
    return {names[way]: call}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers")
    parser.add_argument("weights")
    parser.add_argument("--ours", action="append", default=[])
    parser.add_argument("--sizes", default="small,base")
    parser.add_argument("--queries", default="256,1024")
    parser.add_argument("--ways", default="strict,default,half,compiled,fast")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    begin = time.monotonic()
    sys.path.insert(0, options.peers)
    import torch

    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {FRAMES} frames\n")
    print("| | size | query points | ms, median (range) | device memory, MB |\n|---|---|---|---|---|")
    with torch.no_grad():
        video = torch.rand(1, FRAMES, 256, 256, 3, device="cuda") * 2 - 1
        for size in options.sizes.split(","):
            model = peer_model(options, size, torch)
            for queries in map(int, options.queries.split(",")):
                ours(options, size, queries)
                points = grid(queries, torch)
                for way in options.ways.split(","):
                    if way == "fast" and (size != "small" or queries != 256):
                        continue
                    if time.monotonic() - begin > options.seconds:
                        print(f"left out, no time: {way}, {size}, {queries}", flush=True)
                        continue
                    try:
                        for name, call in calls(options, way, model, video, points, torch).items():
                            row(name, size, queries, *timed(call, options.runs, torch))
                    except Exception as e:  # a way that a version of PyTorch does not have must not end the others
                        print(f"failed: {way}, {size}, {queries}: {type(e).__name__}: {str(e)[:300]}", flush=True)


main()
