"""Inputs that are long because one part of a valid one is repeated: what they take is measured."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor

from fuzzing.structure import messages_of, places_of

Grow = Callable[[bytes, int], Iterator[bytes]]
"""Yields long inputs from a valid one and the length that they shall have."""

_SMALLEST = ([], {}, {"": 0}, [0.5], "", "é", 300, None)
"""Values that take the most beside the bytes that they are written with."""


def grown_bytes(data: bytes, size: int) -> Iterator[bytes]:
    """Repeat the whole, its beginning and its end."""
    for part in (data, data[:1], data[:8], data[-1:]):
        if part:
            yield data + part * (size // len(part))


def grown_document(data: bytes, size: int) -> Iterator[bytes]:
    """Repeat the last value of each list and object of a document; then the smallest values."""
    document = json.loads(data)
    for place in range(len(list(places_of(document)))):
        other = copy.deepcopy(document)
        holder, key = places_of(other)[place]
        value = holder[key]
        count = size // (len(json.dumps(value)) + (9 if isinstance(holder, dict) else 1))
        if isinstance(holder, dict):
            holder.update({f"{index:x}": value for index in range(count)})
        else:
            holder += [value] * count
        yield json.dumps(other).encode()
    for smallest in _SMALLEST:
        many: Any = [smallest] * (size // (len(json.dumps(smallest)) + 1))
        yield json.dumps({**document, "more": many}, separators=(",", ":")).encode()
        yield json.dumps(many, separators=(",", ":")).encode()


def grown_model(data: bytes, size: int) -> Iterator[bytes]:
    """Repeat the last of each repeated field of a model, as it is and empty."""
    model = onnx.ModelProto.FromString(data)
    fields = [
        (place, field.name)
        for place, message in enumerate(messages_of(model))
        for field in message.DESCRIPTOR.fields
        if field.is_repeated
    ]
    for place, name in fields:
        for empty in (False, True):
            other = copy.deepcopy(model)
            message = messages_of(other)[place]
            field = message.DESCRIPTOR.fields_by_name[name]
            items = getattr(message, name)
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                item = type(items.add())() if empty or len(items) < 2 else items[-2]
                del items[-1]
                items.extend([item] * (size // (item.ByteSize() + 4)))
            elif empty:
                continue
            else:
                kind = field.type
                text = {FieldDescriptor.TYPE_STRING: "", FieldDescriptor.TYPE_BYTES: b""}
                items.extend([text.get(kind, 0)] * (size // (2 if kind in text else 1)))
            yield other.SerializeToString()
