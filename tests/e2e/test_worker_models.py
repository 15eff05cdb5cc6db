"""A worker whose jobs want different models: which one is open, and what happens where one cannot be opened."""
import os
import pathlib
import shutil

from programs import main, sanitized
from test_worker import LOST, Scripted
from worker_tools import BAD_INPUT, CANCELLED, INTERRUPTED, MODEL, RESTART_WORKER, RETRY_LATER


class Models(Scripted):
    """The scripted backend counts its calls: `open` 1 and 2 are those of the start, 3 and 4 of the other model."""

    def setUp(self):
        super().setUp()
        (self.folder / "elsewhere").mkdir()
        self.other = str(self.folder / "elsewhere" / MODEL.name)  # of this name the scripted backend knows the answer
        shutil.copy(MODEL, self.other)

    def opened(self, w):
        return [line.split('"model":"')[1].split('"')[0] for line in w.log().splitlines() if "model_opened" in line]

    def assertOwnModelWorks(self, w):
        self.assertEqual(self.job(w, "own", self.fake("5 grey", "own.video"), self.out("own.npz"))["type"], "done")

    def test_one_after_the_other(self):
        w = self.start(log_level=1, log_format=0)
        for id, model in (("a", ""), ("b", self.other), ("c", self.other), ("d", ""), ("e", MODEL)):
            self.assertEqual(self.job(w, id, model=model)["type"], "done")
        self.assertEqual(self.opened(w), [self.other, str(MODEL)])

    def test_nothing_grows(self):
        w = self.start()
        used = []
        for turn in range(60):
            model = self.other if turn % 2 == 0 else ""
            self.assertEqual(self.job(w, f"j{turn}", self.fake("5 grey", "small.video"), model=model)["type"], "done")
            status = pathlib.Path(f"/proc/{w.process.pid}/status").read_text()
            maps = pathlib.Path(f"/proc/{w.process.pid}/maps").read_text()
            used.append((len(os.listdir(f"/proc/{w.process.pid}/fd")), maps.count(".safetensors"),
                         int(status.split("RssAnon:")[1].split()[0])))
        self.assertEqual(used[-1][:2], used[9][:2])
        self.assertEqual(used[-1][1], 1)  # one model is mapped at a time
        if not sanitized("tiletrack-worker"):  # which keeps memory aside
            self.assertLess(used[-1][2], used[9][2] + 2000, used)  # kB

    def test_none_of_that_name(self):
        w = self.start()
        self.assertFailed(self.job(w, model="no-such-model"), BAD_INPUT, "no-such-model")
        self.assertFailed(self.job(w, model=str(self.folder / "none.safetensors")), BAD_INPUT, "none.safetensors")
        self.assertOwnModelWorks(w)
        self.assertEqual(self.opened(w), [])  # it was never closed

    def test_one_that_is_none(self):
        (self.folder / "noise.safetensors").write_bytes(os.urandom(10000))
        w = self.start()
        self.assertFailed(self.job(w, model=str(self.folder / "noise.safetensors")), BAD_INPUT, "noise.safetensors")
        self.assertOwnModelWorks(w)

    def test_large_for_the_device(self):
        w = self.start("open 3 shrink_tile\n", tile_queries=64, tile_frames=8)
        self.assertEqual(self.job(w, model=self.other)["type"], "done")
        started = next(m for m in w.seen if m["type"] == "started")
        self.assertEqual((started["tile_queries"], started["tile_frames"]), (32, 4))
        self.assertOwnModelWorks(w)

    def test_too_large_for_the_device(self):
        w = self.start("".join(f"open {call} shrink_tile\n" for call in range(3, 10)), tile_queries=8, tile_frames=8)
        self.assertFailed(self.job(w, model=self.other), RETRY_LATER, "device memory is short")
        self.assertOwnModelWorks(w)

    def test_a_device_that_is_lost_meanwhile(self):
        w = self.start("open 4 restart_worker\n")
        self.assertFailed(self.job(w, model=self.other), RESTART_WORKER)
        self.assertEqual(w.exit(), LOST)

    def test_a_device_that_computes_wrongly_with_it(self):
        w = self.start("selftest 2 wrong\n")
        self.assertFailed(self.job(w, model=self.other), RESTART_WORKER, "self-test")
        self.assertEqual(w.exit(), LOST)

    def test_its_own_does_not_come_back(self):
        w = self.start("open 6 refuse\n")
        self.assertEqual(self.job(w, model=self.other)["type"], "done")
        self.assertFailed(self.job(w), RESTART_WORKER)
        self.assertEqual(w.exit(), LOST)

    def test_cancelled_while_it_is_opened(self):
        w = self.start("open 3 wait\n")
        w.job("j", self.fake(), self.out(), model=self.other)
        self.waits()
        w.send("cancel", id="j")
        self.assertFailed(w.until("done", "failed"), INTERRUPTED, cause=CANCELLED)
        self.assertOwnModelWorks(w)


if __name__ == "__main__":
    main()
