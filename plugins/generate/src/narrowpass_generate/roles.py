"""What the inputs and outputs of a decoder's methods mean.

Exporters agree on names in part: token ids, an attention mask, positions, logits. What names leave
open, dtypes and shapes decide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass.errors import ModelError

if TYPE_CHECKING:
    from narrowpass import State
    from narrowpass_ir.verify import Signature, ValueSpec

Array = np.ndarray[Any, Any]

_INTEGERS = {"int64": np.int64, "int32": np.int32}
_FLOATS = {"float": np.float32, "float16": np.float16, "double": np.float64}
_POSITIONS = re.compile(r"(?i)pos")
_MASK = re.compile(r"(?i)mask|bias")
_IDS = re.compile(r"(?i)(input_?)?(ids|tokens?)")
_LOGITS = re.compile(r"(?i)logits")


@dataclass(frozen=True)
class _Mask:
    """An attention mask.

    Attributes:
        name: of the input.
        dtype: of its elements.
        rank: 2, or 4 with two axes of 1 before.
        causal: whether it has a row for each token that is fed: 0 or True where the token sees a
            position, the least number or False where not. Else it has one row of ones.
    """

    name: str
    dtype: Any
    rank: int
    causal: bool

    def array(self, count: int, past: int) -> Array:
        rows = count if self.causal else 1
        lead = (1,) * (self.rank - 2)
        if not self.causal or count == 1:
            seen = np.zeros if np.dtype(self.dtype).kind == "f" else np.ones
            return seen((*lead, rows, past + count), self.dtype)
        visible = np.tri(count, past + count, past, dtype=bool)
        if np.dtype(self.dtype).kind == "f":
            # Half of the least number: what scores are added to does not overflow.
            least = np.finfo(self.dtype).min / 2
            return np.where(visible, 0, least).astype(self.dtype).reshape(*lead, count, -1)
        return visible.astype(self.dtype).reshape(*lead, count, -1)


@dataclass(frozen=True)
class Roles:
    """What the inputs and outputs of one method mean.

    Attributes:
        method: its name.
        ids: the input of token ids, [1, S].
        ids_dtype: of its elements.
        masks: attention masks.
        positions: inputs of positions, with dtype and rank.
        logits: the output, [1, S, V], or [1, V] of the last token.
        vocabulary: V, where the model states it.
        several: whether a run takes several tokens.
        each: whether a run returns logits of each token, as far as its shapes say.
    """

    method: str
    ids: str
    ids_dtype: Any
    masks: tuple[_Mask, ...]
    positions: tuple[tuple[str, Any, int], ...]
    logits: str
    vocabulary: int | None
    several: bool
    each: bool

    @classmethod
    def of(cls, method: str, signature: Signature, states: Sequence[State]) -> Roles:
        """Find them.

        Raises:
            ModelError: an input that nothing is known to feed to, or no logits.
        """
        kept = {state.input for state in states}
        given = {state.output for state in states}
        inputs = [spec for spec in signature.inputs if spec.name not in kept]
        ids = _ids(method, inputs)
        rows = (ids.shape or (1, None))[-1]
        masks, positions = [], []
        for spec in inputs:
            rank = len(spec.shape or ())
            if spec is ids:
                continue
            if _POSITIONS.search(spec.name) and spec.dtype in _INTEGERS and rank in (1, 2):
                positions.append((spec.name, _INTEGERS[spec.dtype], rank))
            elif _MASK.search(spec.name) and (mask := _mask(spec, rows)) is not None:
                masks.append(mask)
            elif not spec.has_default:
                raise ModelError(
                    f"method {method!r} has the input {spec.name!r} ({spec.dtype}), which "
                    "generation cannot feed: it feeds token ids, attention masks and positions; "
                    "export the model with these and its KV caches as its only inputs"
                )
        outputs = [spec for spec in signature.outputs if spec.name not in given]
        named = [spec for spec in outputs if _LOGITS.search(spec.name)]
        found = named or outputs
        if len(found) != 1 or len(found[0].shape or (0, 0)) not in (2, 3):
            names = ", ".join(spec.name for spec in outputs) or "none"
            raise ModelError(
                f"method {method!r} must have one output of logits [1, S, V], named 'logits'; "
                f"outputs beside the state: {names}"
            )
        shape = found[0].shape or (None, None)
        return cls(
            method,
            ids.name,
            _INTEGERS[ids.dtype or ""],
            tuple(masks),
            tuple(positions),
            found[0].name,
            shape[-1] if isinstance(shape[-1], int) else None,
            several=rows != 1,
            each=rows != 1 and shape[-2] != 1,
        )

    def feeds(self, tokens: Sequence[int], past: int) -> dict[str, Array]:
        """Return the feeds of a run.

        Args:
            tokens: that are fed.
            past: how many were fed before.
        """
        count = len(tokens)
        feeds: dict[str, Array] = {self.ids: np.array([tokens], self.ids_dtype)}
        for name, dtype, rank in self.positions:
            positions = np.arange(past, past + count, dtype=dtype)
            feeds[name] = positions if rank == 1 else positions[None]
        for mask in self.masks:
            feeds[mask.name] = mask.array(count, past)
        return feeds


def _ids(method: str, inputs: Sequence[ValueSpec]) -> ValueSpec:
    found = [
        spec
        for spec in inputs
        if spec.dtype in _INTEGERS
        and len(spec.shape or (1, 1)) == 2
        and not _POSITIONS.search(spec.name)
        and not _MASK.search(spec.name)
    ]
    found = [spec for spec in found if _IDS.fullmatch(spec.name)] or found
    if len(found) != 1:
        raise ModelError(
            f"method {method!r} must have one input of token ids, int64[1, S] named 'input_ids'; "
            f"inputs beside the state: {', '.join(spec.name for spec in inputs) or 'none'}"
        )
    batch, rows = found[0].shape or (None, None)
    if isinstance(rows, int) and rows != 1:
        raise ModelError(
            f"method {method!r} takes {rows} tokens in each run; export it with a dynamic number "
            "of tokens, or for one"
        )
    if isinstance(batch, int) and batch != 1:
        raise ModelError(f"method {method!r} takes {batch} sequences at once; export it for one")
    return found[0]


def _mask(spec: ValueSpec, rows: int | str | None) -> _Mask | None:
    shape = spec.shape or ()
    dtype = {**_INTEGERS, **_FLOATS, "bool": np.bool_}.get(spec.dtype or "")
    if dtype is None or len(shape) not in (2, 4):
        return None
    rank, floats = len(shape), spec.dtype in _FLOATS
    if rank == 4 and spec.dtype in _INTEGERS:
        return None
    # A mask of one row of flags has ones for all tokens; additive ones have a row for each.
    causal = rank == 4 or floats or (spec.dtype == "bool" and shape[0] == rows)
    return _Mask(spec.name, dtype, rank, causal)
