"""Text format of attributes: numbers, strings, tuples, constants by recipe, nested dataclasses."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from narrowpass.errors import UsageError
from narrowpass_planning.weights.weight import Array, Weight

DIGEST = 12
"""Number of hexadecimal digits of a content name that are printed."""


@dataclass(frozen=True, eq=False)
class PrintedWeight(Weight):
    """A constant that was parsed from text, without its elements.

    Attributes:
        stored: storage format in the model, if it differs from the dtype; see `storage_of`.
    """

    stored: str = ""


def _no_elements() -> Array:
    raise UsageError("a lowered plan that was read from text has no elements of constants")


def storage_of(weight: Weight) -> str:
    """Return the storage format of a constant: integers with scales or a narrower float; or ""."""
    if isinstance(weight, PrintedWeight):
        return weight.stored
    if weight.blocks is not None:
        element = weight.blocks.element.replace("int", "uint")
        return f"{element} in blocks of {weight.blocks.size}"
    if weight.quantized is not None:
        axis = "per tensor" if weight.quantized.scale.size == 1 else "per channel"
        return f"{weight.quantized.integers.dtype.name} {axis}"
    if weight.narrow is not None:
        return weight.narrow.dtype.name
    return ""


def text_of(value: object) -> str:
    """Return an attribute as text that `Reader.value` parses.

    Raises:
        TypeError: a value of a type without a text format.
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int)):
        return json.dumps(value) if isinstance(value, str) else str(int(value))
    if isinstance(value, (float, np.floating)):
        return _number(float(value))
    if isinstance(value, bytes):
        return f"bytes({json.dumps(base64.b64encode(value).decode())})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, np.dtype):
        return f"dtype({value.name})"
    if isinstance(value, ir.Value):
        return f"@{json.dumps(value.name or '')}"
    if isinstance(value, Weight):
        dims = ", ".join(map(str, value.shape))
        name = json.dumps(value.identity[:DIGEST])
        return f"weight({value.dtype.name}[{dims}] {name} {json.dumps(storage_of(value))})"
    if isinstance(value, Name):
        return f"@{json.dumps(value.name)}"
    if isinstance(value, PrintedArray):
        dims = ", ".join(map(str, value.shape))
        return f"array({value.dtype}[{dims}] {json.dumps(value.digest)})"
    if isinstance(value, np.ndarray):
        dims = ", ".join(map(str, value.shape))
        return f"array({value.dtype.name}[{dims}] {json.dumps(digest_of(value))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({fields_text(value)})"
    raise TypeError(f"a {type(value).__name__} is no attribute of a lowered operation")


def fields_text(value: Any) -> str:
    """Return the fields of a dataclass that differ from their defaults."""
    parts = []
    for field in dataclasses.fields(value):
        given = getattr(value, field.name)
        if (
            isinstance(given, Weight)
            or field.default is dataclasses.MISSING
            or given != field.default
        ):
            parts.append(f"{field.name}: {text_of(given)}")
    return ", ".join(parts)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def digest_of(array: Array) -> str:
    """Return the first digits of the SHA-256 of the elements of an array."""
    raw = np.ascontiguousarray(array).reshape(-1)
    if raw.dtype.kind == "O":
        return hashlib.sha256(repr(raw.tolist()).encode()).hexdigest()[:DIGEST]
    return hashlib.sha256(raw.view(np.uint8).tobytes()).hexdigest()[:DIGEST]


@dataclass(frozen=True)
class PrintedArray:
    """An array that was parsed from text, without its elements."""

    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Name:
    """A reference to a value of the graph, by name."""

    name: str


