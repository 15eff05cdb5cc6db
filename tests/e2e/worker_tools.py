"""A supervisor for tests: starts tiletrack-worker and speaks core/message.h's protocol with it."""
import contextlib
import os
import pathlib
import selectors
import socket
import struct
import subprocess
import time

from programs import BIN, SOURCE
from waiting import WAIT_S, is_gone, wait_for

WORKER = BIN / "tiletrack-worker"
MODEL = SOURCE / "models" / "tiletrack-small.safetensors"
MAGIC, VERSION = 0x57545454, 6
OK, BAD_INPUT, RETRY_LATER, SHRINK_TILE, RESTART_WORKER, REFUSE, INTERRUPTED = range(7)
STAGES = ("opening", "supports", "skipping", "decoding", "tracking", "refining", "writing", "drawing")
CANCELLED, DEADLINE, SHUTDOWN = 1, 2, 3

OUTPUTS = range(14)  # that a job may have
DECODER = "threads resize max_pixels decode_frames memory_bytes cpu_seconds stall_seconds"
PLAN = "precision tile_queries tile_frames"
# Fields in the order of core/message.h: a plain name is a number, $ a text, % a real number.
FIELDS = {
    "setup": f"$worker supervisor $backend $select $arch threads {PLAN} $model $lock heartbeat_ms log_level log_format "
             "$log_file log_burst",
    "job": "$id $video $queries $mask $model grid frame max_frames clip_frames overlap_frames %occlusion_threshold "
           "refine outputs " + "".join(f"format{i} $path{i} " for i in OUTPUTS)
           + "$temporary_directory $checkpoint checkpoint_ms "
           f"{DECODER} deadline_ms deadline_frame_ms",
    "prefetch": f"$id $video {DECODER}",
    "cancel": "$id",
    "ping": "serial",
    "reopen_log": "",
    "shutdown": "now",
    "hello": f"pid status $text selftest $device $backend $model $model_sha256 {PLAN} memory_bytes start_ms",
    "started": f"$id {PLAN} width height frames_hint queries resumed_frames prefetched",
    "progress": "$id stage frames expected",
    "warning": "$id $text",
    "done": "$id frames queries truncated resumed_frames decode_ms track_ms refine_ms write_ms total_ms outputs "
            + " ".join(f"bytes{i}" for i in OUTPUTS),
    "failed": "$id status cause $text",
    "pong": "serial",
}
TYPES = dict(enumerate(FIELDS, 1))
DECODER_DEFAULTS = dict(threads=1, resize=0, max_pixels=8192 * 8192, decode_frames=1000000, memory_bytes=4 << 30,
                        cpu_seconds=600, stall_seconds=10 * WAIT_S)


def encode(name, **values):
    body = b""
    for field in FIELDS[name].split():
        value = values.pop(field.lstrip("$%"), "" if field[0] == "$" else 0)
        if field[0] == "$":
            value = os.fsencode(value)
            body += struct.pack("=I", len(value)) + value + b"\0"
        else:
            body += struct.pack("=d" if field[0] == "%" else "=q", value)
    assert not values, values
    number = list(FIELDS).index(name) + 1
    return struct.pack("=IHHI", MAGIC, VERSION, number, len(body)) + body


def decode(number, body):
    values, at = {"type": TYPES[number]}, 0
    for field in FIELDS[TYPES[number]].split():
        if field[0] == "$":
            size, = struct.unpack_from("=I", body, at)
            values[field[1:]] = os.fsdecode(body[at + 4:at + 4 + size])
            at += 5 + size
        else:
            values[field.lstrip("%")], = struct.unpack_from("=d" if field[0] == "%" else "=q", body, at)
            at += 8
    assert at == len(body)
    return values


class Worker:
    """A running worker. `script` chooses the scripted backend (tests/backends), threads the CPU's."""

    def __init__(self, script=None, threads=None, program=WORKER, setup=True, wrapper=(), environment=None,
                 **settings):
        ours, theirs = socket.socketpair()
        self.socket, self.buffer, self.seen = ours, b"", []
        self.errors = open(os.memfd_create("stderr"), "w+b")
        os.set_inheritable(theirs.fileno(), True)
        self.process = subprocess.Popen([*wrapper, str(program)], stdin=subprocess.DEVNULL, stderr=self.errors,
                                        env={**os.environ, **(environment or {})},
                                        pass_fds=(3,), preexec_fn=lambda: os.dup2(theirs.fileno(), 3))
        theirs.close()
        values = dict(worker="test0", supervisor=os.getpid(), backend="cpu" if script is None else "scripted",
                      select=script or "", threads=threads or 1, model=MODEL, heartbeat_ms=20, log_burst=1000)
        if setup:
            self.send("setup", **{**values, **settings})

    def send(self, name, **values):
        self.socket.sendall(encode(name, **values))

    def receive(self, timeout=WAIT_S):
        """The next message; None at the end of the stream."""
        deadline = time.monotonic() + timeout
        while True:
            if len(self.buffer) >= 12:
                magic, version, number, size = struct.unpack_from("=IHHI", self.buffer)
                assert magic == MAGIC and version == VERSION
                if len(self.buffer) >= 12 + size:
                    message = decode(number, self.buffer[12:12 + size])
                    self.buffer = self.buffer[12 + size:]
                    self.seen.append(message)
                    return message
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                got = self.socket.recv(65536)
            except ConnectionResetError:
                got = b""
            if not got:
                assert not self.buffer, "the stream ends in the middle of a message"
                return None
            self.buffer += got

    def until(self, *names, timeout=WAIT_S):
        """Reads on to the first message of one of these types."""
        while True:
            message = self.receive(timeout)
            if message is None:
                raise AssertionError(f"the worker is gone ({self.process.wait(WAIT_S)}): {self.log()}")
            if message["type"] in names:
                return message

    def job(self, id, video, output, **values):
        self.send("job", **job_values(id, video, output, **values))

    def log(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def exit(self, timeout=WAIT_S):
        """Waits for the end; the exit code."""
        while self.receive(timeout) is not None:
            pass
        return self.process.wait(timeout)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.socket.close()
        self.errors.close()


def job_values(id, video, output, **values):
    return {**DECODER_DEFAULTS, **dict(id=id, video=video, grid=4, overlap_frames=8, occlusion_threshold=0.5,
                                       outputs=1, path0=output), **values}


def prefetch_values(id, video):
    return dict(DECODER_DEFAULTS, id=id, video=video)


@contextlib.contextmanager
def worker(*arguments, **settings):
    made = Worker(*arguments, **settings)
    try:
        yield made
    finally:
        made.close()


def children(pid):
    """Process ids of a process' children, of all its threads."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found
