"""What somebody may put into incoming/ to harm others: the real daemon and the real worker, on the scripted backend. Each
test asserts two things: the input ends, and where it fails with a cause that names the file; and the others' videos are
done meanwhile."""
import os
import subprocess
import threading

from daemon_tools import DaemonFolder, wait_for
from programs import BIN, SOURCE, main

MODEL = SOURCE / "models" / "tiletrack-small.safetensors"
SCRIPTED = BIN.parent / "lib" / "tiletrack-scripted.so"
FAKE = BIN.parent / "tests" / "fake" / "bin"  # the real worker with a decoder that costs nothing


class Hostile(DaemonFolder):
    def real(self, **sections):
        (self.folder / "0").write_text("")
        return self.daemon(devices=[{"gpu": 0}], programs=FAKE, plugin=SCRIPTED,
                           **{"tracker": {"model": str(MODEL)}, **sections})

    def assertOthersAreDone(self, daemon, name="other.mp4"):
        daemon.drop(name, "3 grey")
        daemon.event("job_done", file=name)
        self.assertIsNone(daemon.process.poll())


class Configurations(Hostile):
    def test_a_directorys_own(self):
        """Whatever is called tiletrack.yaml in a user's directory, the daemon neither waits for it nor believes it."""
        daemon = self.real(spool={"recursive": True}).start()
        secret = self.folder / "secret"
        secret.write_text("root:secret:0:0\n")
        makers = {"fifo": os.mkfifo,
                  "folder": os.mkdir,
                  "link": lambda path: os.symlink(secret, path),
                  "zero": lambda path: os.symlink("/dev/zero", path),
                  "endless": lambda path: (path.touch(), os.truncate(path, 1 << 43)),
                  "alias": lambda path: path.write_text("a: &a [x, x]\nb: &b [*a, *a]\noutput: {formats: [*b, *b]}\n"),
                  "deep": lambda path: path.write_text("{a: " * 60000),
                  "bytes": lambda path: path.write_bytes(bytes(range(256)))}
        for name, make in makers.items():
            (daemon.path("incoming") / name).mkdir()
            make(daemon.path("incoming") / name / "tiletrack.yaml")
            daemon.drop(f"{name}.mp4", "3 grey", into=f"incoming/{name}")
        for name in makers:
            failed = daemon.event("job_quarantined", file=f"{name}/{name}.mp4")
            self.assertIn(f"incoming/{name}/tiletrack.yaml", failed["cause"])
            self.assertNotIn("secret", failed["cause"].replace(str(secret), ""))
        self.assertOthersAreDone(daemon)
        self.assertEqual(len(daemon.events("job_quarantined")), len(makers))


class SideCars(Hostile):
    def test_one_that_grows_without_end(self):
        daemon = self.real().start()
        daemon.path("incoming").mkdir(exist_ok=True)
        stop = threading.Event()
        path = daemon.path("incoming", "bear.queries.csv")

        def write():
            with open(path, "w") as file:
                file.write("frame,x,y\n")
                while not stop.wait(0.005):
                    file.write("0,10,10\n" * 100)
                    file.flush()
        writer = threading.Thread(target=write)
        self.addCleanup(lambda: (stop.set(), writer.join()))
        writer.start()
        wait_for(path.exists, "the side-car")
        daemon.drop("bear.mp4", "3 grey")
        for i in range(5):
            self.assertOthersAreDone(daemon, f"other{i}.mp4")
        stop.set()
        writer.join()
        wait_for(lambda: daemon.events("job_done", file="bear.mp4") or daemon.events("job_quarantined"), "its end")

    def test_special_files(self):
        """A fifo, a directory, a link where a side-car is looked for: none holds the daemon or the worker up."""
        daemon = self.real().start()
        incoming = daemon.path("incoming")
        os.mkfifo(incoming / "a.queries.csv")
        os.mkdir(incoming / "b.queries.json")
        os.symlink("/dev/zero", incoming / "c.mask.png")
        os.symlink("d.queries.csv", incoming / "d.queries.csv")
        for name in "abcd":
            daemon.drop(f"{name}.mp4", "3 grey")
            daemon.event("job_done", file=f"{name}.mp4")
        self.assertOthersAreDone(daemon)


class Sizes(Hostile):
    def test_a_job_larger_than_the_disk(self):
        """Ten thousand points through 4,000 frames are 640 MB, the disk has 400: what it has written goes, its attempts are
        counted, and it is given up instead of standing in everybody's way."""
        spool = self.folder / "spool"
        spool.mkdir()
        if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m,mode=755", "tmpfs", spool],
                                               stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("needs root and the right to mount")
        self.addCleanup(subprocess.run, ["umount", "-l", spool], check=True)
        daemon = self.real(jobs={"max_attempts": 2, "backoff_ms": 50}).start()
        daemon.path("incoming", "huge.queries.csv").write_text("0,10,10\n" * 10000)
        daemon.drop("huge.mp4", "4000 grey")
        failed = daemon.event("job_quarantined", file="huge.mp4")
        self.assertIn("No space left on device", failed["cause"])
        self.assertEqual(daemon.events("job_done"), [])
        self.assertOthersAreDone(daemon)


class Names(Hostile):
    def test_priority_is_no_directory(self):
        """Who may write into incoming/ can make incoming/priority anything: the daemon starts, runs and follows no link."""
        makers = {"fifo": os.mkfifo,
                  "link": lambda path: os.symlink(self.folder, path),
                  "file": lambda path: path.touch(),
                  "closed": lambda path: os.mkdir(path, 0)}
        daemon = self.real().start()
        (self.folder / "outside.mp4").write_text("3 grey")
        for kind, make in makers.items():
            priority = daemon.path("incoming", "priority")
            if priority.is_dir() and not priority.is_symlink():
                priority.rmdir()
            elif priority.is_symlink() or priority.exists():
                priority.unlink()
            make(priority)
            self.assertOthersAreDone(daemon, f"{kind}.mp4")
            self.assertEqual(daemon.stop(), 0)
            daemon.start()
            self.assertOthersAreDone(daemon, f"{kind}-again.mp4")
        self.assertTrue((self.folder / "outside.mp4").exists())

    def test_letters_that_differ_in_case_only(self):
        daemon = self.real().start()
        names = ["bear.mp4", "Bear.mp4", "BEAR.MP4"]
        for name in names:
            daemon.drop(name, "3 grey")
        wait_for(lambda: len(daemon.names("done")) == 3, "all are done")
        self.assertEqual(daemon.results(), ["BEAR.tracks.npz", "Bear.tracks.npz", "bear.tracks.npz"])


if __name__ == "__main__":
    main()
