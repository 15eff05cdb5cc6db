"""tiletrack-worker alone, driven over its protocol: every status, cancel, deadlines, prefetch, smaller tiles,
checkpoints, the ends of either side, and garbage. Most of it on the scripted backend (tests/backends); the last
tests on the real network.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import numpy as np

from programs import Folder, main, make_video, moved, run, sanitized
from waiting import WAIT_S, is_gone, state_of, wait_for
from worker_tools import (BIN, CANCELLED, DEADLINE, INTERRUPTED, OK, BAD_INPUT, REFUSE, RESTART_WORKER, RETRY_LATER,
                          SHUTDOWN, STAGES, WORKER, children, encode, prefetch_values, worker)

FAKE = BIN.parent / "tests" / "fake" / "bin" / "tiletrack-worker"  # with a decoder that costs nothing
ENDED, UNUSABLE, PROTOCOL, LOST = range(4)


class Scripted(Folder):
    def script(self, text=""):
        (self.folder / "script").write_text(text)
        return str(self.folder / "script")

    def fake(self, text="60 grey", name="video"):
        """A video for the fake decoder: frames, colour, what happens in it."""
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def waits(self):
        """Waits until the script's `wait` has begun."""
        wait_for((self.folder / "script.waits").exists, "the script waits")

    def go(self):
        """Ends the script's `wait`, and all later ones."""
        (self.folder / "script.go").touch()

    def out(self, name="out.npz"):
        return str(self.folder / name)

    def start(self, script="", program=FAKE, **settings):
        opened = worker(script=self.script(script), program=program, **settings)
        made = opened.__enter__()
        self.addCleanup(opened.__exit__, None, None, None)
        if settings.get("setup", True):
            self.assertEqual(made.until("hello")["status"], OK)
        return made

    def job(self, w, id="j", video=None, output=None, **values):
        """Runs a job to its end."""
        w.job(id, video or self.fake(), output or self.out(), **values)
        return w.until("done", "failed")

    def assertFailed(self, message, status, text="", cause=0):
        self.assertEqual((message["type"], message["status"], message["cause"]), ("failed", status, cause), message)
        self.assertIn(text, message["text"])

    def assertServes(self, w):
        self.assertEqual(self.job(w, "again", self.fake("5 grey", "again.video"), self.out("again.npz"))["type"], "done")
        self.assertNothingPartial()


class Start(Scripted):
    def test_links_no_decoder_and_no_loop(self):
        dynamic = subprocess.run(["readelf", "-d", WORKER], stdout=subprocess.PIPE, text=True, check=True).stdout
        needed = [line for line in dynamic.splitlines() if "NEEDED" in line]
        self.assertTrue(any("openblas" in line or "libzip" in line for line in needed), needed)
        for line in needed:
            for word in ("libav", "libsw", "libuv", "yaml", "systemd", "cuda"):
                self.assertNotIn(word, line)

    def test_hello(self):
        w = self.start(tile_queries=32, tile_frames=8, precision=1)
        hello = w.seen[0]
        self.assertEqual(hello["pid"], w.process.pid)
        self.assertEqual((hello["selftest"], hello["backend"], hello["model"]), (1, "scripted", "tiletrack-small"))
        self.assertEqual((hello["precision"], hello["tile_queries"], hello["tile_frames"]), (1, 32, 8))
        self.assertEqual(len(hello["model_sha256"]), 64)
        self.assertIn("scripted", hello["device"])

    def test_confined(self):
        w = self.start()
        proc = pathlib.Path(f"/proc/{w.process.pid}")
        self.assertIn("NoNewPrivs:\t1", (proc / "status").read_text())
        limit = next(line for line in (proc / "limits").read_text().splitlines() if "core file" in line)
        self.assertEqual(limit.split()[4:6], ["0", "0"])
        maps = (proc / "maps").read_text()
        weights = [line for line in maps.splitlines() if "tiletrack-small.safetensors" in line]
        self.assertTrue(weights and all(" r--s " in line for line in weights), weights)

    def unusable(self, script="", **settings):
        with worker(script=self.script(script), program=FAKE, **settings) as w:
            hello = w.until("hello")
            self.assertEqual(w.exit(), UNUSABLE)
        return hello

    def test_wrong_answers_take_no_jobs(self):
        for action in ("wrong", "nan"):
            hello = self.unusable(f"selftest always {action}")
            self.assertEqual((hello["status"], hello["selftest"]), (REFUSE, 2))
            self.assertIn("known answer", hello["text"])

    def test_device_that_cannot_be_opened(self):
        for word, status in (("refuse", REFUSE), ("retry_later", RETRY_LATER), ("restart_worker", RESTART_WORKER)):
            hello = self.unusable(f"open always {word}")
            self.assertEqual((hello["status"], hello["selftest"], hello["device"]), (status, 0, ""))
        self.assertEqual(self.unusable(model="no-such-model")["status"], REFUSE)
        self.assertEqual(self.unusable(backend="nosuch")["status"], REFUSE)
        self.assertEqual(self.unusable(backend="../evil")["status"], REFUSE)

    def test_memory_that_is_short_from_the_start(self):
        w = self.start("open always shrink_above 20")
        self.assertEqual(w.seen[0]["tile_queries"], 16)
        self.assertEqual(w.log().count('"event":"tile_shrunk"'), 1)
        hello = self.unusable("open always shrink_tile")
        self.assertEqual(hello["status"], RETRY_LATER)
        self.assertIn("smallest tiles", hello["text"])

    def test_one_worker_a_device(self):
        lock = str(self.folder / "device.lock")
        first = self.start(lock=lock)
        hello = self.unusable(lock=lock)
        self.assertEqual(hello["status"], RETRY_LATER)
        self.assertIn("another worker", hello["text"])
        first.close()
        self.start(lock=lock)


