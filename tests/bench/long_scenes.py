#!/usr/bin/python3
"""Long synthetic videos of 256x256 with exact truth: what tests/bench/long.py measures tracks across seams on.

    tests/bench/long_scenes.py SCENE FRAMES FOLDER      writes SCENE-FRAMES.mkv (FFV1), .queries.csv and .truth.npz

Two scenes, both drawn from numbers alone, a pure function of (scene, seed, frame), any number of frames long:

  mixed   a background that moves on slow curves, and before it
            turn    a disc that turns by 1.5 degrees a frame, without end
            seam    a card that another covers while every second pair of windows of 47 frames meets (overlap 8)
            leave   a card that leaves the frame and returns 101 frames later, in every 300 frames
            hide    a card that moves on while it is covered for 61 frames, more than a whole window, in every 300
  still   nothing moves; only the camera's noise differs from frame to frame (100 frames of it, again and again)

A scene is a list of layers, from back to front: a texture, an outline, and where it is in each frame. A point lies on a
layer, so its track is the layer's motion; it is visible where it is in the frame and no layer before its own covers it. Where
it is within EDGE pixels of an outline or of the frame's edge nobody can tell, and it is not judged.
"""
import dataclasses
import pathlib
import subprocess
import sys

import numpy as np

SIZE = 256
FINE = 2  # texels a pixel
EDGE = 2.0
RATE = 25


def texture(seed, texels=1024):
    """A periodic random texture [texels, texels, 3], floats about 0..1: noise of all sizes, with edges in it."""
    random = np.random.default_rng(seed)
    fy, fx = np.meshgrid(np.fft.fftfreq(texels), np.fft.rfftfreq(texels), indexing="ij")
    frequency = np.hypot(fx, fy) * FINE  # cycles a pixel

    def field(fall, lowest, highest):
        weight = np.where((frequency > lowest) & (frequency < highest), 1, 0) / np.maximum(frequency, 1e-3) ** fall
        value = np.fft.irfft2(np.fft.rfft2(random.normal(size=(texels, texels))) * weight, s=(texels, texels))
        return value / value.std()

    regions = np.tanh(4 * field(1.5, 0.01, 0.12))  # patches with soft edges
    value = np.stack([0.5 + 0.11 * field(1.4, 0.008, 0.25) + 0.15 * random.uniform(-1, 1) * regions for _ in range(3)], -1)
    return np.clip(value, 0.02, 0.98).astype(np.float32)


def look_up(picture, x, y):
    """The texture at pixel positions, repeated without end; bilinear."""
    n = len(picture)
    x, y = x * FINE, y * FINE
    x0, y0 = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    fx, fy = (x - x0)[..., None].astype(np.float32), (y - y0)[..., None].astype(np.float32)
    x0, y0, x1, y1 = x0 % n, y0 % n, (x0 + 1) % n, (y0 + 1) % n
    above = picture[y0, x0] * (1 - fx) + picture[y0, x1] * fx
    return above * (1 - fy) + (picture[y1, x0] * (1 - fx) + picture[y1, x1] * fx) * fy


@dataclasses.dataclass
class Layer:
    name: str
    pose: object  # frame -> centre x, y, angle
    outline: tuple = ()  # (): everywhere; (radius,); (half width, half height)
    picture: np.ndarray = None

    def local(self, t, x, y):
        cx, cy, angle = self.pose(t)
        c, s, x, y = np.cos(angle), np.sin(angle), x - cx, y - cy
        return x * c + y * s, y * c - x * s

    def place(self, t, u, v):
        cx, cy, angle = self.pose(t)
        c, s = np.cos(angle), np.sin(angle)
        return cx + u * c - v * s, cy + u * s + v * c

    def outside(self, u, v):
        """Signed distance from the outline, positive outside."""
        if not self.outline:
            return np.full(np.shape(u), -np.inf)
        if len(self.outline) == 1:
            return np.hypot(u, v) - self.outline[0]
        a, b = np.abs(u) - self.outline[0], np.abs(v) - self.outline[1]
        return np.hypot(np.maximum(a, 0), np.maximum(b, 0)) + np.minimum(np.maximum(a, b), 0)


def still_layers():
    return [Layer("still", lambda t: (128.3, 127.8, 0.0))]


def mixed_layers():
    def seam(t):
        return 196 + 6 * np.sin(t / 25), 60 + 5 * np.cos(t / 18), 0.1 * np.sin(t / 30)

    def seam_cover(t):
        x, y, _ = seam(t)
        return x + 10 * max(0, abs(t % 78 - 43) - 8), y, 0.0

    def leave(t):
        away = 6 * max(0, 65 - abs(t % 300 - 150))
        return 58 + 5 * np.sin(t / 23) - away, 194 + 6 * np.sin(t / 31), 0.25 * np.sin(t / 50)

    def hide(t):
        return 188 + 9 * np.sin(t / 20), 186 + 7 * np.sin(t / 27), 0.12 * np.sin(t / 37)

    def hide_cover(t):
        x, y, _ = hide(t)
        return x, y + 8 * max(0, abs(t % 300 - 105) - 30), 0.0

    return [
        Layer("move", lambda t: (128 + 20 * np.sin(t / 30), 128 + 14 * np.sin(t / 21 + 1), 0.0)),
        Layer("turn", lambda t: (70 + 9 * np.sin(t / 40), 70 + 7 * np.cos(t / 35), np.radians(1.5 * t)), (38,)),
        Layer("leave", leave, (26, 26)),
        Layer("seam", seam, (25, 25)),
        Layer("seam cover", seam_cover, (34, 34)),
        Layer("hide", hide, (23, 23)),
        Layer("hide cover", hide_cover, (33, 33)),
    ]


