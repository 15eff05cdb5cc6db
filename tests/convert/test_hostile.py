#!/usr/bin/python3
"""Checkpoints that lie: none runs anything, none ends in a traceback, none leaves a file. Standard library only."""
import os
import pickle
import random
import struct
import tarfile
import unittest
import zipfile

from checkpoints import (SOURCE, Call, Folder, Global, Stand, Stored, assemble, convert, converter, pickled, tensor,
                         whole_model, write_archive)  # fmt: skip


class Baseline(Folder):
    def test_the_honest_checkpoint_converts(self):
        """What the hostile ones are variations of."""
        state, records = whole_model()
        write_archive(self.checkpoint, pickled({"epoch": 3, "state_dict": state}), records)
        tensors, metadata = self.assertConverts()
        self.assertEqual(len(tensors), 135)
        self.assertEqual(metadata["model"], "LocoTrack small")
        for (name, (dtype, shape, data)), (_, given) in zip(
            sorted(tensors.items()), (r for _, r in sorted(zip(state, records)))
        ):
            self.assertEqual((dtype, shape, data), ("F32", converter.model_weights("small")[name], given))

    def test_help_and_usage(self):
        self.assertIn("--fp16", convert("--help").stdout)
        self.assertEqual(convert().returncode, 2)
        self.assertEqual(convert("--fp16", "--fp32", "x").returncode, 2)
        process = convert(self.folder / "missing.ckpt")
        self.assertEqual((process.returncode, process.stderr.count("\n")), (1, 1))
        self.assertIn("No such file", process.stderr)


class Execution(Folder):
    """Each of these would create `marker` if it were unpickled the usual way; the first test proves that."""

    def setUp(self):
        super().setUp()
        self.marker = self.folder / "marker"
        self.command = f"touch {self.marker}"
        self.state, self.records = whole_model()

    def write(self, pickled_bytes, records=()):
        write_archive(self.checkpoint, pickled_bytes, records)

    def tearDown(self):
        self.assertFalse(self.marker.exists(), "the pickle was executed")

    def test_the_attack_is_real(self):
        pickle.loads(pickle.dumps(Stand(os.system, self.command)))
        self.assertTrue(self.marker.exists())
        self.marker.unlink()

    def test_reduce(self):
        for protocol in range(6):
            self.write(pickle.dumps({"state_dict": {}, "x": Stand(os.system, self.command)}, protocol))
            self.assertRefused("would run", "system")
            self.write(pickle.dumps({"state_dict": {}, "x": Stand(eval, f"__import__('os').system({self.command!r})")}, protocol))
            self.assertRefused("would run", "eval")

    def test_beside_a_good_model(self):
        self.write(pickled({"state_dict": self.state, "callbacks": Call("posix system", self.command)}))
        self.assertRefused("would run posix.system")

    def test_getattr_chain(self):
        """What honest schedulers do too (a bound method): it stays a placeholder and is left out."""
        reach = Call("builtins getattr", Call("builtins __import__", "os"), "system")
        self.write(pickled({"state_dict": self.state, "x": reach}))
        self.assertRefused("__import__")
        self.write(pickled({"state_dict": self.state, "x": Call("builtins getattr", Global("torch.optim X"), "step")}), self.records)
        self.assertConverts()

    def test_other_instructions(self):
        touch = assemble(self.command)
        for attack in (
            b"(" + touch + b"ios\nsystem\n",  # INST
            b"(cos\nsystem\n" + touch + b"o",  # OBJ
            b"\x8c\x02os\x8c\x06system\x93" + touch + b"\x85R",  # STACK_GLOBAL
            b"cos\nsystem\n" + touch + b"\x85\x81",  # NEWOBJ
            b"cos\nsystem\n" + touch + b"\x85}\x92",  # NEWOBJ_EX
            b"cos\nsystem\n" + touch + b"b",  # BUILD
            b"cos.path\nos.system\n" + touch + b"\x85R",
        ):
            self.write(b"\x80\x04" + attack + b".")
            self.assertRefused("would run")

    def test_build_with_a_state_that_calls(self):
        """Classes whose __setstate__ or attributes do something: there is no class, so nothing does."""
        self.write(b"\x80\x02cnumpy\nndarray\n(tR}(" + assemble("__setstate__") + assemble(Global("builtins print")) + b"ub.")
        self.assertRefused("no dictionary")

    def test_extension_registry_and_unknown_instructions(self):
        for attack in (b"\x82\x01", b"\x83\x01\x00", b"\x84\x01\x00\x00\x00", b"\x97", b"P1\n"):
            self.write(b"\x80\x02" + attack + b".")
            self.assertRefused("which torch does not write")
        self.write(b"\x80\x02\xfe.")
        self.assertRefused("damaged")

    def test_unknown_names_are_placeholders(self):
        state = dict(self.state)
        self.write(pickled({"state_dict": state, "cfg": Call("my.training Config", 1), "n": Global("no.such thing")}), self.records)
        self.assertConverts()
        state["model.cost_conv.bias"] = Call("my.training Lazy", 1)
        self.write(pickled({"state_dict": state}))
        self.output.unlink()
        self.assertRefused("cost_conv.bias is not a tensor but my.training.Lazy")


