"""Headers that announce more than the file has: refused before anything is read."""

from __future__ import annotations

import struct

import gguf
import pytest

from narrowpass_gguf.importer import GgufImporter
from narrowpass_gguf.metadata import Metadata, check_header
from narrowpass_gguf.tokenizer import Special, tokenizer_json
from narrowpass_ir.errors import ModelError

HEAD = b"GGUF" + struct.pack("<I", 3)
KEY = struct.pack("<Q", 1) + b"k"


def field(kind, *parts):
    return KEY + struct.pack("<I", kind) + b"".join(parts)


def array(kind, count, data=b""):
    return field(9, struct.pack("<IQ", kind, count), data)


def file(*parts, tensors=0, fields=1):
    return HEAD + struct.pack("<QQ", tensors, fields) + b"".join(parts)


TEXT = struct.pack("<Q", 3) + b"abc"
INNER = struct.pack("<IQ", 9, 1)

REFUSED = {
    "an array of scalars": (file(array(5, 1000, b"\0" * 64)), "1000 elements"),
    "an array of one scalar more": (file(array(12, 9, b"\0" * 64)), "9 elements of an array"),
    "an array of strings": (file(array(8, 1000, TEXT)), "1000 elements"),
    "an array of arrays": (file(array(9, 1000, b"\0" * 64)), "1000 elements"),
    "an array of an unknown type": (file(array(77, 1)), "unknown type 77"),
    "arrays nested 5 deep": (file(array(9, 1, INNER * 4 + b"\0" * 64)), "nested too deep"),
    "a string": (file(field(8, struct.pack("<Q", 1000), b"abc")), "wrong length"),
    "a key": (file(struct.pack("<Q", 1000), b"k" * 20), "wrong length"),
    "an unknown type": (file(field(13, b"\0" * 8)), "unknown type 13"),
    "a scalar that is cut short": (file(field(12, b"\0" * 7)), "cut short"),
    "fields": (file(b"", fields=1000), "1000 fields"),
    "tensors": (file(b"", fields=0, tensors=1000), "1000 tensors"),
    "dimensions": (
        file(KEY, struct.pack("<I", 1000), b"\0" * 64, fields=0, tensors=1),
        "1000 dimensions",
    ),
    "a tensor": (
        file(KEY, struct.pack("<I", 4), b"\0" * 24, fields=0, tensors=1),
        "cut short",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_in_the_file_is_refused(name, tmp_path):
    data, message = REFUSED[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        check_header(str(path))
    with pytest.raises(ModelError, match=message):
        GgufImporter().load(str(path))


@pytest.mark.parametrize("order", ["<", ">"])
def test_whole_headers_of_both_byte_orders_pass(order, tmp_path):
    scalars = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def number(form, value):
        return struct.pack(order + form, value)

    key, text = number("Q", 1) + b"k", number("Q", 3) + b"abc"
    fields = [key + number("I", kind) + b"\1" * size for kind, size in scalars.items()]
    fields.append(key + number("I", 8) + text)
    fields.append(key + number("I", 9) + number("I", 8) + number("Q", 2) + text * 2)
    fields.append(key + number("I", 9) + number("I", 4) + number("Q", 3) + b"\0" * 12)
    tensor = key + number("I", 2) + b"\0" * 16 + number("I", 0) + number("Q", 0)
    head = b"GGUF" + number("I", 3) + number("Q", 1) + number("Q", len(fields))
    path = tmp_path / "m.gguf"
    path.write_bytes(head + b"".join(fields) + tensor)
    check_header(str(path))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"cut short|too short"):
        check_header(str(path))


def test_other_versions_are_left_to_the_reader(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 1) + b"\xff" * 32)
    check_header(str(path))
    with pytest.raises(ModelError, match="version 1"):
        GgufImporter().load(str(path))


LISTS = {
    "tokens": ([1, 2, 3], "tokens' has 1, which is no str"),
    "merges": ([7, 8], "merges' has 7, which is no str"),
    "token_type": (["a"] * 8, "token_type' has 'a', which is no int"),
    "scores": (["a"] * 8, "scores' has 'a', which is no float"),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_another_type_are_refused(name, tmp_path):
    values, message = LISTS[name]
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    tokens = ["a", "aa", *"bcdefg"]
    fields = {"tokens": tokens, "merges": ["a a"], "token_type": [1] * 8, "scores": [0.5] * 8}
    for key, value in {**fields, name: values}.items():
        writer.add_array(f"tokenizer.ggml.{key}", value)
    writer.add_string("tokenizer.ggml.model", "llama" if name == "scores" else "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = Metadata.read(str(path))
    with pytest.raises(ModelError, match=message):
        tokenizer_json(metadata, Special.of(metadata))
