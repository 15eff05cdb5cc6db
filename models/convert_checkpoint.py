#!/usr/bin/python3
"""Turns a published LocoTrack checkpoint (small or base) into the safetensors file that tiletrack reads.

    models/convert_checkpoint.py locotrack_base.ckpt -o locotrack-base.safetensors

A checkpoint is a zip file as torch.save writes it since torch 1.6: a pickle (data.pkl) that describes tensors, and their bytes
(data/0, data/1, ...). Unpickling such a file the usual way runs whatever it asks for. Here nothing it names is ever imported,
looked up or called: the pickle's instructions are interpreted by a small machine of our own that can build numbers, strings,
containers and descriptions of tensors. Everything else (a training program's own classes, optimisers, schedulers) becomes an
inert placeholder, which is skipped, and refused where a weight should stand.

The weights' names and shapes must be exactly those of LocoTrack small or base; what is missing or wrong is said. Only Python's
standard library is needed. Exit code: 0 written, 1 not a checkpoint that can be used, 2 usage.
"""
import argparse
import array
import functools
import hashlib
import io
import json
import math
import os
import pickletools
import struct
import sys
import tempfile
import zipfile

LARGEST_PICKLE = 64 << 20  # bytes; published ones are below 100 kB
LARGEST_STORAGE = 2 << 30


class Refused(Exception):
    """The checkpoint cannot be used; the text says why."""


# --- the names and shapes of LocoTrack's weights ----------------------------------------------------------------------


def model_weights(size):
    """name -> shape of every weight of LocoTrack `size`, as in the public code's state_dict."""
    small = size == "small"
    width = 256 if small else 384
    encoder = [(49, 64, 5), (64, 128, 2)] if small else [(49, 64, 3), (64, 128, 3), (128, 128, 2)]
    shapes = {"cost_conv.weight": (1, 2, 3, 3), "cost_conv.bias": (1,), "occ_linear.weight": (2, 6), "occ_linear.bias": (2,)}

    def norm(name, channels):
        shapes[name + ".weight"] = shapes[name + ".bias"] = (channels,)

    def linear(name, outputs, inputs):
        shapes[name + ".weight"], shapes[name + ".bias"] = (outputs, inputs), (outputs,)

    shapes["resnet_torch.initial_conv.weight"] = (64, 3, 7, 7)
    channels = 64
    for group, outputs in enumerate((64, 128, 256, 256)):
        for block in range(2):
            name = f"resnet_torch.block_groups.{group}.blocks.{block}."
            if block == 0:
                shapes[name + "proj_conv.weight"] = (outputs, channels, 1, 1)
            norm(name + "bn_0", channels)
            shapes[name + "conv_0.weight"] = (outputs, channels, 3, 3)
            norm(name + "bn_1", outputs)
            shapes[name + "conv_1.weight"] = (outputs, outputs, 3, 3)
            channels = outputs
    for level in range(3):
        for i, (inputs, outputs, kernel) in enumerate(encoder):
            name = f"cmdtop.{level}.conv.{i}."
            shapes[name + "0.weight"], shapes[name + "0.bias"] = (outputs, inputs, kernel, kernel), (outputs,)
            norm(name + "1", outputs)
    linear("torch_pips_mixer.input_proj", width, 854)
    linear("torch_pips_mixer.output_proj", 388, width)
    norm("torch_pips_mixer.transformer.ln_out", width)
    for layer in range(3):
        name = f"torch_pips_mixer.transformer.layers.{layer}."
        for part in ("query", "key", "value", "final"):
            linear(f"{name}attn.{part}_proj", width, width)
        linear(name + "dense.0", 4 * width, width)
        linear(name + "dense.2", width, 4 * width)
        norm(name + "layer_norm1", width)
        norm(name + "layer_norm2", width)
    return shapes


# --- the pickle machine -----------------------------------------------------------------------------------------------


