"""docs/gpu-tests.log is of the sources under cuda/ as they are: whoever changes them runs the tests on a GPU again
(tests/kernels/session.sh) and commits the new log."""
import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))


class GpuLog(unittest.TestCase):
    def setUp(self):
        self.log = (SOURCE / "docs" / "gpu-tests.log").read_text()

    def test_it_is_of_these_sources(self):
        now = subprocess.run([SOURCE / "tests" / "kernels" / "cuda-hash.sh"], check=True, capture_output=True,
                             text=True).stdout.strip()
        tested, = re.findall(r"^cuda ([0-9a-f]{64})$", self.log, re.M)
        self.assertEqual(tested, now, "cuda/ has changed since the tests ran on a GPU: run tests/kernels/session.sh there "
                                      "and commit its gpu-tests.log as docs/gpu-tests.log")

    def test_it_says_what_ran_where(self):
        for line in (r"^commit [0-9a-f]{7,40}$", r"^device \S+", r"^date \d{4}-\d\d-\d\dT"):
            self.assertRegex(self.log, re.compile(line, re.M))
        for step in ("check-sm75", "check-native", "golden-small-fp32-native", "golden-small-fp16-sm75", "plug-in",
                     "clips-sm75"):
            self.assertRegex(self.log, re.compile(rf"^{step}: \d+ passed, \d+ failed, exit code [01],", re.M))


if __name__ == "__main__":
    unittest.main()
