"""Tokens as an iterator, with the text that each completes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from narrowpass_generate.decoder import Decoder
from narrowpass_generate.results import Generation, Piece
from narrowpass_generate.sampling import Sampler
from narrowpass_generate.speculation import Drafter, verify

if TYPE_CHECKING:
    from narrowpass_generate.tokenizer import Tokenizer


class Stream(Iterator[Piece]):
    """Generates a token each time it is asked for one: an iterator of `Piece`.

    `stream` returns one.

    Args:
        decoder: that runs.
        ids: the prompt.
        sampler: that chooses tokens; it has seen the prompt.
        limit: tokens at most.
        ends: ids that end the text.
        stops: strings that end the text.
        tokenizer: for texts; None for none.
        drafter: proposes tokens; None for none.
    """

    def __init__(
        self,
        decoder: Decoder,
        ids: Sequence[int],
        sampler: Sampler,
        *,
        limit: int,
        ends: Sequence[int] = (),
        stops: Sequence[str] = (),
        tokenizer: Tokenizer | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self._decoder, self._sampler, self._drafter = decoder, sampler, drafter
        self._prompt, self._limit, self._ends = list(ids), limit, frozenset(ends)
        self._stops = StopStrings(stops)
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer, ids)
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._reason = ""
        self._drafted = self._accepted = 0
        self._first = self._last = self._spent = 0.0
        self._source = self._run()

    @property
    def prompt(self) -> tuple[int, ...]:
        """The ids of the prompt."""
        return tuple(self._prompt)

    @property
    def last(self) -> int | None:
        """The last token, which is not run yet; None where no other one comes, or before any."""
        return None if self._reason or not self._tokens else self._tokens[-1]

    @property
    def decoder(self) -> Decoder:
        """The decoder that runs."""
        return self._decoder

    def add_seconds(self, seconds: float) -> None:
        """Count what was run for the next token before it is asked for."""
        self._spent += seconds

    @property
    def result(self) -> Generation:
        """What was generated so far."""
        return Generation(
            tuple(self._tokens),
            "".join(self._texts),
            len(self._prompt),
            self._reason,
            self._first,
            self._last,
            self._drafted,
            self._accepted,
        )

    def interrupt(self) -> str:
        """End before the next token, and return the text that was held back."""
        if self._reason:
            return ""
        self._reason = "interrupted"
        return self._flush()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        if self._reason:
            raise StopIteration
        token = next(self._source)
        self._tokens.append(token)
        text = ""
        if token in self._ends:
            self._reason = "stop"
        else:
            if self._detokenizer is not None:
                text = self._stops.add(self._detokenizer.add(token))
            if self._stops.found:
                self._reason = "stop"
            elif len(self._tokens) == self._limit:
                self._reason = "length"
        if text:
            self._texts.append(text)
        if self._reason and not self._stops.found:
            text += self._flush()
        return Piece(token, text)

    def _flush(self) -> str:
        """Return what was held back; a stop string that it completes ends it."""
        if self._detokenizer is None:
            return ""
        text = self._stops.add(self._detokenizer.flush()) + self._stops.flush()
        if self._stops.found and self._reason == "length":
            self._reason = "stop"
        self._texts.append(text)
        return text

    def _run(self) -> Iterator[int]:
        """Yield tokens without end."""
        with self._timed():
            tokens = [self._sampler.choose(self._decoder.advance(self._prompt))]
        self._first = self._spent
        while True:
            self._last = self._spent
            for token in tokens:
                self._sampler.add(token)
                yield token
            with self._timed():
                tokens = self._next(tokens[-1])

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the seconds of the block; what the caller does with a token is not counted."""
        start = time.perf_counter()
        yield
        self._spent += time.perf_counter() - start

    def _next(self, token: int) -> list[int]:
        """Return the tokens that follow one, which is not run yet."""
        drafts = []
        # One more comes after the drafts, whatever is accepted.
        most = self._limit - len(self._tokens) - 1
        if self._drafter is not None and most > 0:
            drafts = self._drafter.propose([*self._prompt, *self._tokens], most)
        if not drafts:
            return [self._sampler.choose(self._decoder.feed([token])[-1])]
        rows = self._decoder.feed([token, *(each for each, _ in drafts)])
        tokens = verify(rows, drafts, self._sampler)
        self._decoder.rewind(len(drafts) - len(tokens) + 1)
        self._drafted += len(drafts)
        self._accepted += len(tokens) - 1
        return tokens


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
