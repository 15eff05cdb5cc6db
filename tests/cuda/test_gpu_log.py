"""docs/gpu-tests.log is of the sources under cuda/ as they are: whoever changes them runs the tests on a GPU again
(tests/kernels/session.sh) and commits the new log. `cuda` is the hash of the sources that ran. For others there is one line,
with their hash, of two kinds:

    same HASH      they give the GPU the same kernels and launches as the log's commit. tests/kernels/same_code.py is run and
                   has to find so; the test is skipped only where that cannot run (no nvcc, no git, no such commit).
    pending HASH REASON      they do not, and no GPU was to be had. The test is skipped, loudly, until they have run.
"""
import os
import pathlib
import re
import subprocess
import sys
import unittest

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))


def hash_of_sources():
    return subprocess.run([SOURCE / "tests" / "kernels" / "cuda-hash.sh"], check=True, capture_output=True,
                          text=True).stdout.strip()


class GpuLog(unittest.TestCase):
    def setUp(self):
        self.log = (SOURCE / "docs" / "gpu-tests.log").read_text()

    def test_it_is_of_these_sources(self):
        now = hash_of_sources()
        tested, = re.findall(r"^cuda ([0-9a-f]{64})$", self.log, re.M)
        if tested == now:
            return
        claim = re.search(rf"^(same|pending) {now}(.*)$", self.log, re.M)
        self.assertTrue(claim, "cuda/ has changed since the tests ran on a GPU: run tests/kernels/session.sh there and commit "
                               "its gpu-tests.log as docs/gpu-tests.log, or, where tests/kernels/same_code.py says that the "
                               f"GPU gets the same, the line `same {now}`")
        if claim[1] == "pending":
            self.skipTest(f"not yet run on a GPU:{claim[2]}")
        self.compare_with(re.search(r"^commit (\w+)$", self.log, re.M)[1])

    def compare_with(self, commit):
        done = subprocess.run([SOURCE / "tests" / "kernels" / "same_code.py", commit], capture_output=True, text=True)
        if done.returncode == 77:
            self.skipTest(f"cuda/ is said to be what ran on a GPU but could not be compared with {commit}: {done.stdout.strip()}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_it_says_what_ran_where(self):
        for line in (r"^commit [0-9a-f]{7,40}$", r"^device \S+", r"^date \d{4}-\d\d-\d\dT"):
            self.assertRegex(self.log, re.compile(line, re.M))
        for step in ("check-sm75", "check-native", "golden-small-fp32-native", "golden-small-fp16-sm75", "plug-in",
                     "clips-sm75"):
            self.assertRegex(self.log, re.compile(rf"^{step}: \d+ passed, \d+ failed, exit code [01],", re.M))


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    for _, reason in result.skipped:
        print(f"skipped: {reason}")
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
