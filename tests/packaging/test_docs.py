#!/usr/bin/python3
"""README.md and the other pages against the tree and the programs: links lead somewhere, files that are named are there,
commands and their options exist, and what README tells a newcomer to type does what it says, word for word."""
import fnmatch
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("TILETRACK_BIN", SOURCE / "build" / "bin"))
CLIP = SOURCE / "packaging" / "demo-clip" / "demo"
FOLDERS = ("core", "daemon", "cuda", "config", "models", "packaging", "systemd", "tests", "docs")
# Not ours: places in the public code, a header of systemd's. Made by a run, or absent on purpose.
ELSEWHERE = {"models/locotrack_model.py", "models/cmdtop.py", "models/utils.py", "models/nets.py", "systemd/sd-daemon.h"}
ABSENT = {"core/arena", "tests/long_ways", "tests/fuzz_", "tests/cpu_bench"}
PAGES = sorted(path for path in SOURCE.glob("**/*.md") if not path.relative_to(SOURCE).parts[0].startswith(("build", ".", "dist")))
TEXTS = {".c", ".h", ".cu", ".cuh", ".py", ".sh", ".md", ".txt", ".cmake", ".yaml", ".yml", ".1", ".5", ".7", ".8", ".service", ""}


def output(*command, **options):
    return subprocess.run(list(map(str, command)), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=120,
                          **options).stdout  # fmt: skip


def name_of(path):
    return path.relative_to(SOURCE).as_posix()


def is_there(name, near=SOURCE):
    """A file or folder; core/log stands for core/log.c and core/log.h; * and {a,b} as in a shell."""
    group = re.search(r"\{([^}]*)\}", name)
    if group:
        return all(is_there(name[: group.start()] + word + name[group.end() :], near) for word in group[1].split(","))
    if "*" in name:
        parent = near / name.rsplit("/", 1)[0]
        return parent.is_dir() and any(fnmatch.fnmatch(entry.name, name.rsplit("/", 1)[1]) for entry in parent.iterdir())
    return any((near / (name + ending)).exists() for ending in ("", ".c", ".h", ".cu", ".cuh"))


def quoted(page):
    """What stands as code in a page: (line, text), of indented lines and of what is in backquotes."""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for text in [line.strip()] if line.startswith("    ") else re.findall(r"`([^`]+)`", line):
            yield number, re.sub(r"\s+#.*|   .*", "", text)


class Pages(unittest.TestCase):
    def test_links_lead_somewhere(self):
        links = 0
        for page in PAGES:
            for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
                links += 1
                other = page.parent / target if target else page
                self.assertTrue(other.exists(), f"{name_of(page)}: {target}")
                if anchor:
                    heads = re.findall(r"(?m)^#+ (.*)", other.read_text())
                    self.assertIn(anchor, [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads])
        self.assertGreater(links, 5)

    def test_files_that_are_named_are_there(self):
        """In every text of ours, comments included."""
        pattern = re.compile(rf"(?<![\w/.$}}-])(?:{'|'.join(FOLDERS)})/[\w.*{{}},/+-]*")
        names = 0
        for folder in FOLDERS + (".",):
            for path in sorted((SOURCE / folder).glob("*" if folder == "." else "**/*")):
                if path.suffix not in TEXTS or not path.is_file() or "corpus" in path.parts:
                    continue
                try:
                    text = path.read_text()
                except UnicodeDecodeError:
                    continue
                for name in (found.rstrip(".,/") for found in pattern.findall(text)):
                    names += 1
                    if name in ELSEWHERE | ABSENT or name == name_of(CLIP) or path.suffix == ".py" and "{" in name:
                        continue
                    self.assertTrue(is_there(name) or is_there(name, path.parent), f"{name_of(path)} names {name}")
        self.assertGreater(names, 500)

    def test_every_folder_has_its_line(self):
        readme = (SOURCE / "README.md").read_text()
        design = (SOURCE / "docs" / "DESIGN.md").read_text()
        for folder in FOLDERS:
            self.assertIn(f"| `{folder}/` |", readme)
        for parent in ("core", "daemon"):
            line = re.search(rf"(?m)^\| `{parent}/` \|.*", readme)[0]
            for path in (SOURCE / parent).iterdir():
                if path.is_dir():
                    self.assertIn(f"`{path.name}/`", line, "README.md, What stands where")
                    self.assertTrue(f"`{path.name}/`" in design or f"`{parent}/{path.name}/`" in design or
                                    f"{parent}/{path.name}." in design, f"docs/DESIGN.md says nothing of {parent}/{path.name}")  # fmt: skip

    def test_every_page_of_docs_is_named_by_another(self):
        for page in (SOURCE / "docs").glob("*.md"):
            self.assertTrue(any(page.name in other.read_text() for other in PAGES if other != page), page.name)

    def test_every_command_stands_in_the_design(self):
        row = re.search(r"(?m)^\| `tiletrack` \|(.*?)\|", (SOURCE / "docs" / "DESIGN.md").read_text())[1]
        for command in re.findall(r"(?m)^  ([a-z]+)  ", output(BIN / "tiletrack", "--help")):
            self.assertRegex(row, rf"\b{command}\b")


