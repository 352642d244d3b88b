"""What a build did: counted while it runs, and measured on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from narrowpass.framework.instruments import Instrument
from narrowpass_ir.sizes import count_bytes, count_nodes

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.bundle import Bundle
    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass, PassResult


@dataclass(frozen=True)
class PassRow:
    """What one pass did to one method."""

    method: str
    text: str
    modified: bool
    seconds: float
    counters: Mapping[str, int]
    summary: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "pass": self.text,
            "method": self.method,
            "modified": self.modified,
            "seconds": self.seconds,
            "counters": dict(self.counters),
            "summary": self.summary,
        }


@dataclass
class Summary(Instrument):
    """Notes sizes before the first pass of each method, and what each pass did.

    Attributes:
        names: the methods in the order in which they are built.
        show: called with the progress.
        rows: a row for each pass and method.
        failed_in: the method in which a pass failed; empty for none.
    """

    name: ClassVar[str] = "summary"

    names: list[str]
    show: Callable[[str, int, int], None] = lambda what, done, total: None
    rows: list[PassRow] = field(default_factory=list, init=False)
    failed_in: str = field(default="", init=False)
    _before: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    _done: int = field(default=0, init=False)

    @property
    def _method(self) -> str:
        return self.names[self._done]

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:
        self.show(self._named(pass_), 0, 0)
        if self._method not in self._before:
            self._before[self._method] = (count_nodes(model), count_bytes(model))

    def progress(self, pass_: Pass, what: str, done: int, total: int) -> None:
        self.show(f"{self._named(pass_)}: {what}", done, total)

    def _named(self, pass_: Pass) -> str:
        return f"{self._method}: {pass_}" if len(self.names) > 1 else str(pass_)

    def after_pass(self, pass_: Pass, result: PassResult, ctx: Context, seconds: float) -> None:
        counters = dict(sorted(ctx.counters.items()))
        row = PassRow(self._method, str(pass_), result.modified, seconds, counters, result.summary)
        self.rows.append(row)

    def failed(self, pass_: Pass, error: Exception) -> None:
        self.failed_in = self._method

    def finish(self) -> None:
        self._done += 1

    def methods(self, bundle: Bundle, sources: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return for each method where it came from, and nodes and weights before and after."""
        summary: dict[str, dict[str, Any]] = {}
        for name, model in bundle.methods.items():
            after = (count_nodes(model), count_bytes(model))
            before = self._before.get(name, after)
            summary[name] = {
                "source": sources[name],
                "nodes": {"before": before[0], "after": after[0]},
                "weight_bytes": {"before": before[1], "after": after[1]},
            }
        return summary


@dataclass
class Each(Instrument):
    """Hands each method of a build to an instrument of its own."""

    name: ClassVar[str] = "each"

    members: list[Instrument]
    _done: int = field(default=0, init=False)

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:
        self.members[self._done].before_pass(pass_, model, ctx)

    def after_pass(self, pass_: Pass, result: PassResult, ctx: Context, seconds: float) -> None:
        self.members[self._done].after_pass(pass_, result, ctx, seconds)

    def failed(self, pass_: Pass, error: Exception) -> None:
        self.members[self._done].failed(pass_, error)

    def finish(self) -> None:
        self.members[self._done].finish()
        self._done += 1
