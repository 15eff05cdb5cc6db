"""The T4 projection: `tiletrack plan --device t4 --bench FILE` from a measurement of the T4's code on another card. A main
kernel twice as slow must worsen it; files that are no such measurement are refused."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
PROGRAM = pathlib.Path(os.environ.get("TILETRACK_BIN", SOURCE / "build" / "bin")) / "tiletrack"
MEASURED = SOURCE / "tests" / "bench" / "h200-sm75.json"

# What takes most of a clip's time; each line of the file that begins so.
MAIN_KERNELS = ["conv_f16 k8 group 0 ", "conv_f16 k8 group 1 ", "conv_f16 k8 group 2, 3 ", "embed_f16 k8 ", "mlp_f16 k8 ",
                "product_f16 k8 ", "cost_f16 k8"]


def read():
    return [json.loads(line) for line in MEASURED.read_text().splitlines()]


class Projection(unittest.TestCase):
    def plan(self, lines, *options):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
            file.flush()
            return subprocess.run([PROGRAM, "plan", "--device", "t4", "--bench", file.name, *options],
                                  capture_output=True, text=True, timeout=60)

    def seconds(self, lines):
        done = self.plan(lines, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["t4_projection_s"]

    def test_a_main_kernel_twice_as_slow_worsens_it(self):
        before = self.seconds(read())
        self.assertGreater(before, 1.43e12 / 24e12)  # no faster than a T4's tensor cores
        for kernel in MAIN_KERNELS:
            lines, slowed = read(), 0
            for line in lines:
                if line.get("name", "").startswith(kernel):
                    line["tflops"] /= 2
                    slowed += 1
            self.assertGreater(slowed, 0, kernel)
            self.assertGreater(self.seconds(lines), before * 1.01, kernel)

    def test_it_is_called_a_projection(self):
        self.assertIn("projected on a T4, not measured", self.plan(read()).stdout)

    def test_what_is_no_such_measurement_is_refused(self):
        lines = read()
        native = [dict(line, path="native") if "path" in line else line for line in lines]
        for wrong, why in ((native, "path of sm_75"), ([line for line in lines if not line.get("name", "").startswith(
                "conv_f16 k8 group 1 ")], "no line"), ([line for line in lines if "m16n8k8" not in line.get("name", "")],
                                                     "no line"), ([7], "benchkern")):
            done = self.plan(wrong)
            self.assertEqual(done.returncode, 1)
            self.assertIn(why, done.stderr)
        self.assertEqual(self.plan(lines, "--precision", "fp32").returncode, 1)
        self.assertEqual(self.plan(lines, "--device", "h200").returncode, 1)


if __name__ == "__main__":
    unittest.main()
