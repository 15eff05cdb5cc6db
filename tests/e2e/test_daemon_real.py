"""tiletrackd with the real worker and the real decoder: real videos on the scripted backend (tests/backends) with
devices that crash, hang, are lost, run out of memory, compute wrongly; and one whole run on the CPU backend."""
import os
import pathlib

import numpy as np

from daemon_tools import DaemonFolder, wait_for
from programs import BIN, SHARED, SOURCE, main, make_video, moved, run, sanitized
from worker_tools import children

MODEL = SOURCE / "models" / "tiletrack-small.safetensors"
SCRIPTED = BIN.parent / "lib" / "tiletrack-scripted.so"
FAKE = BIN.parent / "tests" / "fake" / "bin"  # the real worker with a decoder that costs nothing
LONG = bool(os.environ.get("TILETRACK_LONG"))

# Whatever a phone, a camera or an encoder of 2005 may drop: containers and codecs, rotation, no header, cut short.
VIDEOS = """davis_bear.mp4 cotracker_cat.mp4 decord_video_0.mov decord_video_180.mov decord_video_270.mov
            media3_edit_list_positive_shift.mp4 ft_fixture.avi fz_Stirling_engine_anim.ogv fz_lavafalls.avi fz_xvid.avi moviepy_smpte-2997.mp4
            imageio_cockatoo.mp4 imageio_realshort.mp4 media3_bt601.mov media3_sample.flv
            media3_sample_fragmented.mp4 media3_sample_portrait.mp4 media3_sample_with_chapters.mkv
            sleap_small_robot_3_frame.mp4 torchcodec_h265_video.mp4 torchcodec_av1_video.mkv
            media3_long_1080p_videoonly_lowbitrate.mp4""".split()


class Real(DaemonFolder):
    """GPU numbers name scripts in the daemon's working directory."""

    def real(self, scripts=("",), programs=BIN, **sections):
        for index, script in enumerate(scripts):
            (self.folder / str(index)).write_text(script)
        sections.setdefault("tracker", {}).setdefault("model", str(MODEL))
        return self.daemon(devices=[{"gpu": i} for i in range(len(scripts))], programs=programs, plugin=SCRIPTED,
                           **sections)

    def colours(self, daemon, count, frames=5, colour="grey"):
        """Videos for the fake decoder."""
        names = [f"{colour}{i:03}.mp4" for i in range(count)]
        for name in names:
            daemon.drop(name, f"{frames} {colour}")
        return names