class Name:
    """A name that the pickle mentions. Never looked up."""

    def __init__(self, text):
        self.text = text


class Placeholder:
    """Something that would have been made by a call. Nothing was called."""

    def __init__(self, what):
        self.what = what


class Storage:
    """Where a tensor's bytes lie: record data/KEY, `count` elements."""

    def __init__(self, kind, key, count):
        self.kind, self.key, self.count = kind, key, count


class Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides


# Storage class -> element size and letter for struct; None: recognised, but nothing a weight may be.
KINDS = {
    "torch.FloatStorage": (4, "f"), "torch.HalfStorage": (2, "e"), "torch.BFloat16Storage": (2, "bf16"),
    "torch.DoubleStorage": (8, "d"), "torch.LongStorage": None, "torch.IntStorage": None, "torch.ShortStorage": None,
    "torch.CharStorage": None, "torch.ByteStorage": None, "torch.BoolStorage": None, "torch.ComplexFloatStorage": None,
    "torch.ComplexDoubleStorage": None, "torch.storage.UntypedStorage": None,
}  # fmt: skip

# No name is ever called, so nobody depends on this list: it only says plainly what kind of file names such things.
HOSTILE_MODULES = {
    "os", "posix", "nt", "subprocess", "sys", "shutil", "socket", "pty", "runpy", "importlib", "ctypes", "code", "commands",
    "webbrowser", "multiprocessing", "asyncio", "pickle", "_pickle", "marshal", "http", "urllib", "ftplib", "platform", "pdb",
    "bdb", "timeit", "pip", "signal", "tempfile", "zipimport",
}  # fmt: skip
HOSTILE_BUILTINS = {"eval", "exec", "compile", "open", "input", "breakpoint", "__import__", "globals", "vars", "delattr"}


def name_of(module, attribute):
    if not isinstance(module, str) or not isinstance(attribute, str):
        raise Refused("damaged: its pickle has a name that is not text")
    top = module.split(".")[0]
    if top in HOSTILE_MODULES or (top in ("builtins", "__builtin__") and attribute.split(".")[0] in HOSTILE_BUILTINS):
        raise Refused(f"its pickle would run {module}.{attribute}: no honest checkpoint does. Nothing was run")
    return Name(f"{module}.{attribute}")


def whole(value):
    return type(value) is int and 0 <= value < 1 << 63


def as_key(value):
    """A key as it is if it is plain; hashing nested tuples of a hostile depth would end the interpreter."""
    return value if value is None or isinstance(value, (str, int, float, bytes)) else Placeholder("a key")


def dictionary(pairs):
    return {as_key(key): value for key, value in pairs}


def make_tensor(arguments):
    """The arguments of torch._utils._rebuild_tensor_v2: storage, offset, size, strides, gradient, hooks, metadata (bits that
    negate or conjugate)."""
    if len(arguments) < 4 or any(arguments[6:]):
        return Placeholder("a tensor of an unusual kind")
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, Storage):
        return Placeholder("a tensor without a storage")
    if not (whole(offset) and type(shape) is tuple and type(strides) is tuple and len(shape) == len(strides)):
        raise Refused("damaged: a tensor's offset, size or strides are not whole numbers")
    if not all(map(whole, shape + strides)):
        raise Refused("damaged: a tensor's size or strides are not whole numbers")
    if 0 not in shape:
        last = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        if last >= storage.count:
            raise Refused(f"damaged: a tensor reaches element {last} of a storage that has {storage.count}")
    return Tensor(storage, offset, shape, strides)


def call(function, arguments):
    """What REDUCE gives: tensors and containers; anything else stays a placeholder."""
    text = function.text if isinstance(function, Name) else "something unnamed"
    arguments = arguments if isinstance(arguments, tuple) else ()
    if text in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
        return make_tensor(arguments)
    if text in ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"):
        if arguments and isinstance(arguments[0], Tensor):
            return arguments[0]
    if text == "collections.OrderedDict":
        pairs = arguments[0] if arguments else ()
        if isinstance(pairs, (list, tuple)) and all(isinstance(p, (list, tuple)) and len(p) == 2 for p in pairs):
            return dictionary(pairs)
    return Placeholder(text)


