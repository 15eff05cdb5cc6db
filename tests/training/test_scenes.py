"""The truth of the scenes against their pixels: around a query's surface point its texture becomes a fiducial (red grows
along one axis and green along the other, both 1/2 at the point, blue is on), everything else is black. The pixels must
say that the point is where the track says (0.05 px), and show nothing of it where the track says hidden.
Run: python3 tests/training/test_scenes.py (needs no texture pack)."""
import os
import sys
import unittest

import numpy as np
import torch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, 'models', 'training'))
import pictures
import render
import scenes
import textures as T

FRAMES, STEP = 5, 6          # the frames looked at: every sixth of a clip of a second
BARE = dict(lighting=0, dark=0, soft=0, noise=0, compression=0, letterbox=0, repeat=0, twins=0, gloss=0, blur=0)


class Dots(T.Textures):
    """Formula textures and silhouettes only, and one texture of our own (the last)."""

    def __init__(self):
        rng = np.random.default_rng(1)
        images = list(T.patterns(rng, 6)) + [np.zeros((T.SIDE, T.SIDE, 3), np.uint8)]
        covers = [np.full((T.MASK,) * 2, 255, np.uint8), np.zeros((T.MASK,) * 2, np.uint8)] + list(T.silhouettes(rng, 20))
        self.texels = np.concatenate([self.pack(i) for i in images])
        self.grain = np.stack([self.roughness(i) for i in images])
        self.cover, self.masks = np.stack(covers), np.concatenate([T.mips(c) for c in covers])
        self.photos = self.plain = np.arange(6)
        self.stamps = self.stamp_masks = np.arange(0)
        self.shapes = 2 + np.arange(20)
        self.dot = 6

    def paint(self, place, width):
        """The fiducial at `place` (0..1) on the last texture; its ramps are `width` texels long."""
        g = (np.arange(T.SIDE) + 0.5) / T.SIDE
        ramp = lambda c: ((0.5 + (g - c) * T.SIDE / width).clip(0, 1) * 255).round().astype(np.uint8)
        red, green = np.meshgrid(ramp(place[0]), ramp(place[1]))
        self.texels[-render.chain(T.SIDE):] = self.pack(np.stack([red, green, np.full_like(red, 255)], -1))


def texture_place(scene, owner, point):
    """Where a surface point is on its texture (unfolded)."""
    if owner < scenes.LAYERS:
        uv = scene['uv'][0, owner]
        return uv[:, :2] @ point[:2] + uv[:, 2] + point[2] * np.array(scenes.BACK)
    uv = scene['solid_uv'][0, owner - scenes.LAYERS]
    return uv[:, :3] @ point + uv[:, 3]


def thin(scene):
    """Every STEP-th frame of a scene."""
    for key in ('plane', 'inverse', 'phase', 'crease', 'flicker', 'footprint', 'ray', 'back', 'light', 'shine', 'tracks', 'hidden'):
        if key in scene:
            scene[key] = scene[key][:, :, ::STEP]
    for key in ('lens', 'gain', 'offset', 'gamma', 'shadow'):
        scene[key] = scene[key][:, ::STEP]


def blacken(scene, owner, dot):
    """Only the owner is lit, and wears the dot's texture."""
    scene['layer_gain'][:], scene['layer_bias'][:], scene['flicker'][:] = 0, 0, 1
    scene['gain'][:], scene['offset'][:], scene['gamma'][:] = 1, 0, 1
    if scene['solid_clips']:
        scene['solid_gain'][:], scene['solid_bias'][:], scene['light'][:] = 0, 0, 0
    if owner < scenes.LAYERS:
        scene['layer_gain'][0, owner], scene['colour'][0, owner] = 1, dot
    else:
        scene['solid_gain'][0, owner - scenes.LAYERS], scene['solid_colour'][0, owner - scenes.LAYERS] = 1, dot


