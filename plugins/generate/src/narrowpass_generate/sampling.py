"""How the next token is chosen from logits."""

from __future__ import annotations

import math
import numbers
import sys
from dataclasses import dataclass

from narrowpass.errors import UsageError
from narrowpass_ir.arguments import count_of


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: by default the one of the largest logit.

    The steps are those of transformers' logits processors, in their order: repetition penalty,
    temperature, `top_k`, `top_p`, `min_p`. llama.cpp divides by the temperature last, so that the
    same numbers keep other tokens there.

    Attributes:
        temperature: logits are divided by it; 0 for the largest logit, without random numbers.
        top_k: only so many tokens of largest logits, and those equal to the last; 0 for all.
        top_p: only the fewest tokens whose probabilities add up to it (Holtzman et al. 2020); 1 for
            all.
        min_p: only tokens of at least this share of the largest probability; 0 for all.
        repetition_penalty: logits of tokens that came before, those of the prompt too, are divided
            by it where positive, multiplied where negative (Keskar et al. 2019); 1 for none.
        seed: of the random numbers; None for others each time.

    Raises:
        UsageError: a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, "at least 0 (0 is greedy)", 0.0)
        count_of(self.top_k, "`top_k`", least=0)
        _check("top_p", self.top_p, "above 0 and at most 1", math.ulp(0.0), 1.0)
        _check("min_p", self.min_p, "from 0 to 1", 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, "above 0", math.ulp(0.0))
        if self.seed is not None:
            count_of(self.seed, "`seed`", least=0)

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is taken, and no random number drawn."""
        return not self.temperature


def _check(
    name: str, value: object, span: str, least: float, most: float = sys.float_info.max
) -> None:
    """Check a finite number.

    Raises:
        UsageError: anything else.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not least <= float(value) <= most:  # type: ignore[arg-type]
        raise UsageError(f"`{name}` must be a number {span}, not {value!r}")
