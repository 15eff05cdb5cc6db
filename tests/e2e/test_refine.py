"""Refinement at the source's resolution (docs/REFINE.md), through the real programs, against exact truth.

Scenes are sums of waves, many of them too short for 256x256, that are turned and shifted by known amounts; every frame is
computed, not resampled, so the truth is exact.
"""
import csv
import json
import os
import shutil
import subprocess
import unittest

import numpy as np

from daemon_tools import Daemon
from decode_tools import set_matrix
from programs import BIN, SHARED, SOURCE, TILETRACK, Folder, main, make_video, run, sanitized
from test_decode_pixels import ORIENTATIONS
from worker_tools import STAGES, Worker

MODEL = SOURCE / "models" / "tiletrack-small.safetensors"
WIDTH, HEIGHT, FRAMES = 1280, 720, 9


def waves(x, y, seed=3):
    """Grey in 0..1 at any position: waves of 8 to 60 source pixels."""
    random = np.random.default_rng(seed)
    value = np.zeros(np.shape(x), np.float32)
    for _ in range(14):
        angle, phase = random.uniform(0, 2 * np.pi, 2)
        length = 8 * 2 ** random.uniform(0, 3)
        value += np.sin(np.float32(2 * np.pi / length) * (x * np.float32(np.cos(angle)) + y * np.float32(np.sin(angle)))
                        + np.float32(phase)) * np.float32(random.uniform(0.4, 1))  # fmt: skip
    return np.clip(0.5 + value / 10, 0, 1)


class Motion:
    """Frame t shows the scene turned by t × turn about the middle, then shifted by t × shift pixels."""

    def __init__(self, turn=0.02, shift=(3.3, -2.1), width=WIDTH, height=HEIGHT):
        self.turn, self.shift, self.size = turn, np.array(shift), np.array([width, height])

    def forth(self, points, t):
        """Positions [..., 2] of the first frame in frame t."""
        c, s = np.cos(self.turn * t), np.sin(self.turn * t)
        return (points - self.size / 2) @ np.array([[c, s], [-s, c]]) + self.size / 2 + self.shift * t

    def frame(self, t):
        y, x = np.mgrid[0:self.size[1], 0:self.size[0]].astype(np.float32) + np.float32(0.5)
        c, s = np.float32(np.cos(self.turn * t)), np.float32(np.sin(self.turn * t))
        x, y = x - np.float32(self.size[0] / 2 + self.shift[0] * t), y - np.float32(self.size[1] / 2 + self.shift[1] * t)
        grey = waves(c * x + s * y + np.float32(self.size[0] / 2), -s * x + c * y + np.float32(self.size[1] / 2))
        return np.repeat(np.round(grey * 255).astype(np.uint8)[..., None], 3, 2)

    def frames(self, count=FRAMES):
        return np.stack([self.frame(t) for t in range(count)])


def shown(points, rotation, mirrored):
    """Positions [..., 2] in the frame as it is stored, where they are displayed."""
    x, y = points[..., 0], points[..., 1]
    width = HEIGHT if rotation % 180 else WIDTH
    x, y = {0: (x, y), 90: (HEIGHT - y, x), 180: (WIDTH - x, HEIGHT - y), 270: (y, WIDTH - x)}[rotation]
    return np.stack([width - x if mirrored else x, y], -1)


