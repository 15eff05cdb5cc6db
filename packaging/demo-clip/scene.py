"""The demo clip's world: textures, bodies, camera, and the two ways between pixels and points of a body.

Everything is drawn from arithmetic: no image, mesh or font comes from elsewhere. `Scene.cast` goes from pixels to the
surface they show (ray against body); `Scene.project` goes from a point of a body to its pixel. The picture is made by the
first, the exact tracks by the second, and a point is occluded where the first does not lead back to it.

Units: metres and seconds, y up, z away from the first camera; pixels in the raster convention (the first pixel's centre is
0.5, 0.5). Angles in radians. Time is the frame number divided by FPS. Only numpy is needed.
"""
import numpy as np

WIDTH, HEIGHT, FRAMES, FPS = 512, 288, 100, 25
TEXELS = 512  # textures are TEXELS x TEXELS and wrap around


def rotation(axis, angle):
    """Right-handed rotation matrix about the unit vector `axis`."""
    x, y, z = np.asarray(axis, float) / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def ease(time, begin, end):
    """0 before `begin`, 1 after `end`, smooth between."""
    u = np.clip((time - begin) / (end - begin), 0, 1)
    return u * u * (3 - 2 * u)


# --- textures: float arrays [TEXELS, TEXELS, 3], 0..1 -----------------------------------------------------------------


def lattice(seed, rows, columns):
    """rows x columns numbers in 0..1 from an integer hash (splitmix64), so that every machine draws the same."""
    with np.errstate(over="ignore"):
        z = np.arange(1, rows * columns + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = z + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(40)).astype(float) / 2**24).reshape(rows, columns)


def value_noise(seed, rows, columns):
    """One octave of smooth noise: a lattice of rows x columns values, interpolated, wrapping around."""
    values = lattice(seed, rows, columns)

    def steps(cells):
        position = (np.arange(TEXELS) + 0.5) * cells / TEXELS
        cell = np.floor(position).astype(int)
        u = position - cell
        return cell % cells, (cell + 1) % cells, u * u * u * (u * (6 * u - 15) + 10)

    y0, y1, v = steps(rows)
    x0, x1, u = steps(columns)
    v = v[:, None]
    top = values[y0][:, x0] * (1 - u) + values[y0][:, x1] * u
    low = values[y1][:, x0] * (1 - u) + values[y1][:, x1] * u
    return top * (1 - v) + low * v


def noise(seed, cells, octaves, stretch=1):
    """Octaves of value noise, 0..1, `cells` in the first; `stretch` times as many down as across."""
    total, weight = np.zeros((TEXELS, TEXELS)), 0.0
    for octave in range(octaves):
        amount = 0.55**octave
        total += amount * value_noise(seed * 31 + octave, cells * stretch << octave, cells << octave)
        weight += amount
    return np.clip((total / weight - 0.5) * 1.6 + 0.5, 0, 1)


def ramp(value, *colours):
    """Colours (hex) placed evenly along 0..1 and blended."""
    table = np.array([[int(c[i : i + 2], 16) / 255 for i in (0, 2, 4)] for c in colours])
    position = np.clip(value, 0, 1) * (len(table) - 1)
    below = np.minimum(position.astype(int), len(table) - 2)
    u = (position - below)[..., None]
    return table[below] * (1 - u) + table[below + 1] * u


def edge(value, width):
    """0 to 1 as `value` crosses 0, over `width` to each side."""
    return np.clip(value / (2 * width) + 0.5, 0, 1)


def mix(under, over, amount):
    return under * (1 - amount[..., None]) + np.asarray(over) * amount[..., None]


def colour(code):
    return ramp(np.zeros(()), code, code)


def texture_wall(seed):
    """A hand-drawn map: height in soft colours, contour lines on it."""
    height = noise(seed, 7, 5)
    picture = ramp(height, "2f5d62", "5f8f86", "b7c9a8", "e6d9b0", "d9a679", "b8675a")
    picture = picture * (0.86 + 0.28 * noise(seed + 1, 40, 3)[..., None])
    phase = np.abs((height * 11) % 1 - 0.5)
    slope = np.hypot(*np.gradient(height * 11)) + 1e-6
    return mix(picture, colour("3b3a3a"), 0.55 * edge(1.1 - phase / slope, 0.5))