class Jobs(Scripted):
    def test_messages_of_a_job(self):
        w = self.start("track always sleep 60", heartbeat_ms=10)
        done = self.job(w, video=self.fake("100 grey truncated"), grid=4)
        self.assertEqual((done["frames"], done["queries"], done["truncated"]), (100, 16, 1))
        self.assertEqual(done["bytes0"], os.path.getsize(self.out()))
        self.assertGreaterEqual(done["track_ms"], 180)
        started = [m for m in w.seen if m["type"] == "started"]
        self.assertEqual(len(started), 1)
        self.assertEqual((started[0]["frames_hint"], started[0]["width"], started[0]["prefetched"]), (100, 64, 0))
        progress = [m for m in w.seen if m["type"] == "progress"]
        self.assertEqual({STAGES[m["stage"]] for m in progress}, {"opening", "decoding", "tracking", "writing"})
        frames = [m["frames"] for m in progress]
        self.assertEqual(frames, sorted(frames))
        self.assertIn(47, frames)
        self.assertServes(w)

    def test_heartbeats_between_blocks_of_query_points(self):
        w = self.start("track always sleep 25", heartbeat_ms=0, tile_queries=10)
        self.job(w, video=self.fake("47 grey"), grid=10)  # 100 points in blocks of 10
        tracking = [m for m in w.seen if m["type"] == "progress" and STAGES[m["stage"]] == "tracking"]
        self.assertGreaterEqual(len(tracking), 10)

    def test_two_formats(self):
        w = self.start()
        done = self.job(w, outputs=2, format1=1, path1=self.out("out.csv"))
        self.assertEqual((done["outputs"], done["bytes1"]), (2, os.path.getsize(self.out("out.csv"))))

    def test_statuses(self):
        for word, status in (("bad_input", BAD_INPUT), ("retry_later", RETRY_LATER), ("refuse", REFUSE)):
            for call in ("features", "sample", "track"):
                with self.subTest(call=call, status=word):
                    w = self.start(f"{call} 1 {word}")
                    self.assertFailed(self.job(w), status, f"scripted: {word}")
                    self.assertFalse(os.path.exists(self.out()))
                    self.assertServes(w)

    def test_lost_device_ends_the_worker(self):
        for action in ("restart_worker", "nan"):
            w = self.start(f"track 2 {action}")
            self.assertFailed(self.job(w, video=self.fake("94 grey")), RESTART_WORKER)
            self.assertEqual(w.exit(), LOST)
            self.assertNothingPartial()

    def test_crash_and_exit(self):
        w = self.start("track 1 crash")
        w.job("j", self.fake(), self.out())
        self.assertEqual(w.exit(), -signal.SIGSEGV)
        w = self.start("track 1 exit")
        w.job("j", self.fake(), self.out())
        self.assertEqual(w.exit(), 7)

    def test_smaller_tiles(self):
        w = self.start("track always shrink_above 20")
        self.assertEqual(self.job(w)["type"], "done")
        tiles = [m["tile_queries"] for m in w.seen if m["type"] == "started"]
        self.assertEqual(tiles, [64, 32, 16])
        self.assertEqual(w.log().count('"event":"tile_shrunk"'), 2)
        self.assertServes(w)
        self.assertEqual(w.seen[-2]["type"] == "done" or w.seen[-1]["type"], "done")
        self.assertEqual([m["tile_queries"] for m in w.seen if m["type"] == "started"][-1], 16)

    def test_no_tile_is_small_enough(self):
        w = self.start("track always shrink_tile")
        self.assertFailed(self.job(w), RETRY_LATER, "smallest tiles")
        w = self.start("track 1 shrink_tile\nopen 3 refuse")  # self-test, worker, smaller
        self.assertFailed(self.job(w), RESTART_WORKER, "opening the device")
        self.assertEqual(w.exit(), LOST)

    def test_bad_inputs(self):
        w = self.start()
        self.assertFailed(self.job(w, video=self.fake("not a video")), BAD_INPUT)
        self.assertFailed(self.job(w, video=self.fake("60 grey crash")), BAD_INPUT, "crashed")
        self.assertFailed(self.job(w, video=self.out("missing")), BAD_INPUT)
        self.assertFailed(self.job(w, video=self.fake("60 grey hang"), stall_seconds=1), RETRY_LATER, "stand still")
        (self.folder / "q.csv").write_text("frame,x,y\n500,1,1\n")
        self.assertFailed(self.job(w, queries=str(self.folder / "q.csv")), BAD_INPUT, "q.csv")
        self.assertServes(w)

    def test_outputs_that_cannot_be_written(self):
        w = self.start()
        self.assertFailed(self.job(w, output=str(self.folder / "missing" / "out.npz")), REFUSE)
        self.assertServes(w)

    def test_side_cars_are_not_looked_for(self):
        w = self.start()
        (self.folder / "video.queries.csv").write_text("frame,x,y\n0,1,1\n")
        self.assertEqual(self.job(w, grid=3)["queries"], 9)


