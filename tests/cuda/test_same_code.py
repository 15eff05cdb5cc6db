"""tests/kernels/same_code.py sees what differs and nothing else: on one small file of kernels, changed in ways that the GPU gets
and in ways that it does not. Needs nvcc for all but the first test; skips where it is missing."""
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "kernels"))
import same_code  # noqa: E402


class SameCode(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.old, self.new = (same_code.Tree(None, pathlib.Path(folder.name) / name) for name in ("old", "new"))
        self.old.kernels = self.new.kernels = ["sample"]

    def change(self, old, new):
        path = self.new.folder / "cuda" / "sample.cu"
        text = path.read_text()
        self.assertIn(old, text)
        path.write_text(text.replace(old, new, 1))

    def compare(self):
        if not shutil.which("nvcc") and not pathlib.Path("/usr/local/cuda/bin/nvcc").exists():
            self.skipTest("no nvcc")
        for tree in (self.old, self.new):
            tree.compile_kernels("sample")
        return same_code.compare_code(self.old, self.new)

    def test_comments_and_blanks_are_no_difference(self):
        before = self.old.tokens("sample.cu")
        self.change("const float top = ", "/* as it\n * were */ const\n        float top = ")
        self.assertEqual(self.new.tokens("sample.cu"), before)
        self.change("size - 1)", "size - 2)")
        self.assertNotEqual(self.new.tokens("sample.cu"), before)

    def test_a_difference_in_a_header_counts(self):
        header = self.new.folder / "cuda" / "common.cuh"
        header.write_text(header.read_text().replace("TT_SHARED_LIMIT = 65536", "TT_SHARED_LIMIT = 65537"))
        self.assertNotEqual(self.new.tokens("sample.cu"), self.old.tokens("sample.cu"))

    def test_other_names_are_the_same_code(self):
        self.change("lane = threadIdx.x % 32;", "thread = threadIdx.x % 32;")
        self.change("c = lane * 2;", "c = thread * 2;")
        self.assertEqual(self.compare(), [])

    def test_another_constant_is_other_code(self):
        self.change("- 0.5f, qy", "- 0.25f, qy")
        self.assertTrue(any("sm_75" in line for line in self.compare()))

    def test_other_launch_bounds_are_other_code(self):
        self.change("__launch_bounds__(224)", "__launch_bounds__(256)")
        self.assertTrue(any("nv.info" in line for line in self.compare()))

    def test_a_kernel_that_is_gone_is_a_difference(self):
        self.change("return launch<__half>(s, stream);", "return launch<float>(s, stream);")
        self.assertTrue(any("__half" in line for line in self.compare()))


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    for _, reason in result.skipped:
        print(f"skipped: {reason}")
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
