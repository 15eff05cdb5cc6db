"""Pixels of the scenes of scenes.py, on the CPU or the GPU: about thirty launches a batch when compiled.

Video is [B,T,3,256,256] in 0..1 until it is finished; render() returns [B,T,256,256,3] uint8.
"""
import math

import numpy as np
import torch
import torch.nn.functional as F

from scenes import BACK, FOLDING, LAYERS, SIZE, SOLIDS, SPLIT

TEXTURE = 512           # side of a texture, and
MASK = 256              # of a silhouette, at level 0 of their mip chains
LEVELS = 6
AMBIENT = 0.45


def chain(side):
    """Texels of a mip chain from `side` down, LEVELS levels."""
    return sum((side >> i) ** 2 for i in range(LEVELS))


def fold(x):
    """Mirrored tiling: any number -> 0..1."""
    x = x - 2 * torch.floor(x * 0.5)
    return 1 - (1 - x).abs()


def taps(base, level, side, x, y):
    """Indices and weights of the four texels around x, y (0..1) of mip chains starting at `base`."""
    level = level.clamp(0, LEVELS - 1).round()
    size = side * torch.exp2(-level)
    first = base + ((side * side - size * size) * (4 / 3)).round().long()
    x, y = x * size - 0.5, y * size - 0.5
    x0, y0 = torch.floor(x), torch.floor(y)
    fx, fy = x - x0, y - y0
    limit = size - 1
    zero = torch.zeros_like(limit)
    near = lambda v: torch.minimum(torch.maximum(v, zero), limit)
    xa, xb, ya, yb = near(x0), near(x0 + 1), near(y0), near(y0 + 1)
    at = lambda row, column: first + (row * size + column).long()
    return ((at(ya, xa), (1 - fy) * (1 - fx)), (at(ya, xb), (1 - fy) * fx), (at(yb, xa), fy * (1 - fx)),
            (at(yb, xb), fy * fx))


def fetch_colour(texels, base, level, u, v):
    """Bilinear, mirrored; texels are 0xBBGGRR in int32. Returns r, g, b in 0..1."""
    r = g = b = 0
    for index, weight in taps(base, level, TEXTURE, fold(u), fold(v)):
        texel = texels[index]
        r = r + (texel & 255) * weight
        g = g + ((texel >> 8) & 255) * weight
        b = b + ((texel >> 16) & 255) * weight
    return r / 255, g / 255, b / 255


def fetch_cover(masks, base, level, u, v):
    """Bilinear silhouette, nothing outside; u, v in -1..1."""
    total = 0
    for index, weight in taps(base, level, MASK, u.clamp(-1, 1) * 0.5 + 0.5, v.clamp(-1, 1) * 0.5 + 0.5):
        total = total + masks[index] * weight
    return total / 255 * ((u.abs() < 1) & (v.abs() < 1))


def pixel_grid(device):
    g = torch.arange(SIZE, device=device, dtype=torch.float32) + 0.5
    return g.view(1, 1, 1, SIZE), g.view(1, 1, SIZE, 1)