class Lies(Folder):
    def setUp(self):
        super().setUp()
        self.state, self.records = whole_model()

    def refuse(self, weight, *words):
        state = dict(self.state)
        state["model.cost_conv.weight"] = weight
        write_archive(self.checkpoint, pickled({"state_dict": state}), [("data/999", bytes(72))])
        self.assertRefused(*words)

    def test_sizes(self):
        shape, strides = (1, 2, 3, 3), (18, 9, 3, 1)
        good = tensor("FloatStorage", "999", 18, 0, shape, strides)
        write_archive(self.checkpoint, pickled({"state_dict": {**self.state, "model.cost_conv.weight": good}}),
                      [*self.records, ("data/999", bytes(72))])  # fmt: skip
        self.assertConverts()
        self.output.unlink()
        for count, offset, shape, strides, word in (
            (18, 1, shape, strides, "reaches element 18"),
            (19, 1, shape, strides, "has 72 bytes"),
            (17, 0, shape, strides, "reaches element 17"),
            (2**62, 0, shape, strides, "has 72 bytes"),
            (18, -1, shape, strides, "whole numbers"),
            (18, 0, shape, (18, 9, 3, -1), "whole numbers"),
            (18, 0, shape, (18, 9, 3, 2**61), "reaches element"),
            (18, 0, (1, 2, 3, 2**40), strides, "reaches element"),
            (18, 0, (2**62, 2**62, 0, 9), strides, "has the shape"),
            (18, 0, (10**5000, 0), (1, 1), "whole numbers"),
            (18, 0, (1, 2, 3), strides, "whole numbers"),
            (18, 0, (1, 2, 9), (18, 9, 1), "has the shape [1, 2, 9], not [1, 2, 3, 3]"),
            (18, True, shape, strides, "whole numbers"),
            (-1, 0, shape, strides, "no sane size"),
            (1.5, 0, shape, strides, "no sane size"),
            ("18", 0, shape, strides, "no sane size"),
        ):
            with self.subTest(count=count, offset=offset, expected=word):
                self.refuse(tensor("FloatStorage", "999", count, offset, shape, strides), word)

    def test_storage_names(self):
        for key in ("../../../etc/passwd", "/etc/passwd", "0/../1", "", "\u0661", "1\n", 7, None, ("1",)):
            with self.subTest(key=key):
                self.refuse(tensor("FloatStorage", key, 18, 0, (1, 2, 3, 3), (18, 9, 3, 1)), "not a number")
        self.refuse(tensor("FloatStorage", "12345", 18, 0, (1, 2, 3, 3), (18, 9, 3, 1)), "record data/12345 is missing")

    def test_kinds(self):
        for kind, word in (("LongStorage", "floating-point"), ("ByteStorage", "floating-point"), ("EvilStorage", "unknown kind")):
            self.refuse(tensor(kind, "999", 9, 0, (1, 2, 3, 3), (0, 0, 3, 1)), word)

    def test_not_weights(self):
        for value in (1, "text", None, [1], {"a": 1}, Stored("FloatStorage", "999", 18)):
            self.refuse(value, "cost_conv.weight is not a tensor")

    def test_negated_and_conjugated_tensors(self):
        good = tensor("FloatStorage", "999", 18, 0, (1, 2, 3, 3), (18, 9, 3, 1))
        good.arguments += ({"neg": True},)
        self.refuse(good, "unusual kind")

    def test_names_and_shapes(self):
        state = dict(self.state)
        del state["model.occ_linear.bias"]
        state["model.extra.weight"] = tensor("FloatStorage", "0", 1, 0, (1,), (1,))
        write_archive(self.checkpoint, pickled({"state_dict": state}), self.records)
        self.assertRefused("1 of 135 weights are missing: occ_linear.bias", "not LocoTrack's: extra.weight")

    def test_non_finite(self):
        for value in (float("nan"), float("inf"), float("-inf")):
            records = [(n, struct.pack("<f", value) if len(d) == 4 else d) for n, d in self.records]
            write_archive(self.checkpoint, pickled({"state_dict": self.state}), records)
            self.assertRefused("cost_conv.bias", "infinite or not a number")

    def test_other_dictionaries(self):
        for value, word in (({}, "no state_dict"), ({"weights": 1, "epoch": 2}, "epoch, weights"), ([], "no dictionary"), (None, "no dict"),
                            ({"state_dict": 5}, "no state_dict"), ({"state_dict": {"model.x": 1}}, "no state_dict")):  # fmt: skip
            write_archive(self.checkpoint, pickled(value))
            self.assertRefused(word)


