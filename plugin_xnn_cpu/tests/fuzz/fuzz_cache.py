"""Mutated files of packed weights and bundles, with right checksums, each by its seed.

``python fuzz_cache.py FOLDER FIRST COUNT`` tries so many seeds in FOLDER, and prints how many were
refused and accepted. The seed that is being tried stands in ``FOLDER/seed``: what crashes the
process is found there. An exception that is no refusal, or a result that is not the right one, ends
the process with the seed in its message.
"""

from __future__ import annotations

import copy
import gc
import hashlib
import json
import mmap
import random
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cache_kit import INPUT, compiled, network, path_of, result, saved

from narrowpass import Bundle
from narrowpass.errors import BundleError, NarrowpassError
from narrowpass_ir.io import MappedTensor
from narrowpass_planning.weights.file import HEADER, PackedFile, UnusableError, write
from narrowpass_planning.weights.weight import Blocks, Weight
from narrowpass_xnn_cpu.native.own import block_quantized, fp32
from narrowpass_xnn_cpu.native.packer import PACKER
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache
from narrowpass_xnn_cpu.native.xnnpack import convolution as xnn_convolution
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul

NUMBERS = (
    *(-(2**63), -(2**31), -128, -1, 0, 1, 2, 3, 16, 63, 64, 65, 127, 128, 129, 256, 640, 4096),
    *(2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**47, 2**62, 2**63, 2**64 - 128, 2**64, 10**40),
)
ODD = (None, True, False, 1.5, 1e308, "", "x", "\0", "../x", "\u00fc", [], {}, [[]], "0" * 64)
TEXTS = (
    *("NaN", "Infinity", "1e999", '"\\ud800"', ""),
    *("[" * 300 + "]" * 300, "[" * 90000, "9" * 5000),
)
WHOLE_EVERY = 40
"""Of the accepted files of packed weights, so many are loaded by a program once."""


