"""Positions are right to a fraction of a pixel whatever the video's size: nothing shifts by half a pixel on the way.

A texture moves by known sub-pixel steps. The mean signed error of visible points, in pixels of the 256×256 clip, must
be small beside the half pixel that a wrong convention would cost (0.5 px of the clip, or of the source, scaled).
"""
import numpy as np

from programs import Folder, main, make_video, run, shifting


class Bias(Folder):
    def measure(self, width, height):
        step_x, step_y = 0.013 * width / 2, -0.009 * height / 2
        frames = shifting(12, height, width, step_x, step_y, cell=9.0 * max(width, height) / 256)
        video = make_video(self.folder / f"{width}x{height}.mkv", frames)
        process = run("track", "--grid", 10, "--frame", 5, video)
        self.assertExit(process, 0)
        with np.load(video.with_suffix(".tracks.npz")) as made:
            tracks, query, hidden = made["tracks"], made["query_points"], made["occluded"]
        t = np.arange(12)[None, :, None] - query[:, :1, None]
        truth = query[:, None, [2, 1]] + t * np.array([step_x, step_y])
        inside = ((truth > 0.06 * np.array([width, height])) & (truth < 0.94 * np.array([width, height]))).all(-1)
        error = ((tracks - truth) * 256 / np.array([width, height]))[inside & ~hidden]
        self.assertGreater(len(error), 500)
        bias, median = np.mean(np.clip(error, -2, 2), 0), np.median(np.hypot(*error.T))
        print(f"{width}x{height}: bias {bias[0]:+.3f} {bias[1]:+.3f}, median error {median:.3f} px of the clip")
        self.assertLess(np.abs(bias).max(), 0.15)
        self.assertLess(median, 0.5)

    def test_the_clips_own_size(self):
        self.measure(256, 256)

    def test_full_hd(self):
        self.measure(1920, 1080)

    def test_odd_and_tall(self):
        self.measure(333, 517)


if __name__ == "__main__":
    main()
