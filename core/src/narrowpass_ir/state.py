"""A pair of an input and an output whose value a session carries from one run to the next."""

from __future__ import annotations

import re
from dataclasses import dataclass

from narrowpass_ir.arguments import instance_of
from narrowpass_ir.errors import UsageError

_TEXT = re.compile(r"(?P<input>[^=]+)=(?P<output>[^=@]+)(?:@(?P<axis>\d+))?")

APPENDED = "narrowpass.appended"
"""In the metadata of a node: its keys and values are appended to those of a past without room."""


@dataclass(frozen=True)
class State:
    """A value that a run computes, and the next run takes.

    Attributes:
        input: name of the input that takes it.
        output: name of the output that yields it.
        axis: the axis that each run appends rows to, as of a KV cache; None where the shape stays,
            as of an LSTM's hidden state.
    """

    input: str
    output: str
    axis: int | None = None

    @classmethod
    def parse(cls, text: str) -> State:
        """Return the state of a text ``INPUT=OUTPUT`` or ``INPUT=OUTPUT@AXIS``.

        Raises:
            UsageError: another text.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise UsageError(
                f"state {text!r} is not INPUT=OUTPUT or INPUT=OUTPUT@AXIS, such as "
                "past_key=present_key@2"
            )
        axis = found["axis"]
        return cls(found["input"], found["output"], None if axis is None else int(axis))

    @classmethod
    def of(cls, given: object) -> State:
        """Return a state that is given as one, or as its text.

        Raises:
            UsageError: neither, or a text that `parse` refuses.
        """
        if isinstance(given, str):
            return cls.parse(given)
        what = "a narrowpass.State or its text INPUT=OUTPUT@AXIS"
        state: State = instance_of(given, State, "a state", what)
        return state

    def __str__(self) -> str:
        axis = "" if self.axis is None else f"@{self.axis}"
        return f"{self.input}={self.output}{axis}"