def texture_floor(seed):
    """Planks: each its own tone and grain, with dark joints."""
    y, x = (np.mgrid[0:TEXELS, 0:TEXELS] + 0.5) / TEXELS
    rows = 8
    row = np.floor(y * rows).astype(int)
    shift = lattice(seed, rows, 1)[row, 0]
    column = np.floor((x + shift) * 3).astype(int) % 3
    tone = lattice(seed + 1, rows, 3)[row, column]
    grain = noise(seed + 2, 4, 5, 8)
    picture = ramp(0.55 * tone + 0.45 * grain, "4e3526", "7a5437", "a9784c", "caa071")
    knots = noise(seed + 3, 10, 2)
    picture = mix(picture, colour("3a2518"), 0.75 * edge(knots - 0.83, 0.04))
    joint = np.minimum(np.abs((y * rows + 0.5) % 1 - 0.5) / rows, np.abs(((x + shift) * 3 + 0.5) % 1 - 0.5) / 3)
    return mix(picture, colour("24160f"), edge(0.004 - joint, 0.0015))


def texture_globe(seed):
    """Land and sea with a few meridians."""
    height = noise(seed, 5, 5, 1)
    sea = ramp(height / 0.5, "123a63", "1f5f8f", "5fb0c4")
    land = ramp((height - 0.5) / 0.4, "e4d49a", "7fa650", "3f7a3d", "8c6f4e", "f2efe6")
    picture = mix(sea, land, edge(height - 0.5, 0.008))
    y, x = (np.mgrid[0:TEXELS, 0:TEXELS] + 0.5) / TEXELS
    line = np.minimum(np.abs((x * 12 + 0.5) % 1 - 0.5) / 12, np.abs((y * 6 + 0.5) % 1 - 0.5) / 12)
    return mix(picture, colour("f6f1dc"), 0.5 * edge(0.0022 - line, 0.0012))


def texture_ball(seed):
    """A beach ball: six coloured segments, specks of paint."""
    y, x = (np.mgrid[0:TEXELS, 0:TEXELS] + 0.5) / TEXELS
    segment = np.floor(x * 6).astype(int) % 6
    tones = np.array([colour(c) for c in ("d6453d", "f3efe2", "f0b43c", "f3efe2", "2f7fb8", "f3efe2")])
    picture = tones[segment]
    cap = edge(0.09 - np.minimum(y, 1 - y), 0.004)
    picture = mix(picture, colour("37474f"), cap)
    specks = noise(seed, 22, 2)
    picture = mix(picture, colour("2b2b33"), 0.85 * edge(specks - 0.74, 0.03))
    return mix(picture, colour("fffdf5"), 0.9 * edge(noise(seed + 1, 18, 2) - 0.78, 0.03))


def texture_face(seed, base, ink, other):
    """A painted face of the cube: big blobs, rings and a frame in three colours."""
    y, x = (np.mgrid[0:TEXELS, 0:TEXELS] + 0.5) / TEXELS
    picture = ramp(0.25 + 0.5 * noise(seed, 6, 4), base, base, "ffffff") * (0.75 + 0.25 * noise(seed + 1, 40, 2)[..., None])
    blobs = noise(seed + 2, 5, 3)
    picture = mix(picture, colour(ink), edge(blobs - 0.6, 0.012))
    cx, cy = 0.3 + 0.4 * lattice(seed, 1, 2)[0]
    ring = np.abs(np.hypot(x - cx, y - cy) - 0.22)
    picture = mix(picture, colour(other), edge(0.035 - ring, 0.005))
    border = np.minimum(np.minimum(x, 1 - x), np.minimum(y, 1 - y))
    return mix(picture, colour("2a2a2e"), edge(0.04 - border, 0.005))


