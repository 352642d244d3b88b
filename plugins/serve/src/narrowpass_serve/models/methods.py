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

    The signature says whether there is an axis of rows, and a few runs whether rows are
    independent: softmax over the first axis, say, has such an axis, and is another function of
    more rows.
    """
    first = {spec.shape[0] if spec.shape else None for spec in signature.inputs}
    dim = next(iter(first), None)
    if len(first) != 1 or not isinstance(dim, str):
        return "the inputs do not all begin with one symbolic dimension"
    for spec in signature.outputs:
        if not spec.shape or spec.shape[0] != dim:
            return f"output {spec.name!r} does not begin with the dimension {dim!r} of the inputs"
    try:
        return rows_differ(program, name, signature.inputs)
    except NarrowpassError as error:
        return f"it could not be tried whether rows are independent: {error}"
