#!/usr/bin/python3
"""Manual pages and completions against what the programs say of themselves: every command has a page, every option of
--help stands in it and the other way round, mandoc finds nothing to say, and bash completes what the command takes."""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get("TILETRACK_BIN", SOURCE / "build" / "bin"))
PAGES = SOURCE / "docs" / "man"
GENERATED = BIN.parent / "man"
COMPLETION = SOURCE / "packaging" / "completions" / "tiletrack"
# Nothing that mandoc says is let pass but this: a page of ours is not installed where the tests run.
ELSEWHERE = re.compile(r"referenced manual not found|outdated mandoc\.db")


def output(*command, **options):
    return subprocess.run(list(map(str, command)), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=60,
                          **options).stdout  # fmt: skip


def commands():
    return re.findall(r"(?m)^  ([a-z]+)  ", output(BIN / "tiletrack", "--help"))


def options_of_help(text):
    return set(re.findall(r"(?<![\w`-])--[a-z][a-z0-9-]*", text)) - {"--help"}


def options_of_page(page):
    """Long options in macro lines: Fl -name. What a page says of another program stands in Ql or Dl."""
    lines = [line for line in page.splitlines() if line.startswith(".") and not line.startswith((".Dl", ".Ql"))]
    return {"--" + name for line in lines for name in re.findall(r"Fl -([a-z][a-z0-9-]*)", line)} - {"--help"}


class Pages(unittest.TestCase):
    def test_every_command_has_one_and_the_first_page_names_it(self):
        first = (PAGES / "tiletrack.1").read_text()
        for name in commands():
            self.assertTrue((PAGES / f"tiletrack-{name}.1").is_file(), f"no page for tiletrack {name}")
            self.assertIn(f".Xr tiletrack-{name} 1", first)
        self.assertEqual({path.stem for path in PAGES.glob("tiletrack-*.1")}, {f"tiletrack-{name}" for name in commands()})

    def test_options_of_help_and_page_are_the_same(self):
        for name in commands():
            with self.subTest(command=name):
                page = (PAGES / f"tiletrack-{name}.1").read_text()
                text = output(BIN / "tiletrack", name, "--help")
                # A command's text may name another program's option in backquotes.
                self.assertEqual(options_of_page(page) - {"--"}, options_of_help(re.sub(r"`[^`]*`|blender --python.*", "", text)))

    def test_the_daemon_too(self):
        text = output(BIN / "tiletrackd", "--help")
        self.assertEqual(options_of_page((PAGES / "tiletrackd.8").read_text()), options_of_help(text))

    def test_mandoc_has_nothing_to_say(self):
        pages = sorted(PAGES.iterdir()) + sorted(GENERATED.iterdir())
        self.assertIn("tiletrack.yaml.5", [page.name for page in pages])
        for page in pages:
            said = subprocess.run(["mandoc", "-T", "lint", "-W", "style", page], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=60).stdout  # fmt: skip
            self.assertEqual([line for line in said.splitlines() if not ELSEWHERE.search(line)], [], page.name)

    def test_pages_refer_to_pages_that_are_there(self):
        ours = {page.name for page in PAGES.iterdir()} | {page.name for page in GENERATED.iterdir()}
        for page in PAGES.iterdir():
            for name, section in re.findall(r"\.Xr (tiletrack\S*) (\d)", page.read_text()):
                self.assertIn(f"{name}.{section}", ours, page.name)

    def test_export_formats_stand_in_the_table(self):
        page = (PAGES / "tiletrack-tracks.5").read_text()
        for line in output(BIN / "tiletrack", "export", "--list").splitlines():
            name, file = line.split()[:2]
            self.assertRegex(page, rf"(?m)^\.It {re.escape(name)} Ta {re.escape(file)} Ta ")


class Completion(unittest.TestCase):
    def complete(self, *words):
        """What bash offers for the last of these words."""
        script = (f"source '{COMPLETION}'; PATH='{BIN}':$PATH; COMP_WORDS=(tiletrack \"$@\"); COMP_CWORD=$#; _tiletrack; "
                  "((${#COMPREPLY[@]} == 0)) || printf '%s\\n' \"${COMPREPLY[@]}\"")  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            for name in ("bear.tracks.npz", "bear.mp4"):
                pathlib.Path(folder, name).touch()
            return output("bash", "-c", script, "bash", *words, cwd=folder).split()

    def test_commands(self):
        self.assertEqual(set(self.complete("")), set(commands()) | {"help", "--version"})
        self.assertEqual(self.complete("sel"), ["selftest"])
        self.assertEqual(self.complete("help", "sta"), ["status"])

    def test_every_option_of_every_command(self):
        for name in commands():
            offered, text = set(self.complete(name, "--")), output(BIN / "tiletrack", name, "--help")
            for option in re.findall(r"(?m)^ +(?:-[a-z], | {4})?(--[a-z][a-z-]*) ", text):
                self.assertIn(option, offered, f"tiletrack {name}")

    def test_words_that_an_option_takes(self):
        self.assertEqual(self.complete("plan", "--device", "t"), ["t4"])
        self.assertEqual(self.complete("track", "--resize", ""), ["area", "bilinear"])
        formats = [line.split()[0] for line in output(BIN / "tiletrack", "export", "--list").splitlines()]
        self.assertEqual(self.complete("export", "--to", ""), formats)

    def test_export_offers_track_files_only(self):
        self.assertEqual(self.complete("export", ""), ["bear.tracks.npz"])
        self.assertEqual(self.complete("track", "be"), [])  # left to bash, which offers files


if __name__ == "__main__":
    unittest.main(verbosity=2)
