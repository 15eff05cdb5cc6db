"""tiletrackd when the world fails: killed workers and killed daemons under load, full and read-only disks, directories
that vanish, processes and descriptors that cannot be had, SIGSTOP. Whatever happens, every input is in exactly one
place and every finished one has exactly one result. TILETRACK_LONG=1: the long forms."""
import contextlib
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import time

from daemon_tools import DaemonFolder, stamp, wait_for
from programs import main, sanitized

LONG = bool(os.environ.get("TILETRACK_LONG"))


class Kills(DaemonFolder):
    def assertNothingTwice(self, daemon, names):
        """Between two lives: each input once (a move by rename shows nothing else), no result without its end."""
        found = daemon.inputs()
        self.assertEqual(sorted(found), sorted(names))
        for name, places in found.items():
            self.assertEqual(len(places), 1, (name, places))

    def test_kill_workers_under_load(self):
        kills = 100 if LONG else 15
        dice = random.Random(1)
        daemon = self.daemon(devices=[{"cpu": 1}, {"cpu": 1}], workers={"respawn_ms": 20, "respawn_max_ms": 100},
                             jobs={"max_attempts": 100}).start()
        names = []
        for kill in range(kills):
            for _ in range(3):
                names.append(f"v{len(names):04}.mp4")
                daemon.drop(names[-1], "ms=60")
            time.sleep(dice.uniform(0.05, 0.4))
            pids = [d["pid"] for d in daemon.status()["devices"] if d["pid"]]
            if pids:
                daemon.hit(dice.choice(pids), signal.SIGKILL)
        self.assertAllDone(daemon, names, 300)
        self.assertEqual(daemon.events("job_quarantined"), [])
        self.assertEqual(len({e["file"] for e in daemon.events("job_done")}), len(daemon.events("job_done")))

    def test_kill_the_daemon_under_load(self):
        kills = 500 if LONG else 15
        dice = random.Random(2)
        daemon = self.daemon(devices=[{"cpu": 1}, {"cpu": 1}], jobs={"max_attempts": 100})
        names = []
        for kill in range(kills):
            daemon.start(ready=False)
            wait_for(lambda: daemon.path("incoming", "priority").exists(), "the spool is there")
            for _ in range(3):
                names.append(f"v{len(names):04}.mp4")
                daemon.drop(names[-1], "ms=30")
            time.sleep(dice.uniform(0.05, 0.8))
            daemon.kill()
            self.assertNothingTwice(daemon, names)
        self.assertNoWorkers(daemon)  # they die with it
        daemon.start()
        self.assertAllDone(daemon, names, 300)
        done = [e["file"] for e in daemon.events("job_done", all_runs=True)]
        self.assertEqual(len(done), len(set(done)))
        for name in names:  # each result is of its own input
            self.assertIn("ms=30", daemon.path("tracks", name[:-4] + ".tracks.npz").read_text())

    def test_a_poison_that_takes_the_daemon_down_is_not_first_for_ever(self):
        daemon = self.daemon()
        for life in range(5):
            if life == 4:
                daemon.config["jobs"].update(backoff_ms=3600000, backoff_max_ms=3600000)
            daemon.start()
            if life == 0:
                daemon.drop("poison.mp4", "until=never")
            if life < 4:
                daemon.event("job_started", file="poison.mp4")
                daemon.kill()
        daemon.drop("good.mp4")
        self.assertEqual(daemon.event("job_started")["file"], "good.mp4")