def mutated(value: Any, choice: random.Random) -> Any:
    """Change one place of a JSON document: the document itself, or one within it."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    if not isinstance(value, dict | list):
        return odd(value, choice)
    walk(value)
    if not places:
        return odd(value, choice)
    node, key = choice.choice(places)
    kind = choice.randrange(8)
    if kind == 0:
        del node[key]
    elif kind == 1:
        other, at = choice.choice(places)
        node[key], other[at] = copy.deepcopy(other[at]), copy.deepcopy(node[key])
    elif kind == 2 and isinstance(node, list):
        node.insert(choice.randrange(len(node) + 1), copy.deepcopy(node[key]))
    elif kind == 2:
        node[choice.choice(["", "x", "format", "\u00fc"])] = copy.deepcopy(node[key])
    elif kind == 3:
        node[key] = [node[key]]
    else:
        node[key] = odd(node[key], choice)
    return value


def odd(value: Any, choice: random.Random) -> Any:
    """Return a replacement for a value: a neighbour, a damaged string, or another type."""
    if type(value) is int and choice.random() < 0.8:
        near = value + choice.choice([-128, -64, -1, 1, 64, 128]), value // 2, 2 * value
        return choice.choice([*NUMBERS, *near])
    if isinstance(value, str) and value and choice.random() < 0.6:
        at = choice.randrange(len(value))
        return value[:at] + choice.choice(["", "0", "f", "/", "\0"]) + value[at + 1 :]
    # A copy: what is put into a document may be changed there.
    return copy.deepcopy(choice.choice([*ODD, choice.choice(NUMBERS)]))


def dumped(value: Any, choice: random.Random) -> bytes:
    """Return a document as JSON, sometimes malformed."""
    text = json.dumps(value)
    if choice.random() < 0.06:
        at = choice.randrange(len(text))
        text = text[:at] + choice.choice(TEXTS) + text[at:]
    elif choice.random() < 0.03:
        text = text.replace("{", choice.choice(['{"x": 1, "x": 2, ', "{,", "{" * 5000]), 1)
    return text.encode()


class CacheFuzz:
    """Files of packed weights."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "packed"
        self.bundle = saved(folder / "whole.narrow", main=network())
        program = compiled(self.bundle, self.folder)
        self.right = result(program, INPUT)
        self.place = path_of(self.bundle, self.folder)
        self.loaded = self.place.read_bytes()
        self.operators = _operators()
        cache = WeightsCache()
        with cache.begin() as session:
            kept = [create(session) for create in self.operators]
        self.expected = {(e.name, e.seed, e.fingerprint): bytes_at(e) for e in session.entries()}
        self.file = folder / "file.weights"
        with self.file.open("wb") as file:
            write(file, list(session.entries()), None, PACKER)
        self.whole = self.file.read_bytes()
        del kept

    def run(self, choice: random.Random, counts: Counter[str]) -> None:
        """Try one file."""
        by_program = choice.randrange(WHOLE_EVERY) == 0
        data = self.changed(self.loaded if by_program else self.whole, choice)
        place = self.place if by_program else self.file
        place.unlink(missing_ok=True)
        place.write_bytes(data)
        if by_program:
            program = compiled(self.bundle, self.folder)
            np.testing.assert_array_equal(result(program, INPUT), self.right)
            counts["loaded by a program"] += 1
            return
        try:
            file = PackedFile(place, PACKER)
            damaged = file.damaged()
            file.close()
        except UnusableError:
            counts["cache files refused"] += 1
            return
        if damaged:
            counts["cache files refused"] += 1
            return
        counts["cache files accepted"] += 1
        with WeightsCache().begin() as session:
            session.offer(file.addressed(), file)
            kept = [create(session) for create in self.operators]
        for entry in session.entries():
            if bytes_at(entry) != self.expected[entry.name, entry.seed, entry.fingerprint]:
                raise AssertionError(f"another block was found: {entry}")
        del kept

    def changed(self, whole: bytes, choice: random.Random) -> bytes:
        """Return a file with another index and valid checksums."""
        start, _ = struct.unpack_from("<QQ", whole, 16)
        index = json.loads(whole[start:])
        names = {row[0] for row in index["entries"]}
        payload = bytearray(whole[HEADER:start])
        before = copy.deepcopy(index["entries"])
        for _ in range(choice.choice([1, 1, 2, 3])):
            index = self.structure(index, choice)
        if isinstance(index, dict) and isinstance(index.get("entries"), list):
            _sign(index["entries"], before, names, payload)
        if choice.random() < 0.1:
            payload = payload[: choice.randrange(len(payload) + 1)]
        text = dumped(index, choice)
        where, size = HEADER + len(payload), len(text)
        if choice.random() < 0.05:
            where, size = choice.choice([*NUMBERS, where]) % 2**64, choice.choice([*NUMBERS, size])
        version, header_size = choice.choice([2] * 40 + [0, 1, 3]), choice.choice([128] * 40 + [0])
        digest = hashlib.sha256(text).digest()
        fields = b"NPWCACHE", version, header_size, where, size % 2**64, digest
        header = struct.pack("<8sIIQQ32s32x", *fields)
        return header + hashlib.sha256(header).digest() + bytes(payload) + text

    def structure(self, index: Any, choice: random.Random) -> Any:
        """Change one thing, most often in an entry."""
        rows = index.get("entries") if isinstance(index, dict) else None
        listed = rows if isinstance(rows, list) else []
        rows = [row for row in listed if isinstance(row, list) and len(row) == 6]
        if not rows or choice.random() < 0.2:
            return mutated(index, choice)
        row, at = choice.choice(rows), choice.choice([1, 2, 3, 3, 4, 4, 4, 4])
        row[at] = odd(row[at], choice) if choice.random() < 0.7 else choice.choice(rows)[at]
        return index


def _sign(rows: list[Any], before: list[Any], names: set[str], payload: bytearray) -> None:
    """Sign changed entries with valid checksums, as whoever changes an index can do.

    A block under the name of another one is not signed: no check could detect that.
    """
    offsets = {row[3]: row[0] for row in before}
    for row in rows:
        if not isinstance(row, list) or list(map(type, row)) != [str, int, int, int, int, str]:
            continue
        name, seed, fingerprint, offset, size, _ = row
        own = offsets.get(offset) == name or name not in names
        if not own or not HEADER <= offset <= HEADER + len(payload) - size or size < 0:
            continue
        digest = hashlib.sha256(f"{name} {seed} {fingerprint} {size}\n".encode())
        digest.update(payload[offset - HEADER : offset - HEADER + size])
        row[5] = digest.hexdigest()


