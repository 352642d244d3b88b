"""A program of a decoder with its session, and the ids that the session has seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from narrowpass.errors import BackendError, DataError, ModelError, UsageError
from narrowpass_generate.roles import Roles
from narrowpass_ir.arguments import count_of, kind_of

if TYPE_CHECKING:
    from types import TracebackType

    from narrowpass import Program, Session
    from narrowpass.runtime.arrays import Outputs

Array = np.ndarray[Any, Any]


class Decoder:
    """A decoder that keeps the KV caches of the ids that it has run, so that none is run twice.

    The program has a method that takes its state, named ``decode`` where there are several, and
    may have one that begins it, named ``prefill``. Inputs beside the state are token ids, attention
    masks and positions, which follow from the number of ids. A context manager that closes the
    session, not the program.

    Args:
        program: a compiled bundle with state.

    Attributes:
        program: it.
        vocabulary: V, the number of logits; 0 where the model does not state it.

    Raises:
        UsageError: the bundle has no state.
        ModelError: its inputs and outputs are not those of a decoder.
    """

    def __init__(self, program: Program) -> None:
        from narrowpass import Program as Kind

        if not isinstance(program, Kind):
            raise UsageError(
                f"generation needs a program, not {kind_of(program)}; pass what narrowpass.load "
                "returns"
            )
        self.program = program
        self._session: Session = program.session()
        self._ids: list[int] = []
        self._ahead: Array | None = None
        self._decode, self._prefill = _methods(program)
        self.vocabulary = self._decode.vocabulary or 0
        self._grows = all(state.axis is not None for state in program.states)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids whose keys and values the caches have."""
        return tuple(self._ids)

    @property
    def reason(self) -> str:
        """Why the backend does not append to caches in place; see `Session.reason`."""
        return self._session.reason

    def check_verifies(self) -> None:
        """Check that drafted tokens can be verified: several in a run, and dropped again.

        Raises:
            UsageError: they cannot.
        """
        name = self._decode.method
        if not self._decode.several or not self._decode.each:
            what = "takes one token" if not self._decode.several else "returns the last logits"
            raise UsageError(
                f"drafts cannot be verified: method {name!r} {what} only; export it with input_ids "
                "[1, S] and logits [1, S, V], or generate without `lookup` and `draft`"
            )
        if not self._grows:
            raise UsageError(
                "drafts cannot be verified: the state does not grow, so that rejected tokens "
                "cannot be dropped; generate without `lookup` and `draft`"
            )

    def check_ids(self, ids: Sequence[int] | Array) -> list[int]:
        """Return token ids as a list.

        Raises:
            UsageError: none, or what is no sequence of whole numbers.
            DataError: an id that the vocabulary does not have.
        """
        if isinstance(ids, str | bytes):
            raise UsageError("a prompt is a sequence of token ids; encode text with Tokenizer")
        try:
            array = np.asarray(ids)
        except (ValueError, TypeError) as error:
            raise UsageError(f"token ids must be one sequence of whole numbers: {error}") from error
        if array.ndim == 2 and len(array) == 1:
            array = array[0]
        if array.ndim != 1:
            raise UsageError(f"token ids must be one sequence, not an array of {array.ndim} axes")
        if not array.size:
            raise UsageError("the prompt is empty; pass at least one token")
        if array.dtype.kind not in "iu":
            raise UsageError(f"token ids must be whole numbers, not {array.dtype}")
        found: list[int] = array.tolist()
        least, most = min(found), max(found)
        if least < 0 or (self.vocabulary and most >= self.vocabulary):
            wrong = least if least < 0 else most
            raise DataError(
                f"token {wrong} is not in the vocabulary of {self.vocabulary or 'the model'}: "
                "encode the prompt with the model's own tokenizer"
            )
        return found

    def advance(self, ids: Sequence[int]) -> Array:
        """Run what the caches do not have of a sequence; caches of other ids are dropped.

        Args:
            ids: all of it, not empty.

        Returns:
            float32[V]: logits of the last token.
        """
        ids = list(ids)
        self._check_length()
        if self._ahead is not None and ids == self._ids:
            last: Array = self._take_ahead()[-1]
            return last
        same = _common(self._ids, ids)
        self._ahead = None
        # The last one is run again, also if its keys and values are there: for its logits.
        self._keep(min(same, len(ids) - 1))
        rows: Array = self.feed(ids[len(self._ids) :])[-1]
        return rows

    def feed(self, tokens: Sequence[int]) -> Array:
        """Run more tokens.

        Args:
            tokens: at least one.

        Returns:
            float32[N, V]: logits of each token, or, N being 1, of the last one only.

        Raises:
            BackendError: the computation failed, for instance since the context is full.
        """
        if self._ahead is not None and list(tokens) == self._ids[-len(tokens) :]:
            return self._take_ahead()
        roles = self._decode if self._ids or self._prefill is None else self._prefill
        if roles.several or len(tokens) == 1:
            return self._run(roles, tokens)
        for token in tokens:
            logits = self._run(self._decode, [token])
        return logits

    def _run(self, roles: Roles, tokens: Sequence[int]) -> Array:
        feeds = roles.feeds(tokens, len(self._ids))
        self._ahead = None
        try:
            outputs = self._session.run(feeds, roles.method)
        except BackendError as error:
            raise _failed(len(tokens), len(self._ids), error) from error
        return self._note(roles, tokens, outputs)

    def _note(self, roles: Roles, tokens: Sequence[int], outputs: Outputs) -> Array:
        """Note the ids that were run, and return their logits, float32[N, V]."""
        logits = outputs[roles.logits]
        self._ids += tokens
        rows = logits.reshape(-1, logits.shape[-1])
        if len(rows) not in (1, len(tokens)):
            raise ModelError(
                f"method {roles.method!r} returned logits {list(logits.shape)} for {len(tokens)} "
                "tokens; export it with logits [1, S, V]"
            )
        return rows if rows.dtype == np.float32 else rows.astype(np.float32)

    def run_ahead(self, others: Sequence[Decoder], tokens: Sequence[int]) -> None:
        """Run a token of this decoder, and of others of its program, at once.

        The next call of `feed` with that token, which must follow, returns its logits.

        Args:
            others: beside this one; all have run their prompts.
            tokens: one for this decoder, then one for each other.

        Raises:
            BackendError: the computation failed; no decoder has run its token.
        """
        decoders, roles = [self, *others], self._decode
        pairs = list(zip(decoders, tokens, strict=True))
        feeds = [roles.feeds([token], len(each.ids)) for each, token in pairs]
        sessions = [each._session for each in decoders]  # noqa: SLF001  # of this class
        try:
            found = self.program.run_sessions(sessions, feeds, roles.method)
        except BackendError as error:
            raise _failed(1, max(len(each.ids) for each in decoders), error) from error
        for (each, token), outputs in zip(pairs, found, strict=True):
            each._keep_ahead(each._note(roles, [token], outputs))  # noqa: SLF001  # of this class

    def fork_ahead(self, logits: Array) -> Decoder:
        """Return a fork whose next call of `advance`, with this one's ids, returns logits."""
        other = self.fork()
        other._keep_ahead(logits[None])  # noqa: SLF001  # of this class
        return other

    def _keep_ahead(self, rows: Array) -> None:
        """Keep the logits of the last ids until these are asked for."""
        self._ahead = rows

    def _take_ahead(self) -> Array:
        rows, self._ahead = self._ahead, None
        if rows is None:
            raise UsageError("nothing was run ahead")
        return rows

    def rewind(self, count: int) -> None:
        """Drop the last ids, with their keys and values.

        Raises:
            UsageError: more than there are, or a state that does not grow.
        """
        count = count_of(count, "`count`", least=0)
        if count > len(self._ids):
            raise UsageError(f"{count} ids cannot be dropped: there are {len(self._ids)}")
        self._ahead = None
        self._session.rewind(count)
        del self._ids[len(self._ids) - count :]

    def reset(self) -> None:
        """Drop all ids."""
        self._session.reset()
        self._ids, self._ahead = [], None

    def fork(self) -> Decoder:
        """Return another decoder that starts with this one's ids and shares its caches."""
        other = Decoder(self.program)
        other._session, other._ids = self._session.fork(), list(self._ids)
        return other

    def close(self) -> None:
        """Free the caches; the program stays open."""
        self._session.close()
        self._ids, self._ahead = [], None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _keep(self, count: int) -> None:
        """Drop all but the first ids."""
        dropped = len(self._ids) - count
        if dropped and self._grows and count:
            self.rewind(dropped)
        elif dropped:
            self.reset()

    def _check_length(self) -> None:
        """Start anew where a run was interrupted between its caches and its ids."""
        grown = any(state.axis is not None for state in self.program.states)
        if grown and self._session.length != len(self._ids):
            self.reset()