class Commands(unittest.TestCase):
    def test_of_tiletrack_with_their_options(self):
        commands = re.findall(r"(?m)^  ([a-z]+)  ", output(BIN / "tiletrack", "--help"))
        helps = {command: output(BIN / "tiletrack", command, "--help") for command in commands}
        seen = set()
        for page in PAGES:
            for number, text in quoted(page):
                for command, rest in re.findall(r"(?:^|[;&|] |/)tiletrack ([a-z]+)((?: [^;&|]*)?)", text):
                    self.assertIn(command, commands, f"{name_of(page)}:{number}")
                    seen.add(command)
                    for option in re.findall(r"(?<=\s)--[a-z][a-z-]*", rest):
                        self.assertIn(option, helps[command], f"{name_of(page)}:{number}: {text}")
        self.assertGreater(len(seen), 7)

    def test_of_scripts_with_their_options(self):
        """tests/bench/long.py --seeds 1: such a script knows the word. (That it is there is a matter of Pages.)"""
        seen = set()
        for page in PAGES:
            for number, text in quoted(page):
                found = re.match(r"(?:python3 )?((?:tests|packaging|models|training)/[\w/.-]+)(?= |$)(.*)", text)
                path = found and next((at / found[1] for at in (SOURCE, page.parent) if (at / found[1]).is_file()), None)
                if not path or path.suffix not in (".py", ".sh", ""):
                    continue
                seen.add(path.name)
                for option in re.findall(r"(?<=[\s\[])--[a-z][a-z-]*", found[2]):
                    known = any(re.search(rf"""['"( ]{option}['")=]""", other.read_text())
                                for other in ([path] if path.name != "tool.py" else path.parent.glob("*.py")))  # fmt: skip
                    self.assertTrue(known, f"{name_of(page)}:{number}: {path.name} does not know {option}")
        self.assertGreater(len(seen), 8)

    def test_tests_that_are_named_exist(self):
        if not (BIN.parent / "CTestTestfile.cmake").exists():
            self.skipTest("no build folder")
        tests = re.findall(r"(?m)Test +#\d+: (\S+)", output("ctest", "-N", cwd=BIN.parent))
        for page in PAGES:
            for number, text in quoted(page):
                for name in re.findall(r"ctest (?:.* )?-R ([\w-]+)", text):
                    if name.startswith(("cuda-", "bench-")) and not any(test.startswith("cuda-") for test in tests):
                        continue  # built without them
                    self.assertTrue(any(re.search(name, test) for test in tests), f"{name_of(page)}:{number}: {name}")

    def test_configurations_are_good(self):
        """Every piece of configuration in a page: a section in one line."""
        sections = re.findall(r"(?m)^([a-z_]+):", (SOURCE / "config" / "tiletrack.yaml").read_text())
        self.assertIn("spool", sections)
        seen = 0
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "tiletrack.yaml")
            for page in PAGES:
                for number, text in quoted(page):
                    if re.fullmatch(rf"(?:{'|'.join(sections)}): ?[\[{{].*[\]}}]", text):
                        seen += 1
                        file.write_text(text + "\n")
                        checked = subprocess.run([BIN / "tiletrack", "check", file], capture_output=True, text=True, timeout=60)
                        self.assertEqual(checked.returncode, 0, f"{name_of(page)}:{number}: {checked.stderr}")
        self.assertGreater(seen, 1)


