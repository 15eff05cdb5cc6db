#!/usr/bin/python3
"""Checkpoints that a real torch wrote (Debian's python3-torch): every weight comes out bit for bit, whatever the dtype, the
strides or the company it was saved in. Skips where torch is not installed."""
import argparse
import collections
import hashlib
import pathlib
import sys
import unittest
import zipfile

try:
    import torch
except ImportError:
    print("skipped: torch is not installed for this Python (Debian: python3-torch)")
    sys.exit(77)

from checkpoints import SOURCE, Folder, converter, read_safetensors

# Parameters, and SHA-256 of the lines "name [shape]\n" sorted by bytes, of the public code's state_dict.
PUBLIC = {
    "small": (8_236_133, "66b3742dafd017c9c3ff2d1a3bd6ee9b4582a10f87a5b7d245d8ebef2381bc55"),
    "base": (11_519_717, "4647a1cbf03a93fd3053366ce0cea81cf67cbe4fe19c0542d161a7f36f19c718"),
}


def random_weights(size, dtype=torch.float32):
    torch.manual_seed(7)
    return {name: torch.randn(shape).to(dtype) for name, shape in converter.model_weights(size).items()}


def prefixed(weights):
    return collections.OrderedDict(("model." + name, value) for name, value in weights.items())


def payload(tensor, dtype):
    return tensor.detach().to(dtype).contiguous().numpy().tobytes()


class Names(unittest.TestCase):
    def test_they_are_the_public_codes(self):
        for size, (parameters, digest) in PUBLIC.items():
            shapes = converter.model_weights(size)
            lines = sorted(f"{name} {list(shape)}\n" for name, shape in shapes.items())
            self.assertEqual(hashlib.sha256("".join(lines).encode()).hexdigest(), digest, size)
            self.assertEqual(sum(torch.Size(shape).numel() for shape in shapes.values()), parameters)

    def test_they_are_the_committed_weights(self):
        tensors, _ = read_safetensors(SOURCE / "models/tiletrack-small.safetensors")
        self.assertEqual({n: t[1] for n, t in tensors.items()}, converter.model_weights("small"))


