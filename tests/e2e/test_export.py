"""tiletrack export: every format read back by something else: NumPy, csv, json, sqlite3, Blender and COLMAP where they
are installed, otherwise a reader written from the format's description (docs/FORMATS.md)."""
import contextlib
import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import time
import unittest

import numpy as np

from daemon_tools import DaemonFolder
from export_readers import (FRAMES, HEIGHT, LABELS, RATE, WIDTH, curve, from_blender, make_tracks, read_3de,
                            read_after_effects, read_colmap, read_nuke, run_blender_script)
from programs import BIN, SOURCE, Folder, TILETRACK, main, make_video, moved, run, sanitized
from waiting import WAIT_S, state_of, wait_for

ALL = ["csv", "csv-wide", "json", "napari", "tapvid", "cotracker", "nuke", "3de", "after-effects", "blender", "colmap"]
SUFFIX = {"csv": ".tracks.csv", "csv-wide": ".wide.csv", "json": ".tracks.json", "napari": ".napari.csv",
          "tapvid": ".tapvid.npz", "cotracker": ".cotracker.npz", "nuke": ".nk", "3de": ".3de.txt",
          "after-effects": ".ae.txt", "blender": ".blender.py", "colmap": ".colmap.db"}
MODEL = SOURCE / "models" / "tiletrack-small.safetensors"
VISIBLE_ONLY = ["nuke", "3de", "after-effects", "blender", "colmap"]