def storage_of(identity):
    """torch's persistent ids: ('storage', class, key, device, number of elements)."""
    if not (isinstance(identity, tuple) and len(identity) == 5 and identity[0] == "storage"):
        raise Refused("damaged: its pickle refers to something that is not a storage")
    _, kind, key, _, count = identity
    kind = kind.text if isinstance(kind, Name) else "something"
    if kind not in KINDS:
        raise Refused(f"unknown kind of tensor: {kind}")
    if not (isinstance(key, str) and key.isascii() and key.isdigit()):
        shown = repr(key[:80]) if isinstance(key, str) else f"a {type(key).__name__}"
        raise Refused(f"damaged: a storage is called {shown}, not a number")
    if not whole(count):
        raise Refused(f"damaged: storage {key} has no sane size")
    return Storage(kind, key, count)


class Machine:
    """Interprets a pickle's instructions. Each method is one; names are those of pickletools. `stack` holds values, and
    MARK where the pickle put marks; `memo` is a dictionary, so that a huge memo number costs nothing."""

    MARK = object()

    def __init__(self):
        self.stack, self.memo = [], {}

    def run(self, data):
        try:
            for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
                if opcode.name == "STOP":
                    return self.stack.pop()
                self.step(opcode.name, argument)
        except Refused:
            raise
        except (ValueError, IndexError, KeyError, TypeError, UnicodeError, OverflowError, struct.error) as fault:
            raise Refused(f"damaged: its pickle does not make sense ({fault})") from None
        raise Refused("damaged: its pickle has no end")

    def step(self, name, argument):
        if name in CONSTANTS:
            self.stack.append(CONSTANTS[name]())
        elif name in VALUES:
            self.stack.append(argument)
        elif name in ("PROTO", "FRAME"):
            pass
        else:
            method = getattr(self, "op_" + name.lower(), None)
            if method is None:
                raise Refused(f"its pickle uses the instruction {name}, which torch does not write")
            method(argument)

    def above_mark(self):
        values = []
        while self.stack[-1] is not self.MARK:
            values.append(self.stack.pop())
        self.stack.pop()
        values.reverse()
        return values

    def top(self):
        if self.stack[-1] is self.MARK:
            raise ValueError("a mark where a value should be")
        return self.stack[-1]

    def pop(self):
        self.top()
        return self.stack.pop()

    def op_mark(self, _):
        self.stack.append(self.MARK)

    def op_pop(self, _):
        self.stack.pop()

    def op_pop_mark(self, _):
        self.above_mark()

    def op_dup(self, _):
        self.stack.append(self.top())

    def op_memoize(self, _):
        self.memo[len(self.memo)] = self.top()

    def op_put(self, number):
        self.memo[number] = self.top()

    def op_get(self, number):
        self.stack.append(self.memo[number])

    op_binput = op_long_binput = op_put
    op_binget = op_long_binget = op_get

    def op_tuple(self, _):
        self.stack.append(tuple(self.above_mark()))

    def op_list(self, _):
        self.stack.append(self.above_mark())

    def op_dict(self, _):
        values = self.above_mark()
        self.stack.append(dictionary(zip(values[::2], values[1::2], strict=True)))

    def op_frozenset(self, _):
        self.stack.append(frozenset(map(as_key, self.above_mark())))

    def tuple_of(self, count):
        values = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(values)))

    def op_tuple1(self, _):
        self.tuple_of(1)

    def op_tuple2(self, _):
        self.tuple_of(2)

    def op_tuple3(self, _):
        self.tuple_of(3)

    def extend(self, values):
        if isinstance(self.top(), list):
            self.top().extend(values)
        elif not isinstance(self.top(), Placeholder):
            raise ValueError("items for something that is not a list")

    def op_append(self, _):
        self.extend([self.pop()])

    def op_appends(self, _):
        self.extend(self.above_mark())

    def update(self, values):
        if isinstance(self.top(), dict):
            self.top().update(dictionary(zip(values[::2], values[1::2], strict=True)))
        elif not isinstance(self.top(), Placeholder):
            raise ValueError("entries for something that is not a dictionary")

    def op_setitem(self, _):
        value, key = self.pop(), self.pop()
        self.update([key, value])

    def op_setitems(self, _):
        self.update(self.above_mark())

    def op_additems(self, _):
        values = self.above_mark()
        if isinstance(self.top(), set):
            self.top().update(map(as_key, values))
        elif not isinstance(self.top(), Placeholder):
            raise ValueError("items for something that is not a set")

    def op_global(self, text):
        module, _, attribute = text.partition(" ")
        self.stack.append(name_of(module, attribute))

    def op_stack_global(self, _):
        attribute, module = self.pop(), self.pop()
        self.stack.append(name_of(module, attribute))

    def op_inst(self, text):
        self.above_mark()
        module, _, attribute = text.partition(" ")
        self.stack.append(Placeholder(name_of(module, attribute).text))

    def op_obj(self, _):
        values = self.above_mark()
        self.stack.append(call(values[0], tuple(values[1:])))

    def op_reduce(self, _):
        arguments, function = self.pop(), self.pop()
        self.stack.append(call(function, arguments))

    op_newobj = op_reduce

    def op_newobj_ex(self, _):
        self.pop()
        self.op_reduce(_)

    def op_build(self, _):
        """Attributes of an object: torch hangs _metadata on a state_dict; nothing that we read has others."""
        self.pop()
        if not isinstance(self.top(), (dict, Placeholder)):
            raise ValueError("attributes for something that has none")

    def op_binpersid(self, _):
        self.stack.append(storage_of(self.pop()))


