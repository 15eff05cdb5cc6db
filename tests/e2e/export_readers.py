"""What test_export.py reads files with: tracks with every kind of gap, and a reader for each format, written from its
description (docs/FORMATS.md). Tracks are {name: {frame: (x, y)}} of what is there, in raster pixels, frames from 0."""
import sqlite3
import sys
import types

import numpy as np

WIDTH, HEIGHT, FRAMES, RATE = 333, 517, 40, 30000 / 1001
LABELS = ["left ear", "", 'a "b"\\{c} [d]$e', "twin", "twin", "\u00e9\u2603", "never seen"]


def make_tracks(seed=1, tracks=7, frames=FRAMES, labels=LABELS):
    """The arrays of a track file with every kind of gap: none, one, at both ends, single frames, everything."""
    random = np.random.default_rng(seed)
    xy = (random.uniform(-5, 5, (tracks, 1, 2)) + random.uniform(0, 1, (tracks, frames, 2)) * [WIDTH, HEIGHT]).astype("f4")
    occluded = np.zeros((tracks, frames), bool)
    confidence = random.uniform(0.5, 1, (tracks, frames)).astype("f4")
    if tracks == 7:
        occluded[1, 10:25] = True
        occluded[2, :3] = occluded[2, 35:] = True
        occluded[3, ::2] = True  # single frames
        occluded[4, 5] = occluded[4, 7] = occluded[4, 20:22] = occluded[4, -1] = True
        occluded[5, 1:] = True  # one sample
        occluded[6] = True
    confidence[occluded] /= 2
    query = np.zeros((tracks, 3), "f4")
    query[:, 0] = np.arange(tracks) % frames
    query[:, 1:] = xy[np.arange(tracks), query[:, 0].astype(int), ::-1]
    arrays = dict(tracks=xy, occluded=occluded, confidence=confidence, query_points=query,
                  time_s=np.arange(frames) / RATE, frame_size=np.array([WIDTH, HEIGHT], "i4"), meta=np.array("{}"))
    if labels:
        arrays["labels"] = np.array(labels)
    return arrays


def read_nuke(path):
    """A Tcl-like list: braces nest, quotes hold, the rest are words."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# tiletrack: ")
    body, end = parse_list(text, text.index("Tracker4 {") + len("Tracker4 {"))
    assert text[end:].strip() == ""
    table = body[body.index("tracks") + 1]
    (one, columns, count), names, rows = table[0], [column[3:5] for column in table[1]], table[2]
    assert (one, columns) == ("1", str(len(names))) and int(count) == len(rows)
    at = {name: i for i, (_, name) in enumerate(names)}
    result, enabled = {}, {}
    for row in rows:
        assert len(row) == len(names)
        x, y = curve(row[at["track_x"]]), curve(row[at["track_y"]])
        assert x.keys() == y.keys() and row[at["T"]] == "1"
        result[row[at["name"]]] = {frame - 1: (x[frame], HEIGHT - y[frame]) for frame in x}
        keys = row[at["e"]]
        assert keys[:2] == ["curve", "K"] and keys[2] == f"x{min(curve(keys))}"
        enabled[row[at["name"]]] = curve(keys)
    return result, enabled


def parse_list(text, at):
    """The words from `at` to the brace that closes the list, and where it ends."""
    words = []
    while True:
        while text[at].isspace():
            at += 1
        if text[at] == "}":
            return words, at + 1
        if text[at] == "{":
            word, at = parse_list(text, at + 1)
        elif text[at] == '"':
            end = text.index('"', at + 1)
            word, at = text[at + 1:end], end + 1
        else:
            end = at
            while not text[end].isspace() and text[end] not in "{}":
                end += 1
            word, at = text[at:end], end
        words.append(word)


def curve(words):
    """xF: the next value stands at frame F; later values follow at the distance of the last two."""
    assert words[0] == "curve"
    keys, frame, step = {}, 1, 1
    for word in words[1:]:
        if word == "K":
            continue
        if word.startswith("x"):
            frame = int(word[1:])
            step = frame - max(keys) if keys else 1
        else:
            assert "e" not in word
            keys[frame] = float(word)
            frame += step
    return keys


def read_3de(path):
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    result = {}
    for _ in range(int(next(lines))):
        name = next(lines)
        assert next(lines) == "0" and name == name.strip() and name not in result
        result[name] = {}
        for _ in range(int(next(lines))):
            frame, x, y = next(lines).split(" ")
            result[name][int(frame) - 1] = float(x), HEIGHT - float(y)
        assert result[name]
    assert list(lines) == []
    return result


def read_after_effects(path):
    head, *blocks, end = path.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    settings = dict(line.split("\t")[1:] for line in blocks.pop(0).split("\n"))
    assert head == "Adobe After Effects 8.0 Keyframe Data" and end.strip() == "End of Keyframe Data"
    result = {}
    for number, block in enumerate(blocks, 1):
        title, names, *rows = block.strip("\n").split("\n")
        assert title == f"Effects\tPoint Control #{number}\tPoint #2" and names == "\tFrame\tX pixels\tY pixels"
        result[number] = {}
        for row in rows:
            _, frame, x, y = row.split("\t")
            result[number][int(frame)] = float(x), float(y)
    return result, settings


def run_blender_script(path):
    """The script in a Python that has no Blender but a bpy of the few things it uses."""
    markers = {}

    class Markers(dict):
        def insert_frame(self, frame):
            return self.setdefault(frame, types.SimpleNamespace(co=None, mute=False))

    def new(name, frame):
        assert name not in markers
        markers[name] = Markers()
        return types.SimpleNamespace(markers=markers[name])

    clip = types.SimpleNamespace(tracking=types.SimpleNamespace(objects=[types.SimpleNamespace(
        tracks=types.SimpleNamespace(new=new))]))
    bpy = types.ModuleType("bpy")
    bpy.data = types.SimpleNamespace(movieclips=[clip])
    bpy.context = types.SimpleNamespace(window_manager=types.SimpleNamespace(windows=[]))
    before, arguments = sys.modules.get("bpy"), sys.argv
    sys.modules["bpy"], sys.argv = bpy, ["blender"]
    try:
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "__main__"})
    finally:
        sys.argv = arguments
        if before is None:
            del sys.modules["bpy"]
    return {name: {frame: (*marker.co, marker.mute) for frame, marker in track.items()} for name, track in markers.items()}


def from_blender(markers):
    return {name: {frame - 1: (x * WIDTH, (1 - y) * HEIGHT) for frame, (x, y, mute) in track.items() if not mute}
            for name, track in markers.items()}


def read_colmap(path):
    """Key points and matches joined to tracks again: {frame of first sight, key point}: {frame: (x, y)}."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        images = dict(db.execute("SELECT image_id, name FROM images"))
        points = {image: np.frombuffer(data or b"", "<f4").reshape(rows, cols)
                  for image, rows, cols, data in db.execute("SELECT * FROM keypoints")}
        pairs = {pair: np.frombuffer(data, "<u4").reshape(rows, cols)
                 for pair, rows, cols, data in db.execute("SELECT * FROM matches")}
        camera = db.execute("SELECT * FROM cameras").fetchall()
        assert {image for image, in db.execute("SELECT image_id FROM descriptors")} == set(images)
    return images, points, pairs, camera
