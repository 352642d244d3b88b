"""Pipelines: passes in the order of their text, and the loop that runs them.

Grammar of the text, white space allowed between tokens::

    pipeline = [ item { "," item } ]
    item     = name [ "{" [ option { "," option } ] "}" ]
    option   = key "=" ( scalar | "[" [ scalar { "," scalar } ] "]" )
    scalar   = a run of characters other than white space and , [ ] { } = "
             | a JSON string in double quotes

A name is a pass or a named pipeline. Named pipelines take no options.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from narrowpass.errors import (
    NarrowpassError,
    PassError,
    PipelineError,
    PluginError,
    UsageError,
    VerificationError,
)
from narrowpass.framework.boundary import sentence, translate_errors
from narrowpass.framework.context import check_report
from narrowpass.framework.options import HasOptions
from narrowpass.framework.passes import Pass, PassResult, run_checked
from narrowpass.framework.pipeline_text import Item, Parser, construct_item, parse_item
from narrowpass_ir.arguments import kind_of

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    import onnx_ir as ir

    from narrowpass.framework.context import Context, Progress
    from narrowpass.framework.instruments import Instrument
    from narrowpass.framework.plugins import Registry
    from narrowpass_ir.verify import Signature

T = TypeVar("T", bound=HasOptions)


@dataclass(frozen=True)
class Pipeline:
    """Passes in order.

    Attributes:
        items: passes, and named pipelines as they stand in the text.
        name: the name by which text refers to this pipeline; empty for none.
    """

    items: tuple[Pass | Pipeline, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        """Check the passes' requirements on each other.

        Raises:
            PipelineError: a pass stands before one that it requires, or after one that it
                forbids.
        """
        if not self.name:
            self._check_order()

    @classmethod
    def parse(cls, text: str, registry: Registry) -> Pipeline:
        """Read pipeline text.

        Args:
            text: see the module's docstring; empty for a pipeline without passes.
            registry: the installed passes and named pipelines.

        Raises:
            PipelineError: text that does not parse, an unknown pass or option, a value that does
                not fit, passes in an order that one of them rejects. The message shows the text
                with a caret under the place.
        """
        if not isinstance(text, str):
            raise UsageError(f"pipeline text must be text, not {kind_of(text)}")
        if not hasattr(registry, "pipelines"):
            raise UsageError(f"a registry cannot be {kind_of(registry)}; pass Plugins.registry")
        return cls(tuple(_items(text, registry, within=())))

    @classmethod
    def of(cls, given: PipelineLike, registry: Registry) -> Pipeline:
        """Return the pipeline of text, of a pass, or of several of these in order.

        Raises:
            UsageError: something else is given.
            PipelineError: as `parse`.
        """
        if isinstance(given, Pipeline):
            return given
        if isinstance(given, str):
            return cls.parse(given, registry)
        items: list[Pass | Pipeline] = []
        for item in given if isinstance(given, Sequence) else (given,):
            if isinstance(item, str):
                items += _items(item, registry, within=())
            elif isinstance(item, Pass | Pipeline):
                items.append(item)
            else:
                raise UsageError(
                    f"{item!r} is no pipeline; pass text such as 'ONE,OTHER', a narrowpass.Pipeline"
                    ", a pass (an instance), or a list of passes and text"
                )
        return cls(tuple(items))

    def __str__(self) -> str:
        """The pipeline's text: `parse` returns an equal pipeline."""
        return ",".join(
            item.name if isinstance(item, Pipeline) else str(item) for item in self.items
        )

    def __iter__(self) -> Iterator[Pass]:
        """Yield the passes in the order in which they run, those of named pipelines included."""
        for item in self.items:
            if isinstance(item, Pipeline):
                yield from item
            else:
                yield item

    def _check_order(self) -> None:
        before: set[str] = set()
        for pass_ in self:
            missing = [name for name in pass_.requires if name not in before]
            if missing:
                raise PipelineError(
                    f"pass {pass_.name!r} requires {missing[0]!r} to stand before it in the "
                    f"pipeline {str(self)!r}; passes are never reordered: change the text"
                )
            clash = [name for name in pass_.forbids if name in before]
            if clash:
                raise PipelineError(
                    f"pass {pass_.name!r} must not stand after {clash[0]!r} in the pipeline "
                    f"{str(self)!r}; passes are never reordered: change the text"
                )
            before.add(pass_.name)

    def run(
        self,
        model: ir.Model,
        ctx: Context,
        *,
        instruments: Sequence[Instrument] = (),
        verify: bool = True,
        strict: bool = False,
        in_place: bool = False,
    ) -> PassResult:
        """Run the passes on a model.

        Args:
            model: a valid model. It is left as it is, unless `in_place`.
            ctx: what the passes may ask and report. Its counters, decisions and exhibits are
                cleared before each pass, so that instruments see those of one pass.
            instruments: called for each pass before and after it runs, in this order.
            verify: whether the model's structure is checked after each pass that changed it.
            strict: whether the model is fingerprinted around each pass, so that one that says
                that it changed nothing, and did, is an error. For tests: it costs time.
            in_place: whether the passes may change `model` itself, which saves a clone.

        Returns:
            The model after the last pass, and whether any pass changed it.

        Raises:
            PassError: a pass failed, broke the model, or broke its contract; the message names
                the pass.
        """
        if not in_place:
            model = model.clone()
        if strict:
            observer = dataclasses.replace(ctx.observer, strict=True)
            ctx = dataclasses.replace(ctx, observer=observer)
        modified = False
        for pass_ in self:
            ctx.counters.clear()
            ctx.decisions.clear()
            ctx.exhibits.clear()
            result = _run_one(pass_, model, ctx, instruments, verify=verify)
            model, modified = result.model, modified or result.modified
        _notify(instruments, "finish")
        return PassResult(model, modified)


