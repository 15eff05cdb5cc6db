"""End to end on the CPU: real videos, dropped by different writers at once, through the real programs, none of them
scripted; the tracks are those of `tiletrack track`, bit for bit. With TILETRACK_LONG=1 20 videos, three of more than
94 frames; otherwise the shortest five."""
import json
import os
import shutil
import threading
import time

import numpy as np

from daemon_tools import DaemonFolder, wait_for
from waiting import Pauses
from programs import BIN, SHARED, SOURCE, main, make_video, run

MODEL = SOURCE / "models" / "tiletrack-small.safetensors"
LONG = bool(os.environ.get("TILETRACK_LONG"))
SHORT_VIDEOS = "ft_fixture.avi decord_video_0.mov decord_video_270.mov sleap_small_robot_3_frame.mp4 media3_water_180_mvhevc_5frames.mov"
LONG_VIDEOS = """decord_video_180.mov torchcodec_h265_video.mp4
                 media3_bbb_176x144_192kbps_15fps_mpeg4.mp4 fz_chained-video.ogv fz_xvid.avi media3_bt601.mov
                 media3_sample.flv media3_sample_fragmented.mp4 media3_sample_portrait.mp4 imageio_realshort.mp4 media3_sample_empty_track.mp4
                 charuco_hand47.mp4 vpf_test.mp4 fz_Stirling_engine_anim.ogv cmu_house.mp4"""
VIDEOS = (SHORT_VIDEOS + " " + LONG_VIDEOS if LONG else SHORT_VIDEOS).split()
LIMIT_S = 3600 if LONG else 300


# --- writers: each brings a file in its own way; own: the pauses that it makes ---

