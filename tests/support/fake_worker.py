#!/usr/bin/python3 -SE
"""A worker that only pretends to track: it speaks core/message.h's protocol with tiletrackd and does what the
"video" says. For tests of the daemon that need hundreds of jobs, and devices that misbehave, in little time.

A test puts a copy of tiletrackd and this file, named tiletrack-worker, into one folder. A video is a text of
words: `frames=N`, `ms=N` (how long it takes), `until=NAME` (and until the test has said NAME: the file NAME in the
folder "said" beside the program), `queries=N`, `truncated`, and one of the ends: `bad` (bad input),
`retry`, `lost` (restart worker, and exit), `refuse`, `crash` (SIGKILL itself), `exit`, `hang` (no sign of life),
`deaf` (hang, and ignore SIGTERM), `garbage` (break the protocol), `lie` (say done without a result). Without one
the job is done. `once:WORD` acts at the first attempt only (a checkpoint file remembers).

A file SLOT.behaviour in the folder "behaviour" beside the program makes the whole device behave: the words above
for every job, `slow=FACTOR`, and for the start: `start_until=NAME` (as above), `unusable=TEXT`, `wrong` (self-test), `dies` (before
hello), `dies_idle` (after hello), `mute` (never says hello), `busy` (somebody else has the device), `busy=N` (at the first
N starts).
"""
import os
import signal
import select
import socket
import struct
import sys
import time

NAMES = "none setup job prefetch cancel ping reopen_log shutdown hello started progress warning done failed pong"
TYPES = {name: number for number, name in enumerate(NAMES.split())}
OK, BAD_INPUT, RETRY_LATER, _, RESTART_WORKER, REFUSE, INTERRUPTED = range(7)
MAGIC, VERSION = 0x57545454, 6
DECODER = "i" * 7
OUTPUTS = 14  # that a job may have
FORMS = {"setup": "titttiiiittiiiti", "job": "tttttiiiiidii" + "it" * OUTPUTS + "tti" + DECODER + "ii",
         "prefetch": "tt" + DECODER, "cancel": "t", "ping": "i", "reopen_log": "", "shutdown": "i"}


HERE = os.path.dirname(os.path.abspath(sys.argv[0]))


def was_said(name):
    """Whether the test has said so; no name, nothing to wait for."""
    return not name or os.path.exists(os.path.join(HERE, "said", name))


def text(value):
    return struct.pack("<I", len(value)) + value + b"\0"


def number(value):
    return struct.pack("<q", value)


class Stream:
    def __init__(self):
        self.socket = socket.socket(fileno=3)
        self.bytes = b""

    def say(self, name, *fields):
        body = b"".join(text(f) if isinstance(f, bytes) else number(f) for f in fields)
        self.socket.sendall(struct.pack("<IHHI", MAGIC, VERSION, TYPES[name], len(body)) + body)

    def hear(self, wait_s=None):
        """The next message as (name, fields), None when none came in time; ends the process with the stream."""
        while True:
            if len(self.bytes) >= 12:
                magic, version, kind, size = struct.unpack("<IHHI", self.bytes[:12])
                assert (magic, version) == (MAGIC, VERSION)
                if len(self.bytes) >= 12 + size:
                    body, self.bytes = self.bytes[12:12 + size], self.bytes[12 + size:]
                    return self.parse(NAMES.split()[kind], body)
            if wait_s is not None and not select.select([self.socket], [], [], wait_s)[0]:
                return None
            got = self.socket.recv(65536)
            if not got:
                sys.exit(0)
            self.bytes += got

    @staticmethod
    def parse(name, body):
        fields, at = [], 0
        for form in FORMS[name]:
            if form == "t":
                size, = struct.unpack_from("<I", body, at)
                fields.append(body[at + 4:at + 4 + size])
                at += 5 + size
            else:
                fields.append(struct.unpack_from("<q" if form == "i" else "<d", body, at)[0])
                at += 8
        assert at == len(body), f"{name}: {at} of {len(body)} bytes"
        return name, fields


