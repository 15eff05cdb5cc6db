"""A Debian 12 that boots: a root by debootstrap, systemd as its init, in systemd-nspawn's namespaces.

base() makes the root once, with everything that our packages depend on, into the build folder; Machine copies it, boots
the copy, runs commands in it, cuts its power. Nothing here needs the network but base(), which uses the sources of this
machine's apt. Deleting refuses where something is mounted below.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

from waiting import WAIT_S, wait_for

WANTED = ("systemd-nspawn", "debootstrap", "nsenter", "dpkg-deb")
INCLUDE = "systemd,systemd-sysv,dbus,libpam-systemd,logrotate"


def why_not():
    """Why no machine can be booted here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    for program in WANTED:
        if not shutil.which(program):
            return f"{program} is not installed"
    if not (pathlib.Path("/etc/os-release").read_text() + " ").count("bookworm"):
        return "packages for Debian 12 are made on Debian 12 alone"
    probe = subprocess.run(["unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup", "--fork", "true"],
                           capture_output=True, text=True)
    if probe.returncode:
        return "namespaces cannot be made: " + probe.stderr.strip()
    return None


def remove_tree(tree):
    """Deletes a root of ours, and never what is mounted in it."""
    tree = pathlib.Path(tree).resolve()
    if not tree.exists():
        return
    mounts = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    inside = [m for m in mounts if m == str(tree) or m.startswith(f"{tree}/")]
    if inside:
        raise RuntimeError(f"not deleting {tree}: mounted below it: {inside}")
    subprocess.run(["rm", "-rf", "--one-file-system", tree], check=True)


# --- the root ---

class NoRoot(Exception):
    """No Debian root can be made here: no mirror, no network."""


def apt_files():
    """This machine's sources and keys for Debian itself, as {path: bytes}."""
    found = {}
    for pattern in ("sources.list", "sources.list.d/debian*", "apt.conf.d/*proxy*"):
        for path in pathlib.Path("/etc/apt").glob(pattern):
            found[path] = path.read_bytes()
    return found


def mirror():
    for text in apt_files().values():
        match = re.search(rb"^(?:URIs: *|deb (?:\[[^]]*\] )?)(\S+)", text, re.M)
        if match and b"security" not in match[1]:
            return match[1].decode()
    raise NoRoot("apt's sources name no mirror of Debian")


def in_root(root, *command, **options):
    """In a mount and process namespace of its own, so that nothing stays mounted in the root."""
    script = ('mount --make-rprivate / && mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && '
              'exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"')
    return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, root, *command],
                          stdin=subprocess.DEVNULL, check=True, **options)


