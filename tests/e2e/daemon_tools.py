"""A tiletrackd of its own for each test: programs, spool, configuration, log and control socket in one folder.

Most tests put tests/support/fake_worker.py in the place of tiletrack-worker: its "videos" are words that say what
shall happen, so hundreds of jobs take seconds. The others use the real worker (see Real).
"""
import calendar
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from programs import BIN, SOURCE, Folder
from waiting import WAIT_S, state_of, wait_for

FAKE_WORKER = SOURCE / "tests" / "support" / "fake_worker.py"


def stamp(ts):
    """A log line's time in seconds."""
    return calendar.timegm(time.strptime(ts[:19], "%Y-%m-%dT%H:%M:%S")) + float("0." + ts[20:23])


class Daemon:
    """folder: of the test. worker: None for the fake one, or a folder whose programs are taken."""

    def __init__(self, folder, devices=({"cpu": 1},), programs=None, plugin=None, **sections):
        self.folder = pathlib.Path(folder)
        self.spool, self.bin = self.folder / "spool", self.folder / "bin"
        self.run, self.log_path = self.folder / "run", self.folder / "log"
        self.process, self.environment, self.user, self.wrapper = None, {}, None, []
        for made in (self.bin / "behaviour", self.bin / "said", self.run, self.folder / "lib"):
            made.mkdir(parents=True, exist_ok=True)
        self.take(BIN / "tiletrackd", self.bin)
        if programs:
            for name in ("tiletrack-worker", "tiletrack-decode"):
                self.take(pathlib.Path(programs) / name, self.bin)
        else:
            shutil.copy(FAKE_WORKER, self.bin / "tiletrack-worker")
            (self.bin / "tiletrack-worker").chmod(0o755)
        if plugin:
            shutil.copy(plugin, self.folder / "lib" / "tiletrack-cuda.so")
        self.config = {"spool": {"root": str(self.spool), "settle_ms": 50, "settle_blind_ms": 200, "rescan_ms": 300,
                                 "reserve_bytes": 0},
                       "daemon": {"runtime_dir": str(self.run), "drain_ms": 1000 * WAIT_S},
                       "devices": list(devices),
                       "jobs": {"backoff_ms": 50, "backoff_max_ms": 200},
                       "workers": {"respawn_ms": 50, "respawn_max_ms": 1000, "kill_ms": 300, "stall_ms": 1000 * WAIT_S},
                       "log": {"burst": 0},
                       "metrics": {"textfile": str(self.folder / "tiletrack.prom"), "interval_ms": 1000}}
        for section, options in sections.items():
            if isinstance(options, dict):
                self.config.setdefault(section, {}).update(options)
            else:
                self.config[section] = options
        self.config_path = self.folder / "tiletrack.yaml"

    @staticmethod
    def take(program, folder):
        """The program finds its companions beside itself, so it must be a file of its own: a link is enough."""
        if not (folder / program.name).exists():
            try:
                os.link(program, folder / program.name)
            except OSError:
                shutil.copy(program, folder / program.name)

    def behave(self, slot, words):
        new = self.bin / "behaviour" / ".new"  # a worker never sees half of it
        new.write_text(words)
        new.rename(self.bin / "behaviour" / f"{slot}.behaviour")

    def say(self, name):
        """What jobs with `until=NAME` and devices with `start_until=NAME` wait for."""
        (self.bin / "said" / name).touch()

    def write_config(self):
        self.config_path.write_text(json.dumps(self.config, indent=1))  # YAML, too

    # --- life ---

    def start(self, ready=True, environment=None, **options):
        """environment: added to self.environment. self.user: a number, for a daemon that is not ours. self.wrapper: a
        command that becomes the daemon. options: stderr instead of the log file, and what Popen knows."""
        self.write_config()
        self.offset = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([*self.wrapper, self.bin / "tiletrackd", "--config", self.config_path],
                                            stdin=subprocess.DEVNULL, stdout=log, cwd=self.folder,
                                            stderr=options.pop("stderr", log),
                                            env={**os.environ, **self.environment, **(environment or {})},
                                            user=self.user, group=self.user, extra_groups=[] if self.user else None,
                                            **options)
        if ready:
            self.event("daemon_ready")
        return self

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=WAIT_S):
        return self.process.wait(seconds)

    def stop(self, seconds=WAIT_S):
        """Ends it as systemd does; returns the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self):
        """As a crash does, with everything that it had started."""
        self.process.kill()
        self.process.wait()

    @contextlib.contextmanager
    def frozen(self):
        """The daemon stands still meanwhile: what is looked at does not move. A dead one is left dead."""
        alive = self.process is not None and self.process.poll() is None
        if alive:
            self.signal(signal.SIGSTOP)
            wait_for(lambda: state_of(self.process.pid) in "TtZX", "it stands still")
        try:
            yield
        finally:
            if alive:
                self.signal(signal.SIGCONT)

    def hit(self, pid, number):
        """Sends a signal to a worker, if that is still the process of this number."""
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            handle = os.pidfd_open(pid)
            try:
                if str(self.bin).encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def processes(self):
        """The numbers of all that runs of this daemon, itself and what it started."""
        def belongs(path):
            try:
                return str(self.bin).encode() in path.read_bytes()
            except OSError:
                return False
        return [int(p.parent.name) for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if belongs(p)]

    def finish(self):
        """Whatever happened, nothing is left running, nor writes into the folder while it is removed."""
        def end():
            left = self.processes()
            for pid in left:
                self.hit(pid, signal.SIGKILL)
            return not left

        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        wait_for(end, "what the daemon started is gone")

    # --- what it says ---

    def events(self, name=None, all_runs=False, **fields):
        """Log lines of this run as dictionaries; a line that is none fails."""
        with open(self.log_path, "rb") as log:
            log.seek(0 if all_runs else self.offset)
            lines = log.read().split(b"\n")[:-1]
        events = [json.loads(line) for line in lines if line]
        return [e for e in events if name in (None, e["event"]) and all(e.get(k) == v for k, v in fields.items())]

    def event(self, name, count=1, seconds=WAIT_S, **fields):
        """Waits for the count-th event of that name and these fields."""
        try:
            return wait_for(lambda: self.events(name, **fields)[count - 1:count], f"{count} {name} {fields}", seconds)[0]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_path.read_text(errors='replace')[-4000:]}") from None

    def ask(self, **request):
        with self.connect() as client:
            client.sendall(json.dumps(request).encode() + b"\n")
            return json.loads(client.makefile().readline())

    def connect(self):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(WAIT_S)
        client.connect(str(self.run / "control.sock"))
        return client

    def status(self):
        return self.ask(command="status")

    def device(self, worker):
        return next(d for d in self.status()["devices"] if d["worker"] == worker)

    # --- the spool ---

    def path(self, *parts):
        return self.spool.joinpath(*parts)

    def drop(self, name, text="ms=1", into="incoming", owner=None):
        """A video (words for the fake worker) that appears whole. owner: a user's number, if not ours."""
        folder = self.path(into)
        folder.mkdir(parents=True, exist_ok=True)
        hidden = folder / (".new-" + name)
        if isinstance(text, pathlib.Path):
            shutil.copyfile(text, hidden)
        else:
            hidden.write_text(text)
        if owner is not None:
            os.chown(hidden, owner, owner)
        hidden.rename(folder / name)

    def remove(self, name):
        """A directory of the spool with all that is in it, at one stroke: nobody can put anything into it meanwhile."""
        gone = self.path(f".gone-{time.monotonic_ns()}")
        self.path(name).rename(gone)
        while gone.exists():  # who had it open may still write there
            shutil.rmtree(gone, ignore_errors=True)

    def names(self, folder):
        found = self.path(folder)
        return sorted(p.name for p in found.iterdir() if p.is_file()) if found.exists() else []

    def inputs(self):
        """Every input there is and the places where it lies: {name: [place, ...]}. Nothing moves meanwhile."""
        with self.frozen():
            return self.look_for_inputs()

    def look_for_inputs(self):
        found = {}
        for place in ("incoming", "incoming/priority", "done", "failed"):
            for name in self.names(place):
                if not name.endswith(".reason.json") and not name.startswith("."):
                    found.setdefault(name, []).append(place)
        for manifest in self.path("work").glob("*/*/manifest.json"):
            if (manifest.parent / "video").exists():
                name = os.path.basename(json.loads(manifest.read_text())["source"]["text"])
                found.setdefault(name, []).append("work")
        return found

    def results(self):
        return self.names("tracks")

    def reason(self, name):
        return json.loads(self.path("failed", name + ".reason.json").read_text())


class DaemonFolder(Folder):
    def daemon(self, name="", **options):
        """name: of a folder of its own, where a test has several."""
        made = Daemon(self.folder / name, **options)
        self.addCleanup(made.finish)
        return made

    def assertAllDone(self, daemon, names, seconds=WAIT_S):
        """Each input in done/, exactly one result each, nothing else anywhere."""
        wait_for(lambda: len(daemon.names("done")) >= len(names), f"{len(names)} inputs in done/", seconds)
        self.awaitEmptyWork(daemon, seconds)
        self.assertEqual(daemon.inputs(), {name: ["done"] for name in names})
        self.assertEqual(daemon.results(), sorted(name.rsplit(".", 1)[0] + ".tracks.npz" for name in names))

    def awaitEmptyWork(self, daemon, seconds=WAIT_S):
        """No job is left, nor anything of one."""
        wait_for(lambda: {p.name for p in daemon.path("work").glob("*/*")} <= {"lock"}, "work/ is empty", seconds)

    def assertNoWorkers(self, daemon):
        """No process of this daemon is left."""
        wait_for(lambda: not daemon.processes(), "workers are gone")