class Scene(Folder):
    """One scene, rendered once; its points; what comes of tracking it."""

    motion = Motion()
    rendered = None

    def scene(self):
        if Scene.rendered is None:
            Scene.rendered = self.motion.frames()
        return Scene.rendered

    def video(self, name="a.mkv", *options, frames=None):
        return make_video(self.folder / name, self.scene() if frames is None else frames, *options)

    def points(self, frame=0):
        x, y = np.meshgrid(np.linspace(0.2, 0.8, 6) * WIDTH, np.linspace(0.2, 0.8, 5) * HEIGHT)
        return self.motion.forth(np.stack([x, y], -1).reshape(-1, 2), frame)

    def queries(self, points, frame=0, name="q.csv"):
        path = self.folder / name
        path.write_text("frame,x,y\n" + "".join(f"{frame},{x:.5f},{y:.5f}\n" for x, y in points))
        return path

    def track(self, video, queries, *options, output="out.npz", program=None):
        arguments = ["track", "--device", "cpu", "--queries", queries, "-o", self.folder / output, "--json", *options, "--", video]
        if program:
            process = subprocess.run([program, *map(os.fspath, map(str, arguments))], stdin=subprocess.DEVNULL, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=600)  # fmt: skip
        else:
            process = run(*arguments)
        self.assertExit(process, 0)
        with np.load(self.folder / output, allow_pickle=False) as file:
            made = {name: file[name] for name in file.files}
        made["meta"] = json.loads(str(made["meta"]))
        made["told"] = json.loads(process.stdout)
        return made

    def errors(self, made, truth, query_frame=0):
        """Distances to truth [N, T, 2] in source pixels where a point is visible, its own frame left out."""
        counted = ~made["occluded"]
        counted[:, query_frame] = False
        self.assertGreater(counted.mean(), 0.5)
        return np.linalg.norm(made["tracks"] - truth, axis=-1), counted

    def truth(self, query_frame=0, frames=FRAMES):
        start = self.points(0)
        return np.stack([self.motion.forth(start, t) for t in range(frames)], 1)

    def assertBetter(self, plain, refined, truth, query_frame=0, limit=0.06):
        before, counted = self.errors(plain, truth, query_frame)
        after, _ = self.errors(refined, truth, query_frame)
        print(f"median {np.median(before[counted]):.3f} -> {np.median(after[counted]):.4f} source px; "
              f"worst {before[counted].max():.2f} -> {after[counted].max():.2f}; "
              f"refined {refined['meta']['refined']['positions']} of {refined['meta']['refined']['visible']}")  # fmt: skip
        self.assertLess(np.median(after[counted]), limit)
        self.assertLess(np.median(after[counted]), np.median(before[counted]) / 5)
        self.assertLessEqual((after > before + 0.1)[counted].mean(), 0.01)
        self.assertTrue(refined["meta"]["refined"]["done"])


