"""How far confidences can be believed, and the monotone map that makes them so (docs/CALIBRATION.md). Needs numpy only.

    calibrate.py WEIGHTS --clips DIR --tracks DIR [--write]    fit on the even clips of a held-out set, report on the odd ones
    calibrate.py WEIGHTS --remove                              take the map out again
    calibrate.py WEIGHTS --show

DIR of --clips is what `tool.py evaluate --write` wrote, DIR of --tracks what the C program made of it with these very
weights. --write stores the map in the weight file's metadata (`confidence_map`: [[raw, calibrated], ...], logits), where
the C program reads it; the tensors stay as they are, byte by byte, but the file's SHA-256 changes. It is not stored where the
odd clips' error falls by less than GAIN: a map that is not needed is a sampling error of its own.

A point-frame is good where the point is visible and the track within 6 px of 256x256. The query's own frame does not count.
"""
import argparse
import json
import os
import struct
import sys

import numpy as np

KEY, KNOTS, FAR, LARGEST, GAIN = 'confidence_map', 12, 6.0, 30.0, 0.005


# ------------------------------------------------------------------------------------------------- the map

def logit(share):
    share = np.asarray(share, np.float64)
    with np.errstate(divide='ignore'):
        return np.clip(np.log(share) - np.log1p(-share), -LARGEST, LARGEST)


def apply(knots, confidence):
    """What core/calibration.c computes."""
    if knots is None:
        return np.asarray(confidence, np.float64)
    x, (raw, calibrated) = logit(confidence), np.transpose(knots)
    y = np.interp(x, raw, calibrated)
    y = np.where(x < raw[0], x + calibrated[0] - raw[0], np.where(x > raw[-1], x + calibrated[-1] - raw[-1], y))
    return 1 / (1 + np.exp(-y))


def inverse(knots, confidence):
    return apply(None if knots is None else [(y, x) for x, y in knots], confidence)


def fit(confidence, good, knots=KNOTS):
    """A strictly monotone map [(raw, calibrated)] of logits: shares of equally full bins of the raw ones, neighbours that
    are out of order pooled."""
    order = np.argsort(confidence, kind='stable')
    x, g = logit(confidence)[order], np.asarray(good, np.float64)[order]
    bins = [[x[part].mean(), g[part].sum(), len(part)] for part in np.array_split(np.arange(len(x)), knots)]
    pooled = []
    for place, count, size in bins:
        pooled.append([place * size, count, size])
        while len(pooled) > 1 and share(pooled[-2]) >= share(pooled[-1]):
            last = pooled.pop()
            pooled[-1] = [a + b for a, b in zip(pooled[-1], last)]
    result = []
    for weighted, count, size in pooled:
        at, to = weighted / size, float(logit((count + 0.5) / (size + 1)))
        if not result or (at > result[-1][0] + 1e-3 and to > result[-1][1] + 1e-3):
            result.append((round(float(at), 4), round(to, 4)))
    if len(result) < 2:
        raise ValueError('the confidences say nothing: no monotone map fits')
    return result


def share(bin_):
    return (bin_[1] + 0.5) / (bin_[2] + 1)


def reliability(confidence, good, bins=10):
    """(expected calibration error, [(lower edge, count, mean confidence, share that is good)])"""
    which = np.minimum((np.asarray(confidence) * bins).astype(int), bins - 1)
    rows = [(b / bins, int(m.sum()), float(np.mean(confidence[m])), float(np.mean(good[m])))
            for b in range(bins) for m in [which == b] if m.any()]
    return sum(n * abs(c - s) for _, n, c, s in rows) / len(confidence), rows


def table(rows):
    lines = ['| confidence | point-frames | mean confidence | share that is good |', '|---|---|---|---|']
    return '\n'.join(lines + [f'| {low:.1f} to {low + 0.1:.1f} | {n} | {c:.3f} | {s:.3f} |' for low, n, c, s in rows])


# ----------------------------------------------------------------------------------------------- held-out set

def pairs(clips, tracks, keep=lambda i: True):
    """Confidences and whether they were good, of all point-frames of the clips number i with keep(i)."""
    confidence, good = [], []
    names = sorted(n[:-len('.truth.npz')] for n in os.listdir(clips) if n.endswith('.truth.npz'))
    for i, name in enumerate(names):
        path = os.path.join(tracks, f'{name}.tracks.npz')
        if not keep(i) or not os.path.exists(path):
            continue
        truth, ours = np.load(os.path.join(clips, f'{name}.truth.npz')), np.load(path)
        counted = np.round(truth['query_points'][:, :1]).astype(int) != np.arange(ours['confidence'].shape[1])
        away = np.hypot(*np.moveaxis(ours['tracks'] - truth['tracks'], -1, 0))
        confidence.append(ours['confidence'][counted].astype(np.float64))
        good.append(((away < FAR) & ~truth['occluded'])[counted])
    if not good:
        raise ValueError(f'no tracks in {tracks} belong to clips in {clips}')
    return np.concatenate(confidence), np.concatenate(good)


# ------------------------------------------------------------------------------------------------ weight files

def read(path):
    """(header, the tensors' bytes)"""
    with open(path, 'rb') as f:
        size = struct.unpack('<Q', f.read(8))[0]
        return json.loads(f.read(size)), f.read()


def read_map(path):
    text = read(path)[0].get('__metadata__', {}).get(KEY)
    return json.loads(text) if text is not None else None


def write_map(path, knots):
    """Replaces the file whole; None takes the map out."""
    header, data = read(path)
    meta = header.setdefault('__metadata__', {})
    meta.pop(KEY, None)
    if knots is not None:
        meta[KEY] = json.dumps([[float(x), float(y)] for x, y in knots], allow_nan=False)
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    temporary = f'{path}.part'
    with open(temporary, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('weights')
    p.add_argument('--clips')
    p.add_argument('--tracks')
    p.add_argument('--write', action='store_true')
    p.add_argument('--remove', action='store_true')
    p.add_argument('--show', action='store_true')
    a = p.parse_args()
    if a.remove or a.show:
        if a.remove:
            write_map(a.weights, None)
        print(json.dumps(read_map(a.weights)))
        return
    if not a.clips or not a.tracks:
        sys.exit('calibrate.py: --clips and --tracks are needed')
    now = read_map(a.weights)
    confidence, good = pairs(a.clips, a.tracks, lambda i: i % 2 == 0)
    knots = fit(inverse(now, confidence), good)                 # of the raw confidences, whatever map there is
    confidence, good = pairs(a.clips, a.tracks, lambda i: i % 2 == 1)
    raw = inverse(now, confidence)
    errors = {}
    for name, values in (('raw', raw), ('as stored now', confidence), ('with this map', apply(knots, raw))):
        errors[name], rows = reliability(values, good)
        print(f'{name}: expected calibration error {errors[name]:.4f} on the odd clips\n\n{table(rows)}\n')
    print(json.dumps(knots))
    if a.write and errors['with this map'] > errors['raw'] - GAIN:
        print(f'not written: the raw confidences are as good within {GAIN}')
    elif a.write:
        write_map(a.weights, knots)
        print(f'{KEY} is in {a.weights}')


if __name__ == '__main__':
    main()
