"""Two models compared: what they compute on the reference backend, and what they promise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from narrowpass.bundle import Bundle
from narrowpass.errors import BackendError
from narrowpass.runtime.backend import CompileOptions, Feeds, Outputs, Program
from narrowpass.runtime.oracle import oracle
from narrowpass_analysis.metrics import Tolerance, difference
from narrowpass_ir.verify import Signature
from narrowpass_testing._feeds import random_feeds
from narrowpass_testing._text import model_to_text

Array: TypeAlias = "np.ndarray[Any, Any]"


def assert_signature_unchanged(before: ir.Model, after: ir.Model) -> None:
    """Assert that inputs and outputs have the same names, types, shapes and order.

    Raises:
        AssertionError: they have not; the message lists the differences.
    """
    differences = Signature.of(before).differences(Signature.of(after))
    if differences:
        raise AssertionError("the signature changed:\n" + "\n".join(differences))


def assert_equivalent(
    before: ir.Model,
    after: ir.Model,
    *,
    feeds: Iterable[Feeds] | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3),
    sizes: Mapping[str, int] | None = None,
    special: bool = False,
    tolerance: str | None = None,
) -> None:
    """Assert that two models compute the same under the reference backend.

    A feed on which both fail counts as the same, but at least one must succeed.

    Args:
        before: the model that is right.
        after: the model that must compute what `before` does. Its inputs have the same names.
        feeds: arrays by input name for each run; None for `random_feeds` of `before`.
        seeds: seeds of the random feeds. Inputs with a default keep it with even seeds.
        sizes: sizes of symbolic dimensions of the random feeds.
        special: whether the random feeds have NaN, infinities, -0.0 and extremes among them.
        tolerance: how far an output of `after` may be from that of `before`, such as
            ``rel:1e-5``; see `narrowpass_analysis.metrics`. None asks for the same bits, any NaN
            being like any other. Dtypes and shapes must be equal in any case.

    Raises:
        AssertionError: names, dtypes, shapes or values of the outputs differ, one of them
            fails alone, or no feed succeeds.
        ValueError: `tolerance` does not parse, or no random feed can be generated for an input.
    """
    limit = None if tolerance is None else Tolerance.parse(tolerance)
    if feeds is None:
        feeds = (
            random_feeds(before, seed, sizes=sizes, special=special, defaults=seed % 2 == 1)
            for seed in seeds
        )
    reason = "there are no feeds"
    succeeded = False
    with _compile(before, "before") as expected, _compile(after, "after") as actual:
        for feed in feeds:
            right, reason = _run(expected, feed)
            got, why = _run(actual, feed)
            if right is None and got is None:
                continue
            problem = _difference(right, got, limit) if right and got else None
            if right is None:
                problem = f"before the change it failed, and no longer does: {reason}"
            elif got is None:
                problem = f"it fails: {why}"
            if problem:
                raise AssertionError(f"{problem}\n\nfeeds: {feed}\n\n{model_to_text(after)}")
            succeeded = True
    if not succeeded:
        raise AssertionError(f"nothing was compared, pass other feeds: {reason}")


def _compile(model: ir.Model, which: str) -> Program:
    try:
        return oracle().compile(Bundle({"main": model}), CompileOptions())
    except BackendError as error:
        raise AssertionError(f"the model {which} the change does not compile: {error}") from error


def _run(program: Program, feeds: Feeds) -> tuple[Outputs | None, str]:
    """Run once; return the outputs, or None and the reason."""
    try:
        return program.run(feeds), ""
    except BackendError as error:
        return None, str(error)


def _difference(right: Outputs, got: Outputs, limit: Tolerance | None) -> str | None:
    """Say how two sets of outputs differ, or return None."""
    if list(right) != list(got):
        return f"the outputs are {list(got)}, not {list(right)}"
    for name in right:
        problem = _value_difference(right[name], got[name], exact=limit is None)
        if problem:
            return f"output {name!r}: {problem}"
    if limit is None:
        return None
    return "; ".join(limit.check({name: difference(got[name], right[name]) for name in right}))


def _value_difference(right: Any, got: Any, *, exact: bool) -> str | None:
    """Say how two outputs differ: arrays, sequences of them, or None for an empty optional."""
    if right is None or got is None:
        return None if right is got else f"{got!r}, not {right!r}"
    if isinstance(right, list) or isinstance(got, list):
        if not (isinstance(right, list) and isinstance(got, list) and len(right) == len(got)):
            return f"{got!r}, not the sequence {right!r}"
        pairs = zip(right, got, strict=True)
        problems = (_value_difference(one, other, exact=exact) for one, other in pairs)
        return next((problem for problem in problems if problem), None)
    if right.dtype != got.dtype or right.shape != got.shape:
        return f"{got.dtype}{list(got.shape)}, not {right.dtype}{list(right.shape)}"
    return _bit_difference(right, got) if exact else None


def _bit_difference(right: Array, got: Array) -> str | None:
    """Say where two arrays of the same dtype and shape differ in their bits, NaN aside."""
    wrong = np.asarray(right != got)
    if _is_float(right.dtype):
        # NaN differs from itself, and 0.0 does not differ from -0.0.
        wrong &= ~((right != right) & (got != got))
        wide = np.complex128 if right.dtype.kind == "c" else np.float64
        a, b = right.astype(wide), got.astype(wide)
        for one, other in ((a.real, b.real), (a.imag, b.imag)):
            wrong |= (one == 0) & (other == 0) & (np.signbit(one) != np.signbit(other))
    if not wrong.any():
        return None
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} elements differ, first at {list(place)}: "
        f"{got[place]!r}, not {right[place]!r}"
    )


def _is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is floating-point or complex, those of ml_dtypes included."""
    return dtype.kind in "fcV" and "int" not in dtype.name
