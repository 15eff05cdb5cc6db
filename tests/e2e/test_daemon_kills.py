"""kill -9 before each call that changes the disk, of the real tiletrackd and of the real worker: every input is in one
place at once, and after a restart in done/ or failed/ with exactly one result or reason. (tests/fault kills the spool
alone, at more places, and while it recovers.) TILETRACK_LONG=1: also while it recovers."""
import os
import threading

from daemon_tools import DaemonFolder, wait_for
from faults import KILL, Faults
from programs import BIN, SOURCE, main

LONG = bool(os.environ.get("TILETRACK_LONG"))
MODEL = SOURCE / "models" / "tiletrack-small.safetensors"
SCRIPTED = BIN.parent / "lib" / "tiletrack-scripted.so"
FAKE = BIN.parent / "tests" / "fake" / "bin"  # the real worker with a decoder that costs nothing
CALLS = ("write", "fsync", "rename", "mkdir", "create", "unlink")


class Kills(DaemonFolder):
    def each_call(self, kill, *arguments):
        """kill(call, ...) for each call, all at once: they wait most of the time. The numbers that they return."""
        counts, failures = {}, []

        def one(call):
            try:
                counts[call] = kill(call, *arguments)
            except Exception as failure:  # of a thread: told by the test
                failures.append((call, failure))
        threads = [threading.Thread(target=one, args=(call,)) for call in CALLS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        print("killed before:", counts)
        return counts

    def assertOnePlace(self, daemon, names):
        found = daemon.inputs()
        self.assertEqual(sorted(found), sorted(names))
        self.assertEqual({name: places for name, places in found.items() if len(places) != 1}, {})
        self.assertEqual(len(daemon.results()), len(set(daemon.results())))

    def assertEnds(self, daemon, good, bad):
        wait_for(lambda: daemon.names("incoming") == [], "all are claimed")
        self.awaitEmptyWork(daemon)
        self.assertEqual(daemon.inputs(), {**{n: ["done"] for n in good}, **{n: ["failed"] for n in bad}})
        self.assertEqual(daemon.results(), sorted(n[:-4] + ".tracks.npz" for n in good))
        for name in bad:
            self.assertIn("pretended: bad", str(daemon.reason(name)))

    def the_daemon(self, call, recovering):
        """The n-th such call kills it, for n = 1, 2, ...; recovering: the restart is killed, too, at its n-th."""
        daemon = self.daemon(call + "-again" * recovering)
        faults = Faults(daemon.folder, daemon.spool)
        daemon.environment = faults.environment
        daemon.start().stop()  # the spool is there: what makes it is not meant
        good, bad, number, twice, dead = [], [], 0, 0, True

        def ended():
            return (len(daemon.names("done")) == len(good) and len(daemon.names("failed")) == 2 * len(bad) and
                    {p.name for p in daemon.path("work").glob("*/*")} <= {"lock"})
        while dead:
            number += 1
            for into in good, bad:
                into.append(f"{call}-{number}-{'good' if into is good else 'bad'}.mp4")
            daemon.drop(good[-1])
            daemon.drop(bad[-1], "bad")
            faults.fail(call, KILL, number, number)
            daemon.start(ready=False)
            wait_for(lambda: daemon.process.poll() is not None or ended(), "it died or all have ended")
            with daemon.frozen():  # so that it does not come to that call after we have looked
                dead = faults.seen(call) >= number
                faults.clear(call)
            if dead:
                self.assertEqual(daemon.wait(), -9)
                self.assertOnePlace(daemon, good + bad)
                if recovering:
                    faults.fail(call, KILL, number % 4 + 1, number % 4 + 1)
                    daemon.start(ready=False)
                    wait_for(lambda: daemon.process.poll() is not None or ended(), "it died again or all have ended")
                    twice += daemon.process.poll() is not None
                    daemon.kill()
                    self.assertOnePlace(daemon, good + bad)
            faults.clear(call)
            if dead:
                daemon.start()
            self.assertEnds(daemon, good, bad)
            self.assertEqual(daemon.stop(), 0)
        done = [e["file"] for e in daemon.events("job_done", all_runs=True)]
        self.assertEqual(len(done), len(set(done)))
        return (number - 1, twice) if recovering else number - 1

    def test_the_daemon_before_every_call(self):
        counts = self.each_call(self.the_daemon, False)
        for call, at_least in (("write", 9), ("fsync", 20), ("rename", 15), ("mkdir", 2), ("create", 8), ("unlink", 6)):
            self.assertGreaterEqual(counts[call], at_least)
        if LONG:
            self.each_call(self.the_daemon, True)

    def the_worker(self, call):
        """The real one, which writes the result. It is started anew, the input tracked again, nothing charged."""
        daemon = self.daemon(call, devices=[{"gpu": 0}], programs=FAKE, plugin=SCRIPTED, tracker={"model": str(MODEL)},
                             output={"formats": ["npz", "csv"]}, jobs={"max_attempts": 1})
        (daemon.folder / "0").write_text("")
        faults = Faults(daemon.folder, daemon.spool, program="tiletrack-worker")
        daemon.environment = faults.environment
        daemon.start()
        number, dead, names = 0, True, []
        while dead:
            number += 1
            names.append(f"{call}-{number}.mp4")
            faults.fail(call, KILL, number, number)
            daemon.drop(names[-1], "60 grey")
            daemon.event("job_done", file=names[-1])
            dead = faults.seen(call) >= number
            faults.clear(call)
            self.assertEqual(len(daemon.events("worker_exited", signal=9)), number - (not dead))
        wait_for(lambda: daemon.inputs() == {n: ["done"] for n in names}, "all are done")
        self.assertEqual(daemon.results(), sorted(n[:-4] + f".tracks.{f}" for n in names for f in ("npz", "csv")))
        self.assertEqual(daemon.events("job_quarantined"), [])
        self.assertNothingPartial(daemon.path("tracks"))
        self.assertEqual(daemon.stop(), 0)
        return number - 1

    def test_the_worker_before_every_call(self):
        counts = self.each_call(self.the_worker)
        for call, at_least in (("write", 2), ("fsync", 2), ("rename", 2), ("create", 2)):
            self.assertGreaterEqual(counts[call], at_least)


if __name__ == "__main__":
    main()
