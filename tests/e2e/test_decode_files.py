"""Every kind of file ends in its frames or in a clear error: real files, cut ones, hostile ones, masks."""
import csv
import functools
import http.server
import os
import random
import struct
import subprocess
import threading
import unittest
import zlib

import numpy as np

from decode_tools import SHARED, VIDEOS, Folder, dump, ffmpeg, ffprobe, has_encoder, main, marked, write_video

# ffmpeg 5.1 with one thread decodes these; the manifest's counts come from several threads or another stream
OTHER_COUNTS = {
    "fz_chained-video.ogv": 17,       # "midstream reconfiguration with multithreading is unsupported"
    "torchcodec_nasa_13013.mp4": 390,  # the best stream is the larger one; the manifest counts the first
}


@functools.lru_cache(maxsize=None)
def dump_real(name):
    """Three tests look at the same files."""
    return dump(VIDEOS / name)


def manifest():
    with open(VIDEOS / "MANIFEST.tsv", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


@unittest.skipUnless(VIDEOS.is_dir(), f"no videos in {SHARED}")
class RealFiles(Folder):
    def test_each_gives_ffmpegs_frames_or_a_clear_error(self):
        rows = manifest()
        self.assertGreater(len(rows), 50)
        for row in rows:
            with self.subTest(row["file"]):
                expected = OTHER_COUNTS.get(row["file"], int(row["frames_ffmpeg5.1_decodes"]))
                got = dump_real(row["file"])
                if expected == 0:
                    self.assertEqual(got["status"], "bad_input")
                    self.assertGreater(len(got["error"]), 15)
                    continue
                self.assertEqual((got["status"], got["frames"]), ("ok", expected), got["error"])
                self.assertFalse(got["truncated"], got["warnings"])
                self.assertEqual(got["time_s"], sorted(got["time_s"]))

    def test_times_are_those_of_ffprobe(self):
        for row in manifest():
            name = row["file"]
            if row["frames_ffmpeg5.1_decodes"] in ("0", "10883") or name in OTHER_COUNTS:
                continue
            with self.subTest(name):
                frames = ffprobe(VIDEOS / name, "-select_streams", "v:0", "-show_entries",
                                 "frame=best_effort_timestamp_time")["frames"]
                wanted = [frame.get("best_effort_timestamp_time") for frame in frames]
                got = dump_real(name)["time_s"]
                if None in wanted:
                    self.assertTrue(row["file"].endswith((".264", ".h264", ".hvc")), name)
                    continue
                np.testing.assert_allclose(got, np.maximum.accumulate(np.array(wanted, float)), atol=2e-6)

    def test_what_is_known_of_them(self):
        for name, wanted in {
            "decord_video_180.mov": {"rotation": 180, "width": 568, "height": 320},
            "decord_video_270.mov": {"rotation": 270, "width": 320, "height": 568},
            "media3_dolbyVision-hdr.MOV": {"rotation": 90, "width": 720, "height": 1280, "matrix": "bt2020nc",
                                           "transfer": "arib-std-b67"},
            "fz_xvid.avi": {"width": 9, "height": 5, "coded_width": 10},
            "sleap_small_robot_3_frame.mp4": {"range": "pc", "pixel_format": "yuvj420p"},
            "media3_bbb_960x540_60fps_vp8.webm": {"codec": "vp9"},
            "torchcodec_nasa_13013.mp4": {"width": 480, "height": 270},
            "media3_bt601.mov": {"matrix": "smpte170m"},
        }.items():
            with self.subTest(name):
                info = dump_real(name)["info"]
                self.assertEqual({key: info[key] for key in wanted}, wanted)

    def test_errors_say_what_was_found(self):
        for name, text in {
            "media3_sample_alac.mp4": "audio only: alac",
            "torchcodec_nasa_13013.mp4.audio.mp3": "audio only: mp3",
            "fz_5.mp4": "audio only: aac",
            "mp4parse_bipbop_480wp_1001kbps-cenc-video-key1-init.mp4": "encrypted",
            "ft_fixture-isom.mp4": "moov atom not found",
            "fz_new.avi": "not recognised",
            "fz_0-timescale.mp4": "give no frame",
        }.items():
            with self.subTest(name):
                self.assert_bad(VIDEOS / name, text)

    def test_threads_change_nothing_in_sound_files(self):
        for name in ("davis_bear.mp4", "torchcodec_h265_10bits.mp4", "torchcodec_av1_video.mkv",
                     "media3_roadtrip-vp92-10bit.webm", "decord_video_270.mov"):
            with self.subTest(name):
                one, four = dump_real(name), dump(VIDEOS / name, "--threads", 4)
                self.assertEqual(one["status"], "ok")
                self.assertEqual((one["hashes"], one["time_s"]), (four["hashes"], four["time_s"]))

    def test_damage_anywhere_is_survived(self):
        """Bytes of small real files overwritten at random (same places every time)."""
        dice = random.Random(2)
        for path in sorted(VIDEOS.iterdir()):
            if path.suffix == ".tsv" or path.stat().st_size > 70_000:
                continue
            data = bytearray(path.read_bytes())
            for where in (len(data), min(len(data), 2000)):  # anywhere; in the headers
                for _ in range(12):
                    data[dice.randrange(where)] = dice.randrange(256)
                broken = self.folder / "broken"
                broken.write_bytes(data)
                with self.subTest(path.name, where=where):
                    got = dump(broken)
                    self.assertIn(got["status"], ("ok", "bad_input"), got)
                    self.assertNotIn("forbidden", got["error"])


class Cut(Folder):
    kinds = [  # suffix, options, whether a cut shows in the container's structure
        ("mp4", ("-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart"), True),
        ("frag.mp4", ("-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "frag_keyframe+empty_moov"), True),
        ("mkv", ("-c:v", "libx264", "-pix_fmt", "yuv420p"), True),
        ("webm", ("-c:v", "libvpx-vp9", "-deadline", "realtime", "-cpu-used", "8"), True),
        ("avi", ("-c:v", "mpeg4", "-q:v", "4"), True),
        ("ogv", ("-c:v", "libtheora"), True),
        ("ts", ("-c:v", "libx264", "-pix_fmt", "yuv420p"), True),
        ("wmv", ("-c:v", "wmv2"), True),
        ("flv", ("-c:v", "libx264", "-pix_fmt", "yuv420p"), False),
        ("mpg", ("-c:v", "mpeg2video",), False),
        ("264", ("-c:v", "libx264", "-pix_fmt", "yuv420p"), False),
        ("gif", ("-c:v", "gif"), False),
    ]

    def test_cut_at_many_lengths(self):
        picture = marked(96, 160)
        frames = np.stack([np.roll(picture, 3 * t, 1) for t in range(40)])
        for suffix, options, shows in self.kinds:
            path = write_video(self.folder / f"v.{suffix}", frames, *options, "-g", "10")
            whole = dump(path)
            self.assertEqual((whole["status"], whole["frames"], whole["truncated"]), ("ok", 40, False), (suffix, whole))
            data = path.read_bytes()
            partial = 0
            for share in (0.0005, 0.01, 0.05, 0.1, 0.25, 0.33, 0.5, 0.61, 0.75, 0.9, 0.97):
                cut = self.folder / f"cut.{suffix}"
                cut.write_bytes(data[:max(1, int(len(data) * share) | 1)])
                with self.subTest(suffix, share=share):
                    got = dump(cut)
                    self.assertIn(got["status"], ("ok", "bad_input"), got)
                    self.assertLessEqual(got["frames"], 40)
                    if got["status"] == "bad_input":
                        self.assertGreater(len(got["error"]), 15)
                        continue
                    self.assertGreater(got["frames"], 0)
                    if got["frames"] > 3:  # fewer may lie in the damaged end
                        self.assertEqual(got["hashes"][0], whole["hashes"][0])
                    partial += got["frames"] < 40
                    if shows:
                        self.assertTrue(got["truncated"], got["warnings"])
                        self.assertIn("ends early", "".join(got["warnings"]))
            self.assertGreater(partial, 2, suffix)

    def test_what_is_cut_off_behind_the_video_does_not_matter(self):
        path = write_video(self.folder / "v.mp4", marked(64, 64)[None].repeat(5, 0), "-c:v", "libx264", "-pix_fmt",
                           "yuv420p", "-movflags", "+faststart")
        with open(path, "ab") as file:
            file.write(struct.pack(">I4s", 1000, b"free") + bytes(100))
        got = dump(path)
        self.assertEqual((got["frames"], got["truncated"]), (5, False))


class Kinds(Folder):
    def test_not_files(self):
        fifo, empty, short = self.folder / "fifo", self.folder / "empty.mp4", self.folder / "short.mp4"
        os.mkfifo(fifo)
        empty.write_bytes(b"")
        short.write_bytes(b"x")
        self.assert_bad(self.folder, "directory")
        self.assert_bad(fifo, "fifo")
        self.assert_bad("/dev/zero", "device")
        self.assert_bad(empty, "empty")
        self.assert_bad(short, "not recognised")
        self.assert_bad(self.folder / "missing.mp4", "No such file")

    def test_names_are_bytes(self):
        plain = write_video(self.folder / "plain.mkv", marked(32, 32)[None])
        for name in (b"with blank.mkv", b"new\nline.mkv", b"\xff\xfe.mkv", b"-dash.mkv", b"concat:x.mkv", b"%d.mkv"):
            path = bytes(self.folder) + b"/" + name
            with open(path, "wb") as file:
                file.write(plain.read_bytes())
            self.assertEqual(dump(path)["frames"], 1)

    def test_audio_only_and_cover_pictures(self):
        cover = self.folder / "cover.png"
        ffmpeg("-f", "lavfi", "-i", "testsrc=s=64x64:d=0.04", "-frames:v", "1", cover)
        tone = ("-f", "lavfi", "-i", "sine=d=0.5")
        for name, options, text in (("a.m4a", ("-c:a", "aac"), "audio only: aac"),
                                    ("a.wav", (), "audio only: pcm_s16le"), ("a.flac", (), "audio only: flac"),
                                    ("a.ogg", ("-c:a", "libvorbis"), "audio only: vorbis")):
            ffmpeg(*tone, *options, self.folder / name)
            self.assert_bad(self.folder / name, text)
        for name, codec in (("c.mp3", "libmp3lame"), ("c.m4a", "aac"), ("c.flac", "flac")):
            ffmpeg(*tone, "-i", cover, "-map", "0", "-map", "1", "-c:a", codec, "-c:v", "copy", "-disposition:v",
                   "attached_pic", self.folder / name)
            self.assert_bad(self.folder / name, "audio only:", "attached picture")

    def test_a_cover_picture_beside_a_video_is_not_taken(self):
        cover, video, both = self.folder / "cover.png", self.folder / "v.mp4", self.folder / "both.mp4"
        ffmpeg("-f", "lavfi", "-i", "testsrc=s=1920x1080:d=0.04", "-frames:v", "1", cover)
        write_video(video, marked(64, 96)[None].repeat(3, 0), "-c:v", "libx264", "-pix_fmt", "yuv420p")
        ffmpeg("-i", cover, "-i", video, "-map", "0", "-map", "1", "-c", "copy", "-disposition:v:0", "attached_pic",
               "-disposition:v:1", "0", both)
        got = dump(both)
        self.assertEqual((got["info"]["width"], got["info"]["codec"], got["frames"]), (96, "h264", 3))

    def test_still_images_text_and_subtitles_are_refused(self):
        still, text, subtitles = self.folder / "a.png", self.folder / "a.txt", self.folder / "a.srt"
        ffmpeg("-f", "lavfi", "-i", "testsrc=s=64x64:d=0.04", "-frames:v", "1", still)
        text.write_text("hello " * 1000)
        subtitles.write_text("1\n00:00:01,000 --> 00:00:02,000\nhello\n\n" * 5)
        self.assert_bad(still, "still image")
        self.assert_bad(text, "not")
        self.assert_bad(subtitles, "not a video")

    def test_codecs(self):
        frames = np.stack([np.roll(marked(96, 160), 5 * t, 1) for t in range(12)])
        for suffix, codec, options in (("mp4", "libx265", ("-pix_fmt", "yuv420p10le", "-x265-params", "log-level=none")),
                                       ("mkv", "libx265", ("-pix_fmt", "yuv422p10le", "-x265-params", "log-level=none")),
                                       ("webm", "libvpx", ()), ("mkv", "mjpeg", ()), ("mov", "prores_ks", ()),
                                       ("avi", "huffyuv", ()), ("mkv", "libx264", ("-pix_fmt", "yuv444p10le")),
                                       ("mpg", "mpeg1video", ()), ("mov", "dvvideo", ("-s", "720x576", "-pix_fmt",
                                                                                    "yuv420p")),
                                       ("mov", "qtrle", ()), ("y4m", "rawvideo", ("-pix_fmt", "yuv420p",)),
                                       ("gif", "gif", ()), ("apng", "apng", ()), ("nut", "rawvideo", ()),
                                       ("wmv", "wmv2", ()), ("mxf", "mpeg2video", ()), ("ivf", "libvpx-vp9", ())):
            if not has_encoder(codec):
                continue
            with self.subTest(f"{codec} in {suffix}"):
                wrapped = ("-f", "yuv4mpegpipe") if suffix == "y4m" else ()
                if suffix == "y4m":
                    codec = "wrapped_avframe"
                path = write_video(self.folder / f"v.{suffix}", frames, "-c:v", codec, *options, *wrapped)
                got = self.pixels(path)
                self.assertEqual(got["frames"], 12)
                self.assertLess(np.abs(got["rgb"][0][240:, 240:].astype(int) - 255).mean(), 20)


class Times(Folder):
    def test_b_frames_come_out_in_order_and_to_the_last(self):
        """Every frame has its own grey level, so that its place is known."""
        levels = np.arange(50) * 4 + 20
        frames = np.broadcast_to(levels[:, None, None, None], (50, 64, 64, 3))
        path = write_video(self.folder / "v.mp4", frames, "-c:v", "libx264", "-bf", "8", "-b_strategy", "0", "-g", "200",
                           "-crf", "5", "-pix_fmt", "yuv420p")
        for threads in (1, 4):
            got = self.pixels(path, "--threads", threads)
            np.testing.assert_allclose(got["rgb"].mean((1, 2, 3)), levels, atol=2)
            np.testing.assert_allclose(got["time_s"], np.arange(50) / 25, atol=1e-9)

    def test_variable_rate_and_start(self):
        path = self.folder / "v.mkv"
        ffmpeg("-f", "lavfi", "-i", "testsrc=s=64x64:r=25:d=2", "-vf", "settb=1/1000,setpts='((N+N*N/7)*0.01+3.5)/TB'", "-vsync",
               "passthrough", "-enc_time_base", "1/1000", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-copyts", path)
        got = self.dump(path)
        wanted = [(n + n * n / 7) * 0.01 + 3.5 for n in range(50)]
        np.testing.assert_allclose(got["time_s"], wanted, atol=0.0011)
        self.assertEqual(got["warnings"], [])

    def test_without_timestamps_the_rate_counts(self):
        path = write_video(self.folder / "v.264", marked(64, 64)[None].repeat(30, 0), "-c:v", "libx264", "-pix_fmt",
                           "yuv420p", rate=30)
        got = self.dump(path)
        np.testing.assert_allclose(got["time_s"], np.arange(30) / 30, atol=1e-9)
        self.assertIn("no timestamp", "".join(got["warnings"]))

    def test_one_frame_and_thousands(self):
        one, many = self.folder / "one.mp4", self.folder / "many.mkv"
        write_video(one, marked(48, 48)[None])
        ffmpeg("-f", "lavfi", "-i", "testsrc=s=64x48:r=100:d=50", "-c:v", "mpeg4", many)
        self.assertEqual(self.dump(one)["frames"], 1)
        got = self.dump(many)
        self.assertEqual(got["frames"], 5000)
        np.testing.assert_allclose(got["time_s"], np.arange(5000) / 100, atol=0.001)

    def test_a_header_that_lies_about_its_frames(self):
        path = write_video(self.folder / "v.avi", marked(48, 64)[None].repeat(9, 0), "-c:v", "mpeg4")
        data = bytearray(path.read_bytes())
        for box, offset in ((b"avih", 8 + 16), (b"strh", 8 + 32)):
            at = data.index(box) + offset
            self.assertEqual(struct.unpack_from("<I", data, at)[0], 9, box)
            struct.pack_into("<I", data, at, 123456)
        path.write_bytes(data)
        got = self.dump(path)
        self.assertEqual((got["frames"], got["info"]["frames_hint"]), (9, 123456))

    def test_corrupt_packets_are_passed_over(self):
        frames = np.stack([np.roll(marked(96, 160), 5 * t, 1) for t in range(50)])
        whole = write_video(self.folder / "v.mkv", frames, "-c:v", "libx264", "-g", "5", "-pix_fmt", "yuv420p")
        broken = self.folder / "broken.mkv"
        ffmpeg("-i", whole, "-c", "copy", "-bsf:v", "noise=amount=300", broken)
        got = self.dump(broken)
        self.assertEqual(got["status"], "ok")
        self.assertGreater(got["frames"], 25)
        self.assertRegex("".join(got["warnings"]), "could not be decoded|damaged")


class Server:
    """An HTTP server that notes whether anybody came."""

    def __enter__(self):
        visits = self.visits = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                visits.append(self.path)
                self.send_error(404)

            def log_message(self, *_):
                pass

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/secret.ts"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Pointers(Folder):
    """Files that would make a player read other files or talk to a network reach nothing here."""

    def test_lists_and_scripts(self):
        secret = self.folder / "secret.ts"
        write_video(secret, marked(64, 64)[None].repeat(5, 0), "-c:v", "libx264", "-pix_fmt", "yuv420p")
        with Server() as server:
            for name, text in {
                "a.m3u8": f"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{secret}\n"
                          f"#EXTINF:1,\n{server.url}\n#EXT-X-ENDLIST\n",
                "b.m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.ts\n#EXT-X-ENDLIST\n",
                "a.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
                         "a=rtpmap:96 H264/90000\n",
                "a.ffconcat": f"ffconcat version 1.0\nfile '{secret}'\n",
                "a.mpd": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
                         'profiles="urn:mpeg:dash:profile:isoff-live:2011"><Period><AdaptationSet mimeType="video/mp4">'
                         f'<Representation id="1"><BaseURL>{server.url}</BaseURL></Representation></AdaptationSet>'
                         "</Period></MPD>",
                "a.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64">'
                         f'<image href="file://{secret}" width="64" height="64"/></svg>',
                "a.ram": f"{server.url}\n",
            }.items():
                with self.subTest(name):
                    path = self.folder / name
                    path.write_text(text)
                    got = self.assert_bad(path)
                    self.assertNotIn("forbidden", got["error"])
            self.assertEqual(server.visits, [])
        self.assert_bad(self.folder / "a.m3u8", "points elsewhere (hls)")
        self.assert_bad(self.folder / "a.ffconcat", "points elsewhere (concat)")
        self.assert_bad(self.folder / "a.sdp", "points elsewhere (sdp)")

    def test_names_that_are_addresses(self):
        secret = write_video(self.folder / "secret.mkv", marked(64, 64)[None])
        for name in (f"concat:{secret}", f"file:{secret}", "lavfi:testsrc", "http://127.0.0.1/x", "pipe:0", "/dev/video0",
                     f"subfile,,start,0,end,0,,:{secret}"):
            self.assert_bad(name, "No such file")

    def test_a_mov_with_an_external_reference(self):
        """A data reference to another file (alis) instead of the file itself: the samples cannot be reached."""
        path = write_video(self.folder / "v.mov", marked(64, 64)[None].repeat(3, 0), "-c:v", "mjpeg")
        secret = self.folder / "secret.bin"
        secret.write_bytes(path.read_bytes())
        data = bytearray(path.read_bytes())
        at = data.index(b"url \x00\x00\x00\x01")  # "in this file"
        data[at:at + 8] = b"url \x00\x00\x00\x00"
        path.write_bytes(data)
        got = dump(path)  # ffmpeg reads the samples from the file itself; what matters is that nothing else is opened
        self.assertIn(got["status"], ("ok", "bad_input"))
        self.assertNotIn("forbidden", got["error"])


def write_palette_png(path, numbers, palette, alpha):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width = numbers.shape
    rows = b"".join(b"\0" + row.tobytes() for row in numbers)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 3, 0, 0, 0)) +
                     chunk(b"PLTE", palette) + (chunk(b"tRNS", alpha) if alpha else b"") +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class Masks(Folder):
    def mask(self, picture, pixel_format, *options):
        path = self.folder / "mask.png"
        height, width = picture.shape[:2]
        subprocess.run(["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", pixel_format, "-s",
                        f"{width}x{height}", "-i", "-", "-frames:v", "1", *options, str(path)],
                       input=picture.tobytes(), check=True)
        got = dump(path, "--mask", raw=self.folder / "raw")
        self.assertEqual((got["status"], got.get("width"), got.get("height")), ("ok", width, height), got)
        return np.fromfile(self.folder / "raw", np.uint8).reshape(height, width)

    def test_every_png_format(self):
        inside = np.zeros((37, 53), bool)
        inside[5:20, 7:30] = True
        inside[36, 52] = True
        for value in (255, 1):
            grey = (inside * value).astype(np.uint8)
            np.testing.assert_array_equal(self.mask(grey, "gray"), inside)
            blue = np.zeros((*inside.shape, 3), np.uint8)
            blue[..., 2] = grey
            np.testing.assert_array_equal(self.mask(blue, "rgb24"), inside)
            np.testing.assert_array_equal(self.mask((inside * value).astype(">u2"), "gray16be"), inside)
            opaque = np.dstack([blue, np.full_like(grey, 255)])
            np.testing.assert_array_equal(self.mask(opaque, "rgba"), inside)
            alpha = np.dstack([np.full((*inside.shape, 3), 200, np.uint8), grey])
            np.testing.assert_array_equal(self.mask(alpha, "rgba"), inside)
            black_alpha = np.dstack([np.zeros((*inside.shape, 3), np.uint8), grey])
            np.testing.assert_array_equal(self.mask(black_alpha, "rgba"), inside)
        np.testing.assert_array_equal(self.mask(np.dstack([blue[..., 2], grey * 0 + 255]), "ya8"), inside)
        np.testing.assert_array_equal(self.mask((inside * 255).astype(np.uint8), "gray", "-pix_fmt", "monob"), inside)

    def test_palettes(self):
        """As annotation tools write them: number 0 is black, every object has a number and a colour."""
        numbers = np.zeros((9, 11), np.uint8)
        numbers[2:5, 3:7], numbers[7, 8] = 1, 2
        path = self.folder / "mask.png"
        for alpha, inside in ((None, numbers > 0), (bytes([255, 255, 255]), numbers > 0), (bytes([0, 255, 0]), numbers == 1)):
            write_palette_png(path, numbers, bytes([0, 0, 0, 128, 0, 0, 0, 0, 1]), alpha)
            got = dump(path, "--mask", raw=self.folder / "raw")
            self.assertEqual(got["status"], "ok", got)
            np.testing.assert_array_equal(np.fromfile(self.folder / "raw", np.uint8).reshape(9, 11), inside)

    def test_what_is_not_a_mask(self):
        jpeg, broken, video = self.folder / "a.jpg", self.folder / "b.png", self.folder / "v.mkv"
        ffmpeg("-f", "lavfi", "-i", "testsrc=s=64x64:d=0.04", "-frames:v", "1", jpeg)
        broken.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
        write_video(video, marked(32, 32)[None])
        self.assert_bad(jpeg, "not a PNG", options=("--mask",))
        self.assert_bad(video, "not a PNG", options=("--mask",))
        self.assert_bad(broken, "mask", options=("--mask",))
        ffmpeg("-f", "lavfi", "-i", "color=s=640x480:d=0.04", "-frames:v", "1", self.folder / "large.png")
        self.assert_bad(self.folder / "large.png", "mask", options=("--mask", "--max-pixels", 640 * 480 - 1))
        self.assertEqual(dump(self.folder / "large.png", "--mask", "--max-pixels", 640 * 480)["status"], "ok")


if __name__ == "__main__":
    main()