class Bombs(Folder):
    def test_memo(self):
        write_archive(self.checkpoint, b"\x80\x02}r\xff\xff\xff\x7fj\xff\xff\xff\x7f.")
        self.assertRefused("no state_dict")

    def test_nested_keys(self):
        """A key of a million nested tuples: hashing it would overflow the interpreter's stack."""
        for attack in (b"}" + b")" + b"\x85" * 1_000_000 + b"Ns", b"(" + b")" + b"\x85" * 1_000_000 + b"\x91"):
            write_archive(self.checkpoint, b"\x80\x04" + attack + b".")
            self.assertRefused()

    def test_endless_storages_and_strings(self):
        for attack in (b"B\xff\xff\xff\x7fx", b"\x8e" + b"\xff" * 7 + b"\x7f", b"\x8a\xff", b"\x8b\xff\xff\xff\x7f", b"I" + b"9" * 100_000 + b"\n"):
            write_archive(self.checkpoint, b"\x80\x02" + attack + b".")
            self.assertRefused("damaged")

    def test_stack_abuse(self):
        for attack in (b"", b"0", b"(", b"t", b"a", b"((s", b"R", b"\x85", b"(0.", b"}(u(b", b"h\x05", b"1", b"(2", b"}NNs)b", b"(((ooo", b"Q", b"NQ"):
            write_archive(self.checkpoint, b"\x80\x02" + attack + b".")
            self.assertRefused()

    def test_compressed(self):
        state, records = whole_model()
        bomb = pickled({"state_dict": state}) + bytes(200 << 20)
        write_archive(self.checkpoint, bomb, records[:1], compression=zipfile.ZIP_DEFLATED)
        self.assertLess(self.checkpoint.stat().st_size, 1 << 20)
        self.assertRefused("compressed")

    def test_large_pickle(self):
        with open(self.checkpoint, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            with archive.open(zipfile.ZipInfo("a/data.pkl"), "w", force_zip64=True) as record:
                for _ in range(65):
                    record.write(bytes(1 << 20))
        self.assertRefused("at most 67108864 make sense")


class Files(Folder):
    def test_not_checkpoints(self):
        for data, word in ((b"", "empty"), (b"hello", "not a zip"), (bytes(1000), "not a zip"), (b"PK\x03\x04", "damaged or cut off"),
                           (bytes.fromhex("80028a0a6cfc9c46f9206aa85019") + b"\x2e", "before 1.6")):  # fmt: skip
            self.checkpoint.write_bytes(data)
            self.assertRefused(word)
        with tarfile.open(self.checkpoint, "w") as tar:
            tar.add(__file__, "storages")
        self.assertRefused("before 1.6")
        self.checkpoint.unlink()
        self.checkpoint.symlink_to(SOURCE / "models/tiletrack-small.safetensors")
        self.assertRefused("safetensors file already")

    def test_a_directory(self):
        self.checkpoint.mkdir()
        self.assertRefused("Is a directory")

    def test_other_zip_files(self):
        for names, word in ((["readme"], "no data.pkl"), (["a/data.pkl", "b/data.pkl"], "no data.pkl"), (["data.pkl"], "no data.pkl"),
                            (["a/b/data.pkl"], "no data.pkl"), (["a/data.pkl", "a/constants.pkl"], "TorchScript")):  # fmt: skip
            with zipfile.ZipFile(self.checkpoint, "w") as archive:
                for name in names:
                    archive.writestr(name, b"\x80\x02}.")
            self.assertRefused(word)

    def test_a_record_twice(self):
        state, records = whole_model()
        with self.assertWarns(UserWarning):
            write_archive(self.checkpoint, pickled({"state_dict": state}), [*records, records[0]])
        self.assertRefused("twice")

    def test_byte_order(self):
        state, records = whole_model()
        write_archive(self.checkpoint, pickled({"state_dict": state}), [*records, ("byteorder", b"little")])
        little = self.assertConverts()
        swapped = [(n, struct.pack(f">{len(d) // 4}I", *struct.unpack(f"<{len(d) // 4}I", d))) for n, d in records]
        write_archive(self.checkpoint, pickled({"state_dict": state}), [*swapped, ("byteorder", b"big\n")])
        big = self.assertConverts()
        self.assertEqual(little[0], big[0])
        self.output.unlink()
        write_archive(self.checkpoint, pickled({"state_dict": state}), [*records, ("byteorder", b"middle")])
        self.assertRefused("unknown byte order")

    def test_truncated_and_damaged(self):
        """Cut off at many lengths, and with bytes changed: refused with a text, or (a byte nobody reads) converted whole."""
        state, records = whole_model()
        write_archive(self.checkpoint, pickled({"state_dict": state}), records)
        whole, draw = self.checkpoint.read_bytes(), random.Random(5)
        self.assertConverts()
        expected = self.output.read_bytes()
        for length in sorted({0, 1, 4, 30, len(whole) - 1, len(whole) - 22, *(draw.randrange(len(whole)) for _ in range(20))}):
            self.check_damaged(whole[:length], None)
        pickle_end = whole.index(b"PK\x03\x04", 4)
        for spread, times in ((pickle_end, 60), (len(whole), 15)):
            for _ in range(times):
                data = bytearray(whole)
                for _ in range(draw.choice((1, 1, 3))):
                    data[draw.randrange(spread)] ^= 1 << draw.randrange(8)
                self.check_damaged(data, expected)

    def check_damaged(self, data, same):
        self.checkpoint.write_bytes(data)
        target = self.folder / "damaged.safetensors"
        try:
            converter.convert(self.checkpoint, str(target), "f")
        except converter.Refused:
            self.assertFalse(target.exists())
        else:
            self.assertIsNotNone(same, f"cut off at {len(data)} bytes but converted")
            begin = 8 + struct.unpack("<Q", same[:8])[0]
            self.assertEqual(target.read_bytes()[begin:], same[begin:])
            target.unlink()

    def test_damaged_pickles(self):
        """Bytes of the pickle itself changed, with a right checksum: never anything but a result or a refusal."""
        state, records = whole_model()
        good, draw = pickled({"state_dict": state, "x": [1.5, (2, "y"), {"z": None}]}), random.Random(6)
        refused = 0
        for _ in range(400):
            data = bytearray(good)
            for _ in range(draw.choice((1, 2, 8))):
                data[draw.randrange(len(data))] = draw.randrange(256)
            try:
                weights, _ = converter.find_weights(converter.Machine().run(bytes(data)))
                converter.recognise(weights)
            except converter.Refused:
                refused += 1
        self.assertGreater(refused, 200)


if __name__ == "__main__":
    unittest.main()