_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<number>-?(?:inf|\d+\.?\d*(?:[eE][-+]?\d+)?)(?![\w]))
    |(?P<slot>%\d+)
    |(?P<arrow>->)
    |(?P<word>[A-Za-z_][\w.\-]*)
    |(?P<mark>[()\[\]{}:,=@]))""",
    re.VERBOSE,
)


class Reader:
    """Tokenizer and parser of one line of a printed plan.

    Args:
        line: the text.
        number: of the line, for errors.
        classes: the dataclasses that a value may name.
    """

    def __init__(self, line: str, number: int, classes: Mapping[str, type[Any]]) -> None:
        self._line, self._number, self._classes = line, number, classes
        self._tokens = list(_tokens(line, number))
        self._at = 0

    def fail(self, message: str) -> UsageError:
        """Return the error that names the line."""
        return UsageError(f"line {self._number} of the plan: {message}: {self._line.strip()}")

    @property
    def ended(self) -> bool:
        """Whether all tokens are consumed."""
        return self._at == len(self._tokens)

    def peek(self) -> str:
        """Return the next token; empty at the end."""
        return "" if self.ended else self._tokens[self._at][1]

    def next(self, kind: str = "") -> str:
        """Consume and return the next token.

        Raises:
            UsageError: it is of another kind, or the line ends.
        """
        if self.ended:
            raise self.fail("the line ends early")
        found, text = self._tokens[self._at]
        if kind and found != kind:
            raise self.fail(f"{text!r} is no {kind}")
        self._at += 1
        return text

    def take(self, text: str) -> bool:
        """Consume the next token if it is `text`; return whether it was."""
        if self.peek() != text:
            return False
        self._at += 1
        return True

    def expect(self, text: str) -> None:
        """Consume the token `text`.

        Raises:
            UsageError: the next token is another one.
        """
        if not self.take(text):
            raise self.fail(f"{text!r} is missing before {self.peek()!r}")

    def string(self) -> str:
        """Parse a quoted string."""
        return str(json.loads(self.next("string")))

    def many(self, read: Callable[[], Any], end: str) -> list[Any]:
        """Parse a list separated by commas up to the token `end`; `read` parses an item."""
        found: list[Any] = []
        while not self.take(end):
            if found:
                self.expect(",")
            found.append(read())
        return found

    def value(self) -> Any:
        """Parse the value of an attribute; see `text_of`."""
        kind = "" if self.ended else self._tokens[self._at][0]
        if kind == "string":
            return self.string()
        if kind == "number":
            text = self.next()
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        if self.take("["):
            return tuple(self.many(self.value, "]"))
        if self.take("@"):
            return Name(self.string())
        word = self.next("word")
        literals = {"none": None, "true": True, "false": False, "inf": math.inf, "nan": math.nan}
        if word in literals:
            return literals[word]
        self.expect("(")
        return self._call(word)

    def _call(self, word: str) -> Any:
        if word == "bytes":
            raw = base64.b64decode(self.string())
            self.expect(")")
            return raw
        if word == "dtype":
            dtype = dtype_of(self.next("word"))
            self.expect(")")
            return dtype
        if word in ("weight", "array"):
            dtype, shape, name = dtype_of(self.next("word")), self.shape(), self.string()
            if word == "array":
                self.expect(")")
                return PrintedArray(dtype.name, shape, name)
            stored = self.string()
            self.expect(")")
            return PrintedWeight(shape, dtype, name, _no_elements, stored=stored)
        return self.instance(word, ")")

    def shape(self) -> tuple[int, ...]:
        """Parse a shape in brackets."""
        self.expect("[")
        return tuple(self.many(lambda: int(self.next("number")), "]"))

    def instance(self, name: str, end: str) -> Any:
        """Parse the fields of a dataclass up to the token `end`; return an instance."""
        if name not in self._classes:
            raise self.fail(f"there is no {name!r}")
        return self.create(name, dict(self.many(self.field, end)))

    def create(self, name: str, fields: Mapping[str, Any]) -> Any:
        """Return an instance of a dataclass.

        Raises:
            UsageError: it has no such field, or a field without a default is missing.
        """
        declared = {each.name: each for each in dataclasses.fields(self._classes[name])}
        for field in fields:
            if field not in declared:
                raise self.fail(f"{name} has no field {field!r}")
        for field, each in declared.items():
            defaults = each.default, each.default_factory
            if field not in fields and defaults == (dataclasses.MISSING, dataclasses.MISSING):
                raise self.fail(f"{name} needs a field {field!r}")
        return self._classes[name](**fields)

    def field(self) -> tuple[str, Any]:
        """Parse ``name: value``."""
        name = self.next("word")
        self.expect(":")
        return name, self.value()


def _tokens(line: str, number: int) -> Iterator[tuple[str, str]]:
    at = 0
    end = len(line.rstrip())
    while at < end:
        found = _TOKEN.match(line, at)
        if found is None or found.lastgroup is None:
            raise UsageError(f"line {number} of the plan: cannot read {line[at:].strip()!r}")
        yield found.lastgroup, found[found.lastgroup]
        at = found.end()


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, including those of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)