class Exports(Folder):
    def setUp(self):
        super().setUp()
        self.arrays = make_tracks()
        self.write(self.arrays)

    def write(self, arrays, name="bear.tracks.npz"):
        np.savez(self.folder / name, **arrays)
        return self.folder / name

    def export(self, form, *options, name="bear.tracks.npz"):
        process = run("export", self.folder / name, "--to", form, *options)
        self.assertExit(process, 0)
        self.assertEqual(process.stderr, "")
        self.assertNothingPartial()
        return self.folder / name.replace(".tracks.npz", SUFFIX[form])

    def expected(self, visible=None):
        """{query: {frame: (x, y)}} of visible samples, without those that have none."""
        visible = ~self.arrays["occluded"] if visible is None else visible
        return {q: {int(t): tuple(self.arrays["tracks"][q, t]) for t in np.flatnonzero(visible[q])}
                for q in range(len(visible)) if visible[q].any()}

    def assertTracks(self, got, expected, tolerance=1e-4):
        self.assertEqual(len(got), len(expected))
        for (name, one), (query, other) in zip(got.items(), expected.items()):
            self.assertEqual(list(one), list(other), name)
            np.testing.assert_allclose(list(one.values()), list(other.values()), atol=tolerance, err_msg=f"{name} {query}")

    # --- tables ------------------------------------------------------------------------------------------------------

    def rows(self, path):
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def test_csv_is_the_track_file_of_that_format(self):
        tests = os.path.join(os.path.dirname(os.environ.get("TILETRACK_BIN", os.path.dirname(TILETRACK))), "tests")
        if not os.access(os.path.join(tests, "test_trackfile"), os.X_OK):
            self.skipTest("test_trackfile was not built")
        subprocess.run([os.path.join(tests, "test_trackfile"), "--write", self.folder], check=True)
        for name in ("plain", "labelled"):
            written = (self.folder / f"{name}.tracks.csv").read_bytes()
            self.export("csv", name=f"{name}.tracks.npz")
            self.assertEqual((self.folder / f"{name}.tracks.csv").read_bytes(), written)

    def check_long(self, rows, keep):
        a = self.arrays
        self.assertEqual([(int(r["query"]), int(r["frame"])) for r in rows], [tuple(map(int, at)) for at in np.argwhere(keep)])
        np.testing.assert_array_equal(np.array([[r["x"], r["y"]] for r in rows], "f4"), a["tracks"][keep])
        np.testing.assert_array_equal(np.array([r["confidence"] for r in rows], "f4"), a["confidence"][keep])
        np.testing.assert_array_equal([r["occluded"] == "1" for r in rows], a["occluded"][keep])
        self.assertEqual([r["label"] for r in rows], [LABELS[q] for q in np.argwhere(keep)[:, 0]])
        np.testing.assert_array_equal([float(r["time_s"]) for r in rows], a["time_s"][np.argwhere(keep)[:, 1]])

    def test_csv(self):
        self.check_long(self.rows(self.export("csv")), np.ones_like(self.arrays["occluded"]))
        self.check_long(self.rows(self.export("csv", "--only-visible")), ~self.arrays["occluded"])

    def test_csv_wide(self):
        a = self.arrays
        names = ["left ear_0", "track0001_1", LABELS[2] + "_2", "twin_3", "twin_4", LABELS[5] + "_5", "never seen_6"]
        for options in ((), ("--only-visible",)):
            rows = self.rows(self.export("csv-wide", *options))
            self.assertEqual(list(rows[0]), ["frame", "time_s"] + [f"{name}_{column}" for name in names for column in
                                                                   ("x", "y", "occluded", "confidence")])
            self.assertEqual([int(row["frame"]) for row in rows], list(range(FRAMES)))
            for q, name in enumerate(names):
                for t, row in enumerate(rows):
                    at = row[name + "_x"], row[name + "_y"]
                    if options and a["occluded"][q, t]:
                        self.assertEqual(at, ("", ""))
                    else:
                        self.assertEqual(tuple(map(np.float32, at)), tuple(a["tracks"][q, t]))
                    self.assertEqual(row[name + "_occluded"], str(int(a["occluded"][q, t])))
                    self.assertEqual(np.float32(row[name + "_confidence"]), a["confidence"][q, t])

    def test_json(self):
        a = self.arrays
        for options in ((), ("--only-visible",)):
            document = json.loads(self.export("json", *options).read_text(encoding="utf-8"))
            self.assertEqual([document[key] for key in ("format", "version", "frame_size", "frames", "first_frame")],
                             ["tiletrack-tracks", 1, [WIDTH, HEIGHT], FRAMES, 0])
            self.assertEqual(document["fps"], RATE)
            self.assertEqual(document["time_s"], list(a["time_s"]))
            self.assertEqual([track["label"] for track in document["tracks"]], LABELS)
            for q, track in enumerate(document["tracks"]):
                t, y, x = a["query_points"][q]
                self.assertEqual(list(map(np.float32, track["query_point"])), [t, x, y])
                self.assertEqual(track["query"], q)
                self.assertEqual(len(track["samples"]), FRAMES)
                for t, sample in enumerate(track["samples"]):
                    if options and a["occluded"][q, t]:
                        self.assertIsNone(sample)
                        continue
                    x, y, visible, confidence = sample
                    self.assertEqual((np.float32(x), np.float32(y)), tuple(a["tracks"][q, t]))
                    self.assertEqual((visible, np.float32(confidence)), (not a["occluded"][q, t], a["confidence"][q, t]))

    def test_napari(self):
        a = self.arrays
        for options, keep in (((), np.ones_like(a["occluded"])), (("--only-visible",), ~a["occluded"])):
            path = self.export("napari", *options)
            self.assertEqual(path.read_text().split("\n")[0], "track_id,t,y,x,occluded,confidence")
            rows = np.loadtxt(path, delimiter=",", skiprows=1)
            np.testing.assert_array_equal(rows[:, :2], np.argwhere(keep))
            np.testing.assert_allclose(rows[:, [3, 2]], a["tracks"][keep] - 0.5, atol=1e-6)  # centres are whole
            np.testing.assert_array_equal(rows[:, 4], a["occluded"][keep])
            np.testing.assert_allclose(rows[:, 5], a["confidence"][keep], rtol=1e-7)

    # --- arrays ------------------------------------------------------------------------------------------------------

    def test_tapvid(self):
        a = self.arrays
        with np.load(self.export("tapvid"), allow_pickle=False) as file:
            got = dict(file)
        self.assertEqual({name: (array.dtype.str, array.shape) for name, array in got.items()},
                         {"query_points": ("<f4", (1, 7, 3)), "target_points": ("<f4", (1, 7, FRAMES, 2)),
                          "occluded": ("|b1", (1, 7, FRAMES))})
        scale = np.array([256 / WIDTH, 256 / HEIGHT])
        np.testing.assert_allclose(got["target_points"][0], a["tracks"] * scale, rtol=1e-6, atol=1e-5)
        np.testing.assert_allclose(got["query_points"][0], a["query_points"] * [1, *scale[::-1]], rtol=1e-6, atol=1e-5)
        np.testing.assert_array_equal(got["occluded"][0], a["occluded"])
        # The point of a query lies on its track, as the evaluators assume.
        for q, (t, y, x) in enumerate(got["query_points"][0]):
            np.testing.assert_allclose(got["target_points"][0, q, int(t)], [x, y], rtol=1e-6)

    def test_cotracker(self):
        a = self.arrays
        with np.load(self.export("cotracker"), allow_pickle=False) as file:
            got = dict(file)
        self.assertEqual({name: (array.dtype.str, array.shape) for name, array in got.items()},
                         {"pred_tracks": ("<f4", (1, FRAMES, 7, 2)), "pred_visibility": ("|b1", (1, FRAMES, 7))})
        np.testing.assert_allclose(got["pred_tracks"][0], a["tracks"].transpose(1, 0, 2) - 0.5, atol=1e-4)
        np.testing.assert_array_equal(got["pred_visibility"][0], ~a["occluded"].T)

    # --- programs that people track in by hand -----------------------------------------------------------------------

    NAMES = ["left ear_0", "track0001_1", "a _b___c_ _d__e_2", "twin_3", "twin_4", "\u00e9\u2603_5"]

    def test_nuke(self):
        got, enabled = read_nuke(self.export("nuke"))
        self.assertEqual(list(got), self.NAMES)
        self.assertTracks(got, self.expected())
        for q, keys in enumerate(enabled.values()):  # constant between keys
            state = [keys[max(key for key in keys if key <= t + 1)] for t in range(FRAMES)]
            np.testing.assert_array_equal(state, ~self.arrays["occluded"][q])

    @unittest.skipUnless(shutil.which("tclsh"), "tclsh is not installed")
    def test_nuke_is_tcl(self):
        """A Nuke script is one of Tcl, so Tcl takes it apart too."""
        show = """
            foreach channel {stdin stdout} {fconfigure $channel -encoding utf-8}
            proc Tracker4 {body} {
                foreach row [lindex [dict get $body tracks] 2] {
                    puts [join [list [llength $row] [lindex $row 1] [lindex $row 2] [lindex $row 3]] \\t]
                }
            }
            eval [read stdin]"""
        script = self.folder / "show.tcl"
        script.write_text(show)
        process = subprocess.run(["tclsh", script], input=self.export("nuke").read_text(encoding="utf-8"), encoding="utf-8",
                                 stdout=subprocess.PIPE, check=True)
        got = {}
        for line in process.stdout.splitlines():
            count, name, *curves = line.split("\t")
            x, y = (curve(words.split()) for words in curves)
            got[name] = {frame - 1: (x[frame], HEIGHT - y[frame]) for frame in x}
            self.assertEqual(count, "31")
        self.assertEqual(list(got), self.NAMES)
        self.assertTracks(got, self.expected())

    def test_3de(self):
        got = read_3de(self.export("3de"))
        self.assertEqual(list(got), self.NAMES)
        self.assertTracks(got, self.expected())

    def test_after_effects(self):
        got, settings = read_after_effects(self.export("after-effects"))
        self.assertTracks(got, self.expected())
        self.assertAlmostEqual(float(settings.pop("Units Per Second")), RATE, places=5)
        self.assertEqual(settings, {"Source Width": str(WIDTH), "Source Height": str(HEIGHT),
                                    "Source Pixel Aspect Ratio": "1", "Comp Pixel Aspect Ratio": "1"})

    def check_blender(self, markers, places=4):
        self.assertTracks(from_blender(markers), self.expected(), tolerance=10 ** -places)
        for q, track in enumerate(markers.values()):
            # Before a track's first sample, and from the end of each run on, it is muted.
            state, muted = [], True
            for t in range(FRAMES):
                muted = track[t + 1][2] if t + 1 in track else muted
                state.append(muted)
            np.testing.assert_array_equal(state, self.arrays["occluded"][q])
            first = min(track)
            self.assertTrue(first == 1 or track[first][2])
            self.assertTrue(1 <= first and max(track) <= FRAMES)

    def test_blender_script(self):
        markers = run_blender_script(self.export("blender"))
        self.assertEqual(list(markers), ["left ear_0", "track0001_1", LABELS[2] + "_2", "twin_3", "twin_4",
                                         LABELS[5] + "_5"])
        self.check_blender(markers)

    @unittest.skipUnless(shutil.which("blender"), "blender is not installed")
    def test_blender_itself(self):
        script, video, dump = self.export("blender"), self.folder / "bear.mkv", self.folder / "dump.json"
        subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", f"color=s={WIDTH}x{HEIGHT}:r=30000/1001", "-frames:v",
                        str(FRAMES), "-c:v", "ffv1", video], check=True)
        show = ("import bpy, json; json.dump([[t.name, [[m.frame, *m.co, m.mute] for m in t.markers]] for t in "
                f"bpy.data.movieclips[0].tracking.objects[0].tracks], open({str(dump)!r}, 'w'))")
        process = subprocess.run(["blender", "--background", "--factory-startup", "--python-exit-code", "3", "--python",
                                  script, "--python-expr", show, "--", video], stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=300)
        self.assertEqual(process.returncode, 0, process.stdout)
        markers = {name: {frame: (x, y, mute) for frame, x, y, mute in track} for name, track in json.loads(dump.read_text())}
        self.assertEqual(list(markers)[0], "left ear_0")
        self.check_blender(markers, places=3)  # Blender's floats

    # --- COLMAP ------------------------------------------------------------------------------------------------------

    def test_colmap(self):
        images, points, pairs, camera = read_colmap(self.export("colmap"))
        a, visible = self.arrays, ~self.arrays["occluded"][:6]
        self.assertEqual(images, {t + 1: f"frame{t + 1:06d}.png" for t in range(FRAMES)})
        number, model, width, height, parameters, prior = camera[0]
        self.assertEqual((len(camera), number, model, width, height, prior), (1, 1, 2, WIDTH, HEIGHT, 0))
        self.assertEqual(list(np.frombuffer(parameters, "<f8")), [1.2 * HEIGHT, WIDTH / 2, HEIGHT / 2, 0])
        for t in range(FRAMES):
            np.testing.assert_array_equal(points[t + 1], a["tracks"][:6][visible[:, t], t])
        gaps = set()
        for pair, matches in pairs.items():
            one, other = pair // 2147483647 - 1, pair % 2147483647 - 1
            gaps.add(other - one)
            both = np.flatnonzero(visible[:, one] & visible[:, other])
            np.testing.assert_array_equal(np.flatnonzero(visible[:, one])[matches[:, 0]], both)
            np.testing.assert_array_equal(np.flatnonzero(visible[:, other])[matches[:, 1]], both)
        self.assertEqual(gaps, {1, 2, 4, 8, 16, 32})

    @unittest.skipUnless(shutil.which("colmap"), "colmap is not installed")
    def test_colmap_itself(self):
        """A rigid scene with a known camera, through the database, comes back from COLMAP's own reconstruction."""
        random, focal, frames, tracks = np.random.default_rng(3), 700, 20, 150
        world = random.uniform([-2, -1.5, 6], [2, 1.5, 12], (tracks, 3))
        arrays = make_tracks(tracks=tracks, frames=frames, labels=None)
        for t in range(frames):
            turn = (t - 10) * 0.015
            rotation = np.array([[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]])
            seen = (world - [(t - 10) * 0.2, 0.03 * t, 0]) @ rotation.T
            arrays["tracks"][:, t] = seen[:, :2] / seen[:, 2:] * focal + [320, 240] + random.normal(0, 0.1, (tracks, 2))
        arrays["occluded"][:50, 6:12] = True
        arrays["frame_size"] = np.array([640, 480], "i4")
        self.write(arrays)
        database, sparse = self.export("colmap"), self.folder / "sparse"
        sparse.mkdir()
        for step in (["sequential_matcher", "--SiftMatching.use_gpu", "0"],
                     ["mapper", "--image_path", self.folder, "--output_path", sparse, "--Mapper.extract_colors", "0"],
                     ["model_converter", "--input_path", sparse / "0", "--output_path", sparse, "--output_type", "TXT"]):
            path = [] if step[0] == "model_converter" else ["--database_path", database]
            process = subprocess.run(["colmap", step[0], *path, *step[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     text=True, env={**os.environ, "QT_QPA_PLATFORM": "offscreen"}, timeout=600)
            self.assertEqual(process.returncode, 0, process.stdout)
        camera = [line for line in (sparse / "cameras.txt").read_text().splitlines() if not line.startswith("#")]
        self.assertAlmostEqual(float(camera[0].split()[4]), focal, delta=0.03 * focal)
        text = (sparse / "images.txt").read_text()
        self.assertIn(f"Number of images: {frames},", text)
        points = [line.split() for line in (sparse / "points3D.txt").read_text().splitlines() if not line.startswith("#")]
        self.assertGreater(len(points), 0.9 * tracks)
        self.assertLess(np.mean([float(point[7]) for point in points]), 0.2)  # pixels of reprojection
        self.assertGreater(np.mean([len(point[8:]) / 2 for point in points]), 0.7 * frames)  # through the occlusion

    # --- options -----------------------------------------------------------------------------------------------------

    def frame_numbers(self, form, path):
        if form in ("csv", "csv-wide"):
            return sorted({int(row["frame"]) for row in self.rows(path)})
        if form == "json":
            document = json.loads(path.read_text())
            return [document["first_frame"] + t for t in range(document["frames"])]
        if form == "napari":
            return sorted(set(np.loadtxt(path, delimiter=",", skiprows=1)[:, 1].astype(int)))
        if form == "colmap":
            return sorted(int(name[5:-4]) for name in read_colmap(path)[0].values())
        if form == "blender":
            return sorted({frame for track in run_blender_script(path).values() for frame in track})
        tracks = {"nuke": lambda: read_nuke(path)[0], "3de": lambda: read_3de(path),
                  "after-effects": lambda: read_after_effects(path)[0]}[form]()
        first = 0 if form == "after-effects" else 1  # undone by the readers above
        return sorted({frame + first for track in tracks.values() for frame in track})

    def test_first_frame_and_offset(self):
        first = dict.fromkeys(["nuke", "3de", "blender", "colmap"], 1)
        for form in ALL:
            if form in ("tapvid", "cotracker"):
                continue
            for offset in (0, 1000):
                path = self.export(form, "--frame-offset", offset)
                start = first.get(form, 0) + offset
                self.assertEqual(self.frame_numbers(form, path), list(range(start, start + FRAMES)), form)

    def test_min_confidence_hides(self):
        a = self.arrays
        visible = ~a["occluded"] & (a["confidence"] >= 0.75)
        self.assertTracks(read_nuke(self.export("nuke", "--min-confidence", 0.75))[0], self.expected(visible))
        for form, name, invert in (("tapvid", "occluded", True), ("cotracker", "pred_visibility", False)):
            with np.load(self.export(form, "--min-confidence", 0.75)) as file:
                got = file[name][0] if invert else file[name][0].T
            np.testing.assert_array_equal(got, ~visible if invert else visible)
        rows = self.rows(self.export("csv", "--min-confidence", 0.75, "--only-visible"))
        self.assertEqual(len(rows), visible.sum())

    def test_labels_choose(self):
        rows = self.rows(self.export("csv", "--labels", "tw*", "--labels", "left ?ar"))
        self.assertEqual(sorted({int(row["query"]) for row in rows}), [0, 3, 4])
        for form in ALL:
            self.export(form, "--labels", "tw*")
        self.assertEqual(list(read_3de(self.export("3de", "--labels", "twin", "--labels", "l*"))),
                         ["left ear_0", "twin_3", "twin_4"])
        self.assertEqual(list(read_3de(self.export("3de", "--labels", "l*"))), ["left ear"])  # alone it is unlike others
        process = run("export", self.folder / "bear.tracks.npz", "--to", "csv", "--labels", "nose")
        self.assertExit(process, 1)
        self.assertIn("no label matches", process.stderr)
        self.write(make_tracks(labels=None), "plain.tracks.npz")
        process = run("export", self.folder / "plain.tracks.npz", "--to", "csv", "--labels", "nose")
        self.assertExit(process, 1)
        self.assertIn("no labels", process.stderr)

    def test_fps(self):
        rows = self.rows(self.export("csv", "--fps", "24000/1001"))
        np.testing.assert_allclose([float(row["time_s"]) for row in rows[:FRAMES]], np.arange(FRAMES) * 1001 / 24000)
        self.assertEqual(read_after_effects(self.export("after-effects", "--fps", 25))[1]["Units Per Second"], "25")
        for times, rate in ((np.round(np.arange(FRAMES) / 24, 3), "24"), (np.arange(FRAMES) / 7.5, "7.5"),
                            (np.round(np.arange(FRAMES) * 1001 / 30000, 3) + 5, "29.97003")):
            self.write({**self.arrays, "time_s": times})
            self.assertEqual(read_after_effects(self.export("after-effects"))[1]["Units Per Second"], rate)
        self.write({**self.arrays, "time_s": np.zeros(FRAMES)})
        process = run("export", self.folder / "bear.tracks.npz", "--to", "after-effects")
        self.assertExit(process, 1)
        self.assertIn("give --fps", process.stderr)
        self.assertIsNone(json.loads(self.export("json").read_text())["fps"])

    def test_only_visible_changes_nothing_where_it_is_so_anyway(self):
        for form in VISIBLE_ONLY:
            before = self.export(form).read_bytes()
            self.assertEqual(self.export(form, "--only-visible").read_bytes(), before)

    def test_what_does_not_go_together(self):
        cases = [("tapvid", "--only-visible"), ("cotracker", "--only-visible"), ("tapvid", "--fps", 25),
                 ("cotracker", "--frame-offset", 5), ("tapvid", "--frame-offset", 1), ("nuke", "--fps", 25),
                 ("3de", "--fps", 25), ("colmap", "--fps", 25), ("napari", "--fps", 25), ("blender", "--fps", 25)]
        for form, option, *value in cases:
            process = run("export", self.folder / "bear.tracks.npz", "--to", form, option, *value)
            self.assertExit(process, 2)
            self.assertIn(f"{option} does not go with format {form}", process.stderr)
        for form, offset in (("nuke", -2), ("3de", -1), ("after-effects", -1), ("blender", 2 ** 20), ("colmap", -9)):
            process = run("export", self.folder / "bear.tracks.npz", "--to", form, "--frame-offset", offset)
            self.assertExit(process, 1)
            self.assertIn("the frames would be", process.stderr)
        self.assertEqual(self.names(), [b"bear.tracks.npz"])

    def test_wrong_command_lines(self):
        file = self.folder / "bear.tracks.npz"
        for arguments in ((), (file,), (file, "--to", "maya"), ("--to", "csv"), (file, file, "--to", "csv"),
                          (file, "--to", "csv", "--min-confidence", "1.5"), (file, "--to", "csv", "--min-confidence", "nan"),
                          (file, "--to", "csv", "--fps", "0"), (file, "--to", "csv", "--fps", "1/0"),
                          (file, "--to", "csv", "--fps", "x"), (file, "--to", "csv", "--frame-offset", "1.5"),
                          (file, "--to", "csv", "--frame-offset", "2000000000"), (file, "--to", "csv", "--nonsense"),
                          (file, "--to", "csv", "-o", ""), (file, "--to", "tapvid", "-o", file)):
            process = run("export", *arguments)
            self.assertExit(process, 2)
            self.assertIn("tiletrack export --help", process.stderr)
        os.link(file, self.folder / "other name")
        self.assertExit(run("export", file, "--to", "csv", "-o", self.folder / "other name"), 2)
        self.assertEqual(self.names(), [b"bear.tracks.npz", b"other name"])

    def test_help_and_list_name_every_format(self):
        text = run("export", "--help").stdout
        listed = [line.split()[:2] for line in run("export", "--list").stdout.splitlines()]
        self.assertEqual(listed, [[form, "NAME" + SUFFIX[form]] for form in ALL])
        for form in ALL:
            self.assertRegex(text, rf"(?m)^  {form} ")

    # --- files -------------------------------------------------------------------------------------------------------

    def test_equal_data_gives_equal_bytes(self):
        for form in ALL:
            before = self.export(form).read_bytes()
            time.sleep(0.01)
            self.assertEqual(self.export(form).read_bytes(), before, form)

    def test_names_of_outputs(self):
        for name, output in (("a.b.tracks.npz", b"a.b.nk"), ("saved.npz", b"saved.nk"), ("x" * 244 + ".tracks.npz", b"x" * 244 + b".nk"),
                             (".tracks.npz", b".tracks.nk"), ("two\nlines.tracks.npz", b"two\nlines.nk")):
            self.write(self.arrays, name)
            self.assertExit(run("export", "--to", "nuke", self.folder / name), 0)
            self.assertIn(output, self.names())
        deep = self.folder
        while len(str(deep)) < 900:  # longer than SQLite's own file names may be
            deep = deep / ("d" * 100)
            deep.mkdir()
        self.assertExit(run("export", self.folder / "bear.tracks.npz", "--to", "colmap", "-o", deep / "x.db"), 0)
        shutil.move(deep / "x.db", self.folder / "x.db")
        self.assertEqual(len(read_colmap(self.folder / "x.db")[0]), FRAMES)

    def test_bad_track_files(self):
        whole = (self.folder / "bear.tracks.npz").read_bytes()
        poison = {**self.arrays, "tracks": np.where(np.arange(FRAMES)[:, None] == 30, np.nan, self.arrays["tracks"])}
        (self.folder / "cut.npz").write_bytes(whole[:-100])
        (self.folder / "text.npz").write_text("tracks")
        damaged = bytearray(whole)
        damaged[400] ^= 1  # within `tracks`: only its CRC tells
        (self.folder / "damaged.npz").write_bytes(damaged)
        self.write({key: value for key, value in self.arrays.items() if key != "occluded"}, "less.npz")
        self.write(poison, "nan.npz")
        self.write({**self.arrays, "tracks": self.arrays["tracks"].astype("f8")}, "f8.npz")
        for form in ALL:
            output = self.folder / "out"
            output.write_text("before")
            names = self.names()
            for name in ("cut.npz", "text.npz", "damaged.npz", "less.npz", "nan.npz", "f8.npz", "missing.npz", ""):
                process = run("export", self.folder / name, "--to", form, "-o", output)
                self.assertExit(process, 1)
                self.assertIn(name, process.stderr)
                self.assertEqual(output.read_text(), "before")
                self.assertEqual(self.names(), names, form)
        process = run("export", self.folder / "bear.tracks.npz", "--to", "csv", "-o", self.folder / "no" / "where")
        self.assertExit(process, 1)

    def test_nothing_visible(self):
        self.write({**self.arrays, "occluded": np.ones_like(self.arrays["occluded"])})
        for form in ALL:
            process = run("export", self.folder / "bear.tracks.npz", "--to", form)
            self.assertExit(process, 1 if form in VISIBLE_ONLY else 0)
            if form in VISIBLE_ONLY:
                self.assertIn("no track is visible in any frame", process.stderr)

    def test_the_summary_tells_what_was_left_out(self):
        process = run("export", self.folder / "bear.tracks.npz", "--to", "nuke")
        self.assertIn("6 tracks as nuke", process.stdout)
        self.assertIn("1 more are visible in no frame", process.stdout)
        self.assertEqual(run("export", "-q", self.folder / "bear.tracks.npz", "--to", "nuke").stdout, "")

    def test_disk_full(self):
        for form in ALL:
            process = run("export", self.folder / "bear.tracks.npz", "--to", form, preexec_fn=limit_files)
            self.assertExit(process, 1)
            self.assertIn("File too large", process.stderr, form)
            self.assertEqual(self.names(), [b"bear.tracks.npz"], form)

    def test_memory_does_not_grow(self):
        if sanitized("tiletrack"):
            self.skipTest("a sanitizer keeps memory aside")
        self.write(make_tracks(tracks=600, frames=2000, labels=None), "long.tracks.npz")  # 19 MB as points
        self.write(make_tracks(tracks=2400, frames=2000, labels=None), "longer.tracks.npz")  # 77 MB
        for form in ("csv-wide", "cotracker", "nuke", "colmap"):
            used = [peak_kib(self.folder / name, form, self.folder / "out") for name in ("long.tracks.npz", "longer.tracks.npz")]
            self.assertLess(used[1], used[0] + 6 * 1024, (form, used))

    def written(self):
        """Bytes of what has no name yet."""
        sizes = []
        for path in self.folder.glob(".tt-*.part"):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        return sum(sizes)

    def test_interrupt_leaves_nothing(self):
        """In the middle of its work: where the machine let us come too late, with more of it."""
        for tracks in (1200, 4800, 19200):
            self.write(make_tracks(tracks=tracks, frames=2000, labels=None), "long.tracks.npz")
            before = self.names()
            process = subprocess.Popen([TILETRACK, "export", self.folder / "long.tracks.npz", "--to", "json"])
            wait_for(lambda: process.poll() is not None or self.written() > 0, "it began to write")
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda: state_of(process.pid) in "TZX", "it is stopped")
            if state_of(process.pid) == "T" and 0 < self.written() < tracks * 2000 * len("[0,0,true,0]"):
                break
            process.kill()
            process.wait()
            for name in set(self.names()) - set(before):
                (self.folder / os.fsdecode(name)).unlink()
        else:
            self.fail("it was never caught at work")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        self.assertEqual(process.wait(WAIT_S), -signal.SIGINT)
        self.assertEqual(self.names(), before)


class Jobs(DaemonFolder):
    """Formats that cannot hold a job's tracks: one frame has no frame rate, which After Effects needs."""

    def one_frame(self):
        return make_video(self.folder / "a.mkv", moved(1, 0, 0))

    def track(self, video, *formats, **options):
        return run("track", "--json", "--grid", 1, *(a for f in formats for a in ("--format", f)), video, **options)

    def test_the_others_are_written(self):
        video, old = self.one_frame(), self.folder / "a.ae.txt"
        old.write_text("old")
        process = self.track(video, "after-effects", "npz", "json")
        self.assertExit(process, 3)
        told = json.loads(process.stdout)
        self.assertEqual((told["status"], told["missing"]), ("ok", ["after-effects"]))
        self.assertEqual(told["outputs"], [str(self.folder / "a.tracks.npz"), str(self.folder / "a.tracks.json")])
        self.assertRegex(process.stderr, "warning: no after-effects: the frame rate is not known.*give --fps")
        self.assertIn("no after-effects: ", told["warnings"])
        self.assertEqual(self.names(), [b"a.ae.txt", b"a.mkv", b"a.tracks.json", b"a.tracks.npz"])
        self.assertEqual(old.read_text(), "old")
        self.assertExit(run("export", self.folder / "a.tracks.npz", "--to", "after-effects", "--fps", 25), 0)

    def test_alone_it_fails_the_video(self):
        process = self.track(self.one_frame(), "after-effects")
        self.assertExit(process, 1)
        self.assertIn("as after-effects: the frame rate is not known", process.stderr)
        self.assertEqual(json.loads(process.stdout)["status"], "bad_input")
        self.assertEqual(self.names(), [b"a.mkv"])

    def test_a_file_that_may_not_grow_fails_all_of_it(self):
        video = make_video(self.folder / "a.mkv", moved(3, 2, 1))
        process = self.track(video, "npz", "colmap", preexec_fn=lambda: limit_files(20000))  # colmap's has more
        self.assertExit(process, 1)
        self.assertIn("File too large", process.stderr)
        self.assertEqual(self.names(), [b"a.mkv"])

    def test_a_full_disk_fails_all_of_it(self):
        video, full = make_video(self.folder / "a.mkv", moved(3, 2, 1)), self.folder / "full"
        full.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20k", "tmpfs", full], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("needs to mount a small file system")
        self.addCleanup(subprocess.run, ["umount", full])
        process = run("track", "--json", "--grid", 1, "--format", "npz", "--format", "colmap", "-o", full, video)
        self.assertExit(process, 1)
        self.assertEqual(json.loads(process.stdout)["status"], "retry_later")
        self.assertIn("No space left on device", process.stderr)
        self.assertEqual(self.names(full), [])

    def start(self, *formats, **tracker):
        if not MODEL.exists():
            self.skipTest("needs models/tiletrack-small.safetensors")
        daemon = self.daemon(devices=[{"cpu": 1}], programs=BIN, tracker={"model": str(MODEL), "grid": 1, **tracker},
                             output={"formats": formats}, workers={"start_ms": 300000, "stall_ms": 200000}).start()
        shutil.copy(self.one_frame(), daemon.path("incoming", "bear.mkv"))
        return daemon

    def test_the_daemon_commits_the_others(self):
        daemon = self.start("npz", "after-effects", "csv")
        done = daemon.event("job_done")
        self.assertEqual((done["formats"], done["missing"], done["outcome"]), ("npz, csv", "after-effects", "done"))
        self.assertEqual(daemon.names("tracks"), ["bear.tracks.csv", "bear.tracks.npz"])
        self.assertEqual(daemon.names("done"), ["bear.mkv"])
        self.assertRegex(daemon.event("job_warning")["cause"], "^no after-effects: .*give --fps")

    def test_nothing_visible(self):
        daemon = self.start(*VISIBLE_ONLY, "csv-wide", occlusion_threshold=0)
        done = daemon.event("job_done")
        self.assertEqual((done["formats"], done["missing"]), ("csv-wide", ", ".join(VISIBLE_ONLY)))
        told = [event["cause"] for event in daemon.events("job_warning")]
        self.assertEqual([cause.split(":")[0] for cause in told], [f"no {form}" for form in VISIBLE_ONLY])
        for cause in told:
            self.assertRegex(cause, "no track is visible in any frame.*csv, json")
        self.assertEqual(daemon.names("tracks"), ["bear.wide.csv"])

    def test_nothing_that_can_be_made(self):
        daemon = self.start("nuke", "3de", occlusion_threshold=0)
        self.assertIn("as 3de: no track is visible", daemon.event("job_quarantined")["cause"])
        self.assertEqual((daemon.names("tracks"), daemon.names("failed")), ([], ["bear.mkv", "bear.mkv.reason.json"]))


def limit_files(size=1000):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def peak_kib(tracks, form, output):
    process = subprocess.Popen([TILETRACK, "export", "-q", tracks, "--to", form, "-o", output])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss


if __name__ == "__main__":
    main()