class Values(Folder):
    def save(self, state, **options):
        torch.save({"state_dict": state}, self.checkpoint, **options)

    def check(self, weights, *options, dtype=torch.float32):
        tensors, metadata = self.assertConverts(*options)
        self.assertEqual(set(tensors), set(weights))
        for name, weight in weights.items():
            kind, shape, data = tensors[name]
            self.assertEqual((kind, shape), ({torch.float32: "F32", torch.float16: "F16"}[dtype], tuple(weight.shape)))
            self.assertEqual(data, payload(weight, dtype), name)
        return metadata

    def test_small_and_base(self):
        for size in PUBLIC:
            weights = random_weights(size)
            self.save(prefixed(weights))
            metadata = self.check(weights)
            self.assertEqual(metadata["model"], f"LocoTrack {size}")
            self.assertEqual(metadata["source_sha256"], hashlib.sha256(self.checkpoint.read_bytes()).hexdigest())

    def test_fp16(self):
        weights = random_weights("small")
        self.save(prefixed(weights))
        self.check(weights, "--fp16", dtype=torch.float16)

    def test_fp16_has_limits(self):
        weights = random_weights("small")
        weights["occ_linear.bias"][1] = 65520.0
        self.save(prefixed(weights))
        self.check(weights)
        self.output.unlink()
        with self.assertRaisesRegex(converter.Refused, "occ_linear.bias has a value beyond 65504.*--fp32"):
            converter.convert(self.checkpoint, str(self.output), "e")
        self.assertFalse(self.output.exists())

    def test_dtypes(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            weights = random_weights("small", dtype)
            self.save(prefixed(weights))
            self.check(weights)

    def test_strides_offsets_and_shared_storages(self):
        weights = random_weights("small")
        flat = torch.cat([value.reshape(-1) for value in weights.values()])
        begin = 0
        for name, value in weights.items():  # all views of one storage
            weights[name] = flat[begin : begin + value.numel()].view(value.shape)
            begin += value.numel()
        weights["cost_conv.weight"] = torch.randn(3, 3, 2, 1).permute(3, 2, 0, 1)
        weights["occ_linear.weight"] = torch.randn(7, 20)[2:4, 3:15:2]
        weights["occ_linear.bias"] = torch.randn(1).expand(2)
        name = "torch_pips_mixer.input_proj.weight"
        weights[name] = torch.randn(854, 256).t()
        conv = "resnet_torch.block_groups.1.blocks.0.conv_0.weight"
        weights[conv] = weights[conv].contiguous(memory_format=torch.channels_last)
        self.assertFalse(any(weights[n].is_contiguous() for n in (name, conv, "occ_linear.weight", "occ_linear.bias")))
        self.save(prefixed(weights))
        self.check(weights)

    def test_parameters_without_prefix_and_without_state_dict(self):
        weights = {name: torch.nn.Parameter(value) for name, value in random_weights("small").items()}
        torch.save(weights, self.checkpoint)
        self.check(weights)
        torch.save(weights, self.checkpoint, pickle_protocol=4)
        self.check(weights)

    def test_what_a_training_program_saves_beside_them(self):
        weights = random_weights("small")
        parameter = torch.nn.Parameter(torch.randn(3))
        optimizer = torch.optim.AdamW([parameter])
        parameter.grad = torch.ones(3)
        optimizer.step()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=10)
        state = prefixed(weights)
        state._metadata = collections.OrderedDict(version=1)
        state["loss.steps"] = torch.tensor(12)  # int64, outside the model
        torch.save({
            "epoch": 9, "global_step": 10**12, "pytorch-lightning_version": "2.0.3", "state_dict": state,
            "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [scheduler.state_dict()],
            "callbacks": {"Checkpoint{'monitor': None}": {"best": pathlib.PurePosixPath("x"), "k": torch.tensor(float("inf"))}},
            "hyper_parameters": argparse.Namespace(lr=1e-3, sizes=(1, 2), names={"a", "b"}, nothing=None, flag=True,
                                                   numbers=[-1, 300, 70000, 2**40, -(2**70), 1.5], text="\u00e9" * 300),
            "rng": torch.get_rng_state(), "counts": collections.Counter("abca"), "kind": torch.float32, "size": torch.Size([1, 2]),
        }, self.checkpoint)  # fmt: skip
        self.check(weights)

    def test_missing_wrong_and_more(self):
        weights = random_weights("base")
        del weights["cmdtop.2.conv.2.1.bias"]
        weights["occ_linear.bias"] = torch.randn(3)
        weights["cost_conv.bias"] = torch.tensor([1])
        weights["head.weight"] = torch.randn(1)
        self.save(prefixed(weights))
        self.assertRefused("compared with base", "1 of 147 weights are missing: cmdtop.2.conv.2.1.bias",
                           "not LocoTrack's: head.weight", "occ_linear.bias has the shape [3], not [2]")  # fmt: skip
        weights = random_weights("small")
        weights["cost_conv.bias"] = torch.tensor([1])
        self.save(prefixed(weights))
        self.assertRefused("weight cost_conv.bias is made of torch.LongStorage")

    def test_other_files_of_torch(self):
        torch.save({"state_dict": prefixed(random_weights("small"))}, self.checkpoint, _use_new_zipfile_serialization=False)
        self.assertRefused("before 1.6")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), self.checkpoint)
        self.assertRefused("TorchScript")
        torch.save(torch.nn.Linear(2, 2), self.checkpoint)
        self.assertRefused("no dictionary")
        torch.save(torch.zeros(3), self.checkpoint)
        self.assertRefused("no dictionary")

    def test_cut_off(self):
        self.save(prefixed(random_weights("small")))
        whole = self.checkpoint.read_bytes()
        with zipfile.ZipFile(self.checkpoint) as archive:
            self.assertTrue(all(e.compress_type == zipfile.ZIP_STORED for e in archive.infolist()))
        for share in (0, 0.001, 0.3, 0.9, 0.9999):
            self.checkpoint.write_bytes(whole[: int(len(whole) * share)])
            self.assertRefused()


if __name__ == "__main__":
    unittest.main()
