"""A directory's own model and its own windows, through the real worker on the CPU."""
import json
import pathlib
import re
import shutil
import signal

import numpy as np

from daemon_tools import DaemonFolder, wait_for
from programs import BIN, SOURCE, main, make_video, moved

MODEL = SOURCE / "models" / "tiletrack-small.safetensors"


class Directories(DaemonFolder):
    def setUp(self):
        super().setUp()
        if not MODEL.exists():
            self.skipTest("needs models/tiletrack-small.safetensors")
        self.installed = self.folder / "share" / "tiletrack" / "models"  # beside the daemon's own bin/
        self.installed.mkdir(parents=True)
        for name in ("first", "second"):
            shutil.copy(MODEL, self.installed / f"{name}.safetensors")
        (self.installed / "broken.safetensors").write_bytes(MODEL.read_bytes()[:100000])
        self.real = self.daemon(devices=[{"cpu": 1}], programs=BIN, spool={"recursive": True},
                                tracker={"model": "first", "grid": 2}, workers={"stall_ms": 200000})

    def directory(self, name, text):
        self.real.path("incoming", name).mkdir(parents=True)
        self.real.path("incoming", name, "tiletrack.yaml").write_text(text)

    def video(self, name, frames=4, into="incoming"):
        self.real.drop(name, make_video(self.folder / "made.mkv", moved(frames, 2, 1)), into=into)

    def meta(self, output):
        with np.load(self.real.path("tracks", output)) as tracks:
            return json.loads(str(tracks["meta"])), tracks["tracks"], tracks["query_points"]

    def test_another_model_for_a_directory(self):
        self.directory("other", "tracker: {model: second}\n")
        self.real.start()
        self.real.event("device_ready")
        for name, into in (("a.mkv", ""), ("b.mkv", "other"), ("c.mkv", "other"), ("d.mkv", "")):
            self.video(name, into=f"incoming/{into}")
            output = self.real.event("job_done", file=f"{into}/{name}".lstrip("/"), seconds=200)["output"]
            self.assertEqual(self.real.events("job_started")[-1]["model"], "second" if into else "first")
            self.assertEqual(self.meta(output)[0]["model"]["name"], "second" if into else "first")
        self.assertEqual([e["model"] for e in self.real.events("model_opened")], ["second", "first"])
        self.assertEqual(self.real.events("worker_exited"), [])
        np.testing.assert_array_equal(self.meta("a.tracks.npz")[1], self.meta("d.tracks.npz")[1])

    def test_a_model_that_cannot_be_opened(self):
        """It is the directory's fault: no device is blamed, and the next job has its own model again."""
        self.directory("broken", "tracker: {model: broken}\n")
        self.directory("missing", "tracker: {model: missing}\n")
        self.real.start()
        for name in ("broken", "missing"):
            self.video("v.mkv", into=f"incoming/{name}")
            failed = self.real.event("job_quarantined", file=f"{name}/v.mkv", seconds=200)
            self.assertIn(name, failed["cause"])
            self.assertEqual(failed["attempts"], 1 if name == "broken" else 0)
        self.video("good.mkv")
        self.real.event("job_done", file="good.mkv", seconds=200)
        self.assertEqual(self.real.events("worker_exited"), [])

    def test_another_model_by_reload(self):
        self.real.start()
        self.real.event("device_ready")
        for count, (model, event) in enumerate((("missing", "config_refused"), ("second", "config_reloaded"))):
            self.real.config["tracker"]["model"] = model
            self.real.write_config()
            self.real.signal(signal.SIGHUP)
            told = self.real.event(event)
            self.video(f"{model}.mkv")
            self.real.event("job_done", file=f"{model}.mkv", seconds=200)
            self.assertEqual(self.meta(f"{model}.tracks.npz")[0]["model"]["name"], ("first", "second")[count])
            self.assertIn("missing" if count == 0 else "tracker.model", told["cause" if count == 0 else "changed"])
        self.assertEqual(self.real.events("worker_exited") + self.real.events("device_out_of_service"), [])

    def test_windows_of_fewer_frames(self):
        self.directory("short", "tracker: {clip_frames: 8, overlap_frames: 3, grid: 4}\n")
        self.real.start()
        self.video("v.mkv", frames=20, into="incoming/short")
        self.real.event("job_done", seconds=300)
        meta, tracks, queries = self.meta("short/v.tracks.npz")
        self.assertEqual(meta["windows"], {"clip_frames": 8, "overlap_frames": 3})
        self.assertEqual(tracks.shape, (16, 20, 2))
        truth = queries[:, None, :0:-1] - np.arange(20)[None, :, None] * np.array([2, 1])
        inside = (truth > 16).all(2)
        self.assertGreater(inside.mean(), 0.5)
        self.assertLess(np.median(np.abs(tracks - truth)[inside]), 1.0)  # across both seams

    def test_weights_are_in_memory_once(self):
        """Two workers, one mapping of one file: no page of it belongs to one alone."""
        self.real.config["devices"] = [{"cpu": 1}, {"cpu": 1}]
        self.real.start()
        self.real.event("device_ready", 2)
        workers = [device["pid"] for device in self.real.status()["devices"]]
        for pid in workers:
            mappings = re.findall(r"^\S+ (\S+) .*/first\.safetensors\n((?:\w+: .*\n)+)",
                                  pathlib.Path(f"/proc/{pid}/smaps").read_text(), re.MULTILINE)
            self.assertEqual([permissions for permissions, _ in mappings], ["r--s"])
            pages = {key: int(kb) for key, kb in re.findall(r"(\w+): +(\d+) kB", mappings[0][1])}
            # Dirty: the file itself was written just now.
            self.assertGreater(pages["Shared_Clean"] + pages["Shared_Dirty"], 0.9 * MODEL.stat().st_size / 1024)
            self.assertEqual(pages["Private_Clean"] + pages["Private_Dirty"], 0)


if __name__ == "__main__":
    main()
