#!/usr/bin/python3
"""The scripts of packaging/ and .ci/: they parse, explain themselves, and refuse what they do not know."""
import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
PACKAGING = SOURCE / "packaging"


def run(*command):
    return subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, cwd="/", timeout=60)  # fmt: skip


class Scripts(unittest.TestCase):
    def test_they_parse(self):
        for script in (PACKAGING / "demo", PACKAGING / "test", PACKAGING / "common.sh"):
            self.assertEqual(run("bash", "-n", script).stderr, "")
        self.assertEqual(run("sh", "-n", SOURCE / ".ci/run").stderr, "")

    def test_help_names_every_option(self):
        for name in ("demo", "test"):
            process = run(PACKAGING / name, "--help")
            self.assertEqual(process.returncode, 0)
            cases = re.search(r"case \$1 in(.*?)\n    esac", (PACKAGING / name).read_text(), re.S)[1]
            options = re.findall(r"(-{1,2}[a-z][a-z-]*)", " ".join(re.findall(r"^    (-[^)]*)\)", cases, re.M)))
            self.assertGreaterEqual(len(options), 4)
            for option in options:
                self.assertRegex(process.stdout, rf"(?m)(^| ){option}\b")

    def test_wrong_usage(self):
        for name in ("demo", "test"):
            for arguments in (["--frobnicate"], ["-j", "many"], ["-j"], ["--jobs", "0"]):
                process = run(PACKAGING / name, *arguments)
                self.assertEqual((process.returncode, process.stdout), (2, ""), arguments)
                self.assertTrue(process.stderr.startswith(f"packaging/{name}: "), process.stderr)

    def test_nothing_is_installed_twice(self):
        """What is installed is not asked for again; what does not exist is named, and apt's failure is ours."""
        source = f'set -eu; cd {SOURCE}; . packaging/common.sh; '
        process = run("bash", "-c", source + "install_missing dpkg bash")
        self.assertEqual((process.returncode, process.stdout), (0, "all of 2 packages are installed\n"))
        process = run("bash", "-c", source + "env() { echo \"$*\"; return 9; }; sudo() { env; }; install_missing bash no-such-x")
        self.assertNotEqual(process.returncode, 0)
        self.assertTrue(process.stdout.startswith("missing: no-such-x\n"), process.stdout)

    def test_every_library_of_the_build_is_installed(self):
        """Each pkg-config module that a CMakeLists.txt asks for comes from a package in the list."""
        modules = set()
        for path in [SOURCE / "CMakeLists.txt", *SOURCE.glob("[!b]*/**/CMakeLists.txt")]:
            for words in re.findall(r"pkg_check_modules\(([^)]*)\)", path.read_text()):
                modules |= {w for w in words.split()[1:] if w not in ("REQUIRED", "QUIET", "IMPORTED_TARGET")}
        self.assertIn("libavformat", modules)
        listed = run("bash", "-c", f"cd {SOURCE}; . packaging/common.sh; echo $packages_build").stdout.split()
        for module in modules:
            path = run("pkg-config", "--variable=pcfiledir", module).stdout.strip()
            owner = run("dpkg", "-S", f"{path}/{module}.pc").stdout
            if not owner:  # reached through an alternatives link
                owner = run("dpkg", "-S", os.path.realpath(f"{path}/{module}.pc")).stdout
            package = owner.split(":")[0]
            self.assertTrue(any(package == p or package.startswith(p.removesuffix("-dev")) for p in listed),
                            f"{module} comes from {package or 'no package'}")  # fmt: skip

    def test_ci_runs_the_tests(self):
        text = (SOURCE / ".ci/run").read_text()
        self.assertIn("packaging/test", text)
        self.assertTrue(os.access(SOURCE / ".ci/run", os.X_OK))


if __name__ == "__main__":
    unittest.main(verbosity=2)
