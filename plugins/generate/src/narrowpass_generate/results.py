"""What generation returns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """One token, as it comes.

    Attributes:
        token: its id.
        text: what it adds to the text: characters that are complete, without what may be the
            beginning of a stop string. Empty without a tokenizer.
    """

    token: int
    text: str


@dataclass(frozen=True)
class Generation:
    """What was generated.

    Attributes:
        tokens: ids, with the one that ended it.
        text: of the tokens, up to a stop string; empty without a tokenizer.
        prompt_tokens: number of tokens of the prompt.
        finish_reason: ``stop`` at a stop string or an end token, ``length`` at the number of tokens
            or at the end of the context, ``interrupted``, or empty where more can come.
        first_token: seconds until the first token: the prompt's run.
        seconds: until the last token.
        drafted: tokens that were proposed for verification.
        accepted: of these, tokens that were accepted.
    """

    tokens: tuple[int, ...]
    text: str
    prompt_tokens: int
    finish_reason: str
    first_token: float
    seconds: float
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first per second; 0 where there are none."""
        rest = self.seconds - self.first_token
        return (len(self.tokens) - 1) / rest if len(self.tokens) > 1 and rest > 0 else 0.0
