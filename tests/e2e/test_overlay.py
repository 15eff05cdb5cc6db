"""tiletrack overlay through the real programs: what it draws is read back from the video by ffmpeg and compared, pixel
by pixel, with where the track file says that it must be."""
import contextlib
import hashlib
import json
import os
import pathlib
import pty
import resource
import shutil
import signal
import struct
import subprocess
import time

import numpy as np

from daemon_tools import DaemonFolder
from programs import BIN, SOURCE, TILETRACK, Folder, main, make_video, moved, run
from test_worker import Scripted
from waiting import WAIT_S, is_gone, state_of, wait_for
from worker_tools import CANCELLED, DEADLINE, INTERRUPTED, OUTPUTS, STAGES, children

COLOURS = np.array([[230, 159, 0], [86, 180, 233], [0, 178, 130], [240, 228, 66]], float)  # of queries 0 to 3
GREY = 120
MODEL = SOURCE / "models" / "tiletrack-small.safetensors"


def write_tracks(path, xy, occluded=None, size=(640, 480), times=None, queries=None, meta={}, **arrays):
    """A track file as NumPy writes one. xy: [N,T,2]."""
    xy = np.asarray(xy, np.float32)
    count, frames, _ = xy.shape
    occluded = np.zeros((count, frames), bool) if occluded is None else np.asarray(occluded, bool)
    if queries is None:
        queries = np.stack([np.zeros(count), xy[:, 0, 1], xy[:, 0, 0]], 1)
    arrays = {"confidence": np.where(occluded, 0.1, 0.9).astype("f4"), **arrays}
    with open(path, "wb") as file:
        np.savez(file, tracks=xy, occluded=occluded, query_points=np.asarray(queries, "f4"),
                 time_s=np.arange(frames) / 25.0 if times is None else np.asarray(times, float),
                 frame_size=np.array(size, "i4"), meta=np.array(json.dumps(meta)), **arrays)
    return path


def source_of(video):
    """What a track file's `meta` says of the file that was tracked."""
    content = video.read_bytes()
    return {"source": {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}}


def probe(path):
    """Its video stream, and the times of its frames."""
    text = subprocess.run(["ffprobe", "-v", "error", "-show_streams", "-show_entries", "frame=pts_time", "-of", "json",
                           path], stdout=subprocess.PIPE, check=True).stdout
    told = json.loads(text)
    return told["streams"], [float(frame["pts_time"]) for frame in told["frames"]]


def read(path, width, height):
    """All frames, [T,H,W,3], as floats."""
    raw = subprocess.run(["ffmpeg", "-v", "error", "-i", path, "-vsync", "passthrough", "-sws_flags",
                          "accurate_rnd+full_chroma_int+full_chroma_inp+bilinear", "-f", "rawvideo", "-pix_fmt", "rgb24",
                          "-"], stdout=subprocess.PIPE, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3).astype(float)


def encoder_of(pid):
    """The tiletrack-encode that a process has started; None: there is none."""
    for child in children(pid):
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == "tiletrack-encode"[:15]:
                return child
    return None


class Overlays(Folder):
    def grey_video(self, frames=5, size=(640, 480), name="a.mkv", level=GREY):
        return make_video(self.folder / name, np.full((frames, size[1], size[0], 3), level))

    def overlay(self, *arguments, code=0):
        process = run("overlay", *arguments)
        self.assertExit(process, code)
        self.assertNothingPartial()
        return process

    def at(self, frame, x, y):
        return frame[int(y), int(x)]

    def assertColour(self, frame, x, y, colour, within=40):
        seen = self.at(frame, x, y)
        self.assertLess(np.abs(seen - colour).max(), within, f"at {x}, {y}: {seen}, not {colour}")

    def assertGrey(self, frame, x, y, level=GREY, within=12):
        self.assertColour(frame, x, y, np.full(3, level), within)


