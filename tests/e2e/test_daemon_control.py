"""tiletrackd told what to do: signals, reloads, the control socket and those who abuse it, the command line, metrics."""
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time

from daemon_tools import DaemonFolder, wait_for
from programs import BIN, main, run, sanitized


class Signals(DaemonFolder):
    def test_sigterm_finishes_what_runs(self):
        daemon = self.daemon().start()
        daemon.drop("running.mp4", "until=stopping")
        daemon.event("job_started")
        daemon.drop("waiting.mp4")
        daemon.event("job_claimed", 2)  # reserved
        daemon.signal(signal.SIGTERM)
        daemon.event("daemon_stopping")
        daemon.say("stopping")
        self.assertEqual(daemon.wait(), 0)
        self.assertEqual(daemon.inputs(), {"running.mp4": ["done"], "waiting.mp4": ["incoming"]})
        self.assertEqual(daemon.results(), ["running.tracks.npz"])
        self.assertEqual(daemon.events("job_put_back")[0]["file"], "waiting.mp4")
        self.assertNoWorkers(daemon)

    def test_what_is_not_finished_in_time_is_put_back(self):
        daemon = self.daemon(daemon={"drain_ms": 500}).start()
        daemon.drop("long.mp4", "until=never")
        daemon.event("job_started")
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(daemon.inputs(), {"long.mp4": ["incoming"]})
        self.assertEqual(list(daemon.path("work").glob("*/*/manifest.json")), [])

    def test_a_job_with_a_checkpoint_stays_and_goes_on(self):
        daemon = self.daemon(daemon={"drain_ms": 200}).start()
        daemon.drop("long.mp4", "until=restarted once:nothing")  # the fake worker leaves a checkpoint
        daemon.event("job_started")
        daemon.stop()
        self.assertEqual(daemon.inputs(), {"long.mp4": ["work"]})
        daemon.start()
        self.assertEqual(daemon.event("spool_recovered")["resumed"], 1)
        daemon.say("restarted")
        self.assertAllDone(daemon, ["long.mp4"])

    def test_sigint_twice_stops_at_once(self):
        daemon = self.daemon(workers={"kill_ms": 3600000}).start()
        daemon.drop("deaf.mp4", "deaf")
        daemon.event("job_started")
        daemon.signal(signal.SIGINT)
        daemon.event("daemon_stopping")
        time.sleep(0.5)
        self.assertIsNone(daemon.process.poll())
        daemon.signal(signal.SIGINT)
        self.assertEqual(daemon.wait(), 0)  # neither drain_ms nor kill_ms is over
        self.assertEqual(daemon.inputs(), {"deaf.mp4": ["incoming"]})
        self.assertNoWorkers(daemon)

    def test_sigusr1_opens_the_log_again(self):
        log = self.folder / "own.log"
        daemon = self.daemon(log={"file": str(log)}).start(ready=False)
        wait_for(lambda: log.exists() and "device_ready" in log.read_text(), "the log file is used")
        log.rename(self.folder / "own.log.1")
        daemon.signal(signal.SIGUSR1)
        wait_for(log.exists, "the file is there again")
        daemon.drop("v.mp4")
        wait_for(lambda: "job_done" in log.read_text(), "lines go into the new file")
        self.assertNotIn("job_done", (self.folder / "own.log.1").read_text())