def texture_painting(seed):
    """A framed landscape: sun, four ranges of hills."""
    y, x = (np.mgrid[0:TEXELS, 0:TEXELS] + 0.5) / TEXELS
    picture = ramp(y + 0.15 * (noise(seed, 4, 4, 2) - 0.5), "233a6b", "8a5a88", "e98a5b", "f8d37c")
    picture = mix(picture, colour("fff3c4"), edge(0.085 - np.hypot(x - 0.68, (y - 0.4) * 0.7), 0.006))
    for i, tone in enumerate(("9a7390", "6f6f92", "4f7286", "4d6b4a")):
        ridge = 0.5 + 0.11 * i - 0.22 * (noise(seed + 5 + i, 3 + i, 5)[17 * i + 40][None, :] - 0.4)
        hill = colour(tone) * (0.8 + 0.5 * noise(seed + 20 + i, 14, 3)[..., None])
        picture = mix(picture, hill, edge(y - ridge, 0.004))
    border = np.minimum(np.minimum(x, 1 - x), np.minimum(y, 1 - y) * 0.7)
    frame = colour("b98a3e") * (0.6 + 0.6 * noise(seed + 9, 30, 2)[..., None])
    return mix(picture, frame, edge(0.05 - border, 0.003))


def texture_pole(seed):
    """A spiral of three paints, worn."""
    y, x = (np.mgrid[0:TEXELS, 0:TEXELS] + 0.5) / TEXELS
    stripe = np.floor((x + y * 2) * 3 % 3).astype(int) % 3
    picture = np.array([colour(c) for c in ("efe9dc", "b5403a", "2d4f73")])[stripe]
    worn = noise(seed, 9, 4)
    picture = picture * (0.8 + 0.35 * noise(seed + 1, 30, 2)[..., None])
    return mix(picture, colour("7d6a58"), 0.9 * edge(worn - 0.62, 0.02))


def texture_wagon(seed):
    """Patched cloth: squares of many tones, stitched."""
    y, x = (np.mgrid[0:TEXELS, 0:TEXELS] + 0.5) / TEXELS
    n = 6
    row, column = np.floor(y * n).astype(int), np.floor(x * n).astype(int)
    picture = ramp(lattice(seed, n, n)[row, column], "7a3b4f", "d9795d", "f0cf8e", "6f9c8a", "2f5a6e", "8f7fb0")
    weave = noise(seed + 2, 36, 2)
    picture = picture * (0.7 + 0.5 * weave[..., None])
    joint = np.minimum(np.abs((y * n + 0.5) % 1 - 0.5), np.abs((x * n + 0.5) % 1 - 0.5)) / n
    return mix(picture, colour("2b2430"), edge(0.006 - joint, 0.002))


def texture_wheel(seed):
    """Hub, five spokes and a rim, for the flat sides of a wheel (u, v = -1..1 over the whole texture)."""
    y, x = (np.mgrid[0:TEXELS, 0:TEXELS] + 0.5) / TEXELS * 2 - 1
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    picture = ramp(noise(seed, 12, 3), "d8c9a0", "f0e6c8")
    picture = mix(picture, colour("9c4a35"), edge(0.35 - np.abs((angle * 5 / (2 * np.pi)) % 1 - 0.5), 0.02))
    picture = mix(picture, colour("3c3a40"), edge(radius - 0.78, 0.02))
    picture = mix(picture, colour("e9b949"), edge(0.3 - radius, 0.02))
    return mix(picture, colour("30343c"), edge(0.1 - np.hypot(x - 0.1, y), 0.02))


def look_up(texture, u, v):
    """Bilinear sample with wrap-around; u, v in textures (1 is one whole width)."""
    x, y = u * TEXELS - 0.5, v * TEXELS - 0.5
    x0, y0 = np.floor(x), np.floor(y)
    fx, fy = (x - x0)[..., None].astype(np.float32), (y - y0)[..., None].astype(np.float32)
    x0, y0 = x0.astype(int) % TEXELS, y0.astype(int) % TEXELS
    x1, y1 = (x0 + 1) % TEXELS, (y0 + 1) % TEXELS
    return (texture[y0, x0] * (1 - fx) + texture[y0, x1] * fx) * (1 - fy) + (
        texture[y1, x0] * (1 - fx) + texture[y1, x1] * fx
    ) * fy