class Pixels(Overlays):
    def test_points_are_where_the_tracks_say(self):
        video = self.grey_video()
        t = np.arange(5)
        xy = np.stack([np.stack([100.5 + 12 * t, 80.5 + 0 * t], 1), np.stack([320.5 + 0 * t, 100.5 + 15 * t], 1),
                       np.stack([500.5 - 20 * t, 300.5 + 10 * t], 1)])
        write_tracks(self.folder / "a.tracks.npz", xy)
        process = self.overlay("--style", "dots", video)
        self.assertIn("3 tracks in 5 frames", process.stdout)
        streams, times = probe(self.folder / "a.overlay.mp4")
        self.assertEqual([(s["codec_name"], s["width"], s["height"], s["pix_fmt"]) for s in streams],
                         [("h264", 640, 480, "yuv420p")])
        self.assertEqual(len(times), 5)
        frames = read(self.folder / "a.overlay.mp4", 640, 480)
        for i in range(5):
            for n in range(3):
                self.assertColour(frames[i], *xy[n, i], COLOURS[n])
                self.assertGrey(frames[i], xy[n, i, 0] + 14, xy[n, i, 1] + 14)
            if i:  # dots leave nothing behind
                self.assertGrey(frames[i], *xy[2, i - 1])
        self.assertLess(np.abs(np.median(frames, axis=(1, 2)) - GREY).max(), 3)

    def test_hidden_points_are_hollow(self):
        for level in (GREY, 255, 0):
            video = self.grey_video(2, level=level, name=f"{level}.mkv")
            xy = np.full((4, 2, 2), 0.5)
            xy[:, :, 0] += np.array([100, 200, 300, 400])[:, None]
            xy[:, :, 1] += 200
            occluded = np.array([[1, 0], [0, 1], [1, 1], [0, 0]])
            write_tracks(self.folder / f"{level}.tracks.npz", xy, occluded)
            self.overlay("--style", "dots", video)
            frames = read(self.folder / f"{level}.overlay.mp4", 640, 480)
            for n in range(4):
                for i in range(2):
                    x, y = xy[n, i]
                    if occluded[n, i]:
                        self.assertColour(frames[i], x, y, np.full(3, level), 75)  # 4:2:0 blurs so small a hole
                        self.assertGreater(np.abs(self.at(frames[i], x, y) - COLOURS[n]).max(), 60)
                        ring = np.abs(frames[i, 195:206, int(x)] - level).max()
                        self.assertGreater(ring, 50)
                    else:
                        self.assertColour(frames[i], x, y, COLOURS[n])

    def test_min_confidence_and_labels(self):
        video = self.grey_video(2)
        xy = np.full((3, 2, 2), 100.5) + np.array([[[0, 0]], [[100, 0]], [[200, 0]]])
        write_tracks(self.folder / "a.tracks.npz", xy, confidence=np.array([[0.9] * 2, [0.6] * 2, [0.9] * 2], "f4"),
                     labels=np.array(["left ear", "right ear", "nose"]))
        self.overlay("--style", "dots", "--min-confidence", 0.7, "--labels", "*ear", video)
        frame = read(self.folder / "a.overlay.mp4", 640, 480)[1]
        self.assertColour(frame, *xy[0, 1], COLOURS[0])
        self.assertGreater(np.abs(self.at(frame, *xy[1, 1]) - COLOURS[1]).max(), 60)  # hollow
        self.assertGrey(frame, *xy[2, 1])

    def test_colours_belong_to_queries(self):
        """Also where only some are drawn: in every run a point has the same."""
        video = self.grey_video(2)
        xy = np.full((4, 2, 2), 100.5) + np.array([[[0, 0]], [[100, 0]], [[200, 0]], [[300, 0]]])
        write_tracks(self.folder / "a.tracks.npz", xy, labels=np.array(["a", "b", "c", "d"]))
        self.overlay("--style", "dots", "--labels", "[cd]", video)
        frame = read(self.folder / "a.overlay.mp4", 640, 480)[0]
        self.assertColour(frame, *xy[2, 0], COLOURS[2])
        self.assertColour(frame, *xy[3, 0], COLOURS[3])
        self.assertGrey(frame, *xy[0, 0])

    def test_tails_grid_and_heat(self):
        video = self.grey_video(20)
        t = np.arange(20)
        xy = np.stack([np.stack([100.5 + 20 * t, 80.5 + 0 * t], 1), np.stack([100.5 + 0 * t, 280.5 + 0 * t], 1)])
        write_tracks(self.folder / "a.tracks.npz", xy, occluded=np.stack([t == 17, t < 0]))
        tails = self.folder / "tails.mp4"
        self.overlay("--tail", 0.4, "-o", tails, video)
        frame = read(tails, 640, 480)[19]
        self.assertColour(frame, 100.5 + 20 * 19, 80.5, COLOURS[0])
        self.assertColour(frame, 90.5 + 20 * 19, 80.5, COLOURS[0])  # between the last two frames
        self.assertGrey(frame, 90.5 + 20 * 17, 80.5, within=25)  # one end is hidden
        self.assertColour(frame, 90.5 + 20 * 15, 80.5, COLOURS[0], 90)
        self.assertGrey(frame, 90.5 + 20 * 6, 80.5)  # longer ago
        grid = self.folder / "grid.mp4"
        self.overlay("--style", "grid", "-o", grid, video)
        frame = read(grid, 640, 480)[0]
        self.assertColour(frame, 100.5, 180.5, COLOURS[:2].mean(0), 90)
        self.assertGrey(frame, 110.5, 180.5)
        heat = self.folder / "heat.mp4"
        self.overlay("--style", "heat", "-o", heat, video)
        frame = read(heat, 640, 480)[10]
        fast, still = self.at(frame, 100.5 + 200, 80.5), self.at(frame, 100.5, 280.5)
        self.assertTrue(fast[0] > 200 and fast[2] < 120, fast)  # yellow
        self.assertTrue(still[2] > still[1] + 40 and still[0] < 120, still)  # blue
        self.assertLess(frame[400, 500].max(), GREY - 30)

    def test_a_grid_joins_neighbours_only(self):
        video = self.grey_video(1)
        x, y = np.meshgrid([100.5, 200.5, 300.5], [100.5, 180.5])
        xy = np.stack([x.ravel(), y.ravel()], 1)[:, None]
        write_tracks(self.folder / "a.tracks.npz", xy)
        self.overlay("--style", "grid", video)
        frame = read(self.folder / "a.overlay.mp4", 640, 480)[0]
        drawn = [(150, 100), (250, 180), (100, 140), (200, 140), (300, 140)]
        for at in drawn:
            x, y = at
            self.assertGreater(np.abs(frame[y - 3:y + 4, x - 3:x + 4] - GREY).max(), 30, at)
        for at in [(150, 140), (250, 140), (350, 140)]:  # no diagonals
            self.assertGrey(frame, *at)


