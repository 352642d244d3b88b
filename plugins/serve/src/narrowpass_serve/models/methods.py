"""What a server knows of each method of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from narrowpass.errors import NarrowpassError
from narrowpass_serve.models.probing import rows_differ

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
