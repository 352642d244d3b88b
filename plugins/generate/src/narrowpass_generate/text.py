"""Text of tokens that come one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowpass_generate.tokenizer import Tokenizer

_BEFORE = 6
"""Tokens of the prompt that are decoded with the first ones: decoders treat the start of a text in
another way, for instance drop its first space."""
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Decodes tokens one by one; a character whose bytes are not all there is held back.

    Args:
        tokenizer: of the model.
        prompt: ids before the first token.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-_BEFORE:])
        self._start, self._end = 0, len(self._ids)
        self._known = tokenizer.decode(self._ids)

    def add(self, token: int) -> str:
        """Return the text that a token completes."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids[self._start :])
        if text.endswith(_INCOMPLETE):
            return ""
        return self._take(text)

    def flush(self) -> str:
        """Return what was held back, with replacement characters."""
        if self._end == len(self._ids):
            return ""
        return self._take(self._tokenizer.decode(self._ids[self._start :]))

    def _take(self, text: str) -> str:
        new = text[len(self._known) :]
        # The next token is decoded with those since the last text, not with all.
        self._start, self._end = self._end, len(self._ids)
        self._known = self._tokenizer.decode(self._ids[self._start :])
        return new


class StopStrings:
    """Ends text at the first of some strings; what may be the beginning of one is held back.

    Args:
        strings: not empty.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """Return the text that is certain to come before a stop string."""
        if self.found:
            return ""
        self._held += text
        places = [p for string in self._strings if (p := self._held.find(string)) >= 0]
        if places:
            self.found = True
            given, self._held = self._held[: min(places)], ""
            return given
        kept = max((self._begun(string) for string in self._strings), default=0)
        given, self._held = (
            self._held[: len(self._held) - kept],
            self._held[len(self._held) - kept :],
        )
        return given

    def flush(self) -> str:
        """Return what was held back."""
        given, self._held = self._held, ""
        return given

    def _begun(self, string: str) -> int:
        """Return how many last characters are the beginning of a string."""
        most = min(len(string) - 1, len(self._held))
        return next((n for n in range(most, 0, -1) if self._held.endswith(string[:n])), 0)
