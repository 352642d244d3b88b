"""Compare the reading of a bundle's manifest with msgspec and cattrs.

``python benchmarks/libraries/manifests.py [--tensors N]``, with ``pip install msgspec cattrs``:
both read the manifest's own dataclasses, as strictly as their options have it.

Prints the median time of 15 reads of a manifest of N tensors, after JSON and strictness alone; then
what each says of documents that are damaged in one place. "accepted" is wrong for all of them.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from typing import Any

import cattrs
import msgspec
from cattrs.preconf.json import configure_converter
from timing import median

from narrowpass.bundle.manifest import (
    FileInfo,
    InitializerInfo,
    Manifest,
    MethodInfo,
    TensorInfo,
    ValueInfo,
    WeightsInfo,
)
from narrowpass_ir.data.documents import parse_json


def manifest(tensors: int) -> bytes:
    """Return the text of a manifest with a method and so many tensors."""
    sha256 = hashlib.sha256(b"").hexdigest()
    file = FileInfo("main.onnx", 1000, sha256)
    value = ValueInfo("x", "float", (1, "n", None))
    listed = tuple(InitializerInfo("", f"w{n}", f"w{n}") for n in range(tensors))
    method = MethodInfo("main", file, None, (value,), (value,), listed)
    data = {f"w{n}": TensorInfo("float", (64, 64), 16384, 128 * n, sha256) for n in range(tensors)}
    weights = WeightsInfo("weights.safetensors", 1000, 100, sha256)
    return Manifest("fold", {"p": "1"}, (method,), weights, data, (), (), ()).to_json().encode()


def damaged(data: bytes) -> dict[str, bytes]:
    """Return documents, each with one thing wrong, by what that is."""

    def edit(change: Callable[[dict[str, Any]], object]) -> bytes:
        raw = json.loads(data)
        change(raw)
        return json.dumps(raw).encode()

    return {
        "a text for a number": edit(lambda raw: raw["tensors"]["w0"].update(offset="0")),
        "a number below 0": edit(lambda raw: raw["tensors"]["w0"].update(bytes=-1)),
        "true for a number": edit(lambda raw: raw["tensors"]["w0"].update(bytes=True)),
        "1.5 for a number": edit(lambda raw: raw["tensors"]["w0"].update(bytes=1.5)),
        "a field is missing": edit(lambda raw: raw["methods"][0]["file"].pop("path")),
        "a field too much": edit(lambda raw: raw["methods"][0]["file"].update(size=1)),
        "a hash that is none": edit(lambda raw: raw["weights"].update(header_sha256="0")),
        "a list for an object": edit(lambda raw: raw.update(weights=[])),
        "a key twice": data.replace(b'"pipeline"', b'"pipeline": "a",\n "pipeline"', 1),
        "half of a surrogate": data.replace(b'"fold"', rb'"\ud800"', 1),
    }


def by_msgspec(data: bytes) -> Manifest:
    """Read with msgspec: it decodes into dataclasses without a step between."""
    return msgspec.json.decode(data, type=Manifest, strict=True)


@functools.cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
    configure_converter(converter)
    return converter


def by_cattrs(data: bytes) -> Manifest:
    """Read with cattrs, after the JSON module of Python."""
    raw = json.loads(data)
    for name in ("format", "version", "sha256"):
        del raw[name]
    return _converter().structure(raw, Manifest)


READERS = {"narrowpass": Manifest.from_json, "msgspec": by_msgspec, "cattrs": by_cattrs}


def answer(read: Callable[[bytes], object], data: bytes) -> str:
    """Return what a reader says of a document, in one line."""
    try:
        read(data)
    except cattrs.BaseValidationError as error:
        return "; ".join(cattrs.transform_error(error, path="manifest"))
    except Exception as error:  # noqa: BLE001  # whatever it says
        return f"{type(error).__name__}: {error}"
    return "accepted"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tensors", type=int, default=2000)
    data = manifest(parser.parse_args().tensors)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("msgspec", "cattrs")]
    print(f"a manifest of {len(data) / 1e6:.2f} MB, {', '.join(versions)}\n")
    print(f"json.loads alone: {median(lambda: json.loads(data)):.1f} ms")
    print(f"parse_json alone: {median(lambda: parse_json(data)):.1f} ms")
    for name, read in READERS.items():
        same = read(data) == Manifest.from_json(data)
        print(f"{name}: {median(lambda read=read: read(data)):.1f} ms, the same: {same}")
    for what, text in damaged(manifest(2)).items():
        print(f"\n{what}")
        for name, read in READERS.items():
            print(f"  {name}: {answer(read, text)}")


if __name__ == "__main__":
    main()
