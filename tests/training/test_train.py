"""The learning rate of a sitting, and what a sitting leaves behind when it is told to end. Run: python3 tests/training/test_train.py"""
import json
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, 'models', 'training'))
import torch
import train


class Huber(unittest.TestCase):
    def test_knees(self):
        away = torch.tensor([0.0, 0.3, 1.0, 2.5, 4.0, 9.0], requires_grad=True)
        torch.testing.assert_close(train.huber(away, 4.0), 0.05 * torch.nn.functional.huber_loss(
            away, torch.zeros(6), reduction='none', delta=4.0))
        near, = torch.autograd.grad(train.huber(away, 1.0).sum(), away)
        torch.testing.assert_close(near, 0.2 * away.detach().clamp(max=1.0))


class Rate(unittest.TestCase):
    def config(self, **given):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'c.json')
            with open(path, 'w') as f:
                json.dump(given, f)
            return train.read_config(path)

    def test_one_cosine_over_all_sittings(self):
        c = self.config(peak_rate=1e-3, total_seconds=1000)
        self.assertAlmostEqual(train.rate_at(c, 0, 0.9, 999, 200), 1e-3)
        self.assertAlmostEqual(train.rate_at(c, 500, 0.0, 999, 200), 1e-3 * (0.005 + 0.995 / 2))
        self.assertAlmostEqual(train.rate_at(c, 5000, 0.0, 999, 200), 5e-6)

    def test_one_cosine_over_this_sitting(self):
        c = self.config(peak_rate=1e-3, total_seconds=1000, sitting_rate=2e-4)
        self.assertAlmostEqual(train.rate_at(c, 5000, 0.0, 999, 200), 2e-4)
        self.assertAlmostEqual(train.rate_at(c, 0, 0.5, 999, 200), 2e-4 * (0.005 + 0.995 / 2))
        self.assertAlmostEqual(train.rate_at(c, 0, 1.0, 999, 200), 1e-6)
        self.assertAlmostEqual(train.rate_at(c, 0, 1.3, 999, 200), 1e-6)

    def test_ramp(self):
        c = self.config(sitting_rate=2e-4)
        self.assertAlmostEqual(train.rate_at(c, 0, 0.0, 0, 200), 1e-6)
        self.assertAlmostEqual(train.rate_at(c, 0, 0.0, 99, 200), 1e-4)

    def test_the_published_configuration(self):
        c = train.read_config(os.path.join(ROOT, 'models', 'training', 'small.json'))
        self.assertEqual((c['batch'], c['frames'], c['queries']), (4, 48, 128))
        self.assertEqual(set(c['recipe']), set(train.Recipe.__dataclass_fields__))

    def test_unknown_entry(self):
        with self.assertRaisesRegex(ValueError, 'siting_rate'):
            self.config(siting_rate=1)


if __name__ == '__main__':
    unittest.main()
