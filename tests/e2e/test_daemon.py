"""tiletrackd with a worker that only pretends: jobs to devices and back, every end of a job, whose fault it is, and
devices that crash, hang, lie, are slow or compute wrongly."""
import os
import threading
import time

from daemon_tools import DaemonFolder, wait_for
from programs import main
from waiting import Pauses

LONG = bool(os.environ.get("TILETRACK_LONG"))


class Jobs(DaemonFolder):
    def test_a_job_from_incoming_to_tracks(self):
        daemon = self.daemon().start()
        daemon.drop("bear.mp4", "frames=12 ms=20")
        done = daemon.event("job_done")
        self.assertAllDone(daemon, ["bear.mp4"])
        self.assertEqual((done["file"], done["outcome"], done["frames"], done["output"], done["worker"]),
                         ("bear.mp4", "done", 12, "bear.tracks.npz", "cpu"))
        order = [e["event"] for e in daemon.events() if e.get("job") == done["job"]]
        self.assertEqual(order, ["job_claimed", "job_started", "job_done"])
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(daemon.events()[-1]["event"], "daemon_stopped")
        self.assertEqual(daemon.events()[-1]["finished"], 1)
        self.assertNoWorkers(daemon)

    def test_the_same_name_again_and_again(self):
        """While the first is queued, reserved, running and done; nothing is overwritten."""
        daemon = self.daemon().start()
        daemon.drop("first.mp4", "until=two")
        daemon.event("job_started")
        for number in range(3):  # one is reserved, the next wait in incoming/ till their name is free
            wait_for(lambda: daemon.names("incoming") == [], "the one before was claimed")
            daemon.drop("v.mp4", f"frames={number + 2}")
            if number == 1:
                daemon.say("two")
        daemon.event("job_done", 4)
        daemon.drop("v.mp4", "frames=9")
        daemon.event("job_done", 5)
        wait_for(lambda: daemon.names("done") == ["first.mp4", "v.mp4", "v~2.mp4", "v~3.mp4", "v~4.mp4"], "all are done")
        outputs = [e["output"] for e in daemon.events("job_done", file="v.mp4")]
        self.assertEqual(sorted(outputs), ["v.tracks.npz", "v~2.tracks.npz", "v~3.tracks.npz", "v~4.tracks.npz"])
        self.assertEqual(daemon.results(), sorted(["first.tracks.npz", *outputs]))
        for event in daemon.events("job_done", file="v.mp4"):
            self.assertIn(f"frames={event['frames']}", daemon.path("tracks", event["output"]).read_text())

    def test_truncated_is_its_own_outcome(self):
        daemon = self.daemon().start()
        daemon.drop("cut.mp4", "truncated")
        self.assertEqual(daemon.event("job_done")["outcome"], "truncated")
        self.assertEqual(daemon.status()["jobs"]["truncated"], 1)

    def test_twenty_files_by_different_writers(self):
        """Where a writer left its file alone for longer than settle_ms, on a machine that is busy, it may be taken half
        written: once more then, with more patience."""
        for settle_ms in (1000, 5000, 25000):
            self.setUp()
            if self.bring_twenty(settle_ms) < settle_ms / 1000:
                return
        self.fail("a writer got no turn for 25 s")

    def bring_twenty(self, settle_ms):
        """The longest pause of a writer, in seconds; below settle_ms all that is true was asserted."""
        daemon = self.daemon(devices=[{"cpu": 1}, {"cpu": 1}],
                             spool={"settle_ms": settle_ms, "settle_blind_ms": 2 * settle_ms}).start()
        pauses = []
        names = [f"v{i:02}.mp4" for i in range(20)]

        def slowly(name):  # opens and closes again and again, with pauses
            own = Pauses()
            for piece in ("ms=1 ", "frames=3 ", "x " * 50):
                with open(daemon.path("incoming", name), "a") as file:
                    file.write(piece)
                    file.flush()
                    time.sleep(0.02)
                    own.mark()
                own.mark()
            pauses.append(own.longest_s)

        def hidden(name):  # rsync
            daemon.drop(name, "frames=4")

        def part(name):  # a browser
            path = daemon.path("incoming", name + ".part")
            path.write_text("frames=5")
            time.sleep(0.1)
            path.rename(daemon.path("incoming", name))

        def elsewhere(name):  # mv on one file system
            path = self.folder / name
            path.write_text("frames=6")
            path.rename(daemon.path("incoming", name))

        def preallocated(name):
            own = Pauses()
            with open(daemon.path("incoming", name), "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 4096)
                file.write(b"frames=7" + b" " * 4088)
            own.mark()
            pauses.append(own.longest_s)
        writers = [slowly, hidden, part, elsewhere, preallocated]
        threads = [threading.Thread(target=writers[i % 5], args=(name,)) for i, name in enumerate(names)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if max(pauses) >= settle_ms / 1000:
            daemon.finish()
            return max(pauses)
        self.assertAllDone(daemon, names)
        for event in daemon.events("job_done"):
            writer = int(event["file"][1:3]) % 5
            self.assertEqual(event["frames"], 3 + writer, event)  # no half-written one was tracked
        return max(pauses)

    def test_a_job_starts_at_once_when_a_device_is_free(self):
        """Because one ends, not because it is looked for again: no scan comes in the time of this test."""
        daemon = self.daemon(spool={"rescan_ms": 3600000}).start()
        daemon.event("device_ready")
        names = [f"v{i:02}.mp4" for i in range(12)]
        for name in names:
            daemon.drop(name, f"until={name}")
        for number in range(1, 13):  # the next one is reserved while one runs
            name = daemon.event("job_started", number)["file"]
            if number < 12:
                daemon.event("job_claimed", number + 1)
            daemon.say(name)
        self.assertAllDone(daemon, names)
        self.assertEqual([bool(e["prefetched"]) for e in daemon.events("job_started")], [False] + [True] * 11)

    def test_priority_goes_ahead(self):
        daemon = self.daemon().start()
        daemon.drop("first.mp4", "until=urgent")
        daemon.event("job_started")
        for i in range(4):
            daemon.drop(f"v{i}.mp4", "ms=50")
        daemon.event("job_claimed", 2)
        daemon.drop("urgent.mp4", "ms=50", "incoming/priority")
        wait_for(lambda: daemon.status()["queue"]["ready"] == 4, "all are ready")
        daemon.say("urgent")
        self.assertAllDone(daemon, ["first.mp4", "urgent.mp4"] + [f"v{i}.mp4" for i in range(4)])
        self.assertEqual(daemon.events("job_started")[1]["file"], "priority/urgent.mp4")

    def test_queries_travel_with_their_video(self):
        daemon = self.daemon().start()
        daemon.path("incoming", "a.queries.csv").write_text("frame,x,y\n0,1,1\n")
        daemon.drop("a.mp4")
        daemon.event("job_done")
        wait_for(lambda: daemon.names("done") == ["a.mp4", "a.queries.csv"], "both are in done/")

    def test_a_directory_has_its_own_options(self):
        daemon = self.daemon(spool={"recursive": True}).start()
        for name, text in (("good", "tracker: {grid: 4}\n"), ("bad", "tracker: {grud: 4}\n"),
                           ("other", "tracker: {model: not-installed}\n")):
            daemon.path("incoming", name).mkdir()
            daemon.path("incoming", name, "tiletrack.yaml").write_text(text)
            daemon.drop(f"{name}.mp4", into=f"incoming/{name}")
        daemon.event("job_done", file="good/good.mp4")
        self.assertIn("grud", daemon.event("job_quarantined", file="bad/bad.mp4")["cause"])
        self.assertIn("tiletrack.yaml:1:", daemon.event("job_quarantined", file="bad/bad.mp4")["cause"])
        self.assertIn("not-installed", daemon.event("job_quarantined", file="other/other.mp4")["cause"])
        self.assertEqual(daemon.names("tracks/good"), ["good.tracks.npz"])

    def test_the_input_changes_while_it_is_tracked(self):
        daemon = self.daemon().start()
        daemon.drop("v.mp4", "until=changed frames=3")
        daemon.event("job_started")
        video = next(daemon.path("work").glob("*/*/video"))
        with open(video, "a") as file:
            file.write(" truncated")
        daemon.say("changed")
        daemon.event("input_changed", file="v.mp4")
        self.assertEqual(daemon.event("job_done")["outcome"], "truncated")  # the whole contents were tracked
        self.assertEqual(daemon.events("job_started")[-1]["attempt"], 2)

    def test_on_done_gets_the_path(self):
        hook = self.folder / "hook"
        hook.write_text(f"#!/bin/sh\necho \"$#:$1\" >> {self.folder}/told\ncase $1 in *bad*) exit 3;; esac\n")
        hook.chmod(0o755)
        daemon = self.daemon(on_done=str(hook)).start()
        daemon.drop("a b$(x).mp4")
        daemon.drop("bad.mp4", "frames=2")
        failed = daemon.event("on_done_failed")
        self.assertEqual((failed["status"], failed["file"]), (3, "bad.mp4"))
        told = self.folder / "told"
        wait_for(lambda: told.exists() and len(told.read_text().splitlines()) == 2, "on_done was run twice")
        self.assertEqual(sorted(told.read_text().splitlines()),
                         sorted(f"1:{daemon.path('tracks', n)}" for n in ("a b$(x).tracks.npz", "bad.tracks.npz")))
        daemon.event("job_done", 2)


class Ends(DaemonFolder):
    """What each end of a job means for its input."""

    def run_one(self, words, **options):
        daemon = self.daemon(**options).start()
        daemon.drop("v.mp4", words)
        return daemon

    def test_bad_input_is_quarantined_at_once(self):
        daemon = self.run_one("bad")
        self.assertEqual(daemon.event("job_quarantined")["attempts"], 1)
        wait_for(lambda: daemon.inputs() == {"v.mp4": ["failed"]}, "v.mp4 is in failed/")
        reason = daemon.reason("v.mp4")
        self.assertIn("pretended: bad", str(reason))
        self.assertEqual(daemon.results(), [])
        self.assertEqual(daemon.events("worker_exited"), [])

    def test_what_passes_is_tried_again(self):
        for word in ("retry", "lost", "crash", "exit", "garbage", "refuse", "lie"):
            with self.subTest(word):
                self.setUp()
                daemon = self.run_one(f"once:{word}")
                daemon.event("job_done")
                self.assertAllDone(daemon, ["v.mp4"])
                daemon.finish()

    def test_what_stays_is_given_up(self):
        # a worker's death counts only from the second time on
        for word, begun in (("retry", 3), ("lost", 4), ("crash", 4), ("garbage", 4)):
            with self.subTest(word):
                self.setUp()
                daemon = self.run_one(f"{word}")
                gone = daemon.event("job_quarantined")
                self.assertEqual(gone["attempts"], 3)
                self.assertEqual(len(daemon.events("job_started")), begun)
                wait_for(lambda: daemon.inputs() == {"v.mp4": ["failed"]}, "v.mp4 is in failed/")
                daemon.drop("good.mp4")
                daemon.event("job_done", file="good.mp4")
                daemon.finish()

    def test_a_worker_that_hangs(self):
        for word in ("hang", "deaf"):
            with self.subTest(word):
                self.setUp()
                workers = {"stall_ms": 1000, "kill_ms": 300 if word == "deaf" else 3600000}
                daemon = self.run_one(f"once:{word}", workers=workers)
                stalled = daemon.event("worker_stalled")
                self.assertGreaterEqual(stalled["stall_ms"], 1000)
                exited = daemon.event("worker_exited")
                self.assertEqual(exited["signal"], 15 if word == "hang" else 9)
                self.assertIn("no sign of progress", daemon.event("job_retry")["cause"])
                daemon.event("job_done")
                daemon.finish()

    def test_a_deadline_that_the_worker_does_not_keep(self):
        """Tried again and again, for a worker that gets no turn for stall_ms is rightly ended before its deadline."""
        daemon = self.run_one("until=never frames=1", jobs={"deadline_ms": 1000, "deadline_frame_ms": 0, "max_attempts": 100},
                              workers={"stall_ms": 1000})
        wait_for(lambda: [e for e in daemon.events("worker_stalled") if "deadline" in e["cause"]], "a deadline was kept")
        daemon.event("job_retry")


class Devices(DaemonFolder):
    def test_a_device_that_cannot_be_used(self):
        daemon = self.daemon(devices=[{"gpu": 0}, {"cpu": 1}])
        daemon.behave("gpu0", "unusable=no_such_device")
        daemon.start()
        out = daemon.event("device_out_of_service")
        self.assertEqual((out["worker"], out["cause"]), ("gpu0", "no_such_device"))
        daemon.drop("v.mp4")
        self.assertEqual(daemon.event("job_done")["worker"], "cpu")
        shown = daemon.device("gpu0")
        self.assertEqual((shown["state"], shown["cause"]), ("out_of_service", "no_such_device"))
        daemon.behave("gpu0", "")  # somebody repairs it
        daemon.event("device_ready", worker="gpu0")
        self.assertEqual(daemon.device("gpu0")["state"], "idle")
        self.assertEqual(len(daemon.events("device_out_of_service")), 1)  # said once

    def test_a_device_that_computes_wrongly_takes_no_jobs(self):
        daemon = self.daemon()
        daemon.behave("cpu", "wrong")
        daemon.start()
        self.assertIn("self-test", daemon.event("device_out_of_service")["cause"])
        daemon.drop("v.mp4")
        time.sleep(1)
        self.assertEqual(daemon.events("job_claimed"), [])
        self.assertEqual(daemon.inputs(), {"v.mp4": ["incoming"]})

    def test_a_worker_that_dies_before_its_first_job(self):
        for word in ("dies", "dies_idle"):
            with self.subTest(word):
                self.setUp()
                daemon = self.daemon()
                daemon.behave("cpu", word)
                daemon.start()
                self.assertIn("status 9", daemon.event("device_out_of_service")["cause"])
                daemon.event("worker_exited", 3)
                told = [e["event"] for e in daemon.events() if e["event"] in ("worker_exited", "device_out_of_service")]
                self.assertEqual(told[:4], ["worker_exited"] * 2 + ["device_out_of_service", "worker_exited"])
                daemon.drop("v.mp4")
                daemon.behave("cpu", "")
                self.assertAllDone(daemon, ["v.mp4"])
                daemon.finish()

    def test_a_device_that_is_busy_for_a_moment(self):
        daemon = self.daemon(workers={"respawn_ms": 100, "respawn_max_ms": 60000})
        daemon.behave("cpu", "busy=2")
        daemon.start()
        daemon.event("device_ready")
        self.assertEqual(daemon.events("device_out_of_service"), [])
        daemon.finish()
        daemon.behave("cpu", "busy")
        daemon.start()
        self.assertIn("holds", daemon.event("device_out_of_service")["cause"])

    def test_a_worker_that_never_becomes_ready(self):
        daemon = self.daemon(workers={"start_ms": 1000})
        daemon.behave("cpu", "mute")
        daemon.start()
        self.assertIn("start_ms", daemon.event("worker_exited")["cause"])

    def test_a_sick_device_alone_loses_nothing(self):
        daemon = self.daemon()
        names = [f"v{i}.mp4" for i in range(6)]
        daemon.behave("cpu", "crash")
        daemon.start()
        for name in names:
            daemon.drop(name)
        self.assertIn("3 different inputs", daemon.event("device_out_of_service")["cause"])
        time.sleep(3)
        self.assertEqual(daemon.names("failed"), [])
        self.assertEqual(sorted(daemon.inputs()), names)
        daemon.behave("cpu", "")
        self.assertAllDone(daemon, names)
        self.assertEqual(daemon.events("job_quarantined"), [])

    def test_a_sick_device_beside_a_good_one(self):
        for word in ("crash", "lost", "retry", "refuse"):
            with self.subTest(word):
                self.setUp()
                daemon = self.daemon(devices=[{"gpu": 0}, {"cpu": 1}], workers={"respawn_max_ms": 300})
                daemon.behave("gpu0", word)
                daemon.start()
                names = [f"v{i:02}.mp4" for i in range(12)]
                for name in names:
                    daemon.drop(name, "ms=20")
                self.assertAllDone(daemon, names)
                self.assertEqual(daemon.events("job_quarantined"), [])
                self.assertEqual({e["worker"] for e in daemon.events("job_done")}, {"cpu"})
                daemon.finish()

    def test_a_poisonous_input_does_not_retire_devices(self):
        daemon = self.daemon(devices=[{"gpu": 0}, {"cpu": 1}]).start()
        daemon.drop("poison.mp4", "crash")
        good = [f"v{i:02}.mp4" for i in range(8)]
        for name in good:
            daemon.drop(name, "ms=30")
        daemon.event("job_quarantined", file="poison.mp4")
        for name in good:
            daemon.event("job_done", file=name)
        self.assertEqual(daemon.events("device_out_of_service"), [])

    def test_what_failed_on_one_device_goes_to_the_other(self):
        daemon = self.daemon(devices=[{"gpu": 0}, {"gpu": 1}, {"cpu": 1}])
        daemon.behave("gpu0", "crash")
        daemon.behave("gpu1", "crash")
        daemon.start()
        daemon.event("device_ready", 3)
        daemon.drop("v.mp4")
        self.assertEqual(daemon.event("job_done")["worker"], "cpu")
        self.assertEqual([e["worker"] for e in daemon.events("job_started")], ["gpu0", "gpu1", "cpu"])

    def test_a_free_device_takes_what_was_reserved_for_a_busy_one(self):
        daemon = self.daemon(devices=[{"gpu": 0}, {"cpu": 1}]).start()
        daemon.event("device_ready", 2)
        for number, name in enumerate(("long", "middle", "a", "b"), 1):  # each device has one, and one reserved
            daemon.drop(f"{name}.mp4", f"until={name}" if number < 3 else "ms=20")
            daemon.event("job_claimed", number)
        daemon.event("job_started", 2)
        daemon.say("middle")
        daemon.event("job_done", 3)
        self.assertEqual(daemon.events("job_done", file="long.mp4"), [])
        daemon.say("long")
        daemon.event("job_done", file="long.mp4")

    def test_a_fast_and_a_slow_device_share_a_queue(self):
        jobs = 1000 if LONG else 200
        daemon = self.daemon(devices=[{"gpu": 0}, {"cpu": 1}])
        daemon.behave("cpu", "slow=25")
        daemon.start()
        names = [f"v{i:04}.mp4" for i in range(jobs)]
        for name in names:
            daemon.drop(name, "ms=20")
        self.assertAllDone(daemon, names, 600)
        done = daemon.events("job_done")
        by = {worker: [e for e in done if e["worker"] == worker] for worker in ("gpu0", "cpu")}
        self.assertGreater(len(by["gpu0"]), len(by["cpu"]))
        for worker in by:  # neither idled while the other worked off the rest
            self.assertIn(worker, [e["worker"] for e in done[-jobs // 4:]])
        self.assertEqual(daemon.events("job_retry"), [])


if __name__ == "__main__":
    main()