CONSTANTS = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_TUPLE": tuple, "EMPTY_LIST": list,
    "EMPTY_DICT": dict, "EMPTY_SET": set,
}  # fmt: skip
VALUES = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE",
    "BINUNICODE8",
}  # fmt: skip


# --- the archive ------------------------------------------------------------------------------------------------------


class Archive:
    """A zip file as torch writes it: every record stored as it is, none twice, all in one folder."""

    def __init__(self, file):
        try:
            self.zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as fault:
            raise Refused(f"damaged or cut off: {fault}") from None
        names = [entry.filename for entry in self.zip.infolist()]
        if len(set(names)) != len(names):
            raise Refused("damaged: its zip file has a record twice")
        pickles = [name for name in names if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise Refused("a zip file, but not one that torch.save wrote: it has no data.pkl")
        self.folder = pickles[0][: -len("data.pkl")]
        if self.folder + "constants.pkl" in names:
            raise Refused("a TorchScript archive, not a checkpoint: save the model's state_dict instead")
        order = self.read("byteorder", 16).strip() if self.folder + "byteorder" in names else b"little"
        if order not in (b"little", b"big"):
            raise Refused(f"unknown byte order {order!r}")
        self.order = order.decode()

    def read(self, name, limit):
        try:
            entry = self.zip.getinfo(self.folder + name)
        except KeyError:
            raise Refused(f"damaged: record {name} is missing") from None
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise Refused(f"record {name} is compressed, which torch does not do")
        if entry.file_size > limit:
            raise Refused(f"record {name} has {entry.file_size} bytes; at most {limit} make sense")
        try:
            return self.zip.read(entry)
        except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, NotImplementedError, struct.error) as fault:
            raise Refused(f"damaged or cut off: record {name}: {fault}") from None

    @functools.lru_cache(maxsize=1)  # tensors may share a storage
    def storage(self, key):
        return self.read("data/" + key, LARGEST_STORAGE)