def paint_layer(video, texels, masks, inverse, k, a, phase, mask, colour, uv, lod, mask_lod, gain, bias, flicker, opaque,
                fold=None, crease=None):
    """One layer of every clip over video. inverse [B,T,3,3], k, a [B,3,2], phase [B,T,3], mask, colour [B] (first
    texels), uv [B,2,3], lod, mask_lod, flicker [B,T], gain, bias [B,3], opaque [B]; fold [B,2] and crease [B,T] where it
    may be folded."""
    x, y = pixel_grid(video.device)
    m = inverse[..., None, None]
    c = m[:, :, 2, 0] * x + m[:, :, 2, 1] * y + m[:, :, 2, 2]
    behind = c <= 1e-6
    c = torch.where(behind, torch.ones_like(c), c)
    far = torch.full_like(c, 1e4)
    wx = torch.where(behind, far, (m[:, :, 0, 0] * x + m[:, :, 0, 1] * y + m[:, :, 0, 2]) / c)
    wy = torch.where(behind, far, (m[:, :, 1, 0] * x + m[:, :, 1, 1] * y + m[:, :, 1, 2]) / c)
    one = lambda t: t[:, None, None, None]

    def waved(x, y):
        u, v = x, y
        for i in range(k.shape[1]):
            s = torch.sin(x * one(k[:, i, 0]) + y * one(k[:, i, 1]) + phase[:, :, i, None, None])
            u, v = u + s * one(a[:, i, 0]), v + s * one(a[:, i, 1])
        return u, v, fetch_cover(masks, one(mask), mask_lod[..., None, None], u, v)

    u, v, cover = waved(wx, wy)
    cover = torch.maximum(cover, one(opaque))
    back = torch.zeros_like(u)
    if fold is not None:                    # see scenes.layer_at; the crease is as soft as one pixel
        beyond = wx * one(fold[:, 0]) + wy * one(fold[:, 1]) - crease[..., None, None]
        fu, fv, flap = waved(wx - 2 * beyond * one(fold[:, 0]), wy - 2 * beyond * one(fold[:, 1]))
        top = flap > 0.5
        u, v, back = torch.where(top, fu, u), torch.where(top, fv, v), top.float()
        pixel = torch.exp2(mask_lod + 0.2)[..., None, None] * (2 / MASK)
        cover = torch.maximum(cover, flap) * (0.5 - beyond / pixel).clamp(0, 1)
    tu = u * one(uv[:, 0, 0]) + v * one(uv[:, 0, 1]) + one(uv[:, 0, 2]) + back * BACK[0]
    tv = u * one(uv[:, 1, 0]) + v * one(uv[:, 1, 1]) + one(uv[:, 1, 2]) + back * BACK[1]
    rgb = torch.stack(fetch_colour(texels, one(colour), lod[..., None, None], tu, tv), 2)
    rgb = (rgb * gain[:, None, :, None, None] + bias[:, None, :, None, None]).clamp(0, 1)
    rgb = rgb * flicker[..., None, None, None] * (1 - 0.3 * back)[:, :, None]
    cover = cover[:, :, None]
    return (video * (1 - cover) + rgb * cover).to(video.dtype)