class Newcomer(unittest.TestCase):
    """README's own lines, in a folder that looks like a checkout after packaging/demo, with a video called bear.mp4."""

    @classmethod
    def setUpClass(cls):
        cls.readme = (SOURCE / "README.md").read_text()
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        (cls.folder / "build").mkdir()
        (cls.folder / "build" / "bin").symlink_to(BIN)
        output("ffmpeg", "-v", "error", "-i", f"{CLIP}.mp4", "-frames:v", 12, cls.folder / "bear.mp4")
        output("ffmpeg", "-v", "error", "-f", "lavfi", "-i", "color=white:s=64x36", "-vf", "pad=512:288:100:100", "-frames:v", 1,
               cls.folder / "fur.png")  # fmt: skip
        (cls.folder / "points.csv").write_text("frame,x,y,label\n0,100,100,ear\n5,200.5,150,\n")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def lines(self, title):
        """The indented lines of a section."""
        section = self.readme.split(f"\n## {title}\n")[1].split("\n## ")[0]
        return [line[4:] for line in section.splitlines() if line.startswith("    ")]

    def shell(self, script):
        process = subprocess.run(["bash", "-euc", script], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=600)  # fmt: skip
        self.assertEqual(process.returncode, 0, f"{script}\n{process.stdout}")
        return process.stdout

    def test_track_and_look(self):
        lines = self.lines("Track your own video")
        commands = [line for line in lines if line.startswith("build/bin/")]
        self.assertGreaterEqual(len(commands), 8)
        made = {}
        for command in commands:
            self.shell(command)
            made[command] = set(os.listdir(self.folder))
        self.assertIn("bear.tracks.npz", made[commands[0]])
        self.assertTrue((self.folder / "tracks" / "bear.tracks.npz").is_file())
        self.assertTrue({"bear.overlay.mp4", "bear.png"} <= set(os.listdir(self.folder)))
        program = "\n".join(line for line in lines if not line.startswith("build/bin/"))
        names = {}
        before = os.getcwd()
        try:
            os.chdir(self.folder)
            exec(program, names)  # pylint: disable=exec-used
        finally:
            os.chdir(before)
        file = names["file"]
        self.assertEqual(file["tracks"].shape, (*file["occluded"].shape, 2))
        self.assertEqual(file["occluded"].shape, file["confidence"].shape)
        self.assertEqual((str(file["occluded"].dtype), file["tracks"].shape[1]), ("bool", 12))

    def test_drop_videos(self):
        script = "\n".join(self.lines("Drop videos into a directory")).replace("/tmp/tracks-run", f"{self.folder}/run")
        self.assertIn("tiletrackd", script)
        # A person types slower than the daemon starts.
        script = script.replace("&\n", f"""&
            trap "kill $!; wait $!" EXIT
            until [ -S {self.folder}/run/control.sock ]; do kill -0 $!; sleep 0.05; done
            """)
        result = self.folder / "run" / "spool" / "tracks" / "bear.tracks.npz"
        said = self.shell(f"{script}\nfor i in $(seq 1200); do [ -e {result} ] && break; sleep 0.1; done")
        self.assertTrue(result.is_file(), said)
        self.assertIn("incoming/bear.mp4", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
