"""tiletrackd when single system calls fail, quotas are used up, the clock is set, no process can be started and
directories are removed. The rule is the same everywhere: it is said once and once more when it is over, nothing is
lost, nothing is done twice, and it goes on by itself. TILETRACK_LONG=1: every error at every call."""
import errno
import os
import resource
import shutil
import signal
import subprocess
import threading
import time

from daemon_tools import DaemonFolder, stamp, wait_for
from faults import CALLS, Faults
from programs import BIN, SOURCE, main

MODEL = SOURCE / "models" / "tiletrack-small.safetensors"
SCRIPTED = BIN.parent / "lib" / "tiletrack-scripted.so"
FAKE = BIN.parent / "tests" / "fake" / "bin"  # the real worker with a decoder that costs nothing

LONG = bool(os.environ.get("TILETRACK_LONG"))
DISK = (errno.EDQUOT, errno.ENOSPC, errno.EROFS, errno.EIO)
DAY_S = 86400


class Troubled(DaemonFolder):
    def faulty(self, name="", **options):
        daemon = self.daemon(name, **options)
        daemon.faults = Faults(daemon.folder, daemon.spool)
        daemon.environment = daemon.faults.environment
        return daemon

    def assertPausedOnce(self, daemon, count, cause):
        """The count-th trouble was said, with its cause, and it is the count-th."""
        said = daemon.events("claiming_paused")
        self.assertEqual(len(said), count, said)
        self.assertIn(cause, said[-1]["cause"])
        self.assertEqual(len(daemon.events("claiming_resumed")), count - 1)


class Confined(DaemonFolder):
    """A daemon without root's rights."""

    UID = 54321  # nobody's

    def confined(self, **options):
        daemon = self.daemon(**options)
        if os.geteuid() == 0:
            for path in (self.folder, daemon.run, daemon.bin):
                os.chown(path, self.UID, self.UID)
            daemon.user = self.UID
        return daemon


