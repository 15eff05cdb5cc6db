"""Synthetic scenes with exact tracks: what is in a clip, where it moves, and where every query point is.

A scene is a pure function of (seed, index): numpy on the CPU draws all its parameters and works out the truth; render.py
turns the parameters into pixels. So a training run's generator state is one number, worker processes can draw ahead, and
the truth can be tested without a GPU.

A clip is painted in this order: a background and SPLIT-1 flat layers, the solids, then LAYERS-SPLIT flat layers before
them. A layer is a textured plane patch with a silhouette, a homography a frame, and a waving deformation; layers may hang
on one another as limbs, and two of them may be folded over along a moving crease. Solids are ellipsoids, cylinders and boxes (a room is a box seen from inside), depth-tested
against one another; they turn, tumble, walk as jointed bodies, or are orbited by the camera.

Coordinates: camera x right, y down, z forward; pixels are raster (the centre of the first one is 0.5,0.5); a layer's or a
solid's own coordinates run from -1 to 1. Time is in seconds, 24 frames a second.
"""
import dataclasses
import json
import math

import numpy as np

SIZE = 256
FOCAL = 256.0
LAYERS = 8              # the background is layer 0
SPLIT = 5               # layers painted before the solids
SOLIDS = 7
WAVES = 3
FOLDING = (3, 6)        # the layers that a crease may cross
BACK = (0.37, 0.21)     # how far the picture on a layer's back lies from that of its front, in the texture's units
FAR = 3.0               # depth of the background


@dataclasses.dataclass
class Recipe:
    """Probabilities, one a switch: 0 turns an effect off. The whole recipe is stored in every checkpoint."""
    solids: float = 0.5             # share of clips with solids (exact within a batch)
    orbit: float = 0.3              # of these: a room with objects, seen from an orbiting camera
    creature: float = 0.25          # of these: a jointed walking body
    tumble: float = 0.2             # of these: several bodies apart; the rest are one turning object
    gloss: float = 0.3              # solids with a moving highlight
    limbs: float = 0.25             # flat layers hanging on others by joints
    occluder: float = 0.25          # a large layer that stays before the scene
    small: float = 0.3              # small layers and solids
    tiny: float = 0.1               # share of clips whose layers are all specks of 8 to 25 pixels
    cloth: float = 0.45             # waving layers
    fold: float = 0.3               # of the layers that can: folded over, front on front, along a moving crease
    plain: float = 0.10             # nearly textureless layers and solids
    repeat: float = 0.12            # textures repeated many times
    twins: float = 0.12             # several layers with the same texture and silhouette
    fast: float = 0.15              # fast motion
    shake: float = 0.3              # camera shake
    zoom: float = 0.3               # focal length changes
    spin: float = 0.3               # layers that turn far in their plane
    still: float = 0.2              # camera at rest
    squeeze: float = 0.35           # a wide film squeezed into the square
    blur: float = 0.15              # share of batches filmed with a long shutter
    interlace: float = 0.2          # of these: two fields
    lighting: float = 0.6           # changes of exposure and colour, shadows
    dark: float = 0.08              # low light: dark and noisy
    soft: float = 0.45              # out of focus, or enlarged from fewer pixels
    noise: float = 0.6
    compression: float = 0.35       # 8x8 transform coding
    letterbox: float = 0.08
    aim: float = 0.4                # share of query candidates drawn on a layer of any size, not on a pixel of the frame
    texture_bias: float = 0.7       # how much queries prefer texture (0: not at all)
    solid_bias: float = 4.0         # how much they prefer solids to the background (layers: 4)
    hidden_bias: float = 1.0        # how much they prefer points that are hidden and seen again

    @staticmethod
    def parse(entries):
        names = {f.name for f in dataclasses.fields(Recipe)}
        unknown = set(entries) - names
        if unknown:
            raise ValueError(f'unknown switches: {sorted(unknown)}')
        return Recipe(**entries)

    def text(self):
        return json.dumps(dataclasses.asdict(self))


# ------------------------------------------------------------------------------------------------- small tools

def log_uniform(rng, low, high, size=None):
    return np.exp(rng.uniform(math.log(low), math.log(high), size))


def path(rng, times, shape=(), fastest=1.5):
    """Smooth random functions of time, about unit size, zero at a random moment: shape + (F,)."""
    waves = 3
    f = rng.uniform(0.08, fastest, shape + (waves, 1))
    phase = rng.uniform(0, 2 * math.pi, shape + (waves, 1))
    a = rng.uniform(0.3, 1, shape + (waves, 1)) / (0.6 + f)
    zero = rng.uniform(0.1, 0.9, shape + (1,)) * times[-1]
    moving = (a * np.sin(2 * math.pi * f * times + phase)).sum(-2)
    start = (a[..., 0] * np.sin(2 * math.pi * f[..., 0] * zero + phase[..., 0])).sum(-1, keepdims=True)
    return moving - start + rng.uniform(-0.8, 0.8, shape + (1,)) * (times - zero)


def matrix(*rows):
    return np.stack([np.stack(np.broadcast_arrays(*row), -1) for row in rows], -2)


def rotation(yaw, pitch, roll):
    cy, sy, cp, sp, cr, sr = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch), np.cos(roll), np.sin(roll)
    zero, one = np.zeros_like(cy), np.ones_like(cy)
    turn = matrix((cy, zero, sy), (zero, one, zero), (-sy, zero, cy))
    nod = matrix((one, zero, zero), (zero, cp, -sp), (zero, sp, cp))
    return turn @ nod @ matrix((cr, -sr, zero), (sr, cr, zero), (zero, zero, one))