def base(folder, debs):
    """The root without our packages, made where it is missing or their dependencies have changed."""
    folder = pathlib.Path(folder)
    root, stamp, log = folder / "base", folder / "base.stamp", folder / "base.log"
    depends = ",".join(subprocess.run(["dpkg-deb", "-f", deb, "Depends"], capture_output=True, text=True, check=True).stdout.strip()
                       for deb in debs)
    names = sorted({re.split(r"[ |(]", d.strip())[0] for d in depends.split(",")} - {"tiletrack", "systemd"})
    key = json.dumps([INCLUDE, names])
    if stamp.exists() and stamp.read_text() == key:
        return root
    folder.mkdir(parents=True, exist_ok=True)
    remove_tree(root)
    with open(log, "wb") as out:
        try:
            subprocess.run(["debootstrap", "--variant=minbase", "--include=" + INCLUDE, "bookworm", root, mirror()],
                           stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=True)
            for path in root.glob("etc/apt/sources.list*"):
                if path.is_file():
                    path.unlink()
            for path, text in apt_files().items():
                (root / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
                (root / path.relative_to("/")).write_bytes(text)
            shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
            (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
            (root / "usr/sbin/policy-rc.d").chmod(0o755)
            (root / "etc/dpkg/dpkg.cfg.d/quick").write_text("force-unsafe-io\n")
            in_root(root, "apt-get", "-q", "update", stdout=out, stderr=out)
            in_root(root, "apt-get", "-q", "-y", "--no-install-recommends", "install", *names, stdout=out, stderr=out)
            in_root(root, "apt-get", "clean", stdout=out, stderr=out)
            (root / "usr/sbin/policy-rc.d").unlink()
        except subprocess.CalledProcessError as error:
            fetched = error.cmd[0] != "debootstrap" and "update" not in error.cmd  # what fails then is ours
            raise (RuntimeError if fetched else NoRoot)(f"{error}\n{log.read_text(errors='replace')[-3000:]}") from None
    stamp.write_text(key)
    return root


# --- the machine ---

class Machine:
    """folder: of the test. The root of the machine is folder/root; it may be looked into while it runs."""

    def __init__(self, folder, base_root):
        self.folder = pathlib.Path(folder)
        self.root, self.process, self.leader = self.folder / "root", None, None
        self.name = f"tiletrack-{os.getpid()}"
        remove_tree(self.root)
        subprocess.run(["cp", "-a", "--reflink=auto", base_root, self.root], check=True)
        (self.root / "etc/machine-id").write_text("uninitialized\n")
        (self.root / "etc/hostname").write_text("node\n")
        (self.root / "etc/systemd/journald.conf.d").mkdir(parents=True)
        (self.root / "etc/systemd/journald.conf.d/test.conf").write_text(
            "[Journal]\nStorage=persistent\nSyncIntervalSec=1s\nRateLimitIntervalSec=0\n")

    def boot(self):
        """From power on until systemd has nothing left to do."""
        log = open(self.folder / "console", "ab")
        unit = [] if os.path.isdir("/run/systemd/system") else ["--keep-unit"]  # where no systemd made us a unit
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "systemd-nspawn", f"--directory={self.root}", "--boot", "--register=no", *unit, f"--machine={self.name}",
             "--private-network", "--console=pipe", "--link-journal=no", "--kill-signal=SIGRTMIN+3"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        log.close()
        self.await_boot()
        return self

    def await_boot(self, before=None):
        """before: the leader of an earlier boot, while the machine reboots."""
        def find():
            if self.process.poll() is not None:
                raise AssertionError("the machine went off: " + (self.folder / "console").read_text(errors="replace")[-3000:])
            return self.find_init(before)
        self.leader = wait_for(find, "an init")
        wait_for(lambda: self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded"),
                 "the machine is up")

    def find_init(self, before=None):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            try:
                if child != before and b"systemd" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0] \
                        and b"nspawn" not in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
            except OSError:
                pass
        return None

    def run(self, *command, check=True, user=None, timeout=300):
        """Runs a command in the machine, as root unless a user is named; its output is text."""
        if user:
            command = ("runuser", "-u", user, "--", *command)
        process = subprocess.run(
            ["nsenter", f"--target={self.leader}", "--all", "--", "/usr/bin/env", "-i", "LC_ALL=C",
             "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *map(str, command)],
            cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout)
        if check and process.returncode:
            raise AssertionError(f"{' '.join(map(str, command))}: {process.returncode}\n{process.stdout}{process.stderr}")
        return process

    def cut_power(self):
        """Everything in it is gone at once, as without electricity (the page cache stays: it is the host's)."""
        os.kill(int(self.leader), signal.SIGKILL)
        self.process.wait(WAIT_S)

    def reboot(self):
        before = self.leader
        self.run("systemctl", "reboot")
        wait_for(lambda: not os.path.exists(f"/proc/{before}"), "it goes down")
        wait_for(lambda: self.process.poll() is not None or self.find_init(before), "it goes up again, or nspawn ends")
        if self.process.poll() is None:
            self.await_boot(before)
        elif self.process.returncode == 133:  # with --keep-unit nspawn leaves it to its caller to start it again
            self.boot()
        else:
            raise AssertionError(f"it went off instead of rebooting: {self.process.returncode}")

    def close(self):
        if self.process and self.process.poll() is None:
            if self.leader:
                try:
                    os.kill(int(self.leader), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        remove_tree(self.root)

    # --- the journal and the service ---

    def journal(self, *matches):
        shown = self.run("journalctl", "--quiet", "--output=json", "--all", "--no-pager", *matches).stdout
        return [json.loads(line) for line in shown.splitlines()]

    def show(self, name, unit="tiletrackd.service"):
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()
