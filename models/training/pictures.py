"""Clips to look at: four things that are hard, in surfaces painted by formulas (nobody's pictures), each with query points
on the thing itself (of the cloth also beside it): NAME/%03d.png, NAME.queries.csv and NAME.truth.npz as evaluate.py writes them. models/CARD.md shows what
became of them. Training has not seen these surfaces.
"""
import cv2
import numpy as np

import evaluate
from render import Renderer
from scenes import LAYERS, Recipe, draw_batch
from textures import MASK, SIDE, Textures, mips, patterns, silhouettes

FRAMES, POINTS = 47, 36
CALM = dict(fast=0, lighting=0.3, dark=0, noise=0.3, compression=0, letterbox=0, blur=0, repeat=0, twins=0, small=0, soft=0,
            squeeze=0)
# name: (clip, recipe, whether flat layers are there, whose query points)
CLIPS = {
    'legs': (5, dict(solids=1, orbit=0, creature=1, plain=0, solid_bias=200), False, lambda owner: owner > LAYERS + 1),
    'turning': (2, dict(solids=1, orbit=0, creature=0, tumble=0, plain=0, solid_bias=200), False, lambda owner: owner >= LAYERS),
    'orbited': (4, dict(solids=1, orbit=1, plain=0, solid_bias=200), False, lambda owner: owner > LAYERS),
    'cloth': (6, dict(solids=0, cloth=1, fold=0, limbs=0, plain=1, texture_bias=0), True, lambda owner: owner < LAYERS),
}


class Painted(Textures):
    """Blotches of many sizes for photographs, faint clouds for plain surfaces; no stamps."""

    def __init__(self, layers):
        rng = np.random.default_rng(3)
        images = [blotches(rng) for _ in range(24)] + [p for i, p in enumerate(patterns(rng, 18)) if i % 3 < 2]
        covers = [np.full((MASK, MASK), 255, np.uint8), np.zeros((MASK, MASK), np.uint8), *silhouettes(rng, 40)]
        self.texels = np.concatenate([self.pack(i) for i in images])
        self.grain = np.stack([self.roughness(i) for i in images])
        self.cover, self.masks = np.stack(covers), np.concatenate([mips(c) for c in covers])
        self.photos, self.plain = np.arange(24), np.arange(24, len(images))
        self.stamps = self.stamp_masks = np.arange(0)
        self.shapes = np.arange(2, len(covers)) if layers else np.array([self.EMPTY])


def blotches(rng):
    colours = rng.uniform(20, 235, (2, 3))
    image = np.broadcast_to(rng.uniform(40, 215, 3), (SIDE, SIDE, 3))
    for cells in (4, 9, 20, 45, 90):
        hills = cv2.resize(rng.normal(size=(cells, cells)).astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        share = (0.5 + 0.3 * rng.random()) / (1 + np.exp(-12 * (hills - 0.4)))[..., None]
        image = image * (1 - share) + colours[rng.integers(2)] * rng.uniform(0.5, 1.1, 3) * share
    return image.clip(0, 255).astype(np.uint8)


def draw(name):
    """A clip's scene, with POINTS query points on what it is about, and its textures."""
    index, recipe, layers, wanted = CLIPS[name]
    textures = Painted(layers)
    scene = draw_batch(Recipe(**{**CALM, **recipe}), textures, 31, index, 1, FRAMES, 8 * POINTS)
    kept = np.flatnonzero(wanted(scene['owner'][0]))[:POINTS]
    return {**scene, **{key: scene[key][:, kept] for key in ('queries', 'tracks', 'hidden', 'owner')}}, textures


def write(folder, device):
    for name in CLIPS:
        scene, textures = draw(name)
        evaluate.write_clip(folder, name, Renderer(textures, device).render(scene)[0].cpu().numpy(), scene)
