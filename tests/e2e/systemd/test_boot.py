#!/usr/bin/python3
"""The packages on a Debian 12 that boots: systemd as init, apt, the unit with all its confinement, real videos on the CPU.

One machine goes through its life, so the tests run in the order of their numbers and each begins where the one before
ended. What no machine here has, a GPU, is pretended for tiletrack-devices alone.
"""
from concurrent import futures
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "packaging")]

import numpy as np  # noqa: E402

import debs  # noqa: E402
import machine as machines  # noqa: E402
from machine import wait_for  # noqa: E402
from programs import SKIP, make_video, shifting  # noqa: E402

FOLDER = debs.BIN.parent / "boot"
SPOOL = "/var/spool/tiletrack"
CONFIG = "/etc/tiletrack/tiletrack.yaml"
UNIT = "tiletrackd.service"
STEP = (1.5, -0.75)  # source pixels a frame of the videos' texture
WATCHDOG_S = 5


def make_next_version(deb, folder):
    """The same package as a newer version whose default configuration has changed."""
    tree = folder / "next"
    shutil.rmtree(tree, ignore_errors=True)
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    control = tree / "DEBIAN/control"
    version = re.search(r"(?m)^Version: (.*)$", control.read_text())[1]
    control.write_text(control.read_text().replace(f"Version: {version}", f"Version: {version}+next"))
    with open(tree / "etc/tiletrack/tiletrack.yaml", "a") as config:
        config.write("# A default of the next version.\n")
    subprocess.run(["sh", "-c", "find . -type f ! -path './DEBIAN/*' -printf '%P\\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums"],
                   cwd=tree, check=True)
    made = folder / "tiletrack_next.deb"
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "-b", tree, made], check=True, capture_output=True)
    shutil.rmtree(tree)
    return made