class Videos(Overlays):
    def test_the_pictures_are_the_videos(self):
        """In its own size and colours: what is not drawn on is as ffmpeg sees the video."""
        frames = moved(3, 4, 2)
        video = make_video(self.folder / "a.mkv", frames)
        write_tracks(self.folder / "a.tracks.npz", np.full((1, 3, 2), 10.5), size=(320, 256))
        self.overlay(video)
        seen = read(self.folder / "a.overlay.mp4", 320, 256)
        luma = np.array([0.299, 0.587, 0.114])  # colours are halved in MP4
        away = np.abs((seen - frames.astype(float)) @ luma)[:, 40:, 40:]
        self.assertLess(away.mean(), 3)
        self.assertLess(np.abs((seen - frames.astype(float))[:, 40:, 40:].mean(axis=(0, 1, 2))).max(), 1)

    def test_odd_sizes(self):
        for width, height in ((101, 77), (64, 33), (1, 1), (3, 500)):
            with self.subTest(width=width, height=height):
                name = f"{width}.mkv"
                video = self.grey_video(2, (width, height), name)
                write_tracks(self.folder / f"{width}.tracks.npz", np.full((1, 2, 2), 0.5), size=(width, height))
                self.overlay("--sheet", self.folder / "s.png", "-o", self.folder / "o.mp4", video)
                (stream,), times = probe(self.folder / "o.mp4")
                self.assertEqual((stream["width"], stream["height"], len(times)),
                                 (width + width % 2, height + height % 2, 2))
                seen = read(self.folder / "o.mp4", stream["width"], stream["height"])
                if width > 50:
                    self.assertGrey(seen[1], stream["width"] - 1, stream["height"] - 1)

    def test_times_are_kept(self):
        """Of a variable rate, and of a video whose clock does not begin at 0."""
        video = self.folder / "a.mkv"
        subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc=s=160x120:r=25:d=0.4", "-vf",
                        "setpts='(3+N*N*0.013)/TB'", "-vsync", "vfr", "-c:v", "ffv1", video], check=True)
        before = probe(video)[1]
        self.assertGreater(before[0], 2)
        count = len(before)
        write_tracks(self.folder / "a.tracks.npz", np.full((1, count, 2), 60.5), size=(160, 120), times=before)
        self.overlay(video)
        after = probe(self.folder / "a.overlay.mp4")[1]
        np.testing.assert_allclose(after, np.array(before) - before[0], atol=2e-5)

    def test_rates_of_film_and_television_are_exact(self):
        for rate in ("24000/1001", "25", "30000/1001", "60"):
            video = make_video(self.folder / "a.mp4", moved(6, 1, 1), "-c:v", "libx264", "-pix_fmt", "yuv420p", rate=rate)
            write_tracks(self.folder / "a.tracks.npz", np.full((1, 6, 2), 60.5), size=(320, 256), times=probe(video)[1])
            self.overlay(video)
            (stream,), times = probe(self.folder / "a.overlay.mp4")
            self.assertEqual(stream["r_frame_rate"], rate if "/" in rate else rate + "/1")
            self.assertEqual(times[0], 0)
            self.assertAlmostEqual(float(stream["duration"]), 6 / eval(rate), places=4)

    def test_the_video_is_turned(self):
        """As its display matrix says, like ffmpeg does; the overlay needs no turning any more."""
        frames = np.zeros((2, 480, 640, 3), np.uint8)
        frames[:, :240, :320] = (200, 40, 40)  # the stored picture's upper left
        frames[:, 240:, 320:] = (40, 40, 200)
        flat = make_video(self.folder / "flat.mp4", frames, "-c:v", "libx264", "-crf", "1", "-pix_fmt", "yuv420p")
        video = self.folder / "a.mp4"
        subprocess.run(["ffmpeg", "-v", "error", "-i", flat, "-c", "copy", "-metadata:s:v", "rotate=90", video], check=True)
        write_tracks(self.folder / "a.tracks.npz", np.full((1, 2, 2), 80.5) + [0, 400], size=(480, 640))
        self.overlay("--style", "dots", video)
        (stream,), _ = probe(self.folder / "a.overlay.mp4")
        self.assertEqual((stream["width"], stream["height"]), (480, 640))
        self.assertNotIn("side_data_list", stream)
        seen, shown = read(self.folder / "a.overlay.mp4", 480, 640), read(video, 480, 640)
        self.assertLess(np.abs(seen - shown)[:, :320].mean(), 3)
        self.assertColour(seen[0], 80.5, 480.5, COLOURS[0])

    def test_sound_is_dropped(self):
        video = self.folder / "a.mp4"
        subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc=s=160x120:r=25:d=0.2", "-f", "lavfi", "-i",
                        "sine=d=0.2", "-c:v", "libx264", "-c:a", "aac", video], check=True)
        write_tracks(self.folder / "a.tracks.npz", np.full((1, 5, 2), 60.5), size=(160, 120))
        self.overlay(video)
        self.assertEqual([s["codec_type"] for s in probe(self.folder / "a.overlay.mp4")[0]], ["video"])

    def test_equal_runs_give_equal_bytes(self):
        video = make_video(self.folder / "a.mkv", moved(8, 4, 2))
        write_tracks(self.folder / "a.tracks.npz", np.full((1, 8, 2), 60.5), size=(320, 256))
        for name in "12":
            self.overlay("-o", self.folder / f"{name}.mp4", "--sheet", self.folder / f"{name}.png", video)
        for ending in ("mp4", "png"):
            self.assertEqual((self.folder / f"1.{ending}").read_bytes(), (self.folder / f"2.{ending}").read_bytes())

    def test_the_sheet_shows_twelve_frames(self):
        levels = np.linspace(0, 240, 24).astype(np.uint8)
        video = make_video(self.folder / "a.mkv", np.broadcast_to(levels[:, None, None, None], (24, 120, 160, 3)))
        write_tracks(self.folder / "a.tracks.npz", np.full((1, 24, 2), 80.5), size=(160, 120))
        process = self.overlay("--sheet", self.folder / "s.png", video)
        self.assertEqual(self.names(), [b"a.mkv", b"a.tracks.npz", b"s.png"])
        self.assertIn("s.png", process.stdout)
        (stream,), _ = probe(self.folder / "s.png")
        self.assertEqual((stream["codec_name"], stream["width"], stream["height"]), ("png", 4 * 164 + 4, 3 * 124 + 4))
        sheet = read(self.folder / "s.png", 660, 376)[0]
        for cell in range(12):
            x, y = 4 + cell % 4 * 164, 4 + cell // 4 * 124
            self.assertColour(sheet, x + 30, y + 90, np.full(3, levels[2 * cell + 1]), 4)
            self.assertColour(sheet, x + 80.5, y + 80.5, COLOURS[0], 40)