def paint_solids(video, texels, ray, half, round_axes, room, light, shine, gloss, uv, colour, lod, gain, bias):
    """The solids of some clips over video, four samples a pixel. ray [B,K,T,3,4], half, round_axes [B,K,3], room,
    gloss, colour, lod [B,K], light, shine [B,K,T,3], uv [B,K,2,4], gain, bias [B,K,3]. See scenes.first_hit."""
    g = torch.arange(SIZE, device=video.device, dtype=torch.float32) + 0.5
    step = torch.tensor([-0.25, 0.25], device=video.device)
    x = g.view(1, 1, 1, 1, SIZE) + step.repeat(2).view(1, 1, 4, 1, 1)
    y = g.view(1, 1, 1, SIZE, 1) + step.repeat_interleave(2).view(1, 1, 4, 1, 1)
    at = lambda t: t[:, :, None, None, None]                    # [B,T] -> [B,T,1,1,1]
    clip = lambda t: t[:, None, None, None, None]               # [B]
    best = tu = tv = level = shade = glint = base = None
    red = green = blue = red0 = green0 = blue0 = None
    big = 1e9
    for i in range(ray.shape[1]):
        m = ray[:, i]
        d = [at(m[:, :, r, 0]) * x + at(m[:, :, r, 1]) * y + at(m[:, :, r, 2]) for r in range(3)]
        o = [at(m[:, :, r, 3]) for r in range(3)]
        q = [clip(round_axes[:, i, r]) for r in range(3)]
        a = (q[0] * d[0] * d[0] + q[1] * d[1] * d[1] + q[2] * d[2] * d[2]).clamp(min=1e-12)
        b = q[0] * d[0] * o[0] + q[1] * d[1] * o[1] + q[2] * d[2] * o[2]
        c = q[0] * o[0] * o[0] + q[1] * o[1] * o[1] + q[2] * o[2] * o[2] - 1
        root = b * b - a * c
        reach = torch.sqrt(root.clamp(min=0))
        curved = q[0] + q[1] + q[2] > 0
        near = torch.where(curved, torch.where(root > 0, (-b - reach) / a, big), -big)
        far = torch.where(curved, torch.where(root > 0, (-b + reach) / a, -big), big)
        for r in range(3):
            along = torch.where(d[r].abs() < 1e-9, 1e-9, d[r])
            t0, t1 = (-1 - o[r]) / along, (1 - o[r]) / along
            cut = q[r] < 0.5
            near = torch.where(cut, torch.maximum(near, torch.minimum(t0, t1)), near)
            far = torch.where(cut, torch.minimum(far, torch.maximum(t0, t1)), far)
        inside = clip(room[:, i]) > 0.5
        depth = torch.where(inside, far, near)
        depth = torch.where((near < far) & (depth > 0.05), depth, big)
        p = [(o[r] + depth.clamp(max=100) * d[r]).clamp(-2, 2) for r in range(3)]
        flat = [(1 - q[r]) * p[r].abs() for r in range(3)]
        top = torch.maximum(flat[0], torch.maximum(flat[1], flat[2]))
        on_face = top > 0.9995
        n = [torch.where(on_face, torch.where(flat[r] >= top, torch.sign(p[r]), 0.0), q[r] * p[r]) / clip(half[:, i, r])
             for r in range(3)]
        length = torch.rsqrt((n[0] * n[0] + n[1] * n[1] + n[2] * n[2]).clamp(min=1e-12))
        length = torch.where(inside, -length, length)
        lit = sum(n[r] * at(light[:, i, :, r]) for r in range(3)) * length
        bright = sum(n[r] * at(shine[:, i, :, r]) for r in range(3)) * length
        slant = (sum(n[r] * clip(half[:, i, r]) * d[r] for r in range(3)) * length).abs()
        su = sum(p[r] * clip(uv[:, i, 0, r]) for r in range(3)) + clip(uv[:, i, 0, 3])
        sv = sum(p[r] * clip(uv[:, i, 1, r]) for r in range(3)) + clip(uv[:, i, 1, 3])
        mip = clip(lod[:, i]) + torch.log2(depth.clamp(0.05, 100)) - 0.5 * torch.log2(slant.clamp(0.1, 1))
        spot = clip(gloss[:, i]) * torch.exp(24 * (bright.clamp(-1, 1) - 1))
        new = [depth, su, sv, mip, lit, spot, clip(colour[:, i])]
        new += [clip(gain[:, i, r]) for r in range(3)] + [clip(bias[:, i, r]) for r in range(3)]
        if best is None:
            full = [torch.zeros_like(depth) + n_ if n_.dtype.is_floating_point else n_.expand(depth.shape) for n_ in new]
            best, tu, tv, level, shade, glint, base, red, green, blue, red0, green0, blue0 = full
            continue
        front = depth < best
        pick = lambda fresh, old: torch.where(front, fresh, old)
        (best, tu, tv, level, shade, glint, base, red, green, blue, red0, green0, blue0) = [
            pick(f, o_) for f, o_ in zip(new, (best, tu, tv, level, shade, glint, base, red, green, blue, red0, green0,
                                               blue0))]
    r, g, b = fetch_colour(texels, base, level, tu, tv)
    lamp = AMBIENT + (1.15 - AMBIENT) * shade.clamp(min=0)
    seen = (best < big * 0.5).float()
    cover = seen.mean(2)[:, :, None]
    rgb = [((c * gn + bs).clamp(0, 1) * lamp + glint) * seen
           for c, gn, bs in ((r, red, red0), (g, green, green0), (b, blue, blue0))]
    rgb = torch.stack([c.mean(2) for c in rgb], 2)
    return (video * (1 - cover) + rgb).to(video.dtype)


# ------------------------------------------------------------------------------------------------ film effects

def expose(video, gain, offset, gamma, shadow):
    """Gamma, a moving soft shadow, gain [B,T,3] and offset [B,T]."""
    x, y = pixel_grid(video.device)
    one = lambda t: t[..., None, None]
    v = video.float().clamp(0.0005, 1)
    v = torch.exp(torch.log(v) * gamma[..., None, None, None])
    s = torch.sin(x * one(shadow[..., 1]) + y * one(shadow[..., 2]) + one(shadow[..., 3]))
    v = v * (1 - one(shadow[..., 0]) * torch.sigmoid(6 * s))[:, :, None]
    return (v * gain[..., None, None] + offset[..., None, None, None]).to(video.dtype)