def bytes_at(entry: Any) -> bytes:
    """Read a block where it lies."""
    import ctypes

    return ctypes.string_at(entry.address, entry.size)


def _operators() -> list[Callable[[Any], Any]]:
    """Return operators of XNNPACK and of kernels of ours, to look up their packed blocks."""
    rng = np.random.default_rng(3)

    def weight(name: str, *shape: int) -> Weight:
        return Weight.of(rng.standard_normal(shape).astype(np.float32), name)

    matrix, image, bias = weight("a", 24, 8), weight("b", 5, 3, 3, 2), weight("c", 5)
    integers = Weight.of(rng.integers(0, 16, (6, 32)).astype(np.uint8), "d")
    stored = Blocks(integers, weight("e", 6, 2), None, 16, 32, 4)
    return [
        lambda session: xnn_matmul.create(Matmul(matrix, None), session),
        lambda session: xnn_convolution.create(Convolution(image, bias, ConvAttributes()), session),
        lambda session: fp32.CONVOLUTION.create(
            Convolution(image, bias, ConvAttributes()), session
        ),
        lambda session: block_quantized.MATMUL.create(Matmul(stored, None), session),
    ]


class BundleFuzz:
    """Bundles: the manifest, and the header of the weights file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "b.narrow"
        shutil.rmtree(self.path, ignore_errors=True)  # what the last seed of another run left
        bundle = saved(self.path, main=network(), other=network())
        self.right = result(compiled(bundle, cache=False), INPUT)
        self.manifest = json.loads((self.path / "manifest.json").read_bytes())
        self.weights = (self.path / "weights.safetensors").read_bytes()
        split = 8 + int.from_bytes(self.weights[:8], "little")
        self.header, self.payload = json.loads(self.weights[8:split]), self.weights[split:]

    def run(self, choice: random.Random, counts: Counter[str]) -> None:
        """Try one bundle."""
        manifest, weights = copy.deepcopy(self.manifest), b""
        if choice.random() < 0.4:
            header = copy.deepcopy(self.header)
            for _ in range(choice.choice([1, 1, 2])):
                header = mutated(header, choice)
            text = dumped(header, choice)
            size = len(text) if choice.random() < 0.9 else choice.choice(NUMBERS) % 2**64
            weights = size.to_bytes(8, "little") + text + self.payload
            if choice.random() < 0.1:
                weights = weights[: choice.randrange(len(weights))]
            first = weights[: 8 + len(text)]
            manifest["weights"] |= {
                "bytes": len(weights),
                "header_bytes": len(first),
                "header_sha256": hashlib.sha256(first).hexdigest(),
            }
        if not weights or choice.random() < 0.2:
            for _ in range(choice.choice([1, 1, 2, 3])):
                manifest = mutated(manifest, choice)
        (self.path / "manifest.json").write_bytes(dumped(manifest, choice))
        whole = self.path / "weights.safetensors"
        # Never written over: a program of an earlier seed may have it mapped.
        whole.unlink(missing_ok=True)
        whole.write_bytes(weights or self.weights)
        try:
            bundle = Bundle.load(self.path)
            for model in bundle.methods.values():
                for value in model.graph.initializers.values():
                    if isinstance(value.const_value, MappedTensor):
                        value.const_value.checked()
        except NarrowpassError:
            counts["bundles refused"] += 1
            return
        counts["bundles accepted"] += 1
        if choice.randrange(WHOLE_EVERY):
            return
        name = next(iter(bundle.methods))
        try:
            program = compiled(bundle, cache="memory")
        except BundleError:
            return
        np.testing.assert_array_equal(result(program, INPUT, name), self.right)


def main(folder: Path, first: int, count: int) -> None:
    """Try `count` seeds from `first` on."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    with (folder / "seed").open("wb+") as file:
        file.write(bytes(8))
        file.flush()
        seed_now = mmap.mmap(file.fileno(), 8)
        seed_now[:] = first.to_bytes(8, "little")
        kinds = [CacheFuzz(folder), BundleFuzz(folder)]
        counts: Counter[str] = Counter()
        for seed in range(first, first + count):
            seed_now[:] = seed.to_bytes(8, "little")
            try:
                kinds[seed % 2].run(random.Random(seed), counts)
            except BaseException as error:
                raise AssertionError(f"seed {seed}: {error!r}") from error
            if seed % 2000 == 0:
                gc.collect()
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