class Streams(Overlays):
    """The index comes first: a player that gets the file in pieces begins with the first of them."""

    def atoms(self, path):
        """Names of the outermost boxes."""
        content, at, found = path.read_bytes(), 0, []
        while at < len(content):
            size, name = struct.unpack(">I4s", content[at:at + 8])
            size = struct.unpack(">Q", content[at + 8:at + 16])[0] if size == 1 else size
            found.append(name.decode())
            at += size
        self.assertEqual(at, len(content))
        return found

    def assertStreams(self, path, frames):
        self.assertEqual([name for name in self.atoms(path) if name != "free"], ["ftyp", "moov", "mdat"])
        self.assertEqual(len(probe(path)[1]), frames)

    def test_the_index_is_in_front(self):
        video = make_video(self.folder / "a.mkv", moved(60, 3, 1))
        write_tracks(self.folder / "a.tracks.npz", np.full((1, 60, 2), 60.5), size=(320, 256))
        path = self.folder / "a.overlay.mp4"
        for encoder in ((), ("--encoder", "mpeg4")):
            self.overlay(*encoder, video)
            self.assertStreams(path, 60)
            part = path.read_bytes()[:path.stat().st_size * 2 // 3]
            raw = subprocess.run(["ffmpeg", "-v", "quiet", "-f", "mp4", "-i", "pipe:0", "-f", "rawvideo", "-pix_fmt", "gray",
                                  "-"], input=part, stdout=subprocess.PIPE).stdout
            self.assertGreater(len(raw) // (320 * 256), 20)

    def test_the_largest_index_fits(self):
        """No frame lasts as long as the one before, and noise moves what is decoded first: no two entries are alike."""
        video = self.folder / "a.mkv"
        subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "color=gray:s=64x48:r=25", "-frames:v", "3000", "-vf",
                        "noise=alls=40:allf=t,setpts='(N*0.031+mod(N,7)*0.002)/TB'", "-vsync", "vfr", "-enc_time_base",
                        "1/1000", "-c:v", "ffv1", video], check=True)
        count = len(probe(video)[1])
        self.assertGreater(count, 2000)
        write_tracks(self.folder / "a.tracks.npz", np.full((1, count, 2), 30.5), size=(64, 48), times=np.arange(count) / 25)
        for encoder in ((), ("--encoder", "mpeg4")):
            self.overlay(*encoder, video)
            self.assertStreams(self.folder / "a.overlay.mp4", count)