def open_archive(path, file):
    """Knows the other files that people try."""
    head = file.read(512)
    file.seek(0)
    if head[:4] == b"PK\x03\x04":
        return Archive(file)
    if head[257:262] == b"ustar" or head[:14] == bytes.fromhex("80028a0a6cfc9c46f9206aa85019"):
        raise Refused("in the format of torch before 1.6: load it there and save it again with a newer torch")
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < os.path.getsize(path):
        raise Refused("a safetensors file already")
    raise Refused("not a zip file, so not a checkpoint that torch 1.6 or newer wrote" + ("" if head else ": it is empty"))


# --- numbers ----------------------------------------------------------------------------------------------------------


def decode(data, kind, order):
    """Bytes -> a sequence of numbers (FP32 values exactly; FP64 as they are)."""
    _, letter = KINDS[kind]
    if letter == "bf16":
        halves = array.array("H", data)
        if order != sys.byteorder:
            halves.byteswap()
        return array.array("f", array.array("I", [h << 16 for h in halves]).tobytes())
    count = len(data) // struct.calcsize(letter)
    return struct.unpack((">" if order == "big" else "<") + f"{count}{letter}", data)


def is_contiguous(shape, strides):
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def positions(offset, shape, strides):
    """The storage positions of a tensor's elements in row-major order."""
    places = [offset]
    for extent, stride in zip(shape, strides):
        places = [place + i * stride for place in places for i in range(extent)]
    return places


def numbers_of(archive, name, tensor):
    """A weight's elements, row-major."""
    storage = tensor.storage
    if KINDS[storage.kind] is None:
        raise Refused(f"weight {name} is made of {storage.kind}, not of floating-point numbers")
    size = KINDS[storage.kind][0]
    data = archive.storage(storage.key)
    if len(data) < storage.count * size:
        raise Refused(f"damaged: record data/{storage.key} has {len(data)} bytes for {storage.count} elements of {size}")
    if is_contiguous(tensor.shape, tensor.strides):
        begin = tensor.offset * size
        values = decode(data[begin : begin + math.prod(tensor.shape) * size], storage.kind, archive.order)
    else:
        everything = decode(data[: storage.count * size], storage.kind, archive.order)
        values = [everything[place] for place in positions(tensor.offset, tensor.shape, tensor.strides)]
    if not all(map(math.isfinite, values)):
        raise Refused(f"weight {name} has a value that is infinite or not a number")
    return values


def encode(name, values, letter):
    try:
        data = struct.pack(f"<{len(values)}{letter}", *values)
    except OverflowError:
        limit = "65504, the largest FP16: use --fp32" if letter == "e" else "the largest FP32"
        raise Refused(f"weight {name} has a value beyond {limit}") from None
    return data


# --- the conversion ---------------------------------------------------------------------------------------------------


def find_weights(checkpoint):
    """The weights' descriptions by the public code's names, and how many other entries were left out."""
    if not isinstance(checkpoint, dict):
        raise Refused("it holds no dictionary, so no state_dict")
    state = checkpoint.get("state_dict", checkpoint)
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        keys = ", ".join(sorted(str(key)[:40] for key in checkpoint if isinstance(key, str))[:12])
        raise Refused(f"it has no state_dict of tensors; its entries: {keys or 'none'}")
    state = {key: value for key, value in state.items() if isinstance(key, str)}
    inside = {key[len("model."):]: value for key, value in state.items() if key.startswith("model.")}
    weights = inside or state
    return weights, len(state) - len(weights)


