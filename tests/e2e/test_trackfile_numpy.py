#!/usr/bin/python3
"""Track files as their users read them: NumPy without pickle, csv, json. Every value of every array is computed again.

The files come from the unit tests' programs (test_trackfile --write DIRECTORY, test_zip64 --write FILE).
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest
import zipfile

try:
    import numpy as np
except ImportError:
    print("skipped: no NumPy")
    sys.exit(77)

TESTS = os.path.join(os.path.dirname(os.environ["TILETRACK_BIN"]), "tests")
FRAMES, WIDTH, HEIGHT = 300, 333, 517
POINTS = np.array([[2, 2.2, 1.1], [0, 0, 333], [1, 516.9, 0.1]], np.float32)  # t, y, x
LABELS = ["left ear", "", '\u00e9\u2603\U0001f43b, "so"']
META = '{"program": "tiletrack", "name": "b\u00e4r"}'


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def expected():
    """tracks, confidence in float64, but for the query frames, which are exact."""
    q, t = np.arange(3.0)[:, None], np.arange(float(FRAMES))[None, :]
    tracks = np.stack([(10 + 3 * q + t / 4) * WIDTH / 256, (200 - q - t / 2) * HEIGHT / 256], axis=-1)
    confidence = sigmoid((t - q) / 4) * sigmoid((2 * q - t) / 8)  # 1 - sigmoid(x) is sigmoid(-x)
    for query, (frame, y, x) in enumerate(POINTS):
        tracks[query, int(frame)] = x, y
    return tracks, confidence


def check(test, tracks, occluded, confidence):
    """Values of any of the formats against the expected ones."""
    wanted_tracks, wanted_confidence = expected()
    np.testing.assert_allclose(tracks, wanted_tracks, rtol=3e-7)
    np.testing.assert_allclose(confidence, wanted_confidence, rtol=3e-7, atol=1e-30)
    np.testing.assert_array_equal(occluded, np.float32(1) - confidence > np.float32(0.5))
    for query, (frame, y, x) in enumerate(POINTS):
        test.assertEqual(tuple(tracks[query, int(frame)]), (x, y))


class TrackFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        subprocess.run([os.path.join(TESTS, "test_trackfile"), "--write", cls.directory.name], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def load(self, name):
        with np.load(self.path(name), allow_pickle=False) as arrays:
            return dict(arrays)

    def check_npz(self, arrays):
        types = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
        if "labels" in types:
            self.assertEqual(types.pop("labels"), ("<U%d" % max(map(len, LABELS)), (3,)))
        self.assertEqual(
            types,
            {
                "tracks": ("<f4", (3, FRAMES, 2)),
                "occluded": ("|b1", (3, FRAMES)),
                "confidence": ("<f4", (3, FRAMES)),
                "query_points": ("<f4", (3, 3)),
                "time_s": ("<f8", (FRAMES,)),
                "frame_size": ("<i4", (2,)),
                "meta": ("<U%d" % len(META), ()),
            },
        )
        check(self, arrays["tracks"], arrays["occluded"], arrays["confidence"])
        np.testing.assert_array_equal(arrays["query_points"], POINTS)
        np.testing.assert_array_equal(arrays["time_s"], 0.1 + np.arange(FRAMES) / 30)
        np.testing.assert_array_equal(arrays["frame_size"], [WIDTH, HEIGHT])
        self.assertEqual(str(arrays["meta"]), META)
        json.loads(str(arrays["meta"]))

    def test_npz(self):
        arrays = self.load("plain.tracks.npz")
        self.assertNotIn("labels", arrays)
        self.check_npz(arrays)

    def test_npz_with_labels(self):
        arrays = self.load("labelled.tracks.npz")
        self.assertEqual(list(arrays["labels"]), LABELS)
        self.check_npz(arrays)

    def read(self, name):
        """Reads a file with our reader; returns its exit code and text."""
        process = subprocess.run([os.path.join(TESTS, "test_trackfile"), "--read", self.path(name)],
                                 stdout=subprocess.PIPE, text=True)
        return process.returncode, process.stdout.strip()

    def test_our_reader_takes_what_numpy_saved(self):
        arrays = self.load("labelled.tracks.npz")
        np.savez(self.path("again.npz"), **arrays)
        np.savez_compressed(self.path("small.npz"), more=np.zeros(3), **arrays)
        for name in ("labelled.tracks.npz", "again.npz", "small.npz"):
            self.assertEqual(self.read(name), (0, ""))
        arrays["labels"] = np.array(["a", None, "c"], object)
        np.savez(self.path("pickled.npz"), **arrays)
        code, text = self.read("pickled.npz")
        self.assertEqual(code, 1)  # TT_BAD_INPUT
        self.assertIn("labels.npy", text)

    def test_npz_is_sound_ordered_and_stored(self):
        names = ["tracks", "occluded", "confidence", "query_points", "time_s", "frame_size", "meta", "labels"]
        with zipfile.ZipFile(self.path("labelled.tracks.npz")) as archive:
            self.assertIsNone(archive.testzip())
            self.assertEqual([member.filename for member in archive.infolist()], [name + ".npy" for name in names])
            for member in archive.infolist():
                self.assertEqual(member.compress_type, zipfile.ZIP_STORED)
                self.assertEqual(member.date_time, (1980, 1, 1, 0, 0, 0))

    def check_csv(self, name, labelled):
        with open(self.path(name), newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        columns = "query frame time_s x y occluded confidence".split()
        if labelled:
            columns.insert(1, "label")
            self.assertEqual([row["label"] for row in rows], [label for label in LABELS for _ in range(FRAMES)])
        self.assertEqual(list(rows[0]), columns)
        self.assertEqual([int(row["query"]) for row in rows], [q for q in range(3) for _ in range(FRAMES)])
        self.assertEqual([int(row["frame"]) for row in rows], 3 * list(range(FRAMES)))
        self.assertEqual([float(row["time_s"]) for row in rows], 3 * list(0.1 + np.arange(FRAMES) / 30))
        self.assertLessEqual({row["occluded"] for row in rows}, {"0", "1"})
        values = np.array([[row["x"], row["y"]] for row in rows], np.float32).reshape(3, FRAMES, 2)
        confidence = np.array([row["confidence"] for row in rows], np.float32).reshape(3, FRAMES)
        occluded = np.array([row["occluded"] == "1" for row in rows]).reshape(3, FRAMES)
        check(self, values, occluded, confidence)
        arrays = self.load("plain.tracks.npz")
        np.testing.assert_array_equal(values, arrays["tracks"])  # the same floats in every format
        np.testing.assert_array_equal(confidence, arrays["confidence"])

    def test_csv(self):
        self.check_csv("plain.tracks.csv", False)
        self.check_csv("labelled.tracks.csv", True)

    def check_jsonl(self, name, labelled):
        arrays = self.load("plain.tracks.npz")
        with open(self.path(name), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual(len(lines), 3)
        for query, line in enumerate(lines):
            self.assertEqual(line["query"], query)
            self.assertEqual(line.get("label"), LABELS[query] if labelled else None)
            self.assertEqual([np.float32(line[key]) for key in ("frame", "y", "x")], list(POINTS[query]))
            self.assertEqual(line["frame_size"], [WIDTH, HEIGHT])
            np.testing.assert_array_equal(line["time_s"], arrays["time_s"])
            np.testing.assert_array_equal(np.array(line["tracks"], np.float32), arrays["tracks"][query])
            np.testing.assert_array_equal(np.array(line["occluded"]), arrays["occluded"][query])
            np.testing.assert_array_equal(np.array(line["confidence"], np.float32), arrays["confidence"][query])

    def test_jsonl(self):
        self.check_jsonl("plain.tracks.jsonl", False)
        self.check_jsonl("labelled.tracks.jsonl", True)

    def test_beyond_4_gib(self):
        path = self.path("big.npz")
        subprocess.run([os.path.join(TESTS, "test_zip64"), "--write", path], check=True)
        with np.load(path, allow_pickle=False) as arrays:  # what lies behind 4 GiB
            self.assertEqual(arrays["query_points"].shape, (33, 3))
            self.assertEqual(list(arrays["query_points"][-1]), [(1 << 24) - 1, 4, 3])
            self.assertEqual(list(arrays["frame_size"]), [640, 480])
            self.assertEqual(str(arrays["meta"]), "{}")
        with zipfile.ZipFile(path) as archive, archive.open("tracks.npy") as member:
            self.assertEqual(np.lib.format.read_magic(member), (1, 0))
            header = np.lib.format.read_array_header_1_0(member)
            self.assertEqual(header, ((33, 1 << 24, 2), False, np.dtype("<f4")))
            self.assertGreater(archive.getinfo("tracks.npy").file_size, 1 << 32)
            self.assertGreater(archive.getinfo("meta.npy").header_offset, 1 << 32)
        os.unlink(path)


if __name__ == "__main__":
    unittest.main()