class Troubles(Overlays):
    def small(self, **arguments):
        video = self.grey_video(4, (160, 120))
        self.small_tracks(**arguments)
        return video

    def small_tracks(self, frames=4, **arguments):
        write_tracks(self.folder / "a.tracks.npz", np.full((1, frames, 2), 60.5), **{"size": (160, 120), **arguments})

    def test_a_video_that_goes_on_behind_its_tracks(self):
        process = self.overlay(self.small(frames=3))
        self.assertRegex(process.stderr, "goes on behind frame 2")
        self.assertEqual(len(probe(self.folder / "a.overlay.mp4")[1]), 3)

    def test_a_video_that_ends_before_its_tracks(self):
        (self.folder / "a.overlay.mp4").write_bytes(b"old")
        process = self.overlay(self.small(frames=6), code=1)
        self.assertRegex(process.stderr, "ends after 4 frames.*6")
        self.assertEqual((self.folder / "a.overlay.mp4").read_bytes(), b"old")

    def test_tracks_of_another_video(self):
        process = self.overlay(self.small(size=(320, 240)), code=1)
        self.assertRegex(process.stderr, "160x120.*320x240")
        self.assertEqual(self.names(), [b"a.mkv", b"a.tracks.npz"])

    def test_another_file_of_the_same_pictures(self):
        """It is told by its content: an overlay of it is no evidence of what was tracked."""
        video, other, out = self.small(), self.folder / "b.mkv", self.folder / "o.mp4"
        content = video.read_bytes()
        place = content.index(b"Lavf")  # who wrote it: the pictures stay
        for changed, reason in ((content.replace(b"Lavf", b"lavf"), "SHA-256 is"), (content + b"\0", "bytes, that had")):
            other.write_bytes(changed)
            self.assertEqual(other.read_bytes()[:place], content[:place])
            self.small_tracks(meta=source_of(video))
            process = self.overlay("-o", out, other, self.folder / "a.tracks.npz", code=1)
            self.assertRegex(process.stderr, "b.mkv: not the video that was tracked.*" + reason + ".*--any-video")
            self.assertFalse(out.exists())
            self.overlay("--any-video", "-o", out, other, self.folder / "a.tracks.npz")
            self.assertEqual(len(probe(out)[1]), 4)
            out.unlink()

    def test_a_video_that_was_renamed(self):
        video = self.small()
        self.small_tracks(meta=source_of(video))
        video.rename(self.folder / "b.mov")
        self.overlay(self.folder / "b.mov", self.folder / "a.tracks.npz")
        self.assertEqual(len(probe(self.folder / "b.overlay.mp4")[1]), 4)

    def test_tracks_that_say_nothing_of_their_video(self):
        """Or not what it can be known by: only sizes are held against each other."""
        for meta in ({"source": "a.mkv"}, {"source": {"sha256": 5}}, {"source": {"bytes": 5}}, []):
            self.overlay(self.small(meta=meta))

    def test_files_that_are_no_videos(self):
        self.small()
        for name, content in (("empty.mp4", b""), ("text.mp4", b"no video at all\n" * 99),
                              ("list.m3u8", b"#EXTM3U\n#EXTINF:1,\na.mkv\n")):
            (self.folder / name).write_bytes(content)
            process = self.overlay(self.folder / name, self.folder / "a.tracks.npz", "-o", self.folder / "x.mp4", code=1)
            self.assertIn(name, process.stderr)
            self.assertFalse((self.folder / "x.mp4").exists())

    def test_a_damaged_video_is_drawn_as_far_as_it_goes(self):
        video = make_video(self.folder / "a.mp4", moved(30, 4, 2), "-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags",
                           "+faststart")
        write_tracks(self.folder / "a.tracks.npz", np.full((1, 30, 2), 60.5), size=(320, 256))
        video.write_bytes(video.read_bytes()[:-5000])
        process = self.overlay(video, code=1)
        self.assertRegex(process.stderr, "ends after")

    def test_command_lines(self):
        video, tracks = self.small(), self.folder / "a.tracks.npz"
        before = video.read_bytes(), tracks.read_bytes()
        for arguments in ((), (video, tracks, tracks), ("-o", video, video), ("-o", tracks, video), ("--style", "x", video),
                          ("--sheet", tracks, video), ("-o", "s.png", "--sheet", "s.png", video), ("-o", "", video),
                          ("--tail", "0", video), ("--min-confidence", "2", video), ("--nonsense", video)):
            self.assertExit(run("overlay", *arguments, cwd=self.folder), 2)
        self.assertEqual((video.read_bytes(), tracks.read_bytes()), before)
        self.assertExit(run("overlay", self.folder / "b.mkv", tracks), 1)
        self.assertExit(run("overlay", video, self.folder / "b.npz"), 1)
        self.assertEqual(self.names(), [b"a.mkv", b"a.tracks.npz"])
        self.assertEqual(self.overlay("-q", video).stdout, "")
        self.assertIn("--sheet", run("overlay", "--help").stdout)

    def test_other_encoders(self):
        video = self.grey_video(4)
        write_tracks(self.folder / "a.tracks.npz", np.full((1, 4, 2), 60.5))
        process = self.overlay("--encoder", "mpeg4", video)
        self.assertIn("(mpeg4)", process.stdout)
        (stream,), times = probe(self.folder / "a.overlay.mp4")
        self.assertEqual((stream["codec_name"], len(times)), ("mpeg4", 4))
        self.assertColour(read(self.folder / "a.overlay.mp4", 640, 480)[0], 60.5, 60.5, COLOURS[0])
        for name in ("nonsense", "aac", "png"):
            process = self.overlay("--encoder", name, "-o", self.folder / "x.mp4", video, code=1)
            self.assertIn(name, process.stderr)
        self.assertFalse((self.folder / "x.mp4").exists())

    def long(self, seconds=30):
        video = self.folder / "long.mp4"
        subprocess.run(["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", f"testsrc2=s=640x480:r=25:d={seconds}", "-c:v",
                        "libx264", "-preset", "ultrafast", video], check=True)
        write_tracks(self.folder / "long.tracks.npz", np.full((1, 25 * seconds, 2), 60.5), size=(640, 480))
        return video

    def is_half_done(self):
        """Something was written, and the index in front, which comes last, was not."""
        for path in self.folder.glob(".tt-*.part"):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as part:
                head = part.read(4096)
                return head != b"" and b"moov" not in head
        return False

    def at_work(self, *options):
        """The running program, and its encoder, which was stopped in the middle of its work. Where the machine let us
        come too late, again with a longer video."""
        for seconds in (10, 40, 160):
            process = subprocess.Popen([TILETRACK, "overlay", *options, self.long(seconds)], stdout=subprocess.PIPE,
                                       stderr=subprocess.PIPE, text=True)
            wait_for(lambda: process.poll() is not None or self.is_half_done(), "it began to write")
            encoder = encoder_of(process.pid)
            if encoder:
                os.kill(encoder, signal.SIGSTOP)
                wait_for(lambda: state_of(encoder) in "TZX", "the encoder is stopped")
                if state_of(encoder) == "T" and self.is_half_done():
                    return process, encoder
            process.kill()
            process.communicate()
            for part in self.folder.glob(".tt-*.part"):
                part.unlink()
        self.fail("it was never caught at work")

    def test_an_encoder_that_dies(self):
        output = self.folder / "old.mp4"
        output.write_bytes(b"old")
        process, encoder = self.at_work("-o", output)
        status = pathlib.Path(f"/proc/{encoder}/status").read_text()
        self.assertRegex(status, r"Seccomp:\s2\b")
        self.assertRegex(status, r"NoNewPrivs:\s1\b")
        self.assertEqual(sorted(map(int, os.listdir(f"/proc/{encoder}/fd")))[:6], [0, 1, 2, 3, 4, 5])
        os.kill(encoder, signal.SIGKILL)
        _, errors = process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, 1)
        self.assertIn("SIGKILL", errors)
        self.assertNothingPartial()
        self.assertEqual(output.read_bytes(), b"old")

    def test_ctrl_c(self):
        process, encoder = self.at_work()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertEqual(self.names(), [b"long.mp4", b"long.tracks.npz"])
        self.assertFalse(pathlib.Path(f"/proc/{encoder}").exists())

    def test_a_video_that_changes_meanwhile(self):
        process, encoder = self.at_work()
        (video,) = self.folder.glob("long.mp4")
        os.utime(video, (1, 1))
        os.kill(encoder, signal.SIGCONT)
        _, errors = process.communicate(timeout=WAIT_S)
        self.assertEqual(process.returncode, 1)
        self.assertIn("the video was changed while the tracks were drawn into it", errors)
        self.assertEqual(self.names(), [b"long.mp4", b"long.tracks.npz"])

    def test_a_bar_on_a_terminal(self):
        """And none elsewhere: nothing is on standard error where that is a pipe."""
        video = make_video(self.folder / "a.mkv", moved(60, 2, 1))
        write_tracks(self.folder / "a.tracks.npz", np.full((1, 60, 2), 60.5), size=(320, 256))
        master, slave = pty.openpty()
        process = subprocess.Popen([TILETRACK, "overlay", video], stdin=slave, stdout=slave, stderr=slave,
                                   env={**os.environ, "TERM": "xterm"})
        os.close(slave)
        seen = b""
        try:
            while got := os.read(master, 65536):
                seen += got
        except OSError:  # the terminal is gone with the program
            pass
        os.close(master)
        self.assertEqual(process.wait(60), 0)
        self.assertRegex(seen, rb"\[#*\.+\] \d+/60 frames")
        self.assertIn(b"1 tracks in 60 frames", seen.split(b"\r")[-2])
        self.assertEqual(self.overlay(video).stderr, "")

    def test_a_file_that_may_not_grow(self):
        limited = run("overlay", self.long(), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100000,) * 2))
        self.assertExit(limited, 1)
        self.assertIn("File too large", limited.stderr)
        self.assertEqual(self.names(), [b"long.mp4", b"long.tracks.npz"])

    def test_no_space_left(self):
        full = self.folder / "full"
        full.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", full], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("needs to mount a small file system")
        self.addCleanup(subprocess.run, ["umount", full])
        process = run("overlay", self.long(), "-o", full / "o.mp4")
        self.assertExit(process, 1)
        self.assertIn("No space left on device", process.stderr)
        self.assertEqual(self.names(full), [])