# Query points: (frame, layer, how many, share of frames that they must be visible in).
QUERIES = {
    "mixed": [(0, "move", 6, 1), (150, "move", 4, 1), (0, "turn", 6, 0), (0, "seam", 6, 0), (0, "leave", 6, 0), (0, "hide", 6, 0)],
    "still": [(0, "still", 16, 1)],
}
NOISE = {"mixed": 1.5, "still": 2.0}  # standard deviation, of 255


class Scene:
    def __init__(self, name, frames, seed=1):
        self.name, self.frames, self.seed = name, frames, seed
        self.layers = {"mixed": mixed_layers, "still": still_layers}[name]()
        for i, layer in enumerate(self.layers):
            layer.picture = texture([seed, i])
        self.choose()

    def number(self, name):
        return next(i for i, layer in enumerate(self.layers) if layer.name == name)

    def render(self, t):
        y, x = np.mgrid[0:SIZE, 0:SIZE] + 0.5
        value = np.zeros((SIZE, SIZE, 3), np.float32)
        for layer in self.layers:
            u, v = layer.local(t, x, y)
            alpha = np.clip(0.5 - layer.outside(u, v), 0, 1)
            here = alpha > 0
            painted = look_up(layer.picture, u[here], v[here])
            value[here] += alpha[here][:, None] * (painted - value[here])
        noise = np.random.default_rng([self.seed, 77, t % 100 if self.name == "still" else t]).normal(size=value.shape) * NOISE[self.name]
        return np.clip(np.round(value * 255 + noise), 0, 255).astype(np.uint8)

    def see(self, number, u, v, t):
        """Positions in frame t of points of a layer, which are visible, and which are judged."""
        x, y = self.layers[number].place(t, u, v)
        free = np.minimum(np.minimum(x, SIZE - x), np.minimum(y, SIZE - y))
        for layer in self.layers[number + 1 :]:
            free = np.minimum(free, layer.outside(*layer.local(t, x, y)))
        return x, y, free > 0, np.abs(free) > EDGE

    def choose(self):
        """The query points, at random places of their layers, at least 5 px from outlines."""
        self.queries, self.groups, points = [], [], []
        random = np.random.default_rng([self.seed, 99])
        checked = np.unique(np.linspace(0, self.frames - 1, min(self.frames, 300)).astype(int))
        for frame, name, count, share in QUERIES[self.name]:
            if frame >= self.frames:
                continue
            number = self.number(name)
            while count > 0:
                x, y = np.round(random.uniform(12, SIZE - 12, 2), 2)
                u, v = self.layers[number].local(frame, x, y)
                if self.layers[number].outside(u, v) > -5 or not np.all(np.array(self.see(number, u, v, frame)[2:])):
                    continue
                if share and np.mean([self.see(number, u, v, t)[2] for t in checked]) < share:
                    continue
                self.queries.append((frame, float(x), float(y)))
                self.groups.append(name)
                points.append((number, u, v))
                count -= 1
        self.points = points

    def truth(self):
        """tracks [N,T,2], visible [N,T], judged [N,T]."""
        n = len(self.points)
        tracks, visible = np.zeros((n, self.frames, 2)), np.zeros((n, self.frames), bool)
        judged = visible.copy()
        for t in range(self.frames):
            for i, (number, u, v) in enumerate(self.points):
                tracks[i, t, 0], tracks[i, t, 1], visible[i, t], judged[i, t] = self.see(number, u, v, t)
        return tracks, visible, judged

    def write_frames(self, out):
        for t in range(self.frames):
            out.write(self.render(t).tobytes())

    def write_raw(self, path):
        """The frames as the network sees them, 256x256 RGB bytes."""
        with open(path, "wb") as out:
            self.write_frames(out)

    def write_video(self, path):
        """Without loss, so that the programs see what `render` gave."""
        command = ["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{SIZE}x{SIZE}",
                   "-r", str(RATE), "-i", "-", "-c:v", "ffv1", "-pix_fmt", "bgr0", str(path)]  # fmt: skip
        with subprocess.Popen(command, stdin=subprocess.PIPE) as ffmpeg:
            self.write_frames(ffmpeg.stdin)
            ffmpeg.stdin.close()
        if ffmpeg.returncode:
            raise RuntimeError("ffmpeg failed")

    def write_queries(self, path):
        lines = ["frame,x,y"] + [f"{frame},{x:.2f},{y:.2f}" for frame, x, y in self.queries]
        pathlib.Path(path).write_text("\n".join(lines) + "\n")


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in QUERIES or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    scene, folder = Scene(sys.argv[1], int(sys.argv[2])), pathlib.Path(sys.argv[3])
    name = f"{scene.name}-{scene.frames}"
    scene.write_queries(folder / f"{name}.queries.csv")
    tracks, visible, judged = scene.truth()
    np.savez_compressed(folder / f"{name}.truth.npz", tracks=tracks, visible=visible, judged=judged,
                        groups=np.array(scene.groups))  # fmt: skip
    scene.write_video(folder / f"{name}.mkv")


if __name__ == "__main__":
    main()