# --- bodies -----------------------------------------------------------------------------------------------------------


class Body:
    """A shape with a name, a pose (time -> rotation matrix, position) and paint (local point, normal -> colour).

    `hit(origin, direction)`, in the body's own coordinates, gives the distance along the ray (inf: missed) and the outward
    normal. `radius` bounds the shape."""

    def __init__(self, name, pose, paint, gloss=0.0):
        self.name, self.pose, self.paint, self.gloss = name, pose, paint, gloss


class Sphere(Body):
    def __init__(self, name, radius, pose, paint, gloss=0.0):
        super().__init__(name, pose, paint, gloss)
        self.radius = radius

    def hit(self, origin, direction):
        b = (direction * origin).sum(-1)
        a = (direction * direction).sum(-1)
        disc = b * b - a * ((origin * origin).sum(-1) - self.radius**2)
        root = np.sqrt(np.maximum(disc, 0))
        near = (-b - root) / a
        distance = np.where((disc > 0) & (near > 1e-6), near, np.inf)
        point = origin + direction * np.where(np.isfinite(distance), distance, 0)[..., None]
        return distance, point / self.radius


class Box(Body):
    def __init__(self, name, half, pose, paint, gloss=0.0):
        super().__init__(name, pose, paint, gloss)
        self.half, self.radius = np.array(half, float), float(np.linalg.norm(half))

    def hit(self, origin, direction):
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = 1 / direction
            near = -origin * inverse - np.abs(inverse) * self.half
            far = -origin * inverse + np.abs(inverse) * self.half
        axis = near.argmax(-1)
        enter = np.take_along_axis(near, axis[..., None], -1)[..., 0]
        distance = np.where((enter < far.min(-1)) & (enter > 1e-6), enter, np.inf)
        normal = np.zeros(direction.shape, direction.dtype)
        sign = -np.sign(np.take_along_axis(direction, axis[..., None], -1))
        np.put_along_axis(normal, axis[..., None], sign, -1)
        return distance, normal


class Cylinder(Body):
    """Axis along z."""

    def __init__(self, name, radius, half_length, pose, paint, gloss=0.0):
        super().__init__(name, pose, paint, gloss)
        self.round, self.half, self.radius = radius, half_length, float(np.hypot(radius, half_length))

    def hit(self, origin, direction):
        ox, oy, oz = np.moveaxis(origin, -1, 0)
        dx, dy, dz = np.moveaxis(direction, -1, 0)
        a, b = dx * dx + dy * dy + 1e-12, ox * dx + oy * dy
        disc = b * b - a * (ox * ox + oy * oy - self.round**2)
        root = np.sqrt(np.maximum(disc, 0))
        side_in, side_out = (-b - root) / a, (-b + root) / a
        with np.errstate(divide="ignore", invalid="ignore"):
            cap_in = -oz / dz - np.abs(self.half / dz)
            cap_out = -oz / dz + np.abs(self.half / dz)
        enter = np.maximum(side_in, cap_in)
        whole = (disc > 0) & (enter < np.minimum(side_out, cap_out)) & (enter > 1e-6)
        distance = np.where(whole, enter, np.inf)
        point = origin + direction * np.where(whole, enter, 0)[..., None]
        cap = (cap_in > side_in)[..., None]
        flat = np.stack([np.zeros_like(dz), np.zeros_like(dz), -np.sign(dz)], -1)
        return distance, np.where(cap, flat, point * (np.array([1, 1, 0]) / self.round).astype(point.dtype))