class Reload(DaemonFolder):
    def reload(self, daemon, count=1):
        daemon.write_config()
        daemon.signal(signal.SIGHUP)

    def test_a_good_one_is_taken_up(self):
        daemon = self.daemon(devices=[{"cpu": 1}, {"cpu": 1}]).start()
        daemon.event("device_ready", 2)
        daemon.drop("running.mp4", "until=reloaded")
        daemon.event("job_started")
        daemon.config["log"]["level"] = "debug"
        daemon.config["spool"]["patterns"] = [".vid"]
        daemon.config["devices"] = [{"cpu": 1}]
        self.reload(daemon)
        done = daemon.event("config_reloaded")
        self.assertEqual(done["needs_restart"], "devices")
        self.assertEqual(set(done["changed"].split(", ")), {"log.level", "spool.patterns"})
        daemon.event("device_ready", 3)
        daemon.say("reloaded")
        daemon.event("device_ready", 4)  # workers are set up anew, the busy one after its job
        self.assertEqual(daemon.events("worker_exited"), [])
        daemon.event("job_done", file="running.mp4")
        daemon.drop("a.vid")
        daemon.drop("b.mp4")
        daemon.event("job_done", file="a.vid")
        self.assertEqual(daemon.names("incoming"), ["b.mp4"])
        self.assertEqual(len(daemon.status()["devices"]), 2)
        self.reload(daemon)  # the same again: what needs a restart is still named
        self.assertEqual(daemon.event("config_reloaded", 2)["needs_restart"], "devices")

    def test_a_bad_one_changes_nothing(self):
        daemon = self.daemon().start()
        daemon.config["spool"]["settle_ms"] = -1
        daemon.config["spool"]["patterns"] = [".vid"]
        self.reload(daemon)
        refused = daemon.event("config_refused")
        self.assertIn("settle_ms", refused["cause"])
        self.assertEqual(refused["problems"], 1)
        daemon.drop("v.mp4")
        self.assertAllDone(daemon, ["v.mp4"])
        daemon.config["spool"]["settle_ms"] = 50
        daemon.config["log"]["file"] = "/nowhere/at/all.log"
        self.reload(daemon)
        self.assertIn("/nowhere", daemon.event("config_refused", 2)["cause"])
        daemon.drop("w.mp4")
        daemon.event("job_done", 2)


class Start(DaemonFolder):
    def refused(self, daemon, code=78):
        daemon.start(ready=False)
        self.assertEqual(daemon.wait(), code)
        return daemon.log_path.read_text()

    def test_wrong_configurations(self):
        daemon = self.daemon(spool={"setle_ms": 1})
        text = self.refused(daemon)
        self.assertIn("setle_ms", text)
        self.assertRegex(text, r"tiletrack.yaml:\d+:\d+: ")
        daemon = self.daemon(output={"overlay": "yes"})
        self.assertRegex(self.refused(daemon), r"tiletrack.yaml:\d+:\d+: .*overlay")

    def test_only_one_of_a_spool(self):
        daemon = self.daemon().start()
        other = self.daemon(daemon={"runtime_dir": str(self.folder / "run2")})
        other.log_path = self.folder / "log2"
        self.refused(other)
        self.assertIn(f"process {daemon.process.pid}", other.events("daemon_refused")[0]["cause"])
        self.assertEqual(daemon.status()["state"], "running")

    def test_only_one_of_a_socket(self):
        daemon = self.daemon().start()
        other = self.daemon(spool={"root": str(self.folder / "spool2")})
        other.log_path = self.folder / "log2"
        self.refused(other)
        self.assertIn("another daemon listens", other.events("daemon_refused")[0]["cause"])
        daemon.kill()
        daemon.start()  # the socket of a dead one is no hindrance
        self.assertEqual(daemon.status()["state"], "running")

    def test_check_and_print_config(self):
        daemon = self.daemon()
        daemon.write_config()
        program = [str(daemon.bin / "tiletrackd"), "--config", str(daemon.config_path)]
        printed = subprocess.run([*program, "--print-config"], capture_output=True, text=True)
        self.assertEqual(printed.returncode, 0, printed.stderr)
        self.assertIn("settle_ms: 50", printed.stdout)
        self.assertIn("max_attempts: 3", printed.stdout)
        checked = subprocess.run([*program, "--check"], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 78)  # there is no decoder beside it
        self.assertIn("tiletrack-decode", checked.stderr)
        self.assertFalse(daemon.spool.exists())
        checked = run("check", daemon.config_path)
        self.assertExit(checked, 0)
        daemon.config["spool"]["recursiv"] = True
        daemon.write_config()
        checked = run("check", daemon.config_path)
        self.assertExit(checked, 1)
        self.assertIn("recursive", checked.stderr)  # what was meant