class Stopping(Scripted):
    def acting(self):
        """Waits until the script's first line, which says `once`, has begun to act: it leaves a mark."""
        wait_for((self.folder / "script.once.1").exists)

    def test_cancel(self):
        w = self.start("track 1 wait")
        w.job("j", self.fake(), self.out())
        self.waits()
        w.send("cancel", id="another")
        with self.assertRaises(TimeoutError):
            w.until("failed", timeout=0.3)
        w.send("cancel", id="j")
        self.assertFailed(w.until("failed"), INTERRUPTED, "cancelled", CANCELLED)
        w.send("cancel", id="j")  # too late: nothing happens
        self.assertServes(w)

    def test_cancel_while_the_decoder_is_waited_for(self):
        w = self.start()
        w.job("j", self.fake("60 grey hang"), self.out())
        w.until("started")
        w.send("cancel", id="j")
        self.assertFailed(w.until("failed"), INTERRUPTED, "", CANCELLED)
        wait_for(lambda: not children(w.process.pid))
        self.assertServes(w)

    def test_cancel_at_once(self):
        w = self.start()
        for i in range(20):  # jobs that never end by themselves
            w.job(f"j{i}", self.fake("60 grey hang"), self.out())
            w.send("cancel", id=f"j{i}")
            self.assertFailed(w.until("failed", "done"), INTERRUPTED, "", CANCELLED)
        self.assertServes(w)

    def test_deadline(self):
        w = self.start("track always sleep 100", heartbeat_ms=0)
        video = self.fake("400 grey")
        self.assertFailed(self.job(w, video=video, deadline_ms=150), INTERRUPTED, "deadline", DEADLINE)
        self.assertFailed(self.job(w, video=video, deadline_frame_ms=1), INTERRUPTED, "deadline", DEADLINE)
        self.assertEqual(self.job(w, video=video, deadline_ms=10, deadline_frame_ms=10000)["type"], "done")

    def test_pong_comes_from_the_work_loop(self):
        w = self.start("track 1 wait", heartbeat_ms=10000)
        w.send("ping", serial=1)
        self.assertEqual(w.until("pong")["serial"], 1)
        w.job("j", self.fake("94 grey"), self.out())
        self.waits()
        w.send("ping", serial=2)
        with self.assertRaises(TimeoutError):
            w.until("pong", timeout=0.5)  # not before the waiting call is over
        self.go()
        self.assertEqual(w.until("pong")["serial"], 2)
        w.until("done")

    def test_hangs_are_silent(self):
        w = self.start("track once hang", heartbeat_ms=0)
        w.job("j", self.fake(), self.out())
        self.acting()
        w.send("ping", serial=1)
        w.send("cancel", id="j")
        with self.assertRaises(TimeoutError):
            w.until("pong", "failed", "done", timeout=0.5)

    def test_shutdown(self):
        w = self.start()
        w.send("shutdown", now=0)
        self.assertEqual(w.exit(), ENDED)
        w = self.start("track 1 wait")
        w.job("j", self.fake("94 grey"), self.out())
        self.waits()
        w.send("shutdown", now=0)
        self.go()
        w.until("done")
        self.assertEqual(w.exit(), ENDED)

    def test_shutdown_now_and_sigterm(self):
        if b"__tsan_init" in WORKER.read_bytes():
            self.skipTest("ThreadSanitizer's own thread takes the signal and dies of it")
        for stop in (lambda w: w.send("shutdown", now=1), lambda w: w.process.terminate(),
                     lambda w: (w.send("shutdown", now=0), w.send("shutdown", now=1))):
            for threads in "1", "2":  # OpenBLAS starts its own before main; they block no signal
                w = self.start("track always wait", environment={"OPENBLAS_NUM_THREADS": threads})
                w.job("j", self.fake(), self.out("never.npz"))
                w.until("started")
                stop(w)
                self.assertFailed(w.until("failed"), INTERRUPTED, "", SHUTDOWN)
                self.assertEqual(w.exit(), ENDED)
                self.assertNotIn(b"never.npz", self.names())
                self.assertNothingPartial()
        w = self.start()
        w.process.terminate()
        self.assertEqual(w.exit(), ENDED)

    def test_other_signals_do_not_end_it(self):
        if b"__tsan_init" in WORKER.read_bytes():
            self.skipTest("ThreadSanitizer's own thread takes the signal and dies of it")
        w = self.start()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1):
            w.process.send_signal(number)
        self.assertServes(w)


