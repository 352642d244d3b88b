"""Damages bytes by a seed: for where there is no engine that is led by coverage."""

from __future__ import annotations

import random
from collections.abc import Sequence

NUMBERS = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
NUMBERS += (2**32, 2**47, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
WORDS = (
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"=", b"null", b"true", b"-1", b"1e999", b"NaN"),
    *(b"../", b"/etc/passwd", b"\0", b"\xff\xff", b"\xc3\x28", b"9" * 40, b"[" * 200, b"{}" * 50),
)


def mutated(choice: random.Random, seeds: Sequence[bytes]) -> bytes:
    """Return one of some inputs, changed at a few places."""
    data = bytearray(choice.choice(seeds))
    for _ in range(choice.choice((1, 1, 1, 2, 3, 8))):
        _change(data, choice, seeds)
    return bytes(data)


def _change(data: bytearray, choice: random.Random, seeds: Sequence[bytes]) -> None:
    at = choice.randrange(len(data) + 1)
    kind = choice.randrange(9)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << choice.randrange(8)
    elif kind == 1 and at < len(data):
        data[at] = choice.randrange(256)
    elif kind == 2:
        del data[at : at + choice.choice((1, 1, 2, 8, 100))]
    elif kind == 3:
        data[at:at] = choice.choice(WORDS)
    elif kind == 4:
        size = choice.choice((1, 2, 4, 8))
        data[at : at + size] = (choice.choice(NUMBERS) % 256**size).to_bytes(size, "little")
    elif kind == 5:
        start = choice.randrange(len(data) + 1)
        data[at:at] = data[start : start + choice.choice((1, 4, 16, 64))]
    elif kind == 6:
        other = choice.choice(seeds)
        start = choice.randrange(len(other) + 1)
        data[at : at + 16] = other[start : start + 16]
    elif kind == 7:
        del data[at:]
    else:
        _digit(data, choice)


def _digit(data: bytearray, choice: random.Random) -> None:
    """Replace a digit of a text."""
    digits = [index for index, byte in enumerate(data) if 48 <= byte < 58]
    if digits:
        at = choice.choice(digits)
        data[at : at + 1] = choice.choice((b"0", b"-1", b"9", b"99999999999", b"1.5", b"1e3"))