class Refine(Scene):
    # --- the tracks get better ---

    def test_turning_scene(self):
        video, queries = self.video(), self.queries(self.points())
        plain, refined = self.track(video, queries), self.track(video, queries, "--refine", "native")
        self.assertBetter(plain, refined, self.truth())
        for name in ("occluded", "confidence", "query_points", "time_s", "frame_size"):
            np.testing.assert_array_equal(plain[name], refined[name])
        np.testing.assert_array_equal(refined["tracks"][:, 0], refined["query_points"][:, [2, 1]])
        self.assertNotIn("refined", plain)
        marks = refined["refined"]
        self.assertEqual((marks.dtype, marks.shape, marks.sum()),
                         (np.bool_, plain["occluded"].shape, refined["meta"]["refined"]["positions"]))
        np.testing.assert_array_equal(plain["tracks"][~marks], refined["tracks"][~marks])
        self.assertTrue((plain["tracks"] != refined["tracks"]).any(-1)[marks].all())
        told = refined["told"]
        self.assertTrue(told["refined"])
        self.assertTrue(0 < told["refine_ms"] < told["total_ms"])
        self.assertEqual(told["positions_refined"], refined["meta"]["refined"]["positions"])
        self.assertGreater(told["positions_refined"], 0.9 * 30 * (FRAMES - 1))
        self.assertNothingPartial()

    def test_query_in_a_later_frame(self):
        """Frames before the query's are refined as well."""
        video, queries = self.video(), self.queries(self.points(5), 5)
        plain, refined = self.track(video, queries), self.track(video, queries, "--refine", "native")
        self.assertBetter(plain, refined, self.truth(), 5)

    def test_pixel_formats(self):
        """Luma as it lies in the frame; ten bits, through libswscale; both with losses."""
        queries = self.queries(self.points())
        for name, options in (("h264.mp4", ("-c:v", "libx264", "-crf", "18", "-pix_fmt", "yuv420p")),
                              ("ten.mkv", ("-c:v", "ffv1", "-pix_fmt", "yuv422p10le"))):  # fmt: skip
            with self.subTest(name):
                video = self.video(name, *options)
                self.assertBetter(self.track(video, queries), self.track(video, queries, "--refine", "native"), self.truth(),
                                  limit=0.12)  # fmt: skip

    def test_orientations(self):
        """What is displayed is not what is stored: all quarter turns and mirrors."""
        stored, count = self.truth()[:, :5], 5
        path = self.video("a.mp4", "-c:v", "libx264", "-crf", "12", "-pix_fmt", "yuv420p", frames=self.scene()[:count])
        for name, matrix, rotation, mirrored, _ in ORIENTATIONS:
            with self.subTest(name):
                set_matrix(path, *matrix)
                truth = shown(stored, rotation, mirrored)
                made = self.track(path, self.queries(truth[:, 0]), "--refine", "native")
                self.assertEqual(made["frame_size"].tolist(), [WIDTH, HEIGHT][::-1 if rotation % 180 else 1])
                after, counted = self.errors(made, truth)
                print(f"{name}: median {np.median(after[counted]):.4f} px, {made['meta']['refined']['positions']} refined")
                self.assertLess(np.median(after[counted]), 0.12)
                self.assertGreater(made["meta"]["refined"]["positions"], 0.8 * 30 * (count - 1))

    def test_pixel_aspect(self):
        video = self.video("wide.mkv", "-c:v", "ffv1", "-pix_fmt", "yuv420p", "-vf", "setsar=2/1")
        made = self.track(video, self.queries(self.points() * [2, 1]), "--refine", "native")
        self.assertEqual(made["frame_size"].tolist(), [2 * WIDTH, HEIGHT])
        made["tracks"] = made["tracks"] / [2, 1]
        after, counted = self.errors(made, self.truth())
        self.assertLess(np.median(after[counted]), 0.06)

    # --- nothing else changes ---

    def test_off_is_the_default(self):
        video, queries = self.video(), self.queries(self.points())
        self.track(video, queries, output="default.npz")
        made = self.track(video, queries, "--refine", "off", output="off.npz")
        self.assertEqual((self.folder / "default.npz").read_bytes(), (self.folder / "off.npz").read_bytes())
        self.assertNotIn("refined", made["meta"])
        self.assertNotIn("refined", made["told"])
        process = run("track", "--refine", "full", video)
        self.assertExit(process, 2)
        self.assertIn("--refine: 'full'", process.stderr)

    def test_same_bits_whatever_the_threads(self):
        video, queries = self.video(), self.queries(self.points())
        one = self.track(video, queries, "--refine", "native", "--threads", 1)
        two = self.track(video, queries, "--refine", "native", "--threads", 3)
        np.testing.assert_array_equal(one["tracks"], two["tracks"])

    def test_what_cannot_be_found_stays(self):
        """A flat grey, and noise that is new in every frame: nothing to register, so nothing is moved."""
        random = np.random.default_rng(1)
        flat = np.full((5, 512, 512, 3), 90, np.uint8)
        noise = np.repeat(random.integers(0, 255, (5, 512, 512, 1), np.uint8), 3, 3)
        for name, frames in (("flat.mkv", flat), ("noise.mkv", noise)):
            with self.subTest(name):
                video, queries = self.video(name, frames=frames), self.queries([[100, 200], [300.5, 17.25], [1, 511]])
                plain, refined = self.track(video, queries), self.track(video, queries, "--refine", "native")
                np.testing.assert_array_equal(plain["tracks"], refined["tracks"])
                self.assertEqual(refined["meta"]["refined"], dict(refined["meta"]["refined"], done=True, positions=0))

    # --- the second reading ---

    def program_with_decoder(self, script):
        """tiletrack with a shell script between it and the real decoder; $n counts its calls, from 1."""
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        for name in ("tiletrack", "tiletrack-decode"):
            shutil.copy(BIN / name, folder / (name if name == "tiletrack" else "real-decode"))
        decoder = folder / "tiletrack-decode"
        decoder.write_text(f"#!/bin/sh\nread n < {self.folder}/calls\nn=$((n + 1))\necho $n > {self.folder}/calls\n{script}\n"
                           f"exec {folder}/real-decode \"$@\"\n")  # fmt: skip
        decoder.chmod(0o755)
        (self.folder / "calls").write_text("0\n")
        return folder / "tiletrack"

    def assertLeftAlone(self, video, queries, script):
        plain = self.track(video, queries, "--model", MODEL)
        made = self.track(video, queries, "--refine", "native", "--model", MODEL, program=self.program_with_decoder(script))
        self.assertGreater(int((self.folder / "calls").read_text()), 1)
        np.testing.assert_array_equal(plain["tracks"], made["tracks"])
        self.assertNotIn("refined", made)
        self.assertEqual(made["meta"]["refined"]["done"], False)
        self.assertFalse(made["told"]["refined"])
        self.assertIn("not refined: the video is no longer what it was", made["told"]["warnings"])

    def test_marks_in_text(self):
        """CSV, long and wide, JSON lines and JSON say of each position whether it was refined, as the npz does, and so do its
        exports."""
        out, forms = self.folder / "out", ("npz", "csv", "csv-wide", "jsonl", "json")
        out.mkdir()
        video, queries = self.video("b.mkv", frames=self.scene()[:4]), self.queries(self.points())
        self.assertExit(run("track", "--device", "cpu", "--refine", "native", "--queries", queries, "-o", out,
                            *(a for form in forms for a in ("--format", form)), video), 0)  # fmt: skip
        with np.load(out / "b.tracks.npz") as file:
            marks, xy = file["refined"], file["tracks"]
        self.assertTrue(marks.any() and not marks.all())
        with open(out / "b.tracks.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(list(rows[0])[-1], "refined")
        np.testing.assert_array_equal([int(row["refined"]) for row in rows], marks.ravel())
        np.testing.assert_array_equal(np.array([[row["x"], row["y"]] for row in rows], "f4"), xy.reshape(-1, 2))
        lines = [json.loads(line) for line in (out / "b.tracks.jsonl").read_text().splitlines()]
        np.testing.assert_array_equal([line["refined"] for line in lines], marks)
        document = json.loads((out / "b.tracks.json").read_text())
        np.testing.assert_array_equal([[sample[4] for sample in track["samples"]] for track in document["tracks"]], marks)
        with open(out / "b.wide.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        names = [f"track{q:04d}" for q in range(len(marks))]
        self.assertEqual(list(rows[0]), ["frame", "time_s"] + [f"{name}_{column}" for name in names for column in
                                                               ("x", "y", "occluded", "confidence", "refined")])  # fmt: skip
        np.testing.assert_array_equal([[int(row[name + "_refined"]) for row in rows] for name in names], marks)
        np.testing.assert_array_equal(np.array([[[row[name + "_x"], row[name + "_y"]] for row in rows] for name in names], "f4"), xy)
        for form, name in (("csv", "b.tracks.csv"), ("csv-wide", "b.wide.csv"), ("json", "b.tracks.json")):
            self.assertExit(run("export", out / "b.tracks.npz", "--to", form, "-o", self.folder / "again"), 0)
            self.assertEqual((self.folder / "again").read_bytes(), (out / name).read_bytes())

    def test_file_that_changes_meanwhile(self):
        video, queries = self.video(), self.queries(self.points())
        self.assertLeftAlone(video, queries, f"[ $n -gt 1 ] && touch -d '1 hour ago' {video}")

    def test_other_frames_than_before(self):
        """Fewer, more, at other times, of another size: the tracks stay as the tracker left them."""
        video, queries = self.video(), self.queries(self.points())
        others = {"fewer": self.video("fewer.mkv", frames=self.scene()[:-1]),
                  "more": self.video("more.mkv", frames=self.scene()[[*range(FRAMES), 0]]),
                  "size": self.video("size.mkv", frames=self.scene()[:, :, :640]),
                  "times": make_video(self.folder / "times.mkv", self.scene(), rate=24)}  # fmt: skip
        for name, other in others.items():
            with self.subTest(name):
                self.assertLeftAlone(video, queries, f"[ $n -gt 1 ] && exec 3< {other}")

    def test_variable_rate_and_truncated(self):
        queries = self.queries(self.points())
        raw = self.video("raw.mkv", "-c:v", "libx264", "-crf", "18", "-g", "4", "-pix_fmt", "yuv420p")
        variable = self.folder / "variable.mkv"
        subprocess.run(["ffmpeg", "-v", "error", "-i", raw, "-vf", "setpts='(N+N*N/7)/25/TB'", "-vsync", "vfr", "-c:v", "ffv1",
                        variable], check=True, stdin=subprocess.DEVNULL)  # fmt: skip
        made = self.track(variable, queries, "--refine", "native")
        self.assertGreater(len(set(np.round(np.diff(made["time_s"]), 3))), 2)
        after, counted = self.errors(made, self.truth())
        self.assertLess(np.median(after[counted]), 0.12)
        cut = self.folder / "cut.mkv"
        cut.write_bytes(raw.read_bytes()[:int(raw.stat().st_size * 0.8)])
        made = self.track(cut, queries, "--refine", "native")
        self.assertTrue(made["told"]["truncated"])
        self.assertTrue(made["meta"]["refined"]["done"])
        frames = made["tracks"].shape[1]
        self.assertLess(frames, FRAMES)
        after, counted = self.errors(made, self.truth(frames=frames))
        self.assertLess(np.median(after[counted]), 0.12)

    def test_max_frames(self):
        video, queries = self.video(), self.queries(self.points())
        made = self.track(video, queries, "--refine", "native", "--max-frames", 4)
        after, counted = self.errors(made, self.truth(frames=4))
        self.assertLess(np.median(after[counted]), 0.06)

    @unittest.skipIf(sanitized("tiletrack"), "a sanitizer keeps freed memory aside")
    def test_memory_does_not_depend_on_the_length(self):
        """Of the program by what it has used, of its decoders by what they may: with little more than a video needs they
        decode one that is three times as long."""
        motion, long = Motion(0.0005, (0.11, -0.07), 1280, 960), self.folder / "long.mkv"
        video = make_video(self.folder / "short.mkv", motion.frames(12)[[*range(12)] * 4])  # two windows
        subprocess.run(["ffmpeg", "-v", "error", "-stream_loop", "2", "-i", video, "-c", "copy", long], check=True)
        limit, before = 48, None
        while before is None:
            limit += 16
            before = self.peak(video, limit)
        after = self.peak(long, limit + 16)
        print(f"peaks of the program: {before}, {after} MB; its decoders had {limit + 16} MiB")
        self.assertIsNotNone(after, "the decoder's memory grows")  # the frames themselves are 118 MB more, in grey
        self.assertLess(after - before, 12)

    def peak(self, video, limit):
        """Largest resident memory of tiletrack in MB; None where its decoders need more than that many MiB."""
        told = self.folder / "told"
        with open(told, "w") as file:
            process = subprocess.Popen([TILETRACK, "track", "--device", "cpu", "--threads", "1", "--json", "--refine", "native",
                                        "--grid", "8", "--max-decoder-memory", str(limit << 20), "-o", self.folder / "out.npz", video],
                                       stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL)  # fmt: skip
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            self.assertLess(limit, 4096, told.read_text())
            return None
        self.assertTrue(json.loads(told.read_text())["refined"])
        return round(usage.ru_maxrss / 1024)

    @unittest.skipUnless((SHARED / "videos" / "vpf_test_res_change.h264").exists(), "the shared videos are missing")
    def test_size_that_changes_in_the_stream(self):
        video = SHARED / "videos" / "vpf_test_res_change.h264"
        made = self.track(video, self.queries([[100, 100]]), "--refine", "native", "--max-frames", 60)
        self.assertTrue(made["meta"]["refined"]["done"])
        self.assertRegex(made["told"]["warnings"], r"\d+ frames of another size were not refined")


class Workers(Scene):
    """The daemon's way: the job message, checkpoints, a directory's own configuration."""

    def long(self):
        """Three windows, small."""
        motion = Motion(0.002, (0.31, -0.17), 384, 320)
        return make_video(self.folder / "long.mkv", motion.frames(100))

    def order(self, **more):
        return dict(video=str(self.folder / "long.mkv"), grid=3, refine=1, **more)

    def test_an_interrupted_refinement_gives_the_same_bits(self):
        self.long()
        checkpoint = str(self.folder / "checkpoint")
        for _ in range(10):  # where the machine kept us for so long that it was done, again
            worker = Worker(threads=1, heartbeat_ms=0)
            self.addCleanup(worker.close)
            worker.job("j", output=str(self.folder / "out.npz"), checkpoint=checkpoint, **self.order())
            stages = []
            while not stages or STAGES[stages[-1]["stage"]] != "refining" or stages[-1]["frames"] < 40:
                stages.append(worker.until("progress", timeout=300))
            worker.process.kill()
            worker.process.wait()
            written = [path for path in self.folder.iterdir() if path.name == "out.npz" or path.name.startswith(".tt-")]
            if not written:
                break
            for path in written:
                path.unlink()
        self.assertEqual(written, [])
        self.assertTrue((self.folder / "checkpoint.state").exists())
        worker = Worker(threads=1)
        self.addCleanup(worker.close)
        worker.job("j", output=str(self.folder / "out.npz"), checkpoint=checkpoint, **self.order())
        self.assertGreater(worker.until("done", "failed", timeout=300)["resumed_frames"], 0)
        worker.job("k", output=str(self.folder / "reference.npz"), **self.order())
        self.assertEqual(worker.until("done", "failed", timeout=300)["resumed_frames"], 0)
        self.assertEqual((self.folder / "out.npz").read_bytes(), (self.folder / "reference.npz").read_bytes())
        with np.load(self.folder / "out.npz") as file:
            self.assertTrue(json.loads(str(file["meta"]))["refined"]["done"])
        self.assertEqual(sorted(n for n in os.listdir(self.folder) if n.startswith(".")), [])

    def test_a_directory_of_the_daemon(self):
        daemon = Daemon(self.folder, programs=BIN, devices=[{"cpu": 2}], spool={"recursive": True}, tracker={"model": str(MODEL)})
        self.addCleanup(lambda: daemon.process.poll() is None and daemon.kill())
        daemon.start()
        daemon.path("incoming", "fine").mkdir()
        daemon.path("incoming", "fine", "tiletrack.yaml").write_text("tracker: {refine: native}\n")
        video = self.video()
        for folder in ("", "fine"):
            shutil.copy(self.queries(self.points()), daemon.path("incoming", folder, "a.queries.csv"))
            shutil.copy(video, daemon.path("incoming", folder, "a.mkv.part"))
            os.rename(daemon.path("incoming", folder, "a.mkv.part"), daemon.path("incoming", folder, "a.mkv"))
        daemon.event("job_done", 2)
        for done in daemon.events("job_done"):
            if done["file"] == "fine/a.mkv":
                self.assertGreater(done["refine_ms"], 0)
                self.assertLessEqual(done["refine_ms"], done["total_ms"])
            else:
                self.assertEqual(done["refine_ms"], 0)
        made = {}
        for folder in ("", "fine"):
            with np.load(daemon.path("tracks", folder, "a.tracks.npz")) as file:
                made[folder] = {name: file[name] for name in file.files}
                made[folder]["meta"] = json.loads(str(file["meta"]))
        self.assertNotIn("refined", made[""]["meta"])
        self.assertBetter(made[""], made["fine"], self.truth())


if __name__ == "__main__":
    main()