class Disks(DaemonFolder):
    """A file system of a few megabytes for the spool; needs root."""

    def mount(self, megabytes=8):
        spool = self.folder / "spool"
        spool.mkdir()
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "tmpfs", spool],
                                               stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("needs root and the right to mount")
        self.addCleanup(subprocess.run, ["umount", "-l", spool], check=True)

    def test_a_full_disk(self):
        self.mount()
        daemon = self.daemon(spool={"reserve_bytes": 1 << 20}).start()
        daemon.drop("first.mp4")
        daemon.event("job_done")
        ballast = daemon.path("ballast")
        with contextlib.suppress(OSError), open(ballast, "wb") as file:
            while True:
                file.write(b"x" * 65536)
        for i in range(3):
            os.link(daemon.path("done", "first.mp4"), daemon.path("incoming", f"v{i}.mp4"))  # takes no space
        paused = daemon.event("claiming_paused")
        self.assertIn("reserve", paused["cause"])
        self.assertEqual(daemon.status()["state"], "paused")
        time.sleep(2)
        self.assertEqual(len(daemon.events("claiming_paused")), 1)
        self.assertEqual(len(daemon.names("incoming")), 3)
        ballast.unlink()
        daemon.event("claiming_resumed")
        wait_for(lambda: len(daemon.results()) == 4, "all are done")
        self.assertEqual(daemon.events("job_quarantined"), [])

    def test_a_disk_that_is_full_when_a_job_ends(self):
        self.mount()
        daemon = self.daemon().start()
        daemon.drop("v.mp4", "until=full")
        daemon.event("job_started")
        ballast = daemon.path("ballast")
        with contextlib.suppress(OSError), open(ballast, "wb", 0) as file:
            while True:
                file.write(b"x" * 4096)
        daemon.say("full")
        daemon.event("claiming_paused")  # the fake worker dies of it, or the commit fails
        time.sleep(2)
        self.assertEqual(daemon.inputs(), {"v.mp4": ["work"]})
        self.assertIsNone(daemon.process.poll())
        ballast.unlink()
        daemon.event("claiming_resumed")
        self.assertAllDone(daemon, ["v.mp4"])

    def test_a_disk_that_becomes_read_only(self):
        """With a job that runs, and with one that waits."""
        self.mount()
        daemon = self.daemon().start()
        daemon.drop("running.mp4", "until=read-only")
        daemon.event("job_started")
        daemon.drop("waiting.mp4")
        daemon.event("job_claimed", file="waiting.mp4")
        wait_for(lambda: self.remount("ro") == 0, "nothing is being written")
        daemon.say("read-only")
        self.assertIn("Read-only file system", daemon.event("claiming_paused")["cause"])
        time.sleep(3)  # a few more tries
        self.assertEqual(daemon.inputs(), {"running.mp4": ["work"], "waiting.mp4": ["work"]})
        self.assertEqual(daemon.results(), [])
        self.assertEqual(self.remount("rw"), 0)
        daemon.event("claiming_resumed")
        self.assertAllDone(daemon, ["running.mp4", "waiting.mp4"])
        self.assertEqual(len(daemon.events("claiming_paused")), 1)
        self.assertEqual(daemon.events("job_quarantined"), [])

    def remount(self, how):
        return subprocess.run(["mount", "-o", "remount," + how, self.folder / "spool"],
                              stderr=subprocess.DEVNULL).returncode

    def test_incoming_vanishes_and_comes_back(self):
        daemon = self.daemon().start()
        daemon.remove("incoming")
        self.assertIn("incoming", daemon.event("claiming_paused")["cause"])
        daemon.path("incoming").mkdir()
        daemon.event("claiming_resumed")
        daemon.drop("v.mp4")
        self.assertAllDone(daemon, ["v.mp4"])

    def test_tracks_vanishes_while_a_job_runs(self):
        daemon = self.daemon().start()
        daemon.drop("v.mp4", "until=gone")
        daemon.event("job_started")
        daemon.remove("tracks")
        daemon.say("gone")
        self.assertAllDone(daemon, ["v.mp4"])


