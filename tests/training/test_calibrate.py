"""The map of confidences: fitted on numbers whose calibration is known, stored, and used by the real program.
Run: python3 tests/training/test_calibrate.py"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np

SOURCE = pathlib.Path(os.environ.get('TILETRACK_SOURCE', pathlib.Path(__file__).resolve().parents[2]))
BIN = pathlib.Path(os.environ.get('TILETRACK_BIN', SOURCE / 'build/bin'))
WEIGHTS = SOURCE / 'models/tiletrack-small.safetensors'
sys.path.insert(0, str(SOURCE / 'models/training'))
import calibrate


def overconfident(seed, n=40000):
    """Raw confidences whose logits are twice as far from 0 as the truth's, and 0.5 too high."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0.5, 2, n)
    return 1 / (1 + np.exp(-(2 * true + 0.5))), rng.random(n) < 1 / (1 + np.exp(-true))


class Fit(unittest.TestCase):
    def test_fitted_on_some_right_on_others(self):
        knots = calibrate.fit(*overconfident(1))
        raw, good = overconfident(2)
        self.assertGreater(calibrate.reliability(raw, good)[0], 0.08)
        self.assertLess(calibrate.reliability(calibrate.apply(knots, raw), good)[0], 0.015)

    def test_monotone_even_where_the_data_is_not(self):
        raw, good = overconfident(3, 3000)
        knots = np.array(calibrate.fit(raw, np.where((raw > 0.4) & (raw < 0.6), ~good, good)))
        self.assertTrue((np.diff(knots, axis=0) > 0).all(), knots)
        self.assertTrue((np.diff(calibrate.apply(knots, np.linspace(0, 1, 999))) >= 0).all())

    def test_says_nothing(self):
        with self.assertRaises(ValueError):
            calibrate.fit(np.linspace(0.1, 0.9, 1000), np.arange(1000) < 500)      # the less sure the better

    def test_inverse(self):
        knots, raw = [(-2, -3), (0, 0.5), (4, 1.5)], np.linspace(0.01, 0.99, 99)
        np.testing.assert_allclose(calibrate.inverse(knots, calibrate.apply(knots, raw)), raw, atol=1e-9)

    def test_error_of_a_known_diagram(self):
        error, rows = calibrate.reliability(np.repeat([0.25, 0.95], 100), np.arange(200) % 2 == 0)
        self.assertAlmostEqual(error, (0.25 + 0.45) / 2)
        self.assertEqual([r[:2] for r in rows], [(0.2, 100), (0.9, 100)])


class Program(unittest.TestCase):
    KNOTS = [[-4.0, -1.0], [0.0, 0.25], [5.0, 2.0]]

    @classmethod
    def setUpClass(cls):
        if not (BIN / 'tiletrack').exists():
            raise unittest.SkipTest(f'{BIN}/tiletrack was not built')
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.folder.name)
        subprocess.run(['ffmpeg', '-v', 'error', '-f', 'lavfi', '-i', 'testsrc2=size=128x96:rate=6:duration=2', '-c:v', 'ffv1',
                        cls.path / 'clip.mkv'], check=True, stdin=subprocess.DEVNULL)
        shutil.copy(WEIGHTS, cls.path / 'raw.safetensors')
        calibrate.write_map(cls.path / 'raw.safetensors', None)
        shutil.copy(cls.path / 'raw.safetensors', cls.path / 'mapped.safetensors')
        calibrate.write_map(cls.path / 'mapped.safetensors', cls.KNOTS)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def track(self, name):
        result = self.path / f'{name}.npz'
        done = subprocess.run([BIN / 'tiletrack', 'track', '--device', 'cpu', '--quiet', '--model', self.path / f'{name}.safetensors',
                               '--grid', '6', '-o', result, self.path / 'clip.mkv'], stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True)
        return done, result

    def test_only_the_confidence_changes(self):
        files = {}
        for name in 'raw', 'mapped':
            done, result = self.track(name)
            self.assertEqual(done.returncode, 0, done.stderr)
            files[name] = dict(np.load(result))
        raw, mapped = files['raw'], files['mapped']
        for key in 'tracks', 'occluded', 'query_points', 'time_s':
            np.testing.assert_array_equal(raw[key], mapped[key], key)
        self.assertGreater(np.ptp(raw['confidence']), 0.3)
        np.testing.assert_allclose(mapped['confidence'], calibrate.apply(self.KNOTS, raw['confidence']), atol=2e-5)
        self.assertGreater(np.abs(mapped['confidence'] - raw['confidence']).max(), 0.05)
        least = float(np.median(mapped['confidence']))
        for key, file in files.items():                                             # exports use what the file says
            out = self.path / f'{key}.csv'
            subprocess.run([BIN / 'tiletrack', 'export', self.path / f'{key}.npz', '--to', 'csv', '--min-confidence',
                            str(least), '--only-visible', '-o', out], check=True, stdin=subprocess.DEVNULL)
            shown = len(out.read_text().splitlines()) - 1
            self.assertEqual(shown, int((~file['occluded'] & (file['confidence'] >= np.float32(least))).sum()))

    def test_a_hostile_map_is_refused(self):
        header, data = calibrate.read(self.path / 'raw.safetensors')
        for text, because in (('[[0,1],[1,0]]', 'not monotone'), ('[[0,0],[1,NaN]]', 'not JSON'), ('[[0,0]]', '2 to 64'),
                              (json.dumps([[i, i] for i in np.linspace(-9, 9, 65)]), '2 to 64')):
            header['__metadata__'][calibrate.KEY] = text
            head = json.dumps(header).encode()
            (self.path / 'bad.safetensors').write_bytes(len(head).to_bytes(8, 'little') + head + data)
            done, result = self.track('bad')
            self.assertNotEqual(done.returncode, 0, text)
            self.assertIn('confidence_map', done.stderr)
            self.assertIn(because, done.stderr)
            self.assertFalse(result.exists())


class Files(unittest.TestCase):
    def test_tensors_stay(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'w.safetensors')
            shutil.copy(WEIGHTS, path)
            before = calibrate.read(path)
            calibrate.write_map(path, [(-1, -2), (1, 0.5)])
            header, data = calibrate.read(path)
            self.assertEqual(calibrate.read_map(path), [[-1, -2], [1, 0.5]])
            self.assertEqual(data, before[1])
            header['__metadata__'].pop(calibrate.KEY)
            before[0]['__metadata__'].pop(calibrate.KEY, None)
            self.assertEqual(header, before[0])
            calibrate.write_map(path, None)
            self.assertIsNone(calibrate.read_map(path))
            with self.assertRaises(ValueError):
                calibrate.write_map(path, [(0, float('nan')), (1, 1)])


if __name__ == '__main__':
    unittest.main()
