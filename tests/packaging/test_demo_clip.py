#!/usr/bin/python3
"""The demo clip is what its generator says it is, and its truth is exact.

Three independent ways: a frame rendered again equals the committed clip's within the codec's error and without a shift; a
dot painted on a body at the query's point has its centroid at the truth (ray casting against projection); the committed
points are those that the generator gives."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
CLIP = SOURCE / "packaging/demo-clip"
sys.path.insert(0, str(CLIP))
import points  # noqa: E402
import render  # noqa: E402
import scene  # noqa: E402

FRAMES = (0, 57)


def luma(picture):
    return picture.astype(float) @ (0.2126, 0.7152, 0.0722)


def shift_between(a, b):
    """The translation (dx, dy) that takes picture a to picture b, by least squares over the whole picture."""
    gy, gx = np.gradient(a)
    inner = (slice(4, -4), slice(4, -4))
    system = np.stack([gx[inner].ravel(), gy[inner].ravel()], 1)
    return -np.linalg.lstsq(system, (b - a)[inner].ravel(), rcond=None)[0]


class DemoClip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.world = scene.Scene()
        cls.truth = points.load(CLIP / "demo.truth.npz")

    def test_committed_frames_are_the_rendered_ones(self):
        committed = points.read_frames(CLIP / "demo.mp4", FRAMES, (scene.WIDTH, scene.HEIGHT))
        for number, frame in zip(FRAMES, committed):
            ours = self.world.render(number)
            error = np.sqrt(((frame.astype(float) - ours) ** 2).mean())
            self.assertLess(20 * np.log10(error / 255), -30, f"frame {number}: less than 30 dB")
            shift = shift_between(luma(ours), luma(frame))
            self.assertLess(np.abs(shift).max(), 0.02, f"frame {number} is shifted by {shift} px")

    def test_a_shift_would_be_seen(self):
        ours = luma(self.world.render(30))
        self.assertGreater(shift_between(ours, (ours + np.roll(ours, 1, 1)) / 2)[0], 0.4)

    def test_size_and_length(self):
        self.assertLess((CLIP / "demo.mp4").stat().st_size, 1_000_000)
        count = subprocess.run(
            ["ffprobe", "-v", "error", "-count_frames", "-select_streams", "v", "-show_entries", "stream=nb_read_frames",
             "-of", "csv=p=0", CLIP / "demo.mp4"], check=True, stdout=subprocess.PIPE, text=True).stdout  # fmt: skip
        self.assertEqual(int(count.strip().strip(",")), scene.FRAMES)
        self.assertEqual(self.truth["tracks"].shape[1], scene.FRAMES)

    def test_the_generator_gives_the_committed_points(self):
        with tempfile.TemporaryDirectory() as folder:
            render.write_points(self.world, pathlib.Path(folder))
            ours = points.load(pathlib.Path(folder) / "demo.truth.npz")
            text = (pathlib.Path(folder) / "demo.queries.csv").read_text()
        self.assertEqual(text, (CLIP / "demo.queries.csv").read_text())
        for name in ("query_points", "labels", "frame_size"):
            np.testing.assert_array_equal(ours[name], self.truth[name])
        np.testing.assert_allclose(ours["tracks"], self.truth["tracks"], atol=1e-3)
        self.assertLess((ours["occluded"] != self.truth["occluded"]).sum(), 3)

    def test_every_track_passes_through_its_query(self):
        for i, (frame, y, x) in enumerate(self.truth["query_points"]):
            np.testing.assert_allclose(self.truth["tracks"][i, int(frame)], (x, y), atol=1e-4)
            self.assertFalse(self.truth["occluded"][i, int(frame)])

    def test_every_body_has_visible_and_hidden_points(self):
        bodies = {label.rsplit("-", 1)[0] for label in self.truth["labels"]}
        self.assertEqual(bodies, {body.name for body in self.world.bodies})
        self.assertGreater(self.truth["occluded"].mean(), 0.2)
        self.assertLess(self.truth["occluded"].mean(), 0.6)

    def test_fiducials(self):
        """A dot painted around each query's point, seen through the ray caster: its centroid is the truth. Where an edge
        or another body comes within 4 px the dot would be cut, so those frames do not count; a point that the truth calls
        hidden shows no dot."""
        queries = render.choose(self.world)
        step = (np.arange(160) + 0.5) / 10 - 8
        dx, dy = (grid.ravel() for grid in np.meshgrid(step, step))
        around = np.arange(8) * np.pi / 4
        compared, worst = 0, 0.0
        for frame in range(3, scene.FRAMES, 12):
            for i, (*_, number, local) in enumerate(queries):
                x, y = self.truth["tracks"][i, frame].astype(float)
                hit, _, point, _ = self.world.cast(frame, x + dx, y + dy)
                _, _, depth = self.world.project(frame, number, local)
                radius = 1.5 * depth / self.world.camera(frame)[2]
                dot = (hit == number) & (np.linalg.norm(point - local, axis=-1) < radius)
                inside = 0 <= x < scene.WIDTH and 0 <= y < scene.HEIGHT
                if self.truth["occluded"][i, frame]:
                    nearest = np.hypot(dx, dy)[dot].min(initial=9)
                    self.assertTrue(not inside or nearest > 0.02, f"{queries[i][3]} is visible in frame {frame}")
                    continue
                self.assertTrue(inside and dot.any(), f"{queries[i][3]} is hidden in frame {frame}")
                ring, _, _, turned = self.world.cast(frame, x + 4 * np.cos(around), y + 4 * np.sin(around))
                _, _, _, straight = self.world.cast(frame, np.array([x]), np.array([y]))
                if (ring == number).all() and (turned @ straight[0] > 0.95).all():
                    off = np.hypot(dx[dot].mean(), dy[dot].mean())
                    worst, compared = max(worst, off), compared + 1
        print(f"{compared} dots, the farthest centroid {worst:.3f} px from the truth")
        self.assertGreater(compared, 150)
        self.assertLess(worst, 0.05)


if __name__ == "__main__":
    unittest.main(verbosity=2)