def list_of(names):
    names = sorted(names)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def faults(weights, expected):
    """What keeps these from being the expected weights: a list of texts."""
    found = []
    missing = [name for name in expected if name not in weights]
    if missing:
        found.append(f"{len(missing)} of {len(expected)} weights are missing: {list_of(missing)}")
    strange = [name[:120] for name in weights if name not in expected]
    if strange:
        found.append(f"{len(strange)} are not LocoTrack's: {list_of(strange)}")
    for name, shape in expected.items():
        weight = weights.get(name)
        if isinstance(weight, Tensor):
            if weight.shape != shape:
                found.append(f"{name} has the shape {list(weight.shape)[:8]}, not {list(shape)}")
        elif name in weights:
            what = weight.what if isinstance(weight, Placeholder) else type(weight).__name__
            found.append(f"{name} is not a tensor but {what}")
    return found


def recognise(weights):
    """'small' or 'base' and the expected shapes; refuses weights that are neither."""
    sizes = {size: model_weights(size) for size in ("small", "base")}
    wrong = {size: faults(weights, expected) for size, expected in sizes.items()}

    def distance(size):
        expected = sizes[size]
        return sum(not (isinstance(weights.get(n), Tensor) and weights[n].shape == s) for n, s in expected.items())

    nearest = min(sizes, key=distance)
    if wrong[nearest]:
        more = [f"and {len(wrong[nearest]) - 12} more faults"] if len(wrong[nearest]) > 12 else []
        text = "\n  ".join(wrong[nearest][:12] + more)
        raise Refused(f"not the weights of LocoTrack small or base; compared with {nearest}:\n  {text}")
    return nearest, sizes[nearest]


def write_safetensors(path, tensors, letter, metadata):
    """`tensors`: name -> (shape, bytes). Written under a temporary name, then renamed: never half a file."""
    header, begin = {"__metadata__": metadata}, 0
    for name in sorted(tensors):
        shape, data = tensors[name]
        header[name] = {"dtype": {"e": "F16", "f": "F32"}[letter], "shape": list(shape),
                        "data_offsets": [begin, begin + len(data)]}  # fmt: skip
        begin += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path) or ".", prefix=".convert-", delete=False) as file:
        try:
            file.write(struct.pack("<Q", len(text)) + text)
            for name in sorted(tensors):
                file.write(tensors[name][1])
            file.flush()
            os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(file.name, 0o666 & ~umask)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def convert(source, target, letter):
    """Converts one checkpoint; returns a line about it. Raises Refused."""
    with open(source, "rb") as file:
        archive = open_archive(source, file)
        weights, others = find_weights(Machine().run(archive.read("data.pkl", LARGEST_PICKLE)))
        size, expected = recognise(weights)
        tensors = {
            name: (shape, encode(name, numbers_of(archive, name, weights[name]), letter)) for name, shape in expected.items()
        }
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    precision = {"e": "fp16", "f": "fp32"}[letter]
    write_safetensors(
        target, tensors, letter, {"format": "pt", "model": f"LocoTrack {size}", "precision": precision, "source_sha256": digest}
    )
    count = sum(math.prod(shape) for shape in expected.values())
    left_out = f"; {others} entries beside the model left out" if others else ""
    return f"{target}: LocoTrack {size}, {len(tensors)} weights, {count:,} parameters, {precision}{left_out}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a checkpoint file (.ckpt, .pth)")
    parser.add_argument("-o", "--output", help="default: the checkpoint's name with the ending .safetensors")
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--fp32", dest="letter", action="store_const", const="f", help="keep full precision (the default)")
    precision.add_argument("--fp16", dest="letter", action="store_const", const="e", help="half the size; rounded once")
    parser.set_defaults(letter="f")
    options = parser.parse_args()
    target = options.output or os.path.splitext(options.checkpoint)[0] + ".safetensors"
    try:
        print(convert(options.checkpoint, target, options.letter))
    except (Refused, OSError) as fault:
        text = fault.strerror or fault if isinstance(fault, OSError) else fault
        name = getattr(fault, "filename", None) or options.checkpoint
        sys.exit(f"convert_checkpoint: {name}: {text}")


if __name__ == "__main__":
    main()
