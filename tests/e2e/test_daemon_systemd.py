"""tiletrackd as systemd's child: what it tells through NOTIFY_SOCKET, in which order; and its log in a real journal."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time

from daemon_tools import DaemonFolder, wait_for
from programs import BIN, SOURCE, main

JOURNALD = "/lib/systemd/systemd-journald"
MODEL = SOURCE / "models" / "tiletrack-small.safetensors"
SCRIPTED = BIN.parent / "lib" / "tiletrack-scripted.so"
FAKE = BIN.parent / "tests" / "fake" / "bin"  # the real worker with a decoder that costs nothing


class Notify(DaemonFolder):
    """self.told: all fields in their order. Somebody always reads, as systemd does: sd_notify waits where nobody
    does."""

    def setUp(self):
        super().setUp()
        path = self.folder / "notify.sock"
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.server.bind(str(path))
        self.environment = {"NOTIFY_SOCKET": str(path)}
        self.told = []
        reader = threading.Thread(target=self.read)
        reader.start()
        self.addCleanup(self.server.close)
        self.addCleanup(reader.join)
        self.addCleanup(self.server.shutdown, socket.SHUT_RDWR)

    def read(self):
        while message := self.server.recv(4096):
            self.told += message.decode().split("\n")

    def until(self, word, count=1, since=0):
        """Waits for that many fields that begin so, behind the since-th; returns the fields there."""
        wait_for(lambda: sum(field.startswith(word) for field in self.told[since:]) >= count, f"{count} {word}")
        return self.told[since:]

    def test_a_whole_life(self):
        daemon = self.daemon()
        daemon.behave("cpu", "start_until=warm")
        daemon.start(environment={**self.environment, "WATCHDOG_USEC": "600000"})
        told = self.until("READY=1")
        before = told[:told.index("READY=1")]
        self.assertIn("EXTEND_TIMEOUT_USEC=60000000", before)  # while the spool is recovered and scanned
        self.assertFalse([f for f in before if f.startswith("STATUS=")])
        self.until("STATUS=0 of 1 devices")  # it is ready though no device is
        daemon.say("warm")
        self.until("STATUS=1 of 1 devices")
        self.until("WATCHDOG=1", 3)
        self.assertEqual(self.told.count("READY=1"), 1)

        for settle_ms in 60, -1:  # around a configuration that is refused, too
            daemon.config["spool"]["settle_ms"] = settle_ms
            daemon.write_config()
            since, before = len(self.told), time.clock_gettime(time.CLOCK_MONOTONIC)
            daemon.signal(signal.SIGHUP)
            told = self.until("READY=1", since=since)
            usec = next(int(f.split("=")[1]) for f in told if f.startswith("MONOTONIC_USEC="))
            self.assertLessEqual(int(before * 1e6), usec)
            self.assertLessEqual(usec, time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
            names = [f.split("=")[0] for f in told]
            self.assertEqual([n for n in names if n not in ("STATUS", "WATCHDOG")],
                             ["RELOADING", "MONOTONIC_USEC", "READY"])
        self.assertEqual(len(daemon.events("config_reloaded")), 1)
        self.assertEqual(len(daemon.events("config_refused")), 1)

        daemon.drop("v.mp4", "until=told")
        daemon.event("job_started")
        since = len(self.told)
        daemon.signal(signal.SIGTERM)
        told = self.until("EXTEND_TIMEOUT_USEC=", 2, since)  # again and again as long as it drains
        last = [f for f in told if not f.startswith(("WATCHDOG", "STATUS=1 of"))]
        self.assertEqual(last[0], "STOPPING=1")
        self.until("WATCHDOG=1", 6, since)
        daemon.say("told")
        self.assertEqual(daemon.wait(), 0)
        self.assertEqual(daemon.names("done"), ["v.mp4"])
        self.assertEqual(self.told[since:].count("STOPPING=1"), 1)

    def test_more_time_is_asked_for_while_a_device_warms_up(self):
        daemon = self.daemon()
        daemon.behave("cpu", "start_until=warm")
        daemon.start(environment=self.environment)
        since = self.until("READY=1").index("READY=1")
        self.until("STATUS=0 of 1 devices (1 warming up), 0 running", since=since)
        self.until("EXTEND_TIMEOUT_USEC=", since=since)
        daemon.say("warm")
        self.until("STATUS=1 of 1 devices, 0 running", since=since)

    def test_no_watchdog_where_none_is_wanted(self):
        daemon = self.daemon().start(environment=self.environment)
        daemon.drop("v.mp4", "ms=1500")
        daemon.event("job_done")
        self.assertEqual(daemon.stop(), 0)
        self.until("STOPPING=1")
        self.assertNotIn("WATCHDOG=1", self.told)

    def test_a_loop_that_stands_still_feeds_no_watchdog(self):
        daemon = self.daemon().start(environment={**self.environment, "WATCHDOG_USEC": "300000"})
        self.until("WATCHDOG=1", 2)
        daemon.signal(signal.SIGSTOP)
        wait_for(lambda: pathlib.Path(f"/proc/{daemon.process.pid}/stat").read_text().split()[2] == "T", "it stands")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:  # it comes behind all that was on its way
            mark.sendto(b"MARK=1", self.environment["NOTIFY_SOCKET"])
        self.until("MARK=1")
        since = len(self.told)
        time.sleep(1)
        self.assertEqual(self.told[since:], [])
        daemon.signal(signal.SIGCONT)
        self.until("WATCHDOG=1", 2, since)


class Journal(DaemonFolder):
    """A journald of the test's own, in a mount namespace whose /run and /var/log are empty."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or not os.access(JOURNALD, os.X_OK) or not shutil.which("journalctl"):
            self.skipTest("needs root and systemd's journald")
        script = ("mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/log && mkdir -p /var/log/journal "
                  f"/run/systemd/journal.tiletrack /run/systemd/journal && exec {JOURNALD} tiletrack")
        errors = open(self.folder / "journald", "w+b")
        self.addCleanup(errors.close)
        self.journald = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdin=subprocess.DEVNULL, stderr=errors)
        self.addCleanup(self.journald.wait)
        self.addCleanup(self.journald.kill)
        self.root = pathlib.Path(f"/proc/{self.journald.pid}/root")
        self.sockets = self.root / "run/systemd/journal.tiletrack"
        try:
            wait_for(lambda: (self.sockets / "stdout").exists() or self.journald.poll() is not None, "journald is up")
        finally:
            if self.journald.poll() is not None:
                self.skipTest("journald does not run here: " + (self.folder / "journald").read_text().strip())
        subprocess.run(["nsenter", f"--mount=/proc/{self.journald.pid}/ns/mnt", "mount", "--bind",
                        "/run/systemd/journal.tiletrack", "/run/systemd/journal"], check=True)

    def stream(self):
        """A connection as systemd makes it for a unit's standard error."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(stream.close)
        stream.connect(str(self.sockets / "stdout"))
        stream.sendall(b"tiletrackd\ntiletrackd.service\n6\n0\n0\n0\n0\n")
        info = os.fstat(stream.fileno())
        return stream, f"{info.st_dev}:{info.st_ino}"

    def entries(self, *matches):
        """What journalctl shows for FIELD=VALUE matches."""
        shown = subprocess.run(["journalctl", "--quiet", "--output=json", "--all",
                                f"--directory={next((self.root / 'var/log/journal').iterdir())}", *matches],
                               capture_output=True, text=True, check=True)
        return [json.loads(line) for line in shown.stdout.splitlines()]

    def start(self, daemon, **environment):
        stream, name = self.stream()
        daemon.wrapper = ["nsenter", f"--mount=/proc/{self.journald.pid}/ns/mnt", f"--wdns={self.folder}", "--"]
        daemon.start(ready=False, stderr=stream, environment={"JOURNAL_STREAM": name, **environment})
        wait_for((daemon.run / "control.sock").exists, "it listens")
        wait_for(lambda: self.entries("TILETRACK_EVENT=device_ready"), "a device is ready")

    def test_one_job_by_its_field(self):
        (self.folder / "0").write_text("track always shrink_above 32\n")
        daemon = self.daemon(devices=[{"gpu": 0}], programs=FAKE, plugin=SCRIPTED, tracker={"model": str(MODEL)})
        self.start(daemon)
        daemon.drop("v.mp4", "5 grey")
        daemon.drop("other.mp4", "5 grey")
        done = wait_for(lambda: self.entries("TILETRACK_EVENT=job_done", "TILETRACK_FILE=v.mp4"), "the job is done")[0]
        self.assertEqual((done["PRIORITY"], done["SYSLOG_IDENTIFIER"], done["TILETRACK_OUTCOME"],
                          done["TILETRACK_FRAMES"]), ("6", "tiletrackd", "done", "5"))
        self.assertTrue(done["MESSAGE"].startswith("job_done "), done["MESSAGE"])
        lines = self.entries("TILETRACK_JOB=" + done["TILETRACK_JOB"])
        events = [e["TILETRACK_EVENT"] for e in lines]
        self.assertEqual([e for e in events if e.startswith("job_")], ["job_claimed", "job_started", "job_done"])
        self.assertIn("tile_shrunk", events)  # the worker's own line
        shrunk = lines[events.index("tile_shrunk")]
        self.assertEqual((shrunk["PRIORITY"], shrunk["_COMM"]), ("4", "tiletrack-worke"))
        self.assertNotEqual(shrunk["_PID"], done["_PID"])
        self.assertEqual(daemon.stop(), 0)
        wait_for(lambda: self.entries("TILETRACK_EVENT=daemon_stopped"), "the last line is there")
        everything = self.entries(f"_PID={daemon.process.pid}")
        self.assertEqual([e for e in everything if "TILETRACK_EVENT" not in e], [])  # nothing through standard error
        self.assertEqual([e for e in self.entries() if e.get("MESSAGE", "").startswith("{")], [])
        self.assertEqual(daemon.log_path.read_bytes(), b"")

    def test_with_a_log_file_the_journal_stays_empty(self):
        log = self.folder / "own.log"
        daemon = self.daemon(log={"file": str(log)})
        stream, name = self.stream()
        daemon.wrapper = ["nsenter", f"--mount=/proc/{self.journald.pid}/ns/mnt", f"--wdns={self.folder}", "--"]
        daemon.start(ready=False, stderr=stream, environment={"JOURNAL_STREAM": name})
        wait_for(lambda: log.exists() and "device_ready" in log.read_text(), "it logs")
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(self.entries(f"_PID={daemon.process.pid}"), [])


if __name__ == "__main__":
    main()