def soften(video, sigma):
    """Gaussian blur of each clip with its own sigma [B]."""
    B, T = video.shape[:2]
    r = 4
    place = torch.arange(-r, r + 1, device=video.device).float()
    w = torch.exp(-0.5 * (place / sigma.clamp(min=0.05)[:, None]) ** 2)
    w = (w / w.sum(1, keepdim=True)).to(video.dtype)
    z = video.reshape(B, T * 3, SIZE, SIZE).transpose(0, 1)
    z = F.conv2d(F.pad(z, (r, r, 0, 0), mode='reflect'), w.view(B, 1, 1, -1), groups=B)
    z = F.conv2d(F.pad(z, (0, 0, r, r), mode='reflect'), w.view(B, 1, -1, 1), groups=B)
    return z.transpose(0, 1).reshape(video.shape)


def coarsen(video):
    """As if enlarged from half as many pixels."""
    low = F.avg_pool2d(video.flatten(0, 1), 2)
    return F.interpolate(low, scale_factor=2, mode='bilinear', align_corners=False).view_as(video)


LUMA = torch.tensor([[16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55],
                     [14, 13, 16, 24, 40, 57, 69, 56], [14, 17, 22, 29, 51, 87, 80, 62],
                     [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
                     [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99]]) / 255
YCC = torch.tensor([[.299, .587, .114], [-.1687, -.3313, .5], [.5, -.4187, -.0813]])
DCT = torch.cos((2 * torch.arange(8.)[None] + 1) * torch.arange(8.)[:, None] * math.pi / 16) * 0.5
DCT[0] *= math.sqrt(0.5)


def transform_code(video, quality, luma, dct, ycc, back):
    """8x8 transform coding with step quality*luma (chroma 1.8 times as coarse); quality [B]."""
    B, T = video.shape[:2]
    v = video.float()
    y = torch.einsum('ij,bfjhw->bfihw', ycc, v).view(B, T, 3, 32, 8, 32, 8).transpose(4, 5)
    c = dct @ y @ dct.T
    step = (luma * quality.clamp(min=0.01).view(B, 1, 1)).view(B, 1, 1, 1, 1, 8, 8)
    step = step * torch.tensor([1, 1.8, 1.8], device=v.device).view(1, 1, 3, 1, 1, 1, 1)
    c = torch.round(c / step) * step
    y = (dct.T @ c @ dct).transpose(4, 5).reshape(v.shape)
    return torch.einsum('ij,bfjhw->bfihw', back, y).to(video.dtype)


def bars(video, size, dim):
    """Black bars: size [B,2] as fractions of width and height, of brightness dim [B]."""
    x, y = pixel_grid(video.device)
    wide, tall = size[:, 0].view(-1, 1, 1, 1) * SIZE, size[:, 1].view(-1, 1, 1, 1) * SIZE
    outside = (x < wide) | (x > SIZE - wide) | (y < tall) | (y > SIZE - tall)
    return torch.where(outside[:, :, None], dim.view(-1, 1, 1, 1, 1).to(video.dtype), video)


# ---------------------------------------------------------------------------------------------------- renderer

class Renderer:
    """Holds the textures on a device; render(batch of scenes.draw_batch) -> uint8 video."""

    def __init__(self, textures, device):
        self.device = torch.device(device)
        self.texels = torch.from_numpy(textures.texels).to(self.device)
        self.masks = torch.from_numpy(textures.masks).to(self.device)
        self.dtype = torch.float16 if self.device.type == 'cuda' else torch.float32
        self.code = [t.to(self.device) for t in (LUMA, DCT, YCC, torch.linalg.inv(YCC))]
        self.compile(False)

    def compile(self, on):
        """Whether what takes most of the time is compiled (at the next batch)."""
        self.compiled = on
        compile_ = (lambda f: torch.compile(f, dynamic=False)) if on else (lambda f: f)
        self.paint_layer, self.paint_solids, self.expose = (compile_(f) for f in (paint_layer, paint_solids, expose))

    def upload(self, batch):
        cuda = self.device.type == 'cuda'
        host = lambda v: torch.from_numpy(np.ascontiguousarray(v))
        move = lambda v: host(v).pin_memory().to(self.device, non_blocking=True) if cuda else host(v)
        return {k: move(v) if isinstance(v, np.ndarray) else v for k, v in batch.items()}

    @torch.no_grad()
    def render(self, batch):
        b = self.upload(batch)
        sub = batch['sub']
        takes = [self.moment(b, s) for s in range(sub)]
        video = takes[0]
        if sub > 1:
            video = sum(t.float() for t in takes).div(sub).to(self.dtype)
            if batch['interlaced'].any():
                odd = (torch.arange(SIZE, device=self.device) % 2 == 1).view(1, 1, 1, SIZE, 1)
                fields = torch.where(odd, takes[2], takes[0])
                video = torch.where(b['interlaced'].view(-1, 1, 1, 1, 1) > 0, fields, video)
        return self.finish(b, batch, video)

    def moment(self, b, s):
        """The scenes at the s-th moment of each frame."""
        pick = lambda key: b[key][:, :, s::b['sub']].contiguous()
        inverse, phase, flicker, crease = pick('inverse'), pick('phase'), pick('flicker'), pick('crease')
        footprint = torch.log2(pick('footprint').clamp(min=1e-6))
        B, _, T = inverse.shape[:3]
        stretch = torch.log2((b['uv'][..., 0, 0] * b['uv'][..., 1, 1] - b['uv'][..., 0, 1] * b['uv'][..., 1, 0]).abs()
                             .sqrt() * TEXTURE)
        lod = footprint + stretch[..., None] - 0.2
        mask_lod = footprint + math.log2(MASK / 2) - 0.2
        video = torch.zeros(B, T, 3, SIZE, SIZE, device=self.device, dtype=self.dtype)
        for layer in range(LAYERS):
            if layer == SPLIT and b['solid_clips']:
                video = self.solids(b, s, video)
            opaque = torch.full((B,), float(layer == 0), device=self.device)
            part = lambda t: t[:, layer].contiguous()
            video = self.paint_layer(video, self.texels, self.masks, part(inverse), part(b['wave_k']), part(b['wave_a']),
                                     part(phase), part(b['mask']) * chain(MASK), part(b['colour']) * chain(TEXTURE),
                                     part(b['uv']), part(lod), part(mask_lod), part(b['layer_gain']),
                                     part(b['layer_bias']), part(flicker), opaque,
                                     *((part(b['fold']), part(crease)) if layer in FOLDING else ()))
        return video

    def solids(self, b, s, video):
        n = b['solid_clips']
        pick = lambda key: b[key][:, :, s::b['sub']].contiguous()
        done = self.paint_solids(video[:n].contiguous(), self.texels, pick('ray'), b['half'], b['round'], b['room'],
                                 pick('light'), pick('shine'), b['gloss'], b['solid_uv'],
                                 b['solid_colour'] * chain(TEXTURE), b['solid_lod'], b['solid_gain'], b['solid_bias'])
        return torch.cat([done, video[n:]]) if n < len(video) else done

    def finish(self, b, batch, video):
        video = self.expose(video, b['gain'], b['offset'], b['gamma'], b['shadow'])
        video = self.some(video, batch['blur'] > 0.1, soften, b['blur'])
        video = self.some(video, batch['coarse'] > 0, coarsen)
        if batch['noise'].any():
            seed = torch.Generator(device=self.device).manual_seed(int(batch['index']) + 1)
            grain = torch.randn(video.shape, generator=seed, device=self.device, dtype=video.dtype)
            video = video + grain * b['noise'].view(-1, 1, 1, 1, 1).to(video.dtype)
        video = self.some(video, batch['quality'] > 0, lambda v, q: transform_code(v, q, *self.code), b['quality'])
        if batch['bars'].any():
            video = bars(video, b['bars'], b['dim'])
        return (video.float().clamp(0, 1) * 255).round().byte().permute(0, 1, 3, 4, 2).contiguous()

    def some(self, video, which, effect, *strengths):
        """The effect on the chosen clips only."""
        at = torch.from_numpy(np.flatnonzero(which)).to(self.device)
        if not len(at):
            return video
        return video.index_copy(0, at, effect(video[at], *(s[at] for s in strengths)))
