"""Changes what a file says and not only its bytes: fields of messages, values of documents, tokens.

What comes out can be parsed more often than damaged bytes can, so that it reaches the checks behind
the parser.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fuzzing.mutation import NUMBERS

TEXTS = ("", "x", "y", "w", "b", "h", "N", "..", "../w.bin", "/etc/passwd", "w.bin", "\0", "é" * 40)
TEXTS += (
    "-1",
    "0",
    "9" * 30,
    "Gemm",
    "If",
    "Loop",
    "Constant",
    "ai.onnx",
    "x" * 5000,
    "F32",
    "I64",
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0.5,
    1e308,
    float("nan"),
    [],
    {},
    [[]],
    *NUMBERS,
    *TEXTS,
)
_WHOLE = {
    FieldDescriptor.TYPE_INT32: 32,
    FieldDescriptor.TYPE_INT64: 64,
    FieldDescriptor.TYPE_UINT64: 65,
}
"""Bits of whole numbers; 65 for 64 without a sign."""

Change = Callable[[random.Random, bytes], bytes]


def _whole(choice: random.Random, bits: int, old: int) -> int:
    value = choice.choice((old + 1, old - 1, -old, choice.randrange(24), *NUMBERS))
    low, high = (0, 2**64) if bits == 65 else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    return low + (value - low) % (high - low)


def changed_model(choice: random.Random, data: bytes) -> bytes:
    """Change fields of an ONNX file: of nodes, attributes, tensors, types, of the model itself.

    Raises:
        DecodeError: the bytes are no model.
    """
    model = onnx.ModelProto.FromString(data)
    for _ in range(choice.choice((1, 1, 2, 4))):
        messages = list(messages_of(model))
        _change_field(choice, choice.choice(messages), messages)
    return model.SerializeToString()


def messages_of(message: Message) -> list[Message]:
    """Return a message and all within it."""
    found = [message]
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in value if field.is_repeated else [value]:
                found += messages_of(each)
    return found


def _change_field(choice: random.Random, message: Message, others: Sequence[Message]) -> None:
    fields = message.DESCRIPTOR.fields
    present = [field for field, _ in message.ListFields()]
    field = choice.choice(present if present and choice.random() < 0.8 else fields)
    if choice.randrange(10) == 0:
        message.ClearField(field.name)
        return
    if field.is_repeated:
        _change_items(choice, getattr(message, field.name), field, others)
        return
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        _copy_into(choice, getattr(message, field.name), others)
        return
    setattr(message, field.name, _scalar(choice, field, getattr(message, field.name)))


def _change_items(
    choice: random.Random, items: Any, field: FieldDescriptor, others: Sequence[Message]
) -> None:
    kind = choice.randrange(4)
    if kind == 0 and len(items):
        del items[choice.randrange(len(items))]
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if kind == 1 and len(items) > 1:
            items[0].CopyFrom(items[-1])
        else:
            _copy_into(choice, items.add(), others)
    elif kind == 1 and len(items):
        at = choice.randrange(len(items))
        items[at] = _scalar(choice, field, items[at])
    else:
        items.append(_scalar(choice, field, field.default_value or _empty(field)))


def _empty(field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return ""
    return b"" if field.type == FieldDescriptor.TYPE_BYTES else 0


def _copy_into(choice: random.Random, target: Message, others: Sequence[Message]) -> None:
    """Copy another message of the type, if there is one; it may be one around the target."""
    same = [other for other in others if other.DESCRIPTOR is target.DESCRIPTOR]
    source = type(target)()
    if same:
        source.CopyFrom(choice.choice(same))
    target.CopyFrom(source)


def _scalar(choice: random.Random, field: FieldDescriptor, old: Any) -> Any:
    if field.type in _WHOLE:
        return _whole(choice, _WHOLE[field.type], old)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return choice.choice([value.number for value in field.enum_type.values])
    if field.type == FieldDescriptor.TYPE_STRING:
        return choice.choice(TEXTS).replace("\0", "\x01")
    if field.type == FieldDescriptor.TYPE_BYTES:
        return choice.choice((old[:-1], old + b"\0", old * 2, b"", b"\xff" * 8, old[::-1]))
    return choice.choice((0.0, -1.0, 1e-45, 3e38, float("inf"), float("nan")))


def changed_document(choice: random.Random, data: bytes) -> bytes:
    """Change values, keys and types of a JSON document.

    Raises:
        ValueError: the bytes are no document.
    """
    document = json.loads(data)
    for _ in range(choice.choice((1, 1, 2, 4))):
        places = list(places_of(document))
        if not places:
            document = copy.deepcopy(choice.choice(_VALUES))
            break
        holder, key = choice.choice(places)
        kind = choice.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            other, name = choice.choice(places)
            holder[key] = copy.deepcopy(other[name])
        elif kind == 2 and isinstance(holder, dict):
            holder[choice.choice((*TEXTS, *holder))] = holder.pop(key)
        elif kind == 3 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif isinstance(holder[key], int) and not isinstance(holder[key], bool):
            holder[key] = _whole(choice, 70, holder[key])
        else:
            holder[key] = copy.deepcopy(choice.choice(_VALUES))
    return json.dumps(document).encode()


def places_of(document: Any) -> list[tuple[Any, Any]]:
    """Return each holder of a value in a document, with the value's key or place."""
    found: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        keys: list[Any] = list(document)
    else:
        keys = list(range(len(document))) if isinstance(document, list) else []
    for key in keys:
        found.append((document, key))
        found += places_of(document[key])
    return found


def changed_tokens(words: Sequence[str]) -> Change:
    """Return what changes tokens of a text, among which others of `words` come."""
    marks = (",", "{", "}", "[", "]", "=", '"', " ", ":", "\n", "{}", "={", *map(str, NUMBERS[:4]))

    def change(choice: random.Random, data: bytes) -> bytes:
        tokens = re.findall(r"[\w.-]+|\s+|.", data.decode("utf-8", "surrogateescape"))
        for _ in range(choice.choice((1, 1, 2, 4, 16))):
            at = choice.randrange(len(tokens) + 1)
            other = choice.choice((*words, *marks, *tokens))
            tokens[at : at + choice.randrange(2)] = [other] * choice.choice((0, 1, 1, 1, 3))
        return "".join(tokens).encode("utf-8", "surrogateescape")

    return change