class Calls(Troubled):
    """System calls on the spool that fail."""

    def test_until_it_is_over(self):
        """While nothing runs, so that the next claim meets it; and while a job runs, so that its commit does."""
        cases = [(problem, call, running) for problem in DISK for call in ("write", "fsync", "create", "rename")
                 for running in (False, True)]
        if not LONG:  # each error, each call, and each with and without a job
            cases = [c for c in cases if (DISK.index(c[0]) - CALLS.index(c[1]) + c[2]) % 4 == 0]
        daemon = self.faulty().start()
        daemon.event("device_ready")
        names = []
        for problem, call, running in cases:
            with self.subTest(problem=os.strerror(problem), call=call, running=running):
                names.append(f"{problem}-{call}-{running:d}.mp4")
                if running:
                    daemon.drop(names[-1], f"until={names[-1]}")
                    daemon.event("job_started", file=names[-1])
                daemon.faults.fail(call, problem)
                daemon.say(names[-1])
                if not running:
                    daemon.drop(names[-1])
                daemon.event("claiming_paused", len(names))
                wait_for(lambda: daemon.faults.seen(call) >= 4, "it is tried again and again")
                self.assertPausedOnce(daemon, len(names), os.strerror(problem))
                self.assertEqual(daemon.status()["state"], "paused")
                self.assertEqual(daemon.inputs()[names[-1]], ["work" if running else "incoming"])
                daemon.faults.clear(call)
                daemon.event("claiming_resumed", len(names))
                self.assertAllDone(daemon, names)
        self.assertEqual(daemon.events("job_retry") + daemon.events("job_quarantined"), [])
        self.assertEqual(len(daemon.events("job_done")), len(names))

    def test_the_rename_that_claims(self):
        """The manifest can be written (the first rename), the video cannot be moved: not this file's trouble."""
        daemon = self.faulty().start()
        daemon.event("device_ready")
        names = []
        for problem in DISK:
            with self.subTest(problem=os.strerror(problem)):
                names.append(f"{problem}.mp4")
                daemon.faults.fail("rename", problem, first=2)
                daemon.drop(names[-1])
                self.assertIn("taking it", daemon.event("claiming_paused", len(names))["cause"])
                self.assertPausedOnce(daemon, len(names), os.strerror(problem))
                self.assertEqual(daemon.inputs()[names[-1]], ["incoming"])
                daemon.faults.clear("rename")
                self.assertAllDone(daemon, names)
        self.assertEqual(daemon.events("input_deferred"), [])

    def one_after_another(self, call, names, failures):
        """The n-th such call of a job's way fails, for n = 1, 2, ... until a job has no n-th."""
        try:
            daemon = self.faulty(call).start()
            daemon.event("device_ready")
            number, hit = 0, True
            while hit:
                number += 1
                for problem in DISK if LONG else (DISK[number % 4],):
                    names.append(f"{call}-{number}-{problem}.mp4")
                    daemon.faults.fail(call, problem, number, number)
                    daemon.drop(names[-1])
                    daemon.event("job_done", file=names[-1])
                    self.awaitEmptyWork(daemon)  # it makes no further call
                    hit = daemon.faults.seen(call) >= number
                    daemon.faults.clear(call)
            self.assertAllDone(daemon, names)
            self.assertEqual([e["file"] for e in daemon.events("job_done")], names)
            self.assertEqual(daemon.events("job_quarantined"), [])
            self.awaitEmptyWork(daemon)
            self.assertEqual(daemon.stop(), 0)
        except Exception as failure:  # of a thread: told by the test
            failures.append((call, names[-1:], failure))

    def test_once(self):
        calls = {call: [] for call in ("write", "fsync", "rename", "mkdir", "create", "unlink", "open")}
        failures = []
        threads = [threading.Thread(target=self.one_after_another, args=(call, names, failures))
                   for call, names in calls.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        print("calls that failed once:", {call: len(names) for call, names in calls.items()})
        for call, at_least in (("write", 6), ("fsync", 8), ("rename", 6), ("mkdir", 1)):  # docs/SPOOL.md
            self.assertGreater(len(calls[call]), at_least)


class Quota(Troubled):
    """A file system of its own whose quota is used up by somebody else; root is no exception to btrfs' quotas."""

    def setUp(self):
        super().setUp()
        self.top = self.folder / "top"
        self.top.mkdir()
        image = self.folder / "image"
        with open(image, "wb") as file:
            file.truncate(256 << 20)
        for command in (["mkfs.btrfs", "-q", image], ["mount", "-o", "loop", image, self.top]):
            if not shutil.which(command[0]):
                self.skipTest(f"{command[0]} (Debian: btrfs-progs) is not installed")
            if os.geteuid() != 0 or subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0:
                self.skipTest(f"needs root, loop devices and btrfs: {command[0]}")
        self.addCleanup(subprocess.run, ["umount", "-l", self.top], check=True)
        self.btrfs("subvolume", "create", self.top / "spool")
        self.btrfs("quota", "enable", self.top)

    def btrfs(self, *arguments):
        subprocess.run(["btrfs", *arguments], check=True, stdout=subprocess.DEVNULL)

    def test_a_quota(self):
        daemon = self.daemon(spool={"root": str(self.top / "spool")})
        daemon.spool = self.top / "spool"
        daemon.start()
        daemon.drop("first.mp4")
        self.assertAllDone(daemon, ["first.mp4"])
        daemon.drop("running.mp4", "until=used-up")
        daemon.event("job_started", file="running.mp4")
        self.btrfs("qgroup", "limit", "4M", daemon.spool)
        with self.assertRaisesRegex(OSError, os.strerror(errno.EDQUOT)), open(daemon.path("ballast"), "wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        daemon.say("used-up")
        daemon.event("claiming_paused")
        self.assertPausedOnce(daemon, 1, os.strerror(errno.EDQUOT))
        self.assertEqual(daemon.inputs()["running.mp4"], ["work"])
        self.btrfs("qgroup", "limit", "none", daemon.spool)
        daemon.event("claiming_resumed")
        daemon.drop("next.mp4")
        self.assertAllDone(daemon, ["first.mp4", "running.mp4", "next.mp4"])
        self.assertEqual(len(daemon.events("claiming_paused")), 1)
        self.assertEqual(daemon.events("job_quarantined"), [])


class Clock(Troubled):
    """The wall clock is set while the daemon runs."""

    def test_no_timer_depends_on_it(self):
        daemon = self.faulty(workers={"stall_ms": 3600000}, devices=[{"cpu": 1}] * 3).start()
        daemon.event("device_ready", 3)
        daemon.drop("running.mp4", "until=over")
        daemon.event("job_started")
        names = ["running.mp4"]
        for days in (40, -40, 0.5, 0):
            daemon.faults.set_wall_clock(days * DAY_S)
            for words in ("ms=5", "ms=5 once:retry"):
                names.append(f"v{len(names)}.mp4")
                daemon.drop(names[-1], words)
            done = [daemon.event("job_done", file=name) for name in names[-2:]]
            for event in done:  # the clock was set: the log follows it
                self.assertLess(abs(stamp(event["ts"]) - time.time() - days * DAY_S), DAY_S / 4)
            self.assertGreaterEqual(daemon.status()["queue"]["oldest_seconds"], 0)
            self.assertLess(daemon.status()["uptime_seconds"], DAY_S / 4)
        daemon.say("over")
        self.assertAllDone(daemon, names)
        self.assertEqual(daemon.events("worker_stalled") + daemon.events("worker_exited"), [])
        self.assertEqual(len(daemon.events("job_retry")), 4)

    def test_pruning_believes_no_clock_that_was_set(self):
        daemon = self.faulty().start()
        daemon.drop("v.mp4")
        daemon.event("job_done")
        daemon.faults.set_wall_clock(10 * DAY_S)
        daemon.config["spool"]["keep_days"] = 1
        daemon.write_config()
        daemon.signal(signal.SIGHUP)
        self.assertIn("clock", daemon.event("prune_failed")["cause"])
        self.assertEqual(daemon.names("done"), ["v.mp4"])
        self.assertEqual(daemon.stop(), 0)
        daemon.start()  # a daemon that knows of no jump: the same file is old
        self.assertEqual(daemon.event("inputs_pruned")["files"], 1)
        self.assertEqual(daemon.names("done"), [])
        self.assertEqual(daemon.results(), ["v.tracks.npz"])


class Processes(Confined):
    """fork fails: RLIMIT_NPROC, which holds for everybody but root."""

    @staticmethod
    def limit(daemon, processes, *others):
        """Told by the same user, who may do so without any right."""
        for pid in (daemon.process.pid, *others):
            subprocess.run(["prlimit", f"--pid={pid}", f"--nproc={processes}:"], check=True, user=daemon.user,
                           group=daemon.user)

    def test_no_worker_can_be_started(self):
        daemon = self.confined(workers={"respawn_ms": 50, "respawn_max_ms": 200}).start()
        daemon.event("device_ready")
        self.limit(daemon, 1)
        daemon.drop("once.mp4", "once:crash")
        self.assertIn(os.strerror(errno.EAGAIN), daemon.event("device_out_of_service")["cause"])
        self.assertEqual(daemon.device("cpu")["state"], "out_of_service")
        waits = []
        wait_for(lambda: waits.append(daemon.device("cpu")["retry_ms"]) or
                 sum(b > a for a, b in zip(waits, waits[1:])) > 2, "it is tried again and again")
        self.assertEqual(len(daemon.events("device_out_of_service")), 1)
        self.assertEqual(daemon.inputs(), {"once.mp4": ["work"]})
        self.limit(daemon, 4096)
        daemon.event("device_ready", 2)
        self.assertAllDone(daemon, ["once.mp4"])

    def test_none_from_the_start(self):
        """The limit that the daemon inherits: it stands, says so and waits."""
        daemon = self.confined()
        daemon.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 4096)))
        self.assertIn(os.strerror(errno.EAGAIN), daemon.event("device_out_of_service")["cause"])
        daemon.drop("v.mp4")
        wait_for(lambda: daemon.status()["queue"]["ready"] == 1, "it is found")
        self.limit(daemon, 4096)
        daemon.event("device_ready")
        self.assertAllDone(daemon, ["v.mp4"])

    def test_no_decoder_can_be_started(self):
        """The real worker says so; the input is not to blame, however long it lasts, nor is the device."""
        (self.folder / "0").write_text("")
        daemon = self.confined(devices=[{"gpu": 0}], programs=FAKE, plugin=SCRIPTED, tracker={"model": str(MODEL)},
                               jobs={"max_attempts": 2}).start()
        daemon.event("device_ready")
        worker = daemon.device("gpu0")["pid"]
        self.limit(daemon, 1, worker)
        names = [f"v{i}.mp4" for i in range(4)]
        for name in names:
            daemon.drop(name, "5 grey")
        self.assertIn(os.strerror(errno.EAGAIN), daemon.event("job_retry", 12)["cause"])
        self.limit(daemon, 4096, worker)
        self.assertAllDone(daemon, names)
        self.assertEqual(daemon.events("job_quarantined") + daemon.events("device_out_of_service"), [])

    def test_on_done_cannot_be_started(self):
        daemon = self.confined(on_done="/bin/true").start()
        daemon.event("device_ready")
        self.limit(daemon, 1)
        daemon.drop("v.mp4")
        self.assertIn(os.strerror(errno.EAGAIN).lower(), daemon.event("on_done_failed")["cause"].lower())
        self.assertAllDone(daemon, ["v.mp4"])


