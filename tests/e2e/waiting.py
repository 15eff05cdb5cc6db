"""How the tests wait: for something that can be seen to happen, never for a time, and with one limit for all.

The limit is no part of what a test tests: it only ends a test that has failed. So it is far longer than anything takes
on a machine that does other things, too, and longer still with sanitizers in the programs.
"""
import pathlib
import time

from programs import sanitized

WAIT_S = 120 * (4 if sanitized() else 1)


def wait_for(condition, what="what was waited for", seconds=WAIT_S, step_s=0.01):
    """Asks again and again until the condition gives something true, and returns it."""
    end = time.monotonic() + seconds
    while True:
        got = condition()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(step_s)


def state_of(pid):
    """A process' state, one letter as ps shows it; X: there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_gone(pid):
    """Whether it has ended; somebody else may still have to reap it."""
    return state_of(pid) in "ZX"


class Pauses:
    """The longest time for which a writer left its file alone. Whoever settles for less may take the file half written,
    and is right to: so the tests know how long the machine has kept a writer waiting. One for each writer."""

    def __init__(self):
        self.last, self.longest_s = time.monotonic(), 0.0

    def mark(self):
        """The file was just written, opened or closed."""
        now = time.monotonic()
        self.longest_s, self.last = max(self.longest_s, now - self.last), now
