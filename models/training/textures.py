"""Textures: `make-textures` builds a pack of small images from Debian packages; Textures loads it.

The pack is a folder (ignored by git, at most 28 MB): t-photo-*.jpg, t-stamp-*.webp for training, v-* held out. Which side
an image falls on depends on its file name alone, so that crops of one photograph, or the same file in two packages, never
stand on both sides. Silhouettes and plain or regular patterns are drawn from formulas when the pack is loaded.
"""
import glob
import hashlib
import json
import math
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np

from scenes import BACK, LAYERS

PACKAGES = ['plasma-workspace-wallpapers', 'lomiri-wallpapers-16.04', 'lomiri-wallpapers-20.04', 'ukui-wallpapers',
            'gnome-backgrounds', 'mate-backgrounds', 'gimp-data-extras', 'propaganda-debian', 'sweethome3d-textures-editor',
            'openarena-081-textures', 'colobot-common-textures', 'endless-sky-data', 'tuxpaint-stamps-default']
PHOTOGRAPHS = PACKAGES[:9]                      # the rest are game textures and stamps
PHOTO_BYTES, GAME_BYTES, STAMP_BYTES = 14.5e6, 5.5e6, 7.0e6
SKIP = ('normal', '_n.', '_nm', 'gloss', 'spec', '_s.', 'bump', 'icon', 'flag', 'font', 'gui', 'mask', 'lightmap',
        'height', 'minimap', 'screenshot', '_z.', 'depth', 'displace', 'loading', 'hud', 'thumb')
SIDE, MASK, LEVELS = 512, 256, 6


# ------------------------------------------------------------------------------------------------- making a pack

def download(folder):
    """Fetch and unpack PACKAGES below folder with Debian's own tools."""
    for package in PACKAGES:
        target = os.path.join(folder, package)
        if os.path.isdir(target):
            continue
        subprocess.run(['apt-get', 'download', '-q', package], cwd=folder, check=True)
        archive = glob.glob(os.path.join(folder, f'{package}_*.deb'))[0]
        subprocess.run(['dpkg-deb', '-x', archive, target], check=True)
        os.remove(archive)


def identity(path):
    """What makes two files crops or sizes of one picture: its name, without sizes and variants."""
    parts = path.split(os.sep)
    stem = os.path.splitext(parts[-1])[0].lower()
    if 'contents' in parts:                             # Plasma: NAME/contents/images[_dark]/5120x2880.png
        stem = parts[parts.index('contents') - 1].lower()
    for word in ('-l', '-d', '_l', '_d', 'dark', 'light', 'wide'):
        stem = stem[:-len(word)] if stem.endswith(word) else stem
    return stem.rstrip('0123456789x_-.') or stem


def held_out(path):
    return int(hashlib.md5(identity(path).encode()).hexdigest(), 16) % 10 == 0


class Pack:
    """Writes images, refusing flat ones and near-copies of what is there."""

    def __init__(self, folder):
        self.folder, self.bytes, self.seen, self.index = folder, 0, set(), []
        os.makedirs(folder, exist_ok=True)
        for old in glob.glob(os.path.join(folder, '[tv]-*')):
            os.remove(old)

    def write(self, image, source, kind):
        small = cv2.resize(image[..., :3], (12, 12), interpolation=cv2.INTER_AREA)
        digest = (small.mean(-1) > small.mean()).tobytes()
        if digest in self.seen:
            return 0
        self.seen.add(digest)
        ending, quality = ('.jpg', [cv2.IMWRITE_JPEG_QUALITY, 82]) if kind == 'photo' else (
            '.webp', [cv2.IMWRITE_WEBP_QUALITY, 85])
        data = cv2.imencode(ending, image, quality)[1].tobytes()
        side = 'v' if held_out(source) else 't'
        name = f'{side}-{kind}-{len(self.index):04d}{ending}'
        with open(os.path.join(self.folder, name), 'wb') as f:
            f.write(data)
        self.index.append([name, source])
        self.bytes += len(data)
        return len(data)


def lively(image):
    gray = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY).astype(np.float32)
    return gray.std() > 12 and np.abs(gray - cv2.GaussianBlur(gray, (0, 0), 3)).mean() > 1.6


def pictures(folder, packages, endings):
    found = []
    for package in packages:
        for place, _, names in sorted(os.walk(os.path.join(folder, package))):
            found += [os.path.join(place, n) for n in sorted(names) if n.lower().endswith(endings)]
    return found