class CommandLine(DaemonFolder):
    def ask(self, *arguments, code=0):
        process = run(*arguments, "--config", self.folder / "tiletrack.yaml")
        self.assertExit(process, code)
        return process.stdout + process.stderr

    def test_submit_without_a_daemon_and_with_one(self):
        daemon = self.daemon()
        daemon.write_config()
        video = self.folder / "a b.mp4"
        video.write_text("frames=3")
        (self.folder / "a b.queries.csv").write_text("frame,x,y\n0,1,1\n")
        self.assertIn("incoming", self.ask("submit", video, code=1))  # there is no spool yet
        daemon.start()
        daemon.stop()
        self.assertEqual(self.ask("submit", video).strip(), str(daemon.path("incoming", "a b.mp4")))
        mask = self.folder / "m.png"
        mask.write_bytes(b"png")
        self.ask("submit", video, "--mask", mask, "--priority")
        self.ask("submit", video)  # the name is taken
        self.assertEqual(daemon.names("incoming"), ["a b.mp4", "a b.queries.csv", "a b~2.mp4", "a b~2.queries.csv"])
        self.assertEqual(daemon.names("incoming/priority"), ["a b.mask.png", "a b.mp4"])
        self.assertNothingPartial(daemon.path("incoming"))
        daemon.start()
        wait_for(lambda: len(daemon.results()) == 3, "three results")
        self.assertEqual(daemon.events("job_started")[0]["file"], "priority/a b.mp4")
        self.assertIn("patterns", self.ask("submit", self.folder / "tiletrack.yaml", code=1))

    def test_what_cannot_be_submitted_is_named(self):
        daemon = self.daemon().start()
        folder = self.folder / "holiday.mp4"
        folder.mkdir()
        self.assertIn(f"{folder}: is a directory; name its videos, such as {folder}/*.mp4", self.ask("submit", folder, code=1))
        video, broken = self.folder / "b.mp4", self.folder / "b.queries.csv"
        video.write_text("frames=3")
        broken.symlink_to("gone.csv")
        self.assertIn(f"{broken}: No such file or directory", self.ask("submit", video, code=1))
        self.assertEqual(daemon.names("incoming"), [])

    def test_status_retry_cancel(self):
        daemon = self.daemon().start()
        daemon.drop("bad.mp4", "bad")
        daemon.event("job_quarantined")
        daemon.drop("long.mp4", "until=never")
        daemon.event("job_started", file="long.mp4")
        daemon.drop("waiting.mp4", "until=never")
        daemon.event("job_claimed", file="waiting.mp4")
        daemon.drop("more.mp4", "until=never")
        wait_for(lambda: daemon.status()["queue"]["ready"] == 1, "more.mp4 is ready")
        text = self.ask("status")
        for word in ("running", "cpu", "busy", "long.mp4", "waiting.mp4", "1 ready", "1 failed"):
            self.assertIn(word, text)
        status = json.loads(self.ask("status", "--json"))
        self.assertEqual((status["state"], status["queue"]["running"], status["devices"][0]["file"]),
                         ("running", 1, "long.mp4"))
        for name in ("more.mp4", "waiting.mp4", "long.mp4"):  # a file, a reserved job, one that runs
            self.ask("cancel", name)
            self.assertEqual(daemon.event("job_quarantined", file=name)["cause"] if name != "more.mp4" else "cancelled",
                             "cancelled")
            wait_for(lambda: name in daemon.names("failed"), f"{name} is in failed/")
        self.assertIn("no job", self.ask("cancel", "more.mp4", code=1))
        self.assertEqual(daemon.events("worker_exited"), [])
        self.assertEqual(daemon.status()["jobs"]["cancelled"], 3)
        shutil.copy(daemon.path("failed", "bad.mp4"), self.folder / "kept")
        daemon.path("failed", "bad.mp4").write_text("frames=2")  # it was mended
        self.ask("retry", "bad.mp4")
        daemon.event("job_done", file="bad.mp4")
        self.assertIn("no 'bad.mp4'", self.ask("retry", "bad.mp4", code=1))
        daemon.stop()
        self.assertIn("no tiletrackd listens", self.ask("status", code=1))

    def test_odd_names(self):
        daemon = self.daemon().start()
        name = b"-x\n\xff\"'\\ $(a).mp4"
        (self.folder / "bad").write_text("bad")
        os.rename(self.folder / "bad", os.path.join(os.fsencode(daemon.path("incoming")), name))
        daemon.event("job_quarantined")
        run_result = run("retry", "--config", self.folder / "tiletrack.yaml", "--", name)
        self.assertExit(run_result, 0)
        daemon.event("job_quarantined", 2)
        self.assertIn(name, os.listdir(os.fsencode(daemon.path("failed"))))