class Boot(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        found = debs.packages()
        cls.debs = [found[name] for name in sorted(found)]
        FOLDER.mkdir(exist_ok=True)
        try:
            base = machines.base(FOLDER, cls.debs)
        except machines.NoRoot as error:
            raise unittest.SkipTest(f"no Debian root can be made here: {error}") from None
        cls.machine = machines.Machine(FOLDER, base)
        cls.addClassCleanup(cls.machine.close)
        shared = cls.machine.root / "srv/test"
        shared.mkdir()
        shared.chmod(0o755)
        for deb in cls.debs:
            shutil.copy(deb, shared)
        shutil.copy(make_next_version(found["tiletrack"], FOLDER), shared)
        make_video(shared / "short.mkv", shifting(20, 120, 160, *STEP))
        make_video(shared / "middle.mkv", shifting(60, 120, 160, 0.2, 0.1))  # two windows
        make_video(shared / "long.mkv", shifting(200, 120, 160, 0.2, 0.1))  # five: longer than apt takes to come to it
        cls.machine.boot()
        cls.run_in = cls.machine.run
        cls.run_in("useradd", "--create-home", "ann")
        cls.run_in("useradd", "--create-home", "bob")

    def setUp(self):
        began = time.monotonic()
        self.addCleanup(lambda: print(f"{time.monotonic() - began:.1f} s", end=" ", file=sys.stderr, flush=True))

    # --- words for what the tests do ---

    def path(self, *parts):
        return self.machine.root.joinpath(SPOOL[1:], *parts)

    def names(self, folder):
        path = self.path(folder)
        return sorted(p.name for p in path.iterdir() if p.is_file()) if path.exists() else []

    def drop(self, name, video="middle", user="ann"):
        self.run_in("cp", f"/srv/test/{video}.mkv", f"{SPOOL}/incoming/.{name}", user=user)
        self.run_in("mv", f"{SPOOL}/incoming/.{name}", f"{SPOOL}/incoming/{name}", user=user)

    def events(self, name, **fields):
        return self.machine.journal("TILETRACK_EVENT=" + name, *(f"TILETRACK_{k.upper()}={v}" for k, v in fields.items()))

    def event(self, name, count=1, seconds=machines.WAIT_S, **fields):
        try:
            return wait_for(lambda: self.events(name, **fields)[count - 1:count], f"{count} {name} {fields}", seconds)[0]
        except AssertionError as error:
            lines = self.run_in("journalctl", "--no-pager", "-n", "60", "-o", "short-precise").stdout
            raise AssertionError(f"{error}\n{lines}") from None

    def active(self, seconds=machines.WAIT_S):
        def is_active():
            return self.run_in("systemctl", "is-active", UNIT, check=False).stdout.strip() == "active"
        try:
            wait_for(is_active, f"{UNIT} is active", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + self.run_in("journalctl", "--no-pager", "-n", "60").stdout) from None

    def pid(self):
        return int(self.machine.show("MainPID"))

    def children(self, name):
        script = f'for p in /proc/[0-9]*; do [ "$(readlink $p/exe)" != /usr/lib/tiletrack/{name} ] || echo ${{p#/proc/}}; done'
        return [int(p) for p in self.run_in("sh", "-c", script).stdout.split()]

    def kill(self, name, pid):
        self.run_in("sh", "-c", f"kill -s {name} {pid}")

    def hold(self):
        """The worker stands still, and with it its job, which therefore runs as long as it is looked at."""
        worker, = self.children("tiletrack-worker")
        self.kill("STOP", worker)
        return worker

    def assertDone(self, name):
        """The job is done: its input in done/ and nowhere else, one result, one job_done and nothing counted against it."""
        self.event("job_done", file=name)
        stem = name.rsplit(".", 1)[0]
        wait_for(lambda: not list(self.path("work").glob("*/*/manifest.json")), "work/ is empty")
        self.assertEqual([n for n in self.names("tracks") if n.startswith(stem)], [f"{stem}.tracks.npz"])
        places = [f for f in ("incoming", "incoming/priority", "done", "failed") if name in self.names(f)]
        self.assertEqual(places, ["done"])
        self.assertEqual(len(self.events("job_done", file=name)), 1)

    def configure(self, *replacements):
        text = (self.machine.root / CONFIG[1:]).read_text()
        for old, new in replacements:
            self.assertEqual(text.count(old), 1, old)
            text = text.replace(old, new)
        (self.machine.root / CONFIG[1:]).write_text(text)

    def drop_in(self, name, text):
        folder = self.machine.root / "etc/systemd/system" / f"{name}.d"
        folder.mkdir(parents=True, exist_ok=True)
        if text:
            (folder / "test.conf").write_text(text)
        else:
            (folder / "test.conf").unlink()
        self.run_in("systemctl", "daemon-reload")

    # --- its life ---

    def test_01_apt_installs_and_starts_it(self):
        said = self.run_in("sh", "-c", "apt-get -q -y --no-install-recommends install " +
                           " ".join(f"/srv/test/{d.name}" for d in self.debs))
        if len(self.debs) > 1:
            self.assertIn("tiletrack-cuda: there is no NVIDIA driver (libcuda.so.1 is not found)", said.stdout + said.stderr)
        self.active()
        self.assertEqual(self.run_in("systemctl", "is-enabled", UNIT).stdout.strip(), "enabled")
        self.assertEqual(self.run_in("stat", "-c", "%U:%G %a", SPOOL, SPOOL + "/incoming", SPOOL + "/work", SPOOL + "/tracks",
                                     "/var/lib/tiletrack", "/run/tiletrack/control.sock").stdout.split("\n")[:-1],
                         ["tiletrack:tiletrack 750", "tiletrack:tiletrack 2775", "tiletrack:tiletrack 700",
                          "tiletrack:tiletrack 755", "tiletrack:tiletrack 755", "tiletrack:tiletrack 660"])
        self.assertEqual(self.run_in("getent", "passwd", "tiletrack").stdout.split(":")[-1].strip(), "/usr/sbin/nologin")
        self.event("device_ready")

    def test_02_the_unit_stands(self):
        said = self.run_in("systemd-analyze", "verify", "--man=no", UNIT, "tiletrack-devices.service", check=False)
        self.assertEqual((said.returncode, [l for l in said.stderr.splitlines() if "tiletrack" in l]), (0, []))
        said = self.run_in("systemd-analyze", "security", "--threshold=25", UNIT, check=False)
        self.assertEqual(said.returncode, 0, said.stdout)
        status = self.run_in("cat", f"/proc/{self.pid()}/status").stdout
        values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        self.assertEqual((values["CapBnd"], values["CapEff"], values["NoNewPrivs"], values["Seccomp"]),
                         ("0" * 16, "0" * 16, "1", "2"))

    def test_03_a_member_of_the_group_gets_tracks(self):
        said = self.run_in("cp", "/srv/test/short.mkv", SPOOL + "/incoming/", user="ann", check=False)
        self.assertNotEqual(said.returncode, 0)  # not yet
        self.run_in("usermod", "--append", "--groups", "tiletrack", "ann")
        self.run_in("sh", "-c", f"umask 027; cp /srv/test/short.mkv {SPOOL}/incoming/bear.mkv", user="ann")
        self.assertDone("bear.mkv")
        self.run_in("cp", SPOOL + "/tracks/bear.tracks.npz", "/home/ann/", user="ann")
        self.assertNotEqual(self.run_in("ls", SPOOL, user="bob", check=False).returncode, 0)
        file = np.load(self.machine.root / "home/ann/bear.tracks.npz")
        tracks, visible = file["tracks"], ~file["occluded"]
        self.assertEqual(tracks.shape[:2], (256, 20))
        away = np.abs(tracks - (tracks[:, :1] + np.arange(20)[None, :, None] * np.array(STEP)))
        self.assertLess(np.median(away[visible]), 1.0)
        self.assertGreater(visible.mean(), 0.5)
        for command in (["status"], ["status", "--json"]):
            self.run_in("tiletrack", *command, user="ann")
        self.assertNotEqual(self.run_in("tiletrack", "status", user="bob", check=False).returncode, 0)

    def test_04_the_journal_by_job(self):
        done = self.event("job_done", file="bear.mkv")
        self.assertEqual((done["_SYSTEMD_UNIT"], done["SYSLOG_IDENTIFIER"], done["TILETRACK_FRAMES"]), (UNIT, "tiletrackd", "20"))
        lines = self.machine.journal("TILETRACK_JOB=" + done["TILETRACK_JOB"])
        self.assertEqual([l["TILETRACK_EVENT"] for l in lines if l["TILETRACK_EVENT"].startswith("job_")],
                         ["job_claimed", "job_started", "job_done"])

    def test_05a_reload_takes_a_good_file_and_refuses_a_bad_one(self):
        pid = self.pid()
        self.configure(("  grid: 16\n", "  grid: 6\n"), ("  settle_ms: 2000\n", "  settle_ms: 200\n"))
        self.run_in("systemctl", "reload", UNIT)
        self.assertIn("tracker.grid", self.event("config_reloaded")["TILETRACK_CHANGED"])
        good = (self.machine.root / CONFIG[1:]).read_text()
        self.configure(("  grid: 6\n", "  grid: none\n"))
        said = self.run_in("systemctl", "reload", UNIT, check=False)
        self.assertNotEqual(said.returncode, 0)
        self.active()
        self.assertEqual(self.pid(), pid)
        self.run_in("systemctl", "kill", "--kill-who=main", "--signal=HUP", UNIT)  # and past the check of ExecReload
        self.assertIn("tracker.grid", self.event("config_refused")["TILETRACK_CAUSE"])
        self.active()
        (self.machine.root / CONFIG[1:]).write_text(good)
        self.run_in("systemctl", "reload", UNIT)
        self.assertEqual((self.pid(), self.machine.show("NRestarts")), (pid, "0"))

    def test_05b_the_encoder_works_under_the_unit_too(self):
        self.configure(("  overlay: false\n", "  overlay: true\n"))
        self.run_in("systemctl", "reload", UNIT)
        self.drop("drawn.mkv", "short")
        self.event("job_done", file="drawn.mkv")
        self.assertEqual([n for n in self.names("tracks") if n.startswith("drawn")], ["drawn.overlay.mp4", "drawn.tracks.npz"])
        self.assertEqual(self.events("job_warning"), [])
        self.configure(("  overlay: true\n", "  overlay: false\n"))
        self.run_in("systemctl", "reload", UNIT)

    def test_06_logrotate(self):
        """`log.file` in the directory that the unit makes, and the rule that the package brings."""
        log = self.machine.root / "var/log/tiletrack/tiletrackd.log"
        self.configure(("  file: null\n", "  file: /var/log/tiletrack/tiletrackd.log\n"))
        self.run_in("systemctl", "reload", UNIT)
        wait_for(lambda: log.exists() and "config_reloaded" in log.read_text(), "the file is written")
        self.run_in("logrotate", "--force", "/etc/logrotate.d/tiletrack")
        self.run_in("systemctl", "reload", UNIT)
        wait_for(lambda: log.exists() and "config_reloaded" in log.read_text(), "the new file is written")
        self.assertIn("config_reloaded", (log.parent / "tiletrackd.log.1").read_text())
        self.configure(("  file: /var/log/tiletrack/tiletrackd.log\n", "  file: null\n"))
        self.run_in("systemctl", "reload", UNIT)

    def test_07_a_worker_is_killed(self):
        self.drop("worker.mkv", "long")  # whose decoder has not read all of it at once
        self.event("job_started", file="worker.mkv")
        worker = self.hold()
        decoder, = self.children("tiletrack-decode")
        status = self.run_in("cat", f"/proc/{decoder}/status").stdout
        self.assertRegex(status, r"NoNewPrivs:\t1\nSeccomp:\t2\n")
        filters = int(re.search(r"Seccomp_filters:\t(\d+)", status)[1])
        daemon = self.run_in("cat", f"/proc/{self.pid()}/status").stdout
        self.assertGreater(filters, int(re.search(r"Seccomp_filters:\t(\d+)", daemon)[1]))  # its own, above the unit's
        self.kill("KILL", worker)
        self.event("worker_exited")
        self.assertDone("worker.mkv")
        self.assertEqual(self.machine.show("NRestarts"), "0")

    def test_08_the_daemon_is_killed(self):
        self.drop("daemon.mkv")
        self.event("job_started", file="daemon.mkv")
        pid = self.pid()
        self.kill("KILL", pid)
        wait_for(lambda: self.machine.show("NRestarts") == "1", "systemd starts it again")
        self.active()
        self.assertNotEqual(self.pid(), pid)
        self.assertDone("daemon.mkv")

    def test_09_the_daemon_stands_still(self):
        self.assertEqual(self.machine.show("WatchdogUSec"), "30s")
        self.drop_in(UNIT, f"[Service]\nWatchdogSec={WATCHDOG_S}\nTimeoutAbortSec=2\n")
        self.run_in("systemctl", "restart", UNIT)
        pid, began = self.pid(), time.monotonic()
        self.kill("STOP", pid)
        wait_for(lambda: self.pid() not in (0, pid), "systemd starts it again")
        self.assertGreater(time.monotonic() - began, WATCHDOG_S / 2)
        self.active()
        shown = self.machine.journal("_PID=1", f"UNIT={UNIT}")
        self.assertTrue([l for l in shown if "Watchdog timeout" in l["MESSAGE"]])
        self.drop("still.mkv", "short")
        self.assertDone("still.mkv")
        self.drop_in(UNIT, None)
        self.run_in("systemctl", "restart", UNIT)

    def test_10_no_start_without_the_gpus_that_are_there(self):
        fake = self.machine.root / "srv/fake"
        device = fake / "sys/bus/pci/devices/0000:00:1e.0"
        for made in (device, fake / "proc/driver/nvidia", fake / "dev", fake / "run", fake / "usr/lib/tiletrack"):
            made.mkdir(parents=True)
        (device / "vendor").write_text("0x10de\n")
        (device / "class").write_text("0x030200\n")
        (fake / "usr/lib/tiletrack/tiletrack-cuda.so").touch()
        wait_1_s = "ExecStart=\nExecStart=/usr/lib/tiletrack/tiletrack-devices load 1\n"
        self.drop_in("tiletrack-devices.service", "[Service]\nEnvironment=TILETRACK_ROOT=/srv/fake\n" + wait_1_s)
        self.drop_in(UNIT, "[Service]\nEnvironment=TILETRACK_ROOT=/srv/fake\n")
        self.run_in("systemctl", "stop", UNIT)
        self.run_in("systemctl", "reset-failed", UNIT)
        self.assertNotEqual(self.run_in("systemctl", "start", UNIT, check=False).returncode, 0)
        wait_for(lambda: int(self.machine.show("NRestarts")) >= 2, "it is tried again")
        self.assertNotEqual(self.run_in("systemctl", "is-active", UNIT, check=False).stdout.strip(), "active")
        said = [l["MESSAGE"] for l in self.machine.journal(f"_SYSTEMD_UNIT={UNIT}", "SYSLOG_IDENTIFIER=tiletrack-devices")]
        self.assertTrue([m for m in said if "device nodes are missing: /dev/nvidiactl /dev/nvidia-uvm" in m], said)
        for node in ("nvidiactl", "nvidia-uvm", "nvidia0"):
            (fake / "dev" / node).touch()
        self.active()
        self.drop_in(UNIT, None)
        self.drop_in("tiletrack-devices.service", None)
        self.run_in("systemctl", "restart", UNIT)

    def test_11_cpu_nodes_close_every_device(self):
        folder = self.machine.root / "etc/systemd/system" / f"{UNIT}.d"
        folder.mkdir(exist_ok=True)
        shutil.copy(self.machine.root / "usr/share/doc/tiletrack/examples/cpu-only.conf", folder / "cpu-only.conf")
        self.run_in("systemctl", "daemon-reload")
        self.run_in("systemctl", "restart", UNIT)
        self.assertEqual((self.machine.show("PrivateDevices"), self.machine.show("MemoryDenyWriteExecute")), ("yes", "yes"))
        self.drop("cpu.mkv", "short")
        self.assertDone("cpu.mkv")
        (folder / "cpu-only.conf").unlink()
        self.run_in("systemctl", "daemon-reload")
        self.run_in("systemctl", "restart", UNIT)

    def test_12_the_power_goes_in_the_middle_of_a_job(self):
        self.drop("power.mkv", "long")
        self.event("job_started", file="power.mkv")
        self.hold()
        self.drop("waiting.mkv", "short")
        self.machine.cut_power()
        self.assertNotIn("power.tracks.npz", self.names("tracks"))
        self.machine.boot()
        self.active()
        self.assertDone("power.mkv")
        self.assertDone("waiting.mkv")

    def test_13_a_reboot_in_the_middle_of_a_job(self):
        self.configure(("  drain_ms: 60000\n", "  drain_ms: 300\n"))
        self.run_in("systemctl", "reload", UNIT)
        self.drop("reboot.mkv")
        self.event("job_started", file="reboot.mkv")
        self.machine.reboot()
        self.active()
        self.assertEqual(len(self.events("daemon_stopping")), len(self.events("daemon_stopped")))
        self.assertDone("reboot.mkv")

    def test_14_an_upgrade_drains_and_keeps_the_configuration(self):
        self.configure(("  drain_ms: 300\n", "  drain_ms: 300000\n"), ("  stall_ms: 120000\n", "  stall_ms: 3600000\n"))
        self.run_in("systemctl", "reload", UNIT)
        if len(self.debs) > 1:  # it belongs to one version, and here there is no next one of it
            self.run_in("apt-get", "-q", "-y", "remove", "tiletrack-cuda")
            self.active()
        self.drop("upgrade.mkv", "long")
        self.event("job_started", file="upgrade.mkv")
        worker, stopped = self.hold(), len(self.events("daemon_stopping"))
        mine = (self.machine.root / CONFIG[1:]).read_text()
        with futures.ThreadPoolExecutor() as pool:
            apt = pool.submit(self.run_in, "sh", "-c", "apt-get -q -y -o Dpkg::Options::=--force-confdef "
                              "-o Dpkg::Options::=--force-confold install /srv/test/tiletrack_next.deb")
            self.event("daemon_stopping", stopped + 1)
            self.kill("CONT", worker)
            apt.result()
        self.assertEqual((self.machine.root / CONFIG[1:]).read_text(), mine)
        self.assertIn("next version", (self.machine.root / (CONFIG + ".dpkg-dist")[1:]).read_text())
        self.assertIn("+next", self.run_in("dpkg-query", "-W", "tiletrack").stdout)
        self.active()
        lines = [l for l in self.machine.journal("-b", f"_SYSTEMD_UNIT={UNIT}") if "TILETRACK_EVENT" in l]
        events = [(l["TILETRACK_EVENT"], l.get("TILETRACK_FILE")) for l in lines]
        stopping = max(i for i, e in enumerate(events) if e[0] == "daemon_stopping")
        self.assertEqual(lines[stopping]["TILETRACK_RUNNING"], "1")
        until = stopping + [e[0] for e in events[stopping:]].index("daemon_stopped")
        self.assertIn(("job_done", "upgrade.mkv"), events[stopping:until])
        self.assertIn("daemon_started", [e[0] for e in events[until:]])
        self.assertDone("upgrade.mkv")
        self.drop("new.mkv", "short")
        self.assertDone("new.mkv")

    def test_15_removing_and_purging_keep_what_is_the_users(self):
        self.drop("late.mkv", "short")
        self.drop(".hidden.mkv", "short")
        kept = {folder: self.names(folder) for folder in ("tracks", "done", "failed")}
        self.assertIn("bear.tracks.npz", kept["tracks"])
        self.run_in("apt-get", "-q", "-y", "remove", "tiletrack")
        self.assertTrue((self.machine.root / CONFIG[1:]).exists())
        self.run_in("apt-get", "-q", "-y", "purge", "tiletrack")
        for folder, names in kept.items():
            self.assertTrue(set(names) <= set(self.names(folder)), folder)
        self.assertIn(".hidden.mkv", self.names("incoming"))
        works = [json.loads(p.read_text())["source"]["text"] for p in self.path("work").glob("*/*/manifest.json")] \
            if self.path("work").exists() else []
        self.assertEqual((self.names("incoming") + self.names("done") + works).count("late.mkv"), 1)
        left = self.run_in("find", "/etc", "/lib/systemd", "/usr", "/var/lib", "/var/log", "/run", "-xdev", "-name", "*tiletrack*",
                           "-not", "-path", "/var/lib/dpkg/*", "-not", "-path", "/run/systemd/*", "-not", "-path", "/proc/*").stdout
        self.assertEqual(left, "")
        # and where nothing of a user's is left, nothing of ours is either
        for folder in ("incoming", "tracks", "done", "failed"):
            for path in self.path(folder).iterdir() if self.path(folder).exists() else ():
                if path.is_file():
                    path.unlink()
        self.run_in("sh", "-c", f"rm -rf {SPOOL}/work/*/*; apt-get -q -y --no-install-recommends install /srv/test/" +
                    next(d.name for d in self.debs if d.name.startswith("tiletrack_")))
        self.active()
        self.run_in("apt-get", "-q", "-y", "purge", "tiletrack")
        self.assertFalse(self.path().exists())


if __name__ == "__main__":
    reason = debs.why_not() or machines.why_not()
    if not shutil.which("ffmpeg"):
        reason = "ffmpeg is not installed"
    if reason:
        print("skipped: " + reason)
        sys.exit(SKIP)
    result = unittest.main(verbosity=2, failfast=True, exit=False).result
    for _, reason in result.skipped:
        print("skipped: " + reason)
    sys.exit(1 if not result.wasSuccessful() else SKIP if result.skipped else 0)