def paint_box(textures, half, scale=None):
    """One texture a face (or one for all). With `scale` the paint is laid on in metres, otherwise a face is one texture."""

    def paint(point, normal):
        axis = np.abs(normal).argmax(-1)
        out = np.zeros(point.shape, np.float32)
        for i, (a, b) in enumerate(((2, 1), (0, 2), (0, 1))):
            for side in (0, 1):
                here = (axis == i) & ((normal[..., i] > 0) == bool(side))
                if here.any():
                    p = point[here]
                    u, v = (p[:, a], -p[:, b]) if scale is None else (p[:, a] / scale, -p[:, b] / scale)
                    if scale is None:
                        u, v = u / (2 * half[a]) + 0.5, v / (2 * half[b]) + 0.5
                        u, v = np.clip(u, 0.001, 0.999), np.clip(v, 0.001, 0.999)
                    out[here] = look_up(textures[(2 * i + side) % len(textures)], u, v)
        return out

    return paint


def paint_sphere(texture):
    def paint(point, normal):
        u = np.arctan2(normal[..., 0], normal[..., 2]) / (2 * np.pi)
        return look_up(texture, u, 0.5 - np.arcsin(np.clip(normal[..., 1], -1, 1)) / np.pi)

    return paint


def paint_cylinder(side, cap, radius, turns):
    """`turns` textures along one circumference's length of axis."""

    def paint(point, normal):
        u = np.arctan2(point[..., 1], point[..., 0]) / (2 * np.pi)
        out = look_up(side, u, point[..., 2] / (2 * np.pi * radius) * turns)
        flat = np.abs(normal[..., 2]) > 0.5
        if flat.any():
            p = point[flat] / (2 * radius)
            out[flat] = look_up(cap, np.clip(p[:, 0] + 0.5, 0.001, 0.999), np.clip(0.5 - p[:, 1], 0.001, 0.999))
        return out

    return paint


# --- the scene --------------------------------------------------------------------------------------------------------

UP = np.eye(3)
LIGHT = np.array([-0.5, 0.85, -0.6]) / np.linalg.norm([-0.5, 0.85, -0.6])


def still(*position):
    return lambda time: (UP, np.array(position, float))


def pose_globe(time):
    tilt = rotation((0, 0, 1), -0.4)
    return tilt @ rotation((0, 1, 0), -1.15 * time + 0.6), np.array([-1.55, 0.86, 3.1])


def pose_ball(time):
    x = -2.9 + 1.55 * time
    bounce = 0.28 * abs(np.sin(2.4 * time + 0.6))
    return rotation((0.12, 0, 1), -1.55 * time / 0.33) @ rotation((1, 0, 0.3), 0.7), np.array([x, 0.33 + bounce, 2.25])


def pose_cube(time):
    turn = rotation((0, 1, 0), 0.5 + 0.95 * time) @ rotation((1, 0.2, 0.4), 0.35 + 0.4 * time)
    return turn, np.array([0.35, 0.92 + 0.1 * np.sin(1.7 * time), 3.25])


def pose_painting(time):
    """Hung from a nail at the wall's height: swings like a pendulum and turns a little."""
    swing = rotation((0, 0, 1), 0.3 * np.cos(2.1 * time))
    return swing @ rotation((0, 1, 0), 0.45 * np.sin(1.3 * time)), np.array([1.95, 2.75, 4.3]) + swing @ np.array([0, -0.95, 0])


def wagon_place(time):
    return np.array([3.0 - 1.35 * time, 0.0, 1.75])


def pose_wagon(time):
    lean = 0.02 * np.sin(9 * time)
    return rotation((0, 0, 1), lean), wagon_place(time) + np.array([0, 0.42, 0])


def pose_wheel(offset):
    return lambda time: (
        rotation((0, 0, 1), 1.35 * time / 0.19 + offset),
        wagon_place(time) + np.array([offset, 0.19, -0.24]),
    )


def pose_pole(time):
    """Upright in the foreground, turning slowly: the moving camera drags it across the picture."""
    return rotation((1, 0, 0), -np.pi / 2) @ rotation((0, 0, 1), 0.35 * time), np.array([-0.2, 1.2, 0.55])