def about(axis, angle):
    """Rotations about one axis: axis [3], angle [F] -> [F,3,3]."""
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle)[:, None, None] * cross + (1 - np.cos(angle))[:, None, None] * (cross @ cross)


def any_rotation(rng):
    q = rng.normal(size=4)
    w, x, y, z = q / np.linalg.norm(q)
    return np.array([[1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
                     [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
                     [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)]])


# ------------------------------------------------------------------------------------------------------ camera

@dataclasses.dataclass
class Camera:
    turn: np.ndarray        # [F,3,3] and
    shift: np.ndarray       # [F,3]: a point of the scene p is at turn@p + shift before the camera
    lens: np.ndarray        # [F,3,3] camera -> pixels


def film_camera(rng, recipe, times):
    F = len(times)
    moving = float(rng.random() >= recipe.still)
    shake = float(rng.random() < recipe.shake) * moving
    quick = lambda size: path(rng, times, fastest=9) * size * shake
    yaw = path(rng, times) * rng.uniform(0, 0.12) * moving + quick(0.012)
    pitch = path(rng, times) * rng.uniform(0, 0.09) * moving + quick(0.012)
    roll = path(rng, times) * (rng.uniform(0, 0.7) if rng.random() < 0.25 else rng.uniform(0, 0.12)) * moving
    reach = log_uniform(rng, 2, 110 if rng.random() < recipe.fast else 60) * moving * FAR / FOCAL
    shift = np.stack([path(rng, times) * reach * rng.uniform(0.2, 1), path(rng, times) * reach * rng.uniform(0.2, 0.8),
                      np.clip(path(rng, times) * rng.uniform(0, 0.55) * moving, -0.55, 1.2)], -1)
    return Camera(rotation(yaw, pitch, roll + quick(0.012)), shift, lenses(rng, recipe, times))


def lenses(rng, recipe, times):
    F = len(times)
    focal = np.full(F, FOCAL)
    if rng.random() < recipe.zoom:
        focal = focal * np.exp(np.clip(path(rng, times) * rng.uniform(0.05, 0.45), -0.6, 0.7))
    wide = rng.uniform(0.55, 1) if rng.random() < recipe.squeeze else 1.0
    tall = 1.0
    if rng.random() < 0.15:
        wide, tall = tall, wide
    zero, one, half = np.zeros(F), np.ones(F), np.full(F, SIZE / 2)
    return matrix((focal * wide, zero, half), (zero, focal * tall, half), (zero, zero, one))


def orbit_camera(rng, recipe, times, distance):
    """Round the point (0,0,distance), looking at it; up to 150 degrees in two seconds."""
    angle = rng.choice([-1, 1]) * rng.uniform(0.15, 1.3) * (times - times[-1] * rng.random())
    angle = angle + path(rng, times) * 0.15
    height = rng.uniform(0.05, 0.5) + path(rng, times) * rng.uniform(0, 0.15)
    shake = 0.012 * float(rng.random() < recipe.shake)
    turn = rotation(angle + path(rng, times, fastest=9) * shake * 0.3, np.zeros_like(angle), np.zeros_like(angle))
    nod = rotation(path(rng, times, fastest=9) * shake, height + path(rng, times, fastest=9) * shake,
                   path(rng, times) * 0.05)
    turn = nod @ turn
    away = distance * np.exp(path(rng, times) * rng.uniform(0, 0.2))
    centre = np.array([0, 0, distance])
    shift = np.stack([path(rng, times) * 0.1, path(rng, times) * 0.1, away], -1) - turn @ centre
    return Camera(turn, shift, lenses(rng, recipe, times))


# ------------------------------------------------------------------------------------------------------ layers

def layer_planes(rng, specks, recipe, times, camera):
    """The planes of all layers: [LAYERS,F,3,3], (u,v,1) -> pixels (homogeneous)."""
    n, F = LAYERS, len(times)
    chance = lambda p: (rng.random((n, 1)) < p).astype(float)
    uniform = lambda low, high: rng.uniform(low, high, (n, 1))
    depth = np.concatenate([[FAR], np.sort(rng.uniform(1.2, 2.9, n - 1))[::-1]])[:, None]
    moves = chance(0.8)
    moves[0] = 0
    reach = log_uniform(rng, 3, 90, (n, 1)) * moves * np.where(chance(recipe.fast), 2.0, 1.0)
    place = rng.uniform(-105, 105, (n, 2))
    place[0] = 0
    x = path(rng, times, (n,)) * reach * uniform(0.3, 1) + place[:, :1]
    y = path(rng, times, (n,)) * reach * uniform(0.2, 0.9) + place[:, 1:]
    swing = np.where(chance(recipe.spin), uniform(0, 2.2), uniform(0, 0.35)) * moves
    roll = path(rng, times, (n,)) * swing + uniform(-3.14, 3.14) * chance(0.35)
    yaw = np.tanh(path(rng, times, (n,)) * uniform(0, 0.9) * moves * chance(0.6)) * 0.95
    pitch = np.tanh(path(rng, times, (n,)) * uniform(0, 0.7) * moves * chance(0.6)) * 0.9
    scale = log_uniform(rng, 0.24, 1.2, (n, 1))
    scale = np.where(chance(recipe.small), log_uniform(rng, 0.07, 0.25, (n, 1)), scale)
    if specks.random() < recipe.tiny:
        scale[1:] = log_uniform(specks, 0.035, 0.1, (n - 1, 1))
    if rng.random() < recipe.occluder:
        scale[-1], depth[-1], place[-1] = rng.uniform(0.8, 1.6), 1.15, 0
    scale[0] = rng.uniform(0.62, 1.15) * 2
    breath = np.clip(path(rng, times, (n,)) * uniform(0, 0.35) * moves * chance(0.7), -0.8, 0.7)
    size = 128 * scale * np.exp(breath)
    aspect = np.exp(uniform(-0.35, 0.35))
    aspect[0] = 1
    shear = uniform(-0.25, 0.25) + path(rng, times, (n,)) * 0.12 * moves
    shear[0] = 0
    turn = rotation(yaw, pitch, roll)
    across = turn[..., 0] * (size * aspect)[..., None]
    down = (turn[..., 1] + turn[..., 0] * shear[..., None]) * (size / aspect)[..., None]
    where = np.stack([x, y, np.full_like(x, FOCAL)], -1)
    planes = np.stack([across, down, where], -1) * (depth / FOCAL)[..., None, None]
    hang_limbs(rng, recipe, times, planes)
    planes = camera.turn @ planes
    planes[..., 2] += camera.shift
    return camera.lens @ planes


def hang_limbs(rng, recipe, times, planes):
    """Some layers become limbs of the layer below: a joint on the parent, the limb's end fixed to it, swinging.
    Returns nothing; the parents' planes are used up to here, so chains work."""
    for child in range(2, LAYERS):
        if child == SPLIT or rng.random() >= recipe.limbs:
            continue
        joint = rng.uniform(-0.6, 0.6, 2)
        length = rng.uniform(0.35, 0.8)
        angle = rng.uniform(-3.14, 3.14) + path(rng, times, fastest=2.5) * rng.uniform(0.1, 0.9)
        c, s, one, zero = np.cos(angle) * length, np.sin(angle) * length, np.ones_like(angle), np.zeros_like(angle)
        width = rng.uniform(0.35, 1)
        hinge = matrix((c, -s * width, joint[0] + 0.75 * c), (s, c * width, joint[1] + 0.75 * s), (zero, zero, one))
        planes[child] = planes[child - 1] @ hinge


def layer_waves(rng, recipe, times):
    """Waves of the layers' own coordinates: k [n,3,2], a [n,3,2], phase [n,F,3]; u = w + sum a sin(k.w + phase)."""
    n = LAYERS
    long = rng.uniform(0.55, 2.0, (n, WAVES, 1))
    to = rng.uniform(0, 2 * math.pi, (n, WAVES, 1))
    k = 2 * math.pi / long * np.concatenate([np.cos(to), np.sin(to)], -1)
    on = rng.random((n, 1, 1)) < recipe.cloth
    strength = rng.uniform(0.02, 0.16, (n, 1, 1)) * on
    strength[0] *= 0.6
    a = np.clip(rng.normal(size=(n, WAVES, 2)), -1.5, 1.5) * strength * long / (2 * math.pi)
    speed = rng.uniform(-1.4, 1.4, (n, 1, WAVES)) * 2 * math.pi * (rng.random((n, 1, WAVES)) < 0.8)
    phase = rng.uniform(0, 2 * math.pi, (n, 1, WAVES)) + speed * times[None, :, None]
    return k, a, phase


def layer_folds(rng, recipe, times):
    """Creases across the layers' planes: fold [n,2] unit normals, crease [n,F]; what has fold.w > crease lies mirrored
    on the rest, back side up."""
    to = rng.uniform(0, 2 * math.pi, LAYERS)
    crease = np.full((LAYERS, len(times)), 1e3)
    for layer in FOLDING:
        move = path(rng, times, fastest=1.0) * rng.uniform(0.1, 0.9)
        if rng.random() < recipe.fold:
            crease[layer] = np.clip(rng.uniform(0, 0.9) + move, -0.15, 1.5)
    return np.stack([np.cos(to), np.sin(to)], -1), crease


def layer_looks(rng, recipe, textures, room):
    """Silhouettes, textures and colours of the layers."""
    n = LAYERS
    looks = [layer_look(rng, recipe, textures) for _ in range(n)]
    if rng.random() < recipe.twins:
        looks = [looks[0]] + [looks[1]] * (n - 1)
    present = rng.integers(1 if room else 3, n)
    order = rng.permutation(np.arange(1, n))[:n - 1 - present]
    mask = np.array([m for m, _, _ in looks])
    mask[order] = textures.EMPTY
    mask[0] = textures.FULL
    if room:
        mask[1:SPLIT] = textures.EMPTY
    colour = np.array([c for _, c, _ in looks])
    uv = np.array([u for _, _, u in looks])
    colour[0], uv[0] = rng.choice(textures.photos), [[0.5, 0, 0.5], [0, 0.5, 0.5]]
    if rng.random() < recipe.repeat * 0.5:
        uv[0] *= rng.uniform(1.5, 4)
    return mask, colour, uv


def layer_look(rng, recipe, textures):
    """(mask, texture, map from the layer's coordinates to the texture's) of one layer."""
    if rng.random() < 0.38 and len(textures.stamps):
        stamp = rng.integers(len(textures.stamps))
        mask, colour = textures.stamp_masks[stamp], textures.stamps[stamp]
        if rng.random() < 0.65:
            return mask, colour, np.array([[0.5, 0, 0.5], [0, 0.5, 0.5]])
    else:
        mask = rng.choice(textures.shapes)
    return mask, pick_texture(rng, recipe, textures), crop(rng, recipe)


def pick_texture(rng, recipe, textures):
    return rng.choice(textures.plain if rng.random() < recipe.plain else textures.photos)


def crop(rng, recipe):
    size = log_uniform(rng, 0.12, 0.6) * (rng.uniform(3, 8) if rng.random() < recipe.repeat else 1)
    angle = rng.uniform(-3.14, 3.14)
    c, s = size * math.cos(angle), size * math.sin(angle)
    return np.array([[c, -s, rng.random()], [s, c, rng.random()]])


def colours(rng, n):
    """Gain and offset of n textures' colours: [n,3], [n,3], for texels in 0..1."""
    gain = np.exp(rng.uniform(-0.28, 0.28, (n, 3)))
    contrast = np.where(rng.random((n, 1)) < 0.25, rng.uniform(0.25, 1, (n, 1)), rng.uniform(0.8, 1.25, (n, 1)))
    return gain * contrast, 0.45 * (1 - contrast) * gain + rng.uniform(-0.08, 0.08, (n, 1))


# ------------------------------------------------------------------------------------------------------ solids

class Solid:
    """A primitive: half axes [3], round axes (1: part of the quadric, 0: cut by planes), pose a frame in the scene."""

    def __init__(self, half, round_axes, turn, place, room=False):
        self.half, self.round, self.turn, self.place = np.asarray(half, float), np.asarray(round_axes, float), turn, place
        self.room = room


def shape(rng):
    return [(1, 1, 1), (1, 1, 1), (1, 1, 0), (0, 0, 0), (0, 0, 0)][rng.integers(5)]


def turning_object(rng, recipe, times):
    """One body of 1 to 4 primitives, turning by up to 1.5 turns in two seconds and drifting."""
    F = len(times)
    distance = 3.0
    size = rng.uniform(0.12, 0.4) if rng.random() < recipe.small else rng.uniform(0.45, 1.0)
    axis = np.array([0, 1, 0]) + rng.normal(size=3) * (0.15 if rng.random() < 0.5 else 1)
    angle = rng.choice([-1, 1]) * rng.uniform(0.2, 4.5) * times + path(rng, times) * rng.uniform(0, 0.7)
    turn = about(axis, angle) @ any_rotation(rng)
    drift = log_uniform(rng, 0.02, 0.9)
    place = np.stack([path(rng, times) * drift + rng.uniform(-0.6, 0.6), path(rng, times) * drift + rng.uniform(-0.6, 0.6),
                      distance + np.clip(path(rng, times) * rng.uniform(0, 0.8), -1.2, 2)], -1)
    return body(rng, size, turn, place)


def body(rng, size, turn, place):
    parts = []
    for i in range(rng.integers(1, 5)):
        half = size * rng.uniform(0.3, 1, 3) * (1 if i == 0 else 0.6)
        offset = np.zeros(3) if i == 0 else rng.uniform(-0.8, 0.8, 3) * size
        own = np.eye(3) if i == 0 else any_rotation(rng)
        parts.append(Solid(half, shape(rng), turn @ own, place + turn @ offset))
    return parts


def tumbling_objects(rng, recipe, times):
    parts = []
    for _ in range(rng.integers(2, SOLIDS + 1)):
        size = rng.uniform(0.08, 0.2) if rng.random() < recipe.small else rng.uniform(0.2, 0.6)
        turn = about(rng.normal(size=3), rng.uniform(-4, 4) * times) @ any_rotation(rng)
        drift = log_uniform(rng, 0.05, 1.2)
        centre = rng.uniform([-1.2, -1.2, 2.2], [1.2, 1.2, 4])
        place = np.stack([path(rng, times) * drift for _ in range(3)], -1) * [1, 1, 0.6] + centre
        place[:, 2] = np.maximum(place[:, 2], size + 0.8)
        parts.append(Solid(size * rng.uniform(0.5, 1, 3), shape(rng), turn, place))
    return parts


def creature(rng, recipe, times):
    """A trunk, a head and four swinging legs, walking before the camera."""
    F = len(times)
    size = rng.uniform(0.35, 0.9)
    heading = rng.uniform(0, 2 * math.pi) + path(rng, times) * rng.uniform(0, 0.8)
    turn = rotation(heading, path(rng, times) * 0.1, path(rng, times) * 0.1)
    drift = log_uniform(rng, 0.05, 0.8)
    place = np.stack([path(rng, times) * drift, path(rng, times) * 0.1 + rng.uniform(-0.3, 0.2),
                      3 + path(rng, times) * rng.uniform(0, 0.5)], -1)
    trunk = size * np.array([rng.uniform(0.7, 1), rng.uniform(0.3, 0.5), rng.uniform(0.3, 0.45)])
    parts = [Solid(trunk, (1, 1, 1), turn, place)]
    nod = turn @ about(rng.normal(size=3), path(rng, times) * 0.5)
    neck = turn @ (trunk * [0.95, -0.5, 0]) + place
    head = size * rng.uniform(0.2, 0.4, 3)
    parts.append(Solid(head, (1, 1, 1), nod, neck + nod @ np.array([head[0] * 0.6, -head[1] * 0.5, 0])))
    pace, swing, long = rng.uniform(0.6, 2.5), rng.uniform(0.2, 0.8), size * rng.uniform(0.35, 0.6)
    thick = size * rng.uniform(0.1, 0.2)
    for i, (fore, side) in enumerate([(1, 1), (1, -1), (-1, 1), (-1, -1)]):
        angle = swing * np.sin(2 * math.pi * pace * times + (i in (1, 2)) * math.pi + rng.uniform(-0.4, 0.4))
        leg = turn @ about(np.array([0, 0, 1.0]), angle)
        hip = turn @ (trunk * [0.65 * fore, 0.5, 0.75 * side]) + place
        kind = (1, 1, 1) if rng.random() < 0.7 else (1, 0, 1)
        parts.append(Solid([thick, long, thick], kind, leg, hip + leg @ np.array([0, long * 0.9, 0])))
    return parts


def orbited_room(rng, recipe, times, distance):
    """A room with objects standing in it, all at rest; the camera moves."""
    F = len(times)
    still = lambda r: np.broadcast_to(r, (F, 3, 3))
    at = lambda p: np.broadcast_to(np.asarray(p, float), (F, 3))
    floor = rng.uniform(0.5, 0.9)
    half = np.array([rng.uniform(5, 9), rng.uniform(2.5, 5), rng.uniform(5, 9)])
    room = rotation(rng.uniform(0, 6.28), 0.0, 0.0)
    parts = [Solid(half, (0, 0, 0), still(room), at([0, floor - half[1], distance]), room=True)]
    for i in range(rng.integers(1, SOLIDS)):
        size = rng.uniform(0.12, 0.3) if rng.random() < recipe.small else rng.uniform(0.3, 0.75)
        size *= np.array([rng.uniform(0.5, 1), rng.uniform(0.6, 1.3), rng.uniform(0.5, 1)])
        spread = 0.15 if i == 0 else 1.3
        place = [rng.uniform(-spread, spread), floor - size[1], distance + rng.uniform(-spread, spread)]
        kind = [(1, 1, 1), (1, 0, 1), (0, 0, 0)][rng.integers(3)]
        parts.append(Solid(size, kind, still(rotation(rng.uniform(0, 6.28), 0.0, 0.0)), at(place)))
    return parts


def solid_arrays(rng, recipe, textures, times, camera, parts):
    """Parameters of SOLIDS slots for the renderer and the truth (unused slots lie behind the camera)."""
    F, K = len(times), SOLIDS
    out = dict(ray=np.zeros((K, F, 3, 4)), back=np.zeros((K, F, 3, 4)), half=np.ones((K, 3)), round=np.ones((K, 3)),
               room=np.zeros(K), light=np.zeros((K, F, 3)), shine=np.zeros((K, F, 3)), solid_uv=np.zeros((K, 2, 4)),
               solid_colour=np.zeros(K, int), solid_lod=np.zeros(K), gloss=np.zeros(K))
    out['ray'][:, :, :, 3] = [0, 0, 9]
    lamp = rng.normal(size=3) + [0, -0.8, -1.2]
    lamp = camera.turn @ (lamp / np.linalg.norm(lamp))
    halfway = lamp + [0, 0, -1]
    halfway = halfway / np.linalg.norm(halfway, axis=-1, keepdims=True)
    unlens = np.linalg.inv(camera.lens)
    family = pick_texture(rng, recipe, textures)
    for i, part in enumerate(parts[:K]):
        turn = camera.turn @ part.turn
        place = (camera.turn @ part.place[..., None])[..., 0] + camera.shift
        inward = np.swapaxes(turn, -1, -2)
        local = inward / part.half[:, None]
        out['ray'][i, :, :, :3] = local @ unlens
        out['ray'][i, :, :, 3] = -(local @ place[..., None])[..., 0]
        out['back'][i, :, :, :3] = turn * part.half
        out['back'][i, :, :, 3] = place
        out['half'][i], out['round'][i], out['room'][i] = part.half, part.round, part.room
        out['light'][i] = (inward @ lamp[..., None])[..., 0]
        out['shine'][i] = (inward @ halfway[..., None])[..., 0]
        out['gloss'][i] = rng.uniform(0.1, 0.8) * (rng.random() < recipe.gloss) * (not part.room)
        out['solid_colour'][i] = family if rng.random() < 0.4 else pick_texture(rng, recipe, textures)
        unit = log_uniform(rng, 0.25, 0.8) * (rng.uniform(2, 6) if rng.random() < recipe.repeat else 1)
        unit *= 0.25 if part.room else 1
        out['solid_uv'][i] = oblique(rng, unit, part.half / part.half.max() if not part.room else part.half)
        out['solid_lod'][i] = math.log2(512 * unit / (1 if part.room else part.half.max()) / FOCAL)
    return out


def oblique(rng, unit, half):
    """Solid -> texture, a projection along no axis, so that no face of a box is degenerate: [2,4] with an offset."""
    angle = rng.uniform(0, 2 * math.pi) + np.array([0, 2 * math.pi / 3, 4 * math.pi / 3]) + rng.uniform(-0.2, 0.2, 3)
    sign = rng.choice([-1, 1], 3)
    return np.stack([np.append(unit * sign * half * np.cos(angle), rng.random()),
                     np.append(unit * sign * half * np.sin(angle), rng.random())])


def hit_solids(s, frame, x, y):
    """First solid along the pixels x, y (any shape) of frames `frame` (same shape): (depth, solid, own point [...,3]);
    depth is inf where nothing is hit."""
    best, which, point = np.full(x.shape, np.inf), np.full(x.shape, -1), np.zeros(x.shape + (3,))
    pixel = np.stack([x, y, np.ones_like(x)], -1)
    for i in range(SOLIDS):
        ray = s['ray'][i][frame]
        d, o = (ray[..., :3] @ pixel[..., None])[..., 0], ray[..., 3]
        depth = first_hit(d, o, s['round'][i], s['room'][i])
        near = depth < best
        best, which = np.where(near, depth, best), np.where(near, i, which)
        with np.errstate(invalid='ignore'):
            point = np.where(near[..., None], o + np.where(near, depth, 0)[..., None] * d, point)
    return best, which, point


def first_hit(d, o, round_axes, room):
    """Depth of the first hit of rays o + depth*d with a unit solid; inf without one."""
    near, far = np.full(d.shape[:-1], -np.inf), np.full(d.shape[:-1], np.inf)
    if round_axes.any():
        a = np.maximum((round_axes * d * d).sum(-1), 1e-12)
        b, c = (round_axes * d * o).sum(-1), (round_axes * o * o).sum(-1) - 1
        root = b * b - a * c
        with np.errstate(invalid='ignore'):
            reach = np.sqrt(root)
        near, far = np.where(root > 0, (-b - reach) / a, np.inf), np.where(root > 0, (-b + reach) / a, -np.inf)
    for axis in np.flatnonzero(round_axes == 0):
        along = np.where(np.abs(d[..., axis]) < 1e-9, 1e-9, d[..., axis])
        t0, t1 = (-1 - o[..., axis]) / along, (1 - o[..., axis]) / along
        near, far = np.maximum(near, np.minimum(t0, t1)), np.minimum(far, np.maximum(t0, t1))
    depth = far if room else near
    return np.where((near < far) & (depth > 0.05), depth, np.inf)


# -------------------------------------------------------------------------------------------------------- film

def film(rng, recipe, T):
    """What the camera does to the picture after the scene: per-frame exposure, and strengths of the effects."""
    seconds = np.arange(T) / 24
    on = lambda p: float(rng.random() < p)
    lit = on(recipe.lighting)
    exposure = 1 + path(rng, seconds) * rng.uniform(0, 0.2) * lit
    tint = 1 + path(rng, seconds, (3,)).T * rng.uniform(0, 0.04) * lit
    gain = exposure[:, None] * tint * (rng.uniform(0.75, 1.2) * np.exp(rng.uniform(-0.12, 0.12, 3)))
    offset = path(rng, seconds) * rng.uniform(0, 0.04) * lit + rng.uniform(-0.06, 0.06)
    gamma = np.exp(path(rng, seconds) * rng.uniform(0, 0.1) * lit + rng.uniform(-0.35, 0.35))
    long, to = 2 * math.pi / log_uniform(rng, 150, 700), rng.uniform(0, 2 * math.pi)
    shadow = np.stack([np.full(T, rng.uniform(0, 0.5) * on(recipe.lighting * 0.5)), np.full(T, long * math.cos(to)),
                       np.full(T, long * math.sin(to)), rng.uniform(0, 6.28) + rng.uniform(-4, 4) * seconds], -1)
    noise = log_uniform(rng, 0.003, 0.04) * on(recipe.noise)
    if on(recipe.dark):
        gain, gamma, noise = gain * rng.uniform(0.12, 0.4), gamma * rng.uniform(1, 1.5), rng.uniform(0.015, 0.05)
        offset = offset * 0.3
    soft = on(recipe.soft)
    bars = np.array([0.0, 0.0])
    if on(recipe.letterbox):
        bars[rng.integers(2)] = rng.uniform(0.05, 0.14)
    return dict(gain=gain, offset=np.broadcast_to(offset, (T,)).copy(), gamma=gamma, shadow=shadow, noise=noise,
                blur=log_uniform(rng, 0.3, 1.4) if soft and rng.random() < 0.6 else 0.05,
                coarse=float(soft and rng.random() < 0.3),
                quality=log_uniform(rng, 0.25, 2.2) if on(recipe.compression) else 0.0, bars=bars,
                dim=rng.uniform(0, 0.06))


# ------------------------------------------------------------------------------------------------------- truth

def to_own(inverse, x, y):
    """Pixels -> a plane's coordinates; 1e4 where the plane is behind the camera. inverse [...,3,3]."""
    a, b, c = (inverse[..., i, 0] * x + inverse[..., i, 1] * y + inverse[..., i, 2] for i in range(3))
    behind = c <= 1e-6
    c = np.where(behind, 1, c)
    return np.stack([np.where(behind, 1e4, a / c), np.where(behind, 1e4, b / c)], -1)


def wave(w, k, a, phase):
    return (np.sin((w[..., None, :] * k).sum(-1) + phase)[..., None] * a).sum(-2)


def mirror(w, normal, beyond):
    """w on the other side of a crease that it is `beyond`."""
    return w - 2 * beyond[..., None] * normal


class Truth:
    """Works on one moment a frame (the middle of the shutter)."""

    def __init__(self, scene, textures, T, sub):
        self.scene, self.textures, self.T = scene, textures, T
        mid = np.arange(T) * sub + sub // 2
        self.plane, self.inverse, self.phase, self.crease = (scene[k][:, mid] for k in ('plane', 'inverse', 'phase', 'crease'))
        self.lens = scene['lens'][mid]
        self.solids = {k: scene[k][:, mid] if k in ('ray', 'back') else scene[k]
                       for k in ('ray', 'back', 'round', 'room')} if scene['has_solids'] else None

    def layer_at(self, layer, frame, x, y):
        """Own point of a layer at pixels (u, v, and 1 on its back), its coverage, and whether the side is beyond doubt."""
        s = self.scene
        w = to_own(self.inverse[layer][frame], x, y)
        u = self.waved(layer, frame, w)
        cover = np.ones(x.shape) if layer == 0 else self.textures.coverage(s['mask'][layer], u)
        side, clear = np.zeros(x.shape, bool), np.ones(x.shape, bool)
        if layer in FOLDING and self.crease[layer].min() < 1e2:
            beyond = w @ s['fold'][layer] - self.crease[layer][frame]
            mirrored = self.waved(layer, frame, mirror(w, s['fold'][layer], beyond))
            flap = self.textures.coverage(s['mask'][layer], mirrored)
            side, clear = flap > 0.5, (flap < 0.05) | (flap > 0.9)
            u = np.where(side[..., None], mirrored, u)
            cover = np.where(beyond > 0, 0, np.maximum(cover, flap))
        return np.concatenate([u, side[..., None]], -1), cover, clear

    def waved(self, layer, frame, w):
        s = self.scene
        return w + wave(w, s['wave_k'][layer], s['wave_a'][layer], self.phase[layer][frame])

    def surface(self, frame, x, y):
        """What is seen at pixels: owner (layer, or LAYERS+solid), own point [...,3], certainty of the ownership."""
        owner, point, sure = np.zeros(x.shape, int), np.zeros(x.shape + (3,)), np.ones(x.shape, bool)
        for layer in range(LAYERS):
            if layer == SPLIT and self.solids is not None:
                depth, which, own = hit_solids(self.solids, frame, x, y)
                seen = np.isfinite(depth)
                owner = np.where(seen, LAYERS + which, owner)
                point = np.where(seen[..., None], own, point)
                sure |= seen
            own, cover, clear = self.layer_at(layer, frame, x, y)
            top = cover > 0.5
            owner = np.where(top, layer, owner)
            point = np.where(top[..., None], own, point)
            sure = np.where(top, (cover > 0.9) & clear, sure & (cover < 0.05))
        return owner, point, sure

    def follow(self, owner, point):
        """Pixels [N,T,2] of surface points and whether they are hidden [N,T]."""
        N, T = len(owner), self.T
        xy, hidden = np.zeros((N, T, 2)), np.zeros((N, T), bool)
        flat = owner < LAYERS
        if flat.any():
            xy[flat], hidden[flat] = self.follow_layers(owner[flat], point[flat])
        if (~flat).any():
            xy[~flat], hidden[~flat] = self.follow_solids(owner[~flat] - LAYERS, point[~flat])
        hidden |= ((xy < 0) | (xy >= SIZE)).any(-1)
        where = np.clip(xy, -1e4, 1e4)
        frame = np.broadcast_to(np.arange(T), (N, T))
        rank = np.where(flat, owner, SPLIT - 0.5)[:, None]
        for layer in range(1, LAYERS):
            seen, cover, _ = self.layer_at(layer, frame, where[..., 0], where[..., 1])
            hidden |= (cover > 0.5) & (layer > rank)
            hidden |= ((owner == layer) & (point[:, 2] == 0))[:, None] & (seen[..., 2] > 0)     # under its own flap
        if self.solids is not None:
            depth, _, _ = hit_solids(self.solids, frame, where[..., 0], where[..., 1])
            hidden |= np.isfinite(depth) & (rank < SPLIT - 0.5)
        bars = self.scene['bars'] * SIZE
        hidden |= ((where < bars) | (where > SIZE - bars)).any(-1)
        return np.clip(xy, -2000, 2000), hidden

    def follow_layers(self, layer, point):
        s = self.scene
        k, a, phase = s['wave_k'][layer][:, None], s['wave_a'][layer][:, None], self.phase[layer]
        u = point[:, None, :2]
        w = np.broadcast_to(u, (len(layer), self.T, 2))
        for _ in range(12):                                     # the inverse of u = w + wave(w)
            w = u - wave(w, k, a, phase)
        normal = s['fold'][layer][:, None]
        beyond = (w * normal).sum(-1) - self.crease[layer]
        folded = beyond > 0
        w = np.where(folded[..., None], mirror(w, normal, beyond), w)
        h = (self.plane[layer] @ np.concatenate([w, np.ones(w.shape[:-1] + (1,))], -1)[..., None])[..., 0]
        behind = h[..., 2] < 1e-4
        averted = folded != (point[:, 2:] > 0)                  # the other side is up
        return h[..., :2] / np.where(behind, 1, h[..., 2])[..., None], behind | averted

    def follow_solids(self, which, point):
        s = self.solids
        own = np.append(point, np.ones((len(point), 1)), -1)
        place = (s['back'][which] @ own[:, None, :, None])[..., 0]                  # [n,T,3] before the camera
        behind = place[..., 2] < 0.05
        depth = np.where(behind, 1, place[..., 2])
        h = (self.lens @ place[..., None])[..., 0]
        xy = h[..., :2] / depth[..., None]
        frame = np.broadcast_to(np.arange(self.T), xy.shape[:2])
        first, _, _ = hit_solids(s, frame, xy[..., 0], xy[..., 1])
        return xy, behind | (first < depth * (1 - 2e-3) - 2e-3)


def aim(rng, recipe, scene, truth, frame, x, y, inset):
    """Some of the pixels moved onto a random place of a random layer that is there, so that small things are asked for too."""
    there = np.flatnonzero(scene['mask'] != truth.textures.EMPTY)[1:]
    if not len(there) or recipe.aim == 0:
        return x, y
    layer, w = rng.choice(there, len(x)), rng.uniform(-1, 1, (len(x), 2))
    h = (truth.plane[layer, frame] @ np.append(w, np.ones((len(x), 1)), -1)[..., None])[..., 0]
    at = h[:, :2] / np.maximum(h[:, 2:], 1e-3)
    hit = (rng.random(len(x)) < recipe.aim) & ((at > inset) & (at < SIZE - inset)).all(-1)
    return np.where(hit, at[:, 0], x), np.where(hit, at[:, 1], y)


def choose_queries(rng, aimed, recipe, scene, truth, T, N):
    """N points that are seen in their frame: t,y,x [N,3], owner [N], own point [N,3]."""
    M = 8 * N
    frame = rng.integers(0, T, M)
    inset = scene['bars'] * SIZE + 1
    x, y = rng.uniform(inset[0], SIZE - inset[0], M), rng.uniform(inset[1], SIZE - inset[1], M)
    x, y = aim(aimed, recipe, scene, truth, frame, x, y, inset)
    owner, point, sure = truth.surface(frame, x, y)
    room = scene['room'][np.clip(owner - LAYERS, 0, SOLIDS - 1)] * (owner >= LAYERS) > 0 if scene['has_solids'] else False
    weight = np.where((owner == 0) | room, 1.0, np.where(owner < LAYERS, 4.0, recipe.solid_bias))
    weight = weight * (1 - recipe.texture_bias + recipe.texture_bias * truth.textures.detail(scene, owner, point))
    weight = weight * np.where(sure, 1, 1e-7) + 1e-12
    chosen = np.argsort(rng.exponential(size=M) / weight)[:N]
    return np.stack([frame[chosen], y[chosen], x[chosen]], -1), owner[chosen], point[chosen]


# ------------------------------------------------------------------------------------------------- whole scene

def draw_scene(recipe, textures, seed, index, T, N, solids, sub=1, interlaced=False):
    """Everything about clip `index`: the renderer's parameters and the truth (queries, tracks, hidden). sub: moments
    filmed a frame (1, or 3 for a long shutter)."""
    rng = np.random.default_rng([seed, index])
    shutter = rng.uniform(0.3, 0.9) if sub > 1 else 0.0
    offsets = (np.arange(sub) - sub // 2) * shutter / sub
    if interlaced:          # the even rows' field, the moment between both (the truth's), the odd rows' half a frame later
        offsets = np.array([0, 0.25, 0.5])
    times = (np.arange(T)[:, None] + offsets).reshape(-1) / 24
    draw = rng.random()
    orbiting = solids and draw < recipe.orbit
    distance = rng.uniform(2.2, 3.6)
    camera = orbit_camera(rng, recipe, times, distance) if orbiting else film_camera(rng, recipe, times)
    specks, aimed = (np.random.default_rng([seed, index, i]) for i in (6, 7))       # a later switch has a generator of its
    plane = layer_planes(rng, specks, recipe, times, camera)                        # own: the rest of a scene stays as it was
    k, a, phase = layer_waves(rng, recipe, times)
    fold, crease = layer_folds(np.random.default_rng([seed, index, 5]), recipe, times)
    mask, colour, uv = layer_looks(rng, recipe, textures, orbiting)
    gain, bias = colours(rng, LAYERS)
    flicker = 1 + path(rng, times, (LAYERS,)) * rng.uniform(0, 0.12, (LAYERS, 1))
    inverse = np.linalg.inv(plane)
    scene = dict(plane=plane, inverse=inverse, lens=camera.lens, wave_k=k, wave_a=a, phase=phase, fold=fold, crease=crease, mask=mask,
                 colour=colour, uv=uv, layer_gain=gain, layer_bias=bias, flicker=np.clip(flicker, 0.5, 1.5),
                 has_solids=solids, interlaced=float(interlaced))
    scene['footprint'] = footprints(plane, inverse)
    if solids:
        if orbiting:
            parts = orbited_room(rng, recipe, times, distance)
        elif draw < recipe.orbit + recipe.creature:
            parts = creature(rng, recipe, times)
        elif draw < recipe.orbit + recipe.creature + recipe.tumble:
            parts = tumbling_objects(rng, recipe, times)
        else:
            parts = turning_object(rng, recipe, times)
        scene.update(solid_arrays(rng, recipe, textures, times, camera, parts))
        scene['solid_gain'], scene['solid_bias'] = colours(rng, SOLIDS)
    scene.update(film(rng, recipe, T))
    truth = Truth(scene, textures, T, sub)
    biased = recipe.hidden_bias != 1
    queries, owner, point = choose_queries(rng, aimed, recipe, scene, truth, T, 2 * N if biased else N)
    tracks, hidden = truth.follow(owner, point)
    if biased:
        weight = np.where(seen_again(hidden), recipe.hidden_bias, 1.0)
        kept = np.argsort(np.random.default_rng([seed, index, 8]).exponential(size=2 * N) / weight)[:N]
        queries, owner, tracks, hidden = queries[kept], owner[kept], tracks[kept], hidden[kept]
    scene.update(queries=queries, tracks=tracks, hidden=hidden, owner=owner)
    return scene


def seen_again(hidden):
    """Which points are hidden in a frame between two in which they are seen: hidden [N,T] -> [N]."""
    before = np.logical_or.accumulate(~hidden, 1)
    after = np.logical_or.accumulate(~hidden[:, ::-1], 1)[:, ::-1]
    return (hidden & before & after).any(1)


def footprints(plane, inverse):
    """Own units a pixel at the middle of each layer, [LAYERS,F] (for the choice of mip levels)."""
    centre = plane[..., 2]
    xy = centre[..., :2] / np.maximum(centre[..., 2:], 1e-3)
    xy = np.clip(xy, 0, SIZE)
    c = np.maximum(inverse[..., 2, 0] * xy[..., 0] + inverse[..., 2, 1] * xy[..., 1] + inverse[..., 2, 2], 1e-4)
    return np.sqrt(np.abs(np.linalg.det(inverse)) / c ** 3)


def draw_batch(recipe, textures, seed, index, B, T, N):
    """B scenes as stacked float32/int arrays; the first round(B*solids) have solids. `sub` moments a frame."""
    rng = np.random.default_rng([seed, index, 77])
    sub = 3 if rng.random() < recipe.blur else 1
    with_solids = round(B * recipe.solids + rng.uniform(-0.499, 0.499) * (B == 1))
    scenes = [draw_scene(recipe, textures, seed, index * B + i, T, N, i < with_solids, sub,
                         sub == 3 and rng.random() < recipe.interlace) for i in range(B)]
    batch = {'sub': sub, 'solid_clips': with_solids, 'index': index}
    for key in scenes[-1]:
        batch[key] = np.stack([np.asarray(s[key]) for s in scenes])
    for key in scenes[0].keys() - scenes[-1].keys():
        batch[key] = np.stack([np.asarray(s[key]) for s in scenes[:with_solids]])
    return {k: v.astype(np.float32) if isinstance(v, np.ndarray) and v.dtype == np.float64 else v
            for k, v in batch.items()}