class Devices(Real):
    def test_each_way_to_fail_once(self):
        for action in ("crash", "exit", "restart_worker", "retry_later", "refuse"):
            with self.subTest(action):
                self.setUp()
                daemon = self.real([f"track once {action}\n"], programs=FAKE).start()
                names = self.colours(daemon, 3)
                self.assertAllDone(daemon, names)
                self.assertEqual(len(daemon.events("job_retry")), 1)
                self.assertEqual(len(daemon.events("worker_exited")), action in ("crash", "exit", "restart_worker"))
                daemon.finish()

    def test_a_device_that_hangs_once(self):
        daemon = self.real(["track once hang\n"], programs=FAKE, workers={"stall_ms": 5000}).start()
        names = self.colours(daemon, 2)
        self.assertAllDone(daemon, names)
        self.assertEqual(len(daemon.events("worker_stalled")), 1)

    def test_memory_is_short(self):
        daemon = self.real(["track always shrink_above 32\n"], programs=FAKE).start()
        self.assertAllDone(daemon, self.colours(daemon, 2))
        self.assertTrue(daemon.events("tile_shrunk"))
        self.assertEqual(daemon.events("job_retry"), [])

    def test_wrong_answers_take_no_jobs(self):
        daemon = self.real(["selftest always wrong\n", ""], programs=FAKE).start()
        self.assertAllDone(daemon, self.colours(daemon, 4))
        self.assertEqual({e["worker"] for e in daemon.events("job_done")}, {"gpu1"})
        self.assertEqual(daemon.device("gpu0")["state"], "out_of_service")

    def test_one_device_fails_every_job(self):
        daemon = self.real(["track always restart_worker\n", ""], programs=FAKE).start()
        self.assertAllDone(daemon, self.colours(daemon, 20))
        self.assertEqual(daemon.events("job_quarantined"), [])
        self.assertEqual({e["worker"] for e in daemon.events("job_done")}, {"gpu1"})

    def test_one_input_crashes_every_device(self):
        daemon = self.real(["track red crash\n", "track red crash\n"], programs=FAKE).start()
        red = self.colours(daemon, 1, colour="red")
        grey = self.colours(daemon, 12)
        gone = daemon.event("job_quarantined")
        self.assertEqual(gone["file"], red[0])
        for name in grey:
            daemon.event("job_done", file=name)
        self.assertEqual(daemon.events("device_out_of_service"), [])

    def test_a_decoder_that_dies_is_the_inputs_fault(self):
        daemon = self.real(programs=FAKE).start()
        daemon.drop("v.mp4", "9 grey crash")
        gone = daemon.event("job_quarantined")
        self.assertEqual(gone["attempts"], 1)
        self.assertEqual(daemon.events("worker_exited"), [])
        self.colours(daemon, 1)
        daemon.event("job_done")

    def test_a_fast_and_a_slow_device(self):
        jobs = 1000 if LONG else 120
        daemon = self.real(["track always sleep 10\n", "track always sleep 150\n"], programs=FAKE).start()
        daemon.event("device_ready", 2)
        names = self.colours(daemon, jobs)
        self.assertAllDone(daemon, names, 600)
        done = [e["worker"] for e in daemon.events("job_done")]
        self.assertGreater(done.count("gpu1"), 0)
        self.assertGreater(done.count("gpu0"), done.count("gpu1"))
        self.assertIn("gpu1", done[-jobs // 5:])  # it worked to the end

    def test_cancel_drain_and_checkpoint(self):
        daemon = self.real(["track 8 wait\ntrack always sleep 400\n"], programs=FAKE, tracker={"grid": 2},
                           daemon={"drain_ms": 100}).start()
        daemon.drop("long.mp4", "4000 grey")
        daemon.event("job_started")
        wait_for(lambda: daemon.device("gpu0").get("frames", 0) > 100, "it is on its way")
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(len(daemon.inputs()["long.mp4"]), 1)
        daemon.start()
        wait_for(lambda: daemon.device("gpu0").get("file") == "long.mp4", "it goes on")
        self.assertEqual(daemon.ask(command="cancel", name="long.mp4"), {"ok": True})
        self.assertEqual(daemon.event("job_quarantined")["cause"], "cancelled")
        wait_for(lambda: daemon.inputs() == {"long.mp4": ["failed"]}, "it is in failed/")
        self.assertEqual(daemon.events("worker_exited"), [])

    def test_all_die_with_the_daemon(self):
        daemon = self.real(["track always wait\n", "track always wait\n"], programs=FAKE).start()
        daemon.drop("long.mp4", "4000 grey")
        daemon.event("job_started")
        daemon.kill()
        self.assertNoWorkers(daemon)
        daemon.start()  # the devices' locks are free again
        daemon.event("device_ready", 2)
        wait_for(lambda: daemon.status()["queue"]["running"] == 1, "the job goes on")
        self.assertEqual(daemon.events("device_out_of_service"), [])


class Soak(Real):
    def test_nothing_grows(self):
        """Memory, descriptors and temporary files of the daemon and of the real workers."""
        jobs = 5000 if LONG else 150
        daemon = self.real(["", ""], programs=FAKE, jobs={"max_attempts": 1}).start()
        daemon.event("device_ready", 2)
        processes = {"daemon": daemon.process.pid, **{d["worker"]: d["pid"] for d in daemon.status()["devices"]}}

        def figures():
            def one(pid):
                lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                resident_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
                return resident_kb, len(os.listdir(f"/proc/{pid}/fd"))
            return {name: one(pid) for name, pid in processes.items()}

        def work(first, count):
            for i in range(first, first + count):
                daemon.drop(f"v{i:05}.mp4", "1 grey")
            wait_for(lambda: len(daemon.names("done")) == first + count, "all are done", 3600)
            wait_for(lambda: daemon.status()["queue"]["running"] == 0 and
                     [p.name for p in daemon.path("work").glob("*/*")] == ["lock"], "nothing is left in work/")
        work(0, jobs // 3)
        before = figures()
        work(jobs // 3, jobs - jobs // 3)
        wait_for(lambda: all(now[1] <= before[name][1] for name, now in figures().items()),
                 "descriptors are given back")  # the last client's, too
        after = figures()
        print(f"{jobs} jobs; resident kB and descriptors after a third and at the end:", before, after)
        self.assertEqual({d["worker"]: d["pid"] for d in daemon.status()["devices"]} | {"daemon": daemon.process.pid},
                         processes)  # nobody was started anew
        for name in processes:
            if not sanitized("tiletrackd"):
                self.assertLess(after[name][0], before[name][0] + 2000, name)
        self.assertNothingPartial(daemon.path("tracks"))
        self.assertEqual(len(daemon.results()), jobs)
        self.assertEqual(daemon.events("job_retry") + daemon.events("worker_exited"), [])
        left = [name for name in os.listdir(self.folder) if name.startswith(".") or "part" in name]
        self.assertEqual(left, [])


class Confinement(Real):
    def test_worker_and_decoder_under_the_daemon(self):
        if not (SHARED / "videos").is_dir():
            self.skipTest("needs the shared videos")
        daemon = self.real(["track always wait\n"]).start()
        daemon.drop("long.mp4", SHARED / "videos" / "media3_long_1080p_videoonly_lowbitrate.mp4")
        daemon.event("job_started")
        worker = daemon.device("gpu0")["pid"]
        decoder, = children(worker)

        def states(pid):
            lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
            return {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}
        self.assertEqual((states(decoder)["Seccomp"], states(decoder)["NoNewPrivs"]), ("2", "1"))
        self.assertLessEqual(len(os.listdir(f"/proc/{decoder}/fd")), 6)
        self.assertEqual(states(worker)["NoNewPrivs"], "1")
        limits = pathlib.Path(f"/proc/{worker}/limits").read_text()
        self.assertRegex(limits, r"Max core file size +0 +0")
        for fd in os.listdir(f"/proc/{worker}/fd"):  # nothing of the daemon's: neither spool nor sockets nor log file
            target = os.readlink(f"/proc/{worker}/fd/{fd}")
            self.assertNotIn("/work/lock", target)
            self.assertNotIn("inotify", target)


class Videos(Real):
    def test_real_videos_all_at_once(self):
        if not (SHARED / "videos").is_dir():
            self.skipTest("needs the shared videos")
        names = [n for n in VIDEOS if (SHARED / "videos" / n).exists()]
        self.assertGreaterEqual(len(names), 20)
        daemon = self.real(["", ""], jobs={"max_attempts": 1}, tracker={"model": str(MODEL), "grid": 4}).start()
        for name in names:
            daemon.drop(name, SHARED / "videos" / name)
        wait_for(lambda: len(daemon.events("job_done")) + len(daemon.events("job_quarantined")) == len(names),
                 "all have ended", 400)
        wait_for(lambda: not list(daemon.path("work").glob("*/*/manifest.json")), "work/ is empty")
        self.assertEqual(daemon.events("job_quarantined"), [])
        self.assertEqual({n: p for n, p in daemon.inputs().items() if p != ["done"]}, {})
        frames = {e["file"]: e["frames"] for e in daemon.events("job_done")}
        self.assertGreater(max(frames.values()), 94)
        for event in daemon.events("job_done"):
            with np.load(daemon.path("tracks", event["output"])) as tracks:
                self.assertEqual(tracks["tracks"].shape, (event["queries"], event["frames"], 2))

    def test_bad_videos_are_set_aside_and_nothing_else_is(self):
        if not (SHARED / "videos").is_dir():
            self.skipTest("needs the shared videos")
        daemon = self.real().start()
        daemon.drop("sound.mp4", SHARED / "videos" / "gpac_france.mp4")  # no video in it
        daemon.drop("noise.mp4", "this is no video\n" * 100)
        daemon.drop("empty.mp4", "")
        daemon.drop("good.mp4", SHARED / "videos" / "imageio_realshort.mp4")
        for name in ("noise.mp4", "empty.mp4", "sound.mp4"):
            self.assertEqual(daemon.event("job_quarantined", file=name)["attempts"], 1)
            self.assertTrue(wait_for(lambda: name in daemon.names("failed") and daemon.reason(name), name))
        daemon.event("job_done", file="good.mp4")
        self.assertEqual(daemon.events("worker_exited"), [])

    def test_weights_are_mapped_once(self):
        """Two workers hold the same pages of the model's file, and none of their own."""
        daemon = self.daemon(devices=[{"cpu": 1}, {"cpu": 1}], programs=BIN, tracker={"model": str(MODEL)},
                             workers={"start_ms": 300000}).start()
        daemon.event("device_ready", 2)
        inode = MODEL.stat().st_ino
        for device in daemon.status()["devices"]:
            kilobytes = {}
            lines = iter(pathlib.Path(f"/proc/{device['pid']}/smaps").read_text().splitlines())
            for line in lines:  # headers of mappings: address, rights, offset, device, inode, path
                words = line.split()
                if "-" in words[0] and not words[0].endswith(":"):
                    ours = len(words) > 5 and int(words[4]) == inode
                    if ours:
                        self.assertTrue(words[1].startswith("r--"), line)
                elif ours and words[-1] == "kB":
                    kilobytes[words[0]] = kilobytes.get(words[0], 0) + int(words[1])
            self.assertGreater(kilobytes["Size:"], MODEL.stat().st_size // 1024 - 8)
            self.assertEqual(kilobytes["Private_Dirty:"] + kilobytes["Shared_Dirty:"] + kilobytes["Anonymous:"], 0)
            self.assertGreater(kilobytes["Rss:"], 0)

    def test_the_cpu_backend_whole(self):
        """The same video by `tiletrack track` and by the daemon: the same tracks, bit for bit."""
        daemon = self.daemon(devices=[{"cpu": 1}], programs=BIN, tracker={"model": str(MODEL), "grid": 3},
                             workers={"start_ms": 300000, "stall_ms": 200000}).start()
        video = make_video(self.folder / "v.mkv", moved(8, 2, 1))
        (self.folder / "v.queries.csv").write_text("frame,x,y\n0,100,100\n3,160,128\n")
        self.assertExit(run("submit", "--spool", daemon.spool, video), 0)
        daemon.event("job_done")
        wait_for(lambda: daemon.names("done") == ["v.mkv", "v.queries.csv"], "the input and its queries are in done/")
        self.assertExit(run("track", "--device", "cpu", "--threads", 1, "--model", MODEL, "-q", video,
                            "-o", self.folder / "own.npz"), 0)
        with np.load(self.folder / "own.npz") as own, np.load(daemon.path("tracks", "v.tracks.npz")) as theirs:
            for array in ("tracks", "occluded", "confidence", "query_points", "time_s"):
                np.testing.assert_array_equal(own[array], theirs[array])


if __name__ == "__main__":
    main()
