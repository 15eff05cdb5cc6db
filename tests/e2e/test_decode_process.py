"""The decoder as a process: confinement, limits, deaths, hangs, hostile children, and who links what."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import textwrap
import time
import unittest

import numpy as np

from decode_tools import BIN, DECODER, DUMP, Folder, dump, dump_command, ffmpeg, main, marked, write_video
from programs import sanitized
from waiting import WAIT_S, is_gone, wait_for

CONFINED = DUMP.with_name("decode-confined")
# These fail with an errno, because libraries try them and cope; every other forbidden call kills.
SOFT = {"open_file", "openat_file", "open_proc", "stat_file", "clone3_process"}


def status_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


class Held:
    """decode-dump that has opened a file and waits; `pid` is the decoder's."""

    def __init__(self, path, *options):
        self.parent = subprocess.Popen(dump_command(path, "--hold", *options), stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE)
        line = self.parent.stdout.readline()
        if line.startswith(b"{"):
            raise AssertionError(line)
        self.pid = int(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.parent.kill()
        self.parent.wait()
        self.parent.stdin.close()
        self.parent.stdout.close()

    def go_on(self):
        out, _ = self.parent.communicate(b"\n", timeout=WAIT_S)
        return json.loads(out)


class LongVideo(Folder):
    @classmethod
    def setUpClass(cls):
        cls.shared_folder = tempfile.TemporaryDirectory(prefix="tiletrack-decode-")
        cls.addClassCleanup(cls.shared_folder.cleanup)
        cls.long = pathlib.Path(cls.shared_folder.name) / "long.mkv"
        ffmpeg("-f", "lavfi", "-i", "testsrc=s=320x240:r=100:d=30", "-c:v", "mpeg4", "-q:v", "20", cls.long)


class Confinement(LongVideo):
    def test_the_running_decoder(self):
        with Held(self.long) as held:
            status = status_of(held.pid)
            self.assertEqual((status["Seccomp"], status["NoNewPrivs"]), ("2", "1"))
            self.assertEqual(status["Threads"], "1")
            links = {int(name): os.readlink(f"/proc/{held.pid}/fd/{name}") for name in os.listdir(f"/proc/{held.pid}/fd")}
            if sanitized(DECODER):
                links.pop(2)
                links[2] = "/dev/null"
            self.assertEqual({fd: links[fd] for fd in (0, 1, 2)}, dict.fromkeys((0, 1, 2), "/dev/null"))
            self.assertEqual(links[3], str(self.long))
            self.assertTrue(links[4].startswith("socket:"))
            self.assertTrue(links[5].startswith("/memfd:tiletrack-ring"))
            self.assertEqual(len(links), 6)
            flags = pathlib.Path(f"/proc/{held.pid}/fdinfo/3").read_text()
            self.assertEqual(int(flags.split("flags:")[1].split()[0], 8) & os.O_ACCMODE, os.O_RDONLY)
            limits = pathlib.Path(f"/proc/{held.pid}/limits").read_text()
            for name, soft in (("Max cpu time", "14400"), ("Max file size", "0"), ("Max core file size", "0"),
                               ("Max open files", "6"), ("Max locked memory", "0")):
                self.assertRegex(limits, f"{name} +{soft} ")
            if not sanitized(DECODER):
                self.assertRegex(limits, f"Max address space +{4 << 30} +{4 << 30} ")
            environment = pathlib.Path(f"/proc/{held.pid}/environ").read_bytes()
            names = {entry.split(b"=")[0] for entry in environment.split(b"\0") if entry}
            self.assertLessEqual(names, {b"LD_LIBRARY_PATH", b"ASAN_OPTIONS", b"UBSAN_OPTIONS"})

    def attempts(self):
        return subprocess.run([CONFINED, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()

    def attempt(self, name):
        """Exit code of decode-confined with descriptors 3, 4 and 5 as the decoder has them."""
        file = os.open(self.long, os.O_RDONLY)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = os.memfd_create("ring")
        os.ftruncate(memory, 4096)
        high = [os.dup2(fd, 100 + i) for i, fd in enumerate((file, theirs.fileno(), memory))]

        def place():
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i)

        try:
            return subprocess.run([CONFINED, name], preexec_fn=place, pass_fds=(3, 4, 5, *high),
                                  stderr=subprocess.DEVNULL, timeout=WAIT_S).returncode
        finally:
            for fd in (file, memory, *high):
                os.close(fd)
            ours.close()
            theirs.close()

    def test_what_is_needed_works_and_nothing_else(self):
        names = self.attempts()
        split = names.index("--")
        self.assertGreater(len(names) - split, 40)
        for name in names[:split]:
            with self.subTest(name):
                self.assertEqual(self.attempt(name), 0)
        for name in names[split + 1:]:
            with self.subTest(name):
                if sanitized(DECODER) and name == "write_stderr":
                    continue
                self.assertEqual(self.attempt(name), 1 if name in SOFT else -signal.SIGSYS)
        self.assertFalse(os.path.exists("/tmp/tiletrack-must-not-be"))

    def test_threads_run_under_the_filter(self):
        path = write_video(self.folder / "v.mp4", marked(240, 320)[None].repeat(30, 0), "-c:v", "libx264", "-pix_fmt",
                           "yuv420p")
        with Held(path, "--threads", 4) as held:
            self.assertGreater(int(status_of(held.pid)["Threads"]), 2)
            for task in os.listdir(f"/proc/{held.pid}/task"):
                self.assertIn("Seccomp:\t2", pathlib.Path(f"/proc/{held.pid}/task/{task}/status").read_text())
            self.assertEqual(held.go_on()["frames"], 30)

    def test_who_links_libav(self):
        if sanitized(DECODER):
            self.skipTest("sanitizers link more")
        allowed = ("libavformat.", "libavcodec.", "libavutil.", "libswscale.", "libseccomp.", "libc.", "libm.", "ld-linux")
        for program in sorted(BIN.iterdir()):
            with open(program, "rb") as file:
                if not program.is_file() or file.read(4) != b"\x7fELF":
                    continue
            text = subprocess.run(["readelf", "-d", program], stdout=subprocess.PIPE, text=True, check=True).stdout
            needed = [line.split("[")[1].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line]
            self.assertTrue(needed, program)
            if program.name in ("tiletrack-decode", "tiletrack-encode"):
                self.assertEqual([name for name in needed if not name.startswith(allowed)], [])
                self.assertEqual(sum(name.startswith(allowed[:5]) for name in needed), 5)
            else:
                self.assertEqual([name for name in needed if name.startswith(("libav", "libsw", "libseccomp"))], [])


class Limits(LongVideo):
    def test_each_limit_is_an_option_and_its_error_names_it(self):
        large = self.folder / "large.mkv"
        ffmpeg("-f", "lavfi", "-i", "testsrc=s=7680x4320:d=0.12", "-c:v", "mjpeg", large)
        self.assert_bad(self.long, "more than 100 frames", "max_frames", options=("--max-frames", 100))
        self.assertEqual(self.dump(self.long, "--max-frames", 3000)["frames"], 3000)
        self.assert_bad(self.long, "320x240", "max_pixels", options=("--max-pixels", 320 * 240 - 1))
        self.assertEqual(self.dump(self.long, "--max-pixels", 320 * 240, "--stop-after", 3)["status"], "ok")
        self.assertEqual(self.dump(large)["frames"], 3)
        if not sanitized(DECODER):
            self.assert_bad(large, "needs more memory than 270 MiB", "memory_bytes", options=("--memory-mib", 270))
            too_little = self.dump(large, "--memory-mib", 20)
            self.assertEqual(too_little["status"], "refuse")
            self.assertIn("memory_bytes", too_little["error"])

    def test_frames_that_grow_beyond_the_limit(self):
        small, large = self.folder / "a.264", self.folder / "b.264"
        write_video(small, marked(48, 64)[None].repeat(3, 0), "-c:v", "libx264", "-pix_fmt", "yuv420p")
        write_video(large, marked(480, 640)[None].repeat(3, 0), "-c:v", "libx264", "-pix_fmt", "yuv420p")
        both = self.folder / "both.264"
        both.write_bytes(small.read_bytes() + large.read_bytes())
        got = self.assert_bad(both, "640x480", "max_pixels", options=("--max-pixels", 10000))
        self.assertEqual(got["frames"], 3)

    def test_processor_time(self):
        once, path = self.folder / "once.mkv", self.folder / "heavy.mkv"
        ffmpeg("-f", "lavfi", "-i", "testsrc=s=1280x720:r=25:d=8", "-c:v", "mpeg4", "-q:v", "2", once)
        ffmpeg("-stream_loop", "99", "-i", once, "-c", "copy", path)
        self.assert_bad(path, "more than 1 s of processor time", "cpu_seconds", options=("--cpu", 1))

    def test_options_out_of_range(self):
        for options in (("--threads", 0), ("--threads", 17), ("--cpu", 0), ("--stall", 0), ("--max-frames", 0)):
            self.assertEqual(self.dump(self.long, *options)["status"], "refuse")


class Lives(LongVideo):
    def test_a_parent_that_dies_takes_it_along(self):
        for stopped in (False, True):  # one that stands still cannot notice by itself
            with self.subTest(stopped=stopped), Held(self.long) as held:
                if stopped:
                    os.kill(held.pid, signal.SIGSTOP)
                held.parent.kill()
                held.parent.wait()
                wait_for(lambda: is_gone(held.pid), "it is gone")

    def test_a_parent_that_stops_reading_kills_it(self):
        got = self.dump(self.long, "--stop-after", 5)
        self.assertEqual((got["status"], got["frames"]), ("ok", 5))

    def test_a_decoder_that_is_killed(self):
        for number, status, text in ((signal.SIGKILL, "retry_later", "killed from outside"),
                                     (signal.SIGSEGV, "bad_input", "SIGSEGV"), (signal.SIGFPE, "bad_input", "SIGFPE"),
                                     (signal.SIGSYS, "bad_input", "forbidden system call"),
                                     (signal.SIGXCPU, "bad_input", "cpu_seconds")):
            if sanitized(DECODER) and number in (signal.SIGSEGV, signal.SIGFPE):
                continue
            with self.subTest(number), Held(self.long) as held:
                os.kill(held.pid, number)
                got = held.go_on()
                self.assertEqual(got["status"], status)
                self.assertIn(text, got["error"])
                self.assertFalse(got["zombies"])
                self.assertTrue(is_gone(held.pid))

    def test_signals_meant_for_the_parent_do_not_hurt(self):
        with Held(self.long) as held:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                os.kill(held.pid, number)
            got = held.go_on()
            self.assertEqual((got["status"], got["frames"]), ("ok", 3000))

    def test_a_decoder_that_stands_still(self):
        with Held(self.long, "--stall", 1) as held:
            os.kill(held.pid, signal.SIGSTOP)
            got = held.go_on()
            self.assertEqual(got["status"], "retry_later")
            self.assertIn("hardly ran", got["error"])
            self.assertTrue(is_gone(held.pid))

    def test_interruption(self):
        with Held(self.long, "--interrupt-ms", 300, "--stall", 1000) as held:
            os.kill(held.pid, signal.SIGSTOP)
            got = held.go_on()
            self.assertEqual(got["status"], "interrupted")
            self.assertTrue(is_gone(held.pid))

    def test_what_a_full_ring_holds(self):
        """The decoder runs ahead by the ring and no further."""
        with Held(self.long) as held:
            def ticks():
                return sum(map(int, pathlib.Path(f"/proc/{held.pid}/stat").read_text().split()[13:15]))

            def stands_still():
                before = ticks()
                time.sleep(0.5)
                return ticks() == before

            wait_for(stands_still, "the ring is full")
            self.assertEqual(held.go_on()["frames"], 3000)


FAKE = """\
#!/usr/bin/python3
import os, struct, sys, time
def message(kind, body=b"", version=3, magic=0x54544431, size=None, zero=0):
    return struct.pack("=IHHII", magic, version, kind, len(body) if size is None else size, zero) + body
def send(data): os.write(4, data)
def text(status, words): return struct.pack("=i480s", status, words)
def info(**changes):
    v = dict(width=64, height=48, coded_width=64, coded_height=48, sar_num=1, sar_den=1, rotation=0, mirrored=0,
             rate_num=25, rate_den=1, frames_hint=9, duration=1.0, container=b"x", codec=b"x", pixel_format=b"x",
             matrix=b"x", transfer=b"x", range=b"tv")
    v.update(changes)
    return message(3, struct.pack("=10iqd32s32s32s24s24s8s", *v.values()).replace(b"", b""))
def frame(n, t): return message(4, struct.pack("=qd", n, t))
HELLO = message(2)
os.read(4, 4096)
"""


class Patches(Folder):
    def sizes_that_change(self):
        """Two frames of each of two sizes, one grey each: a decoder says of the first of another size that it came."""
        parts = []
        for i, size in enumerate(("320x240", "352x288")):
            part = self.folder / f"{i}.h264"
            ffmpeg("-f", "lavfi", "-i", f"nullsrc=s={size}:r=25,geq=lum='{80 * i}+40+20*N':cb=128:cr=128", "-frames:v", "2", "-bf", "0",
                   "-c:v", "libx264", "-tune", "zerolatency", part)  # fmt: skip
            parts.append(part.read_bytes())
        path = self.folder / "sizes.h264"
        path.write_bytes(b"".join(parts))
        return path

    def test_the_next_frame_is_decoded_while_one_is_cut(self):
        """After a frame's first patch what there is to say of the next one is said, and the patches stay the frame's."""
        raw = self.folder / "raw"
        result = dump(self.sizes_that_change(), "--patches", raw=raw)
        self.assertEqual(result["sizes"], [[320, 240]] * 2 + [[352, 288]] * 2)
        self.assertEqual(result["warned"], [[0, 0], [0, 1], [1, 1], [1, 1]])
        patches = np.fromfile(raw, np.uint8).reshape(-1, 64, 64)
        np.testing.assert_allclose(patches.mean((1, 2)), np.repeat([40, 60, 120, 140], 2), atol=2)
        np.testing.assert_array_equal(patches[::2], patches[1::2])

    def test_what_fails_ahead_is_told_in_its_turn(self):
        """The frame before it can be cut to its end."""
        result = dump(self.sizes_that_change(), "--patches", "--max-frames", 2)
        self.assertEqual((result["status"], result["sizes"]), ("bad_input", [[320, 240]] * 2))
        self.assertIn("limit max_frames", result["error"])


class HostileChildren(Folder):
    """Programs that speak the protocol wrongly in the decoder's place."""

    def fake(self, script, *options, stall=20):
        path = self.folder / "fake"
        path.write_text(FAKE + textwrap.dedent(script))
        path.chmod(0o755)
        video = self.folder / "video"
        video.write_bytes(b"anything")
        return self.dump(video, "--stall", stall, *options, program=path)

    def test_a_well_behaved_one(self):
        got = self.fake("""
            send(HELLO); send(info(container=b"mov")); send(message(5, text(0, b"a warning")))
            send(frame(0, 1.5)); send(frame(1, 1.5)); send(message(6, struct.pack("=qii", 2, 1, 0)))
            """)
        self.assertEqual((got["status"], got["frames"], got["time_s"], got["truncated"], got["warnings"]),
                         ("ok", 2, [1.5, 1.5], True, ["a warning"]))
        self.assertEqual(got["info"]["container"], "mov")

    def test_broken_messages_are_refused(self):
        for name, script in {
            "garbage": "send(HELLO); send(b'x' * 300)",
            "short": "send(HELLO); send(b'x')",
            "empty": "send(HELLO); send(b''); time.sleep(60)",
            "long": "send(HELLO); send(b'x' * 100000)",
            "magic": "send(HELLO); send(message(3, magic=1))",
            "type 0": "send(HELLO); send(message(0))",
            "type 99": "send(HELLO); send(message(99))",
            "size": "send(HELLO); send(info()[:-8])",
            "size in header": "send(HELLO); send(message(4, bytes(16), size=4000000000))",
            "a request": "send(HELLO); send(message(1, bytes(56)))",
            "two hellos": "send(HELLO); send(HELLO)",
            "frame before info": "send(HELLO); send(frame(0, 0))",
            "info before hello": "send(info())",
            "two infos": "send(HELLO); send(info()); send(info())",
            "mask instead": "send(HELLO); send(message(8, struct.pack('=ii', 4, 4)))",
            "frame out of order": "send(HELLO); send(info()); send(frame(1, 0))",
            "frame again": "send(HELLO); send(info()); send(frame(0, 0)); send(frame(0, 0))",
            "negative frame": "send(HELLO); send(info()); send(frame(-1, 0))",
            "time backwards": "send(HELLO); send(info()); send(frame(0, 2)); send(frame(1, 1))",
            "time is no number": "send(HELLO); send(info()); send(frame(0, float('nan')))",
            "time is infinite": "send(HELLO); send(info()); send(frame(0, float('inf')))",
            "end without frames": "send(HELLO); send(info()); send(message(6, struct.pack('=qii', 0, 0, 0)))",
            "end with another count": "send(HELLO); send(info()); send(frame(0, 0)); "
                                      "send(message(6, struct.pack('=qii', 2, 0, 0)))",
            "width 0": "send(HELLO); send(info(width=0))",
            "too large": "send(HELLO); send(info(coded_width=100000, coded_height=100000))",
            "rotation": "send(HELLO); send(info(rotation=45))",
            "aspect": "send(HELLO); send(info(sar_den=0))",
            "hint": "send(HELLO); send(info(frames_hint=-1))",
            "duration": "send(HELLO); send(info(duration=float('nan')))",
            "unterminated text": "send(HELLO); send(info(codec=b'x' * 32))",
            "control characters": "send(HELLO); send(info(codec=b'\\x1b[2J'))",
            "bytes behind the text": "send(HELLO); send(info(codec=b'x\\0y'))",
            "status of an error": "send(HELLO); send(message(7, text(5, b'refuse')))",
            "ok as an error": "send(HELLO); send(message(7, text(0, b'fine')))",
            "error without text": "send(HELLO); send(message(7, text(1, b'')))",
            "too many warnings": "send(HELLO)\nfor i in range(65): send(message(5, text(0, b'w')))\ntime.sleep(60)",
        }.items():
            with self.subTest(name):
                got = self.fake(script + "\ntime.sleep(60)\n")
                self.assertEqual(got["status"], "bad_input", got)
                self.assertIn("the decoder sent", got["error"])

    def test_it_ignores_credits(self):
        """It spoils nothing but its own pictures, and is found out when what is sent to it piles up."""
        got = self.fake("send(HELLO); send(info())\nfor n in range(200): send(frame(n, n))\n"
                        "send(message(6, struct.pack('=qii', 200, 0, 0)))")
        self.assertEqual((got["status"], got["frames"]), ("ok", 200))
        got = self.fake("send(HELLO); send(info())\nfor n in range(100000): send(frame(n, n))\ntime.sleep(60)")
        self.assertEqual(got["status"], "bad_input")
        self.assertIn("does not take", got["error"])

    def test_another_version(self):
        got = self.fake("send(message(2, version=2)); time.sleep(60)")
        self.assertEqual(got["status"], "refuse")
        self.assertIn("version", got["error"])

    def test_errors_are_passed_on(self):
        for status, word in ((1, "bad_input"), (2, "retry_later")):
            got = self.fake(f"send(HELLO); send(message(7, text({status}, b'because')))")
            self.assertEqual((got["status"], got["error"]), (word, "because"))
        got = self.fake("send(message(7, text(5, b'no seccomp here')))")
        self.assertEqual((got["status"], got["error"]), ("refuse", "no seccomp here"))

    def test_it_ends_without_a_word(self):
        got = self.fake("send(HELLO); sys.exit(3)")
        self.assertEqual(got["status"], "bad_input")
        self.assertIn("exit code 3", got["error"])
        got = self.fake("sys.exit(127)")
        self.assertEqual(got["status"], "refuse")
        got = self.fake("send(HELLO); send(info()); send(frame(0, 0)); os.close(4); time.sleep(60)")
        self.assertEqual((got["status"], got["frames"]), ("retry_later", 1))  # it was killed: by us

    def test_it_hangs(self):
        for _ in range(20):  # one that hardly gets a turn is not blamed, and rightly
            got = self.fake("send(HELLO)\nwhile True: pass", stall=1)
            if got["status"] != "retry_later" or "hardly ran" not in got["error"]:
                break
        self.assertEqual(got["status"], "bad_input")
        self.assertIn("hangs", got["error"])
        got = self.fake("send(HELLO)\nwhile True: send(message(5, text(0, b'still here'))); time.sleep(0.2)", stall=1)
        self.assertRegex(got["error"], "no frame for 1 s")  # words are no frames

    def test_its_memory_cannot_be_shrunk(self):
        """Truncating the ring would make the parent fault."""
        got = self.fake("""
            send(HELLO); send(info())
            try:
                os.ftruncate(5, 0)
            except OSError:
                send(frame(0, 0)); send(message(6, struct.pack("=qii", 1, 0, 0)))
            """)
        self.assertEqual((got["status"], got["frames"]), ("ok", 1))

    def test_no_program(self):
        video = self.folder / "video"
        video.write_bytes(b"anything")
        self.assertEqual(self.dump(video, program=self.folder / "nothing")["status"], "refuse")
        plain = self.folder / "plain"
        plain.write_text("not a program")
        self.assertEqual(self.dump(video, program=plain)["status"], "refuse")

    def test_by_hand(self):
        done = subprocess.run([DECODER], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("not by hand", done.stderr)


if __name__ == "__main__":
    main()