class Jobs(Overlays):
    """An overlay as an output of a job."""

    def test_track_writes_it(self):
        video = make_video(self.folder / "a.mkv", moved(3, 2, 1))
        process = run("track", "--grid", 2, "--format", "npz", "--format", "overlay", video)
        self.assertExit(process, 0)
        self.assertEqual(self.names(), [b"a.mkv", b"a.overlay.mp4", b"a.tracks.npz"])
        with np.load(self.folder / "a.tracks.npz") as arrays:
            source = json.loads(str(arrays["meta"]))["source"]
        self.assertEqual({**source, **source_of(video)["source"]}, source)
        again = self.folder / "again.mp4"
        self.overlay("-o", again, video)
        self.assertEqual(again.read_bytes(), (self.folder / "a.overlay.mp4").read_bytes())

    def test_tracks_stay_where_it_fails(self):
        """The encoder is not there: track tells it and exits with 3, and the tracks are written."""
        own = self.folder / "bin"
        own.mkdir()
        for name in ("tiletrack", "tiletrack-decode"):
            shutil.copy(BIN / name, own)
        video = make_video(self.folder / "a.mkv", moved(3, 2, 1))
        command = [own / "tiletrack", "track", "--json", "--model", MODEL, "--grid", "2", "--format", "overlay", "--format",
                   "npz", video]
        process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertExit(process, 3)
        told = json.loads(process.stdout)
        self.assertEqual((told["status"], told["outputs"], told["missing"]),
                         ("ok", [str(self.folder / "a.tracks.npz")], ["overlay"]))
        self.assertRegex(process.stderr, "warning: no overlay: .*tiletrack-encode")
        self.assertEqual(self.names(), [b"a.mkv", b"a.tracks.npz", b"bin"])

    def track_with_other_decoding(self, video, script, *options):
        """A job of tracks and overlay whose second decoder, which the overlay is made from, finds what the script left."""
        own = self.folder / "bin"
        own.mkdir(exist_ok=True)
        for name in ("tiletrack", "tiletrack-encode"):
            shutil.copy(BIN / name, own)
        (self.folder / "calls").unlink(missing_ok=True)
        decoder = own / "tiletrack-decode"
        decoder.write_text(f"#!/bin/sh\nif [ -e {self.folder}/calls ]; then {script}; fi\n: > {self.folder}/calls\n"
                           f"exec {BIN}/tiletrack-decode \"$@\"\n")  # fmt: skip
        decoder.chmod(0o755)
        process = subprocess.run([own / "tiletrack", "track", "--json", "--model", MODEL, "--grid", "2", "--format", "npz",
                                  "--format", "overlay", *options, video], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)  # fmt: skip
        with np.load(self.folder / "a.tracks.npz") as arrays:
            return process, json.loads(str(arrays["meta"]))["source"]

    def test_a_video_that_changes_before_it_is_drawn(self):
        """Its file, or what is read of it: other times, more frames, fewer. The tracks are written, no overlay is."""
        video = make_video(self.folder / "a.mkv", moved(4, 2, 1))
        others = {"times": make_video(self.folder / "times.mkv", moved(4, 2, 1), rate=24),
                  "more": make_video(self.folder / "more.mkv", moved(5, 2, 1)),
                  "fewer": make_video(self.folder / "fewer.mkv", moved(3, 2, 1))}
        reasons = {"times": "frame 1 of the video is at", "more": "the video is no longer what it was when it was tracked",
                   "fewer": "the video ends after 3 frames"}
        for name, other in others.items():
            with self.subTest(name):
                process, source = self.track_with_other_decoding(video, f"exec 3< {other}")
                self.assertExit(process, 3)
                self.assertIn(f"warning: no overlay: {reasons[name]}", process.stderr)
                self.assertNotIn("changed", source)
                self.assertFalse((self.folder / "a.overlay.mp4").exists())
        process, _ = self.track_with_other_decoding(video, f"exec 3< {others['more']}", "--max-frames", "4")
        self.assertExit(process, 0)
        (self.folder / "a.overlay.mp4").unlink()
        process, _ = self.track_with_other_decoding(video, f"touch -d '1 hour ago' {video}")
        self.assertExit(process, 3)
        self.assertIn("warning: no overlay: the video is no longer what it was when it was tracked", process.stderr)
        self.assertFalse((self.folder / "a.overlay.mp4").exists())

    def test_a_video_that_changes_before_its_tracks_are_written(self):
        """Refining reads it a second time: it is changed by then, so no SHA-256 names what was tracked."""
        video = make_video(self.folder / "a.mkv", moved(4, 2, 1))
        process, source = self.track_with_other_decoding(video, f"touch -d '1 hour ago' {video}", "--refine", "native")
        self.assertExit(process, 3)
        self.assertIn("warning: the video's file was changed while it was tracked", process.stderr)
        self.assertIn("warning: no overlay: the video is no longer what it was when it was tracked", process.stderr)
        self.assertEqual((source["sha256"], source["bytes"], source["changed"]), (None, None, True))
        process = self.overlay(video, code=1)
        self.assertIn("the video's file was changed while it was tracked", process.stderr)
        self.assertIn("--any-video", process.stderr)
        self.overlay("--any-video", video)