class Device:
    def __init__(self, stream, setup):
        self.stream, self.name = stream, setup[0].decode()
        self.prefetched = b""
        path = os.path.join(HERE, "behaviour", self.name + ".behaviour")
        words = open(path).read().split() if os.path.exists(path) else []
        self.words = [w for w in words if "=" not in w]
        self.values = dict(w.split("=", 1) for w in words if "=" in w)

    def is_busy(self):
        if "busy" not in self.values:
            return "busy" in self.words
        tries = os.path.join(HERE, "behaviour", self.name + ".tries")
        with open(tries, "a+") as file:
            file.write("x")
            return file.tell() <= int(self.values["busy"])

    def start(self):
        while not was_said(self.values.get("start_until")):
            time.sleep(0.01)
        if "dies" in self.words:
            sys.exit(9)
        while "mute" in self.words:
            time.sleep(1)
        status, why, test = OK, b"", 1
        if "unusable" in self.values:
            status, why, test = REFUSE, self.values["unusable"].encode(), 0
        if self.is_busy():
            status, why, test = RETRY_LATER, b"another worker holds the device", 0
        if "wrong" in self.words:
            status, why, test = REFUSE, b"self-test: the device computes something else", 2
        self.stream.say("hello", os.getpid(), status, why, test, b'{"device":"pretended"}', b"fake", b"none",
                        b"0" * 64, 0, 64, 47, 0, 1)
        if status:
            sys.exit(1)
        if "dies_idle" in self.words:
            sys.exit(9)

    def work(self, job, frames, seconds, until):
        """Waits as long as the work takes, with heartbeats; an ending is returned where somebody wants to stop."""
        end = time.monotonic() + seconds
        done = 0
        while True:
            over = was_said(until)
            left = end - time.monotonic()
            heard = self.stream.hear(max(0, min(left, 0.05)) if over else 0.02)
            if heard:
                name, fields = heard
                if name == "cancel" and fields[0] == job:
                    return "cancelled", 1
                if name == "shutdown" and fields[0]:
                    return "shutdown", 3
                self.answer(name, fields)
            if over and left <= 0:
                return None
            done = min(frames, done + 1)
            self.stream.say("progress", job, 4, done, frames)

    def answer(self, name, fields):
        if name == "ping":
            self.stream.say("pong", fields[0])
        elif name == "prefetch":
            self.prefetched = fields[0]
        elif name == "shutdown":
            self.ending = True

    ending = False

    def act(self, word, job):
        """The ends that no message tells, and those that FAILED does. True: the job is over."""
        statuses = {"bad": BAD_INPUT, "retry": RETRY_LATER, "lost": RESTART_WORKER, "refuse": REFUSE}
        if word in statuses:
            self.stream.say("failed", job, statuses[word], 0, b"pretended: " + word.encode())
            if word == "lost":
                sys.exit(3)
            return True
        if word == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if word == "exit":
            sys.exit(7)
        if word == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while word in ("hang", "deaf"):
            time.sleep(1)
        if word == "garbage":
            self.stream.socket.sendall(b"this is no message at all, is it")
            time.sleep(60)
        return word == "lie" and not self.done(job, 1, 1, 0, [0])

    def done(self, job, frames, queries, truncated, sizes):
        self.stream.say("done", job, frames, queries, truncated, 0, 1, 2, 0, 3, 4, len(sizes),
                        *(sizes + [0] * OUTPUTS)[:OUTPUTS])

    @staticmethod
    def write(result, words):
        with open(result + b".part", "w") as file:
            file.write(words)
        os.rename(result + b".part", result)
        return os.path.getsize(result)

    def run(self, fields):
        job, video, results, checkpoint = fields[0], fields[1], fields[14:14 + 2 * fields[12]:2], fields[14 + 2 * OUTPUTS]
        words = open(video).read().split()
        values = dict(w.split("=", 1) for w in words if "=" in w)
        frames = int(values.get("frames", 10))
        first = not os.path.exists(checkpoint + b".state")
        words = [w[5:] if w.startswith("once:") else w for w in words if first or not w.startswith("once:")]
        self.stream.say("started", job, 0, 64, 47, 640, 480, frames, 9, 0, int(self.prefetched == job))
        self.prefetched = b""
        if any(w.startswith("once:") for w in open(video).read().split()):
            open(checkpoint + b".state", "w").close()
        seconds = int(values.get("ms", 1)) / 1000 * float(self.values.get("slow", 1))
        stopped = self.work(job, frames, seconds, values.get("until"))
        if stopped:
            self.stream.say("failed", job, INTERRUPTED, stopped[1], stopped[0].encode())
            self.ending |= stopped[0] == "shutdown"
            return
        for word in self.words + words:
            if self.act(word, job):
                return
        result = f"{self.name} {os.getpid()}\n" + open(video).read()
        self.done(job, frames, 9, int("truncated" in words), [self.write(path, result) for path in results])


def main():
    errors = os.open(os.path.join(HERE, "errors"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, 2)  # tracebacks have no place among the daemon's log lines
    stream = Stream()
    name, setup = stream.hear()
    assert name == "setup"
    device = Device(stream, setup)
    device.start()
    while not device.ending:
        name, fields = stream.hear()
        if name == "job":
            device.run(fields)
        else:
            device.answer(name, fields)


main()
