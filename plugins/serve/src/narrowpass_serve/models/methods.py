"""What a server knows of each method of a program.

Whether the rows of a batch are independent is found by runs, since no signature says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from narrowpass.errors import NarrowpassError

if TYPE_CHECKING:
    from narrowpass import Program
    from narrowpass_ir.verify import Signature, ValueSpec


@dataclass(frozen=True)
class Method:
    """A method, and whether requests of it are joined.

    Attributes:
        name: of the method.
        inputs: in the order of the model.
        outputs: in the order of the model.
        unjoined: why requests run one by one; empty where their rows are joined.
    """

    name: str
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    unjoined: str

    @classmethod
    def of(cls, program: Program, name: str, *, join: bool) -> Method:
        """Look at a method of a program; it runs a few times.

        Args:
            program: that has it.
            name: of the method.
            join: whether requests may be joined at all.
        """
        signature = program.signature(name)
        unjoined = "batches are turned off" if not join else _unjoined(program, name, signature)
        return cls(name, signature.inputs, signature.outputs, unjoined)


def _unjoined(program: Program, name: str, signature: Signature) -> str:
    """Return why rows of several requests must not be joined; empty where they may be.

    The signature says whether each value may have any number of rows, and a few runs whether rows
    are independent: softmax over the first axis, say, has such an axis, and is another function of
    more rows. Names of dimensions prove nothing: exporters call that of an output otherwise.
    """
    if not signature.inputs:
        return "there are no inputs"
    for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            if not spec.shape or isinstance(spec.shape[0], int):
                return f"{kind} {spec.name!r} does not begin with a dimension of any size"
    try:
        return rows_differ(program, name, signature.inputs)
    except NarrowpassError as error:
        return f"it could not be tried whether rows are independent: {error}"


Array = np.ndarray[Any, Any]

_ROWS = 5
_SIZES = (8, 32, 224)
"""What dimensions of unknown size are tried with: tokens, small images, images."""


def rows_differ(program: Program, method: str, inputs: Sequence[ValueSpec]) -> str:
    """Return why rows of one batch are not those of batches of one; empty where they are.

    Args:
        program: that has the method.
        method: whose inputs and outputs begin with dimensions of any size.
        inputs: of the method.

    Raises:
        NarrowpassError: no size of `_SIZES` can be run.
    """
    failed: NarrowpassError | None = None
    for size in _SIZES:
        feeds = random_rows(inputs, size)
        try:
            together = program.run(feeds, method)
        except NarrowpassError as error:
            failed = error
            continue
        for name, value in together.items():
            if getattr(value, "shape", ())[:1] != (_ROWS,):  # a sequence has none
                return f"output {name!r} does not have the rows of the inputs"
        for row in range(_ROWS):
            alone = program.run({k: v[row : row + 1] for k, v in feeds.items()}, method)
            for name, value in alone.items():
                if not _same(value, together[name][row : row + 1]):
                    return f"output {name!r} of a row has other bits where other rows are beside it"
        return ""
    raise failed if failed is not None else AssertionError(_SIZES)


def random_rows(inputs: Sequence[ValueSpec], size: int) -> dict[str, Array]:
    """Return `_ROWS` rows of random values: normal, or 0 and 1 for indices and masks.

    Args:
        inputs: whose first dimension is open.
        size: of each other dimension that the model leaves open.
    """
    numbers = np.random.default_rng(0)
    return {spec.name: _random(numbers, spec, size) for spec in inputs}


def _random(numbers: np.random.Generator, spec: ValueSpec, size: int) -> Array:
    shape = (_ROWS, *(dim if isinstance(dim, int) else size for dim in (spec.shape or ())[1:]))
    if spec.dtype == "string":
        return numbers.integers(0, 2, shape).astype(str).astype(object)
    name = {"float": "float32", "double": "float64"}.get(spec.dtype or "", spec.dtype or "")
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    if dtype.kind in "iub":
        return numbers.integers(0, 2, shape).astype(dtype)
    return numbers.standard_normal(shape).astype(dtype)


def _same(one: Array, other: Array) -> bool:
    if one.dtype == object:
        return one.shape == other.shape and bool((one == other).all())
    return one.shape == other.shape and one.tobytes() == other.tobytes()
