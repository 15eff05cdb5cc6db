#!/usr/bin/env python3
"""Decoded clips for tests on a machine without decoders: packs them small, and unpacks them.

clips.py pack FILE     decodes 47 frames of each of the ten videos named below (with tests/e2e/decode_dump) into one file
clips.py unpack FILE DIRECTORY     writes NAME.rgb, uint8 [47][256][256][3], for each

Without loss: colours as green and differences from it, then differences from the frame before or from the neighbours
left and above, whichever is smaller, then LZMA. The ten clips take about 25 MB. The videos are shared test data
(TILETRACK_SHARED); neither they nor the packed file belong into the repository.
"""
import concurrent.futures
import lzma
import pathlib
import struct
import sys
import tempfile

import numpy as np

NAMES = ["caliscope_board_cam0.mp4", "charuco_hand47.mp4", "cmu_house.mp4", "cotracker_cat.mp4", "davis_bear.mp4",
         "dreem_two_flies.mp4", "imageio_cockatoo.mp4", "lift_folding_paper.mp4",
         "media3_bbb_800x640_768kbps_30fps_avc_2b_firstpts_10_sec.mp4", "sam2_05_default_juggle.mp4"]
SHAPE = (47, 3, 256, 256)
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 4}]


def stem(name):
    return name.rsplit(".", 1)[0]


def compress(rgb):
    """One byte that says which differences, then the LZMA stream."""
    planes = np.moveaxis(rgb, -1, 1).copy()
    planes[:, [0, 2]] -= planes[:, 1:2]
    in_time, in_space = planes.copy(), planes.copy()
    in_time[1:] -= planes[:-1]
    in_space[..., 1:] -= planes[..., :-1]
    in_space[..., 1:, :] -= in_space[..., :-1, :].copy()
    packed = [lzma.compress(d.tobytes(), format=lzma.FORMAT_RAW, filters=FILTERS) for d in (in_time, in_space)]
    best = min((0, 1), key=lambda i: len(packed[i]))
    return bytes([best]) + packed[best]


def expand(packed):
    raw = lzma.decompress(packed[1:], format=lzma.FORMAT_RAW, filters=FILTERS)
    planes = np.frombuffer(raw, np.uint8).reshape(SHAPE)
    for axis in ((0,), (2, 3))[packed[0]]:
        planes = np.cumsum(planes, axis=axis, dtype=np.uint8)
    planes[:, [0, 2]] += planes[:, 1:2]
    return np.ascontiguousarray(np.moveaxis(planes, 1, -1))


def decoded(name):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
    import decode_tools

    with tempfile.NamedTemporaryFile() as raw:
        rgb = decode_tools.dump(decode_tools.VIDEOS / name, "--max-frames", SHAPE[0], raw=raw.name)["rgb"]
    assert rgb.shape == (47, 256, 256, 3), name
    packed = compress(rgb)
    assert np.array_equal(expand(packed), rgb), name
    return packed


def write_raw(job):
    path, packed = job
    expand(packed).tofile(path)


def main():
    command, file, *rest = sys.argv[1:]
    with concurrent.futures.ProcessPoolExecutor() as pool:
        if command == "pack":
            with open(file, "wb") as out:
                for name, packed in zip(NAMES, pool.map(decoded, NAMES)):
                    out.write(struct.pack("<I", len(packed)) + packed)
                    print(f"{name}: {len(packed)} bytes")
        else:
            data, at, jobs = pathlib.Path(file).read_bytes(), 0, []
            for name in NAMES:
                size, = struct.unpack_from("<I", data, at)
                jobs.append((pathlib.Path(rest[0]) / f"{stem(name)}.rgb", data[at + 4:at + 4 + size]))
                at += 4 + size
            list(pool.map(write_raw, jobs))


if __name__ == "__main__":
    main()
