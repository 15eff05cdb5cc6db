#!/usr/bin/python3
"""systemd/tiletrack-devices, with a machine that is made of files: buses, modules, nodes, programs that pretend."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
SCRIPT = SOURCE / "systemd" / "tiletrack-devices"


class Devices(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tiletrack-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.root, self.bin, self.home = (self.folder / name for name in ("root", "bin", "usr/lib/tiletrack"))
        for made in (self.root / "dev", self.root / "run", self.root / "proc", self.bin, self.home, self.folder / "usr/sbin"):
            made.mkdir(parents=True)
        (self.home / "tiletrack-devices").write_bytes(SCRIPT.read_bytes())
        (self.home / "tiletrack-devices").chmod(0o755)
        self.program(self.folder / "usr/sbin/tiletrackd", "echo 'devices: auto'; echo 'workers:'")
        self.program(self.bin / "modinfo", "exit 1")
        self.program(self.bin / "systemctl", "echo 0")
        self.program(self.bin / "sleep", f'echo "$1" >>{self.folder}/slept')
        self.program(self.bin / "nvidia-modprobe", f'echo "nvidia-modprobe $*" >>{self.folder}/loaded')

    @staticmethod
    def program(path, text):
        path.write_text("#!/bin/sh\n" + text + "\n")
        path.chmod(0o755)

    def gpu(self, address, driver="nvidia", vendor="0x10de", kind="0x030200"):
        device = self.root / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(vendor + "\n")
        (device / "class").write_text(kind + "\n")
        if driver:
            (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")

    def installed(self, driver=True, plugin=True):
        if driver:
            (self.root / "proc/driver/nvidia").mkdir(parents=True)
        if plugin:
            path = self.root / str(self.home / "tiletrack-cuda.so").lstrip("/")
            path.parent.mkdir(parents=True)
            path.touch()

    def node(self, *names):
        for name in names:
            (self.root / "dev" / name).touch()

    def run_script(self, *arguments):
        process = subprocess.run([self.home / "tiletrack-devices", *arguments], stdin=subprocess.DEVNULL, capture_output=True,
                                 text=True, timeout=60, env={"TILETRACK_ROOT": str(self.root),
                                                             "PATH": f"{self.bin}:/usr/bin:/bin"})
        self.assertEqual(process.stdout, "")
        return process.returncode, process.stderr

    def loaded(self):
        path = self.folder / "loaded"
        return path.read_text().splitlines() if path.exists() else []

    def slept(self):
        path = self.folder / "slept"
        return path.read_text().split() if path.exists() else []

    def test_no_gpu(self):
        self.gpu("0000:00:1f.0", vendor="0x8086", kind="0x030000")
        self.gpu("0000:01:00.1", kind="0x040300")  # a GPU's sound
        self.installed()
        self.assertEqual(self.run_script("load", "3"), (0, ""))
        self.assertEqual(self.run_script("check"), (0, ""))
        self.assertEqual((self.loaded(), self.slept()), ([], []))

    def test_modules_and_nodes_for_each_gpu(self):
        self.gpu("0000:00:1e.0")
        self.gpu("0000:00:1f.0", driver=None)
        self.installed()
        self.program(self.bin / "nvidia-modprobe", f'echo "$*" >>{self.folder}/loaded; cd {self.root}/dev; case $1 in '
                     '-u) touch nvidia-uvm ;; -c) touch nvidiactl nvidia$2 ;; esac')
        self.assertEqual(self.run_script("load", "3"), (0, "2 NVIDIA GPU(s) are there\n"))
        self.assertEqual(self.loaded(), ["-u -c 0", "-c 0", "-c 1"])
        self.assertEqual(self.run_script("check"), (0, ""))

    def test_waits_and_gives_up(self):
        self.gpu("0000:00:1e.0")
        self.gpu("0000:00:1f.0")
        self.installed()
        self.node("nvidiactl", "nvidia0")
        code, said = self.run_script("load", "3")
        self.assertEqual((code, self.slept()), (1, ["1", "1", "1"]))
        self.assertEqual(said, "NVIDIA device nodes did not come within 3 s: /dev/nvidia-uvm 1 of 2 /dev/nvidiaN\n")
        code, said = self.run_script("check")
        self.assertEqual(code, 1)
        self.assertIn("device nodes are missing: /dev/nvidia-uvm 1 of 2 /dev/nvidiaN. Not starting on the CPU", said)

    def test_waits_until_they_come(self):
        self.gpu("0000:00:1e.0")
        self.installed()
        self.program(self.bin / "sleep", f'echo "$1" >>{self.folder}/slept; cd {self.root}/dev; '
                     f'[ $(wc -l <{self.folder}/slept) -lt 2 ] || touch nvidiactl nvidia-uvm nvidia0')
        self.assertEqual(self.run_script("load", "60"), (0, "1 NVIDIA GPU(s) are there\n"))
        self.assertEqual(self.slept(), ["1", "1"])

    def test_without_nvidia_modprobe(self):
        self.gpu("0000:00:1e.0")
        self.installed()
        (self.bin / "nvidia-modprobe").unlink()
        self.program(self.bin / "modprobe", f'echo "modprobe $*" >>{self.folder}/loaded; '
                     f'touch {self.root}/dev/nvidiactl {self.root}/dev/nvidia-uvm {self.root}/dev/nvidia0')
        code, said = self.run_script("load", "3")
        self.assertEqual((code, self.loaded()), (0, ["modprobe -a nvidia nvidia-uvm"]))
        self.assertIn("nvidia-modprobe is not installed", said)

    def test_nothing_to_wait_for(self):
        """Each is said, and none keeps the daemon from the CPU."""
        self.gpu("0000:00:1e.0", driver="vfio-pci")
        code, said = self.run_script("check")
        self.assertEqual((code, said), (0, "GPU 0000:00:1e.0 belongs to the driver vfio-pci: not used\n"))
        self.gpu("0000:00:1f.0", driver=None)
        code, said = self.run_script("load", "3")
        self.assertEqual((code, "tiletrack-cuda is not installed" in said), (0, True), said)
        self.installed(driver=False)
        code, said = self.run_script("load", "3")
        self.assertEqual((code, "the kernel has no module nvidia" in said), (0, True), said)
        self.program(self.bin / "modinfo", "exit 0")  # installed, and not loaded
        self.assertEqual(self.run_script("load", "1")[0], 1)
        self.assertIn("nvidia-modprobe -u -c 0", self.loaded())
        for devices, code in (("devices:\\n  - cpu: 4\\nworkers:\\n", 0), ("devices:\\n  - {cpu: auto}\\n", 0),
                              ("devices:\\n  - gpu: 0\\n    precision: fp16\\n  - cpu: 2\\n", 1), ("devices: auto\\n", 1)):
            self.program(self.folder / "usr/sbin/tiletrackd", f"printf 'spool:\\n  root: /x\\n{devices}'")
            self.assertEqual(self.run_script("check")[0], code, devices)
        self.program(self.folder / "usr/sbin/tiletrackd", "exit 78")
        self.assertEqual(self.run_script("check")[0], 1)  # the configuration is the daemon's to refuse

    def test_growing_waits(self):
        self.program(self.bin / "systemctl", "echo 3")
        for _ in range(8):
            self.assertEqual(self.run_script("check")[0], 0)
        self.assertEqual(self.slept(), ["1", "2", "4", "8", "16", "32", "60", "60"])
        old = self.root / "run/tiletrackd.failures"
        os.utime(old, (0, 0))  # it ran for longer than ten minutes since
        self.run_script("check")
        self.assertEqual(self.slept()[-1], "1")
        self.program(self.bin / "systemctl", "echo 0")  # started by a person
        self.run_script("check")
        self.assertEqual((len(self.slept()), old.exists()), (9, False))

    def test_usage(self):
        self.assertEqual(self.run_script()[0], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