class Workers(Scripted):
    """The real worker, decoder and encoder, and a backend that tracks in no time: what happens while it draws. The encoder
    stands still before it begins, until it is continued."""

    def setUp(self):
        super().setUp()
        programs = self.folder / "programs"
        for name in ("bin", "lib"):
            (programs / name).mkdir(parents=True)
        for name in ("bin/tiletrack-worker", "bin/tiletrack-decode", "lib/tiletrack-scripted.so"):
            shutil.copy(BIN.parent / name, programs / name)
        self.worker, encoder = programs / "bin" / "tiletrack-worker", programs / "bin" / "tiletrack-encode"
        encoder.write_text(f"#!/bin/sh\nkill -STOP $$\nexec '{BIN}/tiletrack-encode' \"$@\"\n")
        encoder.chmod(0o755)
        make_video(self.folder / "video.mkv", moved(100, 1, 1))

    def begin(self, **values):
        """A job, and its encoder, which stands still; no encoder: the job was over before."""
        w, ended = self.start(program=self.worker), []
        w.job("j", str(self.folder / "video.mkv"), self.out(), outputs=2, format1=OUTPUTS[-1],
              path1=self.out("overlay.mp4"), **values)

        def encoder():
            with contextlib.suppress(TimeoutError):  # no more messages now
                while not ended:
                    message = w.receive(timeout=0)
                    ended.extend([message] if message is None or message["type"] in ("done", "failed") else [])
            found = encoder_of(w.process.pid)
            return found if found and state_of(found) == "T" else None

        found = wait_for(lambda: encoder() or ended, "an encoder that stands still")
        return w, None if ended else found

    def assertTracksAlone(self, w, reason):
        done = w.until("done", "failed")
        self.assertEqual((done["type"], done["frames"], done["outputs"]), ("done", 100, 2))
        self.assertEqual(done["bytes0"], os.path.getsize(self.out()))
        self.assertEqual(done["bytes1"], 0)
        warnings = [m["text"] for m in w.seen if m["type"] == "warning"]
        self.assertRegex(warnings[-1], "^no overlay: .*" + reason)
        self.assertEqual(self.names(), [b"out.npz", b"programs", b"script", b"video.mkv"])

    def test_the_encoder_dies(self):
        w, encoder = self.begin()
        os.kill(encoder, signal.SIGKILL)
        self.assertTracksAlone(w, "SIGKILL")

    def test_the_video_changes_meanwhile(self):
        w, encoder = self.begin()
        os.utime(self.folder / "video.mkv", (1, 1))
        os.kill(encoder, signal.SIGCONT)
        self.assertTracksAlone(w, "the video is no longer what it was when it was tracked")

    def test_the_encoder_stands_still(self):
        w, encoder = self.begin(stall_seconds=2)
        self.assertTracksAlone(w, "stands still")
        self.assertTrue(is_gone(encoder))

    def test_the_deadline_passes(self):
        """It costs the overlay, not the tracks, which are there."""
        for deadline_ms in (500, 5000, 50000):  # where tracking has taken all of it, a longer one
            w, encoder = self.begin(deadline_ms=deadline_ms)
            if encoder:
                break
            self.assertFailed(w.seen[-1], INTERRUPTED, "deadline", DEADLINE)
        self.assertTrue(encoder, "no deadline was long enough")
        time.sleep(deadline_ms / 1000 + 0.01)  # it is over: the worker counts from the job's arrival, some time ago
        os.kill(encoder, signal.SIGCONT)
        self.assertTracksAlone(w, "out of time")
        self.assertIn("drawing", {STAGES[m["stage"]] for m in w.seen if m["type"] == "progress"})

    def test_the_job_is_cancelled(self):
        w, encoder = self.begin()
        w.send("cancel", id="j")
        self.assertFailed(w.until("done", "failed"), INTERRUPTED, "cancelled", CANCELLED)
        self.assertTrue(is_gone(encoder))
        self.assertEqual(self.names(), [b"programs", b"script", b"video.mkv"])

    def test_an_encoder_that_goes_on(self):
        w, encoder = self.begin()
        os.kill(encoder, signal.SIGCONT)
        done = w.until("done", "failed")
        self.assertEqual((done["type"], done["bytes1"]), ("done", os.path.getsize(self.out("overlay.mp4"))))
        self.assertEqual(len(probe(self.out("overlay.mp4"))[1]), 100)