class Fiducials(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.textures = Dots()

    def follow(self, recipe, solids, first, count, among):
        """Errors (px) of visible points away from edges, and light where hidden / where visible."""
        errors, lit, unlit = [], [], []
        for index in range(first, first + count):
            recipe_ = scenes.Recipe.parse({**BARE, **recipe, 'solids': float(solids)})
            self.textures.photos = np.arange(6)
            scene = scenes.draw_batch(recipe_, self.textures, 9, index, 1, (FRAMES - 1) * STEP + 1, 12)
            owners = scene['owner'][0]
            wanted = np.flatnonzero(owners >= scenes.LAYERS if solids else np.isin(owners, among))
            if not len(wanted):
                continue
            n = wanted[0]
            owner = owners[n]
            truth = scenes.Truth({k: v[0] if isinstance(v, np.ndarray) else v for k, v in scene.items()}, self.textures,
                                 scene['lens'].shape[1], scene['sub'])
            t, y, x = (np.array([v]) for v in scene['queries'][0, n].astype(float))
            _, point, _ = truth.surface(t.astype(int), x, y)
            place = texture_place(scene, owner, point[0])
            self.textures.paint(1 - np.abs(1 - np.mod(place, 2)), self.width(scene, truth, owner, t, x, y))
            blacken(scene, owner, self.textures.dot)
            renderer = render.Renderer(self.textures, 'cpu')
            self.sharpen(scene)
            thin(scene)
            video = renderer.moment(renderer.upload(scene), scene['sub'] // 2)[0].numpy()
            for f in range(FRAMES):
                at = scene['tracks'][0, n, f].astype(float)
                if (at < 8).any() or (at > 248).any():
                    continue
                red, green, blue = video[f, :, int(at[1]), int(at[0])]
                if scene['hidden'][0, n, f]:                    # another place of the same solid may be seen there
                    unlit.append(blue if max(abs(red - blue / 2), abs(green - blue / 2)) < 0.1 * blue else 0)
                else:
                    lit.append(blue)
                    errors.append(self.offset(video[f], at))
        return np.array(errors), np.array(lit), np.array(unlit)

    @staticmethod
    def width(scene, truth, owner, t, x, y):
        """Texels of about 10 pixels at the query."""
        t = np.repeat(t.astype(int), 4)
        seen, points, _ = truth.surface(t, x + np.array([-0.5, 0.5, 0, 0]), y + np.array([0, 0, -0.5, 0.5]))
        if (seen != owner).any():
            return 60.0
        at = [texture_place(scene, owner, p) for p in points]
        return max(10 * T.SIDE * np.sqrt(np.linalg.norm(at[1] - at[0]) * np.linalg.norm(at[3] - at[2])), 12.0)

    @staticmethod
    def sharpen(scene):
        """No mip levels: the dot is wide enough."""
        scene['footprint'][:] = 1e-6
        if scene['solid_clips']:
            scene['solid_lod'][:] = -20

    @staticmethod
    def offset(image, at):
        """Pixels between `at` and the point that the fiducial's colours show; nan where an edge or the end of a ramp is
        near, or the surface bends or slants too much within a pixel to tell."""

        def sample(x, y):
            x, y = x - 0.5, y - 0.5
            x0, y0 = int(np.floor(x)), int(np.floor(y))
            fx, fy = x - x0, y - y0
            c = image[:, y0:y0 + 2, x0:x0 + 2]
            return c[:, 0, 0] * (1 - fx) * (1 - fy) + c[:, 0, 1] * fx * (1 - fy) + c[:, 1, 0] * (1 - fx) * fy + c[:, 1, 1] * fx * fy

        around = np.stack([sample(at[0] + dx, at[1] + dy) for dx, dy in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))])
        blue = around[:, 2]
        if blue.min() < 0.97 * blue.max() or blue.max() < 0.2:
            return np.nan
        colour = around[:, :2] / blue[:, None]
        if colour.min() < 0.03 or colour.max() > 0.97:
            return np.nan
        slope = np.stack([colour[2] - colour[1], colour[4] - colour[3]], 1) / 2
        if np.linalg.svd(slope, compute_uv=False).min() < 0.04:
            return np.nan
        part = at - 0.5 - np.floor(at - 0.5)                    # what interpolation and the pixel's area add on a curve
        bend = np.stack([colour[1] + colour[2], colour[3] + colour[4]], 1) - 2 * colour[0][:, None]
        if np.abs(bend).max() > 0.015:
            return np.nan
        value = colour[0] - 0.5 * (bend * (part * (1 - part) + 1 / 16)).sum(1)
        return float(np.linalg.norm(np.linalg.solve(slope, value - 0.5)))

    def check(self, recipe, solids, first, count=14, among=range(1, scenes.LAYERS)):
        errors, lit, unlit = self.follow(recipe, solids, first, count, among)
        errors = errors[np.isfinite(errors)]
        print(f'{self.id().split(".")[-1]}: {len(errors)} dots, 95 % within {np.quantile(errors, 0.95):.4f} px, '
              f'lit {np.median(lit):.2f} ({(lit > 0.35).mean():.2f}), hidden {len(unlit)} '
              f'({(unlit < 0.2).mean() if len(unlit) else 1:.2f} dark)')
        self.assertGreater(len(errors), 10)
        self.assertLess(np.median(errors), 0.02)
        self.assertLess(np.quantile(errors, 0.95), 0.05)
        self.assertGreater((lit > 0.35).mean(), 0.93)
        if len(unlit) > 5:
            self.assertGreater((unlit < 0.2).mean(), 0.9)

    def test_layers(self):
        self.check(dict(limbs=0.5, cloth=0.8), 0, 100)

    def test_folds(self):
        self.check(dict(fold=1, cloth=0.8), 0, 500, count=30, among=scenes.FOLDING)

    def test_turning_solids(self):
        self.check(dict(orbit=0, creature=0, tumble=0.3, shake=0.8), 1, 200)

    def test_creatures(self):
        self.check(dict(orbit=0, creature=1), 1, 300, count=24)

    def test_orbits(self):
        self.check(dict(orbit=1), 1, 400)

    def test_fields(self):
        """Where a frame has two fields, the truth is that of the moment between them."""
        recipe = scenes.Recipe.parse({**BARE, 'solids': 0.0, 'blur': 1.0, 'interlace': 1.0, 'fast': 1.0})
        scene = scenes.draw_batch(recipe, self.textures, 9, 600, 1, 4, 40)
        self.assertTrue(scene['interlaced'].all())
        one = {k: v[0] if isinstance(v, np.ndarray) else v for k, v in scene.items()}
        renderer = render.Renderer(self.textures, 'cpu')
        video = renderer.render(scene)[0].numpy()
        takes = [renderer.finish(renderer.upload(scene), scene, renderer.moment(renderer.upload(scene), m))[0].numpy()
                 for m in range(3)]
        shown = [min(range(3), key=lambda m: np.abs(video[:, row::2].astype(int) - takes[m][:, row::2]).max()) for row in (0, 1)]
        self.assertNotEqual(*shown)
        truth = scenes.Truth(one, self.textures, 4, 3)
        q = one['queries'].astype(float)
        owner, point, _ = truth.surface(q[:, 0].astype(int), q[:, 2], q[:, 1])
        places = []
        for moment in shown:
            for key in ('plane', 'inverse', 'phase', 'crease'):
                setattr(truth, key, one[key][:, moment::3])
            places.append(truth.follow(owner, point)[0])
        seen = ~one['hidden']
        apart = np.linalg.norm(places[1] - places[0], axis=-1)[seen]
        away = np.linalg.norm((places[0] + places[1]) / 2 - one['tracks'], axis=-1)[seen]
        self.assertGreater(np.median(apart), 1)
        self.assertLess(np.median(away / apart), 0.05)

    def share(self, which, **recipe):
        scenes_ = [scenes.draw_batch(scenes.Recipe.parse({**BARE, **recipe}), self.textures, 9, 700 + i, 2, 24, 40) for i in range(6)]
        return np.mean([which(s) for s in scenes_])

    def test_more_queries_on_what_is_hard(self):
        solids = lambda s: (s['owner'][:s['solid_clips']] >= scenes.LAYERS).mean()
        again = lambda s: np.mean([scenes.seen_again(h) for h in s['hidden']])
        self.assertGreater(self.share(solids, orbit=0, solid_bias=12), 1.2 * self.share(solids, orbit=0))
        self.assertGreater(self.share(again, hidden_bias=4), 1.2 * self.share(again))

    def test_seen_again(self):
        hidden = np.array([[0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]], bool)
        self.assertEqual(scenes.seen_again(hidden).tolist(), [False, True, False, False, False, False])

    def test_pictures(self):
        """The clips to look at ask for points on what they are about."""
        legs, orbited, cloth = (pictures.draw(name)[0] for name in ('legs', 'orbited', 'cloth'))
        for scene in (legs, orbited, cloth):
            self.assertEqual(scene['queries'].shape, (1, pictures.POINTS, 3))
        self.assertTrue((legs['owner'] > scenes.LAYERS + 1).all())
        self.assertTrue(orbited['room'][0, 0] and (orbited['owner'] > scenes.LAYERS).all())
        self.assertGreater((cloth['owner'] > 0).sum(), pictures.POINTS / 2)

    def test_repeatable(self):
        a, b = (scenes.draw_batch(scenes.Recipe(), self.textures, 5, 3, 2, 6, 8) for _ in range(2))
        for key in a:
            np.testing.assert_array_equal(a[key], b[key], key)


if __name__ == '__main__':
    unittest.main()
