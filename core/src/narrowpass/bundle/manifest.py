"""``manifest.json``: what a bundle holds, as frozen dataclasses, strictly read.

The types of the fields say what JSON may hold: ``str``, ``int`` (not negative), other dataclasses,
tuples of one type, mappings from ``str``, and unions of these that the JSON type of a value
decides. Text of a pattern is ``Annotated[str, Matching(...)]``.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from narrowpass.errors import BundleError
from narrowpass_ir.data.documents import parse_json

_T = TypeVar("_T")

FORMAT = "narrowpass bundle"
"""The field ``format``, which distinguishes our manifest from any other ``manifest.json``."""

VERSION = 1
"""The format version that this module writes, and the only one that it reads."""

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
REPORTS = "reports"


@dataclass(frozen=True)
class Matching:
    """Of a text: the whole of it matches a pattern.

    Attributes:
        pattern: a regular expression.
        noun: what such a text is, for messages.
    """

    pattern: str
    noun: str


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
    try:
        raw = parse_json(data)
    except ValueError:
        return False
    return isinstance(raw, dict) and raw.get("format") == FORMAT


def _dump(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


class UnfitError(Exception):
    """A value is not as its type says.

    Attributes:
        way: to the value, such as ``.methods['main'].inputs[2]``.
    """

    way = ""


def read_record(cls: type[_T], raw: Any) -> _T:
    """Return a dataclass from parsed JSON.

    Raises:
        UnfitError: a value of another type, a field that is missing or unknown, or text that does
            not match its pattern.
    """
    found: _T = _reader(typing.cast("Any", cls))(raw)
    return found


def shown(raw: Any) -> str:
    """Return a value as messages show it, cut after 60 characters."""
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


@functools.cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return a function that turns JSON into a value of type `hint`, or raises `UnfitError`."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint, include_extras=True)
        readers = {name: _reader(kind) for name, kind in hints.items()}
        return functools.partial(_read_fields, hint, readers)
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return functools.partial(_read_text, re.compile(arms[1].pattern), arms[1].noun)
    if origin is tuple:
        return functools.partial(_read_list, _reader(arms[0]))
    if origin is Mapping:
        return functools.partial(_read_mapping, _reader(arms[1]))
    if origin in (types.UnionType, typing.Union):
        kinds = [list if typing.get_origin(arm) is tuple else arm for arm in arms]
        return functools.partial(_read_union, dict(zip(kinds, map(_reader, arms), strict=True)))
    return _read_count if hint is int else functools.partial(_read_plain, hint)


def _read_plain(kind: type[_T], raw: Any) -> _T:
    if type(raw) is not kind:
        raise UnfitError(f" is not as the format says: {shown(raw)}")
    return raw


def _read_count(raw: Any) -> int:
    number = _read_plain(int, raw)
    if number < 0:
        raise UnfitError(f" is not as the format says: {shown(raw)}")
    return number


def _read_text(pattern: re.Pattern[str], noun: str, raw: Any) -> str:
    text = _read_plain(str, raw)
    if not pattern.fullmatch(text):
        raise UnfitError(f" is not {noun}: {shown(raw)}")
    return text


def _read_union(readers: Mapping[type, Callable[[Any], Any]], raw: Any) -> Any:
    read = readers.get(type(raw))
    if read is None:
        raise UnfitError(f" is not as the format says: {shown(raw)}")
    return read(raw)


def _read_list(read: Callable[[Any], Any], raw: Any) -> tuple[Any, ...]:
    items: list[Any] = _read_plain(list, raw)
    found: list[Any] = []
    try:
        for item in items:
            found.append(read(item))  # noqa: PERF401  # its length says where an error was
    except UnfitError as error:
        error.way = f"[{len(found)}]{error.way}"
        raise
    return tuple(found)


def _read_mapping(read: Callable[[Any], Any], raw: Any) -> dict[str, Any]:
    items: dict[str, Any] = _read_plain(dict, raw)
    found, key = {}, ""
    try:
        for key, item in items.items():
            found[key] = read(item)
    except UnfitError as error:
        error.way = f"[{key!r}]{error.way}"
        raise
    return found


def _read_fields(cls: type[_T], readers: Mapping[str, Callable[[Any], Any]], raw: Any) -> _T:
    fields: dict[str, Any] = _read_plain(dict, raw)
    values, name = {}, ""
    for name in sorted(readers.keys() - fields.keys()):
        raise UnfitError(f" lacks the field {name!r}")
    for name in sorted(fields.keys() - readers.keys()):
        raise UnfitError(f" has an unknown field {name!r}")
    try:
        for name, read in readers.items():
            values[name] = read(fields[name])
    except UnfitError as error:
        error.way = f".{name}{error.way}"
        raise
    return cls(**values)
