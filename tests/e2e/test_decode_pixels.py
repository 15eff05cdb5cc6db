"""What comes out of the decoder, pixel by pixel: orientation, aspect, colour, depth, and positions without a bias."""
import struct

import numpy as np

from decode_tools import (Folder, area_weights, bilinear_weights, ffmpeg, main, marked, resized, set_matrix, subprocess,
                          write_video)

# name, display matrix (a b c d), rotation, mirrored, what it does to a picture
ORIENTATIONS = [
    ("as stored", (1, 0, 0, 1), 0, 0, lambda p: p),
    ("90 clockwise", (0, 1, -1, 0), 90, 0, lambda p: np.rot90(p, -1)),
    ("180", (-1, 0, 0, -1), 180, 0, lambda p: np.rot90(p, 2)),
    ("270 clockwise", (0, -1, 1, 0), 270, 0, lambda p: np.rot90(p, 1)),
    ("left to right", (-1, 0, 0, 1), 0, 1, lambda p: p[:, ::-1]),
    ("upside down", (1, 0, 0, -1), 180, 1, lambda p: p[::-1]),
    ("transposed", (0, 1, 1, 0), 90, 1, lambda p: p.transpose(1, 0, 2)),
    ("other diagonal", (0, -1, -1, 0), 270, 1, lambda p: np.rot90(p, 2).transpose(1, 0, 2)),
]