class Socket(DaemonFolder):
    def test_mode_and_place(self):
        daemon = self.daemon().start()
        mode = os.stat(daemon.run / "control.sock").st_mode
        self.assertEqual(stat.S_IMODE(mode), 0o660)
        daemon.stop()
        self.assertFalse((daemon.run / "control.sock").exists())

    def test_abuse(self):
        daemon = self.daemon().start()
        for line in (b"\n", b"x\n", b"[]\n", b"{}\n", b'{"command":"retry"}\n', b'{"command":"retry","name":"%zz"}\n',
                     b'{"command":"cancel","name":"..%2F..%2Fetc%2Fpasswd"}\n', b'{"command":"dance"}\n', b"[" * 9000 + b"\n"):
            with daemon.connect() as client:
                client.sendall(line)
                answer = json.loads(client.makefile().readline())
                self.assertFalse(answer["ok"], line)
                self.assertIn("status", answer)
        for rude in (b"x" * 100000, b'{"command":\0"status"}\n', b"\xff" * 20000 + b"\n"):
            with daemon.connect() as client:
                try:
                    client.sendall(rude)
                    self.assertEqual(client.recv(100), b"")
                except ConnectionError:
                    pass
        with daemon.connect() as client:  # in pieces, several at once, and half closed
            client.sendall(b'{"comm')
            time.sleep(0.1)
            client.sendall(b'and":"status"}\n{"command":"status"}\n')
            client.shutdown(socket.SHUT_WR)
            lines = client.makefile().read().splitlines()
            self.assertEqual([json.loads(line)["ok"] for line in lines], [True, True])
        self.assertEqual(daemon.status()["state"], "running")

    def test_many_clients_and_slow_ones(self):
        daemon = self.daemon().start()
        idle = [daemon.connect() for _ in range(60)]
        deaf = []
        for _ in range(20):  # they ask and ask, and never read
            client = daemon.connect()
            client.setblocking(False)
            try:
                for _ in range(5000):
                    client.sendall(b'{"command":"status"}\n')
            except (BlockingIOError, ConnectionError):
                pass
            deaf.append(client)
        answers = []

        def ask():
            answers.append(daemon.status()["state"])
        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        daemon.drop("v.mp4")
        for thread in threads:
            thread.join()
        self.assertEqual(answers, ["running"] * 40)
        self.assertAllDone(daemon, ["v.mp4"])
        with open(f"/proc/{daemon.process.pid}/status") as file:
            resident_kb = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
        if not sanitized("tiletrackd"):  # a sanitizer keeps memory aside
            self.assertLess(resident_kb, 60000)
        for client in idle + deaf:
            client.close()
        fds = f"/proc/{daemon.process.pid}/fd"
        wait_for(lambda: len(os.listdir(fds)) < 40, "the clients are forgotten")


class Metrics(DaemonFolder):
    def test_the_text_file(self):
        daemon = self.daemon(devices=[{"gpu": 0}, {"cpu": 1}]).start()
        daemon.drop("v.mp4", "frames=7")
        daemon.drop("w.mp4", "truncated frames=5")
        daemon.drop("bad.mp4", "bad")
        daemon.event("job_done", 2)
        daemon.event("job_quarantined")
        path = self.folder / "tiletrack.prom"
        text = wait_for(lambda: path.exists() and 'outcome="failed"} 1' in path.read_text() and
                        'outcome="truncated"} 1' in path.read_text() and path.read_text(), "the figures are written")
        for line in ('tiletrack_jobs_total{outcome="done"} 1', "tiletrack_frames_total 12",
                     'tiletrack_job_stage_seconds_count{stage="all"} 2',
                     'tiletrack_device_state{worker="gpu0",state="busy"} 0', "tiletrack_claiming_paused 0"):
            self.assertIn(line + "\n", text)
        if not shutil.which("promtool"):
            self.skipTest("promtool (Debian: prometheus) is not installed")
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))

    def test_a_place_that_cannot_be_written_is_said_once(self):
        daemon = self.daemon(metrics={"textfile": str(self.folder / "none" / "t.prom"), "interval_ms": 1000}).start()
        daemon.event("metrics_failed")
        time.sleep(2.5)
        self.assertEqual(len(daemon.events("metrics_failed")), 1)
        (self.folder / "none").mkdir()
        wait_for((self.folder / "none" / "t.prom").exists, "it is written when it can be")


class Boundary(DaemonFolder):
    def test_links_no_decoder_and_no_tracker(self):
        needed = subprocess.run(["readelf", "-d", BIN / "tiletrackd"], capture_output=True, text=True, check=True).stdout
        for library in ("libuv", "libyaml", "libsystemd", "libjansson"):
            self.assertIn(library, needed)
        for library in ("libav", "libsw", "blas", "cuda"):
            self.assertNotIn(library, needed)


if __name__ == "__main__":
    main()