class OtherEnd(Scripted):
    def test_end_of_the_stream(self):
        w = self.start()
        w.socket.close()
        self.assertEqual(w.process.wait(WAIT_S), ENDED)
        w = self.start("track always wait")
        w.job("j", self.fake(), self.out())
        w.until("started")
        w.socket.close()
        self.assertEqual(w.process.wait(WAIT_S), ENDED)
        self.assertNothingPartial()

    def test_death_of_the_parent(self):
        """kill -9 of a supervisor ends its worker and the worker's decoder."""
        child = subprocess.Popen([sys.executable, __file__, "supervisor", self.script("track once hang"),
                                  self.fake("600 grey"), self.out()], stdout=subprocess.PIPE, text=True)
        pid = int(child.stdout.readline())
        wait_for(lambda: children(pid))
        decoders = children(pid)
        self.assertTrue(os.path.exists(f"/proc/{pid}"))
        child.kill()
        child.wait()
        child.stdout.close()
        for gone in [pid, *decoders]:
            wait_for(lambda: is_gone(gone))

    def test_another_parent(self):
        with worker(script=self.script(), program=FAKE, supervisor=1) as w:
            self.assertEqual(w.exit(), PROTOCOL)
            self.assertIn("parent", w.log())

    def test_garbage(self):
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", encode("ping", serial=1), encode("hello"),
                        encode("setup")[:-1], b"\0" * 64):
            with worker(program=FAKE, setup=False) as w:
                w.socket.sendall(garbage)
                w.socket.shutdown(1)
                self.assertEqual(w.exit(), PROTOCOL)
        job = encode("job", id="x")  # no decoder limits
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", encode("setup"), encode("hello"), encode("done"), job):
            w = self.start()
            w.socket.sendall(garbage)
            self.assertEqual(w.exit(), PROTOCOL)
            self.assertIn("protocol_broken", w.log())

    def test_garbage_during_a_job(self):
        w = self.start("track always wait")
        w.job("j", self.fake(), self.out())
        w.until("started")
        w.job("second", self.fake(), self.out())
        self.assertFailed(w.until("failed"), INTERRUPTED, "", SHUTDOWN)
        self.assertEqual(w.exit(), PROTOCOL)
        self.assertNothingPartial()

    def test_another_version(self):
        with worker(program=FAKE, setup=False) as w:
            w.socket.sendall(encode("setup")[:4] + b"\x63\0" + encode("setup")[6:])
            hello = w.until("hello")
            self.assertEqual(hello["status"], REFUSE)
            self.assertIn("different versions", hello["text"])
            self.assertEqual(w.exit(), PROTOCOL)

    def test_started_by_hand(self):
        process = subprocess.run([WORKER], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.assertEqual(process.returncode, PROTOCOL)
        self.assertIn("not by hand", process.stderr)

    def test_log_file_and_reopening(self):
        log = self.folder / "log"
        w = self.start("track 1 shrink_tile\ntrack 3 shrink_tile", log_file=str(log))
        self.job(w, video=self.fake("9 grey"))
        self.assertIn("tile_shrunk", log.read_text())
        log.rename(self.folder / "log.1")
        w.send("reopen_log")
        wait_for(log.exists)
        self.job(w, video=self.fake("9 grey"))
        self.assertIn("tile_shrunk", log.read_text())
        self.assertEqual(w.log(), "")


class Prefetching(Scripted):
    def started(self, w):
        return [m for m in w.seen if m["type"] == "started"][-1]

    def test_between_jobs(self):
        w = self.start()
        video = self.fake("60 grey", "next")
        w.send("prefetch", **prefetch_values("next", video))
        wait_for(lambda: children(w.process.pid))
        self.assertEqual(self.job(w, "next", video)["type"], "done")
        self.assertEqual(self.started(w)["prefetched"], 1)
        self.assertEqual(children(w.process.pid), [])

    def test_while_a_job_runs(self):
        w = self.start("track 1 wait")
        w.job("first", self.fake(), self.out())
        self.waits()
        video = self.fake("60 grey", "next")
        w.send("prefetch", **prefetch_values("next", video))
        wait_for(lambda: len(children(w.process.pid)) == 2)
        self.go()
        w.until("done")
        self.job(w, "next", video)
        self.assertEqual(self.started(w)["prefetched"], 1)

    def test_the_job_before_is_cancelled(self):
        w = self.start("track 1 wait")
        w.job("first", self.fake(), self.out())
        self.waits()
        video = self.fake("60 grey", "next")
        w.send("prefetch", **prefetch_values("next", video))
        wait_for(lambda: len(children(w.process.pid)) == 2)
        w.send("cancel", id="first")
        w.until("failed")
        self.assertEqual(self.job(w, "next", video)["type"], "done")

    def test_what_does_not_fit_is_dropped(self):
        w = self.start()
        video, other = self.fake("60 grey", "next"), self.fake("50 grey", "other")
        for id, path, values in (("else", video, {}), ("next", other, {}), ("next", video, {"threads": 2}),
                                 ("next", video, {"touch": 1})):
            w.send("prefetch", **prefetch_values("next", video))
            wait_for(lambda: children(w.process.pid))
            if values.pop("touch", 0):
                self.fake("70 grey", "next")
            done = self.job(w, id, path, **values)
            self.assertEqual(done["type"], "done")
            self.assertEqual(self.started(w)["prefetched"], 0)
            w.send("prefetch", **prefetch_values("", ""))
            wait_for(lambda: not children(w.process.pid))
        self.assertEqual(done["frames"], 70)

    def test_later_ones_replace_earlier_ones(self):
        w = self.start()
        for i in range(20):
            w.send("prefetch", **prefetch_values(f"n{i}", self.fake("60 grey", f"n{i}")))
        self.job(w, "n19", str(self.folder / "n19"))
        self.assertEqual(self.started(w)["prefetched"], 1)
        wait_for(lambda: not children(w.process.pid))

    def test_failures_are_told_by_the_job_alone(self):
        w = self.start()
        bad = self.fake("60 grey bad", "bad")
        w.send("prefetch", **prefetch_values("bad", bad))
        w.send("prefetch", **prefetch_values("missing", self.out("missing")))
        w.send("ping", serial=5)
        self.assertEqual(w.receive()["type"], "pong")
        self.assertFailed(self.job(w, "missing", self.out("missing")), BAD_INPUT)
        w.send("prefetch", **prefetch_values("bad", bad))
        self.assertFailed(self.job(w, "bad", bad), BAD_INPUT)
        self.assertServes(w)

    def test_shutdown_while_prefetching(self):
        w = self.start()
        w.send("prefetch", **prefetch_values("n", self.fake("2 grey hang", "n")))
        w.send("shutdown", now=0)
        self.assertEqual(w.exit(), ENDED)


class Checkpoints(Scripted):
    FRAMES = 400  # windows at 0, 39, ... 312, 351, 353

    def points(self):
        """Query points in the first window, and in later ones."""
        first, later = self.folder / "first.csv", self.folder / "later.csv"
        first.write_text("frame,x,y\n" + "".join(f"{i},{i},{i + 1}\n" for i in range(40)))
        later.write_text("frame,x,y\n" + "".join(f"{i * 9},{i},{i + 1}\n" for i in range(40)))
        return str(first), str(later)

    def values(self, queries, **more):
        return dict(video=str(self.folder / "video"), queries=queries, checkpoint=self.out("checkpoint"), **more)

    def read(self, path):
        return pathlib.Path(path).read_bytes()

    def reach(self, w, frames):
        """Waits until so many frames are tracked and the window behind them is begun, each of which is told once."""
        for _ in ("tracked", "begun"):
            while not (STAGES[(message := w.until("progress"))["stage"]] == "tracking" and message["frames"] >= frames):
                pass

    def interrupt(self, values, windows):
        """kill -9 while the window behind `windows` whole ones is tracked."""
        w = self.start(f"track {windows + 1} hang", heartbeat_ms=0)
        w.job("j", output=self.out(), **values)
        w.until("started")
        self.reach(w, min(47 + 39 * (windows - 1), self.FRAMES))
        self.assertTrue((self.folder / "checkpoint.state").exists())
        w.process.kill()
        w.process.wait()
        w.close()

    def test_every_window_boundary(self):
        self.fake(f"{self.FRAMES} grey")
        for queries in self.points():
            reference = self.out("reference.npz")
            self.assertEqual(self.job(self.start(), output=reference, video=self.out("video"), queries=queries)["frames"],
                             self.FRAMES)
            for windows in (1, 2, 5, 9, 10):
                with self.subTest(queries=queries, windows=windows):
                    self.interrupt(self.values(queries), windows)
                    self.assertFalse(os.path.exists(self.out()))
                    w = self.start()
                    done = self.job(w, **self.values(queries))
                    last = min(47 + 39 * (windows - 1), self.FRAMES)
                    self.assertEqual(done["resumed_frames"], last)
                    self.assertEqual(done["frames"], self.FRAMES)
                    self.assertEqual(self.read(self.out()), self.read(reference))
                    os.remove(self.out())
                    for file in self.folder.glob("checkpoint.*"):
                        file.unlink()
                    w.close()

    def test_interrupted_again_and_again(self):
        self.fake(f"{self.FRAMES} grey")
        queries = self.points()[1]
        self.job(self.start(), output=self.out("reference.npz"), video=self.out("video"), queries=queries)
        self.interrupt(self.values(queries), 3)
        for step in range(4):  # each goes one window further: the first is the resumed one's successor
            w = self.start("track 2 hang", heartbeat_ms=0)
            w.job("j", output=self.out(), **self.values(queries))
            resumed = w.until("started")["resumed_frames"]
            self.assertEqual(resumed, 47 + 39 * (2 + step))
            self.reach(w, resumed + 39)
            w.process.kill()
            w.close()
        self.assertEqual(self.job(self.start(), **self.values(queries))["resumed_frames"], 47 + 39 * 6)
        self.assertEqual(self.read(self.out()), self.read(self.out("reference.npz")))

    def test_what_is_not_ours_is_not_taken_up(self):
        video = self.folder / "video"
        first, later = self.points()
        changes = {
            "queries": lambda: self.values(first),
            "overlap": lambda: self.values(later, overlap_frames=9),
            "video": lambda: (video.write_text(f"{self.FRAMES} red"), self.values(later))[1],
            "frames": lambda: self.values(later, max_frames=self.FRAMES - 1),
        }
        for name, change in changes.items():
            with self.subTest(changed=name):
                self.fake(f"{self.FRAMES} grey")
                self.interrupt(self.values(later), 4)
                values = change()
                w = self.start()
                self.assertEqual(self.job(w, **values)["resumed_frames"], 0)
                values.pop("checkpoint")
                self.job(w, output=self.out("reference.npz"), **values)
                self.assertEqual(self.read(self.out()), self.read(self.out("reference.npz")))
                w.close()

    def test_damage(self):
        self.fake(f"{self.FRAMES} grey")
        queries = self.points()[1]
        self.job(self.start(), output=self.out("reference.npz"), video=self.out("video"), queries=queries)
        state = self.folder / "checkpoint.state"

        def flip(at):
            data = bytearray(state.read_bytes())
            data[at] ^= 1
            state.write_bytes(data)

        damages = [lambda: flip(3), lambda: flip(90), lambda: flip(-1), lambda: flip(5000),
                   lambda: state.write_bytes(b""), lambda: state.write_bytes(state.read_bytes()[:-1]),
                   lambda: os.truncate(self.out("checkpoint.tiles"), 1000),
                   lambda: os.truncate(self.out("checkpoint.times"), 8), state.unlink,
                   lambda: os.unlink(self.out("checkpoint.tiles"))]
        for number, damage in enumerate(damages):
            with self.subTest(damage=number):
                self.interrupt(self.values(queries), 3)
                damage()
                w = self.start()
                self.assertEqual(self.job(w, **self.values(queries))["resumed_frames"], 0)
                self.assertEqual(self.read(self.out()), self.read(self.out("reference.npz")))
                w.close()

    def test_after_shrinking_it_goes_on(self):
        self.fake(f"{self.FRAMES} grey")
        queries = self.points()[0]
        w = self.start()
        self.job(w, output=self.out("reference.npz"), video=self.out("video"), queries=queries)
        w = self.start("track 4 shrink_tile")
        self.assertEqual(self.job(w, **self.values(queries))["resumed_frames"], 47 + 39 * 2)
        tiles = [(m["tile_queries"], m["resumed_frames"]) for m in w.seen if m["type"] == "started"]
        self.assertEqual(tiles, [(64, 0), (32, 47 + 39 * 2)])
        with np.load(self.out()) as made, np.load(self.out("reference.npz")) as reference:
            for name in set(reference) - {"meta"}:  # which tells the tiles
                self.assertTrue(np.array_equal(made[name], reference[name]), name)

    def test_one_window_needs_none(self):
        w = self.start()
        self.fake("47 grey")
        self.job(w, video=self.out("video"), checkpoint=self.out("checkpoint"))
        self.assertFalse((self.folder / "checkpoint.state").exists())

    def test_least_time_between_two(self):
        w = self.start()
        self.fake(f"{self.FRAMES} grey")
        self.job(w, video=self.out("video"), checkpoint=self.out("checkpoint"), checkpoint_ms=3600000)
        self.assertFalse((self.folder / "checkpoint.state").exists())


class Durability(Scripted):
    """What kill -9 cannot show: the order of system calls (strace)."""

    @unittest.skipUnless(shutil.which("strace"), "strace is not installed")
    def test_synced_before_renamed(self):
        trace = self.folder / "trace"
        # -D: the tracer is the child's child, so the worker's parent is this process
        w = self.start(wrapper=("strace", "-D", "-f", "-y", "-o", trace, "-e",
                                "trace=renameat,renameat2,rename,fsync,fdatasync,pwrite64,write,unlinkat,unlink"))
        done = self.job(w, video=self.fake("120 grey"), checkpoint=self.out("checkpoint"))
        self.assertEqual(done["type"], "done")
        w.send("shutdown", now=0)
        self.assertEqual(w.exit(), ENDED)
        wait_for(lambda: "+++ exited" in trace.read_text().splitlines()[-1])
        calls = [line.split(None, 1)[1] for line in trace.read_text().splitlines() if str(self.folder) in line]
        renames = [i for i, call in enumerate(calls) if call.startswith("rename")]
        self.assertEqual([calls[i].count("checkpoint.state") for i in renames], [1, 1, 0])
        for i in renames:
            temporary = re.search(r'"(\.tt-[0-9a-f]+\.part)"', calls[i])[1]
            of_file = [call.split("(")[0] for call in calls[:i] if temporary in call]
            self.assertEqual(of_file[-1], "fsync", calls[:i + 1])
            self.assertTrue(calls[i + 1].startswith("fsync") and calls[i + 1].split(" ")[0].endswith(f"<{self.folder}>)"),
                            calls[i + 1])
        for i in renames[:2]:  # what a state speaks of is on disk before it
            for suffix in ("tiles", "times"):
                of_file = [call.split("(")[0] for call in calls[:i] if f"checkpoint.{suffix}" in call]
                self.assertEqual(of_file[-1], "fdatasync")


class FullDisk(Scripted):
    def setUp(self):
        super().setUp()
        self.small = self.folder / "small"
        self.small.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", self.small],
                          stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no right to mount a small file system")
        self.addCleanup(subprocess.run, ["umount", "-l", self.small], check=True)

    def test_where_the_checkpoint_goes(self):
        w = self.start()
        video, queries = self.fake("400 grey"), self.folder / "q.csv"
        queries.write_text("frame,x,y\n" + "".join(f"{i},{i},{i + 1}\n" for i in range(40)))
        values = dict(video=video, queries=str(queries), checkpoint=str(self.small / "checkpoint"))
        self.assertFailed(self.job(w, **values), RETRY_LATER, "No space left")
        self.assertNothingPartial(self.small)
        self.assertTrue((self.small / "checkpoint.state").exists())
        subprocess.run(["mount", "-o", "remount,size=2m", self.small], check=True)
        done = self.job(w, **values)  # goes on from what was durable when the disk was full
        self.assertGreater(done["resumed_frames"], 47)
        self.job(w, output=self.out("reference.npz"), video=video, queries=str(queries))
        self.assertEqual(pathlib.Path(self.out()).read_bytes(), pathlib.Path(self.out("reference.npz")).read_bytes())

    def test_where_the_result_goes(self):
        w = self.start()
        output = str(self.small / "out.npz")
        self.assertFailed(self.job(w, video=self.fake("400 grey"), output=output, grid=10,
                                   temporary_directory=str(self.folder)), RETRY_LATER, "No space left")
        self.assertEqual(self.names(self.small), [])
        self.assertServes(w)


class Many(Scripted):
    def test_nothing_grows(self):
        """400 jobs of every outcome: no more memory, descriptors, threads or files than after the first 100."""
        w = self.start("features red bad_input\nfeatures green retry_later")
        process = pathlib.Path(f"/proc/{w.process.pid}")

        def held():  # by nothing but the worker itself: no decoder is there, nor on its way
            w.send("prefetch", **prefetch_values("", ""))
            w.send("ping", serial=1)
            w.until("pong")
            wait_for(lambda: not children(w.process.pid))
            status = dict(line.split(":\t") for line in (process / "status").read_text().splitlines())
            return (len(os.listdir(process / "fd")), int(status["Threads"]), int(status["VmRSS"].split()[0]))

        videos = [self.fake(text, f"v{i}") for i, text in enumerate(
            ("3 grey", "60 grey", "3 red", "3 green", "50 grey crash", "3 grey truncated", "3 grey bad"))]
        outcomes = {}
        start = time.monotonic()
        for i in range(400):
            if i % 3 == 0:
                w.send("prefetch", **prefetch_values(f"j{i + 1}", videos[(i + 1) % 7]))
            if i % 10 == 4:
                w.job(f"j{i}", videos[i % 7], self.out())
                w.send("cancel", id=f"j{i}")
                message = w.until("done", "failed")
            else:
                message = self.job(w, f"j{i}", videos[i % 7])
            name = message.get("status", "done")
            outcomes[name] = outcomes.get(name, 0) + 1
            if i == 100:
                before = held()
        after = held()
        print(f"{400 / (time.monotonic() - start):.0f} jobs/s, outcomes {outcomes}, fds, threads, kB: {before} {after}")
        self.assertLessEqual(set(outcomes), {"done", BAD_INPUT, RETRY_LATER, INTERRUPTED})
        self.assertEqual(after[1], before[1])
        self.assertLessEqual(after[0], before[0])
        if not sanitized():
            self.assertLess(after[2], before[2] + 16000)
        self.assertNothingPartial()


class Ahead(Scripted):
    """The decoder works while the tracker does."""

    def test_the_next_window_is_decoded_meanwhile(self):
        """While the first window is tracked the decoder fills the ring. Then it is stopped: what the second window needs
        is there already."""
        w = self.start("track 1 wait", heartbeat_ms=0)
        w.job("j", self.fake(f"{47 + 39 * 5} grey"), self.out(), grid=2)
        self.waits()
        decoder, = children(w.process.pid)
        wait_for(lambda: state_of(decoder) == "S", "the ring is full")  # it sleeps for nothing else
        os.kill(decoder, signal.SIGSTOP)
        wait_for(lambda: state_of(decoder) == "T", "the decoder stands still")
        self.go()
        while w.until("progress")["frames"] < 47 + 39:
            pass
        os.kill(decoder, signal.SIGCONT)
        self.assertEqual(w.until("done")["frames"], 47 + 39 * 5)


class Network(Scripted):
    """The real network on the CPU, the real decoder."""

    def cpu(self):
        opened = worker(threads=1)
        w = opened.__enter__()
        self.addCleanup(opened.__exit__, None, None, None)
        hello = w.until("hello")
        self.assertEqual((hello["status"], hello["selftest"]), (OK, 1), hello["text"])
        return w

    def test_the_same_as_the_command_line(self):
        video = make_video(self.folder / "a.mkv", moved(5, 2, 1))
        w = self.cpu()
        self.assertEqual(self.job(w, video=str(video), grid=2)["type"], "done")
        self.assertExit(run("track", "--grid", 2, "--threads", 1, "-o", self.folder / "b.npz", video), 0)
        self.assertEqual(pathlib.Path(self.out()).read_bytes(), (self.folder / "b.npz").read_bytes())
        maps = pathlib.Path(f"/proc/{w.process.pid}/maps").read_text()
        self.assertIn(" r--s ", next(line for line in maps.splitlines() if "tiletrack-small.safetensors" in line))

    def test_resumed_results_have_the_same_bits(self):
        video = str(make_video(self.folder / "a.mkv", moved(88, 2, 1)))
        (self.folder / "q.csv").write_text("frame,x,y\n0,100,90\n60,150.5,120\n")
        values = dict(video=video, queries=self.out("q.csv"), checkpoint=self.out("checkpoint"))
        w = self.cpu()
        w.job("j", output=self.out(), **values)
        wait_for((self.folder / "checkpoint.state").exists)
        w.process.kill()
        w.close()
        w = self.cpu()
        w.job("j", output=self.out(), **values)
        done = w.until("done", "failed")
        self.assertIn(done.get("resumed_frames"), (47, 86), done)
        w.job("k", output=self.out("reference.npz"), **dict(values, checkpoint=""))
        self.assertEqual(w.until("done")["resumed_frames"], 0)
        self.assertEqual(pathlib.Path(self.out()).read_bytes(), (self.folder / "reference.npz").read_bytes())

    def test_cancel_within_a_window(self):
        video = str(make_video(self.folder / "a.mkv", moved(47, 2, 1)))
        w = self.cpu()
        w.job("j", output=self.out(), video=video, grid=64)  # minutes of work, and no window but this one
        while STAGES[w.until("progress")["stage"]] != "tracking":
            pass
        w.send("cancel", id="j")
        self.assertFailed(w.until("done", "failed"), INTERRUPTED, "", CANCELLED)
        self.assertNothingPartial()


def supervise(script, video, output):
    """A supervisor that is going to be killed: tells its worker's process id and waits."""
    with worker(script=script, program=FAKE) as w:
        w.until("hello")
        w.job("j", video, output)
        wait_for(pathlib.Path(script + ".once.1").exists)
        print(w.process.pid, flush=True)
        signal.pause()


if __name__ == "__main__":
    if sys.argv[1:2] == ["supervisor"]:
        supervise(*sys.argv[2:])
    main()
