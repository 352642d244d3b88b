"""Frequencies of rotary embeddings, and how models stretch them for longer contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from narrowpass_decoders.config import Rotary
from narrowpass_ir.errors import ModelError

_LARGEST_SIZE = 1 << 16


def rotary(
    size: int,
    base: float,
    *,
    interleaved: bool = False,
    divisors: Sequence[float] = (),
    scaling: Mapping[str, Any] | None = None,
    positions: int = 0,
) -> Rotary:
    """Return a rotary embedding of base^(-2i / size) radians a position.

    Args:
        size: elements of each head that are rotated.
        base: of the frequencies.
        interleaved: see `Rotary`.
        divisors: what each frequency is divided by; empty for nothing.
        scaling: as ``rope_scaling`` of a ``config.json``: ``rope_type`` and its parameters.
        positions: of the model's context, which some kinds of scaling read.

    Raises:
        ModelError: a kind of scaling that is not supported; the message names those that are.
    """
    if not 2 <= size <= _LARGEST_SIZE or size % 2 or not base > 0:
        raise ModelError(f"{size} elements with base {base} cannot be rotated in pairs")
    with np.errstate(all="ignore"):
        found = _scaled(size, base, interleaved, divisors, scaling, positions)
    if not (all(map(math.isfinite, found.frequencies)) and math.isfinite(found.factor)):
        raise ModelError(f"rotary base {base} or its scaling: the frequencies are not finite")
    return found


def _scaled(
    size: int,
    base: float,
    interleaved: bool,
    divisors: Sequence[float],
    scaling: Mapping[str, Any] | None,
    positions: int,
) -> Rotary:
    # In float32, as PyTorch computes them: positions multiply the error.
    exponents = np.arange(0, size, 2, dtype=np.int64).astype(np.float32) / np.float32(size)
    frequencies = (np.float32(1) / np.power(np.float32(base), exponents)).astype(np.float64)
    factor = 1.0
    if len(divisors):
        frequencies = frequencies / np.asarray(divisors, np.float64)
    kind = "default"
    if scaling:
        kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    try:
        if scaling and kind == "linear":
            frequencies = frequencies / float(scaling["factor"])
        elif scaling and kind == "llama3":
            frequencies = _llama3(frequencies, scaling)
        elif scaling and kind == "yarn":
            frequencies, factor = _yarn(frequencies, base, size, scaling, positions)
        elif kind != "default":
            raise ModelError(
                f"rope scaling {kind!r} is not supported; supported are default, linear, llama3 "
                "and yarn"
            )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(
            f"rope scaling {kind!r} lacks or has a wrong parameter: {error}"
        ) from error
    return Rotary(size, tuple(map(float, frequencies)), interleaved, factor)


def _llama3(frequencies: np.ndarray[Any, Any], scaling: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Divide low frequencies by a factor, high ones not, and those between in part."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    lengths = 2 * math.pi / frequencies
    smooth = np.clip((context / lengths - low) / (high - low), 0, 1)
    return np.asarray((1 - smooth) * frequencies / factor + smooth * frequencies)


def _yarn(
    frequencies: np.ndarray[Any, Any],
    base: float,
    size: int,
    scaling: Mapping[str, Any],
    positions: int,
) -> tuple[np.ndarray[Any, Any], float]:
    """Stretch frequencies by YaRN (Peng et al., arXiv:2309.00071); also return the factor."""
    factor = float(scaling["factor"])
    context = float(scaling.get("original_max_position_embeddings") or positions)

    def turns(count: float) -> float:
        """Return the pair that turns so often in the context."""
        return size * math.log(context / (count * 2 * math.pi)) / (2 * math.log(base))

    low = turns(float(scaling.get("beta_fast") or 32))
    high = turns(float(scaling.get("beta_slow") or 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return ramp * frequencies / factor + (1 - ramp) * frequencies, float(attention)