def _notify(instruments: Sequence[Instrument], event: str, *arguments: object) -> None:
    """Call the method `event` of each instrument.

    Raises:
        PluginError: an instrument fails; or what one raises of ours, as it is.
    """
    for instrument in instruments:
        name = getattr(instrument, "name", type(instrument).__name__)
        with translate_errors(
            f"instrument {name!r} failed in {event}", PluginError, "leave it out"
        ):
            getattr(instrument, event)(*arguments)


def _notify_failure(
    instruments: Sequence[Instrument], pass_: Pass, error: BaseException, log: logging.Logger
) -> None:
    """Notify the instruments of a pass that failed; one that fails, too, hides no error.

    Args:
        instruments: all are notified.
        pass_: the pass.
        error: what it raised; an error of ours stands for what is no `Exception`.
        log: takes a warning for each instrument that fails.
    """
    shown = error if isinstance(error, Exception) else PluginError(sentence(error))
    for instrument in instruments:
        try:
            _notify([instrument], "failed", pass_, shown)
        except NarrowpassError as problem:
            log.warning("%s", problem)


def _progress_of(pass_: Pass, ctx: Context, instruments: Sequence[Instrument]) -> Progress:
    """Return a function that reports progress to the instruments and the context's observer."""

    def show(what: str, done: int, total: int) -> None:
        ctx.observer.progress(what, done, total)
        _notify(instruments, "progress", pass_, what, done, total)

    return show


def _run_one(
    pass_: Pass,
    model: ir.Model,
    ctx: Context,
    instruments: Sequence[Instrument],
    *,
    verify: bool,
) -> PassResult:
    """Run one pass between the instruments' calls and check what it did."""
    from narrowpass_ir.verify import Signature

    signature = Signature.of(model)
    _notify(instruments, "before_pass", pass_, model, ctx)
    observer = dataclasses.replace(ctx.observer, progress=_progress_of(pass_, ctx, instruments))
    watched = dataclasses.replace(ctx, observer=observer)
    start = time.perf_counter()
    try:
        result = run_checked(pass_, model, watched)
        seconds = time.perf_counter() - start
        check_report(ctx)
        if verify and result.modified:
            _check(pass_, result.model, signature)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the boundary to plugin code: every failure names its pass
        _notify_failure(instruments, pass_, error, ctx.observer.log)
        if isinstance(error, NarrowpassError) and not isinstance(error, VerificationError):
            error.args = (f"pass {str(pass_)!r}: {error}",)
            raise
        raise PassError(
            f"pass {str(pass_)!r} failed: {_described(error)}; this is a defect of "
            "the pass: build again with --reproducer DIR and report the folder"
        ) from error
    _notify(instruments, "after_pass", pass_, result, ctx, seconds)
    return result


def _described(error: BaseException) -> str:
    """Return an error with its type; problems of a model stand in lines of their own."""
    if isinstance(error, VerificationError):
        return f"{type(error).__name__}: {error}"
    return sentence(error)


def _check(pass_: Pass, model: ir.Model, before: Signature) -> None:
    """Verify a model that a pass changed."""
    from narrowpass_ir.verify import Signature, verify

    verify(model)
    if pass_.may_change_signature:
        return
    differences = before.differences(Signature.of(model))
    if differences:
        raise VerificationError(
            "it changed the model's signature: " + "; ".join(differences), tuple(differences)
        )


PipelineLike: TypeAlias = str | Pass | Pipeline | Sequence[str | Pass | Pipeline]
"""What a pipeline may be given as: text, a pass, a pipeline, or several of these in order."""


def parse_instrument(text: str, registry: Registry) -> Instrument:
    """Create an instrument from ``name{option=value,...}``.

    Raises:
        PipelineError: text that does not parse, an unknown instrument or option.
    """
    item = parse_item(text, "instrument")
    return _construct(text, item, "instrument", registry.instruments, registry)


def _items(text: str, registry: Registry, within: tuple[str, ...]) -> list[Pass | Pipeline]:
    """Read the text of a pipeline; `within` are the named pipelines that it stands in."""
    items: list[Pass | Pipeline] = []
    for item in Parser(text).items():
        if item.name not in registry.pipelines:
            items.append(_construct(text, item, "pass", registry.passes, registry))
            continue
        if item.options:
            raise item.error(text, item.start, f"the named pipeline {item.name!r} has no options")
        if item.name in within:
            raise item.error(text, item.start, f"the pipeline {item.name!r} contains itself")
        inner = _items(registry.pipelines[item.name], registry, (*within, item.name))
        items.append(Pipeline(tuple(inner), item.name))
    return items


def _construct(
    text: str, item: Item, kind: str, known: Mapping[str, type[T]], registry: Registry
) -> T:
    """Create the pass or instrument that an item of the text names."""
    if item.name not in known:
        listing: dict[str, object] = {**known, **(registry.pipelines if kind == "pass" else {})}
        raise item.error(text, item.start, registry.unknown(kind, item.name, listing))
    return construct_item(text, item, known[item.name])
