#!/usr/bin/env python3
"""Writes this folder's golden tensors with the public LocoTrack code.

make_golden.py CHECKOUT MODEL OUT [WEIGHTS]

CHECKOUT: folder locotrack_pytorch of a checkout of cvlab-kaist/locotrack. MODEL: small or base. WEIGHTS: a
safetensors file; without it, weights come from the formula (seed 1). The clip comes from a formula in any case
(core/formula.c: tt_formula_clip), so the files hold tensors only. Needs NumPy, PyTorch (1.13 suffices, which lacks
two things that the public code uses: they are supplied below) and einops. float32 on the CPU.
"""
import json
import struct
import sys

import numpy as np
import torch
import torch.nn.functional as F

FRAMES = 4
FEATURE_FRAMES = [0, 3]
DETAILED = 2  # queries whose supports, embeddings and mixer rows are kept
QUERIES_TYX = [[0, 0.0, 0.0], [2, 256.0, 255.5], [0, 112.25, 104.5], [3, 60.0, 200.75], [1, 120.5, 160.0],
               [2, 128.0, 0.25]]
STEPS = {"lowres": 4, "hires": 8, "highest": 16}  # every 4th, 8th, 16th row and column: 8×8 positions of each
KINDS = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "U8": "u1"}


def supply_what_old_torch_lacks():
    if not hasattr(F, "scaled_dot_product_attention"):
        def attention(query, key, value, attn_mask, scale):
            return torch.softmax(query @ key.transpose(-1, -2) * scale + attn_mask, dim=-1) @ value

        F.scaled_dot_product_attention = attention
    try:
        torch.zeros(1, 1).squeeze(dim=(0, 1))
    except TypeError:
        plain = torch.Tensor.squeeze

        def squeeze(self, dim=None):
            if isinstance(dim, tuple):
                for one in sorted(dim, reverse=True):
                    self = plain(self, one)
                return self
            return plain(self) if dim is None else plain(self, dim)

        torch.Tensor.squeeze = squeeze


def read_tensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data[slice(*entry["data_offsets"])], KINDS[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()}


def write_tensors(path, tensors, metadata):
    header, offset = {"__metadata__": metadata}, 0
    for name, array in tensors.items():
        kind = {"f": "F32", "i": "I64"}[array.dtype.kind]
        tensors[name] = array = np.ascontiguousarray(array, KINDS[kind])
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in tensors.values():
            file.write(array.tobytes())


def formula_weight(name, shape, seed):
    """docs/MODEL.md, "Weights from a formula"."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    count = int(np.prod(shape))
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(state ^ seed)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    u = (z >> np.uint64(40)).astype("f8") / 2**23 - 1
    if name == "cost_conv.weight":
        u = np.abs(u) / np.sqrt(np.prod(shape[1:]))
    elif len(shape) > 1:
        u = u / np.sqrt(np.prod(shape[1:]))
    else:
        u = 1 + 0.1 * u if name.endswith("weight") else 0.1 * u
    return u.astype("f4").reshape(shape)


def lattice(x, y, kind):
    h = x * np.uint32(73856093) ^ y * np.uint32(19349663) ^ np.uint32(kind * 83492791 & 0xFFFFFFFF)
    h = (h ^ h >> np.uint32(13)) * np.uint32(2654435761)
    return (h >> np.uint32(24)).astype("i8")


def noise(x, y, cell, kind):
    i, j, u, v = (x // cell).astype("u4"), (y // cell).astype("u4"), x % cell, y % cell
    one = np.uint32(1)
    above = lattice(i, j, kind) * (cell - u) + lattice(i + one, j, kind) * u
    below = lattice(i, j + one, kind) * (cell - u) + lattice(i + one, j + one, kind) * u
    return (above * (cell - v) + below * v) // (cell * cell)


def formula_clip(frames):
    y, x = np.mgrid[:256, :256]
    clip = np.zeros((frames, 256, 256, 3), "u1")
    for f in range(frames):
        dx, dy = x - (96 + 6 * f), y - (120 + 3 * f)
        inside = dx * dx + dy * dy < 44 * 44
        for c in range(3):
            disc = (noise(dx + 1024, dy + 1024, 32, c + 3) * 2 + noise(dx + 1024, dy + 1024, 8, c + 9)) // 3
            px, py = x + 2 * f + 64, y + f + 64
            ground = (noise(px, py, 32, c) * 2 + noise(px, py, 8, c + 6)) // 3
            clip[f, :, :, c] = np.where(inside, disc, ground)
    return clip


def keep_first_calls(model, kept):
    """Input and output of the encoders and of the mixer in the first refinement."""
    def hook(name):
        def keep(module, inputs, output):
            kept.setdefault(name, (inputs[0].numpy().copy(), output.numpy().copy()))

        return keep

    for level in range(3):
        model.cmdtop[level].register_forward_hook(hook(f"cmdtop{level}"))
    model.torch_pips_mixer.register_forward_hook(hook("mixer"))


def golden(model, clip):
    video = torch.from_numpy(clip).float()[None] / 255.0 * 2 - 1
    queries = torch.tensor([QUERIES_TYX])
    kept, tensors = {}, {}
    keep_first_calls(model, kept)
    with torch.no_grad():
        grids = model.get_feature_grids(video)
        features = model.get_query_features(video, False, queries, grids)
        out = model(video, queries, feature_grids=grids)
    tensors["queries_tyx"] = queries[0].numpy()
    tensors["features.frames"] = np.array(FEATURE_FRAMES, "i8")
    for name, step in STEPS.items():
        tensors[f"features.{name}"] = getattr(grids, name)[0][0, FEATURE_FRAMES, ::step, ::step].numpy()
        tensors[f"query.{name}_supp"] = getattr(features, f"{name}_supp")[0][0, :DETAILED].numpy()
    for level in range(3):
        tensors[f"iter0.cmdtop{level}"] = kept[f"cmdtop{level}"][1].reshape(-1, FRAMES, 256)[:DETAILED]
    tensors["iter0.mixer_in"], tensors["iter0.mixer_out"] = (array[:DETAILED] for array in kept["mixer"])
    for i in range(5):
        for name in ("tracks", "occlusion", "expected_dist"):
            stage = out[f"unrefined_{name}"][i] if i < 4 else out[name]
            tensors[f"iter{i}.{name}"] = stage[0].numpy()
    return tensors


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    checkout, size, out = sys.argv[1:4]
    sys.path.insert(0, checkout)
    supply_what_old_torch_lacks()
    from models.locotrack_model import LocoTrack

    model = LocoTrack(model_size=size).eval()
    given = read_tensors(sys.argv[4]) if len(sys.argv) == 5 else None
    state = {name: torch.from_numpy((given[name] if given else formula_weight(name, tuple(value.shape), 1)).astype("f4"))
             for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    write_tensors(out, golden(model, formula_clip(FRAMES)),
                  {"model": f"locotrack-{size}", "source": "cvlab-kaist/locotrack, locotrack_pytorch, float32 on CPU",
                   "torch": torch.__version__, "weights": "file" if given else "formula, seed 1",
                   "clip": f"formula, {FRAMES} frames"})


if __name__ == "__main__":
    main()