def pictures_of_ffmpeg(path, width, height):
    """What the ffmpeg program shows of a file; it applies display matrices by itself."""
    done = subprocess.run(["ffmpeg", "-v", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
                          stdout=subprocess.PIPE, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


class Orientation(Folder):
    def test_eight_orientations_are_exact(self):
        picture = marked(256, 256)
        for name, matrix, rotation, mirrored, turn in ORIENTATIONS:
            with self.subTest(name):
                path = write_video(self.folder / "v.mp4", picture[None])
                set_matrix(path, *matrix)
                got = self.pixels(path)
                np.testing.assert_array_equal(got["rgb"][0], turn(picture))
                self.assertEqual((got["info"]["rotation"], got["info"]["mirrored"]), (rotation, mirrored))
                np.testing.assert_array_equal(got["rgb"][0], pictures_of_ffmpeg(path, 256, 256)[0])
                self.assertEqual(got["warnings"], [])

    def test_sizes_follow_the_orientation(self):
        picture = marked(168, 336)
        for name, matrix, _, _, turn in ORIENTATIONS:
            with self.subTest(name):
                path = write_video(self.folder / "v.mp4", picture[None])
                set_matrix(path, *matrix)
                got = self.pixels(path)
                shown = turn(picture)
                info = got["info"]
                self.assertEqual((info["height"], info["width"]), shown.shape[:2])
                self.assertEqual((info["coded_height"], info["coded_width"]), (168, 336))
                for y, x in ((5, 5), (5, 250), (250, 5), (250, 250)):
                    at = shown[y * shown.shape[0] // 256, x * shown.shape[1] // 256]
                    np.testing.assert_allclose(got["rgb"][0][y, x].astype(int), at, atol=2)

    def test_odd_matrices(self):
        picture = marked(256, 256)
        for matrix, rotation, warning in (((0.02, 1, -1, 0.01), 90, "nearest quarter turn"),
                                          ((0.8, 0.6, -0.6, 0.8), 0, "nearest quarter turn"),
                                          ((0, 0, 0, 0), 0, "no sense"), ((1, 1, 1, 1), 0, "no sense"),
                                          ((2, 0, 0, 2), 0, None)):
            with self.subTest(matrix):
                path = write_video(self.folder / "v.mp4", picture[None])
                set_matrix(path, *matrix)
                got = self.dump(path)
                self.assertEqual(got["info"]["rotation"], rotation)
                self.assertEqual(len(got["warnings"]), 1 if warning else 0)
                self.assertIn(warning or "", "".join(got["warnings"]))

    def test_pixel_aspect_widens(self):
        for sar, turned, size in (("4/3", False, (427, 240)), ("9/10", False, (288, 240)), ("4/3", True, (240, 427)),
                                  ("1/1", False, (320, 240))):
            with self.subTest(sar=sar, turned=turned):
                path = write_video(self.folder / "v.mp4", marked(240, 320)[None], "-c:v", "libx264rgb", "-crf", "0",
                                   "-vf", f"setsar={sar}:max=1000")
                if turned:
                    data = path.read_bytes()  # set_matrix would drop the aspect that tkhd's size repeats
                    self.assertIn(b"pasp", data)
                    set_matrix(path, 0, 1, -1, 0)
                got = self.dump(path)
                self.assertEqual((got["info"]["width"], got["info"]["height"]), size)
                self.assertEqual(got["warnings"], [])

    def test_absurd_pixel_aspect_is_ignored(self):
        path = write_video(self.folder / "v.mp4", marked(240, 320)[None], "-c:v", "libx264rgb", "-crf", "0", "-vf",
                           "setsar=4/3")
        data = bytearray(path.read_bytes())
        at = data.index(b"pasp") + 4
        data[at:at + 8] = struct.pack(">2I", 1000, 1)
        path.write_bytes(data)
        got = self.dump(path)
        self.assertEqual((got["info"]["width"], got["info"]["height"]), (320, 240))
        self.assertIn("pixel aspect of 1000:1 is ignored", "".join(got["warnings"]))


class Colour(Folder):
    colours = np.array([(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (128, 128, 128),
                        (200, 100, 50), (20, 220, 180)], np.uint8)

    def bars(self, width=512, height=256):
        return np.repeat(self.colours, width // 8, axis=0)[None].repeat(height, axis=0)

    def check(self, pixel_format, matrix, picture_range, *, tagged=True, size=(512, 256), codec="ffv1", tolerance=1):
        path = self.folder / ("v.mp4" if codec == "libx264" else "v.mkv")
        tags = ("-colorspace", matrix, "-color_range", picture_range) if tagged else ()
        quality = ("-crf", "0", "-preset", "ultrafast") if codec == "libx264" else ()
        limited = "full" if picture_range == "pc" else "limited"
        write_video(path, self.bars(*size)[None], "-vf", f"zscale=m={matrix}:r={limited}:min=gbr:rin=full:d=none,"
                    f"format={pixel_format}", "-pix_fmt", pixel_format, "-c:v", codec, *quality, *tags)
        if not tagged:  # the encoder may have written what it was told by the filter
            stripped = path.with_name("s" + path.suffix)
            ffmpeg("-i", path, "-c", "copy", "-bsf:v", "h264_metadata=matrix_coefficients=2:colour_primaries=2:"
                   "transfer_characteristics=2", stripped)
            path = stripped
        got = self.pixels(path)
        if tagged:
            self.assertEqual((got["info"]["matrix"], got["info"]["range"]), (matrix, picture_range))
        middle = got["rgb"][0][128, 16::32].astype(int)
        self.assertLessEqual(np.abs(middle - self.colours).max(), tolerance, (pixel_format, matrix, picture_range))

    def test_matrices_ranges_and_formats(self):
        for pixel_format in ("yuv420p", "yuv422p", "yuv444p", "yuv411p", "yuva420p", "yuv420p10le", "yuv422p12le",
                             "yuv444p10le", "yuv444p16le"):
            for matrix, picture_range in (("bt709", "tv"), ("smpte170m", "tv"), ("bt709", "pc"), ("bt2020nc", "tv")):
                with self.subTest(f"{pixel_format} {matrix} {picture_range}"):
                    self.check(pixel_format, matrix, picture_range)

    def test_h264_full_range_444(self):
        self.check("yuv444p", "bt709", "pc", codec="libx264")
        self.check("yuv444p10le", "bt709", "tv", codec="libx264")

    def test_unspecified_is_601_below_720_lines_and_709_from_there(self):
        self.check("yuv420p", "smpte170m", "tv", tagged=False, codec="libx264")
        self.check("yuv420p", "bt709", "tv", tagged=False, codec="libx264", size=(1280, 720))
        self.check("yuv420p", "smpte170m", "tv", tagged=False, codec="libx264", size=(1280, 718))

    def test_rgb_is_taken_as_it_is(self):
        for pixel_format, codec in (("gbrp", "ffv1"), ("bgra", "ffv1"), ("gbrp10le", "ffv1"), ("rgb48le", "ffv1"),
                                    ("rgb24", "png"), ("rgba", "png")):
            with self.subTest(pixel_format):
                path = write_video(self.folder / "v.nut", self.bars()[None], "-pix_fmt", pixel_format, "-c:v", codec)
                middle = self.pixels(path)["rgb"][0][128, 16::32]
                np.testing.assert_array_equal(middle, self.colours)

    def test_grey_of_both_ranges(self):
        for picture_range, levels in (("tv", (16, 235)), ("pc", (0, 255))):
            frame = np.zeros((256, 256, 3), np.uint8)
            frame[:, :128], frame[:, 128:] = levels[0], levels[1]
            path = self.folder / "grey.mkv"
            subprocess.run(["ffmpeg", "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "gray", "-s", "256x256", "-i",
                            "-", "-c:v", "ffv1", "-pix_fmt", "gray", "-color_range", picture_range, str(path)],
                           input=frame[..., 0].tobytes(), check=True)
            got = self.pixels(path)
            self.assertEqual(got["info"]["range"], picture_range)
            self.assertEqual(got["rgb"][0][128, [10, 240]].tolist(), [[0] * 3, [255] * 3])

    def test_hdr_warns(self):
        path = write_video(self.folder / "v.mkv", self.bars()[None], "-pix_fmt", "yuv420p10le", "-c:v", "ffv1",
                           "-color_trc", "smpte2084", "-colorspace", "bt2020nc")
        got = self.dump(path)
        self.assertEqual(got["info"]["transfer"], "smpte2084")
        self.assertIn("without tone mapping", "".join(got["warnings"]))

    def test_unknown_matrix_warns(self):
        path = write_video(self.folder / "v.mkv", self.bars()[None], "-pix_fmt", "yuv420p", "-c:v", "ffv1",
                           "-colorspace", "ycgco")
        self.assertIn("matrix ycgco is not known", "".join(self.dump(path)["warnings"]))


class Positions(Folder):
    sizes = ((256, 256), (1920, 1080), (333, 517), (854, 480), (300, 2000))
    small_sizes = ((100, 100), (64, 400), (400, 64), (2, 2), (1, 1), (3, 5))

    def compare(self, width, height, option, weights, tolerance, mean_tolerance):
        random = np.random.default_rng(1)
        picture = random.integers(0, 256, (height, width, 3)).astype(np.uint8)
        path = write_video(self.folder / "v.mkv", picture[None])
        got = self.pixels(path, *option)["rgb"][0].astype(float)
        difference = got - resized(picture, weights)
        self.assertLessEqual(np.abs(difference).max(), tolerance, (width, height))
        self.assertLessEqual(abs(difference.mean()), mean_tolerance, (width, height))

    def test_area_is_the_mean_over_the_covered_pixels(self):
        for width, height in self.sizes:
            with self.subTest(f"{width}x{height}"):
                self.compare(width, height, (), area_weights, 2, 0.3)

    def test_bilinear_is_the_public_codes(self):
        for width, height in self.sizes + self.small_sizes:
            with self.subTest(f"{width}x{height}"):
                self.compare(width, height, ("--bilinear",), bilinear_weights, 2, 0.3)

    def test_area_enlarges_bilinearly(self):
        def weights(size):
            return area_weights(size) if size >= 256 else bilinear_weights(size)

        for width, height in self.small_sizes + ((255, 255), (255, 1000), (1000, 3)):
            with self.subTest(f"{width}x{height}"):
                self.compare(width, height, (), weights, 2, 0.3)

    def test_a_shift_by_sub_pixels_shows_as_such(self):
        """A vertical edge, blurred over some pixels, at known places: the light to its left says where it is seen.
        Positions scale by 256/size, with no constant added, in both directions and both resizes."""
        for width, height in ((256, 256), (1920, 1080), (333, 517)):
            for option in ((), ("--bilinear",)):
                places = [0.3 + 0.1 * i for i in range(5)] + [0.437, 0.618]
                for axis in (0, 1):
                    size = (height, width)[axis]
                    line = np.arange(size) + 0.5
                    frames = []
                    for place in places:
                        edge = np.clip((place * size - line) / (0.08 * size) + 0.5, 0, 1) * 200 + 20
                        edge = edge[:, None] if axis == 0 else edge[None, :]
                        frames.append(np.broadcast_to(edge[..., None], (height, width, 3)))
                    path = write_video(self.folder / "v.mkv", np.round(frames))
                    rgb = self.pixels(path, *option)["rgb"].astype(float)
                    lines = rgb.mean(axis=(2 - axis, 3))
                    seen = (lines - 20).sum(1) / 200
                    for place, found in zip(places, seen):
                        # half a source pixel would be 0.5 × 256/size
                        self.assertAlmostEqual(found, place * 256, delta=min(0.1, 0.2 * 256 / size + 0.02),
                                               msg=(width, height, option, axis, place))

    def test_yuv_edges_are_not_shifted(self):
        """The same through H.264 4:2:0, where chroma has its own grid: luma decides, and the bias stays below 0.02."""
        width, height, place = 854, 480, 0.4371
        line = np.clip((place * width - np.arange(width) - 0.5) / 40 + 0.5, 0, 1) * 200 + 20
        frame = np.broadcast_to(line[None, :, None], (height, width, 3))
        path = write_video(self.folder / "v.mp4", np.round(frame)[None], "-c:v", "libx264", "-crf", "1", "-pix_fmt",
                           "yuv420p")
        rgb = self.pixels(path)["rgb"][0].astype(float).mean(axis=(0, 2))
        low, high = rgb[:40].mean(), rgb[-40:].mean()
        seen = ((rgb - high) / (low - high)).sum()
        self.assertAlmostEqual(seen, place * 256, delta=0.05)

    def test_extreme_sizes(self):
        for width, height in ((1, 1), (1, 300), (300, 1), (2, 3), (7680, 4320), (16384, 16), (17, 4097)):
            for pixel_format in ("bgr0", "yuv420p"):
                with self.subTest(f"{width}x{height} {pixel_format}"):
                    path = self.folder / "v.mkv"
                    ffmpeg("-f", "lavfi", "-i", f"color=c=0x777777:s={width}x{height}:d=0.08,format=bgr0", "-c:v", "ffv1",
                           "-pix_fmt", pixel_format, path)
                    got = self.pixels(path)
                    self.assertEqual((got["info"]["width"], got["info"]["height"]), (width, height))
                    self.assertEqual(got["frames"], 2)
                    self.assertLessEqual(np.abs(got["rgb"].astype(int) - 0x77).max(), 2)

    def test_size_and_format_changes_in_mid_stream(self):
        first, second = self.folder / "a.264", self.folder / "b.264"
        write_video(first, marked(240, 320)[None].repeat(10, 0), "-c:v", "libx264", "-crf", "4", "-pix_fmt", "yuv420p")
        write_video(second, marked(480, 640)[None].repeat(7, 0), "-c:v", "libx264", "-crf", "4", "-pix_fmt", "yuv444p")
        both = self.folder / "v.264"
        both.write_bytes(first.read_bytes() + second.read_bytes())
        for threads in (1, 3):
            got = self.pixels(both, "--threads", threads)
            self.assertEqual(got["frames"], 17)
            self.assertEqual((got["info"]["width"], got["info"]["height"]), (320, 240))
            self.assertIn("frame 10: the size changes from 320x240 to 640x480", "".join(got["warnings"]))
            for frame in (got["rgb"][0], got["rgb"][16]):  # the four corners stay in their corners
                for (y, x), colour in (((8, 8), (255, 0, 0)), ((8, 248), (0, 255, 0)), ((248, 8), (0, 0, 255)),
                                       ((248, 248), (255, 255, 255))):
                    self.assertLessEqual(np.abs(frame[y, x].astype(int) - colour).max(), 12)


if __name__ == "__main__":
    main()