class Resources(DaemonFolder):
    def test_no_more_descriptors(self):
        daemon = self.daemon().start()
        daemon.drop("first.mp4")
        daemon.event("job_done")
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (3, 1024))  # not one more
        daemon.drop("v.mp4")
        daemon.event("claiming_paused")
        resource.prlimit(daemon.process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        daemon.event("claiming_resumed")
        self.assertAllDone(daemon, ["first.mp4", "v.mp4"])

    def test_no_more_processes(self):
        daemon = self.daemon().start()
        daemon.event("device_ready")
        (daemon.bin / "tiletrack-worker").rename(daemon.bin / "away")  # what fork or exec failing looks like
        daemon.drop("once.mp4", "once:crash")
        self.assertIn("starting", daemon.event("device_out_of_service")["cause"])
        (daemon.bin / "away").rename(daemon.bin / "tiletrack-worker")
        self.assertAllDone(daemon, ["once.mp4"])

    def test_sigstop(self):
        daemon = self.daemon(workers={"stall_ms": 5000}).start()
        daemon.drop("running.mp4", "until=continued")
        daemon.event("job_started")
        daemon.signal(signal.SIGSTOP)
        files = int(pathlib.Path("/proc/sys/fs/inotify/max_queued_events").read_text()) // 2 + 2000  # two events each
        self.assertLess(files, 100000)
        for i in range(files):
            daemon.path("incoming", f"v{i:05}.mp4").write_text("ms=0")
        time.sleep(8)  # longer than a worker may be silent
        daemon.signal(signal.SIGCONT)
        self.assertEqual(daemon.status()["state"], "running")
        daemon.say("continued")
        daemon.event("job_done", file="running.mp4")
        self.assertEqual(daemon.events("worker_stalled"), [])  # it was we who slept
        self.assertIn("queue", daemon.event("watch_lost")["cause"])  # so many that inotify lost count

        def found():
            status = daemon.status()
            queue = status["queue"]
            return status["jobs"]["done"] + queue["ready"] + queue["running"] + len(status["waiting"])
        wait_for(lambda: found() == files + 1, "all were found")

    def test_a_worker_that_is_stopped_is_replaced(self):
        daemon = self.daemon(workers={"stall_ms": 3000}).start()
        daemon.drop("v.mp4", "until=replaced")
        daemon.event("job_started")
        stopped = daemon.device("cpu")["pid"]
        daemon.hit(stopped, signal.SIGSTOP)
        daemon.event("worker_stalled")
        self.assertEqual(daemon.event("worker_exited", pid=stopped)["signal"], 9)
        daemon.say("replaced")
        self.assertAllDone(daemon, ["v.mp4"])

    def test_very_many_files_wait(self):
        files = 100000 if LONG else 20000
        daemon = self.daemon(spool={"rescan_ms": 3600000}).start()  # a job starts because one ends
        daemon.stop()
        for i in range(files):
            daemon.path("incoming", f"v{i:06}.mp4").write_bytes(b"ms=100")
        daemon.start()
        ready = daemon.event("daemon_ready")
        self.assertEqual(ready["queued"], files)
        daemon.event("job_done", 20)
        with open(f"/proc/{daemon.process.pid}/status") as file:
            peak_kb = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
        if not sanitized():
            self.assertLess(peak_kb, 100000)
        starts = [stamp(e["ts"]) for e in daemon.events("job_started")]
        gaps = sorted(b - a - 0.1 for a, b in zip(starts, starts[1:]))  # beyond the 100 ms that a job takes
        print(f"{files} files: scan {ready['scan_ms']} ms, {peak_kb // 1000} MB, {1000 * gaps[-1]:.0f} ms at most and "
              f"{1000 * gaps[len(gaps) // 2]:.0f} ms by the median from a job's end to the next")

    def test_nothing_grows(self):
        jobs = 5000 if LONG else 150
        daemon = self.daemon(devices=[{"cpu": 1}, {"cpu": 1}]).start()
        process = f"/proc/{daemon.process.pid}"

        def resident_kb():
            with open(process + "/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

        def work(first, count):
            for i in range(first, first + count):
                daemon.drop(f"v{i:05}.mp4", "ms=0 frames=1")
            wait_for(lambda: len(daemon.names("done")) == first + count, "all are done", 3600)
        work(0, jobs // 3)
        fds, before_kb = len(os.listdir(process + "/fd")), resident_kb()
        work(jobs // 3, jobs - jobs // 3)
        wait_for(lambda: len(os.listdir(process + "/fd")) <= fds, "descriptors are given back")
        if not sanitized("tiletrackd"):
            self.assertLess(resident_kb(), before_kb + 2000)
        self.assertNothingPartial(daemon.path("tracks"))
        self.awaitEmptyWork(daemon)


if __name__ == "__main__":
    main()