def bodies():
    """The world's bodies. The order is that of their numbers in `Scene.cast`."""
    faces = [
        texture_face(61, "d9584a", "f4e3b5", "33384a"), texture_face(62, "3f8f8a", "f0d9a0", "7a2f3f"),
        texture_face(63, "efc24f", "4a3b6b", "c24b3c"), texture_face(64, "5b7fc0", "f3efe0", "e08b3a"),
        texture_face(65, "8fae5a", "39495a", "f2ead0"), texture_face(66, "b884b0", "2f4a58", "f4d66a"),
    ]  # fmt: skip
    wheel, tyre = texture_wheel(80), ramp(noise(81, 10, 3), "2b2a2e", "6a6460")
    wagon = (0.55, 0.24, 0.22)
    painting = (0.62, 0.44, 0.03)
    cube = (0.46, 0.46, 0.46)
    return [
        Box("floor", (12, 0.5, 12), still(0, -0.5, 4), paint_box([texture_floor(11)], None, 2.2)),
        Box("wall", (12, 6, 0.5), still(0, 3, 5.1), paint_box([texture_wall(21)], None, 7.5)),
        Sphere("globe", 0.72, pose_globe, paint_sphere(texture_globe(31)), 0.25),
        Sphere("ball", 0.33, pose_ball, paint_sphere(texture_ball(41)), 0.3),
        Box("cube", cube, pose_cube, paint_box(faces, cube)),
        Box("painting", painting, pose_painting, paint_box([texture_painting(51)], painting)),
        Box("wagon", wagon, pose_wagon, paint_box([texture_wagon(71)], None, 0.9)),
        Cylinder("wheel1", 0.19, 0.04, pose_wheel(-0.34), paint_cylinder(tyre, wheel, 0.19, 1)),
        Cylinder("wheel2", 0.19, 0.04, pose_wheel(0.34), paint_cylinder(tyre, wheel, 0.19, 1)),
        Cylinder("pole", 0.1, 1.5, pose_pole, paint_cylinder(texture_pole(91), tyre, 0.1, 1)),
    ]