def add_photographs(pack, folder, rng):
    """The largest version of each picture, whole and in crops."""
    best = {}
    for path in pictures(folder, PHOTOGRAPHS, ('.jpg', '.jpeg', '.png', '.webp')):
        if any(s in os.path.basename(path).lower() for s in ('screenshot', 'preview')) or os.path.islink(path):
            continue
        key = identity(path) + ('dark' if 'dark' in path else '')
        if key not in best or os.path.getsize(path) > os.path.getsize(best[key]):
            best[key] = path
    crops = []
    for path in best.values():
        image = cv2.imread(path, cv2.IMREAD_COLOR)
        if image is None or min(image.shape[:2]) < 200:
            continue
        h, w = image.shape[:2]
        low = min(h, w)
        whole = image[(h - low) // 2:(h + low) // 2, (w - low) // 2:(w + low) // 2]
        crops.append((0, cv2.resize(whole, (SIDE, SIDE), interpolation=cv2.INTER_AREA), path))
        for rank in range(1, 1 + min(9, w * h // (600 * 600))):
            c = int(rng.integers(min(low, 420), min(low, 1100) + 1))
            y, x = int(rng.integers(0, h - c + 1)), int(rng.integers(0, w - c + 1))
            crops.append((rank, cv2.resize(image[y:y + c, x:x + c], (SIDE, SIDE), interpolation=cv2.INTER_AREA), path))
    total = 0
    for _, image, path in sorted(crops, key=lambda c: c[0]):    # first every picture once, then more of each
        if total > PHOTO_BYTES:
            break
        if lively(image):
            total += pack.write(image, path, 'photo')


def add_game_textures(pack, folder, rng):
    paths = pictures(folder, PACKAGES[9:12], ('.jpg', '.jpeg', '.png', '.tga'))
    total, of_folder = 0, {}
    for path in rng.permutation(paths):
        name, place = os.path.basename(path).lower(), os.path.dirname(path)
        if any(s in name for s in SKIP) or of_folder.get(place, 0) >= 10:
            continue
        image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if image is None or image.ndim != 3 or image.dtype != np.uint8:
            continue
        if image.shape[2] == 4 and (image[..., 3] < 250).mean() > 0.02:
            continue
        h, w = image.shape[:2]
        low = min(h, w)
        if low < 200 or max(h, w) > 2.1 * low:
            continue
        image = image[(h - low) // 2:(h + low) // 2, (w - low) // 2:(w + low) // 2, :3]
        side = min(SIDE, 384 if low < SIDE else SIDE)
        image = cv2.resize(image, (side, side), interpolation=cv2.INTER_AREA)
        if not lively(image):
            continue
        total += pack.write(image, str(path), 'photo')
        of_folder[place] = of_folder.get(place, 0) + 1
        if total > GAME_BYTES:
            break


def add_stamps(pack, folder, rng):
    """Cut-out pictures with an alpha channel, at most 236 pixels large."""
    total = 0
    for path in rng.permutation(pictures(folder, PACKAGES[12:], ('.png',))):
        if any(s in path.lower() for s in ('alphabet', '/math', 'mirror', '00_symbols')):
            continue
        image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        if image is None or image.ndim != 3 or image.shape[2] != 4 or image.dtype != np.uint8:
            continue
        solid = image[..., 3] > 127
        ys, xs = np.where(solid)
        if len(ys) < 900 or solid.mean() > 0.97:
            continue
        gray = cv2.cvtColor(image[..., :3], cv2.COLOR_BGR2GRAY)
        if gray[solid].std() < 18:
            continue
        image = image[ys.min():ys.max() + 1, xs.min():xs.max() + 1].astype(np.float32)
        h, w = image.shape[:2]
        if min(h, w) < 40 or max(h, w) > 4 * min(h, w):
            continue
        image[..., :3] *= image[..., 3:] / 255
        f = min(1.6, 236 / max(h, w))
        image = cv2.resize(image, (round(w * f), round(h * f)), interpolation=cv2.INTER_AREA if f < 1 else cv2.INTER_LINEAR)
        alpha = image[..., 3:]
        rgb = np.where(alpha > 8, image[..., :3] * 255 / np.maximum(alpha, 1), 0)
        total += pack.write(np.concatenate([rgb, alpha], -1).clip(0, 255).round().astype(np.uint8), str(path), 'stamp')
        if total > STAMP_BYTES:
            break


def make(sources, folder, fetch=True):
    """Build the pack in `folder` from packages unpacked below `sources`."""
    os.makedirs(sources, exist_ok=True)
    if fetch:
        download(sources)
    rng, pack = np.random.default_rng(5), Pack(folder)
    for add in (add_photographs, add_game_textures, add_stamps):
        add(pack, sources, rng)
        print(f'{add.__name__}: {len(pack.index)} images, {pack.bytes / 1e6:.1f} MB')
    index = [[name, os.path.relpath(source, sources)] for name, source in pack.index]
    sides = [{identity(s) for n, s in index if n[0] == side} for side in 'tv']
    if sides[0] & sides[1]:
        raise ValueError('held-out pictures among the training ones')
    with open(os.path.join(folder, 'index.json'), 'w') as f:
        json.dump(index, f, indent=0)


# ---------------------------------------------------------------------------------------------- formula images

def silhouettes(rng, count):
    """Blobs, polygons, rings, limbs: coverage [count,256,256] uint8."""
    g = (np.arange(128) + 0.5) / 64 - 1
    x, y = g[None, :], g[:, None]
    radius, angle = np.hypot(x, y) + 1e-3, np.arctan2(y, x)
    out = np.zeros((count, MASK, MASK), np.uint8)
    for i in range(count):
        kind = rng.random()
        if kind < 0.4:
            wobble = 1 + sum(rng.uniform(-0.32, 0.32) / (k * 0.6) * np.cos(k * angle + rng.uniform(0, 6.28))
                             for k in range(2, 8))
            inside = np.clip(rng.uniform(0.47, 0.82) * wobble, 0.1, 0.95) - radius
        elif kind < 0.75:
            inside = np.full((128, 128), 9.0)
            for k in range(7):
                to = rng.uniform(0, 6.28) if k > 3 else rng.uniform(-0.4, 0.4) + k * math.pi / 2
                if k <= 3 or rng.random() < 0.5:
                    inside = np.minimum(inside, rng.uniform(0.27, 0.9) - (x * math.cos(to) + y * math.sin(to)))
        else:
            width = rng.uniform(0.12, 0.35)
            inside = width * (1 + rng.uniform(-0.4, 0.4) * x) - np.hypot(np.maximum(np.abs(x) - 0.9 + width, 0), y)
        if rng.random() < 0.1:
            inside = np.minimum(inside, np.hypot(x - rng.uniform(-0.4, 0.4), y - rng.uniform(-0.4, 0.4))
                                - rng.uniform(0.1, 0.27))
        inside = np.minimum(inside, 0.96 - np.maximum(np.abs(x), np.abs(y)))
        inside = cv2.resize(inside.astype(np.float32), (MASK, MASK), interpolation=cv2.INTER_CUBIC) * 128
        cover = 1 / (1 + np.exp(np.clip(-inside / np.exp(rng.uniform(math.log(0.35), math.log(1.2))), -30, 30)))
        out[i] = np.where(cover < 0.02, 0, cover * 255).round()
    return out


def patterns(rng, count):
    """Nearly plain surfaces (gradients, faint clouds) and regular ones (checks, stripes, dots): [count,512,512,3]."""
    g = (np.arange(SIDE) + 0.5) / SIDE
    x, y = np.meshgrid(g, g)
    out = np.zeros((count, SIDE, SIDE, 3), np.uint8)
    for i in range(count):
        base, slope = rng.uniform(30, 225, 3), rng.normal(size=(2, 3)) * 25
        image = base + (x[..., None] - 0.5) * slope[0] + (y[..., None] - 0.5) * slope[1]
        coarse = cv2.resize(rng.normal(size=(12, 12, 3)).astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        fine = cv2.resize(rng.normal(size=(128, 128, 3)).astype(np.float32), (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        image = image + coarse * rng.uniform(0, 8) + fine * rng.uniform(0, 5)
        if i % 3 == 2:
            n, duty = rng.integers(4, 24), rng.uniform(0.25, 0.75)
            px, py = (x * n) % 1 < duty, (y * n) % 1 < duty
            dots = np.hypot((x * n) % 1 - 0.5, (y * n) % 1 - 0.5) < duty / 2
            on = [px ^ py, px, px | py, dots][rng.integers(4)]
            image = np.where(on[..., None], image, image * 0.3 + rng.uniform(0, 150, 3))
        out[i] = image.clip(0, 255)
    return out


# ------------------------------------------------------------------------------------------------------- loading

def read_photo(path):
    image = cv2.cvtColor(cv2.imread(path, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    if image.shape[0] != SIDE:
        image = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
    return image


def read_stamp(path):
    """(colours [512,512,3], coverage [256,256]) of a cut-out picture, centred."""
    image = cv2.imread(path, cv2.IMREAD_UNCHANGED)[..., [2, 1, 0, 3]]
    h, w = image.shape[:2]
    whole = np.zeros((MASK, MASK, 4), np.uint8)
    y, x = (MASK - h) // 2, (MASK - w) // 2
    whole[y:y + h, x:x + w] = image
    return cv2.resize(whole[..., :3], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR), whole[..., 3]


def mips(image):
    """All levels of an image, flat."""
    levels = [image]
    for _ in range(LEVELS - 1):
        side = levels[-1].shape[0] // 2
        levels.append(cv2.resize(levels[-1], (side, side), interpolation=cv2.INTER_AREA))
    return np.concatenate([l.reshape(-1, *image.shape[2:]) for l in levels])


class Textures:
    """Textures as mip chains in flat arrays (texels int32 0xBBGGRR, masks uint8), and what the truth needs of them.
    `photos`, `plain`, `stamps` are lists of texture numbers; `shapes`, `stamp_masks` of silhouettes."""
    FULL, EMPTY = 0, 1

    def __init__(self, folder, held_out=False, limit=None, threads=8):
        side = 'v' if held_out else 't'
        photos = sorted(glob.glob(os.path.join(folder, f'{side}-photo-*')))[:limit]
        stamps = sorted(glob.glob(os.path.join(folder, f'{side}-stamp-*')))[:limit]
        if not photos:
            raise FileNotFoundError(f'no textures in {folder}: run make-textures')
        rng = np.random.default_rng(11 if held_out else 7)
        few = limit or 400
        formula = patterns(rng, min(few, 60))
        shapes = silhouettes(rng, min(few, 400))
        with ThreadPoolExecutor(threads) as pool:
            cut = list(pool.map(read_stamp, stamps))
            images = list(pool.map(read_photo, photos)) + list(formula) + [c for c, _ in cut]
            packed = pool.map(self.pack, images)
            self.texels = np.concatenate(list(packed))
            self.grain = np.stack(list(pool.map(self.roughness, images)))
        full = [np.full((MASK, MASK), 255, np.uint8), np.zeros((MASK, MASK), np.uint8)]
        covers = full + list(shapes) + [m for _, m in cut]
        self.cover = np.stack(covers)
        self.masks = np.concatenate([mips(m) for m in covers])
        self.photos = np.arange(len(photos))
        self.plain = len(photos) + np.arange(len(formula))
        self.stamps = len(photos) + len(formula) + np.arange(len(cut))
        self.shapes = 2 + np.arange(len(shapes))
        self.stamp_masks = 2 + len(shapes) + np.arange(len(cut))

    @staticmethod
    def pack(image):
        flat = mips(image).astype(np.int32)
        return flat[:, 0] | flat[:, 1] << 8 | flat[:, 2] << 16

    @staticmethod
    def roughness(image):
        """[64,64] in 0..1: how much a texture varies around a place."""
        gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
        change = np.abs(gray - cv2.GaussianBlur(gray, (0, 0), 4))
        return np.minimum(cv2.resize(change, (64, 64), interpolation=cv2.INTER_AREA) / 10, 1)

    def coverage(self, mask, u):
        """Bilinear coverage 0..1 of silhouette `mask` at own coordinates u [...,2]."""
        place = np.clip(u, -2, 2) * (MASK / 2) + MASK / 2 - 0.5
        low = np.floor(place)
        f = place - low
        x, y = low[..., 0].astype(int), low[..., 1].astype(int)
        x0, x1, y0, y1 = (np.clip(v, 0, MASK - 1) for v in (x, x + 1, y, y + 1))
        m = self.cover[mask]
        top = m[y0, x0] * (1 - f[..., 0]) + m[y0, x1] * f[..., 0]
        low_ = m[y1, x0] * (1 - f[..., 0]) + m[y1, x1] * f[..., 0]
        return (top * (1 - f[..., 1]) + low_ * f[..., 1]) / 255 * (np.abs(u) < 1).all(-1)

    def detail(self, scene, owner, point):
        """Roughness of the texture at surface points, 0..1."""
        texture, uv = scene['colour'], scene['uv']
        flat = owner < LAYERS
        layer = np.where(flat, owner, 0)
        t = texture[layer]
        place = (uv[layer][:, :, :2] @ point[:, :2, None])[..., 0] + uv[layer][:, :, 2] + point[:, 2:] * BACK
        if (~flat).any():
            solid = np.where(flat, 0, owner - LAYERS)
            t = np.where(flat, t, scene['solid_colour'][solid])
            on = (scene['solid_uv'][solid][:, :, :3] @ point[..., None])[..., 0] + scene['solid_uv'][solid][:, :, 3]
            place = np.where(flat[:, None], place, on)
        place = 1 - np.abs(1 - np.mod(place, 2))
        cell = np.clip((place * 64).astype(int), 0, 63)
        return self.grain[t, cell[:, 1], cell[:, 0]]