def in_pieces(source, target, own):
    """Opens, writes and closes again and again, with pauses."""
    data = source.read_bytes()
    for at in range(0, len(data), len(data) // 4 + 1):
        with open(target, "ab") as file:
            file.write(data[at:at + len(data) // 4 + 1])
        own.mark()
        time.sleep(0.2)


def preallocated(source, target, own):
    """Has its whole length long before its contents."""
    data = source.read_bytes()
    with open(target, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, len(data))
        time.sleep(0.5)
        file.write(data)
    own.mark()


def under_another_name(source, target, own):
    part = target.with_name(target.name + ".part")
    shutil.copyfile(source, part)
    time.sleep(0.8)
    part.rename(target)


def like_rsync(source, target, own):
    hidden = target.with_name("." + target.name + ".Xa81cd")
    shutil.copy2(source, hidden)  # with its old time
    hidden.rename(target)


def at_once(source, target, own):
    shutil.copyfile(source, target)
    own.mark()


def as_a_link(source, target, own):
    """A second name of a file that stays elsewhere."""
    other = target.parents[2] / ("other-" + target.name)
    shutil.copyfile(source, other)
    os.link(other, target)


WRITERS = (in_pieces, preallocated, under_another_name, like_rsync, at_once, as_a_link)


class Whole(DaemonFolder):
    def test_videos_by_different_writers(self):
        if not (SHARED / "videos").is_dir() or not MODEL.exists():
            self.skipTest("needs the shared videos and models/tiletrack-small.safetensors")
        for settle_ms in (1000, 5000, 25000):  # a writer that got no turn for so long may be taken half written
            self.setUp()
            daemon = self.bring(settle_ms)
            if daemon:
                return self.assertTracked(daemon)
        self.fail("a writer got no turn for 25 s")

    def bring(self, settle_ms):
        """A daemon to which all videos are brought; None where a writer paused too long."""
        daemon = self.daemon(devices=[{"cpu": 1}, {"cpu": 1}], programs=BIN,
                             tracker={"model": str(MODEL), "grid": 2}, output={"formats": ["npz", "csv"]},
                             spool={"settle_ms": settle_ms, "settle_blind_ms": 2 * settle_ms},
                             workers={"start_ms": 300000, "stall_ms": 600000}, jobs={"deadline_ms": 3600000}).start()
        pauses = [Pauses() for _ in VIDEOS]
        writers = [threading.Thread(target=WRITERS[i % len(WRITERS)],
                                    args=(SHARED / "videos" / name, daemon.path("incoming", name), pauses[i]))
                   for i, name in enumerate(VIDEOS)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        if max(own.longest_s for own in pauses) < settle_ms / 1000:
            return daemon
        daemon.finish()
        return None

    def assertTracked(self, daemon):
        wait_for(lambda: len(daemon.names("done")) + len(daemon.names("failed")) >= len(VIDEOS), "all are done", LIMIT_S)
        wait_for(lambda: len(daemon.events("job_done")) == len(VIDEOS), "all are told")
        self.assertEqual(daemon.inputs(), {name: ["done"] for name in VIDEOS})
        self.assertEqual(daemon.events("input_changed") + daemon.events("job_retry") + daemon.events("worker_exited"), [])
        frames = {e["file"]: e["frames"] for e in daemon.events("job_done")}
        print("\n" + " ".join(f"{n}:{frames[n]}" for n in VIDEOS))
        if LONG:
            self.assertGreaterEqual(sum(count > 94 for count in frames.values()), 3)
        for event in daemon.events("job_done"):
            with np.load(daemon.path("tracks", event["output"])) as tracks:
                self.assertEqual(tracks["tracks"].shape, (4, event["frames"], 2))
            csv = daemon.path("tracks", event["output"][:-3] + "csv").read_text()
            self.assertEqual(len(csv.splitlines()), 1 + 4 * event["frames"])
        self.same_as_by_hand(daemon, min(frames, key=frames.get))
        self.same_as_by_hand(daemon, "vpf_test.mp4" if LONG else VIDEOS[1])

    def same_as_by_hand(self, daemon, name):
        output = daemon.events("job_done", file=name)[0]["output"]
        self.assertExit(run("track", "--device", "cpu", "--threads", 1, "--model", MODEL, "--grid", 2, "-q",
                            SHARED / "videos" / name, "-o", self.folder / "own.npz"), 0)
        with np.load(self.folder / "own.npz") as own, np.load(daemon.path("tracks", output)) as theirs:
            for array in ("tracks", "occluded", "confidence", "query_points", "time_s"):
                np.testing.assert_array_equal(own[array], theirs[array])


class Formats(DaemonFolder):
    def test_every_format_is_one_result(self):
        """Committed together, and each is to the byte what `tiletrack export` makes of the track file."""
        if not MODEL.exists():
            self.skipTest("needs models/tiletrack-small.safetensors")
        listed = [line.split()[:2] for line in run("export", "--list").stdout.splitlines()]
        formats = ["npz", "jsonl"] + [name for name, _ in listed]
        video = make_video(self.folder / "bear.mkv", np.random.default_rng(1).integers(0, 255, (3, 48, 64, 3)))
        daemon = self.daemon(devices=[{"cpu": 1}], programs=BIN, tracker={"model": str(MODEL), "grid": 2},
                             output={"formats": ["npz"]}, spool={"recursive": True, "settle_blind_ms": 500},
                             workers={"start_ms": 300000}).start()
        own = daemon.path("incoming", "own")
        own.mkdir()
        (own / "tiletrack.yaml").write_text(f"output: {{formats: {json.dumps(formats)}}}\n")
        shutil.copy(video, own / "bear.mkv")
        done = daemon.event("job_done")
        self.assertEqual(sorted(done["formats"].split(", ")), sorted(formats))
        names = {name: output.replace("NAME", "bear") for name, output in listed}
        self.assertEqual(daemon.names("tracks/own"),
                         sorted(["bear.tracks.npz", "bear.tracks.jsonl", *names.values()]))
        for name, output in names.items():
            again = self.folder / "again"
            self.assertExit(run("export", daemon.path("tracks", "own", "bear.tracks.npz"), "--to", name, "-o", again), 0)
            self.assertEqual(daemon.path("tracks", "own", output).read_bytes(), again.read_bytes(), name)


if __name__ == "__main__":
    main()
