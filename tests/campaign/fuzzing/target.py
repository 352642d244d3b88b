"""What a target is: a reader of bytes from strangers, and inputs for it."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuzzing.growth import grown_bytes
from fuzzing.mutation import mutated
from fuzzing.structure import Change
from narrowpass.errors import NarrowpassError


class Target(ABC):
    """Something that reads.

    Attributes:
        name: on the command line.
        share: of the inputs of all targets, by what one takes.
        multiple: bytes that the process may take for each byte of an input; see `fuzzing.bounds`.
    """

    name: str
    share: int = 100
    multiple: int = 128

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def seeds(self) -> list[bytes]:
        """Return valid inputs."""

    def changes(self) -> Change | None:
        """Return what changes a valid input by what it says; None where there is no such thing.

        It raises an error for inputs that it cannot parse.
        """
        return None

    def grown(self, seeds: Sequence[bytes], size: int) -> Iterator[bytes]:
        """Yield inputs of about so many bytes, in which a part of a valid one is repeated."""
        for seed in seeds[:6]:
            yield from self.grow(seed, size)

    @staticmethod
    def grow(seed: bytes, size: int) -> Iterator[bytes]:
        """Yield long inputs from a valid one."""
        return grown_bytes(seed, size)

    @abstractmethod
    def read(self, data: bytes) -> None:
        """Read an input.

        Raises:
            NarrowpassError: it is refused.
        """

    def accepts(self, data: bytes) -> bool:
        """Read an input; return whether it was not refused. All other errors are defects."""
        try:
            self.read(data)
        except NarrowpassError as error:
            if not str(error):
                raise AssertionError("an error without a message") from error
            return False
        return True


def inputs(
    target: Target, seeds: Sequence[bytes], first: int, count: int
) -> Iterator[tuple[int, bytes]]:
    """Yield damaged inputs with their seeds, from the valid ones in `seeds`.

    What odd seeds draw says something else and is well-formed, where the target has such changes;
    the bytes of one of four of these are damaged, too.
    """
    change = target.changes()
    for seed in range(first, first + count):
        choice = random.Random(seed)
        if change is None or seed % 2 == 0:
            yield seed, mutated(choice, seeds)
            continue
        data = change(choice, choice.choice(seeds))
        yield seed, mutated(choice, [data]) if choice.randrange(4) == 0 else data