class Daemon(DaemonFolder):
    def real(self, **sections):
        if not MODEL.exists():
            self.skipTest("needs models/tiletrack-small.safetensors")
        return self.daemon(devices=[{"cpu": 1}], programs=BIN, tracker={"model": str(MODEL), "grid": 2},
                           output={"overlay": True}, workers={"start_ms": 300000, "stall_ms": 200000}, **sections)

    def video(self, frames=4):
        return make_video(self.folder / "made.mkv", moved(frames, 2, 1)).read_bytes()

    def test_it_is_one_more_result(self):
        daemon = self.real()
        daemon.take(BIN / "tiletrack-encode", daemon.bin)
        daemon.start()
        (daemon.path("incoming") / "bear.mkv").write_bytes(self.video())
        done = daemon.event("job_done")
        self.assertEqual(done["formats"], "npz, overlay")
        self.assertEqual(daemon.names("tracks"), ["bear.overlay.mp4", "bear.tracks.npz"])
        self.assertEqual(done["output_bytes"], sum(daemon.path("tracks", n).stat().st_size for n in daemon.names("tracks")))
        self.assertEqual(len(probe(daemon.path("tracks", "bear.overlay.mp4"))[1]), 4)

    def test_a_missing_encoder_is_said_before(self):
        daemon = self.real()

        def check():
            daemon.write_config()
            return subprocess.run([daemon.bin / "tiletrackd", "--config", daemon.config_path, "--check"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        process = check()
        self.assertExit(process, 78)
        self.assertRegex(process.stderr, "output.overlay: true, but .*: tiletrack-encode is not installed; searched")
        daemon.config["output"]["overlay"] = False
        self.assertExit(check(), 0)
        daemon.config["output"]["overlay"] = True
        daemon.take(BIN / "tiletrack-encode", daemon.bin)
        self.assertExit(check(), 0)

    def test_tracks_are_committed_without_it(self):
        daemon = self.real().start()  # the programs' folder has no encoder
        (daemon.path("incoming") / "bear.mkv").write_bytes(self.video())
        done = daemon.event("job_done")
        self.assertEqual((done["formats"], done["missing"], done["outcome"]), ("npz", "overlay", "done"))
        self.assertEqual(daemon.names("tracks"), ["bear.tracks.npz"])
        self.assertEqual(daemon.names("done"), ["bear.mkv"])
        warning = daemon.event("job_warning")
        self.assertRegex(warning["cause"], "^no overlay: .*tiletrack-encode")
        self.assertEqual(warning["job"], done["job"])


if __name__ == "__main__":
    main()
