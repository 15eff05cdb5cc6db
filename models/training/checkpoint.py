"""Files of tensors: safetensors (reader and writer of the plain format, so that nothing need be installed), written
atomically; and the export of a checkpoint's EMA into models/."""
import json
import os
import struct

import numpy as np
import torch

KINDS = {'F64': np.float64, 'F32': np.float32, 'F16': np.float16, 'U8': np.uint8, 'I64': np.int64, 'I32': np.int32,
         'BOOL': np.bool_}
NAMES = {np.dtype(v): k for k, v in KINDS.items()}
PIECE = 16 * 1024 * 1024        # no file of a checkpoint is larger


def write_whole(path, data):
    """The file is there whole or not at all."""
    temporary = f'{path}.part'
    with open(temporary, 'wb') as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def load(path):
    """(tensors as numpy arrays, metadata)"""
    with open(path, 'rb') as f:
        size = struct.unpack('<Q', f.read(8))[0]
        head = json.loads(f.read(size))
        data = f.read()
    meta = head.pop('__metadata__', {})
    arrays = {}
    for name, entry in head.items():
        first, last = entry['data_offsets']
        arrays[name] = np.frombuffer(data[first:last], KINDS[entry['dtype']]).reshape(entry['shape'])
    return arrays, meta


def save(path, arrays, meta=None):
    head, blobs, place = {'__metadata__': {k: str(v) for k, v in (meta or {}).items()}}, [], 0
    for name, array in sorted(arrays.items()):
        array = np.ascontiguousarray(array)
        blob = array.tobytes()
        head[name] = {'dtype': NAMES[array.dtype], 'shape': list(array.shape), 'data_offsets': [place, place + len(blob)]}
        blobs.append(blob)
        place += len(blob)
    text = json.dumps(head, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    write_whole(path, struct.pack('<Q', len(text)) + text + b''.join(blobs))


def save_half(path, tensors, meta=None):
    """float16; values that float16 cannot hold are an error, not an infinity."""
    arrays = {}
    for name, tensor in tensors.items():
        half = tensor.detach().to(torch.float16).cpu().numpy()
        if not np.isfinite(half).all():
            raise ValueError(f'{name} does not fit float16')
        arrays[name] = half
    save(path, arrays, meta)


def load_model(model, path):
    """Fill a model; every name and shape must match. Returns the metadata."""
    arrays, meta = load(path)
    model.load_state_dict({k: torch.from_numpy(v.astype(np.float32)) for k, v in arrays.items()})
    return meta


def export(ema_path, out_path, meta, other_path=None):
    """The EMA of a checkpoint -> models/*.safetensors: float16, public tensor names, at most 17 MB. With other_path the
    mean of both: weights of one run lie in one valley, and their mean forgets less of what the earlier ones could."""
    arrays, _ = load(ema_path)
    if other_path:
        other, _ = load(other_path)
        arrays = {k: (v.astype(np.float32) + other[k].astype(np.float32)) / 2 for k, v in arrays.items()}
    save(out_path, {k: v.astype(np.float16) for k, v in arrays.items()}, meta)
    size = os.path.getsize(out_path)
    if size > 17_000_000:
        raise ValueError(f'{out_path} has {size} bytes')
    return size
