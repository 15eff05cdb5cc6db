"""Every file of the shared videos ends in a track file or a clear error, and leaves nothing else behind.

Quick form: four frames of each. With --whole on the command line: all frames (an hour on two cores).
"""
import json
import os
import subprocess
import sys

import numpy as np

from programs import Folder, SHARED, SKIP, TILETRACK, main

WHOLE = "--whole" in sys.argv


class Videos(Folder):
    def test_each(self):
        failed = tracked = 0
        for video in sorted((SHARED / "videos").iterdir()):
            if video.suffix == ".tsv":
                continue
            with self.subTest(video=video.name):
                limit = [] if WHOLE else ["--max-frames", "4"]
                process = subprocess.run([TILETRACK, "track", "--json", "--grid", "2", *limit, "-o",
                                          str(self.folder / "out.npz"), str(video)], capture_output=True, text=True,
                                         timeout=3600 if WHOLE else 120)
                report = json.loads(process.stdout)
                if process.returncode == 0:
                    tracked += 1
                    with np.load(self.folder / "out.npz") as made:
                        self.assertEqual(made["tracks"].shape[1], report["frames"])
                        self.assertTrue(np.isfinite(made["tracks"]).all())
                    os.unlink(self.folder / "out.npz")
                else:
                    failed += 1
                    self.assertEqual(process.returncode, 1, process.stderr)
                    self.assertGreater(len(report["error"]), 10)
                    print(f"{video.name}: {report['error']}")
                self.assertEqual(self.names(), [])
        print(f"{tracked} tracked, {failed} refused with a reason")
        self.assertGreater(tracked, 50)


if __name__ == "__main__":
    if not (SHARED / "videos").is_dir():
        print(f"skipped: {SHARED}/videos is not there")
        sys.exit(SKIP)
    if WHOLE:
        sys.argv.remove("--whole")
    main()
