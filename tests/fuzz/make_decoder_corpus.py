"""Writes the seeds of fuzz_decoder_messages: right conversations, and some that go wrong at one place.

    python3 tests/fuzz/make_decoder_corpus.py tests/fuzz/corpus/decoder_messages
"""
import pathlib
import struct
import sys


def message(kind, body=b"", version=3):
    return struct.pack("<IHHII", 0x54544431, version, kind, len(body), 0) + body


def info(**changes):
    values = dict(width=640, height=480, coded_width=640, coded_height=480, sar_num=1, sar_den=1, rotation=90, mirrored=0,
                  rate_num=25, rate_den=1, frames_hint=3, duration=0.12, container=b"mov", codec=b"h264",
                  pixel_format=b"yuv420p", matrix=b"bt709", transfer=b"bt709", range=b"tv")
    values.update(changes)
    return message(3, struct.pack("<10iqd32s32s32s24s24s8s", *values.values()))


def frame(index, time_s):
    return message(4, struct.pack("<qd", index, time_s))


def text(kind, status, words):
    return message(kind, struct.pack("<i480s", status, words))


def end(frames, truncated=0):
    return message(6, struct.pack("<qii", frames, truncated, 0))


def picture(index, time_s, width=640, height=480):
    return message(9, struct.pack("<qd2i", index, time_s, width, height))


def patches(index, count):
    return message(10, struct.pack("<q2i", index, count, 0))


HELLO = message(2)
MASK = message(8, struct.pack("<2i", 640, 480))
SEEDS = {
    "video": (2, HELLO, info(), frame(0, 0), frame(1, 0.04), text(5, 0, b"a warning"), frame(2, 0.04), end(3)),
    "truncated": (2, HELLO, text(5, 0, b"early"), info(frames_hint=0), frame(0, 10), end(1, 1)),
    "mask": (1, HELLO, MASK),
    "error": (2, HELLO, text(7, 1, b"is not a video")),
    "retry": (2, HELLO, text(7, 2, b"read the file")),
    "refuse": (2, text(7, 5, b"no seccomp")),
    "late_refuse": (2, HELLO, text(7, 5, b"no seccomp")),
    "version": (2, message(2, version=4)),
    "full_ring": (0, HELLO, info(), *(frame(n, n) for n in range(49))),
    "backwards": (2, HELLO, info(), frame(0, 1), frame(1, 0)),
    "patches": (128 + 2 * 5, HELLO, info(), picture(0, 0), patches(0, 5), patches(0, 5), text(5, 0, b"a warning"), patches(0, 5)),
    "pictures": (128, HELLO, info(), picture(0, 0), picture(1, 0.04, 320, 240), end(2)),
    "patches_wrong": (128 + 2 * 5, HELLO, info(), picture(0, 0), patches(0, 4), patches(1, 5), picture(1, 1), frame(1, 1), end(1)),
    "order": (2, info(), HELLO, HELLO, frame(0, 0), end(0), info(codec=b"x" * 32), info(rotation=45), info(), MASK),
}

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (first, *packets) in SEEDS.items():
        body = b"".join(struct.pack("<H", len(packet)) + packet for packet in packets)
        (folder / name).write_bytes(bytes([first]) + body)