class Descriptors(DaemonFolder):
    def test_a_worker_has_no_more(self):
        """Each of those that a job needs is the one that is lacking: no input is to blame, nor is the device."""
        (self.folder / "0").write_text("")
        daemon = self.daemon(devices=[{"gpu": 0}], programs=FAKE, plugin=SCRIPTED, tracker={"model": str(MODEL)},
                             jobs={"max_attempts": 1, "backoff_max_ms": 50}).start()
        daemon.event("device_ready")
        worker = daemon.device("gpu0")["pid"]
        used = len(os.listdir(f"/proc/{worker}/fd"))
        names, causes = [], []

        def over(name):
            return daemon.events("job_retry", file=name) or daemon.events("job_done", file=name) or \
                daemon.events("job_quarantined", file=name)
        while not causes or causes[-1]:
            names.append(f"v{len(names)}.mp4")
            resource.prlimit(worker, resource.RLIMIT_NOFILE, (used + len(causes), 1024))
            daemon.drop(names[-1], "120 grey")
            told = wait_for(lambda: over(names[-1]), "it has ended in one way or the other")[0]
            self.assertNotEqual(told["event"], "job_quarantined", told)
            causes.append(told["cause"] if told["event"] == "job_retry" else None)
            resource.prlimit(worker, resource.RLIMIT_NOFILE, (1024, 1024))
            daemon.event("job_done", file=names[-1])
        self.assertGreater(len(causes), 6, causes)
        for cause in causes[:-1]:
            self.assertIn(os.strerror(errno.EMFILE), cause)
        self.assertAllDone(daemon, names)
        self.assertEqual(daemon.events("job_quarantined") + daemon.events("worker_exited") +
                         daemon.events("device_out_of_service"), [])