def _failed(count: int, before: int, error: BackendError) -> BackendError:
    what = "1 token" if count == 1 else f"{count} tokens"
    return BackendError(
        f"{what} after {before} cannot be run; if the model's context is full, pass a shorter "
        f"prompt or fewer tokens: {error}"
    )


def _methods(program: Program) -> tuple[Roles, Roles | None]:
    """Return the method that continues a state, and the one that begins it, if there is one.

    Raises:
        ModelError: no method continues it.
    """
    states = program.states
    taken, given = {s.input for s in states}, {s.output for s in states}
    continuing, beginning = [], []
    for name in program.methods:
        signature = program.signature(name)
        inputs = {spec.name for spec in signature.inputs}
        outputs = {spec.name for spec in signature.outputs}
        if taken <= inputs and given <= outputs:
            continuing.append(name)
        elif given <= outputs and not taken & inputs:
            beginning.append(name)
    if not continuing:
        raise ModelError(
            "no method takes all KV caches and returns them, as 'decode' does; methods: "
            f"{', '.join(program.methods)}; states: {', '.join(map(str, states))}"
        )
    decode = "decode" if "decode" in continuing else continuing[0]
    prefill = "prefill" if "prefill" in beginning else next(iter(beginning), None)
    return Roles.of(decode, program.signature(decode), states), (
        None if prefill is None else Roles.of(prefill, program.signature(prefill), states)
    )


def _common(one: list[int], other: list[int]) -> int:
    """Return how many ids two sequences begin with alike."""
    if other[: len(one)] == one:
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), len(other))
