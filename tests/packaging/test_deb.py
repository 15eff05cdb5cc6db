#!/usr/bin/python3
"""packaging/build-deb: the packages it makes (lintian's word is part of it), and cmake --install."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import debs

SOURCE = debs.SOURCE


def output(*command):
    return subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


def files(deb):
    """{path: (mode, owner)} of everything in a package but directories."""
    found = {}
    for line in output("dpkg-deb", "--contents", deb).splitlines():
        mode, owner, _, _, _, path = line.split(None, 5)
        if not path.endswith("/"):
            found[path.removeprefix(".").split(" -> ")[0]] = (mode, owner)
    return found


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.debs = debs.packages()
        cls.files = {name: files(path) for name, path in cls.debs.items()}

    def control(self, name, member):
        return subprocess.run(["sh", "-c", f'dpkg-deb --ctrl-tarfile "$0" | tar -xO ./{member}', self.debs[name]],
                              capture_output=True, text=True, check=True).stdout

    def test_what_is_where(self):
        expected = {"/usr/bin/tiletrack": "-rwxr-xr-x", "/usr/sbin/tiletrackd": "-rwxr-xr-x",
                    "/usr/lib/tiletrack/tiletrack-worker": "-rwxr-xr-x", "/usr/lib/tiletrack/tiletrack-decode": "-rwxr-xr-x",
                    "/usr/lib/tiletrack/tiletrack-encode": "-rwxr-xr-x",
                    "/usr/lib/tiletrack/tiletrack-devices": "-rwxr-xr-x", "/etc/tiletrack/tiletrack.yaml": "-rw-r--r--",
                    "/etc/logrotate.d/tiletrack": "-rw-r--r--", "/lib/systemd/system/tiletrackd.service": "-rw-r--r--",
                    "/lib/systemd/system/tiletrack-devices.service": "-rw-r--r--",
                    "/usr/lib/sysusers.d/tiletrack.conf": "-rw-r--r--", "/usr/lib/tmpfiles.d/tiletrack.conf": "-rw-r--r--",
                    "/usr/share/tiletrack/models/tiletrack-small.safetensors": "-rw-r--r--",
                    "/usr/share/bash-completion/completions/tiletrack": "-rw-r--r--",
                    "/usr/share/doc/tiletrack/examples/cpu-only.conf": "-rw-r--r--",
                    "/usr/share/man/man5/tiletrack.yaml.5.gz": "-rw-r--r--"}
        for path, mode in expected.items():
            self.assertEqual(self.files["tiletrack"].get(path), (mode, "root/root"), path)
        for page in (SOURCE / "docs/man").iterdir():
            self.assertIn(f"/usr/share/man/man{page.suffix[1:]}/{page.name}.gz", self.files["tiletrack"])
        self.assertNotIn("/usr/lib/tiletrack/tiletrack-cuda.so", self.files["tiletrack"])

    def test_configuration_is_kept(self):
        self.assertEqual(self.control("tiletrack", "conffiles").split(), ["/etc/logrotate.d/tiletrack", "/etc/tiletrack/tiletrack.yaml"])

    def test_version(self):
        version = re.search(r"project\(tiletrack VERSION (\S+)", (SOURCE / "CMakeLists.txt").read_text())[1]
        for path in self.debs.values():
            self.assertEqual(output("dpkg-deb", "-f", path, "Version").strip(), version)

    def test_maintainer_scripts_touch_no_video(self):
        """Purge deletes nothing below the spool but locks, and directories only where they are empty."""
        script = self.control("tiletrack", "postrm")
        for line in script.splitlines():
            if re.match(r"\s*rm ", line) and "spool" in line:
                self.assertRegex(line, r'^\s*rm -f "\$spool"/work/\*/lock "\$spool"/work/\*/\.probe$')
        self.assertNotIn("rm -rf /var/spool", script)

    def test_plugin(self):
        if "tiletrack-cuda" not in self.debs:
            self.skipTest("built without the plug-in")
        self.assertIn("/usr/lib/tiletrack/tiletrack-cuda.so", self.files["tiletrack-cuda"])
        field = lambda name: output("dpkg-deb", "-f", self.debs["tiletrack-cuda"], name).strip()
        self.assertEqual(field("Section"), "contrib/video")
        self.assertIn(f"tiletrack (= {field('Version')})", field("Depends"))
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg-deb", "-x", self.debs["tiletrack-cuda"], folder], check=True)
            needed = re.findall(r"NEEDED\s+(\S+)", output("objdump", "-p", f"{folder}/usr/lib/tiletrack/tiletrack-cuda.so"))
        self.assertEqual([n for n in needed if re.match(r"lib(cuda|cudart|cublas|nv)", n)], [])

    def test_installs_without_packages_too(self):
        """cmake --install with DESTDIR; the programs find each other and the weights there."""
        if not (debs.BIN / "tiletrackd").exists():
            self.skipTest("the build tree has no programs")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["cmake", "--install", debs.BIN.parent, "--prefix", "/usr"], check=True, capture_output=True,
                           env={**os.environ, "DESTDIR": folder})
            root = pathlib.Path(folder)
            self.assertTrue((root / "etc/tiletrack/tiletrack.yaml").exists())
            process = subprocess.run([root / "usr/bin/tiletrack", "selftest", "--device", "cpu"], capture_output=True, text=True)
            self.assertEqual(process.returncode, 0, process.stderr)
            process = subprocess.run([root / "usr/sbin/tiletrackd", "--check", "--config", root / "etc/tiletrack/tiletrack.yaml"],
                                     capture_output=True, text=True)
            self.assertEqual(process.returncode, 0, process.stderr)
            (root / "usr/lib/tiletrack/tiletrack-worker").unlink()
            process = subprocess.run([root / "usr/sbin/tiletrackd", "--check", "--config", root / "etc/tiletrack/tiletrack.yaml"],
                                     capture_output=True, text=True)
            self.assertIn("tiletrack-worker is not installed; searched", process.stderr + process.stdout)


class Script(unittest.TestCase):
    def test_explains_itself(self):
        script = SOURCE / "packaging/build-deb"
        said = output(script, "--help")
        for option in ("--output", "--work", "--cuda", "--plugin", "--binary", "--no-install", "--no-lintian", "--jobs"):
            self.assertIn(option, said)
        for arguments in (["--frobnicate"], ["-j", "many"], ["--output"], ["--cuda", "perhaps"]):
            process = subprocess.run([script, *arguments], capture_output=True, text=True)
            self.assertEqual((process.returncode, process.stdout), (2, ""), arguments)
            self.assertTrue(process.stderr.startswith("packaging/build-deb: "), process.stderr)

    def test_shell_stands(self):
        for name in ("packaging/build-deb", "systemd/tiletrack-devices", "packaging/debian/tiletrack.postrm",
                     "packaging/debian/tiletrack-cuda.postinst", "packaging/debian/tiletrack-cuda.postrm"):
            first = (SOURCE / name).read_text().splitlines()[0]
            subprocess.run(["bash" if "bash" in first else "sh", "-n", SOURCE / name], check=True)


if __name__ == "__main__":
    reason = debs.why_not()
    if reason:
        print("skipped: " + reason)
        sys.exit(77)
    unittest.main(verbosity=2)
