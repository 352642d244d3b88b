"""``manifest.json``: what a bundle holds, as frozen dataclasses, strictly read."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from narrowpass.errors import BundleError
from narrowpass_ir.data.documents import parse_json
from narrowpass_ir.data.records import Matching, UnfitError, read_record, shown
from narrowpass_ir.siblings import MARKER

FORMAT = "narrowpass bundle"
"""The field ``format``, which distinguishes our manifest from any other ``manifest.json``."""

VERSION = 1
"""The format version that this module writes, and the only one that it reads."""

MANIFEST = MARKER
WEIGHTS = "weights.safetensors"
REPORTS = "reports"

Sha256 = Annotated[str, Matching("[0-9a-f]{64}", "a SHA-256")]


@dataclass(frozen=True)
class ValueInfo:
    """An input or output of a method.

    Attributes:
        name: as in the model.
        dtype: as ONNX names it in lower case: ``float``, ``int64``, ``sequence(float)``; None
            where the model does not say.
        shape: a number, a name, or None (unknown) for each dimension; None for unknown rank.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class InitializerInfo:
    """Which tensor of the data map an initializer is.

    Attributes:
        scope: the graph that it belongs to: empty for the main one, else the way to it, such as
            ``y.then_branch/`` in the node that computes ``y``. Graphs may use a name again.
        name: as in the model.
        key: its data key.
    """

    scope: str
    name: str
    key: str


@dataclass(frozen=True)
class FileInfo:
    """A file of the bundle: its path inside the folder, length and SHA-256."""

    path: str
    bytes: int
    sha256: Sha256


@dataclass(frozen=True)
class MethodInfo:
    """A method and its ONNX file.

    Attributes:
        name: the method's name.
        file: its ONNX file.
        checker: what ``onnx.checker`` says against the model that the method was built from, and
            so may say against the file too; None where it says nothing.
        inputs: of the model, also those that have a default.
        outputs: of the model.
        initializers: those that are in the data map.
    """

    name: str
    file: FileInfo
    checker: str | None
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    initializers: tuple[InitializerInfo, ...]


@dataclass(frozen=True)
class StateInfo:
    """A pair of an input and an output whose value a session keeps between runs.

    Attributes:
        input: name of the input.
        output: name of the output.
        axis: the axis that each run appends rows to; None where the shape stays.
    """

    input: str
    output: str
    axis: int | None


@dataclass(frozen=True)
class WeightsInfo:
    """The weights file: its length, and its header (with the length field), which is hashed."""

    path: str
    bytes: int
    header_bytes: int
    header_sha256: Sha256


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the data map.

    Attributes:
        dtype: the ONNX element type in lower case, also where the weights file says ``U8``.
        shape: as in ONNX.
        bytes: its length in the weights file.
        offset: of its first byte, from the start of the weights file.
        sha256: of its bytes: the content hash that deduplication and caches stand on.
    """

    dtype: str
    shape: tuple[int, ...]
    bytes: int
    offset: int
    sha256: Sha256


@dataclass(frozen=True)
class Manifest:
    """All that a bundle holds.

    Attributes:
        pipeline: the text of the pipeline that built it.
        plugins: version by distribution, of the plugins whose passes ran, or candidates were used.
        methods: in the order of the bundle.
        weights: the weights file.
        tensors: by data key.
        reports: the files of reports, in the order of the passes.
        states: what sessions keep between runs; empty in bundles written before there were any.
        assets: other files of the folder; empty in bundles written before there were any.
    """

    pipeline: str
    plugins: Mapping[str, str]
    methods: tuple[MethodInfo, ...]
    weights: WeightsInfo
    tensors: Mapping[str, TensorInfo]
    reports: tuple[FileInfo, ...]
    states: tuple[StateInfo, ...]
    assets: tuple[FileInfo, ...]

    def to_json(self) -> str:
        """Return the text of ``manifest.json``: the same text for the same manifest.

        Its own SHA-256, taken without that field, is in the field ``sha256``.
        """
        fields = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        fields["sha256"] = hashlib.sha256(_dump(fields).encode()).hexdigest()
        return _dump(fields)

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Read ``manifest.json``.

        Raises:
            BundleError: not ours, of an unknown version, or damaged. The message names the
                field, not the file.
        """
        try:
            raw = parse_json(data)
        except ValueError as error:
            raise BundleError(f"it is not the manifest of a bundle: {error}") from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise BundleError("it is not the manifest of a bundle")
        version = raw.pop("version", None)
        if version != VERSION or type(version) is not int:
            raise BundleError(
                f"it is of format version {shown(version)}, and this narrowpass reads only "
                f"{VERSION}; build the bundle again, or use the narrowpass that wrote it"
            )
        del raw["format"]
        # Not compared: a manifest that somebody edited is for `verify` to find.
        raw.pop("sha256", None)
        raw.setdefault("states", [])
        raw.setdefault("assets", [])
        try:
            return read_record(cls, raw)
        except UnfitError as error:
            raise BundleError(f"the manifest{error.way}{error}") from None


def is_manifest(data: bytes) -> bool:
    """Return whether a ``manifest.json`` was written by narrowpass, of whatever version."""
    return _parse(data) is not None


def _dump(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        raw = parse_json(data)
    except ValueError:
        return None
    return raw if isinstance(raw, dict) and raw.get("format") == FORMAT else None