class Rights(Confined):
    """Files and directories that the daemon may not read or write. Root is asked to take the rights away."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs root, to give files to somebody else")

    def test_an_input_that_cannot_be_read(self):
        daemon = self.confined().start()
        secret = daemon.path("incoming", "secret.mp4")
        secret.touch(mode=0o600)
        secret.write_text("ms=1")
        daemon.drop("open.mp4")
        self.assertIn(os.strerror(errno.EACCES), daemon.event("input_deferred", file="secret.mp4")["cause"])
        daemon.event("job_done", file="open.mp4")  # it blocks nobody
        self.assertEqual(daemon.inputs(), {"secret.mp4": ["incoming"], "open.mp4": ["done"]})
        os.chown(secret, self.UID, self.UID)
        self.assertAllDone(daemon, ["open.mp4", "secret.mp4"])
        self.assertEqual(len(daemon.events("input_deferred")), 1)
        self.assertEqual(daemon.events("claiming_paused"), [])

    def test_a_directory_that_cannot_be_written(self):
        daemon = self.confined().start()
        daemon.event("device_ready")
        for count, (name, running) in enumerate((("incoming", False), ("tracks", True), ("done", True)), 1):
            with self.subTest(name):
                video = f"{name}.mp4"
                if running:
                    daemon.drop(video, f"until={name}", owner=self.UID)
                    daemon.event("job_started", file=video)
                os.chown(daemon.path(name), 0, 0)
                daemon.say(name)
                if not running:
                    daemon.drop(video)
                self.assertIn(os.strerror(errno.EACCES), daemon.event("claiming_paused", count)["cause"])
                wait_for(lambda: f"spool/{name}:" in daemon.status()["paused"], "the status says which directory")
                self.assertEqual(len(daemon.inputs()[video]), 1)
                os.chown(daemon.path(name), self.UID, self.UID)
                daemon.event("claiming_resumed", count)
                wait_for(lambda: daemon.inputs() == {video: ["done"]}, f"{video} is done")
                daemon.path("done", video).unlink()
        self.assertEqual(len(daemon.events("claiming_paused")), 3)
        self.assertEqual(daemon.events("job_quarantined"), [])


class Inotify(DaemonFolder):
    """Limits of a user namespace: no inotify at all, and no watches. The rescan finds everything by itself."""

    def test_without(self):
        for limit in "max_inotify_instances", "max_inotify_watches":
            with self.subTest(limit):
                self.setUp()
                script = f'echo 0 >/proc/sys/user/{limit} && exec "$@"'
                if subprocess.run(["unshare", "-Ur", "sh", "-c", script, "sh", "true"],
                                  stderr=subprocess.DEVNULL).returncode != 0:
                    self.skipTest("needs the right to make a user namespace")
                daemon = self.daemon()
                daemon.wrapper = ["unshare", "-Ur", "sh", "-c", script, "sh"]
                daemon.start()
                daemon.event("watch_lost")
                for name in "v.mp4", "w.mp4":
                    daemon.drop(name)
                    daemon.event("job_done", file=name)
                daemon.drop("urgent.mp4", into="incoming/priority")
                daemon.event("job_done", file="priority/urgent.mp4")
                self.assertAllDone(daemon, ["v.mp4", "w.mp4", "urgent.mp4"])
                self.assertEqual(len(daemon.events("watch_lost")), 1)
                daemon.finish()


class Directories(DaemonFolder):
    def test_removed_while_idle(self):
        daemon = self.daemon().start()
        host = next(daemon.path("work").iterdir()).name
        for number, name in enumerate(("done", "tracks", "incoming/priority", f"work/{host}", "work")):
            with self.subTest(name):
                daemon.remove(name)
                daemon.drop(f"v{number}.mp4")
                daemon.event("job_done", file=f"v{number}.mp4")
                wait_for(lambda: daemon.inputs().get(f"v{number}.mp4") == ["done"], "it is in done/")
                self.assertIn(f"v{number}.tracks.npz", daemon.results())
        daemon.remove("failed")
        daemon.drop("bad.mp4", "bad")
        daemon.event("job_quarantined")
        wait_for(lambda: daemon.names("failed") == ["bad.mp4", "bad.mp4.reason.json"], "failed/ is there again")

    def test_removed_while_a_job_runs(self):
        daemon = self.daemon().start()
        for name in ("done", "tracks"):
            with self.subTest(name):
                daemon.drop(f"{name}.mp4", f"until={name}")
                daemon.event("job_started", file=f"{name}.mp4")
                daemon.remove(name)
                daemon.say(name)
                daemon.event("job_done", file=f"{name}.mp4")
                wait_for(lambda: daemon.inputs() == {f"{name}.mp4": ["done"]}, "it is in done/")
                self.awaitEmptyWork(daemon)
                daemon.remove("done")

    def test_the_jobs_themselves_are_removed(self):
        """Somebody deletes work/: those inputs are gone by his hand, the next ones are not."""
        daemon = self.daemon().start()
        daemon.drop("gone.mp4", "until=gone")
        daemon.event("job_started")
        daemon.remove("work")
        daemon.say("gone")
        daemon.drop("next.mp4")
        daemon.event("job_done", file="next.mp4")
        self.assertAllDone(daemon, ["next.mp4"])
        wait_for(lambda: daemon.status()["queue"]["running"] == 0, "it is forgotten")
        self.assertEqual(daemon.stop(), 0)


if __name__ == "__main__":
    main()
