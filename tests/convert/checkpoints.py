"""What the converter's tests share: the program, checkpoints put together by hand, safetensors read back."""
import hashlib
import importlib.util
import json
import os
import pathlib
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

SOURCE = pathlib.Path(os.environ.get("TILETRACK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
PROGRAM = SOURCE / "models/convert_checkpoint.py"

spec = importlib.util.spec_from_file_location("convert_checkpoint", PROGRAM)
converter = importlib.util.module_from_spec(spec)
spec.loader.exec_module(converter)


def convert(*arguments):
    """Runs the program as a user does, with nothing but the standard library in reach."""
    return subprocess.run([sys.executable, "-I", "-S", PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)  # fmt: skip


def read_safetensors(path):
    """name -> (dtype, shape, bytes), and the metadata."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__")
    body = memoryview(data)[8 + length :]
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = entry["dtype"], tuple(entry["shape"]), bytes(body[begin:end])
    assert sum(len(t[2]) for t in tensors.values()) == len(body)
    return tensors, metadata


class Stand:
    """Pickles as any call: the callable's name and the arguments, as a hostile file would hold them."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def write_archive(path, pickled, records=(), folder="archive", compression=zipfile.ZIP_STORED):
    """A checkpoint from a pickle's bytes and (name, bytes) records."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{folder}/data.pkl", pickled)
        for name, data in records:
            archive.writestr(f"{folder}/{name}", data)
        archive.writestr(f"{folder}/version", "3\n")
    return path


class Global:
    """A name in a hand-made pickle (see `assemble`)."""

    def __init__(self, text):
        self.text = text


class Call(Global):
    """A call of a name with arguments, in a hand-made pickle."""

    def __init__(self, text, *arguments):
        super().__init__(text)
        self.arguments = arguments


class Stored:
    """A reference to a storage, in a hand-made pickle."""

    def __init__(self, kind, key, count):
        self.identity = ("storage", Global(f"torch {kind}"), key, "cpu", count)


def tensor(kind, key, count, offset, shape, strides):
    return Call("torch._utils _rebuild_tensor_v2", Stored(kind, key, count), offset, shape, strides, False, Call("collections OrderedDict"))


def assemble(value):
    """A value as pickle instructions without the final STOP. Names are written as they are, whether they exist or not."""
    if isinstance(value, Call):
        return f"c{value.text}\n".replace(" ", "\n", 1).encode() + assemble(tuple(value.arguments)) + b"R"
    if isinstance(value, Global):
        return f"c{value.text}\n".replace(" ", "\n", 1).encode()
    if isinstance(value, Stored):
        return assemble(value.identity) + b"Q"
    if isinstance(value, dict):
        return b"}(" + b"".join(assemble(k) + assemble(v) for k, v in value.items()) + b"u"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(assemble, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(assemble, value)) + b"e"
    return pickle.dumps(value, 2)[2:-1]


def pickled(value):
    return b"\x80\x02" + assemble(value) + b"."


def numbers(name, count):
    """FP32 values from a name, as bytes: the same for every run, all finite."""
    words = hashlib.shake_128(name.encode()).digest(4 * count)
    return struct.pack(f"<{count}f", *(w / 2**31 - 1 for w in struct.unpack(f"<{count}I", words)))


def contiguous(shape):
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


def whole_model(size="small"):
    """A hand-made state_dict of tensors and its records."""
    state, records = {}, []
    for i, (name, shape) in enumerate(converter.model_weights(size).items()):
        count = contiguous((shape[0], *shape[1:]))[0] * shape[0]
        state["model." + name] = tensor("FloatStorage", str(i), count, 0, shape, contiguous(shape))
        records.append((f"data/{i}", numbers(name, count)))
    return state, records


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tiletrack-convert-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.checkpoint, self.output = self.folder / "x.ckpt", self.folder / "x.safetensors"

    def assertRefused(self, *words):
        """Exit code 1, one clear text with the words, no traceback, no output and nothing partial."""
        before = set(os.listdir(self.folder))
        process = convert(self.checkpoint)
        self.assertEqual(process.returncode, 1, process.stdout + process.stderr)
        self.assertIn(f"convert_checkpoint: {self.checkpoint}: ", process.stderr)
        self.assertNotIn("Traceback", process.stderr)
        for word in words:
            self.assertIn(word, process.stderr)
        self.assertEqual(set(os.listdir(self.folder)), before)

    def assertConverts(self, *options):
        process = convert(self.checkpoint, *options)
        self.assertEqual((process.returncode, process.stderr), (0, ""))
        return read_safetensors(self.output)
