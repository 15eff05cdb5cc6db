"""tiletrack track as people and scripts use it: outputs, formats, exit codes, odd names, errors, Ctrl-C, terminals."""
import csv
import json
import os
import pathlib
import pty
import signal
import subprocess

import numpy as np

from programs import Folder, SOURCE, TILETRACK, main, make_video, moved, run
from waiting import WAIT_S, wait_for
from worker_tools import children


def is_confined(pid):
    try:
        return "Seccomp:\t2" in pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def small_video(path, frames=3):
    return make_video(path, moved(frames, 2, 1))


class Outputs(Folder):
    def test_default_is_beside_the_video(self):
        small_video(self.folder / "bear.mkv")
        process = run("track", "--grid", 2, self.folder / "bear.mkv")
        self.assertExit(process, 0)
        self.assertEqual(self.names(), [b"bear.mkv", b"bear.tracks.npz"])
        self.assertIn("4 query points through 3 frames", process.stdout)
        with np.load(self.folder / "bear.tracks.npz", allow_pickle=False) as tracks:
            self.assertEqual(tracks["tracks"].shape, (4, 3, 2))
            self.assertEqual(tracks["tracks"].dtype, np.float32)
            self.assertEqual(tracks["occluded"].dtype, np.bool_)
            self.assertEqual(tracks["confidence"].shape, (4, 3))
            self.assertEqual(tracks["frame_size"].tolist(), [320, 256])
            np.testing.assert_allclose(tracks["time_s"], [0, 0.04, 0.08], atol=1e-6)
            np.testing.assert_array_equal(tracks["query_points"], [[0, 64, 80], [0, 64, 240], [0, 192, 80], [0, 192, 240]])
            np.testing.assert_array_equal(tracks["tracks"][:, 0], tracks["query_points"][:, [2, 1]])
            meta = json.loads(str(tracks["meta"]))
        self.assertEqual(meta["model"]["name"], "tiletrack-small")
        self.assertFalse(meta["source"]["truncated"])
        self.assertEqual(meta["source"]["frames"], 3)

    def test_file_for_one_and_directory_for_many(self):
        one, two = small_video(self.folder / "a.mkv"), small_video(self.folder / "b.mkv")
        self.assertExit(run("track", "--grid", 1, "-o", self.folder / "x.npz", one), 0)
        self.assertTrue((self.folder / "x.npz").exists())
        self.assertExit(run("track", "--grid", 1, "-o", self.folder / "out", one, two), 0)
        self.assertEqual(self.names(self.folder / "out"), [b"a.tracks.npz", b"b.tracks.npz"])

    def test_colliding_stems_keep_their_endings(self):
        one, two = small_video(self.folder / "a.mkv"), self.folder / "a.mov"
        os.link(one, two)
        self.assertExit(run("track", "--grid", 1, "-o", self.folder / "out", one, two), 0)
        self.assertEqual(self.names(self.folder / "out"), [b"a.mkv.tracks.npz", b"a.mov.tracks.npz"])
        (self.folder / "sub").mkdir()
        os.link(one, self.folder / "sub" / "a.mkv")
        process = run("track", "--grid", 1, "-o", self.folder / "out2", one, self.folder / "sub" / "a.mkv")
        self.assertExit(process, 2)
        self.assertIn("would both be written", process.stderr)

    def test_never_overwrites_a_video(self):
        video = small_video(self.folder / "a.mkv")
        before = video.read_bytes()
        self.assertExit(run("track", "--grid", 1, "-o", video, video), 2)
        self.assertEqual(video.read_bytes(), before)

    def test_formats_agree(self):
        video = small_video(self.folder / "a.mkv")
        (self.folder / "a.queries.csv").write_text("frame,x,y,label\n0,30.5,40.5,nose\n2,100,50,\"tail, left\"\n")
        self.assertExit(run("track", "--format", "npz", "--format", "csv", "--format", "jsonl", video), 0)
        with np.load(self.folder / "a.tracks.npz") as tracks:
            xy, labels = tracks["tracks"], tracks["labels"].tolist()
        self.assertEqual(labels, ["nose", "tail, left"])
        with open(self.folder / "a.tracks.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 6)
        for row in rows:
            at = xy[int(row["query"]), int(row["frame"])]
            np.testing.assert_allclose([float(row["x"]), float(row["y"])], at, atol=1e-3)
            self.assertEqual(row["label"], labels[int(row["query"])])
        lines = [json.loads(line) for line in (self.folder / "a.tracks.jsonl").read_text().splitlines()]
        self.assertEqual(len(lines), 2)
        np.testing.assert_array_equal(xy[1, 2], [100, 50])

    def test_formats_of_other_programs(self):
        """Each is to the byte what `tiletrack export` makes of the track file, under the name that it chooses."""
        video = small_video(self.folder / "a.mkv")
        listed = [line.split()[:2] for line in run("export", "--list").stdout.splitlines()]
        formats = ["npz", "jsonl"] + [name for name, _ in listed]
        self.assertExit(run("track", "--grid", 2, *(a for f in formats for a in ("--format", f)), video), 0)
        for name, output in listed:
            again = self.folder / "again"
            self.assertExit(run("export", self.folder / "a.tracks.npz", "--to", name, "-o", again), 0)
            self.assertEqual((self.folder / output.replace("NAME", "a")).read_bytes(), again.read_bytes(), name)
        self.assertEqual(len(os.listdir(self.folder)), len(formats) + 2)  # the video, again

    def test_the_outputs_name_says_its_format(self):
        video = small_video(self.folder / "a.mkv")
        for name, beginning in (("b.nk", b"# tiletrack"), ("c.tapvid.npz", b"PK"), ("d.json", b"{\"format\""),
                                ("e.colmap.db", b"SQLite format 3")):
            self.assertExit(run("track", "--grid", 2, "-o", self.folder / name, video), 0)
            self.assertEqual((self.folder / name).read_bytes()[:len(beginning)], beginning, name)
        with np.load(self.folder / "c.tapvid.npz") as arrays:
            self.assertEqual(arrays["target_points"].shape, (1, 4, 3, 2))

    def test_json_lines(self):
        video = small_video(self.folder / "a.mkv")
        (self.folder / "bad.mkv").write_bytes(b"no video")
        process = run("track", "--json", "--grid", 1, video, self.folder / "bad.mkv")
        self.assertExit(process, 1)
        first, second = [json.loads(line) for line in process.stdout.splitlines()]
        self.assertEqual((first["status"], first["frames"], first["queries"]), ("ok", 3, 1))
        self.assertEqual(first["outputs"], [str(self.folder / "a.tracks.npz")])
        self.assertEqual(second["status"], "bad_input")
        self.assertIn("error", second)

    def test_quiet_says_nothing(self):
        process = run("track", "-q", "--grid", 1, small_video(self.folder / "a.mkv"))
        self.assertExit(process, 0)
        self.assertEqual(process.stdout + process.stderr, "")

    def test_repeated_run_gives_equal_bytes_on_any_thread_count(self):
        video = small_video(self.folder / "a.mkv")
        for name, threads in (("one", 1), ("two", 2)):
            self.assertExit(run("track", "--grid", 3, "--threads", threads, "-o", self.folder / f"{name}.npz", video), 0)
        with np.load(self.folder / "one.npz") as one, np.load(self.folder / "two.npz") as two:
            np.testing.assert_array_equal(one["tracks"], two["tracks"])
            np.testing.assert_array_equal(one["confidence"], two["confidence"])


class Queries(Folder):
    def test_row_errors_come_all_at_once(self):
        video = small_video(self.folder / "a.mkv")
        points = self.folder / "p.csv"
        points.write_text("frame,x,y\n0,10,10\n0,nan,1\n-1,5,5\n0,5\n0,9999,1\n")
        process = run("track", "--queries", points, video)
        self.assertExit(process, 1)
        for line in (3, 4, 5, 6):
            self.assertIn(f"line {line}", process.stderr)
        self.assertEqual(self.names(), [b"a.mkv", b"p.csv"])

    def test_frame_behind_the_end(self):
        video = small_video(self.folder / "a.mkv")
        for frame in (3, 60):
            points = self.folder / "p.json"
            points.write_text(json.dumps([{"frame": frame, "x": 10, "y": 10}]))
            process = run("track", "--queries", points, video)
            self.assertExit(process, 1)
            self.assertIn("frames are 0 to 2", process.stderr)

    def test_mask_and_side_cars(self):
        video = small_video(self.folder / "a.mkv")
        mask = np.zeros((256, 320, 3), np.uint8)
        mask[100:140, 200:260] = 255
        make_video(self.folder / "a.mask.png", mask[None], "-frames:v", "1", "-update", "1")
        self.assertExit(run("track", video), 0)
        with np.load(self.folder / "a.tracks.npz") as tracks:
            points = tracks["query_points"]
        self.assertGreater(len(points), 100)
        self.assertTrue(((points[:, 1] >= 100) & (points[:, 1] <= 140)).all())
        self.assertTrue(((points[:, 2] >= 200) & (points[:, 2] <= 260)).all())
        (self.folder / "a.queries.csv").write_text("frame,x,y\n1,10,20\n")
        self.assertExit(run("track", video), 0)
        with np.load(self.folder / "a.tracks.npz") as tracks:
            np.testing.assert_array_equal(tracks["query_points"], [[1, 20, 10]])
        self.assertExit(run("track", "--grid", 2, "--frame", 1, video), 0)
        with np.load(self.folder / "a.tracks.npz") as tracks:
            np.testing.assert_array_equal(tracks["query_points"][:, 0], [1, 1, 1, 1])

    def test_a_mask_that_is_no_file_is_named(self):
        video = small_video(self.folder / "a.mkv")
        os.mkfifo(self.folder / "a.mask.png")
        process = run("track", video)
        self.assertExit(process, 1)
        self.assertIn("a.mask.png: is not a regular file (a fifo)", process.stderr)

    def test_query_points_behind_a_broken_link_are_missed(self):
        video = small_video(self.folder / "a.mkv")
        (self.folder / "a.queries.csv").symlink_to("gone.csv")
        process = run("track", video)
        self.assertExit(process, 1)
        self.assertIn("a.queries.csv: a link to a file that is not there", process.stderr)
        self.assertFalse((self.folder / "a.tracks.npz").exists())


class Usage(Folder):
    def test_exit_codes(self):
        self.assertExit(run(), 2)
        self.assertExit(run("frobnicate"), 2)
        self.assertExit(run("track"), 2)
        for bad in (["--grid", "0"], ["--grid", "x"], ["--format", "exr"], ["--device", "tpu"], ["--nonsense"], ["--device", "cuda:"],
                    ["--precision", "fp8"], ["--arch", "sm_10"], ["--tile-frames", "48"],
                    ["--threads", "0"], ["--frame", "-1"], ["--max-frames", "0"], ["-o", ""],
                    ["--queries", "p.csv", "--grid", "4"]):
            self.assertExit(run("track", *bad, "a.mkv"), 2)
        self.assertExit(run("track", "--device", "cuda", "--model", "no-such-model", "a.mkv"), 1)
        self.assertExit(run("selftest", "--device", "cpu", "--precision", "fp16"), 1)  # the CPU has none

    def test_help_teaches(self):
        for arguments in (["--help"], ["help"], ["track", "--help"], ["help", "track"], ["plan", "--help"],
                          ["selftest", "--help"], ["report", "--help"]):
            process = run(*arguments)
            self.assertExit(process, 0)
            self.assertIn("Usage:", process.stdout)
        text = run("track", "--help").stdout
        for option in ("--queries", "--grid", "--frame", "--mask", "--model", "--device", "--precision", "--threads",
                       "--max-frames", "--format", "--json", "--quiet", "--output"):
            self.assertIn(option, text)

    def test_report_is_one_command(self):
        process = run("report", "--device", "cpu", "--queries", "1", "--json")
        self.assertExit(process, 0)
        report = json.loads(process.stdout)
        self.assertEqual(report["backend"], "cpu")
        self.assertEqual(report["selftest"]["status"], "ok")
        self.assertEqual(report["plan"]["precision"], "fp32")
        for name in ("open_ms", "features_ms", "supports_ms", "track_ms"):
            self.assertGreater(report["times"][name], 0)
        process = run("report", "--device", "cuda:99")  # what cannot be had is said, the rest is there
        self.assertExit(process, 1)
        self.assertIn("machine.release", process.stdout)
        self.assertIn("error", process.stdout)

    def test_missing_files_are_named(self):
        process = run("track", self.folder / "none.mp4")
        self.assertExit(process, 1)
        self.assertIn("none.mp4", process.stderr)
        self.assertIn("No such file", process.stderr)

    def test_one_failure_does_not_stop_the_rest(self):
        good = small_video(self.folder / "good.mkv")
        (self.folder / "empty.mp4").write_bytes(b"")
        os.mkfifo(self.folder / "fifo.mp4")
        (self.folder / "folder.mp4").mkdir()
        process = run("track", "--grid", 1, self.folder / "empty.mp4", self.folder / "fifo.mp4",
                      self.folder / "folder.mp4", good)
        self.assertExit(process, 1)
        self.assertTrue((self.folder / "good.tracks.npz").exists())
        self.assertEqual(len(process.stderr.strip().splitlines()), 3)

    def test_plan(self):
        process = run("plan", "--json")
        self.assertExit(process, 0)
        plan = json.loads(process.stdout)
        self.assertGreater(plan["tile"]["queries"], 0)
        self.assertEqual(set(plan["stages"]), {"backbone", "support", "cost", "correlation", "encoder", "mixer"})
        twice = json.loads(run("plan", "--json", "--queries", 512).stdout)
        self.assertEqual(twice["stages"]["backbone"]["flop"], plan["stages"]["backbone"]["flop"])
        self.assertAlmostEqual(twice["stages"]["mixer"]["flop"] / plan["stages"]["mixer"]["flop"], 2, delta=0.01)
        self.assertExit(run("plan"), 0)
        process = run("plan", "--device", "toaster")
        self.assertExit(process, 1)
        self.assertIn("t4", process.stderr)

    def test_selftest(self):
        process = run("selftest", "--json")
        self.assertExit(process, 0)
        self.assertTrue(json.loads(process.stdout)["weights_known"])
        weights = bytearray((SOURCE / "models" / "tiletrack-small.safetensors").read_bytes())
        weights[-2001] ^= 0x04
        for name, code, known in (("tiletrack-small", 1, True), ("my-own", 0, False)):
            (self.folder / f"{name}.safetensors").write_bytes(weights)
            process = run("selftest", "--json", "--model", self.folder / f"{name}.safetensors")
            self.assertExit(process, code)
            self.assertEqual(json.loads(process.stdout)["weights_known"], known)


class Names(Folder):
    def test_odd_names(self):
        plain = small_video(self.folder / "plain.mkv")
        for name in (b"with blank.mkv", b"new\nline.mkv", b"inv\xffalid.mkv", b"-dash.mkv", b"quote'\".mkv",
                     b"x" * 251 + b".mkv", "grüße.mkv".encode(), b"no-ending", b"esc\x1b[31m.mkv"):
            with self.subTest(name=name):
                folder = os.path.join(os.fsencode(self.folder), b"odd")
                os.makedirs(folder)
                os.link(plain, os.path.join(folder, name))
                process = subprocess.run([TILETRACK, "track", "--grid", "1", "--json", "--", name], cwd=folder,
                                         capture_output=True)
                self.assertEqual(process.returncode, 0, process.stderr)
                self.assertEqual(json.loads(process.stdout)["status"], "ok")
                self.assertNotIn(b"\x1b", process.stdout)
                made = [found for found in os.listdir(folder) if found != name]
                self.assertEqual(len(made), 1)
                self.assertTrue(made[0].endswith(b".tracks.npz") and len(made[0]) <= 255, made)
                for found in os.listdir(folder):
                    os.unlink(os.path.join(folder, found))
                os.rmdir(folder)


class Terminal(Folder):
    def test_bar_on_a_terminal_only(self):
        video = small_video(self.folder / "a.mkv", 60)
        master, slave = pty.openpty()
        process = subprocess.Popen([TILETRACK, "track", "--grid", "1", str(video)], stdin=slave, stdout=slave,
                                   stderr=slave, env={**os.environ, "TERM": "xterm"})
        os.close(slave)
        seen = b""
        while True:
            try:
                piece = os.read(master, 4096)
            except OSError:
                break
            if not piece:
                break
            seen += piece
        os.close(master)
        self.assertEqual(process.wait(), 0)
        self.assertIn(b"frames", seen)
        self.assertIn(b"[#", seen)
        self.assertIn(b"\r", seen)
        piped = run("track", "--grid", 1, video)
        self.assertNotIn("\r", piped.stdout + piped.stderr)

    def test_interrupt_leaves_nothing(self):
        video = make_video(self.folder / "long.mkv", moved(400, 2, 1))
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([TILETRACK, "track", "--grid", "64", str(video)], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE)  # hours of work
            wait_for(lambda: any(is_confined(child) for child in children(process.pid)), "a decoder works for it")
            process.send_signal(number)
            process.communicate(timeout=WAIT_S)
            self.assertEqual(process.returncode, -number)
            self.assertEqual(self.names(), [b"long.mkv"])


if __name__ == "__main__":
    main()
