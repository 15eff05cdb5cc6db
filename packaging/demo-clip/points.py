"""What the demo measures and draws: track files, truth, figures, contact sheets. Only Debian's numpy, PIL and ffmpeg."""
import colorsys
import subprocess

import numpy as np
from PIL import Image, ImageDraw

THRESHOLDS = (1, 2, 4, 8, 16)  # pixels of the 256x256 picture, as TAP-Vid counts


def load(path):
    """A track or truth file as a dictionary of arrays."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def measure(ours, truth):
    """Figures over all points and frames but the query's own: delta_avg (the share of visible positions within 1, 2, 4, 8
    and 16 px of a 256x256 picture, averaged), the median error in source pixels, the share of right occlusion flags."""
    if ours["tracks"].shape != truth["tracks"].shape:
        raise ValueError(f"tracks {ours['tracks'].shape} but the truth is {truth['tracks'].shape}")
    count, frames = truth["occluded"].shape
    counted = np.ones((count, frames), bool)
    counted[np.arange(count), truth["query_points"][:, 0].astype(int)] = False
    visible = counted & ~truth["occluded"]
    difference = ours["tracks"].astype(float) - truth["tracks"]
    error = np.hypot(*np.moveaxis(difference, -1, 0))
    scaled = np.hypot(*np.moveaxis(difference * 256 / truth["frame_size"], -1, 0))
    within = [float((scaled[visible] < limit).mean()) for limit in THRESHOLDS]
    return {
        "delta_avg": float(np.mean(within)),
        "within": dict(zip(THRESHOLDS, within)),
        "median_px": float(np.median(error[visible])),
        "median_256": float(np.median(scaled[visible])),
        "occlusion_accuracy": float((ours["occluded"] == truth["occluded"])[counted].mean()),
        "positions": int(visible.sum()),
    }


def read_frames(video, numbers, size):
    """The named frames of a video, as displayed: a list of u8 [height, width, 3]."""
    width, height = size
    choice = "+".join(f"eq(n\\,{n})" for n in sorted(numbers))
    command = ["ffmpeg", "-v", "error", "-i", f"file:{video}", "-vf", f"select='{choice}'", "-vsync", "0", "-f", "rawvideo",
               "-pix_fmt", "rgb24", "-"]  # fmt: skip
    data = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout
    frames = np.frombuffer(data, np.uint8).reshape(-1, height, width, 3)
    order = {n: i for i, n in enumerate(sorted(numbers))}
    return [frames[order[n]] for n in numbers]


def colours(count):
    """Colours that stay apart whatever the count: hues a golden angle from each other."""
    hues = [(i * 0.61803398875) % 1 for i in range(count)]
    return [tuple(int(255 * c) for c in colorsys.hsv_to_rgb(h, 0.85, 1.0)) for h in hues]


def draw(frame, number, tracks, occluded, scale=2, trail=12):
    """One frame, `scale` times as large, with every visible point as a disc, where it came from as a line, and points
    that are hidden but inside the frame as rings. Drawn at twice the size and reduced, which smooths the edges."""
    height, width = frame.shape[:2]
    large = 2 * scale
    image = Image.fromarray(frame).resize((width * large, height * large), Image.BICUBIC)
    pen = ImageDraw.Draw(image)
    for path, hidden, tone in zip(tracks, occluded, colours(len(tracks))):
        first = max(0, number - trail)
        for t in range(first, number):
            if not (hidden[t] or hidden[t + 1]):
                faded = tuple(int(c * (0.45 + 0.55 * (t - first) / trail)) for c in tone)
                pen.line([tuple(path[t] * large), tuple(path[t + 1] * large)], fill=faded, width=large)
        (x, y), r = path[number] * large, 2.6 * large
        if hidden[number]:
            pen.ellipse([x - r, y - r, x + r, y + r], outline=tone, width=scale)
        else:
            pen.ellipse([x - r, y - r, x + r, y + r], fill=tone, outline=(20, 20, 20), width=scale)
    return image.resize((width * scale, height * scale), Image.LANCZOS)


def contact_sheet(video, tracked, numbers, columns, scale=2, gap=6):
    """A picture of the named frames, `columns` side by side, with the tracks drawn on them."""
    size = tuple(int(n) for n in tracked["frame_size"])
    pictures = [
        draw(frame, number, tracked["tracks"].astype(float), tracked["occluded"], scale)
        for number, frame in zip(numbers, read_frames(video, numbers, size))
    ]
    rows = -(-len(pictures) // columns)
    wide, high = pictures[0].size
    sheet = Image.new("RGB", (columns * (wide + gap) - gap, rows * (high + gap) - gap), (24, 24, 26))
    for i, picture in enumerate(pictures):
        sheet.paste(picture, (i % columns * (wide + gap), i // columns * (high + gap)))
    return sheet