class Scene:
    def __init__(self):
        self.bodies = bodies()

    def number(self, name):
        return next(i for i, body in enumerate(self.bodies) if body.name == name)

    @staticmethod
    def camera(frame):
        """Rotation (columns: right, up, forward in the world), position, focal length in pixels at `frame`."""
        time = frame / FPS
        position = np.array([-1.0 + 0.52 * time, 1.35 + 0.12 * np.sin(0.9 * time), -2.15 + 0.2 * np.sin(0.8 * time)])
        yaw = 0.2 - 0.105 * time + 0.012 * np.sin(5 * time)
        pitch = 0.085 + 0.02 * np.sin(1.6 * time) + 0.006 * np.sin(7 * time)
        roll = 0.045 * np.sin(1.25 * time - 0.4)
        zoom = 1 + 0.16 * ease(time, 0.8, 2.4) - 0.1 * ease(time, 2.8, 4.0)
        turn = rotation((0, 1, 0), yaw) @ rotation((1, 0, 0), pitch) @ rotation((0, 0, 1), roll)
        return turn, position, 0.9 * WIDTH * zoom

    def rays(self, frame, x, y, dtype=float):
        turn, position, focal = self.camera(frame)
        along = np.stack([(x - WIDTH / 2) / focal, (HEIGHT / 2 - y) / focal, np.ones_like(x)], -1)
        return position.astype(dtype), (along @ turn.T).astype(dtype)

    def nearest(self, time, origin, direction):
        """The first body on each ray: its number, the distance, the point and normal in the body's coordinates."""
        shape = direction.shape[:-1]
        number = np.full(shape, -1)
        distance = np.full(shape, np.inf, direction.dtype)
        point, normal = np.zeros_like(direction), np.zeros_like(direction)
        length = (direction * direction).sum(-1)
        for i, body in enumerate(self.bodies):
            turn, place = body.pose(time)
            turn, offset = turn.astype(direction.dtype), (place - origin).astype(direction.dtype)
            # Only rays that pass the bounding sphere are worth an exact test.
            b = (direction * offset).sum(-1)
            inside = (offset * offset).sum(-1) <= body.radius**2
            passes = inside | ((b > 0) & (b * b >= length * ((offset * offset).sum(-1) - body.radius**2)))
            if not passes.any():
                continue
            start = np.broadcast_to(-offset, direction.shape)[passes] @ turn
            along = direction[passes] @ turn
            d, n = body.hit(start, along)
            closer = d < distance[passes]
            where = np.zeros(shape, bool)
            where[passes] = closer
            number[where], distance[where], normal[where] = i, d[closer], n[closer]
            point[where] = start[closer] + along[closer] * d[closer][:, None]
        return number, distance, point, normal

    def cast(self, frame, x, y):
        """Pixels -> what they show: body number, distance (in units of the ray), local point, local normal."""
        origin, direction = self.rays(frame, np.asarray(x, float), np.asarray(y, float))
        return self.nearest(frame / FPS, origin, direction)

    def project(self, frame, number, local):
        """A body's point -> pixel (x, y) and the distance in units of the ray that `cast` measures."""
        turn, place = self.bodies[number].pose(frame / FPS)
        camera, position, focal = self.camera(frame)
        along = (turn @ local + place - position) @ camera
        return WIDTH / 2 + focal * along[0] / along[2], HEIGHT / 2 - focal * along[1] / along[2], along[2]

    def shade(self, frame, x, y):
        """Colour (linear light, 0..1) at pixel positions x, y: paint, one sun with shadows, sky light, gloss."""
        time = frame / FPS
        origin, direction = self.rays(frame, x, y, np.float32)
        number, distance, point, normal = self.nearest(time, origin, direction)
        colours = np.zeros(direction.shape, np.float32)
        facing = np.zeros(direction.shape, np.float32)
        gloss = np.zeros(x.shape, np.float32)
        for i, body in enumerate(self.bodies):
            here = number == i
            if here.any():
                colours[here] = body.paint(point[here], normal[here])
                facing[here] = normal[here] @ body.pose(time)[0].T.astype(np.float32)
                gloss[here] = body.gloss
        light = LIGHT.astype(np.float32)
        surface = origin + direction * np.where(number >= 0, distance, 0)[..., None]
        sun = np.maximum(facing @ light, 0)
        lit = sun > 0
        blocked = self.shadowed(time, surface[lit] + 2e-3 * facing[lit], light)
        sun[lit] *= 1 - 0.85 * blocked
        sky = 0.5 + 0.5 * facing[..., 1]
        back = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
        mirror = back - 2 * (back * facing).sum(-1)[..., None] * facing
        shine = gloss * np.maximum(mirror @ light, 0) ** 24 * (sun > 0.15)
        return colours**2.2 * (0.2 + 0.22 * sky + 0.78 * sun)[..., None] + shine[..., None]

    def shadowed(self, time, surface, light):
        """1 where a body other than floor and wall stands between the surface and the sun."""
        out = np.zeros(len(surface), np.float32)
        for body in self.bodies[2:]:
            turn, place = body.pose(time)
            offset = place.astype(np.float32) - surface
            along = offset @ light
            near = (along > 0) & ((offset * offset).sum(-1) - along * along < body.radius**2)
            if near.any():
                turn = turn.astype(np.float32)
                distance, _ = body.hit(-offset[near] @ turn, np.broadcast_to(light @ turn, (near.sum(), 3)))
                out[near] = np.maximum(out[near], np.isfinite(distance))
        return out

    def render(self, frame, samples=3):
        """One frame as the video holds it: u8 [HEIGHT, WIDTH, 3], samples x samples rays a pixel, averaged."""
        step = (np.arange(samples) + 0.5) / samples
        total = np.zeros((HEIGHT, WIDTH, 3))
        for dy in step:
            for dx in step:
                x, y = np.meshgrid(np.arange(WIDTH) + dx, np.arange(HEIGHT) + dy)
                total += np.clip(self.shade(frame, x, y), 0, 1)
        return np.round((total / samples**2) ** (1 / 2.2) * 255).astype(np.uint8)
