"""A world that fails for a running tiletrackd: tests/fault/preload.c told from Python.

    faults = Faults(folder, spool)
    daemon.start(environment=faults.environment)
    faults.fail("fsync", errno.EIO)        # each fsync in the spool, until faults.clear()
    faults.fail("rename", errno.EDQUOT, first=3, last=3)
    faults.set_wall_clock(-86400)          # seconds beside the truth
"""
import mmap
import os
import struct

from programs import BIN

LIBRARY = BIN.parent / "tests" / "tt-faults.so"
CALLS = "write fsync rename link unlink mkdir create open".split()
ALWAYS = 2 ** 62
KILL = -1  # instead of an errno: the program dies before the call
RULE = struct.Struct("=qqqq")
FOLDER_AT, FOLDER_BYTES = 8 + len(CALLS) * RULE.size, 2048


class Faults:
    def __init__(self, folder, failing, program="tiletrackd"):
        path = folder / "faults"
        path.write_bytes(bytes(FOLDER_AT) + os.fsencode(failing).ljust(FOLDER_BYTES, b"\0"))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        # The address sanitizer wants to be the first library; that this one is before it does no harm.
        sanitizer = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0"]))
        self.environment = {"LD_PRELOAD": str(LIBRARY), "TT_FAULTS": str(path), "TT_FAULTS_PROGRAM": program,
                            "ASAN_OPTIONS": sanitizer}

    def place(self, call):
        return 8 + CALLS.index(call) * RULE.size

    def fail(self, call, problem, first=1, last=ALWAYS):
        self.clear(call)  # and make it hold with the last word written
        struct.pack_into("=qq", self.map, self.place(call), 0, first)
        struct.pack_into("=q", self.map, self.place(call) + 24, problem)
        struct.pack_into("=q", self.map, self.place(call) + 16, last)

    def clear(self, call):
        struct.pack_into("=q", self.map, self.place(call) + 16, -1)  # last < first

    def seen(self, call):
        """Calls since the rule was made."""
        return RULE.unpack_from(self.map, self.place(call))[0]

    def set_wall_clock(self, seconds):
        struct.pack_into("=q", self.map, 0, int(seconds * 1e9))
