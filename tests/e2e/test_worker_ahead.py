"""A backend that takes the next window ahead: jobs hand it over while they track the present one, with the same results."""

from programs import main
from test_worker import Scripted
from worker_tools import BAD_INPUT, RETRY_LATER


class Ahead(Scripted):
    def tracks(self, script, video, name, **values):
        w = self.start(script)
        done = self.job(w, video=self.fake(video), output=self.out(name), **values)
        self.assertEqual(done["type"], "done", done)
        return (self.folder / name).read_bytes(), w

    def test_same_results_as_without(self):
        # one window; two, the second slid back; several; query points far behind the first window
        for frames, values in ((30, {}), (48, {}), (200, {}), (200, {"frame": 150}), (90, {"overlap_frames": 0})):
            with self.subTest(frames=frames, **values):
                ahead, _ = self.tracks("", f"{frames} grey", "ahead.npz", **values)
                alone, _ = self.tracks("open always alone", f"{frames} grey", "alone.npz", **values)
                self.assertEqual(ahead, alone)

    def test_every_window_but_the_first_is_brought(self):
        self.tracks("bring 1 bad_input", "47 grey", "one.npz")  # there is none behind it
        w = self.start("bring 1 bad_input")
        self.assertFailed(self.job(w, video=self.fake("48 grey")), BAD_INPUT, "scripted")
        w = self.start("bring 3 bad_input\ntrack 4 retry_later")
        self.assertFailed(self.job(w, video=self.fake("200 grey")), BAD_INPUT, "scripted")
        w = self.start("track 1 retry_later\nbring 2 bad_input")  # it is brought before this window is tracked
        self.assertFailed(self.job(w, video=self.fake("200 grey")), RETRY_LATER, "scripted")
        self.assertServes(w)


if __name__ == "__main__":
    main()
